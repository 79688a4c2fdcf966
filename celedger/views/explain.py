"""What `celedger explain` says: text to paste, JSON, and the error along the network's depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from celedger.diagnose.blame import Blamed, inside
from celedger.diagnose.desk import Explanation
from celedger.diagnose.difference import Growth
from celedger.diagnose.finding import ExplainFinding, figure, share
from celedger.diagnose.trace import Frame
from celedger.diagnose.watch import WatchpointFinding as Fired
from celedger.views import export
from celedger.views.format import clip, count, plain
from celedger.views.watch import module as watch_module

_LINES = 12  # of a hunk that are shown
_HUNKS = 3


def explanation_text(found: Explanation, tree: Path, width: int = 100) -> str:
    """The paste-ready answer. `tree` is the folder in which the trainings ran."""
    between = f"{found.task}, {found.a.name} against {found.b.name}, seed {found.seed}"
    if found.finding is None:
        notes = (f"  note        {n}" for n in found.notes)
        return "\n".join([_nothing(found, between), *_watched(found), *notes])
    finding = found.finding
    lines = [_headline(found), ""]
    lines.append(f"  compared    {between}, {count(found.steps, 'step')}")
    where = f"step {finding.step}, {finding.phase}"
    if finding.module is not None:
        where += f", {finding.module or 'the model itself'}"
        where += f" ({finding.kind})" if finding.kind else ""
    lines.append(f"  first       {where}")
    if finding.tensor:
        lines.append(f"  tensor      {finding.tensor}{_far(finding)}")
    if finding.operator:
        lines.append(f"  operator    {clip(finding.operator, width - 14)}")
    lines += [f"  code        {line}" for line in _code(finding, tree)]
    lines += [f"  fact        {clip(fact, width - 14)}" for fact in finding.facts]
    if found.growth is not None:
        lines.append(f"  then        {_course(found)}")
    lines += _watched(found)
    lines.append(f"  sure        {_sure(found)}")
    lines += [f"  note        {note}" for note in found.notes]
    for blamed in found.blamed[:_HUNKS]:
        lines += ["", *_hunk(blamed)]
    if len(found.blamed) > _HUNKS:
        lines.append(f"and {count(len(found.blamed) - _HUNKS, 'more hunk')} of the change")
    return "\n".join(lines)


def _headline(found: Explanation) -> str:
    assert found.finding is not None
    said = found.finding.sentence
    if found.verdict == "rounding":
        return f"only rounding differs: {said}"
    return said[0].upper() + said[1:]


def _nothing(found: Explanation, between: str) -> str:
    if found.verdict == "equal":
        inside = f" ({count(found.vanished, 'difference')} inside had no effect)"
        more = inside if found.vanished else ""
        return f"no difference in {count(found.steps, 'step')}{more}: {between}"
    if found.verdict == "noise":
        return f"no difference that stands out from the noise of the seeds: {between}"
    if found.verdict == "rounding":
        return f"no difference that the arithmetic does not explain: {between}"
    return f"a difference, and no place for it: {between}"


def _far(finding: ExplainFinding) -> str:
    far = finding.distance
    if far is None:
        return ""
    if far.shapes[0] != far.shapes[1]:
        return f": shape {list(far.shapes[0])} → {list(far.shapes[1])}"
    said = f": {share(far.share)} of its elements, by at most {figure(far.largest)}"
    said += f", relative {figure(far.relative)}"
    if math.isfinite(far.cosine):
        said += f", cosine {far.cosine:.6f}"
    return said


def _course(found: Explanation) -> str:
    growth = found.growth
    assert growth is not None
    parted = _parted(growth)
    if growth.diverged is not None:
        until = "" if growth.diverged == 0 else f"; until then {parted}"
        return f"the loss is not a finite number at step {growth.diverged}{until}"
    if not any(x > 0 for x in growth.loss):
        return parted
    if found.verdict == "rounding":
        return f"{parted}: no more than rounding alone makes of it"
    return f"{parted}; it {'grows' if found.grows else 'does not grow'}"


def _parted(growth: Growth) -> str:
    """How much the loss differs, as long as it is finite."""
    end = math.inf if growth.diverged is None else growth.diverged
    seen = zip(growth.steps, growth.loss, strict=True)
    values = [(s, x) for s, x in seen if x == x and s < end]
    if not values:
        return "no loss was seen"
    if not any(x for _, x in values):
        return "the loss stays the same"
    wanted = {values[0][0], values[-1][0], *(2**k for k in range(2, 12, 3))}
    shown = ", ".join(f"{figure(x)} at step {s}" for s, x in values if s in wanted)
    return f"the loss differs by {shown} of its size"


def _watched(found: Explanation) -> list[str]:
    """What watchpoints say of side b and not of side a."""
    fired = new_findings(found)
    if fired is None:
        return []
    if not fired:
        return ["  watch       no watchpoint fires that does not fire before"]
    return [
        f"  watch       {one.watchpoint.name}: step {one.first.step}, {watch_module(one.first)}, "
        f"{one.first.tensor}, {one.watchpoint.measures} {figure(one.first.figure)}"
        for one in fired
    ]


def new_findings(found: Explanation) -> list[Fired] | None:
    """None where nobody watched."""
    if found.watched is None:
        return None
    before, after = (
        [one for judged in report.trainings for one in judged.findings] for report in found.watched
    )
    known = {one.watchpoint.name for one in before}
    return [one for one in after if one.watchpoint.name not in known]


def _sure(found: Explanation) -> str:
    finding = found.finding
    assert finding is not None
    said = str(finding.sureness)
    if found.repeats:
        said += f"; {found.a.name} repeats itself bit by bit"
    if found.blamed and found.blamed[0].closeness <= 1:
        said += ", and the change touches the place"
    elif finding.places and found.a.commit != found.b.commit:
        said += ", but the change does not touch the place" if not found.blamed else ""
    return said


def places(finding: ExplainFinding, tree: Path) -> list[tuple[str, str, Frame]]:
    """What, file and frame of each place in the tree, the innermost of each, without repeats."""
    found: dict[tuple[str, int], tuple[str, str, Frame]] = {}
    for place in finding.places:
        for frame in place.frames:
            path = inside(tree, frame)
            if path is not None:
                side = "" if place.side == "b" else " (before)"
                found.setdefault((path, frame.line), (place.what + side, path, frame))
                break
    return list(found.values())


def _code(finding: ExplainFinding, tree: Path, most: int = 4) -> list[str]:
    return [f"{path}:{frame.line}  {what}" for what, path, frame in places(finding, tree)[:most]]


def _hunk(blamed: Blamed) -> list[str]:
    hunk = blamed.hunk
    name = hunk.new or hunk.old
    title = f"{name}:{hunk.new_start}" + (f"  {plain(hunk.around)}" if hunk.around else "")
    lines = [f"    {plain(line[:1])} {line[1:].rstrip()}" for line in hunk.lines[:_LINES]]
    more = len(hunk.lines) - _LINES
    return [f"  {title}", *lines, *([f"    … {more} more lines"] if more > 0 else [])]


def explanations_json(found: Sequence[Explanation], tree: Path) -> dict[str, export.Json]:
    return export.document(explanations=[_record(one, tree) for one in found])


def _record(found: Explanation, tree: Path) -> dict[str, object]:
    return {
        "task": found.task,
        "a": {"name": found.a.name, "commit": found.a.commit.sha},
        "b": {"name": found.b.name, "commit": found.b.commit.sha},
        "seed": found.seed,
        "steps": found.steps,
        "verdict": found.verdict,
        "repeats": found.repeats,
        "vanished": found.vanished,
        "grows": found.grows,
        "loss_differs": [] if found.growth is None else list(found.growth.loss),
        "loss_not_finite_at": None if found.growth is None else found.growth.diverged,
        "finding": None if found.finding is None else _finding(found.finding, tree),
        "hunks": [
            {
                "old": one.hunk.old, "new": one.hunk.new, "old_start": one.hunk.old_start,
                "new_start": one.hunk.new_start, "closeness": one.closeness,
                "lines": list(one.hunk.lines),
            }
            for one in found.blamed
        ],
        "layers": [
            {"module": x.path, "class": x.kind, "forward": x.forward, "backward": x.backward}
            for x in found.layers
        ],
        "notes": list(found.notes),
        "watch": [
            {
                "watchpoint": one.watchpoint.name, "step": one.first.step,
                "module": one.first.module, "tensor": one.first.tensor, "figure": one.first.figure,
                "threshold": one.threshold, "try": one.watchpoint.advice,
            }
            for one in new_findings(found) or ()
        ],
    }  # fmt: skip


def _finding(finding: ExplainFinding, tree: Path) -> dict[str, object]:
    far = finding.distance
    return {
        "phase": finding.phase, "step": finding.step, "module": finding.module,
        "class": finding.kind, "tensor": finding.tensor, "cause": finding.cause,
        "sentence": finding.sentence, "sure": finding.sureness, "operator": finding.operator,
        "facts": list(finding.facts),
        "places": [
            {"what": what, "file": path, "line": frame.line, "function": frame.function}
            for what, path, frame in places(finding, tree)
        ],
        "distance": None if far is None else {
            "largest": far.largest, "relative": far.relative, "cosine": far.cosine,
            "share": far.share, "units": far.units, "elements": far.compared,
            "shapes": [list(shape) for shape in far.shapes], "dtypes": list(far.dtypes),
        },
    }  # fmt: skip
