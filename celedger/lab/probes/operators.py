"""A window of steps under torch.profiler: the self time and memory of every operator, in the phase
and module that called it. An operator of a backward pass belongs to the module whose forward pass
made its node; autograd's sequence numbers link the two.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from torch import cuda, nn
from torch.profiler import ProfilerActivity, profile, record_function

from . import observe
from .names import ModuleNames
from .phases import STATES, TAIL

_EDGE, _MODULE = "celedger edge ", "celedger module "  # a moment, and a range
_FIGURES = ("calls", "device", "memory", "kernels")
_NODE = "autograd::engine::evaluate_function: "
OPTIMISER = "(optimiser)"  # in place of a module, for an optimiser's step
PYTHON = "(Python)"  # time of a phase outside all operators
MOST_MEMORY = 100e6
"""Bytes that the profiler may take while it records: some 60,000 operators. To read them takes ten
times as much (torch 2.13: 2.7 GB and a minute for 240,000)."""
_PROBES = ("celedger ", "cudaStreamIsCapturing")  # the second is asked before each look


class ProfilerWindow:
    """Start and stop the profiler, and mark steps, phases and modules within it."""

    def __init__(self, names: ModuleNames) -> None:
        self.requested = self.running = False
        self.problem = ""
        self._names = names
        self._profile: Any = None
        self._empty = 0
        self._modules: list[tuple[int, Any]] = []

    def start(self) -> None:
        self.requested = True
        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda.is_available()
        try:
            self._profile = profile(activities=kinds, profile_memory=True)
            self._profile.start()
            self._empty = observe.resident()
        except RuntimeError as error:  # the script uses a profiler itself
            self.problem = str(error).partition("\n")[0]
            return
        self.running = True
        self.phase(0)

    def phase(self, state: int) -> None:
        """Mark the start of a phase; entering the first one, the gap, ends a step."""
        if self.running:
            if state == 0:
                self._leave_modules()  # left over from an exception that the script caught
            _range(_EDGE + STATES[state]).__exit__(None, None, None)

    def module_begins(self, module: nn.Module) -> None:
        if self.running:
            path = self._names.of(module)
            self._modules.append((id(module), _range(_MODULE + path)))

    def module_ends(self, module: nn.Module) -> None:
        while self.running and self._modules:
            identity, opened = self._modules.pop()
            opened.__exit__(None, None, None)
            if identity == id(module):
                break

    def is_full(self) -> bool:
        """Return True once so many operators were recorded that reading more takes too much."""
        return self.running and observe.resident() - self._empty > MOST_MEMORY

    def stop(self) -> None:
        if self.running:
            self._leave_modules()
            self.running = False
            self._profile.stop()

    def _leave_modules(self) -> None:
        while self._modules:
            self._modules.pop()[1].__exit__(None, None, None)

    def read(self) -> dict[str, Any]:
        """Return `steps` (s, each step's wall time in the window, without the first, the
        profiler's warm-up) and `rows`: name, phase, module (None outside of all), calls a step,
        seconds of each step's self time, seconds a step on the device, bytes a step allocated
        less those freed. Times of one step's rows add up to its wall time on the CPU. `device`:
        see `device_work`; None without a GPU."""
        if self._profile is None or self.running:
            return {"steps": [], "rows": [], "problem": self.problem, "device": None}
        every = list(self._profile.events())
        events = [e for e in every if not str(e.device_type).endswith("CUDA")]
        edges = _Edges([e for e in events if e.name.startswith(_EDGE)])
        owners = _owners(events)
        n = len(edges.steps)
        rows: dict[tuple[str, str, str | None], dict[str, Any]] = defaultdict(
            lambda: {"seconds": [0.0] * n, **dict.fromkeys(_FIGURES, 0.0)}
        )
        for step, phase, start, end in edges.phases():
            rows[PYTHON, phase, None]["seconds"][step] += (end - start) / 1e6
        for event in events:
            at = edges.of(event)
            if at is None or event.name == "[memory]":
                continue
            step, phase = at
            seconds = event.self_cpu_time_total / 1e6
            module = _within(event, _MODULE)
            if module is None and phase == "backward":
                module = owners.get(_sequence(event))
            elif phase == "tail" and _within(event, "Optimizer.") is not None:
                module = OPTIMISER
            elif module is not None and phase == "data":
                rows[PYTHON, phase, None]["seconds"][step] -= seconds
                phase = "evaluation"
                rows[PYTHON, phase, None]["seconds"][step] += seconds
            rows[PYTHON, phase, None]["seconds"][step] -= seconds
            name = PYTHON if event.name.startswith(_PROBES) else event.name.replace(_NODE, "")
            row = rows[name, phase, module]
            row["seconds"][step] += seconds
            for figure, value in _figures(event).items():
                row[figure] += value
        names = {event.name for event in events}  # the profiler repeats ranges on the device
        work = [e for e in every if str(e.device_type).endswith("CUDA") and e.name not in names]
        return {
            "steps": edges.steps, "rows": _table(rows, n), "problem": self.problem,
            "device": device_work(work, edges.span, n) if work and n else None,
        }  # fmt: skip


def _table(
    rows: Mapping[tuple[str, str, str | None], Mapping[str, Any]], steps: int
) -> list[dict[str, Any]]:
    """Return the rows with their keys, figures as a mean of the steps."""
    return [
        {
            "name": name, "phase": phase, "module": module, "seconds": row["seconds"],
            **{figure: row[figure] / steps for figure in _FIGURES},
        }
        for (name, phase, module), row in rows.items()
    ]  # fmt: skip


def _owners(events: list[Any]) -> dict[int, str]:
    """Return the module of each operator of a forward pass, by autograd's sequence number."""
    owners: dict[int, str] = {}
    for event in reversed(events):  # the first of a number is the outermost operator
        module = _within(event, _MODULE)
        if event.sequence_nr >= 0 and not event.name.startswith(_NODE) and module is not None:
            owners[event.sequence_nr] = module
    return owners


def _range(name: str) -> Any:
    opened = record_function(name)
    opened.__enter__()  # type: ignore[no-untyped-call]
    return opened


def _figures(event: Any) -> dict[str, float]:
    """Return the figures of an operator's row besides its self time: see `read`."""
    return {
        "calls": 1, "device": event.self_device_time_total / 1e6,
        "memory": event.self_cpu_memory_usage + event.self_device_memory_usage,
        "kernels": len(event.kernels),
    }  # fmt: skip


def device_work(events: list[Any], span: tuple[float, float], steps: int) -> dict[str, float]:
    """Return the device's own work in a window of `steps` steps, in seconds a step: `busy`, and
    `pageable_copies` (from memory that is not pinned)."""
    begin, end = span
    work: list[tuple[float, float]] = []
    pageable: list[tuple[float, float]] = []
    for event in events:
        at = max(event.time_range.start, begin), min(event.time_range.end, end)
        if at[0] < at[1]:
            work.append(at)
            if event.name.startswith("Memcpy") and "Pageable" in event.name:
                pageable.append(at)
    return {"busy": _covered(work) / steps, "pageable_copies": _covered(pageable) / steps}


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the seconds (of µs) in which at least one of the spans runs."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total / 1e6


class _Edges:
    """The moments at which phases began: finds the step and phase in which an event began."""

    def __init__(self, events: list[Any]) -> None:
        ordered = sorted(events, key=lambda e: e.time_range.start)
        self._starts = [e.time_range.start for e in ordered]
        self._phases = [e.name[len(_EDGE) :] for e in ordered]
        # A step that ends right after another is one of another optimiser, as the clock has it.
        pairs = zip(self._phases, self._phases[1:])  # noqa: B905 (Python 3.8)
        for at in [at for at, pair in enumerate(pairs) if pair == (STATES[0], STATES[0])]:
            self._phases[at] = STATES[TAIL]
        begins = [i for i, phase in enumerate(self._phases) if phase == STATES[0]]
        whole = list(zip(begins[1:], begins[2:]))  # noqa: B905, RUF007 (3.8); the end cuts the last
        self._step = {i: step for step, (a, b) in enumerate(whole) for i in range(a, b)}
        self.steps = [(self._starts[b] - self._starts[a]) / 1e6 for a, b in whole]

    @property
    def span(self) -> tuple[float, float]:
        """Return the moments (µs) between which the whole steps lie."""
        inside = sorted(self._step)
        return (self._starts[inside[0]], self._starts[inside[-1] + 1]) if inside else (0.0, 0.0)

    def of(self, event: Any) -> tuple[int, str] | None:
        at = bisect.bisect_right(self._starts, event.time_range.start) - 1
        return (self._step[at], self._phases[at]) if at in self._step else None

    def phases(self) -> Iterator[tuple[int, str, float, float]]:
        """Yield step, phase, start and end (µs) of each."""
        for at, step in self._step.items():
            yield step, self._phases[at], self._starts[at], self._starts[at + 1]


def _ancestors(event: Any) -> Iterator[Any]:
    """Yield an event and the ranges around it, the nearest first."""
    while event is not None:
        yield event
        event = event.cpu_parent


def _within(event: Any, prefix: str) -> str | None:
    """Return the name, without the prefix, of the nearest range around an event that has it."""
    names = (one.name for one in _ancestors(event) if one.name.startswith(prefix))
    name: str | None = next(names, None)
    return name[len(prefix) :] if name is not None else None


def _sequence(event: Any) -> int:
    """Return the number of the node to which an event of the backward pass belongs; -1 for none."""
    nodes = (one for one in _ancestors(event) if one.name.startswith(_NODE))
    return next((int(node.sequence_nr) for node in nodes), -1)
