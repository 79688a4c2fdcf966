"""The steps of a metric whose value is a function of code and seed, read by equal seeds.

Lives here: which trials of a line are read, and what the likeliest histories of
`seed_histories.py` say of its steps. It must not know hashes, task names, or which change is worse
for the person.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from celedger.stats.arrays import Bools, Floats, Ints
from celedger.stats.course import Measurements, Node, Step, TrialNoise
from celedger.stats.seed_histories import RELATIVE_SD, Beam, Levels, SeedTable, filtered, levels

EXACT_SHARE = 1 - 1e-6
"""The seed's share of the variance where bits repeat: rounding leaves a thousandth of the sd."""
LARGE_SHARE = 0.9
"""Below this share fresh seeds tell as much as equal ones (measured: 7 pairs a doubt at .8)."""
SHARES = 0.8, 0.95, 0.99
"""What a large share may be, equally likely: it is known from few repeats."""
SHARE_FREEDOM = 4
"""Fewer degrees of freedom of repeats of a seed do not tell the share."""
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
EXPLAINED = 6
"""The size of a step is the mean over so many of the likeliest histories that have it."""
DOUBTFUL, EXACT_DOUBTFUL, SETTLED = 0.03, 0.003, 0.95
"""A step is worth a pair of trials between these probabilities. Bits seldom change: where they
repeat, a smaller doubt costs few trials."""
DIGITS = 6
"""Significant digits that a rounded value, or a share of a data set, may have."""
MOST_SAMPLES = 20_000
"""Size of a data set up to which a share of it is recognised."""
MOST_CHANGE = 100.0
"""For the evidence a value is at most so many levels away: how far a loss diverged does not tell
how much trials differ."""
LARGEST = 1e100
"""Values beyond have no squares to sum."""
TIES = 0.75
"""With fewer distinct values than this share of the draws, the smallest gap is their resolution."""


def paired_steps(
    measured: Measurements, nodes: Sequence[Node], noise: TrialNoise, *, hazard: float
) -> tuple[Step, ...] | None:
    """Return the steps of a metric as equal seeds tell them, oldest first.

    Args:
        nodes: Of all chains, oldest first in each. Trials of a node share their code's bits.
        noise: Its `is_exact` alone is read. How much seeds differ is learned from their values.
        hazard: Prior probability that a commit changes the level.

    Returns:
        None where equal seeds tell nothing or less than fresh ones: for values of sessions, where
        the seed's share is small or unknown, where no two nodes share a seed, and where most
        commits draw all seeds anew.
    """
    shares = _shares(measured, nodes, noise)
    if shares is None:
        return None
    by_chain: dict[int, list[int]] = {}
    for at, node in enumerate(nodes):
        if node.rows:
            by_chain.setdefault(node.chain, []).append(at)
    tables = [seed_table(measured, nodes, members) for members in by_chain.values()]
    usable = [table for table in tables if table is not None]
    if not usable:
        return None
    spreads = {chain: _spread(measured, nodes, members) for chain, members in by_chain.items()}
    steps: list[Step] = []
    draws = commits = 0.0
    for table in usable:
        chain = nodes[table.nodes[0]].chain
        others = [spread for other, spread in spreads.items() if other != chain]
        shares_here = _rounded(table, shares)
        beam = filtered(table, shares_here, hazard, others)
        weight = beam.weights()
        stepped = float(weight @ [len(beam.paths[path]) for path in beam.path])
        draws += float(weight @ beam.draws)
        commits += len(table.nodes) - 1 - stepped + float(table.quiet.sum())
        steps += _steps(table, beam, nodes, sum(freedom for freedom, _ in others))
    if commits >= RULE_COMMITS and draws > RULE_SHARE * commits:
        return None
    return tuple(sorted(steps, key=lambda step: (step.first, step.last, step.chain)))


def pair_wanted(
    measured: Measurements, nodes: Sequence[Node], noise: TrialNoise, step: Step
) -> tuple[int, int, int] | None:
    """Return the pair of trials that tells most about a doubtful step.

    Returns:
        The newest measured place before the doubtful ones, the newest measured place after them
        without a newer step between, and a seed for both. It is one that only one of the two was
        measured with, if there is one, else the smallest that neither was. None for a step that is
        no doubt, and where as many seeds were tried as are followed.
    """
    doubtful = EXACT_DOUBTFUL if noise.is_exact else DOUBTFUL
    if not doubtful <= step.probability < SETTLED:
        return None
    chain = [node for node in nodes if node.chain == step.chain and node.rows]
    before = max((n for n in chain if n.last < step.first), key=lambda n: n.last, default=None)
    shown = [node for node in chain if node.first >= step.last]
    if before is None or not shown:
        return None
    after = shown[-1 if step.is_newest else 0]
    old, new = (set(measured.seed[list(node.rows)].tolist()) for node in (before, after))
    if len(old & new) >= MOST_SEEDS:
        return None
    partial = old ^ new
    seed = min(partial) if partial else next(s for s in range(len(old) + 1) if s not in old)
    return before.last, after.last, seed


