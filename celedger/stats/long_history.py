"""Change points of long histories of one metric: an exact robust segmentation (`segments`), a
posterior for each candidate, and a Welch test that prunes what its neighbours do not support. Every
constant is from drift.md, section 4, where alternatives were measured.

The whole of a history is derived at every hundredth value only. In between, the noise and the old
changes are those of the last hundredth, and what is newer is derived with them: so the costly part
can be cached from one answer to the next, and answers are the same whether it was or not.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from celedger.stats import grouped, noise, segments, tails
from celedger.stats.grouped import Floats, Ints
from celedger.stats.noise import of_differences
from celedger.stats.tails import t_quantile, t_tail

STRIDE = 100
"""Values after which a long history is derived as a whole again; and values after a change with
which it is settled: that many more leave its probability and its 95 % set as they are."""

LIKELY = 0.5
"""Posterior probability from which a change is reported."""
SET_MASS = 0.95
PRUNED_ABOVE = 1e-4
SIDE = 120
"""Commits a side that the pruning test looks at."""
SIDE_DOF = 8.0
"""Weight, in degrees of freedom, of the general scale in a side's variance."""
WINSOR = 4.0
"""Scaled median absolute deviations at which a side's values are cut for the pruning test."""
WINDOW = 101
"""Commits over which the noise may be larger or smaller than elsewhere."""
QUANTILES = (40, 55, 70)
DEAD_ZONE = 0.25
"""Relative (log) change of the noise that is taken for chance, at least."""
PASSES = 3
SEED = 12345  # of the shuffle that shows the local scale's own chance


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A change by position among the values at hand, not yet among the commits."""

    index: int
    probability: float
    members: tuple[int, ...]  # the 95 % set


@dataclass(frozen=True, slots=True)
class Settled:
    """What a long history is at its last hundredth value: its changes; the sd that is
    told; the law of the noise (degrees of freedom and cap of the loss, autocorrelation); and the
    scale of each of the last STRIDE + REACH values."""

    points: tuple[ChangePoint, ...]
    sd: float
    nu: float
    cap: float
    rho: float
    scale: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LongHistory:
    """A long history. `within`: the variance within commits, up to the one of each value."""

    values: Floats
    counts: Ints
    within: Floats

    def until(self, end: int) -> LongHistory:
        return LongHistory(self.values[:end], self.counts[:end], self.within[:end])

    @property
    def settled_at(self) -> int:
        n = self.values.size
        return n - n % STRIDE if n >= 2 * STRIDE else n

    def digest(self) -> str:
        """Return a hash of the values and of the method."""
        text = hashlib.blake2b(_method(), digest_size=16)
        for array in (self.values, self.counts.astype(np.int64), self.within[-1:]):
            text.update(array.tobytes())
        return text.hexdigest()


@lru_cache
def _method() -> bytes:
    """Return a hash of the source code that turns values into `Settled`: whoever changes a line of
    it derives them anew."""
    code = hashlib.blake2b(digest_size=16)
    for module in (grouped, noise, segments, tails):
        code.update(Path(str(module.__file__)).read_bytes())
    code.update(Path(__file__).read_bytes())
    return code.digest()


def long_changes(
    series: Sequence[LongHistory], cache: MutableMapping[str, Settled]
) -> list[tuple[tuple[ChangePoint, ...], float]]:
    """(changes, sd) of each series: those of its last hundredth value, and what came since."""
    old = [each.until(each.settled_at) for each in series]
    names = [each.digest() for each in old]
    missing = [i for i, name in enumerate(names) if name not in cache]
    derived = _derive([old[i] for i in missing])
    cache.update(zip((names[i] for i in missing), derived, strict=True))
    answers = [cache[name] for name in names]
    points = [answer.points for answer in answers]
    grown = [i for i, each in enumerate(series) if each.values.size > each.settled_at]
    recent = _recent([series[i] for i in grown], [answers[i] for i in grown])
    for i, more in zip(grown, recent, strict=True):
        points[i] = more
    return [(own, answer.sd) for own, answer in zip(points, answers, strict=True)]


@dataclass(slots=True, eq=False)
class _Fit:
    """A series under segmentation. `sd` and `scale` follow the law of the noise as it is refitted;
    `n` is the length of the whole history, of which `x` may be the end."""

    x: Floats
    scale: Floats
    rho: float
    n: int
    sd: float = math.nan
    loss: segments.Loss = field(default_factory=segments.Loss)
    changes: tuple[int, ...] = ()
    passes: int = 0

    @property
    def penalty(self) -> float:
        return _penalty(self.n, self.loss.nu, self.rho)

    @property
    def normal_sd(self) -> float:
        """Return the Student scale as the sd of the normal law with its interquartile range."""
        if self.sd == 0:
            return 0.0
        return self.sd * t_quantile(0.75, self.loss.nu) / NormalDist().inv_cdf(0.75)

    def grid(self, step: float) -> segments.Grid:
        return segments.Grid.of(self.x, self.scale, self.loss, step)

    def refit(self) -> bool:
        """Fit the law of the noise to what the changes leave; return False where it stays."""
        level = segments.level_of(self.x, self.scale, list(self.changes), self.loss)
        fresh, factor = segments.refit((self.x - level) / self.scale)
        if fresh == self.loss and abs(factor - 1) < 0.01:
            return False
        self.loss, self.scale, self.sd = fresh, self.scale * factor, self.sd * factor
        return True


def _derive(series: Sequence[LongHistory]) -> list[Settled]:
    """Segmentation, posterior, pruning: the whole of each series."""
    fits = [_first_fit(each) for each in series]
    pending = noisy = [fit for fit in fits if fit.sd > 0]
    while pending:
        before = [fit.changes for fit in pending]
        _segment(pending)
        pending = [
            fit
            for fit, changes in zip(pending, before, strict=True)
            if fit.passes < PASSES and (fit.passes == 1 or fit.changes != changes) and fit.refit()
        ]
    points = dict(zip(map(id, noisy), _believed(noisy), strict=True))
    return [
        Settled(
            points.get(id(fit), ()), fit.normal_sd, fit.loss.nu, fit.loss.cap, fit.rho,
            tuple(fit.scale[-STRIDE - segments.REACH :].tolist()),
        )
        for fit in fits
    ]  # fmt: skip


def _recent(
    series: Sequence[LongHistory], settled: Sequence[Settled]
) -> list[tuple[ChangePoint, ...]]:
    """The changes of each series that has grown since: the old ones whose surroundings are as they
    were; and those after the last of them, by the law of the noise of that time."""
    fits, old, firsts = [], [], []
    for each, answer in zip(series, settled, strict=True):
        n, end = each.values.size, each.settled_at
        stays = [f for f in answer.points if f.index <= end - STRIDE]
        first = max(stays[-1].index if stays else 0, end - STRIDE - segments.REACH)
        scale = np.array(answer.scale)[first - end :]
        fits.append(
            _Fit(
                each.values[first:],
                np.concatenate((scale, np.repeat(scale[-1], n - end))),
                answer.rho, n, answer.sd, segments.Loss(answer.nu, answer.cap),
            )
        )  # fmt: skip
        old.append(stays)
        firsts.append(first)
    noisy = [fit for fit in fits if fit.sd > 0]
    _segment(noisy)
    fresh = dict(zip(map(id, noisy), _believed(noisy), strict=True))
    return [
        (*stays, *(_moved(f, first) for f in fresh.get(id(fit), ())))
        for fit, stays, first in zip(fits, old, firsts, strict=True)
    ]


def _moved(point: ChangePoint, by: int) -> ChangePoint:
    return ChangePoint(point.index + by, point.probability, tuple(m + by for m in point.members))


def _segment(fits: Sequence[_Fit]) -> None:
    grids = [fit.grid(segments.FINE) for fit in fits]
    changes = segments.segment(grids, [fit.penalty for fit in fits])
    for fit, own in zip(fits, changes, strict=True):
        fit.changes, fit.passes = tuple(own), fit.passes + 1


def _first_fit(series: LongHistory) -> _Fit:
    sd, scale, rho = _scales(series.values, series.counts, float(series.within[-1]))
    return _Fit(series.values, scale, rho, series.values.size, sd)


def _penalty(n: int, nu: float, rho: float, extra: float = 1.0) -> float:
    """What a change costs: 2 log n + extra on normal noise; its quantile carried over to the
    Student loss, whose tails the noise may have; more where neighbours resemble each other."""
    beta = 2 * math.log(n) + extra
    tail = t_quantile(NormalDist().cdf(math.sqrt(beta)), 0.4 * n)
    return tail**2 * (1 + rho) / (1 - rho)


def _scales(x: Floats, counts: Ints, within: float) -> tuple[float, Floats, float]:
    """(general sd, sd of each commit's value, first autocorrelation of the noise)"""
    n = x.size
    differences = np.abs(np.diff(x))
    sd = of_differences(differences)
    if sd == 0:
        return 0.0, np.zeros(n), 0.0
    random = np.random.default_rng(SEED)
    local = _local_logs(differences, sd)
    chance = float(np.std(_local_logs(random.permutation(differences), sd)))
    zone = max(DEAD_ZONE, 3 * chance)
    local = np.sign(local) * np.maximum(np.abs(local) - zone, 0)
    padded = np.concatenate((local[:1], local))  # a difference belongs to its later commit
    half = WINDOW // 2
    earlier = np.concatenate((np.repeat(padded[0], min(half, n)), padded))[:n]
    later = np.concatenate((padded, np.repeat(padded[-1], min(half, n))))[-n:]
    scale = sd * np.exp(np.maximum(padded, np.maximum(earlier, later)))
    rho = _autocorrelation(x)
    scale /= math.sqrt(1 - rho)
    if counts.min() != counts.max() and within > 0:  # more trials, less noise
        extra = within * (1 / counts - float(np.median(1 / counts)))
        scale = np.sqrt(np.maximum(scale**2 + extra, (scale / 3) ** 2))
    return sd / math.sqrt(1 - rho), scale, rho


def _autocorrelation(x: Floats) -> float:
    """First autocorrelation of the noise as differences at several lags show it, less its chance;
    0 where it is not evident. var(x[t+k] - x[t]) is 2 (1 - rho^k). Long lags are sharper, short
    ones cross fewer steps: the smaller answer counts, or a history of many steps would look
    like one of noise that remembers."""
    one, two = (float(np.median(np.abs(x[k:] - x[:-k]))) for k in (1, 2))
    far = float(np.median(np.concatenate([np.abs(x[k:] - x[:-k]) for k in (3, 4, 5, 6)])))
    if one == 0 or far == 0:
        return 0.0
    rho = min(1 - (one / far) ** 2, (two / one) ** 2 - 1) - 2 / math.sqrt(x.size)
    return min(0.9, max(0.0, rho))


def _local_logs(differences: Floats, sd: float) -> Floats:
    """log of the rolling scale over the general one."""
    from scipy.ndimage import percentile_filter  # not where all that is old was kept

    size = min(WINDOW, differences.size)
    normal = np.mean([NormalDist().inv_cdf((1 + q / 100) / 2) for q in QUANTILES]) * math.sqrt(2)
    rolling = np.mean(
        [percentile_filter(differences, q, size=size, mode="reflect") for q in QUANTILES], axis=0
    )
    logs: Floats = np.log(np.maximum(rolling / normal / sd, 1e-3))
    return logs


def _believed(fits: Sequence[_Fit]) -> list[tuple[ChangePoint, ...]]:
    """The candidates of each series whose posterior probability is LIKELY at least, at their most
    probable commit, with the 95 % set; pruned."""
    some = [fit for fit in fits if fit.changes]
    grids = [fit.grid(segments.COARSE) for fit in some]
    masses = segments.change_mass(grids, [fit.changes for fit in some])
    points = {
        id(fit): _pruned(fit.x, fit.scale, _likely(own))
        for fit, own in zip(some, masses, strict=True)
    }
    return [points.get(id(fit), ()) for fit in fits]


def _likely(masses: Sequence[tuple[int, Floats]]) -> list[ChangePoint]:
    points = []
    for first, mass in masses:
        probability = min(1.0, float(mass.sum()))
        if probability >= LIKELY:
            members = first + smallest_set(mass / mass.sum())
            points.append(
                ChangePoint(first + int(mass.argmax()), probability, tuple(members.tolist()))
            )  # fmt: skip
    return points


def smallest_set(share: Floats) -> Ints:
    """The fewest positions that hold SET_MASS of a probability distribution."""
    order = np.argsort(-share, kind="stable")
    needed = int(np.searchsorted(np.cumsum(share[order]), SET_MASS * (1 - 1e-12))) + 1
    return np.sort(order[:needed])


def _pruned(x: Floats, scale: Floats, candidates: list[ChangePoint]) -> tuple[ChangePoint, ...]:
    """Without the changes that the values next to them do not support, the weakest first."""
    points = list(candidates)

    def strength(i: int) -> float:
        a = points[i - 1].index if i > 0 else 0
        b = points[i + 1].index if i + 1 < len(points) else x.size
        return _welch(x, scale, a, points[i].index, b)

    p_values = [strength(i) for i in range(len(points))]
    while points:
        weakest = int(np.argmax(p_values))
        if p_values[weakest] < PRUNED_ABOVE:
            break
        del points[weakest], p_values[weakest]
        for i in (weakest - 1, weakest):
            if 0 <= i < len(points):
                p_values[i] = strength(i)
    return tuple(points)


def _welch(x: Floats, scale: Floats, a: int, at: int, b: int) -> float:
    """p-value of a change at `at` from the values of its two segments."""
    means, errors, dofs = [], [], []
    for part in (slice(max(a, at - SIDE), at), slice(at, min(b, at + SIDE))):
        side, general = x[part], median(scale[part])
        middle = median(side)
        reach = WINSOR * max(1.4826 * median(np.abs(side - middle)), 0.5 * general)
        side = np.clip(side, middle - reach, middle + reach)
        squares = float(((side - side.mean()) ** 2).sum()) + SIDE_DOF * general**2
        dof = side.size - 1 + SIDE_DOF
        means.append(float(side.mean()))
        errors.append(squares / dof / side.size)
        dofs.append(dof)
    error = sum(errors)
    dof = error**2 / sum(e * e / d for e, d in zip(errors, dofs, strict=True))
    return 2 * t_tail(abs(means[1] - means[0]) / math.sqrt(error), dof)


def median(values: Floats) -> float:
    """`np.median`, which for a few values costs five times as much."""
    low, high = (values.size - 1) // 2, values.size // 2
    ordered = np.partition(values, (low, high))
    return float(ordered[low] + ordered[high]) / 2
