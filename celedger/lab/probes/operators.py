"""A window of steps under torch.profiler: the self time and memory of every operator, in the phase
and module that called it. An operator of a backward pass belongs to the module whose forward pass
made its node; autograd's sequence numbers link the two.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import cuda, nn
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from . import observe
from .names import ModuleNames
from .phases import STATES, TAIL

_EDGE, _MODULE = "celedger edge ", "celedger module "  # a moment, and a range
_FIGURES = ("calls", "device", "memory", "kernels")
_NODE = "autograd::engine::evaluate_function: "
_MEMORY = "[memory]"  # in place of an operator's name: bytes that it took, or gave back
_UNTOLD = {  # of the profiler itself, and of autograd's bookkeeping
    "[OutOfMemory]", "profiler::_record_function_enter", "profiler::_record_function_enter_new",
    "profiler::_record_function_exit", "aten::is_leaf", "aten::output_nr", "aten::_version",
}  # fmt: skip
OPTIMISER = "(optimiser)"  # in place of a module, for an optimiser's step
PYTHON = "(Python)"  # time of a phase outside all operators
MOST_MEMORY = 100e6
"""Bytes that the profiler may take while it records: some 60,000 operators."""
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
        # torch's own list of events takes 30 times as long to make as to read what is used of it.
        ranges, work = read_events(self._profile.profiler.kineto_results.events())
        edges = _Edges([one for one in ranges if one.name.startswith(_EDGE)])
        # The first of a number is the outermost operator of a forward pass.
        within = [one for one in reversed(ranges) if one.sequence >= 0 and one.module is not None]
        owners = {one.sequence: one.module for one in within}
        n = len(edges.steps)
        rows: dict[tuple[str, str, str | None], dict[str, Any]] = defaultdict(
            lambda: {"seconds": [0.0] * n, **dict.fromkeys(_FIGURES, 0.0)}
        )
        for step, phase, start, end in edges.phases():
            rows[PYTHON, phase, None]["seconds"][step] += (end - start) / 1e9
        for one in ranges:
            at = edges.of(one)
            if at is None:
                continue
            step, phase = at
            seconds, module = one.spent / 1e9, one.module
            if module is None and phase == "backward":
                module = owners.get(one.node)
            elif phase == "tail" and one.of_optimiser:
                module = OPTIMISER
            elif module is not None and phase == "data":
                rows[PYTHON, phase, None]["seconds"][step] -= seconds
                phase = "evaluation"
                rows[PYTHON, phase, None]["seconds"][step] += seconds
            rows[PYTHON, phase, None]["seconds"][step] -= seconds
            name = PYTHON if one.name.startswith(_PROBES) else one.name.replace(_NODE, "")
            row = rows[name, phase, module]
            row["seconds"][step] += seconds
            for figure in _FIGURES:
                row[figure] += getattr(one, figure)
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


class Range:
    """An operator, or a range around operators, that ran in one thread: its own time (ns), memory
    and work on the device, without those of the ranges within. `node`: autograd's number of the
    backward node around it, -1 for none."""

    __slots__ = (
        "calls", "device", "end", "kernels", "memory", "module", "name", "node", "of_optimiser",
        "sequence", "spent", "start",
    )  # fmt: skip

    def __init__(self, event: Any, outer: Range | None) -> None:
        self.name, self.start, self.end = event.name(), event.start_ns(), event.end_ns()
        self.spent = self.end - self.start
        self.calls, self.device, self.memory, self.kernels, self.sequence = 1, 0.0, 0, 0, -1
        self.module, self.node, self.of_optimiser = None, -1, self.name.startswith("Optimizer.")
        if outer is not None:
            self.module, self.node = outer.module, outer.node
            self.of_optimiser |= outer.of_optimiser
            outer.spent -= self.spent
        if self.name.startswith(_NODE):
            self.node = event.sequence_nr()
        else:
            self.sequence = event.sequence_nr()
        if self.name.startswith(_MODULE):
            self.module = self.name[len(_MODULE) :]


class DeviceRange(NamedTuple):
    name: str
    start: int  # ns
    end: int


def read_events(events: Sequence[Any]) -> tuple[list[Range], list[DeviceRange]]:
    """Return the ranges of the host's threads by their start, and the device's own work."""
    host = [event for event in events if event.device_type() == DeviceType.CPU]
    device = [event for event in events if event.device_type() == DeviceType.CUDA]
    threads = {e.correlation_id(): e.start_thread_id() for e in host if not _linked(e)}
    threads.pop(0, None)  # the number of what has none

    def order(event: Any) -> tuple[int, int, int]:
        # A call of the driver runs within the operator that made it.
        thread = threads.get(_linked(event), event.start_thread_id())
        return thread, event.start_ns(), -event.end_ns()

    ranges: list[Range] = []
    by_number: dict[int, Range] = {}
    thread, around = None, list[Range]()
    for event in sorted(host, key=order):
        if (at := order(event)[0]) != thread:
            thread, around = at, []
        while around and (event.start_ns() >= around[-1].end or event.end_ns() > around[-1].end):
            around.pop()
        if (name := event.name()) == _MEMORY:
            if around:
                around[-1].memory += event.nbytes()
        elif name not in _UNTOLD and event.start_thread_id() == event.end_thread_id():
            if not around or around[-1].name != name:
                around.append(Range(event, around[-1] if around else None))
                ranges.append(around[-1])
            else:  # the same operator, dispatched once more, as autocast does
                around[-1].sequence = max(around[-1].sequence, event.sequence_nr())
            if not _linked(event):
                by_number[event.correlation_id()] = around[-1]
    for event in device:
        if (caller := by_number.get(_linked(event))) is not None:
            caller.device += (event.end_ns() - event.start_ns()) / 1e9
            caller.kernels += 1
    names = {one.name for one in ranges}  # the profiler repeats ranges on the device
    work = [DeviceRange(e.name(), e.start_ns(), e.end_ns()) for e in device]
    ranges.sort(key=lambda one: (one.start, -one.end))
    return ranges, [one for one in work if one.name not in names]


def _linked(event: Any) -> int:
    """Return the number of the operator that made a call of the driver, or a kernel; 0 for none."""
    return int(event.linked_correlation_id())


def _range(name: str) -> Any:
    opened = record_function(name)
    opened.__enter__()  # type: ignore[no-untyped-call]
    return opened


def device_work(
    events: Sequence[DeviceRange], span: tuple[int, int], steps: int
) -> dict[str, float]:
    """Return the device's own work in a window of `steps` steps, in seconds a step: `busy`, and
    `pageable_copies` (from memory that is not pinned)."""
    begin, end = span
    work: list[tuple[int, int]] = []
    pageable: list[tuple[int, int]] = []
    for event in events:
        at = max(event.start, begin), min(event.end, end)
        if at[0] < at[1]:
            work.append(at)
            if event.name.startswith("Memcpy") and "Pageable" in event.name:
                pageable.append(at)
    return {"busy": _covered(work) / steps, "pageable_copies": _covered(pageable) / steps}


def _covered(spans: Sequence[tuple[int, int]]) -> float:
    """Return the seconds (of ns) in which at least one of the spans runs."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total / 1e9


