"""The noise of a task's metrics, from repeats of the same code only.

Lives here: the distribution of one trial around its level (a t core, far outliers, and a one-sided
second mode for trainings that sometimes collapse; benchmarks/statistics.md, "The state", has the
measurements); the likelihood of groups of repeats, their common level integrated out, as tables
over standard deviations and shapes that add up; the noise itself, with the effect of a session and
of a trial's place in it. Differences between commits never enter: they are what is in question."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from celedger.stats import Bools, Floats, Ints, begins_run
from celedger.stats.course import CommitNodes
from celedger.stats.tails import log_gamma

CORE_FREEDOM = 8.0
"""Of the core: noise of trainings has heavier tails than a normal distribution."""
SESSION_FREEDOM = 5.0
"""Of means of a session, which hold outliers of several trials."""
ONE = np.ones(1, dtype=np.int64)  # trial
OUTLIER_SCALE = 6.0
"""Of the Cauchy distribution of outliers. A density that is uniform in standard deviations would
grow without bound as the deviation falls to 0, and everything would be an outlier."""
OUTLIER_SHARES = (0.005, 0.03, 0.10)
OUTLIER_PRIOR = (0.0, -0.5, -1.0)  # logarithm
MODE_RATES = (0.05, 0.12, 0.25)
MODE_DISTANCES = (5.0, 8.5, 14.0, 24.0)
MODE_WIDENING = 0.3  # a mode at distance d has the variance 1 + (.3 d)^2
MODE_PRIOR = 1 / 3
"""Prior probability that there is a second mode."""
TABLE_REACH = 64.0  # beyond, a mode's density is nothing beside that of outliers
TABLE_STEP = 0.02

SHAPES: Floats = np.array(
    [(share, 0.0, 0.0) for share in OUTLIER_SHARES]
    + [(OUTLIER_SHARES[0], rate, d) for rate in MODE_RATES for d in MODE_DISTANCES]
)
"""A row a shape: share of outliers, rate of the second mode, its distance."""


def shape_prior(has_modes: bool) -> Floats:
    """Return the logarithm of the prior of each shape; without modes, of the first three."""
    plain = np.array(OUTLIER_PRIOR)
    if not has_modes:
        return plain
    plain = np.exp(plain) / np.exp(plain).sum() * (1 - MODE_PRIOR)
    modes = len(SHAPES) - len(plain)
    prior: Floats = np.log(np.concatenate([plain, np.full(modes, MODE_PRIOR / modes)]))
    return prior


def core(z: Floats) -> Floats:
    """Return the density of Student's t with `CORE_FREEDOM`."""
    constant = math.gamma(4.5) / math.gamma(4.0) / math.sqrt(8.0 * math.pi)
    w = 1 + z * z / CORE_FREEDOM
    square = w * w
    result: Floats = constant / (square * square * np.sqrt(w))  # w ** 4.5
    return result


def mean_core(z: Floats, trials: Ints) -> Floats:
    """Return the density of a mean of so many trials, or of the difference of two: Student's t
    whose excess kurtosis, 6 / (freedom - 4), is a trial's divided by their number.

    Args:
        trials: One dimension less than `z` has, or a dimension of 1: broadcast against it.
    """
    freedom = SESSION_FREEDOM - 1.0 + trials
    log_gammas = log_gamma((freedom + 1) / 2) - log_gamma(freedom / 2)
    constant = np.exp(log_gammas - np.log(freedom * math.pi) / 2)
    w = 1 + z * z / freedom
    cube = w * w * w
    more = (freedom + 1) / 2 - 3  # none for one trial
    if more.any():
        first = float(more.flat[0])
        cube *= w ** (first if (more == first).all() else more)
    result: Floats = constant / cube
    return result


def mean_outliers(share: float, trials: Ints) -> Floats:
    """Return the probability that a mean of so many trials is an outlier. Of three and more, the
    middle is one only if half of them are."""
    half = np.ceil(trials / 2)
    result: Floats = share / 2 * np.where(trials > 2, share ** (half - 1), 1.0)
    return result


