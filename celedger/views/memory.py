"""`celedger profile --memory`: who holds the memory, what piles up, and what differs between two
commits, as text. Its documents are those of celedger/diagnose/memory.py."""

from __future__ import annotations

from collections.abc import Sequence

from celedger.diagnose.memory import PEAK_FLOOR, Document
from celedger.diagnose.stalls import CodeLine
from celedger.views.format import clip, measure, percent, plain
from celedger.views.profile import ProfileTarget, columns
from celedger.views.tables import table

ROWS = 8
EPOCHS = 12
_SIZES = ("peak", "held", "rss")
_PEAKS = {"step": "a training step", "evaluation": "an evaluation"}
_ADVICE = {
    "tensors": "keep numbers instead (.item(), .detach() of what is small), or clear it each epoch",
    "graphs": "the tensor keeps its graph: add .detach() or .item() to what is summed up",
    "objects": "clear the list or dictionary each epoch, or bound it",
}


def memory_text(target: ProfileTarget, document: Document, *, width: int = 100) -> str:
    where = "torch {torch}, {device}".format_map(document["environment"])
    head = [
        f"memory of {target.titles(width)[0]}",
        f"seed {target.seed}, {where}; the process held {_bytes(document['peak_rss'])} at most",
    ]
    parts = [
        "\n".join(clip(line, width) for line in head),
        *(_peak(name, peak, width) for name, peak in document["peaks"].items() if peak["bytes"]),
        _epochs(document["epochs"], width),
        _leaks(document["leaks"]) or "nothing piles up from epoch to epoch",
    ]
    return "\n\n".join(parts)


def difference_text(target: ProfileTarget, document: Document, *, width: int = 100) -> str:
    lines = [
        f"memory of {target.task}, seed {target.seed}",
        *target.titles(width),
        "",
        _verdict(document),
    ]
    if document["new_leaks"]:
        lines += ["", _leaks(document["new_leaks"])]
    for name, peak in document["peaks"].items():
        if peak["parts"]:
            lines += ["", _parts(name, peak, width)]
    return "\n".join(lines)


def leak_text(leak: Document) -> str:
    """One sentence: what, how fast, from where."""
    line = CodeLine(leak["file"], leak["function"], leak["line"])
    at = f" made at {plain(str(line))}" if leak["file"] else ""
    inside = f" in {leak['module']}" if leak["module"] else ""
    rate = f"{leak['number']:.3g} a step"
    if leak["bytes"]:
        rate += f", {measure(leak['bytes'], unit='B', significant=3)} a step"
    what = {"tensors": f"tensors of {leak['what']}", "graphs": "nodes of autograd's graph"}
    return f"{what.get(leak['kind'], leak['what'])} pile up: {rate}{inside}{at}"


def _peak(name: str, peak: Document, width: int) -> str:
    size, parts = peak["bytes"], peak["held"]
    rows = [
        (_bytes(row["bytes"]), percent(row["bytes"] / size, signed=False), *_maker(row))
        for row in parts[:ROWS]
    ]
    heads = columns(">held", ">share", "made by", "phase", "module", "line")
    head = f"peak of {_PEAKS[name]}: tensors of {_bytes(size)}, step {peak['step']}"
    rest = len(parts) - len(rows)
    tail = f"\n… and {rest} more (--json has all)" if rest > 0 else ""
    return head + "\n" + table(heads, rows, width=width) + tail


def _epochs(epochs: Sequence[Document], width: int) -> str:
    rows = [
        ("–" if e["epoch"] is None else str(e["epoch"]), *(_bytes(e[name]) for name in _SIZES))
        for e in epochs
    ]
    if len(rows) > EPOCHS:
        rows = [*rows[: EPOCHS // 2], ("…", "", "", ""), *rows[-EPOCHS // 2 :]]
    heads = columns(">epoch", ">peak", ">held at its end", ">process")
    return table(heads, rows, width=width) if rows else ""


def _leaks(leaks: Sequence[Document]) -> str:
    lines = [f"leak: {leak_text(leak)}\n  try: {_ADVICE[leak['kind']]}" for leak in leaks[:ROWS]]
    if len(leaks) > ROWS:
        lines.append(f"… and {len(leaks) - ROWS} more (--json has all)")
    return "\n".join(lines)


def _verdict(difference: Document) -> str:
    changes = []
    for name, peak in difference["peaks"].items():
        grown, before = peak["after"] - peak["before"], peak["before"]
        if before and abs(grown / before) >= PEAK_FLOOR:
            part = f"{percent(grown / before)} of {_bytes(before)}"
            changes.append(f"the peak of {_PEAKS[name]} is {_grown(grown)} ({part})")
    if difference["new_leaks"]:
        changes.append("something piles up that did not")
    word = "smaller" if changes else "no difference"
    if difference["verdict"] == "larger":
        word = "larger"
    same = f"the peaks are within {percent(PEAK_FLOOR, signed=False)} of what they were"
    return f"{word}: {'; '.join(changes) or same}"


def _parts(name: str, peak: Document, width: int) -> str:
    def row(what: str, before: int, after: int) -> tuple[str, ...]:
        return what, "", "", _bytes(before), _bytes(after), _grown(after - before), ""

    parts, others = peak["parts"][:ROWS], peak["parts"][ROWS:]
    rows = []
    for part in parts:
        operator, phase, module, line = _maker(part)
        sizes = row("", part["before"], part["after"])[3:6]
        rows.append((operator, phase, module, *sizes, line))
    if others:
        sums = (sum(part[side] for part in others) for side in ("before", "after"))
        rows.append(row(f"{len(others)} others", *sums))
    same = peak["before"] - sum(part["before"] for part in peak["parts"])
    rows.append(row("the same on both sides", same, same))
    rows.append(row(f"peak of {_PEAKS[name]}", peak["before"], peak["after"]))
    heads = columns("made by", "phase", "module", ">before", ">after", ">difference", "line")
    return table(heads, rows, width=width)


def _maker(row: Document) -> tuple[str, str, str, str]:
    """Operator, phase, module and line, without its function."""
    module = "" if row["module"] is None else row["module"] or "the model"
    return row["operator"], row["phase"], module, plain((row["place"] or "").partition(" in ")[0])


def _bytes(size: float) -> str:
    return measure(size, unit="B", significant=4)


def _grown(size: float) -> str:
    return measure(size, unit="B", signed=True, significant=3) if size else "0 B"
