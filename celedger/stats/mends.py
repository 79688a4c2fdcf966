"""Which of the open incidents did a fall mend? A filter over what is left of each incident.

It reads the levels of all metrics together (between steps, as one Gaussian vector: two steps that
share a stretch share its level, and its error cancels), and what the mending commit names and
touches. Pure; knows steps and places, not identities.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from celedger.base.model import IncidentState
from celedger.stats.arrays import Bools, Floats, Ints
from celedger.stats.commit_evidence import CommitEvidence, MendRatios
from celedger.stats.course import MetricKey, Step
from celedger.stats.sessions import MORE_GONE_THAN_LEFT, Contrast

SAME_LEVEL = 2.0
"""Standard errors within which the level after a step and that before the next one are one."""
SIDE_BY_SIDE = 0.9
"""Share of the two levels' variance below which a size was measured side by side, in a session."""


class MetricLevels:
    """Mean and covariance of a metric's levels, and each step as a difference of two of them."""

    def __init__(self, steps: Sequence[Step], contrasts: Sequence[Contrast] = ()) -> None:
        self.unit = steps[-1].unit if steps else 1.0
        self._ends: dict[Step, tuple[int, int]] = {}
        mean: list[float] = []
        variance: list[float] = []
        previous: Step | None = None
        for step in steps:
            if previous is not None and _shares_level(previous, step):
                before = self._ends[previous][1]
                mean[before] = (previous.after + step.before) / 2
                variance[before] = min(previous.after_error, step.before_error) ** 2
            else:
                before = len(mean)
                mean.append(step.before)
                variance.append(step.before_error**2)
            mean.append(step.after)
            variance.append(step.after_error**2)
            self._ends[step] = (before, len(mean) - 1)
            previous = step
        self.mean: Floats = np.array(mean)
        self.covariance: Floats = np.diag(np.array(variance)) if variance else np.zeros((0, 0))
        for step in steps:
            if step.error**2 < SIDE_BY_SIDE * (step.before_error**2 + step.after_error**2):
                self._narrow(step)
        for contrast in contrasts:
            self._include(contrast, steps)

    def sizes(self, steps: Sequence[Step | None]) -> tuple[Floats, Floats]:
        """Return mean and covariance of the sizes of some steps; 0 for no step."""
        mean, covariance = np.zeros(len(steps)), np.zeros((len(steps), len(steps)))
        ends = [(i, *self._ends[step]) for i, step in enumerate(steps) if step is not None]
        if ends:
            at, before, after = np.array(ends).T
            mean[at] = self.mean[after] - self.mean[before]
            rows = self.covariance[after] - self.covariance[before]
            covariance[at[:, None], at] = rows[:, after] - rows[:, before]
        return mean, covariance

    def _narrow(self, step: Step) -> None:
        """Make the difference of two levels what was measured side by side."""
        before, after = self._ends[step]
        prior = self._variance_between(after, before)
        if prior <= 0:
            return
        wanted = max(step.error**2, 1e-12 * prior)
        if wanted < 0.95 * prior:
            error = 1 / (1 / wanted - 1 / prior)
            assumed = float(self.mean[after] - self.mean[before])
            seen = assumed + (step.size - assumed) * (prior + error) / prior
            self._observe(after, before, seen, error)

    def _include(self, contrast: Contrast, steps: Sequence[Step]) -> None:
        """Add what a control in one session tells of two stretches that are no neighbours."""
        own = [s for s in steps if s.chain == contrast.chain]
        later = [s for s in own if s.first > contrast.old]
        earlier = [s for s in own if s.last <= contrast.new]
        if not later or not earlier or later[0] is earlier[-1]:
            return
        before, after = self._ends[later[0]][0], self._ends[earlier[-1]][1]
        if before != after and self._ends[later[0]][1] <= after:
            self._observe(after, before, contrast.difference, contrast.error**2)

    def _variance_between(self, a: int, b: int) -> float:
        v = self.covariance
        return float(v[a, a] + v[b, b] - 2 * v[a, b])

    def _observe(self, a: int, b: int, seen: float, variance: float) -> None:
        """Update by: level a - level b was seen as this."""
        gain = self.covariance[:, a] - self.covariance[:, b]
        total = float(gain[a] - gain[b]) + variance
        if total <= 0:
            return
        self.mean = self.mean + gain * ((seen - self.mean[a] + self.mean[b]) / total)
        self.covariance = self.covariance - np.outer(gain, gain) / total


