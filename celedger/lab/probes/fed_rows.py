"""The rows that a training was fed in its first steps, each with its one label: whether near rows
have near labels, and which rows stand out. It draws from generators of its own alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MOST = 1000  # rows that are kept: a table of their distances takes 4 MB
FEWEST = 100  # rows of which something is said
_WIDTH = 256  # features of a row; longer ones are projected, which keeps distances within some 10 %
_POSITIONS = 64  # of several labels a row, as of pixels, so many are compared
_PERMUTATIONS = 200
MOST_CLASSES = 32  # that are compared with each column
EXACTLY = 1 - 1e-6  # correlation: float32 rounds to 1e-7


class Row(NamedTuple):
    step: int
    number: int  # in its batch

    def __str__(self) -> str:
        return f"row {self.number} in step {self.step}"


class FedRows:
    def __init__(self) -> None:
        self.places: list[Row] = []  # of the rows with a label
        self.largest: list[tuple[float, Row]] = []  # absolute value of each row, if floating-point
        self._seen: set[bytes] = set()
        self._labelled: set[bytes] = set()
        # Made once: the growth of tensors over the steps is a check of its own.
        self._features, self._labels = torch.empty(0), torch.empty(0)
        self._exact: list[bool] = []  # of each input: its features are the numbers themselves

    def see(self, step: int, keys: Sequence[bytes], inputs: Sequence[Tensor]) -> None:
        """Record how large each new row is. `keys`: a hash of each row."""
        floats = [t for t in inputs if t.is_floating_point() and len(t) == len(keys)]
        if not floats:
            return
        largest = torch.stack([t.detach().abs().flatten(1).amax(1) if t.dim() > 1
                               else t.detach().abs() for t in floats]).amax(0)  # fmt: skip
        for number, (key, value) in enumerate(zip(keys, largest.tolist())):  # noqa: B905 (3.8)
            if key not in self._seen:
                self._seen.add(key)
                self.largest.append((value, Row(step, number)))

    def label(
        self,
        step: int,
        keys: Sequence[bytes],
        inputs: Sequence[Tensor],
        target: Tensor,
        ignored: int | None,
    ) -> None:
        """Record new rows with their labels, that the loss does not ignore. A row of floating-point
        numbers may have several, as an image its pixels' or a series what follows."""
        given = [t for t in inputs if len(t) == len(keys)]
        several = target.numel() != len(keys)
        continuous = any(t.is_floating_point() for t in given)
        if not given or (several and (len(target) != len(keys) or not continuous)):
            return
        labels = target.detach().flatten(1).cpu() if several else target.detach().flatten().cpu()
        if several:
            labels = labels[:, :: -(-labels.shape[1] // _POSITIONS)]
        new = [
            number for number, (key, label) in enumerate(zip(keys, labels.tolist()))  # noqa: B905
            if key not in self._labelled and label != ignored
        ][: MOST - len(self.places)]  # fmt: skip
        features = torch.cat([_features(t.detach()) for t in given], 1)
        if not self.places:
            self._exact = [t.is_floating_point() and t[0].numel() <= _WIDTH for t in given]
            self._features = torch.empty(MOST, features.shape[1])
            self._labels = torch.empty(MOST, *labels.shape[1:], dtype=labels.dtype)
        shapes = [(t.shape[1:], of.shape[1:]) for t, of in
                  ((features, self._features), (labels, self._labels))]  # fmt: skip
        if not new or any(one != other for one, other in shapes):
            return
        rows = slice(len(self.places), len(self.places) + len(new))
        self._features[rows], self._labels[rows] = features[new].cpu(), labels[new]
        self._labelled.update(keys[number] for number in new)
        self.places += [Row(step, number) for number in new]

    @property
    def constant(self) -> bool:
        """Return True if all labels are equal."""
        labels = self._labels[: len(self.places)]
        return bool((labels == labels[0]).all())

    def telltale(self) -> tuple[int, int] | None:
        """Return the input and the column that alone tells every label, or whether it is of one
        class; None if there is none, or no other column."""
        known = len(self.places)
        features, labels = self._features[:known], self._labels[:known]
        if labels.dim() > 1:
            return None
        targets = labels.double()[:, None]
        if not labels.is_floating_point():
            targets = torch.cat(
                [targets, labels[:, None] == torch.unique(labels)[:MOST_CLASSES]], 1
            )
        told = (_standard(features).T @ _standard(targets)).abs().amax(1)
        varying = int((features != features[0]).any(0).sum())
        told *= torch.tensor(self._exact).repeat_interleave(_WIDTH)
        at = int(told.argmax())
        return divmod(at, _WIDTH) if varying > 1 and float(told[at]) > EXACTLY else None

    def neighbours(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the labels, and those of each row's nearest others, the nearest first."""
        known = len(self.places)
        features, labels = self._features[:known], self._labels[:known]
        features = (features - features.mean(0)) / features.std(0).clamp(min=1e-6)
        distances = torch.cdist(features, features).fill_diagonal_(float("inf"))
        nearest = distances.topk(count, largest=False).indices
        return labels, labels[nearest]


def _standard(columns: Tensor) -> Tensor:
    """Return columns of mean 0 and norm 1; constant ones as 0. Of `n` rows the product of two is
    their correlation."""
    centred = columns.double() - columns.double().mean(0)
    return torch.nn.functional.normalize(centred, dim=0)


def agreement(labels: Tensor, near: Tensor) -> tuple[float, float, float]:
    """Return how far labels agree with their neighbours' (`near`), and the mean and deviation of
    that with permuted labels: the share of equal classes, or less the mean distance of numbers."""

    def agree(own: Tensor) -> float:
        if own.is_floating_point():
            return -float((near - own[:, None]).abs().double().mean())
        return float((near == own[:, None]).double().mean())

    generator = torch.Generator().manual_seed(0)
    orders = (torch.randperm(len(labels), generator=generator) for _ in range(_PERMUTATIONS))
    permuted = torch.tensor([agree(labels[order]) for order in orders])
    return agree(labels), float(permuted.mean()), float(permuted.std())


def _features(tensor: Tensor) -> Tensor:
    """Return _WIDTH numbers a row, so that batches padded to several lengths go together: its
    values, or a projection of more; of integers, such as words, how often each is there."""
    flat = tensor.reshape(len(tensor), -1)
    if not flat.is_floating_point():
        counts = torch.zeros(len(flat), _WIDTH, device=flat.device)
        return counts.scatter_add_(1, flat.long() % _WIDTH, torch.ones_like(flat).float())
    flat = flat.float().nan_to_num()
    if flat.shape[1] <= _WIDTH:
        return torch.nn.functional.pad(flat, (0, _WIDTH - flat.shape[1]))
    generator = torch.Generator().manual_seed(0)  # of a longer row it begins equally
    projection = torch.randn(flat.shape[1], _WIDTH, generator=generator) / _WIDTH**0.5
    projected: Tensor = flat @ projection.to(flat.device)
    return projected
