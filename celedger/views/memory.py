"""`celedger profile --memory`: who holds the memory, what piles up, and what differs between two
commits, as text and as JSON."""

from __future__ import annotations

from celedger.diagnose.memory import PEAK_FLOOR, Difference, Leak, Memory, MemoryPeak, PeakPart
from celedger.diagnose.stalls import CodeLine
from celedger.model import Commit
from celedger.views.export import Json, document
from celedger.views.format import clip, measure, percent, plain, short
from celedger.views.profile import Header
from celedger.views.tables import Column, table

ROWS = 8
EPOCHS = 12
_PEAKS = {"step": "a training step", "evaluation": "an evaluation"}
_ADVICE = {
    "tensors": "keep numbers instead (.item(), .detach() of what is small), or clear it each epoch",
    "graphs": "the tensor keeps its graph: add .detach() or .item() to what is summed up",
    "objects": "clear the list or dictionary each epoch, or bound it",
}


def memory_text(header: Header, memory: Memory, *, width: int = 100) -> str:
    parts = [
        _head(header, memory, width),
        *(_peak(name, peak, width) for name, peak in memory.peaks.items() if peak.size),
        _epochs(memory, width),
        _leaks(memory.leaks) or "nothing piles up from epoch to epoch",
    ]
    return "\n\n".join(parts)


def difference_text(
    task: str, sides: tuple[Commit, Commit], seed: int, found: Difference, *, width: int = 100
) -> str:
    before, after = (f"{short(c.sha)} {plain(c.subject)}" for c in sides)
    lines = [
        f"memory of {task}, seed {seed}",
        clip(f"  before  {before}", width),
        clip(f"  after   {after}", width),
        "",
        _verdict(found),
    ]
    if found.leaks:
        lines += ["", _leaks(found.leaks)]
    for name, parts in found.parts.items():
        one = found.before.peaks[name].size, found.after.peaks[name].size
        if one[0] != one[1] or any(part.difference for part in parts):
            lines += ["", _parts(name, parts, one, width)]
    return "\n".join(lines)


def leak_text(leak: Leak) -> str:
    """One sentence: what, how fast, from where."""
    at = f" made at {plain(str(leak.place))}" if leak.place else ""
    inside = f" in {leak.module}" if leak.module else ""
    rate = f"{leak.number:.3g} a step"
    if leak.size:
        rate += f", {measure(leak.size, unit='B', significant=3)} a step"
    what = {"tensors": f"tensors of {leak.what}", "graphs": "nodes of autograd's graph"}
    return f"{what.get(leak.kind, leak.what)} pile up: {rate}{inside}{at}"


def memory_json(header: Header, memory: Memory) -> dict[str, Json]:
    return document(
        kind="memory",
        task=header.task,
        commit=header.commit.sha,
        seed=header.seed,
        environment={"torch": memory.torch, "device": memory.device},
        peaks={name: _peak_json(peak) for name, peak in memory.peaks.items()},
        peak_rss=memory.peak_rss,
        steps={
            "peak": memory.peak_of_step.tolist(),
            "held": memory.held.tolist(),
            "rss": memory.rss.tolist(),
        },
        epochs=[
            {"epoch": e.epoch, "step": e.step, "peak": e.peak, "held": e.held, "rss": e.rss}
            for e in memory.epochs
        ],
        leaks=[_leak_json(leak) for leak in memory.leaks],
    )


def difference_json(
    task: str, sides: tuple[Commit, Commit], seed: int, found: Difference
) -> dict[str, Json]:
    return document(
        kind="memory-difference",
        task=task,
        before=sides[0].sha,
        after=sides[1].sha,
        seed=seed,
        verdict="larger" if found.larger else "same",
        peaks={
            name: {
                "before": found.before.peaks[name].size,
                "after": found.after.peaks[name].size,
                "parts": [_part_json(part) for part in parts if part.difference],
            }
            for name, parts in found.parts.items()
        },
        new_leaks=[_leak_json(leak) for leak in found.leaks],
    )


def _head(header: Header, memory: Memory, width: int) -> str:
    where = f"torch {memory.torch}, {memory.device}"
    lines = [
        f"memory of {header.task} at {short(header.commit.sha)} {plain(header.commit.subject)}",
        f"seed {header.seed}, {where}; the process held {_bytes(memory.peak_rss)} at most",
    ]
    return "\n".join(clip(line, width) for line in lines)