def _shares_level(earlier: Step, later: Step) -> bool:
    apart = abs(earlier.after - later.before)
    error = math.hypot(earlier.after_error, later.before_error)
    return earlier.chain == later.chain and apart <= SAME_LEVEL * error


# --- the filter

KEPT = 0.5
"""Probability below which what was said is taken back: a step, a mend."""
OPEN = 0.95
"""Probability of a rise from which it is an incident."""
CLOSED = 0.99
"""Probability of a fall from which it can make an incident "good again"."""
GONE, GONE_UNNAMED = 0.9, 0.95
"""P(nothing is left of an incident) from which it is recovered: the only one, or by a commit that
says it reverts one of its commits; and one of several by another commit. The latter at .9 was the
wrong one, or half a fix, in 36 of 1,000 lives, at .96 in 14 (benchmarks/statistics.md)."""
PARTLY = 0.95
"""P(some of an incident is gone) from which it is partly mended."""
ONE_SIDED = 1.64
"""Standard errors by which a step must differ from nothing (one-sided 95 %)."""

ONE, LIKELIEST = 0.3, 0.3
"""Prior that a fall mends one incident: spread over all, and for the likeliest (one that is partly
mended already, else the newest)."""
SEVERAL, NEWEST = 0.2, 0.15
"""Prior that it mends several; and, /n, of the newest k of n together (a branch reverted)."""
PART, QUARTERS = 0.05, 4
"""Prior of each part of one incident (in quarters), divided by the number of open ones."""
WANTED = 0.15
"""Odds that it mends an incident that a person accepted, against one that nobody did."""
NOBODYS = 0.1
"""Prior that it is an improvement of its own, or that other metrics improve beside a mend; sizes
are log-uniform over a factor of 27."""
LOG_IMPROVED = math.log(NOBODYS * 2 / math.log(27))
ALIKE = 0.02
"""A mend need not return to the level exactly: sd of what remains, share of the incident's size."""
UNDONE = 1e6
"""Likelihood ratio of a commit with the code of before an incident. What was re-used is proved, so
it is as good as certain; a file that the trial's footprint lacks is left."""
MOST_STATES, MOST_OPEN = 80, 6
"""States that are kept; open incidents of which subsets are weighed (2^6 of them)."""
NEGLIGIBLE = math.log(1e-5)
SETTLED = 0.9999
"""P(nothing is left) from which an incident leaves the filter."""


