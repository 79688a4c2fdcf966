"""Suggest what could make a training faster: one table of rules, applied to a profile's document.
Limits are shares of a usual step, since speeding up a part of share p gains at most 1 / (1 - p).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celedger.lab.diagnose.stalls import Document

# As celedger.lab.probes.operators writes them.
PYTHON, OPTIMISER = "(Python)", "(optimiser)"
WAITS = 0.5  # a step: a wait in every other step belongs to the loop
# Starting a kernel takes the host 5 to 10 µs (CUDA C++ Best Practices Guide; measured alike on the
# CPU): a shorter operator spends most of its time on being started.
TINY = 10e-6  # s
IDLE_GPU = 0.30  # of a step
MANY = 200  # operators a step; fewer tiny ones do not matter
BUSY_LOADER = 0.20  # at most 1.25 times as fast without it
# The profiler's clock goes on while others have the core. Beyond this share of the time, what it
# says of operators is theirs.
STOLEN = 0.3
_OF_OPERATORS = ("tiny operators", "one operator", "Python")
MEANING = {
    "data": "waiting for data",
    "other": "between steps",
    "forward": "forward pass",
    "backward": "backward pass",
    "tail": "optimiser tail",
    "evaluation": "evaluation and reports",
}

# Rule, smallest share that matters, figure, and what to try.
_RULES = (
    ("loader", BUSY_LOADER, "{share} of a step is spent waiting for data{data_line}",
     "more DataLoader workers (now {workers}), persistent_workers=True, cheaper transforms"),
    ("between steps", BUSY_LOADER, "{share} of a step is between two steps{gap_line}",
     "look there: data made by hand, an average of the weights, a report"),
    ("garbage collector", 0.02, "{share} of the time is Python's garbage collector",
     "gc.freeze() after the set-up, and no gc.collect() in the loop"),
    ("idle processor", 0.30, "{share} of a step no processor was used",
     "look for sleeps, locks, files and sockets in the loop"),
    ("idle GPU", IDLE_GPU, "the GPU idles {share} of a step",
     "see what the host does meanwhile: loads data, waits, runs Python, starts tiny kernels"),
    ("pageable copies", 0.02, "{share} of a step is spent copying from memory that is not pinned",
     "pin_memory=True in the DataLoader and .to(device, non_blocking=True)"),
    ("optimiser tail", 0.20,
     "{share} of a step is after the backward pass, {optimiser} of that in the optimiser",
     "{faster}look at clipping, logging and schedules in the loop"),
    ("tiny operators", 0.50, "{calls:.0f} {kind} a step, {share} of them under 10 µs",
     "a larger batch, torch.compile{graph}"),
    ("one operator", 0.40, "{top} is {share} of a step, most of it in {top_module}",
     "look there first: shapes, layout, precision, another algorithm"),
    ("Python", 0.40, "{share} of a step is in no operator, most of it in the {phase} phase",
     "vectorise loops over elements, or torch.compile"),
    ("evaluation", 0.25, "{share} of the training is evaluation and reports",
     "evaluate less often, on fewer samples, or in larger batches"),
)  # fmt: skip


# The switches of `profile --try` that would show what following a rule's advice gains.
_SWITCHES = {
    "loader": ("workers=2,4",),
    "pageable copies": ("pin_memory",),
    "optimiser tail": ("fused",),
    "tiny operators": ("compile",),
    "one operator": ("amp", "channels_last"),
    "Python": ("compile",),
}
_MASKS = ("getitem", "setitem", "nonzero", "masked_select", "(operator)")


def advise(document: Document, optimisers: Mapping[str, bool | None]) -> list[Document]:
    """Return the advice for a profile's document, the cheapest to follow first. `optimisers`:
    whether each is fused; None: it has no fused form."""
    unfused = ", ".join(name for name, fused in optimisers.items() if fused is False)
    shares, words = _shares(document)
    words["faster"] = f"fused=True for {unfused}, else foreach=True; " if unfused else ""
    rows = [
        {
            "rule": rule,
            "figure": figure.format(share=f"{shares[rule] * 100:.0f} %", **words),
            "try": suggestion.format(**words),
            "switches": _switches(rule, document, fusable=bool(unfused)),
        }
        for rule, least, figure, suggestion in _RULES
        if shares[rule] >= least and not (rule in _OF_OPERATORS and stolen(document))
    ]
    at = int(bool(rows) and rows[0]["rule"] == "loader")
    return [*rows[:at], *_synchronisation(document), *rows[at:]]


def _switches(rule: str, document: Document, *, fusable: bool) -> list[str]:
    """Return the arguments of `--try` that would show what the advice of a rule gains."""
    switches = _SWITCHES.get(rule, ())
    if rule == "loader" and document["environment"]["workers"]:
        switches = ("workers=0,2,4",)
    named = largest_operators(document)
    if not fusable:
        switches = tuple(one for one in switches if one != "fused")
    if not any("conv" in row["name"] for row, _ in named):
        switches = tuple(one for one in switches if one != "channels_last")
    return list(switches)


def stolen(document: Document) -> bool:
    """Return True if other processes had the core for so long that nothing is said of
    operators."""
    return (document["delayed_share"] or 0.0) >= STOLEN


def largest_operators(document: Document) -> list[tuple[Document, float]]:
    """Return operators of all phases and modules together, by name, with their shares of a step,
    the largest first. `module` and `phase` are those of the largest part. Times are the device's on
    a GPU, else self times."""
    sums = ("calls", "seconds", "device_seconds", "memory", "kernels")
    rows: dict[str, Document] = {}
    for row in sorted(document["operators"]["rows"], key=lambda row: -row["seconds"]):
        one = rows.setdefault(row["name"], {**row, **dict.fromkeys(sums, 0.0)})
        for name in sums:
            one[name] += row[name]
    key = "device_seconds" if document["environment"]["device"] == "cuda" else "seconds"
    total = sum(row[key] for row in rows.values()) or 1.0
    ranked = sorted(rows.values(), key=lambda row: -row[key])
    return [(row, row[key] / total) for row in ranked]


def module(row: Document) -> str:
    """Return the module in which an operator ran, as text."""
    named = {None: f"the {row['phase']} phase", "": "the model", OPTIMISER: "the optimiser"}
    return named.get(row["module"], str(row["module"]))


def _shares(document: Document) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the share of each rule, and the values for the sentences."""
    rows = document["operators"]["rows"]
    cuda = document["environment"]["device"] == "cuda"
    window = _seconds(rows) or 1.0
    medians = {row["name"]: row["median"] for row in document["phases"]}
    data = medians.get("data", 0.0) / medians["step"]  # of a usual step: stalls do not count
    python = [row for row in rows if row["name"] == PYTHON and row["phase"] != "evaluation"]
    ranked = [pair for pair in largest_operators(document) if pair[0]["name"] != PYTHON]
    top, largest = ranked[0] if ranked else ({"name": "", "phase": "", "module": ""}, 0.0)
    calls, tiny = _tiny(rows, cuda=cuda)
    tail = _seconds([row for row in rows if row["phase"] == "tail"]) or 1.0
    inside = _seconds([row for row in rows if row["module"] == OPTIMISER])
    alone = not document["rank"]  # else it may be a wait for another rank
    idle = document["idle_share"] or 0.0
    shares = {
        "loader": data,
        "between steps": medians.get("other", 0.0) / medians["step"],
        "garbage collector": document["collector_share"],
        "idle processor": idle if data < BUSY_LOADER and not cuda and alone else 0.0,
        "optimiser tail": medians.get("tail", 0.0) / medians["step"],
        "tiny operators": tiny / calls if calls >= MANY else 0.0,
        "one operator": largest,
        "Python": _seconds(python) / window if alone else 0.0,
        "evaluation": document["evaluation"]["share"],
        **_gpu_shares(document, medians["step"]),
    }
    at = {line["phase"]: f", most of it at {line['place']}" for line in reversed(document["lines"])}
    if cuda and shares["idle GPU"] < IDLE_GPU:  # then the host runs ahead of the GPU
        shares["Python"] = 0.0
    words = {
        "workers": document["environment"]["workers"] or 0,
        "data_line": at.get("data", ""), "gap_line": at.get("other", ""),
        "optimiser": f"{inside / tail * 100:.0f} %",
        "calls": calls, "kind": "kernels" if cuda else "operators",
        "graph": ", a CUDA graph" if cuda else "",
        "top": top["name"], "top_module": module(top),
        "phase": max(python, key=lambda row: row["seconds"])["phase"] if python else "",
    }  # fmt: skip
    return shares, words


