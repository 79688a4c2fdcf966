"""The clock of a training's steps: how long each spent waiting for data, in its forward and
backward passes and in its tail, evaluation apart. Knows the order of a step's phases and not who
tells it of them.
"""

from __future__ import annotations

import os
import time
from array import array
from typing import Any

from celedger.child.probes.observe import patch

# The gap lasts from the end of a step to the first forward pass of the next; the tail from the
# end of the last backward pass to the end of the step.
GAP, FORWARD, BACKWARD, TAIL = range(4)
STATES = ("data", "forward", "backward", "tail")
COLUMNS = (
    "step", "data", "other", "evaluation", "forward", "backward", "tail", "wall", "cpu", "gc",
)  # fmt: skip


class OwnClock:
    """Seconds, less those in which this thread could have run and the machine gave it no core: the
    second number of Linux's schedstat (Documentation/scheduler/sched-stats). Where that is not to
    be had, it is a plain clock. One read takes 3 to 5 µs."""

    def __init__(self) -> None:
        self._file = -1
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
            if os.pread(self._file, 64, 0).split()[0] == b"0":  # the kernel does not count
                self._file = -1
        except (OSError, IndexError):
            self._file = -1
        self.exact = self._file >= 0

    def __call__(self) -> float:
        now = time.perf_counter()
        return now - int(os.pread(self._file, 64, 0).split()[1]) / 1e9 if self.exact else now


class PhaseClock:
    """One row a step, in `columns`: phases by `now` (s), `wall` by the wall's clock, `cpu` of the
    process. On CUDA the phases are the device's own, from events in its stream: what the host
    does while the device computes costs nothing."""

    def __init__(self, now: OwnClock, loader: LoaderClock, *, cuda: bool) -> None:
        self.columns = {name: array("d") for name in COLUMNS}
        self.evaluations: list[tuple[int, float]] = []  # after how many steps, seconds
        self.step, self.state = 0, GAP
        self.collected = 0.0  # seconds in the garbage collector; others add to it
        self._now, self._loader, self._cuda = now, loader, cuda
        self._events: list[list[tuple[int, Any]]] = []
        self.begin_step()

    def begin_step(self) -> None:
        self.state = GAP
        self._spent = [0.0] * 4
        self._gap = (0.0, 0.0, 0.0)  # evaluation, data, other (s)
        self._evaluated: float | None = None  # when, in this gap
        self._bare = True  # neither a forward nor a backward pass so far
        self._events.append([])
        self._mark(GAP)
        self._rebase()
        self._entered = self._now()

    def enter(self, state: int) -> None:
        now = self._now()
        self._spent[self.state] += now - self._entered
        self._entered, self.state = now, state
        self._mark(state)

    def begin_forward(self, *, unseen: bool = False) -> None:
        """Ends the gap. `unseen`: at a backward pass, whose forward pass called no module."""
        evaluation = self.note_evaluation()
        now = self._now()
        rest = max(now - self._entered - evaluation, 0.0)
        data = min(self._loader.seconds, rest) if self._loader.used else rest
        if unseen and not self._loader.used:  # nobody can tell where the data ended
            self._gap = (evaluation, 0.0, 0.0)
            self._spent[FORWARD] += rest
        else:
            self._gap = (evaluation, data, rest - data)
        self._bare = False
        self._entered, self.state = now, FORWARD
        self._mark(FORWARD)

    def begin_backward(self) -> None:
        if self.state == GAP:
            self.begin_forward(unseen=True)
        elif self.state == TAIL:  # gradients of several passes add up: that was a forward pass
            self.state = FORWARD
        self._bare = False
        self.enter(BACKWARD)

    def evaluated(self) -> None:
        """All of this gap so far was evaluation and reporting, and none of the step."""
        if self.state == GAP:
            self._rebase()
            self._evaluated = self._now()

    def note_evaluation(self) -> float:
        if self.state != GAP or self._evaluated is None:
            return 0.0
        seconds = self._evaluated - self._entered
        self.evaluations.append((self.step, seconds))
        return seconds

    def end_step(self) -> None:
        """The step is done; `begin_step` follows."""
        if self.state == GAP and self._bare and self.step:  # another optimiser's turn
            self.columns["tail"][-1] += self._now() - self._entered
            self.columns["wall"][-1] += time.perf_counter() - self._wall
            self._events.pop()
            if self._cuda:  # what ended the step goes on as its tail
                _, ended = self._events[-1].pop()
                self._events[-1].append((TAIL, ended))
                self._mark(GAP)
            return
        self.enter(GAP)
        evaluation, data, other = self._gap
        row = (
            self.step, data, other, evaluation, *self._spent[FORWARD:],
            time.perf_counter() - self._wall, time.process_time() - self._cpu, self.collected,
        )  # fmt: skip
        for name, value in zip(COLUMNS, row):  # noqa: B905 (Python 3.8)
            self.columns[name].append(value)
        self.step += 1

    def read(self) -> dict[str, list[float]]:
        columns = {name: list(values) for name, values in self.columns.items()}
        if self._cuda:
            self._by_events(columns)
        return columns

    def _rebase(self) -> None:
        self.collected = 0.0
        self._loader.seconds, self._loader.used = 0.0, False
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def _mark(self, state: int) -> None:
        if self._cuda:
            import torch

            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events[-1].append((state, event))

    def _by_events(self, columns: dict[str, list[float]]) -> None:
        import torch

        torch.cuda.synchronize()
        for row, marks in enumerate(self._events[: self.step]):
            spent = [0.0] * 4
            for (state, start), (_, end) in zip(marks, marks[1:]):  # noqa: B905, RUF007 (Python 3.8)
                spent[state] += start.elapsed_time(end) / 1e3  # CUDA says ms
            gap = max(spent[GAP] - columns["evaluation"][row], 0.0)
            host = columns["data"][row] + columns["other"][row]
            if not host:  # called no module: see begin_forward
                spent[FORWARD], gap = spent[FORWARD] + gap, 0.0
            share = columns["data"][row] / host if host else 0.0
            columns["data"][row], columns["other"][row] = gap * share, gap * (1 - share)
            for state in (FORWARD, BACKWARD, TAIL):
                columns[STATES[state]][row] = spent[state]
            columns["wall"][row] = gap + sum(spent[FORWARD:])


class LoaderClock:
    """Seconds in which the training's thread waited inside a DataLoader."""

    def __init__(self, now: OwnClock) -> None:
        self.seconds, self.used = 0.0, False
        self.workers: int | None = None  # None: no loader was met
        self._now = now
        self._starts: list[float] = []

    def watch(self) -> None:
        from torch.utils.data import DataLoader
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        for owner, name in ((DataLoader, "__iter__"), (_BaseDataLoaderIter, "__next__")):
            patch(owner, name, before=self._begins, after=self._ends)

    def _begins(self, loader: Any) -> None:
        self._starts.append(self._now())
        self.workers = getattr(loader, "_num_workers", self.workers)

    def _ends(self, _: Any, loader: Any) -> None:
        self.seconds += self._now() - self._starts.pop()
        self.used = True