class _Edges:
    """The moments at which phases began: finds the step and phase in which an event began."""

    def __init__(self, moments: Sequence[Range]) -> None:
        self._starts = [moment.start for moment in moments]
        self._phases = [moment.name[len(_EDGE) :] for moment in moments]
        # A step that ends right after another is one of another optimiser, as the clock has it.
        pairs = zip(self._phases, self._phases[1:])  # noqa: B905 (Python 3.8)
        for at in [at for at, pair in enumerate(pairs) if pair == (STATES[0], STATES[0])]:
            self._phases[at] = STATES[TAIL]
        begins = [i for i, phase in enumerate(self._phases) if phase == STATES[0]]
        whole = list(zip(begins[1:], begins[2:]))  # noqa: B905, RUF007 (3.8); the end cuts the last
        self._step = {i: step for step, (a, b) in enumerate(whole) for i in range(a, b)}
        self.steps = [(self._starts[b] - self._starts[a]) / 1e9 for a, b in whole]

    @property
    def span(self) -> tuple[int, int]:
        """Return the moments (ns) between which the whole steps lie."""
        inside = sorted(self._step)
        return (self._starts[inside[0]], self._starts[inside[-1] + 1]) if inside else (0, 0)

    def of(self, one: Range) -> tuple[int, str] | None:
        at = bisect.bisect_right(self._starts, one.start) - 1
        return (self._step[at], self._phases[at]) if at in self._step else None

    def phases(self) -> Iterator[tuple[int, str, int, int]]:
        """Yield step, phase, start and end (ns) of each."""
        for at, step in self._step.items():
            yield step, self._phases[at], self._starts[at], self._starts[at + 1]
