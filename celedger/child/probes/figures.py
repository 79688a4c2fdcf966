"""Tensors reduced to a few figures each, on their device, a whole step at a time.

A tensor is passed over once for its least and greatest value; everything else is told from
`SAMPLE` of its elements. The samples of all tensors of a step are the rows of one matrix, so that
the figures of a step cost a fixed number of kernels however many tensors it has, and nothing waits
for the device before `Batch.values` is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celedger.child.probes.tensors import whole

if TYPE_CHECKING:
    from torch import Tensor

SAMPLE = 512  # elements: a share of 10 % is told within 3 points (2 standard errors)
FIGURES = ("min", "max", "zeros", "tiny", "mean", "rms", "above", "below", "mark")
"""Of one tensor: least and greatest value (NaN where one is NaN); of the sample, the shares of
zeros, of non-zero values that half precision would make zero (of the non-zero ones), the mean of
absolute values, the root of the mean square, the shares of |x| > 0.99 and of |x| < 0.01; and a mark
that two equal samples share."""

# float16 keeps multiples of 2^-24; half of that or less is rounded to zero (IEEE 754, binary16).
HALF_ZERO = 2.0**-25
# Exponents of two that the histograms of magnitudes count: all of float32's, 2^-150 to 2^127.
LOWEST, HIGHEST = -150, 127

_GOLDEN = 0.6180339887498949
_places: dict[tuple[int, Any], Tensor] = {}
_weights: dict[Any, Tensor] = {}


def sample(tensor: Tensor) -> Tensor:
    """(SAMPLE,) elements: one from each of so many equal stretches, at a place in it that the
    golden ratio gives, so that no width of the tensor is in step with it."""
    import torch

    flat = tensor.detach().reshape(-1)
    key = (flat.numel(), flat.device)
    if key not in _places:
        number = torch.arange(SAMPLE, dtype=torch.float64, device="cpu")
        place = (number + (number * _GOLDEN) % 1.0) * (flat.numel() / SAMPLE)
        _places[key] = place.long().clamp_(max=flat.numel() - 1).to(flat.device)
    return flat.index_select(0, _places[key]).float()


class TensorBatch:
    """The tensors of one step, in the order in which they came."""

    def __init__(self) -> None:
        self.about: list[list[Any]] = []  # what the caller knows of each
        self._ends: list[Tensor] = []
        self._samples: list[Tensor] = []

    def add(self, tensor: Tensor, about: list[Any]) -> None:
        import torch

        values = tensor.detach()
        if not values.is_floating_point():
            values = values.float()
        self._ends += torch.aminmax(values)
        self._samples.append(sample(values))
        self.about.append(about)

    def settle(self, counts: dict[str, Tensor]) -> Tensor:
        """(tensors, FIGURES), still on the device. Adds the magnitudes of each kind (the first
        thing the caller knows of a tensor) to its histogram in `counts`."""
        import torch

        if not self._samples:
            return torch.zeros((0, len(FIGURES)), dtype=torch.float64)
        where = self._samples[0].device
        x = torch.stack([row.to(where) for row in self._samples])
        ends = torch.stack([end.to(where, torch.float64) for end in self._ends]).view(-1, 2)
        size = x.abs()
        zero = size == 0
        some = (SAMPLE - zero.sum(1)).clamp(min=1)
        if where not in _weights:
            random = torch.Generator().manual_seed(0)  # of its own: the training's is not touched
            _weights[where] = torch.randn(SAMPLE, generator=random, device="cpu").to(where)
        figures = [
            zero.sum(1) / SAMPLE,
            ((size < HALF_ZERO) & ~zero).sum(1) / some,
            size.mean(1),
            x.square().mean(1).sqrt(),
            (size > 0.99).sum(1) / SAMPLE,
            (size < 0.01).sum(1) / SAMPLE,
            (x * _weights[where]).sum(1),
        ]
        self._count(size, zero, counts)
        return torch.cat([ends, torch.stack(figures, 1).double()], 1)

    def _count(self, size: Tensor, zero: Tensor, counts: dict[str, Tensor]) -> None:
        """Histograms of exponents: value v counts at floor(log2 v) - LOWEST."""
        import torch

        bins = HIGHEST - LOWEST + 1
        exponent = (torch.frexp(size)[1] - 1).clamp(LOWEST, HIGHEST) - LOWEST
        kinds = sorted({about[0] for about in self.about})
        row = torch.tensor([kinds.index(about[0]) for about in self.about]).to(size.device)
        place = torch.where(zero, len(kinds) * bins, exponent + row[:, None] * bins)
        found = torch.bincount(place.flatten(), minlength=len(kinds) * bins + 1)
        for number, kind in enumerate(kinds):
            part = found[number * bins : (number + 1) * bins]
            counts[kind] = counts[kind].to(part.device) + part if kind in counts else part


def numbers(scalars: Sequence[Tensor]) -> list[float]:
    """Waits for the device, once."""
    import torch

    if not scalars:
        return []
    where = scalars[0].device
    row = torch.stack([scalar.detach().to(where, torch.float64).reshape(()) for scalar in scalars])
    found: list[float] = row.tolist()
    return found


def readable(tensor: Tensor) -> bool:
    """Whether its values can be read here and now: not a tensor of tensors, of vmap or a graph, nor
    of a type that torch has no minimum for (complex, eight bits of floating point)."""
    import torch

    return (
        tensor.layout == torch.strided
        and not tensor.is_complex()
        and not (tensor.is_floating_point() and tensor.element_size() == 1)
        and tensor.numel() > 0
        and not tensor.is_meta
        and whole(tensor)
    )
