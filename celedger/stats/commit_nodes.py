"""Which measured commits are one place for a step, and which of their trials are draws.

Lives here: the nodes of a line, from places, seeds and bits alone. It knows no values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from celedger.stats.arrays import Bools, Ints
from celedger.stats.course import Measurements


class _Trials:
    """Measurements as lists: their rows are looked at one by one."""

    def __init__(self, m: Measurements) -> None:
        self.chain: list[int] = m.chain.tolist()
        self.place: list[int] = m.place.tolist()
        self.session: list[int] = m.session.tolist()
        self.seed: list[int] = m.seed.tolist()
        self.own: list[bool] = m.own.tolist()
        self.bits: list[int] = m.bits.tolist()
        self.value: list[float] = m.value.tolist()
        self.has_sessions = m.has_sessions


@dataclass(slots=True)
class _Open:
    """A node while its commits are gathered."""

    chain: int
    first: int
    last: int
    own: list[int] = field(default_factory=list)
    reused: list[int] = field(default_factory=list)
    bits: dict[int, int] = field(default_factory=dict)  # by seed

    def add(self, rows: list[int], m: _Trials) -> None:
        self.last = m.place[rows[-1]]
        for row in rows:
            (self.own if m.own[row] else self.reused).append(row)
            self.bits[m.seed[row]] = m.bits[row]

    def repeats(self, rows: list[int], m: _Trials) -> bool:
        """Return True if a common seed exists and every common seed has equal, known bits; of
        speed and memory, if the trials are this node's own."""
        if m.has_sessions:
            return {m.bits[row] for row in rows} <= {m.bits[row] for row in self.own}
        common = [row for row in rows if m.seed[row] in self.bits]
        return bool(common) and all(
            m.bits[row] >= 0 and self.bits[m.seed[row]] == m.bits[row] for row in common
        )


@dataclass(frozen=True, slots=True, eq=False)
class CommitNodes:
    """Nodes of all chains, oldest first in each chain, and their draws, in the order of nodes.

    Attributes:
        chain, first, last: Of each node.
        rows: Of each node, its own trials.
        draws: Of each draw, the rows whose mean it is.
        node, session, rank: Of each draw.
        counts: True for a draw that may tell of noise; False for a re-used result.
        offset: Index of each node's first draw, and the number of draws at the end.
        cell: Of each draw, the index of its group of repeats: a node's draws, or for speed and
            memory those of one session. A re-used result is a group of its own.
        beside: Of each cell, the cell of the node before, of the same chain and session; -1 if
            there is none.
        is_exact: True if a seed gave equal bits again, and never others at one commit.
    """

    chain: Ints
    first: Ints
    last: Ints
    rows: tuple[tuple[int, ...], ...]
    draws: tuple[tuple[int, ...], ...]
    node: Ints
    session: Ints
    rank: Ints
    counts: Bools
    offset: Ints
    cell: Ints
    beside: Ints
    is_exact: bool

    def __len__(self) -> int:
        return len(self.chain)

    def by_chain(self) -> list[CommitNodes]:
        """Return the nodes of each chain, everything counted from its first one."""
        starts = np.flatnonzero(np.append(True, np.diff(self.chain) != 0)[: len(self)])
        result = []
        for begin, end in pairwise([*starts.tolist(), len(self)]):
            nodes, draws = slice(begin, end), slice(self.offset[begin], self.offset[end])
            cell = self.cell[draws]
            cells = slice(cell[0], cell[-1] + 1)
            own = {name: getattr(self, name)[nodes] for name in ("chain", "first", "last", "rows")}
            of_draws = ("draws", "session", "rank", "counts")
            own |= {name: getattr(self, name)[draws] for name in of_draws}
            chain = replace(
                self,
                **own,
                node=self.node[draws] - begin,
                offset=self.offset[begin : end + 1] - self.offset[begin],
                cell=cell - cell[0],
                beside=np.maximum(self.beside[cells] - cell[0], -1),
            )
            result.append(chain)
        return result


def _gather(measured: Measurements, m: _Trials) -> list[_Open]:
    order = np.lexsort((measured.place, measured.chain))
    chain, place = measured.chain[order], measured.place[order]
    begins = np.flatnonzero(np.append(True, (np.diff(chain) != 0) | (np.diff(place) != 0)))
    nodes: list[_Open] = []
    every, stops = order.tolist(), [*begins[1:].tolist(), len(order)]
    for begin, stop in zip(begins.tolist(), stops, strict=True) if every else ():
        rows = every[begin:stop]
        row = rows[0]
        is_measured = any(m.own[row] for row in rows)
        may_join = not (m.has_sessions and is_measured)
        if may_join and nodes and nodes[-1].chain == m.chain[row] and nodes[-1].repeats(rows, m):
            nodes[-1].add(rows, m)
            continue
        if m.has_sessions and not is_measured:
            continue  # measured in another session: it says nothing of this commit's level
        node = _Open(m.chain[row], m.place[row], m.place[row])
        node.add(rows, m)
        nodes.append(node)
    return nodes


