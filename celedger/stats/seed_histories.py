"""The likeliest histories of a metric that is a function of code and seed.

The value of seed i at node k of a line is

    y(k, i) = L(k) + u(i) + e

with L the level of the code, u what the seed adds, and e what differs between two trials of one
seed (rounding, where bits repeat). Between two nodes the level makes a step or not, and the seeds
are kept, moved each on its own, or drawn anew, as a refactor does that changes the order of random
numbers. One of them may go its own way, as a training that falls into another optimum; and some may
be untouched by all of this, the step too. A history is such a choice for each pair of neighbours.
Given a history all is normal, with covariances in proportion to the variance of a trial: so the
mean and the covariance of (L, u) are those of a Kalman filter in that unit, and the variance itself
is integrated out of the evidence. The likeliest histories are kept (a beam).

Lives here: the filter, and the levels of one history by least squares. It must not know trials,
places or commits; `seed_pairs.py` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from celedger.stats import Bools, Floats, Ints

RELATIVE_SD = 0.005, 1.5
"""Prior of a trial's standard deviation: median in shares of the level, and sd of its logarithm."""
STEP_SCALES = 4.0, 64.0, 1024.0, 16384.0
"""Standard deviations of a step, in those of a trial, equally likely: a regression of one sd and a
loss that diverges are both possible, and the latter does not widen the noise of all others."""
OWN_MOVES = 0.03, 0.3
"""Standard deviations of a seed's own move, in those of a trial, equally likely."""
AT_A_STEP = 0.2, 0.125, 0.375, 0.3
"""Probabilities that a step keeps the seeds (all move alike), moves each by the smaller or larger
scale, draws all anew. Few changes of a training act on all seeds alike to a hundredth of a sd."""
APART = 0.2
"""Share of larger moves and of draws in which one seed goes its own way."""
APART_VARIANCE = 1024.0
"""Of what that seed adds, in the variance of a trial. Without it one seed that trained badly widens
the noise of all others, and hides a step that they agree on."""
LEAST_AGREEING = 3
"""Seeds beside the one apart, at least: two agree too often by chance."""
UNTOUCHED = 0.2
"""Share of larger moves and of draws that leave some seeds, which do not meet what was changed."""
LEAST_TOUCHED = 2
"""Seeds beside the untouched ones, at least: one alone may go its own way."""
SAME = 4.0
"""Standard deviations within which a seed may be untouched."""
HABIT_COUNT, HABIT_COMMITS = 0.1, 1.5
"""Prior counts of what commits without a step do to the seeds: (re-draws + .1) / (commits + 1.5),
for moves the same."""
BEAM = 48
"""Histories kept: with 400 no probability of 40 simulated chains differs by more than .001."""
NEGLIGIBLE = 14.0
"""Histories less likely than the best by exp(14) are dropped at once: a doubt counts from .003."""
FLAT = 1e4
"""Prior variance of the first level, in that of a trial, about the first node's mean."""

_KEPT, _DRAW = 0, len(AT_A_STEP) - 1
_MOVED_APART, _MOVED_SOME, DRAWN, _DRAWN_APART, _DRAWN_SOME, _KINDS = 3, 4, 5, 6, 7, 8
_APART, _SOME = [_MOVED_APART, _DRAWN_APART], [_MOVED_SOME, _DRAWN_SOME]
_IS_APART, _IS_SOME = (np.isin(np.arange(_KINDS), kinds) for kinds in (_APART, _SOME))
_SPLIT = np.array([0, 1, 2, 2, 2, 3, 3, 3])  # of which kind each is a part
OWN_VARIANCES = np.array([0.0, *np.square(OWN_MOVES), *[OWN_MOVES[1] ** 2] * 2])
_STEP = np.array([0.0, *np.square(STEP_SCALES)])
_STEP_LOG_PRIOR = np.log(AT_A_STEP) - math.log(len(STEP_SCALES))


