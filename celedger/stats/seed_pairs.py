"""The steps of a metric whose value is a function of code and seed, read by equal seeds.

Lives here: which trials of a line are read, and what the likeliest histories of
`seed_histories.py` say of its steps. It must not know hashes, task names, or which change is worse
for the person.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from celedger.stats import Bools, Floats, Ints
from celedger.stats.course import Measurements, Node, Step, TrialNoise, ValueScale
from celedger.stats.seed_histories import (
    RELATIVE_SD,
    Beam,
    Levels,
    SeedTable,
    advanced,
    levels,
    started,
)
from celedger.stats.settled import EVERY, Checkpoint, Checkpoints, Kept
from celedger.stats.trial_noise import resolution

EXACT_SHARE = 1 - 1e-6
"""The seed's share of the variance where bits repeat: rounding leaves a thousandth of the sd."""
LARGEST_REST = 0.5
"""Share of a trial's variance that differs between two trials of one seed, where equal seeds are
read at most. Simulated, 7,200 commits of which one in ten draws its seeds anew, at shares of .02 to
.2: 5 false steps, 19 with .25, 71 where fresh seeds are read."""
USUAL = 2 / 3
"""Share of the commits that are taken to leave the seeds as they were."""
FEWEST_CONTRASTS = 4
"""Degrees of freedom of the differences that tell that share."""
FACTOR = 1.1
"""By which seeds differ where it may be that commits change their values by factors."""
RULE_SHARE, RULE_COMMITS = 0.7, 6
"""Re-draws are the rule from this share of so many commits on."""
MOST_SEEDS = 12
"""Seeds followed from node to node; the effort grows with their square."""
REACH = 4
"""Alternatives for the place of one step lie at most so many nodes apart."""
LEAST = 0.002
"""Steps less probable are not returned."""
COVERAGE = 0.95
"""Of the set of commits that may have made the step."""
LAG = 60
"""A step is settled when so many nodes were measured since, and a level is told by the nodes up to
so many before: seeds that were drawn anew since tell nothing of it."""
KEPT = 0.5
"""What is less probable by then was no step."""
EXPLAINED = 6
"""The size of a step is the mean over so many of the likeliest histories that have it."""
MOST_CHANGE = 100.0
"""For the evidence a value is at most so many levels away: how far a loss diverged does not tell
how much trials differ."""
LARGEST = 1e100
"""Values beyond have no squares to sum."""
PLAIN = ValueScale(0)

Mean = dict[int, tuple[float, int]]
"""Mean and number of a node's trials by seed."""


def paired_steps(
    measured: Measurements,
    nodes: Sequence[Node],
    noise: TrialNoise,
    *,
    hazard: float,
    checkpoints: Checkpoints | None = None,
) -> tuple[Step, ...] | None:
    """Return the steps of a metric as equal seeds tell them, oldest first.

    Args:
        nodes: Of all chains, oldest first in each. Trials of a node share their code's bits.
        noise: Its `is_exact` alone is read. How much seeds differ is learned from their values,
            and so is how much two trials of one seed differ, where bits do not repeat.
        hazard: Prior probability that a commit changes the level.
        checkpoints: Kept from call to call.

    Returns:
        None where equal seeds tell nothing or less than fresh ones: for values of sessions, where
        two trials of a seed differ much, where no two nodes share a seed, and where most commits
        draw all seeds anew.
    """
    if measured.has_sessions:
        return None
    rest = 0.0 if noise.is_exact else _rest(measured)
    if rest > LARGEST_REST:
        return None
    nodes = _with_reused(measured, nodes)
    means = _by_seed(measured, nodes)
    checkpoints = checkpoints or Checkpoints(Kept())
    ways = [_on_scale(measured, nodes, means, PLAIN, rest, hazard, checkpoints)]
    if (way := ways[0]) is not None and (sign := _sign(means)):
        label = replace(checkpoints, label=f"{checkpoints.label} in logarithms")
        scale = ValueScale(sign)
        ways.append(_on_scale(measured, nodes, means, scale, rest, hazard, label))
        way = max(filter(None, ways), key=lambda each: each[0])
    return None if way is None else way[1]


