"""Values of one metric in groups, one group a commit, in flat arrays: a history of thousands of
commits is summed in a few calls. Knows no ledger and no test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from celedger.stats.arrays import Bools, Floats, Ints


class Layout:
    """Which of a row of values belong together: `sizes` of successive groups, and the `seeds` of
    the values, None where they are not known. Metrics of the same trials share one, and what is
    worked out of it."""

    def __init__(self, sizes: Ints, seeds: Ints | None = None) -> None:
        self.sizes, self.seeds = sizes, seeds
        self._parts: dict[bytes, tuple[Bools, Layout]] = {}

    def part(self, groups: Bools) -> tuple[Bools, Layout]:
        """Return which values are in some of the groups, and the layout of those."""
        key = groups.tobytes()
        if key not in self._parts:
            chosen = groups[self.group]
            seeds = None if self.seeds is None else self.seeds[chosen]
            self._parts[key] = chosen, Layout(self.sizes[groups], seeds)
        return self._parts[key]

    @cached_property
    def starts(self) -> Ints:
        """Return where each group begins."""
        return np.asarray(np.cumsum(self.sizes) - self.sizes)

    @cached_property
    def group(self) -> Ints:
        """Return the number of each value's group."""
        return np.repeat(np.arange(self.sizes.size), self.sizes)

    @cached_property
    def firsts(self) -> Ints:
        """For each value the place of the first one of its seed in its group; where seeds are not
        known, of the first one in its group."""
        if self.seeds is None:
            return self.starts[self.group]
        places = np.arange(self.seeds.size)
        order = np.lexsort((self.group, self.seeds))  # stable: the first of a seed stays the first
        seed, group = self.seeds[order], self.group[order]
        first = np.ones(seed.size, dtype=bool)
        first[1:] = (seed[1:] != seed[:-1]) | (group[1:] != group[:-1])
        places[order] = order[first][np.cumsum(first) - 1]
        return places

    @cached_property
    def by_size(self) -> list[tuple[Ints, Ints]]:
        """Return the numbers of the groups of each size but 0, and the places of their values, a
        row for each group."""
        groups = []
        for size in np.flatnonzero(np.bincount(self.sizes)).tolist():
            if size:
                numbers = np.flatnonzero(self.sizes == size)
                groups.append((numbers, self.starts[numbers][:, None] + np.arange(size)))
        return groups


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """The values, group by group, oldest first."""

    values: Floats
    layout: Layout

    @classmethod
    def of(
        cls,
        groups: Sequence[Sequence[float]] | Sequence[Floats] | Floats,
        seeds: Sequence[Sequence[int]] | Sequence[Ints] | None = None,
    ) -> Grouped:
        """Join groups; in a plain array each value is a group, in a matrix each row."""
        labels = None if seeds is None else _joined(seeds, np.int64)
        if isinstance(groups, np.ndarray):
            width = groups.shape[1] if groups.ndim == 2 else 1
            sizes = np.full(len(groups), width, dtype=np.int64)
            return cls(groups.astype(float).ravel(), Layout(sizes, labels))
        sizes = np.array([len(group) for group in groups], dtype=np.int64)
        return cls(_joined(groups, np.float64), Layout(sizes, labels))

    def __len__(self) -> int:
        return self.sizes.size

    @property
    def sizes(self) -> Ints:
        return self.layout.sizes

    @property
    def seeds(self) -> Ints | None:
        return self.layout.seeds

    def scaled(self, factor: float) -> Grouped:
        """Return the values times a factor."""
        return Grouped(self.values * factor, self.layout)

    def followed_by(self, other: Grouped) -> Grouped:
        """Return the groups of both; seeds are known where they are in both."""
        seeds = None
        if self.seeds is not None and other.seeds is not None:
            seeds = np.concatenate((self.seeds, other.seeds))
        sizes = np.concatenate((self.sizes, other.sizes))
        return Grouped(np.concatenate((self.values, other.values)), Layout(sizes, seeds))

    def where(self, keep: Bools) -> Grouped:
        """Return the values chosen by a mask; groups may become empty, none is dropped."""
        sizes = np.bincount(self.layout.group[keep], minlength=self.sizes.size)
        seeds = None if self.seeds is None else self.seeds[keep]
        return Grouped(self.values[keep], Layout(sizes, seeds))

    def groups_where(self, keep: Bools) -> Grouped:
        """Return the groups chosen by a mask."""
        if keep.all():
            return self
        chosen, layout = self.layout.part(keep)
        return Grouped(self.values[chosen], layout)

    def finite(self) -> Grouped:
        """Return the finite values; a group without any is empty."""
        keep = np.isfinite(self.values)
        return self if keep.all() else self.where(keep)

    def means(self) -> Floats:
        """Return the mean of each group; NaN of an empty one."""
        means = np.full(self.sizes.size, np.nan)
        for numbers, places in self.layout.by_size:
            means[numbers] = self.values[places].mean(axis=1)
        return means

    def squares(self) -> Floats:
        """Return each group's sum of squares around its mean.

        Values count from the first of their group on: the mean of equal values may differ from
        them in the last bit, and then an exact metric would have a noise.
        """
        squares = np.zeros(self.sizes.size)
        for numbers, places in self.layout.by_size:
            rest = self.values[places]
            rest -= rest[:, :1].copy()
            squares[numbers] = ((rest - rest.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
        return squares

    def split(self) -> list[Floats]:
        """Return the values of each group."""
        return _parts(self.values, self.sizes)


def _joined(parts: Iterable[Iterable[float]], kind: type) -> NDArray[Any]:
    return np.fromiter(chain.from_iterable(parts), dtype=kind)


def _parts(flat: NDArray[Any], sizes: Ints) -> list[NDArray[Any]]:
    ends = np.cumsum(sizes).tolist()
    return [flat[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]
