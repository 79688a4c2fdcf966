"""Reduce tensors to a few figures each, on their device, a whole step at a time. A tensor is read
once for its least and greatest value; all other figures come from a sample. The samples of all
tensors of a step are the rows of one matrix, so that the figures of a step cost a fixed number of
kernels for any number of tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .tensors import sample

SAMPLE = 512  # elements: a share of 10 % is right within 3 points (2 standard errors)


class TensorBatch:
    """The tensors of one step, in the order of their computation."""

    def __init__(self) -> None:
        self.about: list[list[Any]] = []  # the caller's description of each: its kind first
        self._ends: list[Tensor] = []
        self._samples: list[Tensor] = []
        self._normal: list[float] = []

    def add(self, tensor: Tensor, about: list[Any], normal: float = 0.0) -> None:
        """`normal`: the smallest normal number of the type in which the tensor was computed."""
        self._ends += torch.aminmax(tensor.detach())
        self._samples.append(sample(tensor, SAMPLE).float())
        self._normal.append(normal)
        self.about.append(about)

    def rows(self) -> list[list[Any]]:
        """Return, after the description of each tensor, its least and greatest value (NaN if one is
        NaN) and, of the sample, the root of the mean square, the shares of |x| > 0.99 and of |x| <
        0.01, and of what is not zero the share below its smallest normal number."""
        if not self._samples:
            return []
        where = self._samples[0].device
        ends = torch.stack([end.to(where, torch.float64) for end in self._ends]).view(-1, 2)
        size = torch.stack([row.to(where) for row in self._samples]).abs()
        normal = torch.tensor(self._normal, device=where)[:, None]
        columns = [
            size.square().mean(1).sqrt(),
            (size > 0.99).sum(1) / SAMPLE,
            (size < 0.01).sum(1) / SAMPLE,
            ((size > 0) & (size < normal)).sum(1) / (size > 0).sum(1).clamp(min=1),
        ]
        figures = torch.cat([ends, torch.stack(columns, 1).double()], 1).tolist()
        return [[*about, *row] for about, row in zip(self.about, figures)]  # noqa: B905 (3.8)


def has_first_statistics(module: nn.Module) -> bool:
    """Return True for a batch norm whose statistics are those that it began with."""
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    if not (isinstance(mean, Tensor) and isinstance(variance, Tensor)):
        return False
    return not bool(mean.any()) and bool((variance == 1).all())


def holds_rows(whole: Tensor, part: Tensor) -> bool:
    """Return True if the first, middle and last row of a tensor stand in another one, as they do
    where a batch was indexed, sliced or stacked from it."""
    if whole.dtype != part.dtype or whole.device != part.device or not readable(whole):
        return False
    values, rows = whole.detach().reshape(-1), part.detach().reshape(len(part), -1)
    if rows.shape[1] < 2:  # one number may stand anywhere
        rows = rows.reshape(1, -1)
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        rarest = int(row.abs().argmax())
        end = len(values) - len(row) + 1
        starts = (values[rarest : end + rarest] == row[rarest]).nonzero()[:, 0]
        for at in range(min(len(row), SAMPLE)):
            starts = starts[values[starts + at] == row[at]]
        if not len(starts):
            return False
    return True


def readable(tensor: Tensor) -> bool:
    """Return False for a meta or sparse tensor, and for a type without a minimum in
    torch (complex, eight bits of floating point)."""
    return (
        tensor.layout == torch.strided
        and not tensor.is_complex()
        and not (tensor.is_floating_point() and tensor.element_size() == 1)
        and tensor.numel() > 0
        and not tensor.is_meta
    )
