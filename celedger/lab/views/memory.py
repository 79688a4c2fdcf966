"""`celedger profile --memory`: what holds the memory, what piles up, and what differs between two
commits, as text. Its documents are those of celedger/lab/diagnose/memory_growth.py."""

from __future__ import annotations

from collections.abc import Sequence

from celedger.lab.diagnose.memory_growth import PEAK_FLOOR
from celedger.lab.diagnose.stalls import Document
from celedger.lab.views.explain import columns
from celedger.lab.views.profile import ProfileTarget, size
from celedger.views.document import amount, clip, measure, percent, plain, table

ROWS = 8
_PROCESS = 0.05  # of the process's peak: two runs of one commit differ by less
PEAKS = {"step": "a training step", "evaluation": "an evaluation"}
_ADVICE = {
    "tensors": "keep numbers instead (.item(), .detach() of what is small), or clear it each epoch",
    "garbage": "break the cycle of objects that holds them, or call gc.collect() each epoch",
    "hooks": "register it once, or keep what register_…_hook returns and call remove()",
    "graphs": "the tensor keeps its graph: add .detach() or .item() to what is summed up",
    "objects": "clear the list or dictionary each epoch, or bound it",
}


def memory_text(target: ProfileTarget, document: Document, *, width: int = 100) -> str:
    where = "torch {torch}, {device}".format_map(document["environment"])
    head = [
        f"memory of {target.titles(width)[0]}",
        f"seed {target.seed}, {where}; the process held {size(document['peak_rss'])} at most",
    ]
    parts = [
        "\n".join(clip(line, width) for line in head),
        *(_peak(name, peak, width) for name, peak in document["peaks"].items() if peak["bytes"]),
        _leaks(document["leaks"]) or "nothing piles up from epoch to epoch",
        _outside(document["outside"]),
    ]
    return "\n\n".join(filter(None, parts))


def _outside(grown: int) -> str:
    beyond = "Python objects, or memory of other libraries"
    return f"the process grew by {size(grown)} beyond its tensors: {beyond}" if grown else ""


def memory_headline(document: Document) -> str:
    """Return the peaks, and whether something piles up."""
    peaks = [
        f"the peak of {PEAKS[name]} is {size(peak['bytes'])}"
        for name, peak in document["peaks"].items() if peak["bytes"]
    ]  # fmt: skip
    leaks = [leak_text(leak) for leak in document["leaks"][:1]]
    return "; ".join([*peaks, *(leaks or ["nothing piles up from epoch to epoch"])])


def difference_text(target: ProfileTarget, document: Document, *, width: int = 100) -> str:
    head = "\n".join([f"memory of {target.task}, seed {target.seed}", *target.titles(width)])
    peaks = [_parts(name, p, width) for name, p in document["peaks"].items() if p["parts"]]
    parts = [head, difference_headline(document), _leaks(document["new_leaks"]), *peaks]
    return "\n\n".join(filter(None, parts))


def leak_text(leak: Document) -> str:
    """Return one sentence: what leaks, how fast, from where."""
    at = f" made at {plain(leak['place'])}" if leak["place"] else ""
    inside = f" in {leak['module']}" if leak["module"] else ""
    rate = f"{leak['number']:.3g} a step"
    if leak["bytes"]:
        rate += f", {size(leak['bytes'])} a step"
    what = {
        "tensors": f"tensors of {leak['what']}", "graphs": "nodes of autograd's graph",
        "objects": f"objects of the type {leak['what']}",
    }  # fmt: skip
    if leak["kind"] == "garbage":
        return f"tensors of {leak['what']} wait for the garbage collector: {rate}{inside}{at}"
    kept = f", kept in {plain(leak['keeper'])}" if leak["keeper"] else ""
    return f"{what.get(leak['kind'], leak['what'])} pile up: {rate}{inside}{at}{kept}"


def _peak(name: str, peak: Document, width: int) -> str:
    rows = [
        (size(row["bytes"]), percent(row["bytes"] / peak["bytes"]), *_maker(row))
        for row in peak["held"]
    ]
    heads = columns(">held", ">share", "made by", "phase", "module", "line")
    head = f"peak of {PEAKS[name]}: tensors of {size(peak['bytes'])}, step {peak['step']}"
    if course := peak["course"]:
        head += f", at operator {course['peak'] + 1} of {len(course['bytes'])}"
    return f"{head}\n{table(heads, rows[:ROWS], width=width)}{_more(rows)}"


def _leaks(leaks: Sequence[Document]) -> str:
    lines = [f"leak: {leak_text(leak)}\n  try: {_ADVICE[leak['kind']]}" for leak in leaks[:ROWS]]
    return "\n".join(lines) + _more(leaks)


def _more(rows: Sequence[object]) -> str:
    rest = len(rows) - ROWS
    return f"\n… and {rest} more (--json has all)" if rest > 0 else ""


def difference_headline(document: Document) -> str:
    """Return whether something piles up, or the peaks grew, and by how much. Where memory is
    larger, a peak that fell by the way is left to the tables."""
    is_larger = document["verdict"] == "larger"
    changes = [*map(leak_text, document["new_leaks"][:1])]
    for name, peak in document["peaks"].items():
        grown, before = peak["after"] - peak["before"], peak["before"]
        change = grown / before if before else 0.0
        if change >= PEAK_FLOOR or (change <= -PEAK_FLOOR and not is_larger):
            part = f"{amount(grown, before, unit='B')} of {size(before)}"
            changes.append(f"the peak of {PEAKS[name]} is {_grown(grown)} ({part})")
    word = "larger" if is_larger else "smaller" if changes else "no difference"
    text = f"{word}: {'; '.join(changes) or f'the peaks are within {percent(PEAK_FLOOR)}'}"
    old, new = (document["process"][side] for side in ("before", "after"))
    tensors = sum(peak["after"] - peak["before"] for peak in document["peaks"].values())
    if abs(new - old) > _PROCESS * old and not 0.5 < tensors / (new - old) < 2:
        by = amount(new - old, old, unit="B")
        text += f"; the whole process {by} of {size(old)}, not by its tensors"
    return text


def _parts(name: str, peak: Document, width: int) -> str:
    rows = [
        (*_maker(part), size(part["before"]), size(part["after"]),
         _grown(part["after"] - part["before"]))
        for part in peak["parts"]
    ]  # fmt: skip
    sums = (size(peak["before"]), size(peak["after"]), _grown(peak["after"] - peak["before"]))
    whole = (f"peak of {PEAKS[name]}", "", "", "", *sums)
    heads = columns("made by", "phase", "module", "line", ">before", ">after", ">difference")
    return table(heads, [*rows[:ROWS], whole], width=width) + _more(rows)


def _maker(row: Document) -> tuple[str, str, str, str]:
    """Return operator, phase, module and line, without the line's function."""
    module = "" if row["module"] is None else row["module"] or "the model"
    return row["operator"], row["phase"], module, plain((row["place"] or "").partition(" in ")[0])


def _grown(change: float) -> str:
    return measure(change, unit="B", signed=True, significant=3)