@dataclass(frozen=True, slots=True, eq=False)
class SeedTable:
    """The values of one chain, as the filter reads them.

    Attributes:
        nodes: Index of each node in the caller's sequence.
        gaps: Commits from the node before to this one; quiet: commits of the node that changed no
            bit.
        returns: For each node the last one before with the same bits, -1 if there is none.
        columns: For each node, where its seeds stand in the state (0 is the level). Those from
            `passing` on were measured at this node alone. A node that returns has new seeds alone.
        values, counts: Mean of each seed's trials at a node, and their number.
        tamed: The values, what diverged brought nearer.
        rounding: Standard deviation that the values' resolution adds.
        share: The seed's share of the variance.
    """

    nodes: tuple[int, ...]
    gaps: Ints
    quiet: Ints
    returns: tuple[int, ...]
    columns: tuple[Ints, ...]
    values: tuple[Floats, ...]
    tamed: tuple[Floats, ...]
    counts: tuple[Floats, ...]
    width: int
    passing: int
    centre: float
    level: float
    rounding: float
    share: float


@dataclass(slots=True, eq=False)
class Beam:
    """H histories and what the values say under each, in units of a trial's variance.

    Attributes:
        base: Log prior of the history less half the log determinant of the values' covariance.
        square: Sum of squares of the standardised innovations; `log_evidence` of both.
        mean, covariance: Of the level and the seeds at the present node.
        path: Index in `paths`: the nodes at which the level made a step.
        drawn: The node at which the seeds were drawn last.
        draws, moves, commits: What commits without a step did to the seeds, counted.
        kinds: What happened to the seeds at each node from `first` on, and which was apart (its
            column) or were untouched (a bit each, of column 1 the first), `kind + _KINDS * which`:
            [H, nodes].
        parents: For each node since `resumed` the history before that each one goes on.
        returned: What the nodes since `resumed` left that later ones have the bits of.
    """

    base: Floats
    square: Floats
    mean: Floats
    covariance: Floats
    path: Ints
    drawn: Ints
    draws: Floats
    moves: Floats
    commits: Floats
    log_evidence: Floats
    kinds: NDArray[np.int16]
    first: int = 0
    paths: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    resumed: int = 0
    parents: list[Ints] = field(default_factory=list)
    returned: dict[int, tuple[Floats, Floats, Ints]] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        """Return the number of nodes that were seen."""
        return self.first + int(self.kinds.shape[1])

    def forget(self, first: int) -> None:
        """Forget what happened to the seeds before node `first`."""
        self.kinds, self.first = self.kinds[:, first - self.first :], first

    def weights(self) -> Floats:
        """Return the histories' probabilities."""
        weight = np.exp(self.log_evidence - self.log_evidence.max())
        return np.asarray(weight / weight.sum(), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Scale:
    """Integrates a trial's standard deviation out, under a log-normal prior.

    `log_median` and `precision` are those of log sd, `lowest` the smallest possible log sd.
    """

    log_median: float
    precision: float
    lowest: float

    def mode(self, square: Floats, count: float) -> Floats:
        """Return the likeliest log sd, given the sum of squares of so many values.

        The derivative is zero where w + log w = k (Lambert's function), solved by Newton.
        """
        start = self.log_median - count / self.precision
        k = np.log(np.maximum(square, 1e-300) * 2 / self.precision) - 2 * start
        k = np.maximum(k, -600)  # w would underflow
        w = np.where(k > 1, k, np.exp(np.minimum(k, 1) - 0.5))
        for _ in range(5):
            w = w * (1 + k - np.log(w)) / (1 + w)
        return np.maximum(start + w / 2, self.lowest)

    def log_evidence(self, square: Floats, count: float) -> Floats:
        """Return the log of the integral by Laplace's method: its integrand has one maximum."""
        x = self.mode(square, count)
        misfit = square * np.exp(-2 * x)
        peak = -self.precision / 2 * np.square(x - self.log_median) - count * x - misfit / 2
        return np.asarray(peak - np.log(self.precision + 2 * misfit) / 2, dtype=np.float64)


def scale_of(table: SeedTable) -> Scale:
    lowest = max(table.rounding, 1e-6 * table.level)
    log_median = math.log(max(RELATIVE_SD[0] * table.level, lowest))
    return Scale(log_median, RELATIVE_SD[1] ** -2, math.log(lowest))


def advanced(
    beam: Beam,
    table: SeedTable,
    stop: int,
    hazard: float,
    spreads: Sequence[tuple[int, float]],
    size: int = BEAM,
) -> Beam:
    """Return the likeliest histories after the nodes up to `stop`, given those of the nodes before.

    Args:
        hazard: Prior probability that a commit makes a step.
        spreads: As `started` took them.
    """
    scale, targets = scale_of(table), set(table.returns)
    count = float(sum(freedom for freedom, _ in spreads)) - 1  # the first value sets the level
    count += sum(map(len, table.tamed[: beam.stop]))
    for k in range(beam.stop, stop):
        count += len(table.tamed[k])
        if k and table.returns[k] >= 0:
            _return(beam, k, table.returns[k])
            prior = _certain(_KEPT, len(beam.base))
        elif k:
            prior = _log_prior(beam, int(table.gaps[k]), hazard)
        else:
            prior = _certain(_DRAW, len(beam.base))
        variance = np.exp(2 * scale.mode(beam.square, max(count - len(table.tamed[k]), 1.0)))
        log_determinant, square, which = _predicted(beam, table, k, variance)
        prior = _split(prior, which > 0)
        base = (beam.base + prior - log_determinant / 2).ravel()
        square = (beam.square + square).ravel()
        log_evidence = base + scale.log_evidence(square, count)
        beam = _survivors(beam, table.share, k, base, square, log_evidence, which, size)
        _observe(beam, table, k)
        beam.commits += table.quiet[k]
        if k in targets:
            beam.returned[k] = beam.mean, beam.covariance, beam.drawn
    return beam


def started(table: SeedTable, spreads: Sequence[tuple[int, float]]) -> Beam:
    """Return what is known before the first node.

    Args:
        spreads: Degrees of freedom and sum of squares of seeds that other chains measured.
    """
    d, zeros, none = table.width, np.zeros(1), np.zeros(1, dtype=np.int64)
    square = np.full(1, sum(square for _, square in spreads))
    covariance = np.zeros((1, d, d))
    covariance[:, np.arange(d), np.arange(d)] = table.share
    covariance[:, 0, 0] = FLAT
    return Beam(
        zeros, square, np.zeros((1, d)), covariance, none, none,
        zeros, zeros, zeros, zeros, np.zeros((1, 0), dtype=np.int16),
    )  # fmt: skip


def _certain(kind: int, h: int) -> Floats:
    """Return the log prior of no step and one kind of move."""
    prior = np.full((len(_STEP), len(AT_A_STEP), h), -np.inf)
    prior[0, kind] = 0
    return prior


def _log_prior(beam: Beam, gap: int, hazard: float) -> Floats:
    """Return the log prior of each child: (step scale, kind of move, history).

    A commit without a step draws the seeds anew at least as often as one makes a step: however many
    commits changed no bit, the values of one seed do not tell a step from a new draw.
    """
    draw = np.maximum((beam.draws + HABIT_COUNT) / (beam.commits + HABIT_COMMITS), hazard)
    move = (beam.moves + HABIT_COUNT) / (beam.commits + HABIT_COMMITS)
    changed = np.minimum(draw + move, 1 - 1e-3)
    log_kept = gap * np.log1p(-changed)
    log_changed = np.log(-np.expm1(log_kept)) - np.log(draw + move)
    log_still = gap * math.log1p(-hazard)
    prior = np.empty((len(_STEP), len(AT_A_STEP), len(draw)))
    prior[0, _KEPT] = log_still + log_kept
    prior[0, _KEPT + 1 : _DRAW] = log_still + log_changed + np.log(move / len(OWN_MOVES))
    prior[0, _DRAW] = log_still + log_changed + np.log(draw)
    prior[1:] = (math.log(-math.expm1(log_still)) + _STEP_LOG_PRIOR)[:, None]
    return prior


def _split(prior: Floats, is_possible: Bools) -> Floats:
    """Return the log prior with kinds of their own for the share of larger moves and of draws in
    which one seed goes its own way, or some are untouched: [kinds, H] says where these may be."""
    split = prior[:, _SPLIT]
    apart, some = APART * is_possible[_APART], UNTOUCHED * is_possible[_SOME]
    with np.errstate(divide="ignore"):
        split[:, _APART] += np.log(apart)
        split[:, _SOME] += np.log(some)
    split[:, [_MOVED_APART - 1, DRAWN]] += np.log1p(-apart - some)
    return split


def _predicted(
    beam: Beam, table: SeedTable, k: int, variance: Floats
) -> tuple[Floats, Floats, Ints]:
    """Return log determinant and sum of squares of a node's values for each child, and for each
    kind and history the column of the seed that may be apart, or which may be untouched, 0 where
    there is none. `variance` is that of a trial under each history.

    A step adds a constant to the covariance of what it touches, so that all its scales follow from
    one elimination, of the errors and of a column of ones (the matrix determinant lemma).
    """
    at, values = table.columns[k], table.tamed[k]
    h, s = len(beam.base), len(values)
    residual = (1 - table.share) / table.counts[k]
    error = np.empty((_KINDS, h, s))
    error[DRAWN:] = (values - table.centre) - beam.mean[:, :1]
    error[:DRAWN] = error[DRAWN] - beam.mean[:, at]
    cross = beam.covariance[:, 0, at]
    level = beam.covariance[:, 0, 0, None, None]
    sigma = np.empty((_KINDS, h, s, s))
    sigma[DRAWN:] = level
    sigma[:DRAWN] = level + cross[:, :, None] + cross[:, None, :]
    sigma[:DRAWN] += beam.covariance[:, at[:, None], at]
    followed = at < table.passing
    kept = sigma[_KEPT][:, np.arange(s), np.arange(s)] + residual
    same = followed & (error[_KEPT] ** 2 <= SAME**2 * variance[:, None] * kept)
    error[_DRAWN_SOME] -= same * beam.mean[:, at]
    sigma[_DRAWN_SOME] += (same * cross)[:, :, None] + (same * cross)[:, None, :]
    sigma[_DRAWN_SOME] += same[:, :, None] * same[:, None, :] * beam.covariance[:, at[:, None], at]
    own = np.full((_KINDS, h, s), table.share)
    own[:DRAWN] = OWN_VARIANCES[:, None, None]
    own[_SOME] *= ~same
    diagonal = sigma[:, :, np.arange(s), np.arange(s)] + own + residual
    which = np.zeros((_KINDS, h), dtype=np.int64)
    some = same.any(1) & ((same != followed).sum(1) >= LEAST_TOUCHED)
    which[_SOME] = (same << np.where(followed, at - 1, 0)).sum(1) * some
    agreeing = followed.sum() - followed >= LEAST_AGREEING
    if agreeing.any():
        for kind in _APART:
            farthest = _farthest(error[kind], diagonal[kind])
            diagonal[kind, np.arange(h), farthest] += APART_VARIANCE * agreeing[farthest]
            which[kind] = at[farthest] * agreeing[farthest]
    sigma[:, :, np.arange(s), np.arange(s)] = diagonal
    log_determinant, errors, mixed, ones = (np.zeros((_KINDS, h)) for _ in range(4))
    one = np.ones((_KINDS, h, s))
    one[_SOME] -= same
    for i in range(s):
        pivot = sigma[:, :, i, i]
        e, o = error[:, :, i] / pivot, one[:, :, i] / pivot
        log_determinant += np.log(pivot)
        errors += e * error[:, :, i]
        mixed += e * one[:, :, i]
        ones += o * one[:, :, i]
        if i + 1 < s:
            below = sigma[:, :, i + 1 :, i]
            error[:, :, i + 1 :] -= below * e[:, :, None]
            one[:, :, i + 1 :] -= below * o[:, :, None]
            sigma[:, :, i + 1 :, i + 1 :] -= (
                below[..., None] * (below / pivot[..., None])[..., None, :]
            )
    step = _STEP[:, None, None]
    grown = 1 + step * ones
    return log_determinant + np.log(grown), errors - step * np.square(mixed) / grown, which


def _farthest(error: Floats, variance: Floats) -> Ints:
    """Return for each history which seed is farthest from what most of them say: [H, seeds]."""
    away = np.abs(error - np.median(error, axis=1, keepdims=True))
    return np.asarray(np.argmax(away / np.sqrt(variance), axis=1), dtype=np.int64)


def _survivors(
    beam: Beam,
    share: float,
    k: int,
    base: Floats,
    square: Floats,
    log_evidence: Floats,
    which: Ints,
    size: int,
) -> Beam:
    """Return the likeliest children before they see the values of node `k`.

    Histories with the same steps and last re-draw differ in what the present no longer
    shows: the likeliest stands for all, with the sum of their probabilities.
    """
    order = np.argsort(-log_evidence)[: 4 * size]
    order = order[log_evidence[order] > log_evidence[order[0]] - NEGLIGIBLE]
    h = len(beam.base)
    scale, kind, parent = order // (h * _KINDS), order // h % _KINDS, order % h
    drawn = np.where(kind >= DRAWN, k, beam.drawn[parent])
    key = (beam.path[parent] * 2 + (scale > 0)) * (k + 1) + drawn
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    total = np.bincount(group.ravel(), np.exp(log_evidence[order] - log_evidence[order[0]]))
    best = np.argsort(first)[:size]
    gained = np.log(total[best]) + log_evidence[order[0]] - log_evidence[order[first[best]]]
    chosen, scale, kind, parent = (x[first[best]] for x in (order, scale, kind, parent))
    still, of_kind = scale == 0, which[kind, parent]
    return Beam(
        base[chosen] + gained,
        square[chosen],
        *_moved(beam, share, scale, kind, parent, of_kind),
        _extended(beam, k, scale, parent),
        drawn[first[best]],
        beam.draws[parent] + (still & (kind >= DRAWN)) * (k > 0),
        beam.moves[parent] + (still & (kind > _KEPT) & (kind < DRAWN)),
        beam.commits[parent] + still * (k > 0),
        log_evidence[chosen] + gained,
        np.column_stack([beam.kinds[parent], (kind + _KINDS * of_kind).astype(np.int16)]),
        beam.first,
        beam.paths,
        beam.resumed,
        [*beam.parents, parent],
        beam.returned,
    )


def _extended(beam: Beam, k: int, scale: Ints, parent: Ints) -> Ints:
    """Return the index of each child's path. A new path is entered once, so that equal paths have
    equal indices."""
    before = beam.path[parent]
    path = before.copy()
    for old in np.unique(before[scale > 0]).tolist():
        beam.paths.append((*beam.paths[old], k))
        path[(scale > 0) & (before == old)] = len(beam.paths) - 1
    return path


def _return(beam: Beam, k: int, to: int) -> None:
    """Give each history the level and seeds of node `to`, whose bits node `k` has again.

    That is no chance: what was done since was undone, and a step since is followed by one back.
    """
    mean, covariance, drawn = beam.returned[to]
    which = np.arange(len(beam.base))
    for parent in reversed(beam.parents[to + 1 - beam.resumed :]):
        which = parent[which]
    beam.mean, beam.covariance, beam.drawn = mean[which], covariance[which], drawn[which]
    stepped = np.array([max(beam.paths[path], default=-1) > to for path in beam.path.tolist()])
    beam.path = _extended(beam, k, stepped.astype(np.int64), np.arange(len(which)))


def _untouched(kind: Ints, which: Ints, columns: int) -> Bools:
    """Return which columns of a state each change leaves as they were: [changes, columns]."""
    same = which[:, None] >> np.maximum(np.arange(columns) - 1, 0) & 1
    same[:, 0] = 0
    return _IS_SOME[kind][:, None] & (same > 0)


def _moved(
    beam: Beam, share: float, scale: Ints, kind: Ints, parent: Ints, which: Ints
) -> tuple[Floats, Floats]:
    """Return mean and covariance of the children before they see values."""
    mean, covariance = beam.mean[parent], beam.covariance[parent]
    same = _untouched(kind, which, mean.shape[1])
    stays = same | (kind < DRAWN)[:, None]
    stays[:, 0] = True
    mean *= stays
    covariance *= stays[:, :, None] & stays[:, None, :]
    seeds = np.arange(1, mean.shape[1])
    own = np.where(kind >= DRAWN, share, OWN_VARIANCES[np.where(kind >= DRAWN, _KEPT, kind)])
    covariance[:, seeds, seeds] += own[:, None] * ~same[:, 1:]
    alone = np.flatnonzero(_IS_APART[kind] & (which > 0))
    covariance[alone, which[alone], which[alone]] += APART_VARIANCE
    direction = -same.astype(float)  # what it leaves lies so much below the new level
    direction[:, 0] = 1
    covariance += _STEP[scale][:, None, None] * direction[:, :, None] * direction[:, None, :]
    return mean, covariance


def _observe(beam: Beam, table: SeedTable, k: int) -> None:
    """Update the beam's means and covariances by the values of node `k`, one after another: where
    bits repeat, their joint covariance is nearly singular."""
    mean, covariance = beam.mean, beam.covariance
    triples = zip(table.columns[k].tolist(), table.tamed[k], table.counts[k], strict=True)
    for at, value, number in triples:
        both = covariance[:, :, 0] + covariance[:, :, at]
        variance = both[:, 0] + both[:, at] + (1 - table.share) / number
        gain = both / variance[:, None]
        mean += gain * ((value - table.centre) - mean[:, 0] - mean[:, at])[:, None]
        covariance -= gain[:, :, None] * both[:, None, :]
    if (table.columns[k] >= table.passing).any():  # free for the next node
        passing = np.arange(table.passing, table.width)
        mean[:, passing] = 0
        covariance[:, passing] = 0
        covariance[:, :, passing] = 0
        covariance[:, passing, passing] = table.share


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """The levels of one history: mean and covariance, and the sd of a trial; `structure` has the
    nodes from the beam's first on, and `columns` those of their seeds."""

    mean: Floats
    covariance: Floats
    sd: float
    structure: _Structure
    columns: Sequence[Ints]

    def of_node(self, node: int) -> Floats:
        """Return the share of each level among the seeds of a node. One that returns may have no
        new seed."""
        while not len(self.columns[node]):
            node = self.structure.source[node]
        mean: Floats = self.structure.levels[node][self.columns[node]].mean(0)
        return mean


def levels(table: SeedTable, beam: Beam, which: int, spread: int = 0) -> Levels:
    """Return the levels that the values have under one history of the beam, by least squares, from
    the nodes from its first on.

    Args:
        spread: Degrees of freedom of the spreads that the beam was started with.
    """
    structure = _structure(table, beam, which)
    gram = _gram(table, structure)
    newest, size = structure.newest, len(gram) - 1
    covariance = np.linalg.inv(gram[:-1, :-1])
    nodes = slice(beam.first, beam.stop)
    at_node = np.repeat(np.arange(len(newest)), [len(ys) for ys in table.tamed[nodes]])
    values = np.concatenate(table.tamed[nodes])
    count = spread - 1 + sum(map(len, table.tamed[: beam.stop]))
    sd = math.exp(float(scale_of(table).mode(beam.square[which : which + 1], count)[0]))
    mean = table.centre + covariance @ gram[:-1, -1]
    beyond = np.concatenate(table.values[nodes]) - values
    if beyond.any():
        mean += [float(np.median(beyond[newest[at_node] == level])) for level in range(size)]
    errors = np.asarray(covariance * sd**2, dtype=np.float64)
    return Levels(mean, errors, sd, structure, table.columns[nodes])


@dataclass(frozen=True, slots=True, eq=False)
class _Structure:
    """What a history says of each node from `first` on, counted from it.

    Attributes:
        newest: Its newest level.
        levels: The sum of levels that the values of each column have, where a step leaves some
            seeds at that of before: [nodes, columns, levels].
        source: From which node its seeds come, -1 where all are drawn anew.
        stays: Which followed seeds come from there: [nodes, columns].
        moved: Variance of each followed seed's own move, or of its draw, in that of a trial; of a
            `passing` one that of its moves since the draw: [nodes, columns].
    """

    first: int
    newest: Ints
    levels: Floats
    source: list[int]
    stays: Bools
    moved: Floats
    passing: Floats


def _structure(table: SeedTable, beam: Beam, which: int) -> _Structure:
    path, share, first = beam.paths[beam.path[which]], table.share, beam.first
    of_kind, kinds = np.divmod(beam.kinds[which].astype(np.int64), _KINDS)
    same, drawn = _untouched(kinds, of_kind, table.width), kinds >= DRAWN
    drawn[0], every = True, np.arange(len(kinds))
    returns = np.array(table.returns[first : beam.stop])
    steps = np.isin(every + first, path) & (returns < 0)
    before = np.where(returns >= 0, returns - first, every - 1)
    source = np.where(drawn & ~same.any(1), -1, before)
    before[0] = source[0] = -1
    # Where nothing changes the levels, they are those of the last node at which something did.
    changes = drawn | steps | (returns >= 0)
    last = np.maximum.accumulate(np.where(changes, every, 0))
    newest, count = np.zeros(len(kinds), dtype=np.int64), 0
    levels = np.zeros((len(kinds), table.width, 1 + len(path)))
    levels[0, :, 0] = 1
    for at in np.flatnonzero(changes[1:]) + 1:
        old = last[before[at]]
        count += steps[at]
        newest[at] = count if steps[at] else newest[old]
        levels[at], touched = levels[old], ~same[at]
        if drawn[at]:
            levels[at, touched] = 0
        else:
            levels[at, touched, newest[old]] -= 1
        levels[at, touched, newest[at]] += 1
    newest, levels = newest[last], levels[last, :, : count + 1]
    spread = np.where(drawn, share, np.array([*OWN_VARIANCES, *[0.0] * (_KINDS - DRAWN)])[kinds])
    alone = np.zeros((len(kinds), table.width))
    apart = _IS_APART[kinds] & (of_kind > 0)
    alone[apart, of_kind[apart]] = APART_VARIANCE
    moved = (spread[:, None] * ~same + alone)[:, : table.passing]
    moves, sources = spread.tolist(), source.tolist()
    for k in np.flatnonzero(~drawn).tolist():
        moves[k] += moves[sources[k]]
    passing = np.array(moves)[:, None] + alone[:, table.passing :]
    stays = (same | ~drawn[:, None])[:, : table.passing]
    return _Structure(first, newest, levels, sources, stays, moved, passing)


def _gram(table: SeedTable, structure: _Structure) -> Floats:
    """Return the products, weighted by the inverse of the values' covariance, of the columns of the
    levels (which values have each) and of the values less the centre.

    What a seed adds is integrated out from the newest node to the oldest: a node's is that of the
    node it comes from, and its own move.
    """
    count, size = len(structure.source), structure.levels.shape[2]
    nodes = slice(structure.first, structure.first + count)
    columns = table.columns[nodes]
    at = np.repeat(np.arange(count), list(map(len, columns))), np.concatenate(columns)
    weight, every = np.zeros((count, table.width)), np.zeros((count, table.width, size + 1))
    weight[at] = np.concatenate(table.counts[nodes]) / (1 - table.share)
    every[..., :-1] = structure.levels
    every[*at, -1] = np.concatenate(table.tamed[nodes]) - table.centre
    gram = _products(every, weight)
    every *= weight[..., None]
    passing, spread = slice(table.passing, table.width), structure.passing
    own = weight[:, passing]  # of no other node, wherever its seeds come from
    gram -= _products(every[:, passing], spread / (1 + spread * own))
    # Nodes whose seeds only stay are one.
    origin, moves = list(range(count)), np.any(structure.moved, 1)
    for k, before in enumerate(structure.source):
        if before >= 0 and not moves[k]:
            origin[k] = origin[before]
    of_origin = np.eye(count)[origin].T  # [origins, nodes]
    weight = of_origin @ weight[:, : table.passing]
    every = np.tensordot(of_origin, every[:, : table.passing], 1)
    factor = np.zeros_like(weight)
    for k in sorted(set(origin), reverse=True):
        own, before = structure.moved[k], structure.source[k]
        shrunk = 1 / (1 + own * weight[k])
        factor[k] = own * shrunk
        if before >= 0:
            left = shrunk * structure.stays[k]
            weight[origin[before]] += weight[k] * left
            every[origin[before]] += every[k] * left[:, None]
    return gram - _products(every, factor)


def _products(columns: Floats, weight: Floats) -> Floats:
    """Return the weighted products of columns: [nodes, seeds, columns]."""
    flat = columns.reshape(-1, columns.shape[2])
    result: Floats = (flat * weight.reshape(-1, 1)).T @ flat
    return result
