"""`celedger check` where a CI service shows it: a Markdown summary, and GitHub's annotations."""

from __future__ import annotations

from collections.abc import Iterator

from celedger.base.model import VerdictKind
from celedger.views.format import count, plain, short
from celedger.views.verdicts import Rows, VerdictList

_SIGNS = {
    VerdictKind.SAME: "✅", VerdictKind.IMPROVED: "✅", VerdictKind.TOO_NOISY: "❔",
    VerdictKind.UNDECIDED: "❔", VerdictKind.ENVIRONMENT_CHANGED: "❔",
}  # fmt: skip
_LEVELS = {VerdictKind.IMPROVED: "notice", VerdictKind.SAME: ""}


def markdown(verdicts: VerdictList) -> str:
    """Return the verdicts as a GitHub- or GitLab-flavoured table, telemetry folded away."""
    own, telemetry = verdicts.rows()
    bad = sum(verdict.kind.bad for verdict, _ in own)
    head = f"{count(bad, 'metric')} worse" if bad else "nothing is worse"
    commit = verdicts.commit
    lines = [
        f"### celedger: {head}", "",
        f"`{short(commit.sha)}` {_escaped(plain(commit.subject))}", "", *_table(own),
    ]  # fmt: skip
    if telemetry:
        lines += ["<details><summary>telemetry, which never decides</summary>", ""]
        lines += [*_table(telemetry), "</details>", ""]
    return "\n".join(lines)


def _table(rows: Rows) -> list[str]:
    if not rows:
        return ["Nothing was judged.", ""]
    lines = ["| | task | metric | verdict | change | |", "|---|---|---|---|--:|---|"]
    for verdict, cells in rows:
        sign = _SIGNS.get(verdict.kind, "❌")
        lines.append(f"| {sign} | {' | '.join(map(_escaped, cells))} |")
    return [*lines, ""]


def _escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, in a cell of a table too."""
    for letter in "\\`*_[]|#~":
        text = text.replace(letter, f"\\{letter}")
    return (
        text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
    )


def workflow_commands(verdicts: VerdictList) -> Iterator[str]:
    """Yield GitHub's workflow commands for what the suite declares, the worst first."""
    for verdict, (task, metric, kind, change, remarks) in verdicts.rows()[0]:
        level = "error" if verdict.kind.bad else _LEVELS.get(verdict.kind, "warning")
        if level:
            title = _property(f"{task} {metric}: {kind} {change}".strip())
            yield f"::{level} title={title}::{_data(remarks or kind)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
