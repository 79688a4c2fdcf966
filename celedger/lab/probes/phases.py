"""The clock of a training's steps: the edges between their phases, with the time of every clock. It
knows the order of a step's phases and not the hooks that report them; celedger.lab.diagnose.profile
sums up the times between the edges. Times are integers, in ns.
"""

from __future__ import annotations

import os
import time
from array import array
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .observe import patch

# The gap lasts from the end of a step to the first forward pass of the next; the tail from the
# end of the last backward pass to the end of the step.
GAP, FORWARD, BACKWARD, TAIL, EVALUATION = range(5)
STATES = ("data", "forward", "backward", "tail", "evaluation")
_COLUMNS = ("edge", "step", "phase", "own", "wall", "cpu", "gc", "loader")


class OwnClock:
    """A clock that stops while this thread could have run but the machine gave it no core: the
    second number of Linux's schedstat (Documentation/scheduler/sched-stats). Without schedstat it
    is a plain clock. One read takes 3 to 5 µs."""

    def __init__(self) -> None:
        self.exact = False
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
            self.exact = os.pread(self._file, 64, 0).split()[0] != b"0"  # 0: not counted
        except (OSError, IndexError):
            pass

    def __call__(self) -> int:
        now = time.perf_counter_ns()
        return now - int(os.pread(self._file, 64, 0).split()[1]) if self.exact else now


class PhaseClock:
    """Rows of edges: the step and the phase that begin at each. On CUDA each edge is an event of
    the device's stream as well, so host work hidden behind the device's costs nothing."""

    def __init__(self, *, cuda: bool) -> None:
        self.edge = self.step = 0  # numbers: a dropped edge leaves a gap in them
        self.state = GAP
        self.collected = 0  # in the garbage collector; set by others
        self.workers: int | None = None  # of the last DataLoader; None: there was none
        self.own = OwnClock()
        self._waited = 0  # by the training's thread inside a DataLoader
        self._waits: list[int] = []
        self._columns = {name: array("q") for name in _COLUMNS}
        self._events: list[Any] | None = [] if cuda else None
        self.enter(GAP)

    def enter(self, phase: int) -> None:
        self.edge, self.state = self.edge + 1, phase
        row = (
            self.edge, self.step, phase, self.own(), time.perf_counter_ns(), time.process_time_ns(),
            self.collected, self._waited,
        )  # fmt: skip
        for name, value in zip(_COLUMNS, row):  # noqa: B905 (Python 3.8)
            self._columns[name].append(value)
        if self._events is not None:
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._events[-1].record()

    def begin_backward(self) -> None:
        # A gap without a module's call may be all forward pass. If gradients of several passes
        # accumulate, the supposed tail was forward pass too.
        if self.state == TAIL or (
            self.state == GAP and self._columns["loader"][-1] == self._waited
        ):
            self._columns["phase"][-1] = FORWARD
        self.enter(BACKWARD)

    def evaluated(self) -> None:
        """Mark the gap until now as evaluation and reporting, outside of the step."""
        if self.state != GAP:
            return
        if self._columns["phase"][-2:-1] == array("q", [EVALUATION]):  # it continues until now
            for column in self._columns.values():
                column.pop()
            if self._events is not None:
                self._events.pop()
        self._columns["phase"][-1] = EVALUATION
        self.enter(GAP)

    def end_step(self) -> None:
        if self.state == GAP and self.step:  # a step of another optimiser
            self._columns["phase"][-1] = TAIL
            self._columns["step"][-1] -= 1
        else:
            self.step += 1
        self.enter(GAP)

    def read(self) -> dict[str, list[int]]:
        columns = {name: list(values) for name, values in self._columns.items()}
        if self._events is not None:
            torch.cuda.synchronize()
            device = columns["device"] = [0]
            for start, end in zip(self._events, self._events[1:]):  # noqa: B905 (Python 3.8)
                device.append(device[-1] + int(start.elapsed_time(end) * 1e6))  # CUDA returns ms
        return columns

    def watch_loaders(self) -> None:
        for owner, name in ((DataLoader, "__iter__"), (_BaseDataLoaderIter, "__next__")):
            patch(owner, name, before=self._load_begins, after=self._load_ends)

    def _load_begins(self, loader: Any) -> None:
        self._waits.append(self.own())
        self.workers = getattr(loader, "_num_workers", self.workers)

    def _load_ends(self, _: Any, loader: Any) -> None:
        self._waited += self.own() - self._waits.pop()
