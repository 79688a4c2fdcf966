"""Which first bad commit would make which commit bad: the shape of a range, as arrays.

A commit is bad exactly if the first bad commit is among its ancestors or is itself. Knows
positions only (0 … n-1 in topological order, GOOD is -1): no hashes, no git, no numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from celedger.stats import Bools, Ints

GOOD = -1
"""The position of the good end, which no candidate can make bad."""


@dataclass(frozen=True)
class Split:
    """The candidates sorted into groups that a set of tested positions can't tell apart."""

    group: Ints
    """(n,) group of every candidate."""
    bad: Bools
    """(groups, positions): does a first bad commit in this group make that position bad?"""


@dataclass(frozen=True)
class Lineage:
    """The candidates of a range, oldest first, with their parents among the candidates.

    BAD is the last position. A candidate without parents here is a child of GOOD's side.
    Raises ValueError when a parent does not come before its child.
    """

    parents: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.parents:
            raise ValueError("a range without commits has no first bad commit")
        for position, parents in enumerate(self.parents):
            if any(not 0 <= parent < position for parent in parents):
                raise ValueError(f"the parents of {position} must come before it: {parents}")

    @classmethod
    def line(cls, n: int) -> Lineage:
        """Return a history of `n` candidates in a row."""
        return cls(((), *((i,) for i in range(n - 1))))

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def bad(self) -> int:
        """Return the position of the bad end."""
        return len(self.parents) - 1

    @cached_property
    def linear(self) -> bool:
        """Return True if every candidate has exactly the one before it as parent."""
        return self.parents[0] == () and all(
            parents == (i,) for i, parents in enumerate(self.parents[1:])
        )

    def ancestors(self, position: int) -> Bools:
        """(n,) which candidates, were they the first bad commit, make `position` bad."""
        members = np.zeros(len(self), dtype=bool)
        if position == GOOD:
            return members
        if self.linear:
            members[: position + 1] = True
            return members
        stack, visited = [position], {position}
        while stack:
            for parent in self.parents[stack.pop()]:
                if parent not in visited:
                    visited.add(parent)
                    stack.append(parent)
        members[list(visited)] = True
        return members

    def around(self, members: Ints) -> set[int]:
        """Return the members and their parents."""
        some = set(members.tolist())
        return some.union(*(self.parents[member] or (GOOD,) for member in some))

    def descends(self, position: int, ancestor: int) -> bool:
        """Return True if `ancestor` is `position` itself or above it; looks at what lies
        between."""
        stack, visited = [position], {position}
        while stack:
            here = stack.pop()
            if here == ancestor:
                return True
            for parent in self.parents[here]:
                if parent >= ancestor and parent not in visited:
                    visited.add(parent)
                    stack.append(parent)
        return False

    def split(self, positions: Sequence[int]) -> Split:
        """Group the candidates by which of the (distinct) `positions` they make bad."""
        places = np.asarray(positions, dtype=np.int64)
        n = len(self)
        if self.linear:
            edges = np.unique(places[places >= 0])
            used = np.concatenate(([-1], edges[edges < n - 1]))
            group = np.searchsorted(used, np.arange(n), side="left") - 1
            last = np.concatenate((used[1:], [n - 1]))  # the newest candidate of every group
            return Split(group, last[:, None] <= places[None, :])
        # Which tested positions descend from each candidate: one pass from new to old, with
        # one bit a tested position. Integers of any length keep this short and fast.
        masks = [0] * n
        for bit, position in enumerate(positions):
            if position >= 0:
                masks[position] |= 1 << bit
        for position in range(n - 1, -1, -1):
            mask = masks[position]
            if mask:
                for parent in self.parents[position]:
                    masks[parent] |= mask
        numbers: dict[int, int] = {}
        group = np.fromiter(
            (numbers.setdefault(mask, len(numbers)) for mask in masks), np.int64, count=n
        )
        return Split(group, unpack(numbers, len(positions)))

    def reach(self, members: Sequence[int]) -> list[int]:
        """For every position a bit mask of the `members` that would make it bad."""
        masks = [0] * len(self)
        for bit, member in enumerate(members):
            masks[member] |= 1 << bit
        for position, parents in enumerate(self.parents):
            for parent in parents:
                masks[position] |= masks[parent]
        return masks


def unpack(masks: Iterable[int], width: int) -> Bools:
    """(len(masks), width) the bits of each mask, lowest first."""
    size = (width + 7) // 8
    rows = [mask.to_bytes(size, "little") for mask in masks]
    flat = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), size)
    return np.unpackbits(flat, axis=1, bitorder="little")[:, :width].astype(bool)
