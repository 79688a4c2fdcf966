"""The gain, in bits, of a trial of each commit with each seed. If noise is free, the caller has it.
If seeds share noise, it depends on how well the seed's other readings predict the value. If values
are exact, on whether the seed's bits split the remaining candidates. Pure: beliefs in, bits out."""

from __future__ import annotations

import numpy as np

from celedger.stats import Floats
from celedger.stats.equal_seeds import Bits, Pairs, Steps
from celedger.stats.firstbad import Belief, Posterior
from celedger.stats.lineage import GOOD
from celedger.stats.worlds import EXACT, FREE, PAIRED

MOST_SEEDS = 12
"""Seeds that are compared, those with most readings first; and the one that differs most between
the ends, and one that an end lacks."""
NEW_SEED = 0.5
"""A seed that has no reading is chosen only where pairs and exact values are together less likely,
or where no other is left."""
SUSPECTED = 0.03
"""Probability of the exact world from which it is tried first: one trial mostly tells."""
WORTH_HALVING = 0.05
"""Bits of place below which bits have told the place."""
UNKNOWN = 0.5
"""Chance that a change touches a seed that is not known on both sides of it."""
LIGHT = 1e-4
"""Probability of a group that tells nothing of a trial."""
NODES = 40, 240


def weigh_seeds(
    posterior: Posterior, positions: list[int], share: Floats, free: Floats
) -> tuple[list[int | None], Floats, Floats]:
    """Return the seeds that are compared, None for any other, and (P, S) bits of a trial of each
    position with each; last those of the place of a change alone, if values are exact. `free` (P,)
    are the bits if noise is free, `share` (P, G) says how much of each group makes a position
    bad."""
    belief = posterior.belief
    assert belief is not None
    table, bits, world = belief.table, belief.table.bits, belief.world
    if bits is None:
        return [None], free[:, None], np.zeros((len(positions), 1))
    readings = np.bincount(bits.seed)
    codes = [code for code, seed in enumerate(table.known) if seed >= 0]
    codes.sort(key=lambda code: (-readings[code], table.known[code]))
    needed = [*table.telling_seeds[:1], *(lacking_partner(belief) or ())[1:]]
    first = [*codes[:MOST_SEEDS], *map(table.known.index, needed)]
    columns = list(dict.fromkeys(first))
    have = _have(belief, positions, columns)
    gain = world[FREE] * np.repeat(free[:, None], len(columns) + 1, axis=1)
    if belief.worlds.pairs is not None:
        told = _of_pairs(belief, belief.worlds.pairs, share, columns)
        gain = gain + world[PAIRED] * (1 - posterior.no_change) * told
    located = np.where(have, 0.0, place_bits(belief, positions, share, columns))
    # Where nothing was read, the bits of a known seed say all that its value does.
    fresh = ~have
    fresh[~np.isin(positions, table.positions), :-1] = False
    of_level = fresh * free[:, None]
    exact = belief.worlds.exact
    if exact is not None and exact.steps is not None:
        of_steps = _step_bits(belief, exact.steps, positions, columns)
        of_level = (1 - exact.several) * of_level + exact.several * of_steps
    gain = gain + world[EXACT] * (located * (1 - posterior.no_change) + of_level)
    gain[have] = 0.0
    if world[PAIRED] + world[EXACT] > NEW_SEED:
        others = gain[:, :-1].max(axis=1, initial=0.0)
        gain[others > 0, -1] = 0.0
    seeds = [*(table.known[code] for code in columns), None]
    return seeds, gain, located


def _of_pairs(belief: Belief, pairs: Pairs, share: Floats, columns: list[int]) -> Floats:
    """Return the (P, S + 1) bits of a trial about the place, if seeds share noise."""
    heavy = belief.group > LIGHT
    weight, share = belief.group[heavy] / belief.group[heavy].sum(), share[:, heavy]
    mean, sd = (part[:, heavy] for part in pairs.predict(belief.group, columns))
    low, high, finest = (mean - 4 * sd).min(), (mean + 4 * sd).max(), sd.min()
    x = np.linspace(low, high, int(np.clip(2 * (high - low) / finest, *NODES)))
    # Between levels 1,000 sd apart the nodes miss the peaks: blurred ones still tell the sides.
    sd = np.maximum(sd, x[1] - x[0])
    own = np.log(sd) + 0.5 * np.log(2 * np.pi * np.e)  # entropies, in nats
    on = (1 - share) * weight, share * weight
    told = np.zeros((len(share), len(columns) + 1))
    for column in range(told.shape[1]):
        mixed, inner = np.zeros((len(share), len(x))), np.zeros(len(share))
        for side in (0, 1):
            m, s = mean[side, :, column, None], sd[side, :, column, None]
            mixed += on[side] @ (np.exp(-0.5 * ((x - m) / s) ** 2) / (s * np.sqrt(2 * np.pi)))
            inner += on[side] @ own[side, :, column]
        told[:, column] = entropy(mixed) * (x[1] - x[0]) - inner
    return np.asarray(np.maximum(told, 0.0) / np.log(2))


