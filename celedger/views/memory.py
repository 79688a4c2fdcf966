"""`celedger profile --memory`: who holds the memory, what piles up, and what differs between two
commits, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from celedger.diagnose.memory import (
    PEAK_FLOOR,
    HeldBytes,
    Leak,
    Memory,
    MemoryDifference,
    MemoryPeak,
    PeakPart,
)
from celedger.diagnose.stalls import CodeLine
from celedger.views.export import Json, document
from celedger.views.format import clip, measure, percent, plain
from celedger.views.profile import Profiled, columns, line_json
from celedger.views.tables import table

ROWS = 8
EPOCHS = 12
_PEAKS = {"step": "a training step", "evaluation": "an evaluation"}
_ADVICE = {
    "tensors": "keep numbers instead (.item(), .detach() of what is small), or clear it each epoch",
    "graphs": "the tensor keeps its graph: add .detach() or .item() to what is summed up",
    "objects": "clear the list or dictionary each epoch, or bound it",
}


def memory_text(looked: Profiled, memory: Memory, *, width: int = 100) -> str:
    where = f"torch {memory.torch}, {memory.device}"
    head = [
        f"memory of {looked.task} at {looked.titles()[0]}",
        f"seed {looked.seed}, {where}; the process held {_bytes(memory.peak_rss)} at most",
    ]
    epochs = [
        ("–" if e.epoch is None else str(e.epoch), *map(_bytes, (e.peak, e.held, e.rss)))
        for e in memory.epochs
    ]
    if len(epochs) > EPOCHS:
        epochs = [*epochs[: EPOCHS // 2], ("…", "", "", ""), *epochs[-EPOCHS // 2 :]]
    heads = columns(">epoch", ">peak", ">held at its end", ">process")
    parts = [
        "\n".join(clip(line, width) for line in head),
        *(_peak(name, peak, width) for name, peak in memory.peaks.items() if peak.bytes),
        table(heads, epochs, width=width) if epochs else "",
        _leaks(memory.leaks) or "nothing piles up from epoch to epoch",
    ]
    return "\n\n".join(parts)


def difference_text(looked: Profiled, difference: MemoryDifference, *, width: int = 100) -> str:
    before, after = looked.titles()
    lines = [
        f"memory of {looked.task}, seed {looked.seed}",
        clip(f"  before  {before}", width),
        clip(f"  after   {after}", width),
        "",
        _verdict(difference),
    ]
    if difference.leaks:
        lines += ["", _leaks(difference.leaks)]
    for name, parts in difference.parts.items():
        if any(part.difference for part in parts):
            lines += ["", _parts(name, parts, width)]
    return "\n".join(lines)


def leak_text(leak: Leak) -> str:
    """One sentence: what, how fast, from where."""
    at = f" made at {plain(str(leak.line))}" if leak.line else ""
    inside = f" in {leak.module}" if leak.module else ""
    rate = f"{leak.number:.3g} a step"
    if leak.bytes:
        rate += f", {measure(leak.bytes, unit='B', significant=3)} a step"
    what = {"tensors": f"tensors of {leak.what}", "graphs": "nodes of autograd's graph"}
    return f"{what.get(leak.kind, leak.what)} pile up: {rate}{inside}{at}"


def memory_json(looked: Profiled, memory: Memory) -> dict[str, Json]:
    return document(
        kind="memory",
        **looked.fields(),
        environment={"torch": memory.torch, "device": memory.device},
        peaks={
            name: {
                "bytes": peak.bytes, "step": peak.step, "held": [_row(held) for held in peak.held]
            }
            for name, peak in memory.peaks.items()
        },
        peak_rss=memory.peak_rss,
        steps={name: values.tolist() for name, values in memory.steps.items()},
        epochs=[asdict(epoch) for epoch in memory.epochs],
        leaks=[_leak(leak) for leak in memory.leaks],
    )  # fmt: skip


def difference_json(looked: Profiled, difference: MemoryDifference) -> dict[str, Json]:
    return document(
        kind="memory-difference",
        **looked.fields(),
        verdict="larger" if difference.larger else "same",
        peaks={
            name: {
                "before": difference.before.peaks[name].bytes,
                "after": difference.after.peaks[name].bytes,
                "parts": [_row(part) for part in parts if part.difference],
            }
            for name, parts in difference.parts.items()
        },
        new_leaks=[_leak(leak) for leak in difference.leaks],
    )


def _row(row: HeldBytes | PeakPart) -> dict[str, object]:
    return {**asdict(row), "place": str(row.place) if row.place else None}


def _leak(leak: Leak) -> dict[str, object]:
    file_and_line = {k: v for k, v in line_json(leak.line).items() if k != "function"}
    return {**asdict(leak), **file_and_line}


def _peak(name: str, peak: MemoryPeak, width: int) -> str:
    rows = [
        (
            _bytes(held.bytes), percent(held.bytes / peak.bytes, signed=False), held.operator,
            held.phase, _module(held.module), _place(held.place),
        )
        for held in peak.held[:ROWS]
    ]  # fmt: skip
    heads = columns(">held", ">share", "made by", "phase", "module", "line")
    head = f"peak of {_PEAKS[name]}: tensors of {_bytes(peak.bytes)}, step {peak.step}"
    rest = len(peak.held) - len(rows)
    tail = f"\n… and {rest} more (--json has all)" if rest > 0 else ""
    return head + "\n" + table(heads, rows, width=width) + tail


def _leaks(leaks: Sequence[Leak]) -> str:
    lines = [f"leak: {leak_text(leak)}\n  try: {_ADVICE[leak.kind]}" for leak in leaks[:ROWS]]
    if len(leaks) > ROWS:
        lines.append(f"… and {len(leaks) - ROWS} more (--json has all)")
    return "\n".join(lines)


def _verdict(difference: MemoryDifference) -> str:
    changes = []
    for name, peak in difference.before.peaks.items():
        grown = difference.after.peaks[name].bytes - peak.bytes
        if peak.bytes and abs(grown / peak.bytes) >= PEAK_FLOOR:
            part = f"{percent(grown / peak.bytes)} of {_bytes(peak.bytes)}"
            changes.append(f"the peak of {_PEAKS[name]} is {_grown(grown)} ({part})")
    if difference.leaks:
        changes.append("something piles up that did not")
    if not changes:
        same = percent(PEAK_FLOOR, signed=False)
        changes.append(f"the peaks are within {same} of what they were")
        word = "larger" if difference.larger else "no difference"
    else:
        word = "larger" if difference.larger else "smaller"
    return f"{word}: {'; '.join(changes)}"


def _parts(name: str, parts: Sequence[PeakPart], width: int) -> str:
    differing = [part for part in parts if part.difference]
    others, same = differing[ROWS:], [part for part in parts if not part.difference]
    rows = [
        (part.operator, part.phase, _module(part.module), *_sizes([part]), _place(part.place))
        for part in differing[:ROWS]
    ]
    if others:
        rows.append((f"{len(others)} others", "", "", *_sizes(others), ""))
    rows.append(("the same on both sides", "", "", *_sizes(same), ""))
    rows.append((f"peak of {_PEAKS[name]}", "", "", *_sizes(parts), ""))
    heads = columns("made by", "phase", "module", ">before", ">after", ">difference", "line")
    return table(heads, rows, width=width)


def _sizes(parts: Sequence[PeakPart]) -> tuple[str, str, str]:
    """Before, after and the difference."""
    before, after = sum(part.before for part in parts), sum(part.after for part in parts)
    return _bytes(before), _bytes(after), _grown(after - before)


def _module(path: str | None) -> str:
    return "" if path is None else path or "the model"


def _place(place: CodeLine | None) -> str:
    return "" if place is None else f"{plain(place.file)}:{place.line}"


def _bytes(size: float) -> str:
    return measure(size, unit="B", significant=4)


def _grown(size: float) -> str:
    return measure(size, unit="B", signed=True, significant=3) if size else "0 B"