def _sign(means: Sequence[Mean]) -> int:
    """Return the sign of all values where seeds differ by a factor: what is worse may be so by a
    factor too, and not by a sum that is alike for all. 0 where it cannot be."""
    by_seed: dict[int, list[float]] = {}
    for mean in means:
        for seed, (value, _) in mean.items():
            by_seed.setdefault(seed, []).append(value)
    typical = np.array([float(np.median(values)) for values in by_seed.values()])
    signs = {math.copysign(1, y) if y else 0 for values in by_seed.values() for y in values}
    differ = np.abs(typical).max() > FACTOR * np.abs(typical).min()
    return int(signs.pop()) if len(signs) == 1 and differ else 0


def _on_scale(
    measured: Measurements,
    nodes: Sequence[Node],
    means: Sequence[Mean],
    scale: ValueScale,
    rest: float,
    hazard: float,
    checkpoints: Checkpoints,
) -> tuple[float, tuple[Step, ...]] | None:
    """Return the log evidence of the values on a scale, and the steps that they tell there."""
    by_chain: dict[int, list[int]] = {}
    for at, node in enumerate(nodes):
        if node.rows:
            by_chain.setdefault(node.chain, []).append(at)
    tables = [seed_table(measured, nodes, own, means, scale) for own in by_chain.values()]
    usable = [replace(t, share=min(t.share, 1 - rest)) for t in tables if t is not None]
    if not usable:
        return None
    scaled = [_scaled(mean, scale) for mean in means]
    spreads = {chain: _spread([scaled[at] for at in own]) for chain, own in by_chain.items()}
    steps: list[Step] = []
    evidence = draws = commits = 0.0
    for table in usable:
        chain = nodes[table.nodes[0]].chain
        others = [spread for other, spread in spreads.items() if other != chain]
        beam, own = _followed(table, nodes, hazard, others, checkpoints)
        weight = beam.weights()
        stepped = float(weight @ [len(beam.paths[path]) for path in beam.path])
        draws += float(weight @ beam.draws)
        commits += len(table.nodes) - 1 - stepped + float(table.quiet.sum())
        steps += (_with_unpaired(scale.step_in_unit(step), means) for step in own)
        evidence += float(np.logaddexp.reduce(beam.log_evidence))
        if scale.sign:  # the density of the values, not of their logarithms
            logs = scale.sign * np.concatenate(table.tamed)
            evidence -= float(logs.mean()) * (len(logs) - 1 + sum(free for free, _ in others))
    if commits >= RULE_COMMITS and draws > RULE_SHARE * commits:
        return None
    return evidence, tuple(sorted(steps, key=lambda step: (step.first, step.last, step.chain)))


def _scaled(mean: Mean, scale: ValueScale) -> Mean:
    if not scale.sign:
        return mean
    values = scale.values(np.array([value for value, _ in mean.values()])).tolist()
    counts = (count for _, count in mean.values())
    return dict(zip(mean, zip(values, counts, strict=True), strict=True))


def _with_unpaired(step: Step, means: Sequence[Mean]) -> Step:
    if not step.node:
        return step
    old, new = means[step.node - 1].keys(), means[step.node].keys()
    return step._replace(unpaired=(tuple(sorted(old - new)), tuple(sorted(new - old))))


