"""`celedger check` where a CI service shows it: a Markdown summary, and GitHub's annotations."""

from __future__ import annotations

from collections.abc import Iterator

from celedger.judge.incident import Standing
from celedger.views.check import CheckDocument, StandingRows
from celedger.views.format import count, plain, short

_SIGNS = {Standing.SAME: "✅", Standing.BETTER: "✅", Standing.WORSE: "❌", Standing.MISSING: "❌"}
_LEVELS = {Standing.BETTER: "notice", Standing.SAME: "", Standing.WORSE: "error",
           Standing.MISSING: "error"}  # fmt: skip


def markdown(document: CheckDocument) -> str:
    """Return how a commit stands as a GitHub- or GitLab-flavoured table, telemetry folded away."""
    own, telemetry = document.rows()
    bad = sum(each.standing is Standing.WORSE for each, _ in own)
    head = f"{count(bad, 'metric')} worse" if bad else "nothing is worse"
    commit = document.commit
    lines = [
        f"### celedger: {head}", "",
        f"`{short(commit.sha)}` {_escaped(plain(commit.subject))}", "", *_table(own),
    ]  # fmt: skip
    if telemetry:
        lines += ["<details><summary>telemetry, which never decides</summary>", ""]
        lines += [*_table(telemetry), "</details>", ""]
    return "\n".join(lines)


def _table(rows: StandingRows) -> list[str]:
    if not rows:
        return ["Nothing was measured.", ""]
    lines = ["| | task | metric | stands | change | |", "|---|---|---|---|--:|---|"]
    for each, cells in rows:
        sign = _SIGNS.get(each.standing, "❔")
        lines.append(f"| {sign} | {' | '.join(map(_escaped, cells))} |")
    return [*lines, ""]


def _escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, in a cell of a table too."""
    for letter in "\\`*_[]|#~":
        text = text.replace(letter, f"\\{letter}")
    return (
        text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
    )


def workflow_commands(document: CheckDocument) -> Iterator[str]:
    """Yield GitHub's workflow commands for what the suite declares, the worst first."""
    for each, (task, metric, kind, change, remarks) in document.rows()[0]:
        if level := _LEVELS.get(each.standing, "warning"):
            title = _property(f"{task} {metric}: {kind} {change}".strip())
            yield f"::{level} title={title}::{_data(remarks or kind)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
