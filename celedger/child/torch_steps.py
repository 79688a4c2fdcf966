"""Series per step of a training with torch: loss, norm of the gradient, learning rate, time. They
stay on the device until the epoch ends, so that recording them never makes a step wait."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class StepSeries:
    """The series of one epoch's steps."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._rates: list[Any] = []  # numbers, or tensors that the optimiser changes later

    def add(self, loss: Tensor, norm: Tensor, optimiser: Optimizer) -> None:
        """Add one step, after its backward pass and before the optimiser's."""
        rate = optimiser.param_groups[0]["lr"]
        self._losses.append(loss.detach().clone())  # scripts add to it in place
        self._norms.append(norm.detach())
        self._rates.append(rate.detach().clone() if isinstance(rate, Tensor) else rate)

    def values(self, durations: Iterable[float]) -> dict[str, list[float]]:
        """Return the series as `log` takes them; waits for the device. `durations` in seconds, one
        a step."""
        return {
            "loss": _floats(self._losses),
            "gradient_norm": _floats(self._norms),
            "learning_rate": list(map(float, self._rates)),
            # No clock is more exact than single precision, which takes half the space.
            "step_time": array("f", durations).tolist(),
        }


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the L2 norm of the whole gradient, on the gradients' device, without changing it."""
    gradients = [dense(p.grad) for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norms = torch._foreach_norm(gradients)
    norm: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    return norm


def dense(gradient: Tensor) -> Tensor:
    """Return the values of a gradient, without the zeros that a sparse one leaves out."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _floats(scalars: list[Tensor]) -> list[float]:
    if not scalars:
        return []
    values: list[float] = torch.stack([s.reshape(()) for s in scalars]).double().tolist()
    return values