def _gpu_shares(document: Document, step: float) -> dict[str, float]:
    gpu = document["gpu"]
    if gpu is None:
        return {"idle GPU": 0.0, "pageable copies": 0.0}
    return {"idle GPU": gpu["idle_share"], "pageable copies": gpu["pageable_copies"] / step}


def _seconds(rows: list[Document]) -> float:
    return float(sum(row["seconds"] for row in rows))


def _synchronisation(document: Document) -> Iterator[Document]:
    cuda = document["environment"]["device"] == "cuda"
    free = "" if cuda else " (free on a CPU, a wait on a GPU)"
    for wait in sorted(document["waits"], key=lambda wait: -wait["times"]):
        if wait["times"] >= WAITS:
            figure = f"{wait['times']:.3g} × {waiter(wait)} a step at {wait['place']}{free}"
            suggestion = "keep the value on the device and read it once an epoch"
            if wait["method"] in _MASKS:
                suggestion = "torch.where, or a product with the mask: its result has a fixed size"
            elif wait["method"] == "synchronize":
                suggestion = "leave it out: reading a value waits by itself"
            yield {
                "rule": "synchronisation", "figure": figure, "try": suggestion, "switches": [],
            }  # fmt: skip


def waiter(wait: Document) -> str:
    """Return the call that waits, as text."""
    return "an operator" if wait["method"] == "(operator)" else f".{wait['method']}()"


def _tiny(rows: list[Document], *, cuda: bool) -> tuple[float, float]:
    """Return the number of operators (kernels, on a GPU) a step, and how many of them are tiny."""
    if cuda:
        calls = sum(row["kernels"] for row in rows)
        seconds = sum(row["device_seconds"] for row in rows)
        return calls, calls if calls and seconds / calls < TINY else 0.0
    rows = [row for row in rows if row["name"].startswith("aten::") and row["calls"]]
    tiny = sum(row["calls"] for row in rows if row["seconds"] / row["calls"] < TINY)
    return sum(row["calls"] for row in rows), tiny
