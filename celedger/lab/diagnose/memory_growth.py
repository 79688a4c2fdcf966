"""Report where the memory of a training goes: what holds it at the peak, what piles up from epoch
to epoch, and what differs between two commits. Reads the event of the probe of `celedger profile
--memory`. Bytes are those of tensors, exact and the same in every run of one commit on one machine.
The result is the document that `--json` prints; its fields are in docs/profile.md.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from celedger.base.errors import CannotJudge
from celedger.base.model import Commit, Task
from celedger.lab.diagnose.probe_records import printed_name
from celedger.lab.diagnose.profile import NO_STEP, roots, run
from celedger.lab.diagnose.stalls import CodeLine, Document, line_fields
from celedger.trial.runner import Bench

# Tensors of one origin that outlive the epoch after their own, in every epoch, pile up. At least
# three of them, since two may be the current and the previous copy of a model.
FEWEST = 3
# Objects of one type, more in every epoch, at least one in two steps. Types are counted exactly,
# and their number does not grow in a training that keeps nothing.
OBJECTS = 0.5  # a step
COMPANIONS = 2.0  # objects that may come with a kept tensor: its own, its gradient function's
OUTSIDE, OUTSIDE_SHARE = 16e6, 0.1  # bytes, and share, of a process beyond its tensors
NODES = 1.0  # of autograd's graph, a step
PEAK_FLOOR = 0.01  # of the peak: a difference that matters
MORE = 1.1  # times as much piles up a step: counts and tensors' bytes are exact

Marks = Sequence[Mapping[str, Any]]


def memory(
    bench: Bench, commit: Commit, task: Task, seed: int, out: Path, probe: Mapping[str, object]
) -> Document:
    """Measure the memory of one run."""
    return load(run(bench, commit, task, seed, out, probe), roots(bench))


def load(event: Mapping[str, Any], roots: Mapping[str, str]) -> Document:
    """Read the probe's event; `roots` map prefixes of file names to their printed form. Raises
    CannotJudge if no step was recorded."""
    steps = event["steps"]
    if not steps["peak"]:
        raise CannotJudge(*NO_STEP)
    # The last has the number -1: no line of the user's.
    lines = [CodeLine(printed_name(file, roots), name, line) for file, name, line in event["lines"]]
    places = [*lines, None]
    for peak in event["peaks"].values():
        for row in peak["held"]:
            row["place"] = str(places[row.pop("line")] or "") or None
    marks = event["marks"]
    tensors = _tensors(marks, places, event)
    types = _types(marks, sum(leak["number"] for leak in tensors), event["type_keepers"])
    origins = {(leak["file"], leak["line"]) for leak in tensors}  # their graphs are the same leak
    graphs = [one for one in _graphs(marks, places) if (one["file"], one["line"]) not in origins]
    return {
        "environment": {"torch": event["torch"], "device": event["device"]},
        "peaks": event["peaks"],
        "peak_rss": event["peak_rss"],
        "steps": steps,
        "outside": _outside(steps),
        "leaks": [*tensors, *graphs, *_hooks(marks), *types],
    }


def _outside(steps: Mapping[str, Sequence[int]]) -> int:
    """Return the bytes by which the process grew beyond its tensors in the second half of the
    training; 0 where that is little."""
    early, late = slice(len(steps["rss"]) // 2, None), slice(-max(1, len(steps["rss"]) // 8), None)
    first, last = (
        int(np.median(np.subtract(steps["rss"], steps["held"])[part][:8])) for part in (early, late)
    )
    return last - first if last - first > max(OUTSIDE, OUTSIDE_SHARE * first) else 0


def compare(before: Document, after: Document) -> Document:
    """Return the parts of each peak that differ, the largest difference first, and what piles up
    on the second side only, or faster. `verdict` is "larger" for either, else "same"."""
    earlier = {_cause(leak): leak for leak in before["leaks"]}
    leaks = [leak for leak in after["leaks"] if _is_more(leak, earlier.get(_cause(leak)))]
    sides = [(peak, after["peaks"][name]) for name, peak in before["peaks"].items()]
    grown = any(b["bytes"] >= max(a["bytes"], 1) * (1 + PEAK_FLOOR) for a, b in sides)
    return {
        "verdict": "larger" if leaks or grown else "same",
        "peaks": {
            name: {"before": a["bytes"], "after": b["bytes"], "parts": _parts(a, b)}
            for name, (a, b) in zip(before["peaks"], sides, strict=True)
        },
        "process": {"before": before["peak_rss"], "after": after["peak_rss"]},
        "new_leaks": leaks,
    }


def _cause(leak: Document) -> object:
    return leak["kind"], leak["what"], leak["module"], leak["file"]


def _is_more(leak: Document, before: Document | None) -> bool:
    return before is None or any(leak[name] > MORE * before[name] for name in ("number", "bytes"))


def _parts(*peaks: Document) -> list[Document]:
    parts: dict[object, Document] = {}
    for side, peak in zip(("before", "after"), peaks, strict=True):
        for row in peak["held"]:
            key = row["operator"], row["phase"], row["module"]
            part = parts.setdefault(key, {**row, "before": 0, "after": 0})
            part[side] += row["bytes"]
            part["place"] = row["place"]
    for part in parts.values():
        del part["bytes"]
    differing = [part for part in parts.values() if part["before"] != part["after"]]
    return sorted(differing, key=lambda part: -abs(part["after"] - part["before"]))


def _leak(
    kind: str,
    what: str,
    number: float,
    size: float = 0.0,
    line: CodeLine | None = None,
    module: str | None = None,
) -> Document:
    """Return a row of `leaks`: `kind` is tensors, garbage, graphs, hooks or objects; `what` the
    operator or type. `number` and `size` (bytes) are a step; an unknown size is 0. `keeper`: the
    variable or container that holds them, if known."""
    return {
        "kind": kind, "what": what, "module": module, "number": number, "bytes": size, "keeper": "",
        **line_fields(line),
    }  # fmt: skip


def _tensors(
    marks: Marks, places: Sequence[CodeLine | None], event: Mapping[str, Any]
) -> list[Document]:
    garbage = {tuple(maker): size for *maker, size in marks[-1]["garbage"]} if marks else {}
    keepers = {tuple(maker): text for *maker, text in event["keepers"]}
    edges = [0, *(mark["step"] for mark in marks)]
    spans = [(a, b) for a, b in itertools.pairwise(edges) if b > a]
    if len(spans) < 2:
        return []
    leaks = []
    for phase, module, operator, line, number, size, births in marks[-1]["tensors"]:
        born = np.asarray(births)
        if phase in ("evaluation", "data"):  # between two steps, with the number of the second
            born = born - 1
        counts = [np.unique(born[(a <= born) & (born < b)]).size for a, b in spans]
        counts = [*np.trim_zeros(counts, "f")]  # another part came before
        if all(counts) and sum(counts) >= FEWEST and max(len(counts), min(counts)) >= FEWEST:
            rates = number / edges[-1], size / edges[-1]
            maker = phase, module, operator, line
            kind = "garbage" if garbage.get(maker, 0) > size / 2 else "tensors"
            leak = _leak(kind, operator, *rates, places[line], module)
            leaks.append({**leak, "keeper": keepers.get(maker, "") if kind == "tensors" else ""})
    return sorted(leaks, key=lambda leak: -leak["bytes"])


def _graphs(marks: Marks, places: Sequence[CodeLine | None]) -> list[Document]:
    counts: list[Counter[int]] = [Counter() for _ in marks]
    for count, mark in zip(counts, marks, strict=True):
        for nodes, line in mark["graphs"]:
            count[line] += nodes
    return [
        _leak("graphs", "autograd nodes", rate, line=places[line])
        for line, rate in _growth(marks, counts, skip=0).items()
        if rate >= NODES
    ]


def _hooks(marks: Marks) -> list[Document]:
    """Return the modules that get another hook in every epoch."""
    rates = _growth(marks, [dict(mark["hooks"]) for mark in marks], skip=0)
    return [_leak("hooks", what, rate) for what, rate in rates.items() if rate > 0]


def _types(marks: Marks, tensors: float, keepers: Mapping[str, str]) -> list[Document]:
    """Return the types with more objects in every epoch, beyond those that come with so many
    tensors a step, and without those that the collector would free."""
    rates = _growth(marks, [dict(mark["types"]) for mark in marks])
    least = OBJECTS + COMPANIONS * tensors
    return [
        {**_leak("objects", name, rate), "keeper": keepers.get(name, "")}
        for name, rate in rates.items() if rate >= least
    ]  # fmt: skip


def _growth(marks: Marks, counts: Sequence[Mapping[Any, float]], skip: int = 1) -> dict[Any, float]:
    """Return, for everything counted at the last mark, its least growth a step from mark to mark,
    from the first with any. `skip`: ignore the first marks; fewer than two spans give nothing."""
    spans = np.diff([0, *(mark["step"] for mark in marks)])
    chosen = spans > 0
    if chosen.sum() < 2:
        return {}
    growth = {}
    for key in counts[-1]:
        values = np.diff([0, *(count.get(key, 0) for count in counts)])
        rates = np.trim_zeros(values[chosen] / spans[chosen], "f")  # another part came before
        growth[key] = float(rates[skip:].min()) if len(rates) > max(skip, 1) else 0.0
    return growth
