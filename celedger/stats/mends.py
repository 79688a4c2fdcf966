"""Which of the open incidents did a fall mend? A filter over what is left of each incident.

It reads the levels of all metrics together (between steps, as one Gaussian vector: two steps that
share a stretch share its level, and its error cancels), and what the mending commit names and
touches. Pure; knows steps and places, not identities.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from celedger.base.model import IncidentState
from celedger.stats import Bools, Floats, Ints
from celedger.stats.commit_evidence import CommitEvidence, MendRatios
from celedger.stats.course import MetricKey, Step
from celedger.stats.metric_passes import LEAST_LEVEL_ERROR
from celedger.stats.sessions import Contrast

SAME_LEVEL = 2.0
"""Standard errors within which the level after a step and that before the next one are one."""
SIDE_BY_SIDE = 0.9
"""Share of the two levels' variance below which a size was measured side by side, in a session."""
ROUNDING = 1e-9
"""Share of a size by which it differs from that of its levels where it was measured so, too: a busy
machine's sessions move the level afterwards."""


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
            same = next((self._ends[s][0] for s in self._ends if step.undoes(s)), None)
            if same is None:
                mean.append(step.after)
                variance.append(step.after_error**2)
            self._ends[step] = (before, len(mean) - 1 if same is None else same)
            previous = step
        self.mean: Floats = np.array(mean or [0.0])
        self.covariance: Floats = np.diag(variance or [0.0])
        for step in steps:
            apart = abs(step.size - (step.after - step.before)) > ROUNDING * abs(step.size)
            of_levels = step.before_error**2 + step.after_error**2
            if apart or step.error**2 < SIDE_BY_SIDE * of_levels:
                self._measured_as(step)
        for contrast in contrasts:
            self._include(contrast, steps)

    def sizes(self, steps: Sequence[Step | None]) -> tuple[Floats, Floats]:
        """Return mean and covariance of the sizes of some steps; 0 for no step."""
        return self._between([self._ends[s] if s is not None else (0, 0) for s in steps])

    def since(self, rise: Step, fall: Step) -> tuple[Floats, Floats]:
        """Return mean and covariance of a rise's size, and of what a later fall left above it."""
        before, after = self._ends[rise]
        return self._between([(before, after), (before, self._ends[fall][1])])

    def left(self, rise: Step, fall: Step) -> tuple[float, float]:
        """Return mean and variance of what a fall left above the level before a rise."""
        mean, covariance = self._between([(self._ends[rise][0], self._ends[fall][1])])
        return float(mean[0]), float(covariance[0, 0])

    def _between(self, pairs: Sequence[tuple[int, int]]) -> tuple[Floats, Floats]:
        before, after = np.array(pairs).T
        rows = self.covariance[after] - self.covariance[before]
        return self.mean[after] - self.mean[before], rows[:, after] - rows[:, before]

    def _measured_as(self, step: Step) -> None:
        """Make the difference of two levels what was measured side by side (Jeffrey's rule)."""
        before, after = self._ends[step]
        gain = self.covariance[:, after] - self.covariance[:, before]
        prior = float(gain[after] - gain[before])
        if prior <= 0:
            return
        gain, wanted = gain / prior, max(step.error**2, 1e-12 * prior)
        self.mean = self.mean + gain * (step.size - self.mean[after] + self.mean[before])
        self.covariance = self.covariance + np.outer(gain, gain) * (wanted - prior)

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
GONE, GONE_UNNAMED = 0.88, 0.95
"""P(nothing is left of an incident) from which it is recovered: the only one, or by a commit that
says it reverts one of its commits; and one of several by another commit. The latter at .9 was the
wrong one, or half a fix, in 36 of 1,000 lives, at .96 in 14 (benchmarks/statistics.md)."""
MORE_GONE_THAN_LEFT = 3.0
"""Standard errors by which more than half of a rise must be gone before it is called recovered.
Without it half-mended ones were called good about once in 60 simulated lives."""
PARTLY = 0.95
"""P(some of an incident is gone) from which it is partly mended. Of the only one P(some is gone and
some is left) from KEPT on will do, or that most of what rose fell and it is not likelier that all
is gone: else the fall is an improvement, and the level is the same."""
ONE_SIDED = 1.64
"""Standard errors by which a step must differ from nothing (one-sided 95 %)."""