def _followed(
    table: SeedTable,
    nodes: Sequence[Node],
    hazard: float,
    others: Sequence[tuple[int, float]],
    checkpoints: Checkpoints | None,
) -> tuple[Beam, list[Step]]:
    """Return a chain's likeliest histories and its steps. Steps that are long past are settled: no
    later value moves them, so that a checkpoint may stand for all before it."""
    spread, count = sum(freedom for freedom, _ in others), len(table.nodes)
    places = [nodes[at] for at in table.nodes]
    content = (hazard, tuple(others))
    checkpoints = checkpoints or Checkpoints(Kept())
    at = checkpoints.get(table, places, content)
    if at is None:
        at = Checkpoint(started(table, others), [], 0)
    stops = range((at.beam.stop // EVERY + 1) * EVERY, count - EVERY + 1, EVERY)
    for stop in stops:
        beam = advanced(at.beam, table, stop, hazard, others)
        at = Checkpoint(beam, at.steps, at.settled)
        if stop % LAG == 0 and stop - at.settled >= 2 * LAG:
            at = _settled(at, table, nodes, spread)
    later = None
    if stops:
        checkpoints.put(table, places, content, at)
    else:
        later = checkpoints.newest.get(table, places, content)
    at = later or at
    if at.beam.stop < count - 1:
        at = replace(at, beam=advanced(at.beam, table, count - 1, hazard, others))
        checkpoints.newest.put(table, places, content, at)
    beam = advanced(at.beam, table, count, hazard, others)
    steps = [*at.steps, *_steps(table, beam, nodes, spread, at.settled, count)]
    newest = max((step.node for step in steps), default=-1)
    return beam, [step._replace(is_newest=step.node == newest) for step in steps]


def _settled(at: Checkpoint, table: SeedTable, nodes: Sequence[Node], spread: int) -> Checkpoint:
    """Settle the steps before a node that is far from any, and forget the seeds long before it."""
    beam, weight = at.beam, at.beam.weights()
    mass = weight @ _has(beam, beam.stop)
    for end in range(beam.stop - LAG, beam.stop - LAG // 2):
        if mass[end - REACH : end + REACH].max() < LEAST:
            steps = _steps(table, beam, nodes, spread, at.settled, end)
            first = end - LAG
            while older := [to for to in table.returns[first:] if 0 <= to < first]:
                first = min(older)  # which may itself return to one before
            beam.forget(max(beam.first, first))
            sure = [step for step in steps if step.probability >= KEPT]
            return Checkpoint(beam, [*at.steps, *sure], end)
    return at


# What was measured


def _with_reused(measured: Measurements, nodes: Sequence[Node]) -> Sequence[Node]:
    """Return the nodes with the results that were re-used there, of seeds that have no trial of
    their own: by these bits a revert is known to be where the code was before, and a new seed of
    it says nothing against that."""
    reused: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(~measured.own).tolist():
        reused.setdefault((int(measured.chain[row]), int(measured.place[row])), []).append(row)
    if not reused:
        return nodes
    result, seed = [], measured.seed.tolist()
    for node in nodes:
        seeds = {seed[row] for row in node.rows}
        more = []
        for place in range(node.first, node.last + 1):
            for row in reused.get((node.chain, place), ()):
                if seed[row] not in seeds:
                    seeds.add(seed[row])
                    more.append(row)
        result.append(node._replace(rows=(*node.rows, *more)) if more else node)
    return result


def seed_table(
    measured: Measurements,
    nodes: Sequence[Node],
    members: list[int],
    known_means: Sequence[Mean] | None = None,
    scale: ValueScale = PLAIN,
) -> SeedTable | None:
    """Return a chain's table on a scale; None if no two nodes share a seed."""
    every = _by_seed(measured, nodes) if known_means is None else known_means
    means = [every[at] for at in members]
    nodes_of = Counter(seed for mean in means for seed in mean)
    repeated = sorted((s for s in nodes_of if nodes_of[s] > 1), key=lambda s: (-nodes_of[s], s))
    if not repeated:
        return None
    followed = {seed: 1 + at for at, seed in enumerate(sorted(repeated[:MOST_SEEDS]))}
    dropped = set(repeated[MOST_SEEDS:])
    passing = 1 + len(followed)
    pairs = [pair for pair in zip(members, means, strict=True) if not dropped.issuperset(pair[1])]
    members, means = [at for at, _ in pairs], [mean for _, mean in pairs]
    rounding = resolution(means) / math.sqrt(12)
    returns, known = _returns(measured, [nodes[at] for at in members], means, rounding == 0)
    if scale.sign:
        rounding /= abs(float(np.median([value for mean in means for value, _ in mean.values()])))
        means = [_scaled(mean, scale) for mean in means]
    gaps, quiet, width = [], [], passing
    flat: list[tuple[int, float, float]] = []
    offset = [0]
    newest, place = nodes[members[0]].first, measured.place.tolist()
    for at, mean, old in zip(members, means, known, strict=True):
        free = passing
        for seed, (value, number) in mean.items():
            if seed in dropped or seed in old:
                continue
            if seed in followed:
                flat.append((followed[seed], value, number))
            else:
                flat.append((free, value, number))
                free += 1
        width = max(width, free)
        offset.append(len(flat))
        node = nodes[at]
        gaps.append(max(1, node.first - newest))
        quiet.append(len({node.first, node.last, *(place[row] for row in node.rows)}) - 1)
        newest = node.last
    rows = np.array(flat).reshape(-1, 3)
    ranges = [slice(a, b) for a, b in pairwise(offset)]
    column = rows[:, 0].astype(np.int64)
    values, counts = (tuple(rows[r, i] for r in ranges) for i in (1, 2))
    centre = float(np.median(values[0]))
    level = abs(centre) or float(np.median(np.abs(rows[:, 1]))) or 1.0
    level = 1.0 if scale.sign else level
    every_tamed = np.clip(rows[:, 1], centre - MOST_CHANGE * level, centre + MOST_CHANGE * level)
    tamed = tuple(every_tamed[r] for r in ranges)
    return SeedTable(
        nodes=tuple(members),
        gaps=np.array(gaps),
        quiet=np.array(quiet),
        returns=returns,
        columns=tuple(column[r] for r in ranges),
        values=values,
        tamed=tamed,
        counts=counts,
        width=width,
        passing=passing,
        centre=centre,
        level=level,
        rounding=rounding,
        share=_share(tamed, rounding, level),
    )


def _returns(
    measured: Measurements, nodes: list[Node], means: list[dict[int, tuple[float, int]]], fine: bool
) -> tuple[tuple[int, ...], list[set[int]]]:
    """Return for each node the last one before with the same bits (-1: none), and the seeds that
    were measured there.

    Args:
        fine: Equal values are equal bits, where those are not known.
    """
    bits: list[dict[int, tuple[bool, float]]] = []
    seeds, numbers = measured.seed.tolist(), measured.bits.tolist()
    for node, mean in zip(nodes, means, strict=True):
        of_seed = {seed: (False, value) for seed, (value, _) in mean.items()} if fine else {}
        for row in node.rows:
            if numbers[row] >= 0:
                of_seed[seeds[row]] = (True, float(numbers[row]))
        bits.append(of_seed)
    returns: list[int] = []
    known: list[set[int]] = []
    latest: dict[tuple[int, tuple[bool, float]], int] = {}
    for k, here in enumerate(bits):
        returns.append(-1)
        known.append(set())
        candidates = {latest[of_seed] for of_seed in here.items() if of_seed in latest}
        for before in sorted(candidates, reverse=True):
            if all(here[seed] == bits[before].get(seed, here[seed]) for seed in here):
                returns[k], known[k] = before, known[before] | set(means[before])
                break
        latest |= dict.fromkeys(here.items(), k)
    return tuple(returns), known


def _rest(measured: Measurements) -> float:
    """Return which share of a trial's variance differs between two trials of one seed: the variance
    of how far seeds that neighbouring commits share moved, over that of the seeds of one commit.
    Means of the smaller ones, since some commits draw the seeds anew, or move each; infinity where
    too few tell it. With its error, up to a power of two: one more commit seldom moves it."""
    rows = np.flatnonzero(measured.own)
    seeds, column, trials = np.unique(measured.seed[rows], return_inverse=True, return_counts=True)
    most = np.argsort(-trials, kind="stable")[:MOST_SEEDS]
    place, places = measured.place[rows], int(measured.place.max()) + 1
    nodes, node = np.unique(measured.chain[rows] * places + place, return_inverse=True)
    cell, shape = node * len(seeds) + column, (len(nodes), len(seeds))
    clipped = measured.value[rows].clip(-LARGEST, LARGEST)
    sums, counts = (np.bincount(cell, w, math.prod(shape)) for w in (clipped, None))
    values = (sums / np.where(counts > 0, counts, np.nan)).reshape(shape)[:, most]
    is_next = nodes[1:] // places == nodes[:-1] // places
    moved = np.diff(values, axis=0)[is_next] / math.sqrt(2)
    freedom, of_one_seed = _typical_variance(moved)
    _, of_seeds = _typical_variance(values)
    if freedom < FEWEST_CONTRASTS or of_seeds <= 0:
        return math.inf
    rest = of_one_seed / of_seeds * (1 + math.sqrt(2 / freedom))
    return 2.0 ** math.ceil(math.log2(max(rest, 1 - EXACT_SHARE)))


def _typical_variance(values: Floats) -> tuple[int, float]:
    """Return degrees of freedom of the variances of rows, and the mean of the smaller ones. (The
    median of coarse values is often 0.) NaN stands for no value: [rows, values]."""
    freedom = (~np.isnan(values)).sum(1) - 1
    values, freedom = values[freedom > 0], freedom[freedom > 0]
    if not len(values):
        return 0, 0.0
    variance = np.sort(np.nanvar(values, axis=1) * (freedom + 1) / freedom)
    return int(freedom.sum()), float(variance[: math.ceil(len(variance) * USUAL)].mean())


def _by_seed(measured: Measurements, nodes: Sequence[Node]) -> list[Mean]:
    """Return mean and number of each node's trials by seed."""
    seeds = measured.seed.tolist()
    values = np.clip(measured.value, -LARGEST, LARGEST).tolist()
    result: list[Mean] = []
    for node in nodes:
        own = {seed: (value, 1) for seed, value in sorted((seeds[r], values[r]) for r in node.rows)}
        if len(own) == len(node.rows):
            result.append(own)
            continue
        rows: dict[int, list[float]] = {}
        for row in node.rows:
            rows.setdefault(seeds[row], []).append(values[row])
        result.append(
            {seed: (math.fsum(ys) / len(ys), len(ys)) for seed, ys in sorted(rows.items())}
        )
    return result


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squares about the mean."""
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


def _spread(means: Sequence[Mean]) -> tuple[int, float]:
    """Return degrees of freedom and sum of squares of the seeds of a typical node, of those that
    have most, to within a twentieth. Not of all: nodes may repeat each other's draw."""
    most = max(map(len, means))
    full = [_squares([y for y, _ in mean.values()]) for mean in means if len(mean) == most]
    return most - 1, _steady(float(np.median(full)))


def _steady(value: float) -> float:
    """Return a positive number to within a fortieth: one more commit seldom moves it."""
    return math.exp(round(math.log(value) / 0.05) * 0.05) if value > 0 else value


def _share(tamed: Sequence[Floats], rounding: float, level: float) -> float:
    """Return the seed's share of the variance: less than all where rounding adds its own to the
    values. Whole stretches of nodes tell how much these differ: with each new one, a share on the
    edge of two steps went to and fro, and all nodes were passed again."""
    if not rounding:
        return EXACT_SHARE
    whole = tamed[: len(tamed) // LAG * LAG or None]
    squares = sum(_squares(ys.tolist()) for ys in whole)
    freedom = sum(len(ys) - 1 for ys in whole if len(ys))
    seen = math.sqrt(squares / freedom) if freedom else RELATIVE_SD[0] * level
    return EXACT_SHARE / (1 + _steady((rounding / max(seen, rounding)) ** 2))


# What the histories say


def _has(beam: Beam, stop: int) -> Bools:
    """Return which histories have a step at which node."""
    has = np.zeros((len(beam.path), stop), dtype=bool)
    for which, path in enumerate(beam.path):
        has[which, list(beam.paths[path])] = True
    return has


def _steps(
    table: SeedTable, beam: Beam, nodes: Sequence[Node], spread: int, start: int, stop: int
) -> list[Step]:
    """Return one step for each cluster of nodes, from `start` up to `stop`, at which histories
    have one."""
    weight = beam.weights()
    has = _has(beam, beam.stop)
    explained: dict[int, Levels] = {}
    steps = []
    for cluster in _clusters(weight, has, start, stop):
        members = np.flatnonzero(has[:, cluster].any(axis=1))
        probability = min(1.0, float(weight[members].sum()))
        if probability < LEAST:
            continue
        likeliest = members[np.argsort(-weight[members], kind="stable")][:EXPLAINED]
        for which in likeliest.tolist():
            if which not in explained:
                explained[which] = levels(table, beam, which, spread)
        sides = []
        for which in likeliest.tolist():
            stepped = cluster[has[which, cluster]] - beam.first
            found = explained[which]
            pair = np.array([found.of_node(stepped[0] - 1), found.of_node(stepped[-1])])
            sides.append((float(weight[which]), found, pair))
        share = weight @ has[:, cluster]
        steps.append(_step(table, nodes, cluster, share, probability, _mixed(sides)))
    return steps


def _clusters(weight: Floats, has: Bools, start: int, stop: int) -> list[Ints]:
    """Return the nodes of each step from node `start` up to `stop`, the surest first.

    Nodes near each other are one step where histories have it at one *or* the other; where they
    have it at both, these are two.
    """
    some = start + np.flatnonzero(has[:, start:stop].any(axis=0))
    both = (has[:, some] * weight[:, None]).T @ has[:, some]
    joint = {
        (a, b): float(both[i, j])
        for i, a in enumerate(some.tolist())
        for j, b in enumerate(some.tolist())
    }
    single = {a: joint[a, a] for a in some.tolist()}
    left = {a for a, share in single.items() if share > 0}
    clusters = []
    while left:
        best = max(left, key=lambda k: (single[k], -k))
        cluster = [
            k for k in left if abs(k - best) <= REACH and joint[k, best] < single[k] / 2
        ]  # fmt: skip
        clusters.append(np.array(sorted({best, *cluster}), dtype=np.int64))
        left -= set(clusters[-1].tolist())
    return clusters


def _mixed(sides: list[tuple[float, Levels, Floats]]) -> Floats:
    """Return mean and standard error of (level before, level after, size), and a trial's sd.

    Args:
        sides: For each history its weight, its levels, and the share of each before and after.
    """
    share = np.array([weight for weight, *_ in sides])
    share = share / share.sum()
    contrast = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]])
    parts = np.array([contrast @ pair @ found.mean for _, found, pair in sides])
    within = np.array(
        [
            np.diag(contrast @ pair @ found.covariance @ pair.T @ contrast.T)
            for _, found, pair in sides
        ]
    )
    mean = share @ parts
    variance = share @ (within + np.square(parts - mean))
    sd = share @ [found.sd for _, found, _ in sides]
    return np.array([*mean, *np.sqrt(np.maximum(variance, 0)), sd])


def _step(
    table: SeedTable,
    nodes: Sequence[Node],
    cluster: Ints,
    share: Floats,
    probability: float,
    moments: Floats,
) -> Step:
    order = np.argsort(-share, kind="stable")
    needed = int(np.searchsorted(np.cumsum(share[order]), COVERAGE * share.sum())) + 1
    inside = cluster[order[:needed]]
    low, high, likeliest = int(inside.min()), int(inside.max()), int(cluster[order[0]])
    at = table.nodes
    before, after, size, before_error, after_error, error, sd = moments.tolist()
    old = table.returns[likeliest]
    return Step(
        first=nodes[at[low - 1]].last + 1,
        last=nodes[at[high]].first,
        likeliest=nodes[at[likeliest]].first,
        probability=probability,
        size=size,
        error=error,
        before=before,
        before_error=before_error,
        after=after,
        after_error=after_error,
        chain=nodes[at[0]].chain,
        known=nodes[at[low - 1]].last,
        unit=sd,
        is_newest=False,
        node=at[likeliest],
        returns=nodes[at[old]].last if old >= 0 else -1,
    )
