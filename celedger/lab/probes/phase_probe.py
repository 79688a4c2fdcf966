"""Time the phases of every step: what the probes of `celedger profile` share. It moves the clock by
torch's hooks, and hooks modules only between two steps."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import observe
from .observe import Args
from .phases import BACKWARD, FORWARD, GAP, TAIL, PhaseClock

WARM_UP = 5  # steps in which torch allocates and chooses; the first of them cost several others


class PhaseProbe(observe.Probe):
    """With the option `steps`, the training ends after so many."""

    reads_values = False

    def starts(self) -> None:
        self._hooks: list[Any] = []
        self.cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self.clock = PhaseClock(cuda=self.cuda)
        self.clock.watch_loaders()
        self.stopped = False  # by the probe
        self.optimisers: dict[str, bool | None] = {}  # whether each is fused; None: it cannot be
        self.enter(FORWARD)

    def entered(self, phase: int) -> None:
        """Called when a phase has begun."""

    def wants(self, step: int) -> bool:
        return False

    def forward_begins(self, module: nn.Module, args: Args) -> None:
        self.forward_in_gap(module, args)  # whichever of the two hooks comes first

    def backward_begins(self, losses: Sequence[Tensor]) -> None:
        self._unhook()
        self.clock.begin_backward()
        self.entered(BACKWARD)

    def backward_ends(self) -> None:
        self.enter(TAIL)

    def step_ends(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        kind = type(optimiser)
        if kind.__name__ not in self.optimisers:
            fused = bool(optimiser.defaults.get("fused"))  # None: as torch chooses
            self.optimisers[kind.__name__] = fused if _has_fused(kind) else None
        self.clock.end_step()
        self.entered(GAP)
        # Until the next forward pass with gradients: those without are an evaluation.
        self._unhook()
        self._hooks = observe.module_hooks(self.forward_in_gap, lambda *_: self.clock.evaluated())
        if self.clock.step >= self.options.get("steps", sys.maxsize):
            self.stop()

    def stop(self) -> None:
        """End the training."""
        self.stopped = True
        raise SystemExit(0)

    def reported(self, epoch: int | None, values: Mapping[str, object]) -> None:
        self.clock.evaluated()

    def gives_up(self) -> None:
        self._unhook()

    def enter(self, phase: int) -> None:
        self.clock.enter(phase)
        self.entered(phase)

    def forward_in_gap(self, module: nn.Module, args: Args) -> None:
        if self.clock.state == GAP and self.trains(module):
            self._unhook()
            self.enter(FORWARD)

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _has_fused(kind: Any) -> bool:
    """Return True if the class in which an optimiser's step is written has a fused form: not one
    that a script writes."""
    owner = next(one for one in kind.__mro__ if "step" in vars(one))
    return "fused" in inspect.signature(owner.__init__).parameters