def outlier(z: Floats) -> Floats:
    result: Floats = 1 / (OUTLIER_SCALE * math.pi * (1 + (z / OUTLIER_SCALE) ** 2))
    return result


@cache
def mode_tables() -> Floats:
    """Return the density of each second mode on the table's points: a row a distance."""
    z = np.arange(-TABLE_REACH, TABLE_REACH + TABLE_STEP / 2, TABLE_STEP)
    rows = []
    for distance in MODE_DISTANCES:
        width = math.sqrt(1 + (MODE_WIDENING * distance) ** 2)
        rows.append(np.exp(-0.5 * ((z - distance) / width) ** 2) / width / math.sqrt(2 * math.pi))
    tables = np.array(rows)
    tables[:, [0, -1]] = 0.0
    return tables


def table_index(z: Floats) -> Ints:
    """Return the table's point nearest to each `z`; its ends stand for what lies beyond."""
    last = mode_tables().shape[1] - 1
    points = np.clip(z * (1 / TABLE_STEP) + (TABLE_REACH / TABLE_STEP + 0.5), 0, last)
    return points.astype(np.int64)


def modes_of(rates: Floats) -> Floats:
    """Return, on the table's points, the density of the second modes together, given the rate of
    each shape."""
    total = np.zeros(mode_tables().shape[1])
    for (_, _, distance), rate in zip(SHAPES, rates, strict=True):
        if distance:
            total += rate * mode_tables()[MODE_DISTANCES.index(distance)]
    return total


# --- what repeats say: tables over deviations and shapes

LOG_SD_STEP = 0.2
LOG_SDS: Floats = np.arange(-16.0, 2.0 + LOG_SD_STEP / 2, LOG_SD_STEP)
"""Logarithm of the standard deviation over the metric's scale. e^-16: a ten-millionth; less is
exact for every purpose. e^2: metrics whose level is near 0."""
PLAIN = len(OUTLIER_SHARES)  # the shapes without a second mode
LARGEST_GROUP = 8
"""Larger groups are split: the cost grows with the square, the loss is one freedom a part."""
_AROUND: Floats = np.linspace(-4, 4, 21)  # levels around each value, in standard deviations
_NEAR = 1.5  # width of the share that a value has of the levels around it
_OFFSETS = np.concatenate([np.arange(-77, -25, 4), np.arange(-25, 15)])
"""Of the table's deviations: those around the group's own spread are integrated, and every fourth
below, where two near values and a second mode may explain a group. The others lie on the lines
between. Beyond the ends, the logarithm is linear: all values are one (above), or all but one are
outliers (below)."""
_PAIR_STEP = 0.05
_PAIR_LOW, _PAIR_HIGH = -6.0, 26.0  # log (difference / deviation); constant outside
_CHUNK = 2_000_000  # floats in memory


def _integral(values: Floats, sd: Floats, shapes: int) -> Floats:
    """Return the log likelihood of groups, their level integrated out.

    Args:
        values: A row a group.
        sd: For each group, deviations: [groups, deviations].
    Returns: [groups, deviations, shapes].
    """
    level = values[:, :, None, None] + sd[:, None, :, None] * _AROUND  # [B, n, S, U]
    z = (values.T[:, :, None, None, None] - level) / sd[:, None, :, None]  # [n, B, n, S, U]
    share = np.exp(-0.5 * (_AROUND / _NEAR) ** 2)
    weight = share / np.exp(-0.5 * (z / _NEAR) ** 2).sum(0)  # of overlapping neighbourhoods
    near, off, plain = core(z), outlier(z), {}
    if shapes > PLAIN:
        index = table_index(z)
        modes = [table[index] for table in mode_tables()]
    result = np.empty((len(values), sd.shape[1], shapes))
    for h, (far, rate, distance) in enumerate(SHAPES[:shapes].tolist()):
        if (far, rate) not in plain:
            plain = {(far, rate): (1 - far - rate) * near + far * off}
        mixed = plain[far, rate]
        if rate:
            mixed = mixed + rate * modes[MODE_DISTANCES.index(distance)]
        result[..., h] = np.log((mixed.prod(0) * weight).sum((1, 3)) + 1e-300)
    spacing = _AROUND[1] - _AROUND[0]
    likelihood: Floats = result + np.log(spacing * sd)[..., None]
    likelihood -= values.shape[1] * np.log(sd)[..., None]
    return likelihood