ONE, LIKELIEST = 0.3, 0.3
"""Prior that a fall mends one incident: spread over all, and for the likeliest (one that is partly
mended already, else the newest)."""
SEVERAL, NEWEST = 0.2, 0.15
"""Prior that it mends several; and, /n, of the newest k of n together (a branch reverted)."""
PART, PARTS = 0.05, 4
"""Prior of each part of one incident (in quarters), divided by the number of open ones."""
WITHIN_PART = 1 / PARTS / math.sqrt(12)
"""Standard deviation of a share that is uniform over a quarter: parts are rarely exact quarters."""
WANTED = 0.15
"""Odds that it mends an incident that a person accepted, against one that nobody did."""
NOBODYS = 0.1
"""Prior that it is an improvement of its own, or that other metrics improve beside a mend; sizes
are log-uniform over a factor of 27."""
LOG_IMPROVED = math.log(NOBODYS * 2 / math.log(27))
ALIKE = 0.02
"""A mend need not return to the level exactly: sd of what remains, share of the incident's size."""
LOG_EXACT = math.log(0.5)
"""Prior that it does return exactly, as a revert does, and that it does not. With the latter alone
a fall by the very sum of two rises was an improvement of its own with P = .1."""
SCALED, SCALE = 0.1, 0.25
"""Prior that what causes of one metric do depends on one another; by what share a mend's size then
differs from its rise's, at least. Where the newest are gone the level is that before them."""
LOG_FACTORS, LOG_OTHERWISE = math.log(0.75), math.log(0.25)
"""Prior that they then are factors, as of a loss: a mend divides by what its rise multiplied."""
UNDONE = 1e6
"""Likelihood ratio of a commit with the code, or with the bits, of before an incident. What was
re-used is proved, so it is as good as certain; a file that the trial's footprint lacks is left."""
MOST_STATES, MOST_OPEN = 80, 6
"""States that are kept; open incidents of which subsets are weighed (2^6 of them)."""
NEGLIGIBLE = math.log(1e-5)
_MULTIPLIER = 6364136223846793005  # of a linear congruential generator
SETTLED = 0.9999
"""P(nothing is left) from which an incident leaves the filter."""


