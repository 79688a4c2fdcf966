"""The nouns of a metric's history: what was measured along a line of commits, and the levels and
steps that the model of `history.py` derives from it.

Lives here: dataclasses alone. They know places on a line (0 is the oldest commit; a commit without
a trial counts), not hashes; and values of which a larger one is worse, whatever the metric's own
direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from celedger.stats.arrays import Bools, Floats, Ints
from celedger.stats.incident_state import IncidentState as IncidentState

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
        log_sd_error: Standard error of log(sd).
        freedom: Degrees of freedom of the repeats that it was learned from. 0: nothing is known
            but the prior.
        outliers: Share of outliers.
        session: Standard deviation of a session's effect over `sd`; 0 for quality.
        is_exact: True where a seed repeats bit by bit.
    """

    sd: float
    log_sd_error: float
    freedom: int
    outliers: float
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

    def nodes_at(self, place: int) -> list[Node]:
        """Return the nodes that hold a place: one of each chain that measured it."""
        return [node for node in self.nodes if node.first <= place <= node.last]


@dataclass(frozen=True, slots=True)
class Share:
    """What an incident did to one metric: the step, as the newest derivation has it, and the state
    of the metric within the incident."""

    step: Step
    state: IncidentState


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
