"""The loss of each row of a training's passes over its data, by the row's index in the data set.

A DataLoader asks for indices before it yields their batch, also where workers read ahead. The loss
that leads to `backward()` is computed again without reduction, if it is one of torch's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.data import dataloader

from . import observe
from .losses import LossCall, leading, loss_call
from .names import IdentityMap

WORST = 20  # rows that are written


class SampleLosses:
    """The last loss of each row, and the step of it."""

    def __init__(self) -> None:
        self.losses: dict[int, tuple[float, int]] = {}
        self._asked = IdentityMap()  # by a loader's iterator: indices of batches to come
        self._batch: list[int] = []
        self._calls: list[LossCall] = []
        iterator = dataloader._BaseDataLoaderIter
        observe.patch(iterator, "_next_index", after=self._index)
        observe.patch(iterator, "__next__", after=self._yielded)
        self.mode = observe.mode(TorchFunctionMode, self._ran)

    def _index(self, indices: Any, iterator: Any) -> None:
        if indices is not None:
            if self._asked.get(iterator) is None:
                self._asked[iterator] = deque()
            self._asked.get(iterator).append(indices)

    def _yielded(self, batch: Any, iterator: Any) -> None:
        asked = self._asked.get(iterator)
        if batch is not None and asked:
            indices = asked.popleft()
            numbered = isinstance(indices, list) and all(hasattr(i, "__index__") for i in indices)
            self._batch = [int(index) for index in indices] if numbered else []
            self._calls = []

    def _ran(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        call = loss_call(function, args, kwargs, result)
        if call is not None and not call.is_difference:
            self._calls.append(call)

    @torch.no_grad()
    def backward(self, losses: Sequence[Tensor], step: int) -> None:
        """Note the rows of the batch that a backward pass begins with."""
        led, self._calls = leading(self._calls, losses), []
        if len(led) != 1 or not self._batch:
            return
        (call,) = led
        rows = call.function(**{**call.arguments, "reduction": "none"}).detach()
        if not rows.dim() or len(rows) != len(self._batch):
            return
        means = rows.double().flatten(1).mean(1) if rows.dim() > 1 else rows.double()
        for index, loss in zip(self._batch, means.tolist()):  # noqa: B905 (Python 3.8)
            self.losses[index] = loss, step

    def worst(self) -> list[list[float]]:
        """Return index, loss and step of the rows with the largest losses, NaN first."""
        rows = [[index, loss, step] for index, (loss, step) in self.losses.items()]
        return sorted(rows, key=lambda row: (row[1] == row[1], -row[1]))[:WORST]