# What was measured


def seed_table(
    measured: Measurements, nodes: Sequence[Node], members: list[int]
) -> SeedTable | None:
    """Return a chain's table; None if no two nodes share a seed."""
    means = [_by_seed(measured, nodes[at]) for at in members]
    nodes_of = Counter(seed for mean in means for seed in mean)
    repeated = sorted((s for s in nodes_of if nodes_of[s] > 1), key=lambda s: (-nodes_of[s], s))
    if not repeated:
        return None
    followed = {seed: 1 + at for at, seed in enumerate(repeated[:MOST_SEEDS])}
    dropped = set(repeated[MOST_SEEDS:])
    passing = 1 + len(followed)
    pairs = [pair for pair in zip(members, means, strict=True) if not dropped.issuperset(pair[1])]
    members, means = [at for at, _ in pairs], [mean for _, mean in pairs]
    rounding = _resolution(means) / math.sqrt(12)
    returns, known = _returns(measured, [nodes[at] for at in members], means, rounding == 0)
    gaps, quiet, columns, values, counts, width = [], [], [], [], [], passing
    newest = nodes[members[0]].first
    for at, mean, old in zip(members, means, known, strict=True):
        seeds = [seed for seed in mean if seed not in dropped and seed not in old]
        free = iter(range(passing, passing + len(seeds)))
        columns.append(np.array([followed.get(s) or next(free) for s in seeds], dtype=np.int64))
        width = max([width, *(columns[-1] + 1).tolist()])
        values.append(np.array([mean[s][0] for s in seeds]))
        counts.append(np.array([float(mean[s][1]) for s in seeds]))
        node = nodes[at]
        gaps.append(max(1, node.first - newest))
        quiet.append(
            len(set(measured.place[list(node.rows)].tolist()) | {node.first, node.last}) - 1
        )
        newest = node.last
    centre = float(np.median(values[0]))
    level = abs(centre) or float(np.median(np.abs(np.concatenate(values)))) or 1.0
    low, high = centre - MOST_CHANGE * level, centre + MOST_CHANGE * level
    return SeedTable(
        nodes=tuple(members),
        gaps=np.array(gaps),
        quiet=np.array(quiet),
        returns=returns,
        columns=tuple(columns),
        values=tuple(values),
        tamed=tuple(np.clip(ys, low, high) for ys in values),
        counts=tuple(counts),
        width=width,
        passing=passing,
        centre=centre,
        level=level,
        rounding=rounding,
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
    for node, mean in zip(nodes, means, strict=True):
        of_seed = {seed: (False, value) for seed, (value, _) in mean.items()} if fine else {}
        for row in node.rows:
            if measured.bits[row] >= 0:
                of_seed[int(measured.seed[row])] = (True, float(measured.bits[row]))
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


def _by_seed(measured: Measurements, node: Node) -> dict[int, tuple[float, int]]:
    """Return mean and number of a node's trials by seed."""
    rows: dict[int, list[float]] = {}
    for row in node.rows:
        rows.setdefault(int(measured.seed[row]), []).append(
            min(max(float(measured.value[row]), -LARGEST), LARGEST)
        )
    return {seed: (math.fsum(ys) / len(ys), len(ys)) for seed, ys in sorted(rows.items())}


def _spread(measured: Measurements, nodes: Sequence[Node], members: list[int]) -> tuple[int, float]:
    """Return degrees of freedom and sum of squares of the seeds of a typical node, of those that
    have most. Not of all: nodes may repeat each other's draw."""
    means = [_by_seed(measured, nodes[at]) for at in members]
    most = max(map(len, means))
    full = [np.array([y for y, _ in mean.values()]) for mean in means if len(mean) == most]
    return most - 1, float(np.median([np.square(ys - ys.mean()).sum() for ys in full]))


def _shares(
    measured: Measurements, nodes: Sequence[Node], noise: TrialNoise
) -> tuple[float, ...] | None:
    """Return what the seed's share of the variance may be; None where it is small or unknown."""
    if measured.has_sessions:
        return None
    if noise.is_exact:
        return (EXACT_SHARE,)
    freedom, squares = 0, 0.0
    between, seeds = 0, 0.0
    for node in nodes:
        means = _by_seed(measured, node)
        for row in node.rows:
            value = float(np.clip(measured.value[row], -LARGEST, LARGEST))
            squares += (value - means[int(measured.seed[row])][0]) ** 2
        freedom += len(node.rows) - len(means)
        ys = np.array([mean for mean, _ in means.values()])
        between += max(0, len(ys) - 1)
        seeds += float(np.square(ys - ys.mean()).sum()) if len(ys) else 0.0
    if freedom < SHARE_FREEDOM or not between or not seeds:
        return None
    small = squares / freedom > (1 - LARGE_SHARE) * seeds / between
    return None if small else SHARES


def _rounded(table: SeedTable, shares: tuple[float, ...]) -> tuple[float, ...]:
    """Return the seed's shares where rounding adds its own variance to the values."""
    squares = sum(float(np.square(ys - ys.mean()).sum()) for ys in table.tamed if len(ys))
    freedom = sum(len(ys) - 1 for ys in table.tamed if len(ys))
    seen = math.sqrt(squares / freedom) if freedom else RELATIVE_SD[0] * table.level
    ratio = (table.rounding / max(seen, table.rounding)) ** 2 if table.rounding else 0.0
    return tuple(share / (1 + ratio) for share in shares)


def _resolution(nodes: Sequence[Mapping[int, tuple[float, int]]]) -> float:
    """Return the distance of possible values; 0 where they are as fine as floating point.

    Where values are coarse (counts, shares of a small data set), two seeds move alike by chance.

    Args:
        nodes: Value of each seed at each node.
    """
    distinct = np.unique([value for node in nodes for value, _ in node.values()])
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
    seen: set[tuple[int, float]] = set()
    drawn = 0  # a seed that returns to a value is no new draw, nor are seeds of no effect
    for node in nodes:
        new = {(seed, value) for seed, (value, _) in node.items()} - seen
        drawn += len({value for _, value in new})
        seen |= new
    tied = 1 < len(distinct) <= TIES * drawn
    return float(np.diff(distinct).min()) if tied else 0.0


# What the histories say


def _steps(table: SeedTable, beam: Beam, nodes: Sequence[Node], spread: int) -> list[Step]:
    """Return one step for each cluster of nodes at which histories have one."""
    weight = beam.weights()
    has = np.zeros((len(weight), len(table.nodes)), dtype=bool)
    for which, path in enumerate(beam.path):
        has[which, list(beam.paths[path])] = True
    explained: dict[int, Levels] = {}
    steps = []
    for cluster in _clusters(weight, has):
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
            stepped, found = cluster[has[which, cluster]], explained[which]
            pair = found.of_node[[stepped[0] - 1, stepped[-1]]]
            sides.append((float(weight[which]), found, pair))
        share = weight @ has[:, cluster]
        steps.append(_step(table, nodes, cluster, share, probability, _mixed(sides)))
    newest = max((step.node for step in steps), default=-1)
    return [replace(step, is_newest=step.node == newest) for step in steps]


def _clusters(weight: Floats, has: Bools) -> list[Ints]:
    """Return the nodes of each step, the surest first.

    Nodes near each other are one step where histories have it at one *or* the other; where they
    have it at both, these are two.
    """
    joint = (has * weight[:, None]).T @ has
    single = np.diag(joint)
    left = set(np.flatnonzero(single > 0).tolist())
    clusters = []
    while left:
        best = max(left, key=lambda k: (single[k], -k))
        cluster = [
            k for k in left if abs(k - best) <= REACH and joint[k, best] < single[k] / 2
        ]  # fmt: skip
        clusters.append(np.array(sorted({best, *cluster}), dtype=np.int64))
        left -= set(clusters[-1].tolist())
    return clusters


def _mixed(sides: list[tuple[float, Levels, Ints]]) -> Floats:
    """Return mean and standard error of (level before, level after, size), and a trial's sd.

    Args:
        sides: For each history its weight, its levels, and which of them lie before and after.
    """
    share = np.array([weight for weight, *_ in sides])
    share = share / share.sum()
    contrast = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]])
    parts = np.array([contrast @ found.mean[pair] for _, found, pair in sides])
    within = np.array(
        [
            np.diag(contrast @ found.covariance[np.ix_(pair, pair)] @ contrast.T)
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
    )