def entropy(density: Floats) -> Floats:
    return -np.asarray((density * np.log(np.maximum(density, 1e-300))).sum(axis=-1))


def _have(belief: Belief, positions: list[int], columns: list[int]) -> np.ndarray:
    """(P, S + 1) which position has a reading of which seed."""
    table, bits = belief.table, belief.table.bits
    assert bits is not None
    have = np.zeros((len(positions), len(columns) + 1), dtype=bool)
    row, at = np.nonzero(np.array(positions)[:, None] == table.positions)
    have[row, :-1] = (bits.present @ bits.of_seed > 0)[at][:, columns]
    have[row, -1] = bits.alone
    return have


def place_bits(belief: Belief, positions: list[int], share: Floats, columns: list[int]) -> Floats:
    """Return the (P, S + 1) bits of a trial about the place, if values are exact."""
    bits, exact = belief.table.bits, belief.worlds.exact
    result = np.zeros((len(positions), len(columns) + 1))
    if bits is None or exact is None:
        return result
    steps, places = exact.steps, np.arange(len(belief.table.positions))
    held = np.zeros(len(belief.located), dtype=np.int64)
    sides = [(places == 0, places == places[-1])]
    if steps is not None:
        held, sides = steps.held, [(steps.level == k, steps.level == j) for k, j in steps.pairs]
    for k, (before, after) in enumerate(sides):
        members = held == k
        if (mass := belief.located[members].sum()) > 0.01:
            # Unless this is the step that is asked, nobody needs its place: mass once more.
            part = binary(share[:, members] @ belief.located[members] / mass) * mass**2
            result += part[:, None] * differing(bits, before, after)[[*columns, -1]]
    return result


def _step_bits(belief: Belief, steps: Steps, positions: list[int], columns: list[int]) -> Floats:
    """(P, S + 1) bits that a trial tells of which step is the largest, if values are exact and take
    more than two levels: a seed that one side of a step lacks."""
    bits = belief.table.bits
    assert bits is not None
    result = np.zeros((len(positions), len(columns) + 1))
    row, at = np.nonzero(np.array(positions)[:, None] == belief.table.positions)
    has = steps.known @ bits.of_seed > 0
    mass = np.bincount(steps.held + 1, belief.located, len(steps.pairs) + 1)[1:].astype(float)
    for doubt, pair in zip(binary(mass), steps.pairs, strict=True):
        pairs = 1 + int((has[pair[0]] & has[pair[1]]).sum())
        for here, other in (pair, pair[::-1]):
            lacks = bits.asked & ~has[here]
            share = np.append(lacks * np.where(has[other], 0.5, 0.25), 0.0)
            result[row[steps.level[at] == here]] += doubt / pairs * share[[*columns, -1]]
    return result


def differing(bits: Bits, one: np.ndarray, other: np.ndarray) -> Floats:
    """(S + 1,) chance that a seed's bits differ between two sets of positions; last that of a new
    one."""
    if bits.alone:
        return np.ones(bits.of_seed.shape[1] + 1)
    before, after = bits.present[one].any(axis=0), bits.present[other].any(axis=0)
    known = ((before @ bits.of_seed) > 0) & ((after @ bits.of_seed) > 0)
    equal = (before & after) @ bits.of_seed > 0
    return np.append(np.where(known, np.where(equal, 0.0, 1.0), UNKNOWN), UNKNOWN)


def lacking_partner(belief: Belief) -> tuple[int, int] | None:
    """Return an end and the smallest seed that only the other end has; None without one."""
    bits, table = belief.table.bits, belief.table
    good, bad = bits.ends if bits is not None else ({}, {})
    lacking = [
        (table.known[code], GOOD if code in bad else int(table.positions[-1]))
        for code in good.keys() ^ bad.keys()
        if table.known[code] >= 0
    ]
    return min(lacking)[::-1] if lacking else None


def binary(chance: Floats) -> Floats:
    """Return the entropy of a coin, in bits."""
    p = np.clip(chance, 1e-12, 1 - 1e-12)
    return np.asarray(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))
