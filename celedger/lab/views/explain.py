"""The output of `celedger explain`: text to paste, and JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from celedger.lab.diagnose.blame import Blamed
from celedger.lab.diagnose.difference import Growth
from celedger.lab.diagnose.explain import Explanation
from celedger.lab.diagnose.finding import ExplainFinding, figure, path_in_tree, share
from celedger.lab.diagnose.inexact_trainings import ReplayedOperator
from celedger.lab.diagnose.trace import Frame
from celedger.views import document
from celedger.views.document import Column, clip, count, plain, table

_LINES = 12  # of a hunk that are shown
_HUNKS = 3
_OPERATORS = 15  # of a replay
_NOTHING = {
    "noise": "cannot be judged: two runs of side a differ",
    "rounding": "no difference that the arithmetic does not explain",
    "difference": "a difference, and no place for it",
}


def explanations_text(answers: Sequence[Explanation], tree: Path, width: int) -> str:
    return "\n\n".join(explanation_text(answer, tree, width) for answer in answers)


def explanation_text(answer: Explanation, tree: Path, width: int = 100) -> str:
    """Return the text to paste. `tree` is the folder in which the trainings ran."""
    between = f"{answer.task}, {answer.a.name} against {answer.b.name}, seed {answer.seed}"
    steps = count(answer.steps, "step")
    head = headline(answer)
    rows: list[tuple[str, str]] = []
    if (finding := answer.finding) is None:
        head += f": {between}"
    else:
        head += "\n"
        rows.append(("compared", f"{between}, {steps}"))
        where = f"step {finding.step}, {finding.phase}"
        if finding.module is not None:
            where += f", {finding.module or 'the model itself'}"
            where += f" ({finding.kind})" if finding.kind else ""
        rows.append(("first", where))
        rows += [("tensor", finding.tensor + _distance(finding))] if finding.tensor else []
        rows += [("operator", clip(finding.operator, width - 14))] if finding.operator else []
        rows += [
            ("code", f"{path}:{frame.line}  {what}")
            for what, path, frame in _places(finding, tree)[:4]
        ]
        rows += [("fact", clip(fact, width - 14)) for fact in finding.facts]
        rows += [("then", _course(answer, answer.growth))] if answer.growth is not None else []
    rows += [("sure", _sure(answer, finding))] if finding is not None else []
    rows += [("note", note) for note in answer.notes]
    lines = [head, *(f"  {name:<12}{text}" for name, text in rows)]
    for blamed in answer.blamed[:_HUNKS]:
        lines += ["", *hunk_lines(hunk_record(blamed))]
    if len(answer.blamed) > _HUNKS:
        lines.append(f"and {count(len(answer.blamed) - _HUNKS, 'more hunk')} of the change")
    return "\n".join(lines)


def headline(answer: Explanation) -> str:
    """Return the answer in one sentence, without a full stop."""
    if answer.finding is None:
        inside = f" ({count(answer.vanished, 'difference')} inside had no effect)"
        equal = f"no difference in {count(answer.steps, 'step')}"
        return _NOTHING.get(answer.verdict, equal + (inside if answer.vanished else ""))
    sentence = answer.finding.sentence
    if answer.verdict == "rounding":
        return f"only rounding differs: {sentence}"
    return sentence[0].upper() + sentence[1:]


def _distance(finding: ExplainFinding) -> str:
    far = finding.distance
    if far is None:
        return ""
    if far.shapes[0] != far.shapes[1]:
        return f": shape {list(far.shapes[0])} → {list(far.shapes[1])}"
    if not far.share:
        return f": none of the {far.compared} elements that are compared"
    text = f": {share(far.share)} of its elements, by at most {figure(far.largest)}"
    text += f", relative {figure(far.relative)}"
    return text + (f", cosine {far.cosine:.6f}" if math.isfinite(far.cosine) else "")


def _course(answer: Explanation, growth: Growth) -> str:
    """Describe the loss in later steps, until it is no longer finite."""
    end = math.inf if growth.diverged is None else growth.diverged
    losses = zip(growth.steps, growth.loss, strict=True)
    values = [(step, x) for step, x in losses if x == x and step < end]
    differs = any(x for _, x in values)
    parted = "the loss stays the same" if values else "no loss was seen"
    if differs:
        steps = {values[0][0], values[-1][0], *(2**k for k in range(2, 12, 3))}
        samples = ", ".join(f"{figure(x)} at step {s}" for s, x in values if s in steps)
        parted = f"the loss differs by {samples} of its size"
    if growth.diverged is not None:
        until = "" if growth.diverged == 0 else f"; until then {parted}"
        return f"the loss is not a finite number at step {growth.diverged}{until}"
    if not differs:
        return parted
    if answer.verdict == "rounding":
        return f"{parted}: no more than rounding alone makes of it"
    return f"{parted}; it {'grows' if grows(growth) else 'does not grow'}"


def grows(growth: Growth) -> bool | None:
    """Return True if the difference at the end is larger than at its beginning, None if that is not
    known."""
    if growth.diverged is not None:
        return True
    values = [x for x in growth.loss if x == x and x > 0]
    if len(values) < 4:
        return None
    quarter = max(1, len(values) // 4)
    return statistics.median(values[-quarter:]) > statistics.median(values[:quarter])


def _sure(answer: Explanation, finding: ExplainFinding) -> str:
    text = str(finding.sureness)
    if answer.repeats:
        text += f"; {answer.a.name} repeats itself bit by bit"
    if answer.blamed and answer.blamed[0].closeness <= 1:
        text += ", and the change touches the place"
    elif finding.places and answer.a.commit != answer.b.commit and not answer.blamed:
        text += ", but the change does not touch the place"
    return text


def _places(finding: ExplainFinding, tree: Path) -> list[tuple[str, str, Frame]]:
    """Return origin, file and frame of each place in the tree, the innermost of each, without
    repeats."""
    rows: dict[tuple[str, int], tuple[str, str, Frame]] = {}
    for location in finding.places:
        frames = ((path_in_tree(tree, frame.file), frame) for frame in location.frames)
        path, frame = next(((path, frame) for path, frame in frames if path), ("", None))
        if frame is not None:
            side = "" if location.side == "b" else " (before)"
            rows.setdefault((path, frame.line), (location.what + side, path, frame))
    return list(rows.values())


def hunk_lines(hunk: Mapping[str, Any]) -> list[str]:
    """Return the text of a hunk, as documents have it."""
    title = f"{hunk['new'] or hunk['old']}:{hunk['new_start']}"
    title += f"  {plain(hunk['around'])}" if hunk["around"] else ""
    lines = [f"    {plain(line[:1])} {line[1:].rstrip()}" for line in hunk["lines"][:_LINES]]
    more = len(hunk["lines"]) - _LINES
    return [f"  {title}", *lines, *([f"    … {more} more lines"] if more > 0 else [])]


def hunk_record(blamed: Blamed) -> dict[str, Any]:
    return {
        **document.pick(blamed.hunk, "old new old_start new_start around"),
        "closeness": blamed.closeness, "lines": blamed.hunk.lines,
    }  # fmt: skip


def explanations_json(answers: Sequence[Explanation], tree: Path) -> dict[str, document.Json]:
    return document.document(explanations=[_record(one, tree) for one in answers])


def _record(answer: Explanation, tree: Path) -> dict[str, object]:
    growth, finding = answer.growth, answer.finding
    return {
        "task": answer.task,
        "a": {"name": answer.a.name, "commit": answer.a.commit.sha},
        "b": {"name": answer.b.name, "commit": answer.b.commit.sha},
        **document.pick(answer, "seed steps verdict repeats vanished"),
        "grows": None if growth is None else grows(growth),
        "loss_differs": [] if growth is None else list(growth.loss),
        "loss_not_finite_at": None if growth is None else growth.diverged,
        "finding": None if finding is None else _finding_record(finding, tree),
        "hunks": [hunk_record(one) for one in answer.blamed],
        "layers": [
            {"module": x.path, "class": x.kind, "step": x.step,
             "forward": x.forward, "backward": x.backward}
            for x in answer.layers
        ],
        "stored": [one._asdict() for one in answer.stored],
        "notes": answer.notes,
    }  # fmt: skip


def _finding_record(finding: ExplainFinding, tree: Path) -> dict[str, object]:
    far = finding.distance
    return {
        "phase": finding.phase, "step": finding.step, "module": finding.module,
        "class": finding.kind, "tensor": finding.tensor, "cause": finding.cause,
        "sentence": finding.sentence, "sure": finding.sureness, "operator": finding.operator,
        "facts": finding.facts,
        "places": [
            {"what": what, "file": path, "line": frame.line, "function": frame.function}
            for what, path, frame in _places(finding, tree)
        ],
        "distance": None if far is None else {
            **document.pick(far, "largest relative cosine share units"), "elements": far.compared,
            **document.pick(far, "shapes dtypes"),
        },
    }  # fmt: skip


def columns(*heads: str) -> list[Column]:
    """Return the columns of a table; `>` before a head aligns numbers."""
    return [Column(h.removeprefix(">"), right=h[:1] == ">", shrink=h[:1] != ">") for h in heads]


def replay_text(
    title: str, rows: Sequence[ReplayedOperator], lacking: Sequence[str], tree: Path, width: int
) -> str:
    """Return the operators of a replay, those that rounding does not explain first."""
    cells = [
        (
            "beyond rounding" if row.beyond else "", figure(row.distance.relative),
            figure(row.distance.units), plain(row.call),
            plain("" if row.module is None else row.module or "the model"), row.phase,
            _line(row, tree),
        )
        for row in rows[:_OPERATORS]
    ]  # fmt: skip
    heads = columns("", ">error", ">units", "operator", "module", "pass", "line")
    more = f"\n… and {len(rows) - _OPERATORS} more (--json has all)" if rows[_OPERATORS:] else ""
    more += f"\nwithout such a form: {', '.join(lacking)}" if lacking else ""
    return f"{title}\n{replay_headline(rows)}\n\n{table(heads, cells, width=width)}{more}"


def replay_headline(rows: Sequence[ReplayedOperator]) -> str:
    beyond = sum(row.beyond for row in rows)
    return f"{beyond} of {count(len(rows), 'operator')} differ from themselves beyond rounding"


def _line(row: ReplayedOperator, tree: Path) -> str:
    inside = (
        f"{path}:{frame.line}" for frame in row.frames
        if (path := path_in_tree(tree, frame.file)) is not None
    )  # fmt: skip
    return next(inside, "")


def replay_record(
    about: Mapping[str, object],
    rows: Sequence[ReplayedOperator],
    lacking: Sequence[str],
    tree: Path,
) -> dict[str, object]:
    operators = [
        {
            **document.pick(row, "call module phase beyond"),
            **document.pick(row.distance, "relative units largest dtypes"),
            "line": _line(row, tree),
        }
        for row in rows
    ]  # fmt: skip
    return {**about, "operators": operators, "lacking": list(lacking)}