@dataclass(frozen=True, slots=True)
class Rise:
    """An incident as the filter sees it: its steps by metric and its commits."""

    steps: Mapping[MetricKey, Step]
    first: int
    last: int
    was_recovered: bool
    is_accepted: bool = False
    tasks: frozenset[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", frozenset(key[:2] for key in self.steps))


@dataclass(slots=True)
class Fall:
    """Steps down of one metric or several whose sets share a commit. `taken`: the metrics of the
    incidents that it mended, of those that nobody accepted."""

    first: int
    last: int
    steps: dict[MetricKey, Step]
    taken: set[MetricKey] = field(default_factory=set)

    def likeliest(self) -> int:
        """Return the place at which it most probably shows first, by its clearest metric."""
        clearest = max(self.steps.values(), key=lambda s: -s.size / max(s.error, 1e-300))
        return min(max(clearest.likeliest, self.first), self.last)


@dataclass(slots=True)
class Mend:
    """The mend of a rise: `gone` is the probability that nothing is left of it; `closed` is where
    it, or the newest part, was mended, `since` where that became likelier than not; `parts` are
    where it was mended in part; `falls` are the steps that may have mended it; `over` are the
    metrics that were mended by themselves."""

    state: IncidentState = IncidentState.OPEN
    gone: float = 0.0
    closed: int | None = None
    since: int | None = None
    falls: dict[MetricKey, list[Step]] = field(default_factory=dict)
    over: Collection[MetricKey] = ()
    parts: tuple[int, ...] = ()


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
    alone: dict[int, dict[MetricKey, Mend]] = {i: {} for i in several}
    for key in sorted({k for i in several for k in rises[i].steps}):
        free = [f for f in falls if key in f.steps.keys() - f.taken]
        own = [s for s in steps[key] if s.size > 0 or any(s == f.steps[key] for f in free)]
        with_key = [i for i in waiting if key in rises[i].steps]
        one = [replace(rises[i], steps={key: rises[i].steps[key]}) for i in with_key]
        for i, mend in zip(with_key, _together(one, {key: own}, ratios, contrasts)[0], strict=True):
            if i in alone and mend.state is not IncidentState.OPEN and mend.closed is not None:
                alone[i][key] = mend
                for fall in free:
                    if rises[i].last < fall.first <= mend.closed:
                        fall.taken.add(key)
    for i, parts in alone.items():
        if not parts:
            continue
        over = [key for key, mend in parts.items() if mend.state is IncidentState.RECOVERED]
        *earlier, closed = sorted({m.closed for m in parts.values() if m.closed is not None})
        mends[i].parts += tuple(earlier)
        if len(over) == len(rises[i].steps):
            gone, was = min(m.gone for m in parts.values()), mends[i].parts
            mends[i] = Mend(IncidentState.RECOVERED, gone, closed, parts=was)
        else:  # beside metrics that are over it is not known what a fall of several took
            mends[i].state, mends[i].closed, mends[i].over = IncidentState.PARTLY, closed, over
            mends[i].falls = {key: parts[key].falls[key] for key in parts.keys() - over}
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
    risen = {key for rise in rises for key in rise.steps}
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
                mends[i] = replace(
                    mends[i], state=IncidentState.RECOVERED, gone=1.0, closed=place, since=None
                )
                filtered.drop_settled(mends)
            continue
        # A doubted fall of what did not rise is no improvement yet: it says nothing of a mend.
        telling = {k: s for k, s in falls[i].steps.items() if k in risen or s.probability >= OPEN}
        if not filtered.live or not telling:
            continue
        fall = replace(falls[i], steps=telling)
        live = [rises[j] for j in filtered.live]
        filtered.fall(fall, live, ratios)
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
        whole = np.full((len(self.states), 1), PARTS)
        self.states = np.hstack([self.states, whole])

    def gone(self, columns: Sequence[int]) -> list[tuple[float, float]]:
        """Return P(nothing is left), P(less than all is left) of some live rises."""
        chance, left = np.exp(self.weights), self.states[:, columns]
        gone, less = chance @ (left == 0), chance @ (left < PARTS)
        return list(zip(gone.tolist(), less.tolist(), strict=True))

    def fall(self, fall: Fall, rises: Sequence[Rise], ratios: MendRatios) -> None:
        """Weigh which rises the fall mended. Those of other tasks are not asked: nothing of them
        fell."""
        kept = self.weights >= NEGLIGIBLE
        self.states, self.weights = self.states[kept], self.weights[kept]
        columns = np.array(_asked(rises, fall), dtype=np.int64)
        left = self.states[:, columns]
        left = left * (np.cumsum(left[:, ::-1] > 0, axis=1)[:, ::-1] <= MOST_OPEN)
        asked = left.any(0)
        columns = columns[asked]
        if not len(columns):
            return
        lefts = [tuple(quarters) for quarters in left[:, asked].tolist()]
        hypotheses = {left: _hypotheses(left) for left in dict.fromkeys(lefts)}
        every, rest, is_whole, log = map(np.concatenate, zip(*hypotheses.values(), strict=True))
        rows = np.hstack([every, rest])
        first, same = _distinct(rows @ _factors(rows.shape[1]))
        near = [rises[column] for column in columns.tolist()]
        taken, rest = every[first], rest[first]
        is_accepted = np.array([rise.is_accepted for rise in near])
        whole, part = _log_ratios(fall, near, ratios) + np.log(WANTED) * is_accepted
        density, improved = _log_densities(fall, near, self.levels, taken / PARTS, rest)
        some = taken > 0
        log = log + np.where(is_whole, (some @ whole)[same], (some @ part)[same]) + density[same]
        is_nothing: Bools = ~np.any(some, 1)
        log[is_nothing[same]] = improved
        ends = np.cumsum([len(prior) for *_, prior in hypotheses.values()]).tolist()
        own = dict(zip(hypotheses, map(np.arange, [0, *ends[:-1]], ends), strict=True))
        which = np.concatenate([own[left] for left in lefts])
        parent = np.repeat(np.arange(len(lefts)), [len(own[left]) for left in lefts])
        total = self.weights[parent] + log[which]
        chance = np.exp(total - total.max())
        chance /= chance.sum()
        likely = chance > math.exp(2 * NEGLIGIBLE)
        self._keep_likeliest(parent[likely], columns, every[which[likely]], chance[likely])

    def drop_settled(self, mends: Sequence[Mend]) -> None:
        """Forget the rises of which nothing is left; their mends are final."""
        for k in range(len(self.live) - 1, -1, -1):
            mend = mends[self.live[k]]
            if mend.state is IncidentState.RECOVERED and mend.gone > SETTLED:
                del self.live[k]
                self.states = np.delete(self.states, k, axis=1)

    def _keep_likeliest(self, parent: Ints, columns: Ints, taken: Ints, chance: Floats) -> None:
        """Take quarters from states, add up those that are equal then, and keep the likeliest."""
        factors = _factors(self.states.shape[1])
        first, of_state = _distinct((self.states @ factors)[parent] - taken @ factors[columns])
        total = np.bincount(of_state, chance)
        best = np.argsort(-total, kind="stable")[:MOST_STATES]
        self.states = self.states[parent[first[best]]]
        self.states[:, columns] -= taken[first[best]]
        self.weights = np.log(total[best] / total[best].sum())


def _factors(columns: int) -> Ints:
    """Return what makes a hash of a row when multiplied with its columns and added up. Equal rows
    have equal hashes; np.unique of rows compares bytes, which takes a hundred times longer."""
    return np.asarray(np.cumprod(np.full(columns, _MULTIPLIER)))


def _distinct(hashes: Ints) -> tuple[Ints, Ints]:
    """Return where each distinct row is first, and which of these each row is."""
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    return first, which


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
    is_only = sum(mends[i].state is not IncidentState.RECOVERED for i in asked) == 1
    for i, (gone, less) in zip(asked, filtered.gone(columns), strict=True):
        rise, mend = rises[i], mends[i]
        mend.gone = gone
        if mend.state is IncidentState.RECOVERED:
            continue
        was = rise.was_recovered
        sets = (rise.first, rise.last), (fall.first, fall.last)
        undone = ratios.undoing(*sets, rise.tasks)
        until = fall.last if undone is None else undone  # code is known of measured commits alone
        names = ratios.naming(sets[0], (fall.first, until))
        names = undone if names is None else names
        is_undone = undone is not None or _undoes(fall, rise)  # whatever rose there is gone
        sure_fall = 1.0 if is_undone else fell
        is_kept = sure_fall >= KEPT and (
            mend.gone >= KEPT or (was and _is_no_higher(fall, rise, filtered.levels))
        )
        if not is_kept or mend.since is None or names is not None:
            mend.since = (fall.likeliest() if names is None else names) if is_kept else None
        is_over = is_kept
        if not was:
            is_over = sure_fall >= CLOSED and mend.gone >= GONE
            is_over = is_over and _is_mostly_gone(rise, mend, fall, filtered.levels)
        if is_over and (was or is_only or names is not None or mend.gone >= GONE_UNNAMED):
            mend.state = IncidentState.RECOVERED
            mend.closed = mend.since
            laid.append(i)
        elif sure_fall >= OPEN and (
            less >= PARTLY
            or (is_only and less - gone >= KEPT)
            or (is_only and gone < KEPT and _is_between(rise, mend, fall, filtered.levels))
        ):
            mend.state = IncidentState.PARTLY
            laid.append(i)
    # A fall that is laid to some incidents is no part of what the others lost.
    fall.taken.update(key for i in laid if not rises[i].is_accepted for key in rises[i].steps)
    for i in laid:
        if mends[i].state is IncidentState.PARTLY:
            mends[i].closed = fall.likeliest()
            mends[i].parts += (fall.likeliest(),)
    for i in laid or asked:
        for key, step in fall.steps.items():
            mends[i].falls.setdefault(key, []).append(step)


def _is_mostly_gone(
    rise: Rise, mend: Mend, fall: Fall, levels: Mapping[MetricKey, MetricLevels]
) -> bool:
    """Return True if with a fall surely more than half of a rise is gone."""
    falls = {k: [*mend.falls.get(k, ()), step] for k, step in fall.steps.items()}
    over_half = _standard_errors_over_half(rise, mend.falls | falls, levels)
    return over_half >= MORE_GONE_THAN_LEFT


def _is_between(
    rise: Rise, mend: Mend, fall: Fall, levels: Mapping[MetricKey, MetricLevels]
) -> bool:
    """Return True if all metrics of an incident fell, most of it is gone, and some is left."""
    return (
        rise.steps.keys() <= fall.steps.keys()
        and not _is_no_higher(fall, rise, levels)
        and _is_mostly_gone(rise, mend, fall, levels)
    )


def _is_no_higher(fall: Fall, rise: Rise, levels: Mapping[MetricKey, MetricLevels]) -> bool:
    """Return True if all metrics of an incident fell to the level of before or below. What is good
    again there does not become worse by a doubt about which commit it was that mended it."""
    return all(
        k in fall.steps
        and fall.steps[k].chain == step.chain
        and levels[k].since(step, fall.steps[k])[0][1] <= 0
        for k, step in rise.steps.items()
    )


def _undoes(fall: Fall, rise: Rise) -> bool:
    """Return True if all metrics of an incident fell to the very bits of before."""
    return all(k in fall.steps and fall.steps[k].undoes(step) for k, step in rise.steps.items())


def _standard_errors_over_half(
    rise: Rise, falls: Mapping[MetricKey, Sequence[Step]], levels: Mapping[MetricKey, MetricLevels]
) -> float:
    """Return by how many standard errors more than half of a rise is gone: by all that fell, or by
    the level after the last fall and before the rise, where one chain measured both."""
    fell, level = [], []
    for key, step in rise.steps.items():
        if key in falls:
            sizes = levels[key].sizes([step, *falls[key]])
            fell.append((step.size, sizes, np.append(-0.5, -np.ones(len(falls[key])))))
            if falls[key][-1].chain == step.chain:
                left = levels[key].since(step, falls[key][-1])
                level.append((step.size, left, np.array([0.5, -1.0])))
    return max(_standard_errors(fell), _standard_errors(level))


def _standard_errors(parts: Sequence[tuple[float, tuple[Floats, Floats], Floats]]) -> float:
    """Return the sum of some metrics' excesses in standard errors, each weighted by what it can
    tell. A part is a size, mean and covariance of a vector, and what to multiply it with."""
    total = variance = 0.0
    for size, (mean, covariance), share in parts:
        own = max(float(share @ covariance @ share), (1e-9 * size) ** 2, 1e-300)
        total += size / own * float(share @ mean)
        variance += size**2 / own
    return total / math.sqrt(variance) if variance else 0.0


@lru_cache(maxsize=1024)
def _hypotheses(left: tuple[int, ...]) -> tuple[Ints, Bools, Bools, Floats]:
    """Return the hypotheses about the rises of which some quarters are left: those that a fall may
    take, a row a hypothesis and a column a rise (the first one takes nothing); whether it leaves
    some of a rise; whether it takes all that is left of some rises, or a part of one; and the log
    prior (of the first one 0)."""
    rest = [k for k, quarters in enumerate(left) if quarters]
    own, is_whole, log_prior = _of_quarters(tuple(left[k] for k in rest))
    taken = np.zeros((len(own), len(left)), np.int64)
    taken[:, rest] = own
    return taken, taken < left, is_whole, log_prior


@lru_cache(maxsize=4096)
def _of_quarters(left: tuple[int, ...]) -> tuple[Ints, Bools, Floats]:
    """Return `_hypotheses` of rises of each of which something is left."""
    n = len(left)
    if not n:
        return np.zeros((1, 0), np.int64), np.zeros(1, dtype=bool), np.zeros(1)
    begun = [k for k, quarters in enumerate(left) if quarters < PARTS]
    likeliest = (begun or [n - 1])[-1]
    subsets = np.arange(1, 2**n)[:, None] >> np.arange(n) & 1
    count, first = subsets.sum(1), subsets.argmax(1)
    one = ONE / n + LIKELIEST * (first == likeliest)
    several = SEVERAL / max(2**n - 1 - n, 1) + NEWEST / n * (first == n - count)
    parts = [(k, part) for k, quarters in enumerate(left) for part in range(1, quarters)]
    taken = np.zeros((1 + len(subsets) + len(parts), n), np.int64)
    taken[1 : 2**n] = subsets * np.array(left)
    for row, (k, part) in enumerate(parts, 2**n):
        taken[row, k] = part
    prior = [1.0, *np.where(count == 1, one, several), *[PART / n] * len(parts)]
    return taken, np.arange(len(taken)) < 2**n, np.log(prior)


def _log_ratios(fall: Fall, rises: Sequence[Rise], ratios: MendRatios) -> Floats:
    """Return the log ratios of mending the whole and of mending a part: [2, rises]."""
    pairs = []
    for rise in rises:
        sets = (rise.first, rise.last), (fall.first, fall.last)
        is_undone = _undoes(fall, rise) or ratios.undoing(*sets, rise.tasks) is not None
        pairs.append((UNDONE, 1 / UNDONE) if is_undone else ratios.of(*sets))
    result: Floats = np.log(np.array(pairs)).T
    return result


def _log_normal(square: Floats, variance: Floats) -> Floats:
    """Return log of the normal density, of squared distances from the mean."""
    result: Floats = -0.5 * (square / variance + np.log(2 * math.pi * variance))
    return result


def _log_alike(square: Floats, variance: Floats, size: Floats) -> Floats:
    """Return log of the density of squared distances from a return to the level, exact or not."""
    exact, about = (_log_normal(square, variance + (share * size) ** 2) for share in (0.0, ALIKE))
    result: Floats = np.logaddexp(exact, about) + LOG_EXACT
    return result


def _log_densities(
    fall: Fall,
    rises: Sequence[Rise],
    levels: Mapping[MetricKey, MetricLevels],
    taken: Floats,
    rest: Bools,
) -> tuple[Floats, float]:
    """Return log P(the levels seen) of each hypothesis, that the shares of the rises that it takes
    are what fell, and of an improvement that mends nothing. Metrics of which a hypothesis takes
    nothing improved beside it, if they fell.

    Args:
        taken: [hypotheses, rises].
        rest: [hypotheses, rises]: whether something of a rise is left then.
    """
    keys = sorted(set(fall.steps) | {key for rise in rises for key in rise.steps})
    log_improved, least = np.empty((2, len(keys), 1))
    mean = np.empty((len(keys), len(rises) + 1))
    covariance = np.empty((len(keys), len(rises) + 1, len(rises) + 1))
    for k, key in enumerate(keys):
        fell = fall.steps.get(key)
        steps = [rise.steps.get(key) for rise in rises]
        mean[k], covariance[k] = levels[key].sizes([*steps, fell])
        unit = max(levels[key].unit, 1e-300)
        least[k] = 2 * (LEAST_LEVEL_ERROR * unit) ** 2  # also of a level that comes back bit by bit
        if fell is None:  # it fell by nothing, give or take a trial's noise
            covariance[k, -1, -1] += unit**2
            log_improved[k] = math.log(0.4 / unit)  # the mode of a normal density
        else:
            log_improved[k] = -math.log(2 * max(-fell.size, 1.5 * unit))
    shares = np.hstack([taken, np.ones((len(taken), 1))])
    size = mean[:, :-1] @ taken.T  # [metrics, hypotheses]
    variance = np.maximum(((shares @ covariance) * shares).sum(2), least)
    is_part = (taken > 0) & (taken < 1)
    variance += (mean[:, :-1] ** 2) @ (WITHIN_PART**2 * is_part.T)
    square = (mean @ shares.T) ** 2
    logs = _log_alike(square, variance, size)
    scaled = logs.copy()
    for k, key in enumerate(keys):
        own = [i for i, rise in enumerate(rises) if key in rise.steps]
        if not own or key not in fall.steps:
            continue
        fallen, is_alone = fall.steps[key], len(own) == 1
        risen = [rises[i].steps[key] for i in own]
        if not is_alone:
            reach = [
                max(SCALE, abs(fallen.before / s.after - 1)) if s.after else SCALE for s in risen
            ]
            error = taken[:, own] @ (mean[k, own] * reach)
            scaled[k] = _log_normal(square[k], variance[k] + error**2)
            factors = np.array([s.before / s.after if s.before * s.after > 0 else 1 for s in risen])
            due = fallen.before * (np.exp(taken[:, own] @ np.log(factors)) - 1)
            as_factors = _log_alike((mean[k, -1] - due) ** 2, variance[k], size[k])
            scaled[k] = np.logaddexp(scaled[k] + LOG_OTHERWISE, as_factors + LOG_FACTORS)
        # The oldest of which nothing is left and what came later are gone, the others are left.
        left = rest[:, own]
        oldest = left.sum(1)
        is_back = np.logical_and.accumulate(left, 1).sum(1) == oldest
        ways = [levels[key].left(s, fallen) if fallen.chain == s.chain else None for s in risen]
        is_back &= np.array([way is not None for way in (*ways, None)])[oldest] & (size[k] != 0)
        is_rest = is_back & (is_part[:, own] & ~left).any(1)  # how much was left is not measured
        above, spread = np.array([way or (0.0, 0.0) for way in (*ways, None)])[oldest].T
        back = _log_normal(above**2, spread + (ALIKE * size[k]) ** 2 + least[k])
        logs[k] = np.where(is_rest, back, logs[k])
        scaled[k] = np.where(is_rest if is_alone else is_back, back, scaled[k])
    beside = (size == 0) & np.array([key in fall.steps for key in keys])[:, None]
    parts = (~beside, logs), (~beside, scaled), (beside, logs), (beside, log_improved)
    alone, dependent, still, improved = (np.where(where, each, 0.0).sum(0) for where, each in parts)
    total = np.logaddexp(alone + math.log(1 - SCALED), dependent + math.log(SCALED))
    more = np.logaddexp(still, LOG_IMPROVED + improved)
    nothing = LOG_IMPROVED + float(log_improved.sum())
    return total + np.where(beside.any(0), more, 0.0), nothing
