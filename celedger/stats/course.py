"""The nouns of a metric's history: what was measured along a line of commits, its nodes, and the
levels and steps that the model of `history.py` derives from it.

Lives here: dataclasses, and which measured commits are one place for a step, from places, seeds and
bits alone. They know places on a line (0 is the oldest commit; a commit without a trial counts),
not hashes; and values of which a larger one is worse, whatever the metric's own direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np

from celedger.base.model import FEWEST_REPEATS, IncidentState
from celedger.stats.arrays import Bools, Floats, Ints

MetricKey = tuple[str, str, str]
"""Suite, task, metric."""


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """The usable, finite values of one metric along a line: arrays of one length, a row a trial,
    in the order of recording.

    Attributes:
        place: Of the trial's commit on the line.
        chain: The environment and definition in which it was measured, numbered in the order of
            first use. Levels of two chains are never compared.
        session: What a run of trials shares beyond the code, numbered in the order of time.
        rank: How many trials of its session began before it.
        seed: As the trial had it.
        value: In the metric's unit, its sign changed where a larger value is better.
        own: False for a result that was re-used: it repeats a commit's bits and is no evidence.
        bits: A number for what the trial computed: equal numbers are equal bits of all that the
            trial reported about quality, and of speed, work and memory the same trial, re-used. -1
            where that is not known.
        has_sessions: True for speed, work and memory, whose values of one session share an effect.
    """

    place: Ints
    chain: Ints
    session: Ints
    rank: Ints
    seed: Ints
    value: Floats
    own: Bools
    bits: Ints
    has_sessions: bool

    def where(self, rows: Bools) -> Measurements:
        """Return these rows alone."""
        return Measurements(
            self.place[rows], self.chain[rows], self.session[rows], self.rank[rows],
            self.seed[rows], self.value[rows], self.own[rows], self.bits[rows], self.has_sessions,
        )  # fmt: skip


class StepKind(StrEnum):
    STEP = "step"
    DRIFT = "drift"  # slow: over many commits


@dataclass(frozen=True, slots=True)
class Step:
    """One change of a metric's level, in one chain.

    Attributes:
        first: The oldest place of the 95 % set of commits that may have made it (unmeasured
            commits of a gap included); of a drift, the first commit that may belong to it.
        last: The newest place of that set.
        likeliest: The measured place at which it most probably shows first.
        probability: That there is such a step.
        size: Level after - level before; positive is worse.
        error: Standard error of `size`.
        before: Level before; `before_error` its standard error. The same for `after`.
        known: The newest measured place before `first`, in this chain.
        unit: Standard deviation of a trial.
        is_newest: True for the newest step of its chain.
        node: Index in `MetricHistory.nodes` of the node at which it shows first.
        posterior: Probability of each place from `first` to `last`; their sum is at most 1. Empty
            where only the set is known: its places then count alike.
    """

    first: int
    last: int
    likeliest: int
    probability: float
    size: float
    error: float
    before: float
    before_error: float
    after: float
    after_error: float
    chain: int
    known: int
    unit: float
    is_newest: bool
    node: int
    kind: StepKind = StepKind.STEP
    posterior: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """Neighbouring measured commits of one chain that no step can part: one commit, or several
    with equal bits. `rows` are those of the measurements, re-used results left out."""

    chain: int
    first: int
    last: int
    rows: tuple[int, ...]
    level: float
    error: float


@dataclass(frozen=True, slots=True)
class TrialNoise:
    """What repeats of the same code tell of a metric's noise.

    Attributes:
        sd: Standard deviation of a trial, in the metric's unit.
        freedom: Degrees of freedom of the repeats that it was learned from. 0: nothing is known
            but the prior.
        session: Standard deviation of a session's effect over `sd`; 0 for quality.
        is_exact: True where a seed repeats bit by bit.
    """

    sd: float
    freedom: int
    session: float = 0.0
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class MetricHistory:
    """What one metric's measurements say: its noise, the levels of its nodes (oldest first in each
    chain, chains in their order), and every step of some probability, oldest first.

    `by_seeds`: equal seeds tell the steps, and more of them settle a doubt.
    """

    noise: TrialNoise
    nodes: tuple[Node, ...]
    steps: tuple[Step, ...]
    by_seeds: bool = False

    @property
    def knows_noise(self) -> bool:
        """Return True if equal seeds, or repeats of the same code, tell its noise."""
        return self.by_seeds or self.noise.freedom >= FEWEST_REPEATS

    def nodes_at(self, place: int) -> list[Node]:
        """Return the nodes that hold a place: one of each chain that measured it."""
        return [node for node in self.nodes if node.first <= place <= node.last]


@dataclass(frozen=True, slots=True)
class Share:
    """What an incident did to one metric: the step, as the newest derivation has it, the state of
    the metric within the incident, and how much of its size is `left` where that is partly mended,
    by all that fell since."""

    step: Step
    state: IncidentState
    left: float | None = None


@dataclass(frozen=True, slots=True)
class ToldIncident:
    """What was last said of an incident: hysteresis and identity rest on it.

    Attributes:
        id: Its name, eight hex digits.
        first, last: Places of its set then.
        states: By metric.
        was_sure: True once two sessions or a bisect confirmed the rise, or P(step) was >= .99.
        sizes: Size and its standard error by metric, as last said while the step stood.
        since: When it was first said (seconds since the epoch).
        also: Its other names: those that another ledger gave it.
    """

    id: str
    first: int
    last: int
    state: IncidentState
    states: Mapping[MetricKey, IncidentState]
    kind: StepKind = StepKind.STEP
    was_sure: bool = False
    sizes: Mapping[MetricKey, tuple[float, float]] = field(default_factory=dict)
    since: float = 0.0
    also: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        return frozenset((self.id, *self.also))


@dataclass(frozen=True, slots=True)
class StepIncident:
    """One cause that made one metric or several worse.

    Attributes:
        id: That of the told one, "" for a new incident.
        first, last: Places of the 95 % set of the joint posterior.
        likeliest: The likeliest first bad commit's place.
        probability: Of `likeliest`, within the set.
        shares: By metric, withdrawn ones left out unless all are.
        closed: The place of the commit that mended it (the likeliest), None while it is not.
        mended: Probability that it is wholly mended.
        is_named: True where a bisect named `likeliest`; `probability` is then the bisect's.
        joined: Id of the slow drift that this incident turned out to be a part of, else "". It is
            then `withdrawn`, but was no false alarm.
        in_doubt: True where the step is doubted, although it was sure once: a rise of one commit.
            It keeps its state until a control of the risen commit decides.
        also: Its other names.
    """

    id: str
    kind: StepKind
    state: IncidentState
    first: int
    last: int
    likeliest: int
    probability: float
    shares: Mapping[MetricKey, Share]
    closed: int | None = None
    mended: float = 0.0
    was_sure: bool = False
    is_named: bool = False
    joined: str = ""
    in_doubt: bool = False
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Acts:
    """What people and bisects said, by place on the line.

    Attributes:
        accepted: Places whose incidents are accepted, by metric (an empty string in a key stands
            for every task or metric).
        accepted_ids: Incidents that are accepted by their name.
        dismissed_ids: Incidents that a person withdrew.
        named: First bad commits that bisects named, by metric: place -> probability.
    """

    accepted: Mapping[MetricKey, frozenset[int]] = field(default_factory=dict)
    accepted_ids: frozenset[str] = frozenset()
    dismissed_ids: frozenset[str] = frozenset()
    named: Mapping[MetricKey, Mapping[int, float]] = field(default_factory=dict)


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