@dataclass(frozen=True, slots=True)
class Rise:
    """An incident as the filter sees it: its steps by metric and its commits. The `minor` rises
    came with it and open no incident; of them a mend takes as much."""

    steps: Mapping[MetricKey, Step]
    first: int
    last: int
    was_recovered: bool
    is_accepted: bool = False
    minor: Mapping[MetricKey, Step] = field(default_factory=dict)
    tasks: frozenset[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", frozenset(key[:2] for key in self.steps))


@dataclass(slots=True)
class Fall:
    """Steps down of one metric or several whose sets share a commit.

    `nobodys`: the probability that it mended no incident that nobody accepted; `taken`: the metrics
    of the incidents that it did mend.
    """

    first: int
    last: int
    steps: dict[MetricKey, Step]
    nobodys: float = 1.0
    taken: set[MetricKey] = field(default_factory=set)

    @property
    def is_free(self) -> bool:
        """Return True if metrics that are not taken may have been mended by themselves."""
        return self.nobodys >= KEPT or bool(self.taken)

    def likeliest(self) -> int:
        """Return the place at which it most probably shows first, by its clearest metric."""
        clearest = max(self.steps.values(), key=lambda s: -s.size / max(s.error, 1e-300))
        return min(max(clearest.likeliest, self.first), self.last)


@dataclass(slots=True)
class Mend:
    """What became of a rise: `gone` is the probability that nothing is left of it."""

    state: IncidentState = IncidentState.OPEN
    gone: float = 0.0
    closed: int | None = None
    fallen: dict[MetricKey, tuple[float, float]] = field(default_factory=dict)


def follow(
    rises: Sequence[Rise],
    steps: Mapping[MetricKey, Sequence[Step]],
    evidence: CommitEvidence | None,
    contrasts: Sequence[Contrast],
) -> tuple[list[Mend], list[Fall]]:
    """Follow every rise through the falls after it; first all metrics of an incident together,
    then, where these falls mend nothing, each metric by itself: they may be mended one by one.

    Args:
        rises: In any order; the mends are in the same.
        steps: All steps of probability KEPT and more by metric, rises and falls.
    """
    ratios = MendRatios(evidence)
    mends, falls = _together(rises, steps, ratios, contrasts)
    waiting = [i for i, m in enumerate(mends) if m.state is not IncidentState.RECOVERED]
    several = [i for i in waiting if len(rises[i].steps) > 1]
    alone: dict[int, list[Mend]] = {i: [] for i in several}
    for key in sorted({k for i in several for k in rises[i].steps}):
        free = [f for f in falls if key in f.steps.keys() - f.taken and f.is_free]
        own = [s for s in steps[key] if s.size > 0 or any(s == f.steps[key] for f in free)]
        with_key = [i for i in waiting if key in rises[i].steps]
        one = [replace(rises[i], steps={key: rises[i].steps[key]}) for i in with_key]
        for i, mend in zip(with_key, _together(one, {key: own}, ratios, contrasts)[0], strict=True):
            if i in alone and mend.state is IncidentState.RECOVERED and mend.closed is not None:
                alone[i].append(mend)
                for fall in free:
                    if fall.first <= mend.closed <= fall.last:
                        fall.taken.add(key)
    for i, parts in alone.items():
        if len(parts) == len(rises[i].steps):
            closed = max(m.closed for m in parts if m.closed is not None)
            mends[i] = Mend(IncidentState.RECOVERED, min(m.gone for m in parts), closed)
        elif parts:
            mends[i].state = IncidentState.PARTLY
    return mends, falls


_RISE, _FALL, _UNDOING = range(3)  # events of one place, in their order


def _together(
    rises: Sequence[Rise],
    steps: Mapping[MetricKey, Sequence[Step]],
    ratios: MendRatios,
    contrasts: Sequence[Contrast],
) -> tuple[list[Mend], list[Fall]]:
    levels = {
        k: MetricLevels(own, [c for c in contrasts if c.key == k]) for k, own in steps.items()
    }
    falls = joint_falls(steps)
    filtered = _Filter(levels)
    mends = [Mend() for _ in rises]
    events = sorted(
        [(r.last, _RISE, i) for i, r in enumerate(rises)]
        + [(f.last, _FALL, i) for i, f in enumerate(falls)]
        + [
            (place, _UNDOING, i)
            for i, r in enumerate(rises)
            if (place := ratios.undoing((r.first, r.last), (0, sys.maxsize), r.tasks)) is not None
        ]
    )
    for place, event, i in events:
        if event == _RISE:
            filtered.add(i)
            continue
        if event == _UNDOING:  # whatever the metric did there: perhaps an improvement went, too
            if mends[i].state is not IncidentState.RECOVERED:
                mends[i] = Mend(IncidentState.RECOVERED, 1.0, place, mends[i].fallen)
                filtered.drop_settled(mends)
            continue
        if not filtered.live:
            continue
        fall = falls[i]
        live = [rises[j] for j in filtered.live]
        fall.nobodys = filtered.fall(fall, live, ratios)
        _read(filtered, fall, rises, mends, ratios)
        filtered.drop_settled(mends)
    return mends, falls


def joint_falls(steps: Mapping[MetricKey, Sequence[Step]]) -> list[Fall]:
    """Return the falls of all metrics, joined where their sets share a commit."""
    down = [(s, k) for k, own in steps.items() for s in own if s.size < -ONE_SIDED * s.error]
    joint: list[Fall] = []
    for step, key in sorted(down, key=lambda d: (d[0].last, d[0].first, d[1])):
        for fall in joint:
            if fall.first <= step.last and step.first <= fall.last and key not in fall.steps:
                fall.steps[key] = step
                fall.first, fall.last = max(fall.first, step.first), min(fall.last, step.last)
                break
        else:
            joint.append(Fall(step.first, step.last, {key: step}))
    return sorted(joint, key=lambda f: (f.last, f.first))


class _Filter:
    """The posterior of what is left of each live rise: 4, 3 … 0 quarters, for all its metrics.

    `states` has a row a state and a column a live rise; `weights` are their log probabilities.
    """

    def __init__(self, levels: Mapping[MetricKey, MetricLevels]) -> None:
        self.levels = levels
        self.live: list[int] = []
        self.states: Ints = np.zeros((1, 0), np.int64)
        self.weights: Floats = np.zeros(1)

    def add(self, index: int) -> None:
        self.live.append(index)
        whole = np.full((len(self.states), 1), QUARTERS)
        self.states = np.hstack([self.states, whole])

    def gone(self, columns: Sequence[int]) -> list[tuple[float, float]]:
        """Return P(nothing is left), P(less than all is left) of some live rises."""
        chance, left = np.exp(self.weights), self.states[:, columns]
        gone, less = chance @ (left == 0), chance @ (left < QUARTERS)
        return list(zip(gone.tolist(), less.tolist(), strict=True))

    def fall(self, fall: Fall, rises: Sequence[Rise], ratios: MendRatios) -> float:
        """Weigh which rises the fall mended; return P(none, or accepted ones alone). Those of other
        tasks are not asked: nothing of them fell. Nor are those that no state has among the newest
        `MOST_OPEN` of which something is left."""
        kept = self.weights >= NEGLIGIBLE
        self.states, weights = self.states[kept], self.weights[kept]
        columns = _asked(rises, fall)
        is_left = self.states[:, columns] > 0
        newest = is_left & (is_left[:, ::-1].cumsum(1)[:, ::-1] <= MOST_OPEN)
        asked = [columns[k] for k in np.flatnonzero(newest.any(0)).tolist()]
        if not asked:
            self.weights = weights
            return 1.0
        near = [rises[k] for k in asked]
        keys = sorted(set(fall.steps) | {k for r in near for k in r.steps})
        sets = [
            ratios.of((r.first, r.last), (fall.first, fall.last))
            if ratios.undoing((r.first, r.last), (fall.first, fall.last), r.tasks) is None
            else (UNDONE, 1 / UNDONE)
            for r in near
        ]
        accepted = np.array([rise.is_accepted for rise in near])
        whole, part = np.log(np.array(sets)).T + np.log(WANTED) * accepted
        first, of_left = _distinct(_codes(self.states[:, asked]))
        lefts = self.states[first][:, asked]
        hypotheses = [_hypotheses(left) for left in lefts.tolist()]
        sizes = np.array([len(log) for _, _, log in hypotheses])
        every = np.zeros((sizes.sum() + 1, len(asked)), np.int64)  # the last takes nothing
        for (rest, taken, log), end in zip(hypotheses, sizes.cumsum().tolist(), strict=True):
            every[end - len(log) : end, rest] = taken
        takes = every[:-1] > 0
        takes_all = takes & (every[:-1] == np.repeat(lefts, sizes, axis=0))
        prior = np.concatenate([log for _, _, log in hypotheses])
        prior += takes_all @ whole + (takes & ~takes_all) @ part
        codes = _codes(every)
        first, of_row = _distinct(codes)
        moments = _moments(fall, near, keys, self.levels)
        density = moments.log_density(every[first] / QUARTERS)
        count = sizes[of_left]
        parent = np.repeat(np.arange(len(weights)), count)
        which = np.arange(len(parent)) - np.repeat(count.cumsum() - count, count)
        which += np.repeat((sizes.cumsum() - sizes)[of_left], count)
        nothing = weights + LOG_IMPROVED + moments.improved.sum()
        something = weights[parent] + prior[which] + density[of_row[which]]
        total = np.concatenate([nothing, something])
        free = np.append(nothing, something[(takes & ~accepted).sum(1)[which] == 0])
        nobodys = float(np.logaddexp.reduce(free) - np.logaddexp.reduce(total))
        parent = np.append(np.arange(len(weights)), parent)
        which = np.append(np.full(len(weights), -1), which)
        # What is left has the code of what was left less that of what is taken.
        left = [a[of_left[parent]] - b[which] for a, b in zip(_codes(lefts), codes, strict=True)]
        best, self.weights = _likeliest(self._beside(asked)[parent], left, total)
        self.states = self.states[parent[best]]
        self.states[:, asked] -= every[which[best]]
        return math.exp(min(0.0, nobodys))

    def drop_settled(self, mends: Sequence[Mend]) -> None:
        """Forget the rises of which nothing is left; their mends are final."""
        for k in range(len(self.live) - 1, -1, -1):
            mend = mends[self.live[k]]
            if mend.state is IncidentState.RECOVERED and mend.gone > SETTLED:
                del self.live[k]
                best, self.weights = _likeliest(self._beside([k]), [], self.weights)
                self.states = np.delete(self.states[best], k, axis=1)

    def _beside(self, columns: Sequence[int]) -> Ints:
        """Number the states by what they say of all rises but some."""
        return _distinct(_codes(np.delete(self.states, columns, axis=1)))[1]


def _likeliest(group: Ints, codes: Sequence[Ints], weights: Floats) -> tuple[Ints, Floats]:
    """Add up equal states; return the index of one of each of the likeliest, and their weights.

    Args:
        group, codes: States are equal where all these are.
        weights: Log probabilities, but for a common constant.
    """
    first, of_state = _distinct([group, *codes])
    total = np.full(len(first), -np.inf)
    np.logaddexp.at(total, of_state, weights)
    best = np.argsort(-total, kind="stable")[:MOST_STATES]
    return first[best], total[best] - np.logaddexp.reduce(total[best])


_DIGITS = 20
"""Rises whose quarters one code has."""


def _codes(rows: Ints) -> list[Ints]:
    """Return numbers that say what rows of quarters are, so many rises each."""
    powers = (QUARTERS + 1) ** np.arange(_DIGITS, dtype=np.int64)
    parts = [rows[:, at : at + _DIGITS] for at in range(0, max(1, rows.shape[1]), _DIGITS)]
    return [part @ powers[: part.shape[1]] for part in parts]


def _distinct(codes: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Return the index of one of each distinct row of codes, and which of them each row is.
    (np.unique of rows compares bytes, which takes a hundred times longer.)"""
    first = of_row = np.zeros(0, np.int64)
    for at, code in enumerate(codes):
        code = code + of_row * (QUARTERS + 1) ** _DIGITS if at else code
        _, first, of_row = np.unique(code, return_index=True, return_inverse=True)
    return first, of_row


def _asked(rises: Sequence[Rise], fall: Fall) -> list[int]:
    """Return which rises have a metric of a task in which something fell."""
    tasks = {key[:2] for key in fall.steps}
    return [i for i, rise in enumerate(rises) if not tasks.isdisjoint(rise.tasks)]


def _read(
    filtered: _Filter,
    fall: Fall,
    rises: Sequence[Rise],
    mends: Sequence[Mend],
    ratios: MendRatios,
) -> None:
    """Bring the state of every live rise up to date after a fall."""
    fell = max(s.probability for s in fall.steps.values())
    laid: list[int] = []
    columns = _asked([rises[i] for i in filtered.live], fall)
    asked = [filtered.live[column] for column in columns]
    for i, (gone, less) in zip(asked, filtered.gone(columns), strict=True):
        rise, mend = rises[i], mends[i]
        mend.gone = gone
        if mend.state is IncidentState.RECOVERED:
            continue
        was = rise.was_recovered
        sure_fall = fell
        names = ratios.undoing((rise.first, rise.last), (fall.first, fall.last), rise.tasks)
        if names is not None:  # it fell as surely as it rose
            sure_fall = max(fell, *(s.probability for s in rise.steps.values()))
        is_over = sure_fall >= (KEPT if was else CLOSED) and mend.gone >= (KEPT if was else GONE)
        if is_over and not was:
            is_over = _standard_errors_over_half(rise, mend, fall) >= MORE_GONE_THAN_LEFT
        if is_over and names is None:
            names = ratios.naming((rise.first, rise.last), (fall.first, fall.last))
        is_clear = names is not None or len(asked) == 1
        if is_over and (was or is_clear or mend.gone >= GONE_UNNAMED):
            mend.state = IncidentState.RECOVERED
            mend.closed = fall.likeliest() if names is None else names
            laid.append(i)
        elif less >= PARTLY and sure_fall >= OPEN:
            mend.state = IncidentState.PARTLY
            laid.append(i)
    # A fall that is laid to some incidents is no part of what the others lost.
    fall.taken.update(key for i in laid for key in (*rises[i].steps, *rises[i].minor))
    for i in laid or asked:
        for key, step in fall.steps.items():
            drop, variance = mends[i].fallen.get(key, (0.0, 0.0))
            mends[i].fallen[key] = (drop - step.size, variance + step.error**2)


def _standard_errors_over_half(rise: Rise, mend: Mend, fall: Fall) -> float:
    """Return by how many standard errors more than half of a rise is gone after a fall: by what
    fell since, or by the level now and before the rise, where one chain measured both."""
    fell, level = _Sum(), _Sum()
    for key, step in rise.steps.items():
        down = fall.steps.get(key)
        drop, variance = mend.fallen.get(key, (0.0, 0.0))
        if down is None and key not in mend.fallen:
            continue
        if down is not None:
            drop, variance = drop - down.size, variance + down.error**2
        fell.add(step.size, drop - step.size / 2, variance + step.error**2 / 4)
        if down is not None and down.chain == step.chain:
            variance = down.after_error**2 + step.before_error**2
            level.add(step.size, step.before + step.size / 2 - down.after, variance)
    return max(fell.standard_errors(), level.standard_errors())


@dataclass(slots=True)
class _Sum:
    """A sum over metrics, each weighted by what it can tell."""

    total: float = 0.0
    variance: float = 0.0

    def add(self, size: float, excess: float, variance: float) -> None:
        variance = max(variance, (1e-9 * size) ** 2, 1e-300)
        weight = size / variance
        self.total += weight * excess
        self.variance += weight * weight * variance

    def standard_errors(self) -> float:
        return self.total / math.sqrt(self.variance) if self.variance else 0.0


def _hypotheses(left: Sequence[int]) -> tuple[list[int], Ints, Floats]:
    """Return the newest rises of which something is left, and the hypotheses about them: quarters
    that a fall may take, a row a hypothesis and a column a rise, and the log prior of each."""
    rest = [k for k, quarters in enumerate(left) if quarters][-MOST_OPEN:]
    return rest, *_of_newest(tuple(left[k] for k in rest))


@lru_cache(maxsize=4096)
def _of_newest(left: tuple[int, ...]) -> tuple[Ints, Floats]:
    n = len(left)
    if not n:
        return np.zeros((0, 0), np.int64), np.zeros(0)
    begun = [k for k in range(n) if left[k] < QUARTERS]
    likeliest = (begun or [n - 1])[-1]
    subsets = np.arange(1, 2**n)[:, None] >> np.arange(n) & 1
    count, first = subsets.sum(1), subsets.argmax(1)
    one = ONE / n + LIKELIEST * (first == likeliest)
    several = SEVERAL / max(2**n - 1 - n, 1) + NEWEST / n * (first == n - count)
    parts = [
        [part if i == k else 0 for i in range(n)] for k in range(n) for part in range(1, left[k])
    ]
    taken = np.array([*(subsets * left).tolist(), *parts], np.int64).reshape(-1, n)
    prior = [*np.where(count == 1, one, several).tolist(), *[PART / n for _ in parts]]
    return taken, np.log(np.array(prior))


@dataclass(frozen=True, slots=True)
class _Moments:
    """Mean and covariance, by metric, of the rises' sizes and of what fell: rows are metrics."""

    rise: Floats  # [metric, rise]
    covariance: Floats  # [metric, rise, rise]
    fall: Floats  # [metric]
    cross: Floats  # [metric, rise]
    fall_variance: Floats  # [metric]
    improved: Floats  # [metric]: log P(what fell | an improvement, whose size is log-uniform)
    fell: Bools  # [metric]

    def log_density(self, taken: Floats) -> Floats:
        """Return log P(the levels seen) of each hypothesis: that what it takes is what fell, and
        that the metrics of which it takes nothing fell by nothing, or improved beside it."""
        size = taken @ self.rise.T
        mean = size + self.fall
        variance = ((taken @ self.covariance) * taken).sum(2).T
        variance = variance + 2 * taken @ self.cross.T + self.fall_variance
        variance = np.maximum(variance, 0.0) + (ALIKE * size) ** 2 + 1e-24
        logs: Floats = -0.5 * (mean**2 / variance + np.log(2 * math.pi * variance))
        beside = self.fell & (size == 0)
        still, improved = (np.where(beside, log, 0).sum(1) for log in (logs, self.improved))
        more = np.where(beside.any(1), np.logaddexp(still, LOG_IMPROVED + improved), 0)
        return np.asarray(np.where(beside, 0, logs).sum(1) + more)


def _moments(
    fall: Fall,
    rises: Sequence[Rise],
    keys: Sequence[MetricKey],
    levels: Mapping[MetricKey, MetricLevels],
) -> _Moments:
    mean, improved = np.empty((len(keys), len(rises) + 1)), np.empty(len(keys))
    covariance = np.empty((len(keys), len(rises) + 1, len(rises) + 1))
    for i, key in enumerate(keys):
        steps = [rise.steps.get(key, rise.minor.get(key)) for rise in rises]
        mean[i], covariance[i] = levels[key].sizes([*steps, fall.steps.get(key)])
        unit = max(levels[key].unit, 1e-300)
        if key in fall.steps:
            improved[i] = -math.log(2 * max(-fall.steps[key].size, 1.5 * unit))
        else:  # it fell by nothing, give or take a trial's noise
            covariance[i, -1, -1] += unit**2
            improved[i] = math.log(0.4 / unit)
    return _Moments(
        mean[:, :-1], covariance[:, :-1, :-1], mean[:, -1], covariance[:, :-1, -1],
        covariance[:, -1, -1], improved, np.array([key in fall.steps for key in keys]),
    )  # fmt: skip