def _peak(name: str, peak: MemoryPeak, width: int) -> str:
    rows = [
        (
            _bytes(held.size),
            percent(held.size / peak.size, signed=False),
            held.operator,
            held.phase,
            _module(held.module),
            _place(held.place),
        )
        for held in peak.held[:ROWS]
    ]
    columns = [
        Column("held", right=True), Column("share", right=True), Column("made by", shrink=True),
        Column("phase"), Column("module", shrink=True), Column("line", shrink=True),
    ]  # fmt: skip
    head = f"peak of {_PEAKS[name]}: tensors of {_bytes(peak.size)}, step {peak.step}"
    rest = len(peak.held) - len(rows)
    tail = f"\n… and {rest} more (--json has all)" if rest > 0 else ""
    return head + "\n" + table(columns, rows, width=width) + tail


def _epochs(memory: Memory, width: int) -> str:
    rows = [
        ("–" if e.epoch is None else str(e.epoch), *map(_bytes, (e.peak, e.held, e.rss)))
        for e in memory.epochs
    ]
    if len(rows) > EPOCHS:
        rows = [*rows[: EPOCHS // 2], ("…", "", "", ""), *rows[-EPOCHS // 2 :]]
    heads = ("epoch", "peak", "held at its end", "process")
    return table([Column(head, right=True) for head in heads], rows, width=width) if rows else ""


def _leaks(leaks: tuple[Leak, ...]) -> str:
    lines = []
    for leak in leaks[:ROWS]:
        lines += [f"leak: {leak_text(leak)}", f"  try: {_ADVICE[leak.kind]}"]
    if len(leaks) > ROWS:
        lines.append(f"… and {len(leaks) - ROWS} more (--json has all)")
    return "\n".join(lines)


def _verdict(found: Difference) -> str:
    said = []
    for name, before in found.before.peaks.items():
        after = found.after.peaks[name]
        if before.size and abs(after.size / before.size - 1) >= PEAK_FLOOR:
            said.append(
                f"the peak of {_PEAKS[name]} is {_grown(after.size - before.size)} "
                f"({percent(after.size / before.size - 1)} of {_bytes(before.size)})"
            )
    if found.leaks:
        said.append("something piles up that did not")
    word = "larger" if found.larger else "smaller" if said else "no difference"
    if said:
        return f"{word}: {'; '.join(said)}"
    return f"{word}: the peaks are within {percent(PEAK_FLOOR, signed=False)} of what they were"


def _parts(name: str, parts: tuple[PeakPart, ...], sizes: tuple[int, int], width: int) -> str:
    differing = [part for part in parts if part.difference]
    rows = [
        (
            part.operator,
            part.phase,
            _module(part.module),
            _bytes(part.before),
            _bytes(part.after),
            _grown(part.difference),
            _place(part.place),
        )
        for part in differing[:ROWS]
    ]
    if len(differing) > ROWS:
        others = differing[ROWS:]
        before, after = sum(p.before for p in others), sum(p.after for p in others)
        name_of = f"{len(others)} others"
        rows.append((name_of, "", "", _bytes(before), _bytes(after), _grown(after - before), ""))
    same = sum(part.before for part in parts if not part.difference)
    rows.append(("the same on both sides", "", "", _bytes(same), _bytes(same), "0 B", ""))
    grown = _grown(sizes[1] - sizes[0])
    rows.append((f"peak of {_PEAKS[name]}", "", "", _bytes(sizes[0]), _bytes(sizes[1]), grown, ""))
    columns = [
        Column("made by", shrink=True), Column("phase"), Column("module", shrink=True),
        Column("before", right=True), Column("after", right=True),
        Column("difference", right=True), Column("line", shrink=True),
    ]  # fmt: skip
    return table(columns, rows, width=width)


def _module(path: str | None) -> str:
    return "" if path is None else path or "the model"


def _place(place: CodeLine | None) -> str:
    return "" if place is None else f"{plain(place.file)}:{place.line}"


def _bytes(size: float) -> str:
    return measure(size, unit="B", significant=4)


def _grown(size: float) -> str:
    return measure(size, unit="B", signed=True, significant=3) if size else "0 B"


def _peak_json(peak: MemoryPeak) -> dict[str, object]:
    return {
        "bytes": peak.size, "step": peak.step,
        "held": [
            {
                "bytes": held.size, "phase": held.phase, "module": held.module,
                "operator": held.operator, "place": str(held.place) if held.place else None,
            }
            for held in peak.held
        ],
    }  # fmt: skip


def _part_json(part: PeakPart) -> dict[str, object]:
    return {
        "operator": part.operator, "phase": part.phase, "module": part.module,
        "before": part.before, "after": part.after,
        "place": str(part.place) if part.place else None,
    }  # fmt: skip


def _leak_json(leak: Leak) -> dict[str, object]:
    return {
        "kind": leak.kind, "what": leak.what, "module": leak.module, "number": leak.number,
        "bytes": leak.size, "file": leak.place.file if leak.place else None,
        "line": leak.place.line if leak.place else None,
    }  # fmt: skip