def _draws(node: _Open, m: _Trials, one_seed: bool) -> list[tuple[int, ...]]:
    """Return the rows of each independent draw of a node's level: one a seed for quality.

    Trials of one seed that differ tell of the training's own noise, not of the seed's. They are
    draws of their own only where no other seed was ever run.
    """
    rows = node.own or node.reused
    if m.has_sessions:
        return [(row,) for row in sorted(rows, key=m.session.__getitem__)]
    by_seed: dict[int, dict[tuple[int, float], int]] = {}
    for row in rows:
        same = (m.bits[row], m.value[row] if m.bits[row] < 0 else 0.0)
        by_seed.setdefault(m.seed[row], {})[same] = row
    if one_seed:
        return [(row,) for distinct in by_seed.values() for row in distinct.values()]
    return [tuple(distinct.values()) for distinct in by_seed.values()]


def _repeats_exactly(m: Measurements) -> bool:
    """Return True if a seed gave equal bits again, and never others at one commit. The code of
    most commits is no part of what they train: their equal bits are repeats."""
    rows = np.flatnonzero(m.own & (m.bits >= 0))
    of_seed = _numbered(m.chain[rows], m.seed[rows])
    at_commit = _numbered(of_seed, m.place[rows])
    drawn = _numbered(of_seed, m.bits[rows])
    different = _numbered(at_commit, m.bits[rows])
    counts = [int(numbers.max(initial=-1)) for numbers in (drawn, different, at_commit)]
    return counts[0] + 1 < len(rows) and counts[1] == counts[2]


def _numbered(a: Ints, b: Ints) -> Ints:
    """Return the number of each pair among the distinct ones."""
    _, one = np.unique(a, return_inverse=True)
    _, two = np.unique(b, return_inverse=True)
    _, numbers = np.unique(one * (len(b) + 1) + two, return_inverse=True)
    return np.asarray(numbers, dtype=np.int64)


def _cells(node: Ints, session: Ints, counts: Bools, has_sessions: bool) -> Ints:
    new = np.append(True, np.diff(node) != 0)[: len(node)]
    if has_sessions:
        new[1:] |= np.diff(session) != 0
    new |= ~counts
    return np.cumsum(new) - 1


def _beside(cell: Ints, node: Ints, session: Ints, chain: Ints) -> Ints:
    begins = np.flatnonzero(np.append(True, np.diff(cell) != 0)[: len(cell)])
    places = list(zip(node[begins].tolist(), session[begins].tolist(), strict=True))
    index = {place: i for i, place in enumerate(places)}
    return np.array(
        [index.get((k - 1, s), -1) if k and chain[k] == chain[k - 1] else -1 for k, s in places],
        dtype=np.int64,
    )


def commit_nodes(m: Measurements) -> CommitNodes:
    """Return the nodes of one metric.

    Neighbouring commits with equal bits are one node. A result that was re-used widens a node by
    its commit; where it repeats no neighbour (a revert), it is the node's only draw of quality.
    """
    trials = _Trials(m)
    nodes = _gather(m, trials)
    one_seed = len(np.unique(m.seed[m.own])) <= 1
    draws = [_draws(node, trials, one_seed) for node in nodes]
    flat = [draw for group in draws for draw in group]
    newest = np.array([max(draw) for draw in flat], dtype=np.int64)
    sizes = np.array([len(group) for group in draws], dtype=np.int64)
    chain = np.array([node.chain for node in nodes], dtype=np.int64)
    of_draw = np.repeat(np.arange(len(nodes)), sizes)
    session, counts = m.session[newest], m.own[newest]
    cell = _cells(of_draw, session, counts, m.has_sessions)
    return CommitNodes(
        chain=chain,
        first=np.array([node.first for node in nodes], dtype=np.int64),
        last=np.array([node.last for node in nodes], dtype=np.int64),
        rows=tuple(tuple(node.own) for node in nodes),
        draws=tuple(flat),
        node=of_draw,
        session=session,
        rank=m.rank[newest],
        counts=counts,
        offset=np.concatenate([[0], np.cumsum(sizes)]),
        cell=cell,
        beside=_beside(cell, of_draw, session, chain),
        is_exact=_repeats_exactly(m),
    )
