"""The probe of `celedger profile`: where the time of every step goes. Every step is timed at its
phases' edges, and the main thread's Python stack is sampled. torch.profiler runs only in one short
window, whose steps (and the few after it) are not timed, so that neither measurement disturbs the
other.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import observe
from .observe import Args, Kwargs
from .operators import ProfilerWindow
from .phase_probe import WARM_UP, PhaseProbe
from .phases import BACKWARD, FORWARD, TAIL
from .stack import Lines, StackSampler
from .switches import SwitchProbe
from .waits import DeviceWaits, TensorReads

WINDOW = 10  # steps under torch.profiler: medians of ten, and a trace a browser can open
FEWEST = 2  # steps of a window that fills early: the first of them is not read
SETTLE = 2  # steps after it, in which caches fill again
_LONG_PAUSE = 1e6  # ns; a shorter one of the garbage collector is not listed separately


class ProfileProbe(PhaseProbe):
    """Write one event, `profile`."""

    def starts(self) -> None:
        self._window = ProfilerWindow(self.names)
        self._watched = 0  # steps in which waits were counted, once the window has ended
        self._accumulates = False  # a forward pass has begun after a backward pass of its step
        self._lines = Lines()
        self._sampler = StackSampler(threading.get_ident(), self._lines, lambda: self.clock.edge)
        super().starts()
        self._waits = DeviceWaits(self._lines) if self.cuda else TensorReads(self._lines)
        self._pauses: list[tuple[int, int]] = []  # step and line
        self._watch_collector()
        self._sampler.start()

    def entered(self, phase: int) -> None:
        # The first of the window's steps warms it up; another optimiser may end the last one.
        if phase in (FORWARD, BACKWARD) and self._window.requested and not self._watched:
            seen = self.clock.step - WARM_UP - 1
            if seen >= WINDOW or (seen >= FEWEST and self._window.is_full()):
                self._stop_window()
        self._window.phase(phase)

    def wants(self, step: int) -> bool:
        return self._window.running

    def forward_begins(self, module: nn.Module, args: Args) -> None:
        super().forward_begins(module, args)
        if self.clock.state == TAIL and not self._accumulates and torch.is_grad_enabled():
            self._accumulates = True  # the clock uses it at the next backward pass
            self._window.phase(FORWARD)
        self._window.module_begins(module)

    def forward_ends(self, module: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> None:
        self._window.module_ends(module)

    def backward_begins(self, losses: Sequence[Tensor]) -> None:
        self._accumulates = False
        super().backward_begins(losses)

    def step_ends(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        super().step_ends(step, optimiser, skipped=skipped)
        if self.clock.step == WARM_UP and not self._window.requested:
            self._window.start()
            self._waits.watch()

    def gives_up(self) -> None:
        super().gives_up()
        self._stop_window()
        self._sampler.finish()

    def ends(self) -> None:
        self.gives_up()
        self.write(
            "profile", torch=torch.__version__, device="cuda" if self.cuda else "cpu",
            threads=torch.get_num_threads(),
            exact=self.clock.own.exact,
            workers=self.clock.workers, optimisers=self.optimisers, edges=self.clock.read(),
            untimed=[WARM_UP, WARM_UP + 1 + WINDOW + SETTLE],
            window={"first": WARM_UP + 1, **self._window.read()},
            lines=self._lines.table, samples=self._sampler.columns, pauses=self._pauses,
            waits=[(*key, n / self._watched) for key, n in self._waits.counts.items()],
        )  # fmt: skip

    def _stop_window(self) -> None:
        if self._window.requested and not self._watched:
            self._watched = max(self.clock.step - WARM_UP, 1)
            self._window.stop()
            self._waits.leave()

    def _watch_collector(self) -> None:
        """Record the time of Python's garbage collector in this thread, and where it ran."""
        ident, began = threading.get_ident(), 0

        def called(phase: str, info: Mapping[str, int]) -> None:
            nonlocal began
            if threading.get_ident() != ident:
                return
            if phase == "start":
                began = time.perf_counter_ns()
                return
            spent = time.perf_counter_ns() - began
            self.clock.collected += spent
            if spent > _LONG_PAUSE:
                self._pauses.append((self.clock.step, self._lines.of(sys._getframe().f_back)))

        gc.callbacks.append(called)


def attach(options: dict[str, Any]) -> None:
    """Observe this process's trainings; with the option `switch`, throw a switch of torch's."""
    observe.attach(SwitchProbe(options) if "switch" in options else ProfileProbe(options))