@cache
def _pair_table(shapes: int) -> Floats:
    """Return the log likelihood of two values by log (difference / deviation), deviation 1."""
    differences = np.exp(np.arange(_PAIR_LOW, _PAIR_HIGH + _PAIR_STEP / 2, _PAIR_STEP))
    values = np.stack([np.zeros_like(differences), differences], 1)
    return _integral(values, np.ones((len(values), 1)), shapes)[:, 0]


def _pairs(differences: Floats, shapes: int) -> Floats:
    """Return the table of groups of two: it depends on |difference| / deviation only."""
    with np.errstate(divide="ignore"):
        logs = np.log(np.abs(differences))
    low = LOG_SDS[0] + _PAIR_LOW
    bins = np.rint((np.clip(logs, low, _PAIR_HIGH + LOG_SDS[0]) - low) / _PAIR_STEP)
    counts = np.bincount(bins.astype(np.int64))
    present = np.flatnonzero(counts)
    table = _pair_table(shapes)
    shift = np.rint((LOG_SDS - LOG_SDS[0]) / _PAIR_STEP).astype(np.int64)
    index = np.clip(present[None, :] - shift[:, None], 0, len(table) - 1)
    total: Floats = np.einsum("b,sbh->sh", counts[present].astype(np.float64), table[index])
    return total - len(differences) * LOG_SDS[:, None]


