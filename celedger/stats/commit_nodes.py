"""Which measured commits are one place for a step, and which of their trials are draws.

Lives here: the nodes of a line, from places, seeds and bits alone. It knows no values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from celedger.stats.arrays import Bools, Ints
from celedger.stats.course import Measurements


@dataclass(slots=True)
class _Open:
    """A node while its commits are gathered."""

    chain: int
    first: int
    last: int
    own: list[int] = field(default_factory=list)
    reused: list[int] = field(default_factory=list)
    bits: dict[int, int] = field(default_factory=dict)  # by seed

    def add(self, rows: list[int], m: Measurements) -> None:
        self.last = int(m.place[rows[-1]])
        for row in rows:
            (self.own if m.own[row] else self.reused).append(row)
            self.bits[int(m.seed[row])] = int(m.bits[row])

    def repeats(self, rows: list[int], m: Measurements) -> bool:
        """Return True if a common seed exists and every common seed has equal, known bits."""
        common = [row for row in rows if int(m.seed[row]) in self.bits]
        return bool(common) and all(
            m.bits[row] >= 0 and self.bits[int(m.seed[row])] == m.bits[row] for row in common
        )


@dataclass(frozen=True, slots=True, eq=False)
class CommitNodes:
    """Nodes of all chains, oldest first in each chain, and their draws, in the order of nodes.

    Attributes:
        chain, first, last: Of each node.
        starts: True where a chain begins.
        rows: Of each node, its own trials.
        draws: Of each draw, the rows whose mean it is.
        node, session, rank: Of each draw.
        counts: True for a draw that may tell of noise; False for a re-used result.
        offset: Index of each node's first draw, and the number of draws at the end.
    """

    chain: Ints
    first: Ints
    last: Ints
    starts: Bools
    rows: tuple[tuple[int, ...], ...]
    draws: tuple[tuple[int, ...], ...]
    node: Ints
    session: Ints
    rank: Ints
    counts: Bools
    offset: Ints

    def __len__(self) -> int:
        return len(self.chain)


def _gather(m: Measurements) -> list[_Open]:
    order = np.lexsort((np.arange(len(m.place)), m.place, m.chain)).tolist()
    nodes: list[_Open] = []
    for (chain, place), group in groupby(order, lambda i: (int(m.chain[i]), int(m.place[i]))):
        rows = list(group)
        is_measured = any(m.own[row] for row in rows)
        # Equal bits of quality say nothing of speed; a re-used result says it of all.
        may_join = not (m.has_sessions and is_measured)
        if may_join and nodes and nodes[-1].chain == chain and nodes[-1].repeats(rows, m):
            nodes[-1].add(rows, m)
            continue
        if m.has_sessions and not is_measured:
            continue  # measured in another session: it says nothing of this commit's level
        node = _Open(chain, place, place)
        node.add(rows, m)
        nodes.append(node)
    return nodes


def _draws(node: _Open, m: Measurements, one_seed: bool) -> list[tuple[int, ...]]:
    """Return the rows of each independent draw of a node's level: one a seed for quality.

    Trials of one seed that differ tell of the training's own noise, not of the seed's. They are
    draws of their own only where no other seed was ever run.
    """
    rows = node.own or node.reused
    if m.has_sessions:
        return [(row,) for row in sorted(rows, key=lambda row: int(m.session[row]))]
    by_seed: dict[int, dict[tuple[int, float], int]] = {}
    for row in rows:
        same = (int(m.bits[row]), float(m.value[row]) if m.bits[row] < 0 else 0.0)
        by_seed.setdefault(int(m.seed[row]), {})[same] = row
    if one_seed:
        return [(row,) for distinct in by_seed.values() for row in distinct.values()]
    return [tuple(distinct.values()) for distinct in by_seed.values()]


def commit_nodes(m: Measurements) -> CommitNodes:
    """Return the nodes of one metric.

    Neighbouring commits with equal bits are one node. A result that was re-used widens a node by
    its commit; where it repeats no neighbour (a revert), it is the node's only draw of quality.
    """
    nodes = _gather(m)
    one_seed = len(np.unique(m.seed[m.own])) <= 1
    draws = [_draws(node, m, one_seed) for node in nodes]
    flat = [draw for group in draws for draw in group]
    newest = np.array([max(draw) for draw in flat], dtype=np.int64)
    sizes = [len(group) for group in draws]
    chain = np.array([node.chain for node in nodes], dtype=np.int64)
    return CommitNodes(
        chain=chain,
        first=np.array([node.first for node in nodes], dtype=np.int64),
        last=np.array([node.last for node in nodes], dtype=np.int64),
        starts=np.append(True, np.diff(chain) != 0)[: len(nodes)],
        rows=tuple(tuple(node.own) for node in nodes),
        draws=tuple(flat),
        node=np.repeat(np.arange(len(nodes)), sizes),
        session=m.session[newest] if flat else newest,
        rank=m.rank[newest] if flat else newest,
        counts=m.own[newest] if flat else newest.astype(np.bool_),
        offset=np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]),
    )


def repeats_exactly(m: Measurements) -> bool:
    """Return True if a seed was run twice at one commit, and each time gave equal bits."""
    seen: dict[tuple[int, int, int], set[int]] = {}
    count: dict[tuple[int, int, int], int] = {}
    for row in np.flatnonzero(m.own & (m.bits >= 0)).tolist():
        key = (int(m.chain[row]), int(m.place[row]), int(m.seed[row]))
        seen.setdefault(key, set()).add(int(m.bits[row]))
        count[key] = count.get(key, 0) + 1
    again = [key for key, n in count.items() if n > 1]
    return bool(again) and all(len(seen[key]) == 1 for key in again)