def _groups(values: Floats, shapes: int) -> Floats:
    """Return the table of groups of one size, three or more: [groups, size] -> [S, shapes]."""
    total = np.zeros((len(LOG_SDS), shapes))
    count = values.shape[1]
    chunk = max(1, _CHUNK // (len(_OFFSETS) * len(_AROUND) * count * count))
    for at in range(0, len(values), chunk):
        part = values[at : at + chunk]
        spread = np.maximum(part.std(1), math.exp(LOG_SDS[0]))
        middle = np.rint((np.log(spread) - LOG_SDS[0]) / LOG_SD_STEP).astype(np.int64)
        sd = np.exp(LOG_SDS[0] + LOG_SD_STEP * (middle[:, None] + _OFFSETS))
        integrals = _integral(part, sd, shapes)
        wanted = np.arange(len(LOG_SDS)) - middle[:, None]
        left = np.clip(np.searchsorted(_OFFSETS, wanted, "right") - 1, 0, len(_OFFSETS) - 2)
        share = ((wanted - _OFFSETS[left]) / np.diff(_OFFSETS)[left])[..., None]
        below, above = (
            np.take_along_axis(integrals, i[..., None], axis=1) for i in (left, left + 1)
        )
        total += (below + share * (above - below)).sum(0)
    return total


def repeat_table(values: Floats, group: Ints, has_modes: bool) -> Floats:
    """Return the log likelihood of all groups by deviation and shape: [LOG_SDS, shapes].

    Args:
        values: Over the metric's scale.
        group: Of each value; equal ones are neighbours.
        has_modes: True to weigh the shapes with a second mode, too.
    """
    shapes = len(SHAPES) if has_modes else PLAIN
    total = np.zeros((len(LOG_SDS), shapes))
    starts = np.flatnonzero(begins_run(group))
    sizes = np.diff(np.append(starts, len(group)))
    parts = [
        (start + at, min(LARGEST_GROUP, size - at))
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        if size > 1
        for at in range(0, size, LARGEST_GROUP)
    ]
    for count in sorted({n for _, n in parts} - {1}):
        begins = np.array([start for start, n in parts if n == count])
        members = values[begins[:, None] + np.arange(count)]
        apart = members[:, 1] - members[:, 0]
        total += _pairs(apart, shapes) if count == 2 else _groups(members, shapes)
    return total


# --- how fine values are: counts and shares of a small data set are coarse

DIGITS = 6
"""Significant digits that a rounded value, or a share of a data set, may have."""
MOST_SAMPLES = 20_000
"""Size of a data set up to which a share of it is recognised."""
TIES = 0.75
"""With fewer distinct values than this share of the draws, the smallest gap is their resolution."""


def resolution(nodes: Sequence[Mapping[int, tuple[float, int]]]) -> float:
    """Return the distance of possible values; 0 where they are as fine as floating point.

    Where values are coarse (counts, shares of a small data set), two seeds move alike by chance.

    Args:
        nodes: Value of each seed at each node.
    """
    distinct = np.unique([value for node in nodes for value, _ in node.values()])
    if written := written_resolution(distinct):
        return written
    if len(distinct) > TIES * sum(map(len, nodes)):
        return 0.0
    seen: set[tuple[int, float]] = set()
    drawn = 0  # a seed that returns to a value is no new draw, nor are seeds of no effect
    for node in nodes:
        new = {(seed, value) for seed, (value, _) in node.items()} - seen
        drawn += len({value for _, value in new})
        seen |= new
    tied = 1 < len(distinct) <= TIES * drawn
    return float(np.diff(distinct).min()) if tied else 0.0


def written_resolution(distinct: Floats) -> float:
    """Return the distance of possible values that the digits of some tell, or a small data set of
    which they are shares; 0 where neither does."""
    with np.errstate(over="ignore"):
        is_single = bool(np.all(distinct == distinct.astype(np.float32)))
    some = distinct[:: max(1, len(distinct) // 8)].tolist()
    digits = [np.format_float_positional(np.float32(y) if is_single else y) for y in some]
    if max(len(text.replace(".", "").strip("-0")) for text in digits) <= DIGITS:
        return float(10.0 ** -max(len(text.partition(".")[2]) for text in digits))
    shares = [Fraction(y).limit_denominator(MOST_SAMPLES) for y in some]
    tolerance = 1e-7 if is_single else 1e-12
    if all(abs(float(s) - y) <= tolerance * abs(y) for s, y in zip(shares, some, strict=True)):
        samples = math.lcm(*(share.denominator for share in shares))
        if samples <= MOST_SAMPLES:
            return 1 / samples
    return 0.0


# --- the noise of a task's metrics

LEARNS_FROM_REPEATS = True  # the tests switch each part off, and see what it is for
HAS_SECOND_MODE = True
HAS_SESSION_EFFECT = True

RELATIVE_SD = 0.005
"""Centre of the prior of deviation / level; `LOG_SD_PRIOR` is the spread of its logarithm."""
LOG_SD_PRIOR = 1.5
METRICS_THAT_POOL = 4
"""From so many metrics with repeats on, centre and spread come from their own posteriors."""
LEAST_SPREAD = 0.7
LEAST_LOG_SD_ERROR = 0.03
TIE_SHARE = 0.4
"""Where values tie across repeats, the deviation is at least this share of their distance."""
ROUNDING = 1e-6  # two distances that differ by no more are equal
LOG_RATIOS: Floats = np.log(2.0 ** np.arange(-3, 18))
"""Of a session's deviation over a trial's; peak memory reaches 100 and more."""
LOG_RATIO_PRIOR = 1.7
USUAL_SESSION, LOG_SESSION_PRIOR = 0.2, 0.5
"""A session's deviation as a share of the level, beyond which the prior falls, and the spread of
its logarithm there. Without, a step of 14 times the level may be the machine's, however often it
is measured."""
LEAST_LOG_RATIO_ERROR = 0.05
OWN_SHARE = 0.8  # of the pooled posterior in the prior of a session's ratio; the rest is flat
LARGEST_RATIO = 64.0
"""A trial is taken to be no more exact than this share of its session's effect: levels finer than
that are known of no session."""
NO_RATIO = 0.05
WARM_UP = 3.0
"""A session's first trials are slower: by A exp(-rank / 3)."""
WARM_UP_PRECISION = 0.25  # the prior of A is two deviations wide


@dataclass(frozen=True, slots=True)
class NoisePoint:
    """A metric's noise as the passes take it. `modes` are the rates of the second mode by shape.
    The logarithms of ratios are of a session's deviation over a trial's; None for quality."""

    log_sd: float
    log_sd_error: float
    outliers: float
    modes: tuple[float, ...]
    log_ratio: float | None = None
    log_ratio_error: float = 0.0


def scale_of(values: Floats) -> float:
    """Return the typical size of the values, 1 if all are 0."""
    sizes = np.abs(values[values != 0])
    return float(np.median(sizes)) if len(sizes) else 1.0


def least_sd(nodes: CommitNodes, values: Floats) -> float:
    """Return the least deviation of a metric of few possible values, 0 for any other.

    The smallest distance of two values is that of possible ones where trials of one commit differ
    by it. Else a commit or a session may have made it, and how values are written tells.
    """
    order = np.lexsort((values, nodes.cell))
    own = np.diff(values[order])[np.diff(nodes.cell[order]) == 0]
    distinct = np.unique(values)
    if len(distinct) < 2 or own.all():
        return 0.0
    smallest = float(np.diff(distinct).min())
    if own[own > 0].min(initial=math.inf) > smallest * (1 + ROUNDING):
        smallest = min(smallest, written_resolution(distinct))
    return TIE_SHARE * smallest


def warmth(nodes: CommitNodes) -> Floats:
    """Return how cold each draw's session still was: 1 for its first trial, fading."""
    result: Floats = np.exp(-nodes.rank / WARM_UP)
    return result


def warm_up(nodes: CommitNodes, values: Floats) -> float:
    """Return by how much a session's first trial is slower, from repeats within sessions."""
    cold = warmth(nodes)
    own = cold - (np.bincount(nodes.cell, cold) / np.bincount(nodes.cell))[nodes.cell]
    return float(own @ values / (own @ own + WARM_UP_PRECISION))


def session_differences(nodes: CommitNodes, values: Floats) -> tuple[Floats, Floats]:
    """Return differences of one commit between sessions, and 1/n + 1/m of each.

    Sessions that follow one another find the machine in a similar state. Each is compared with the
    one half of the commit's sessions later, so that what is learned is how far levels may lie.
    """
    begins = np.flatnonzero(begins_run(nodes.cell))
    size = np.diff(np.append(begins, len(values)))
    mean = np.add.reduceat(values, begins) / size
    node = nodes.node[begins]
    count = np.bincount(node)[node]
    rank = np.arange(len(node)) - np.searchsorted(node, node)
    later = np.maximum(1, count // 2)
    i = np.flatnonzero(rank + later < count)
    j = i + later[i]
    return mean[j] - mean[i], 1 / size[i] + 1 / size[j]


def _posterior_of_sd(
    tables: Floats, log_level: Floats, has_repeats: Bools
) -> tuple[Floats, Floats, Floats]:
    """Return mean and error of log(sd / scale), and the weight of each shape, of each metric."""
    prior = shape_prior(tables.shape[2] > PLAIN)
    centre, spread = log_level + math.log(RELATIVE_SD), LOG_SD_PRIOR
    for _ in range(2):
        z = (LOG_SDS - centre[:, None]) / spread
        log = tables - 0.5 * (z**2)[..., None] + prior
        weight = np.exp(log - log.max((1, 2), keepdims=True))
        weight /= weight.sum((1, 2), keepdims=True)
        by_sd = weight.sum(2)
        mean = by_sd @ LOG_SDS
        variance = by_sd @ LOG_SDS**2 - mean**2
        if has_repeats.sum() < METRICS_THAT_POOL:
            break
        relative = (mean - log_level)[has_repeats]
        centre = log_level + float(np.median(relative))
        spread = max(LEAST_SPREAD, float(relative.std()))
    return mean, np.sqrt(np.maximum(variance, LEAST_LOG_SD_ERROR**2)), weight.sum(1)


def _posterior_of_ratio(
    sd: Floats, usual: Floats, differences: Sequence[tuple[Floats, Floats]]
) -> tuple[Floats, Floats]:
    """Return mean and error of log(session's deviation / trial's), pooled over the metrics. Beyond
    `usual` it is unusual."""
    excess = np.maximum(LOG_RATIOS - usual[:, None], 0.0)
    log = -0.5 * ((LOG_RATIOS / LOG_RATIO_PRIOR) ** 2 + (excess / LOG_SESSION_PRIOR) ** 2)
    for m, (difference, inverse) in enumerate(differences):
        scale = sd[m] * np.sqrt(inverse[:, None] + 2 * np.exp(2 * LOG_RATIOS))
        log[m] += np.log(mean_core(difference[:, None] / scale, ONE) / scale).sum(0)
    own = np.exp(log - log.max(1, keepdims=True))
    own /= own.sum(1, keepdims=True)
    if len(sd) > 1:
        own = own * (own.mean(0) * OWN_SHARE + (1 - OWN_SHARE) / len(LOG_RATIOS))
        own /= own.sum(1, keepdims=True)
    mean = own @ LOG_RATIOS
    variance = own @ LOG_RATIOS**2 - mean**2
    return mean, np.sqrt(np.maximum(variance, LEAST_LOG_RATIO_ERROR**2))


def posterior(
    tables: Floats,
    log_level: Floats,
    log_scale: Floats,
    least: Floats,
    has_repeats: Bools,
    is_share: Bools,
    differences: Sequence[tuple[Floats, Floats]] | None,
) -> list[NoisePoint]:
    """Return the noise of metrics of one kind: a row or a value of each argument a metric.

    Args:
        tables: Of `repeat_table`, summed over the groups of each metric.
        log_level: Of the metric's typical size over its scale.
        log_scale: Of the scale to which its table relates.
        least: Of `least_sd`.
        is_share: True where a deviation is a share of the level.
        differences: Of `session_differences`; None for quality.
    """
    if not LEARNS_FROM_REPEATS:
        tables = np.zeros_like(tables)
    mean, error, shapes = _posterior_of_sd(tables, log_level, has_repeats)
    log_sd = np.maximum(mean + log_scale, np.log(np.maximum(least, 1e-300)))
    known = SHAPES[: shapes.shape[1]]
    columns = [log_sd, error, shapes @ known[:, 0]]
    ratios: list[list[float]] = [[] for _ in log_sd]
    if differences is not None:
        log_ratio = np.full(len(tables), math.log(NO_RATIO))
        ratio_error = np.full(len(tables), LEAST_LOG_RATIO_ERROR)
        if HAS_SESSION_EFFECT:
            usual = np.where(is_share, math.log(USUAL_SESSION) - log_sd, math.inf)
            log_ratio, ratio_error = _posterior_of_ratio(np.exp(log_sd), usual, differences)
        excess = np.maximum(log_ratio - math.log(LARGEST_RATIO), 0.0)
        columns[0] = log_sd + excess
        ratios = np.stack([log_ratio - excess, ratio_error], 1).tolist()
    modes = map(tuple, (shapes * known[:, 1]).tolist())
    points = zip(*(column.tolist() for column in columns), modes, ratios, strict=True)
    return [NoisePoint(*point, *ratio) for *point, ratio in points]
