"""Weigh three explanations of the readings of a range: noise that is free, noise that equal seeds
share, and values that are a function of code and seed.

Arrays in, arrays out. Must not know what a position is, or what is concluded (docs/statistics.md,
"Equal seeds")."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite

import numpy as np

from celedger.stats import Bools, Floats, Ints, equal_seeds
from celedger.stats.equal_seeds import LOG_PRIOR_ALIKE as ALIKE
from celedger.stats.equal_seeds import Bits, Exact, Pairs
from celedger.stats.levels import Fit
from celedger.stats.likelihood import FINEST, Sites, fine, middle, standardised
from celedger.stats.lineage import GOOD

FREE, PAIRED, EXACT = range(3)
PRIOR = np.log((0.5, 0.3, 0.2))
"""Log prior of the worlds."""
NEGLIGIBLE = 0.01
"""Where seeds differ between the ends, and none by more than this part of the floor, rounding moved
them: of changes by more than the floor next to none moves a seed by so little."""
MODES_BELIEVED = 0.8
"""Where a second mode is believed more than this, seeds that collapse look like pairs to a normal
distribution: the factor of pairs is then 1 at most, and their prior counts squared."""


@dataclass(frozen=True)
class Reading:
    """One trial's summary at a position (GOOD is -1); worse is larger, +inf not finite.

    Equal values of one seed at one position count once, so a repeat needs a fresh seed to tell
    anything. Without seeds equal repeats mean that the metric repeats exactly."""

    position: int
    value: float
    seed: int | None = None
    draw: int | None = None
    """Readings that share it computed the same to the last bit."""


@dataclass(frozen=True)
class Table:
    """The readings of a range as arrays."""

    positions: Ints
    """(T,) the tested positions, sorted"""
    counts: Ints
    """(T,) readings at each that tell of the noise: of equal bits only one does"""
    sites: Sites
    """Of the positions that have any, standardised"""
    unit: float
    alone: bool
    """The metric repeats exactly, whatever the seed."""
    constant: int
    """So many readings, none of which differs (in its session); 0 where some do"""
    bits: Bits | None
    """None where no seed is known at two positions"""
    seeds: Ints
    """(R,) of the readings of `sites`, from 0"""
    resolution: float
    """Distance of possible values, in the unit of `sites`; 0 for fine ones"""
    finite: Bools
    """(R,) which readings were finite; the others stand at the worst value"""
    known: tuple[int, ...] = ()
    """The seeds by their numbers, -1 for none"""
    drawn: bool = False
    """What some of the trainings computed is known"""
    shared: equal_seeds.Readings | None = None
    """The readings before their sessions' effects were taken from them, with the sessions in place
    of seeds; None where sessions share nothing"""

    @cached_property
    def readings(self) -> dict[int, int]:
        """Return how many readings at each position are evidence of the noise."""
        return dict(zip(self.positions.tolist(), self.counts.tolist(), strict=True))

    @property
    def gap(self) -> float:
        sites = self.sites
        return middle(sites.at(sites.bad)) - middle(sites.at(sites.good))

    @cached_property
    def telling_seeds(self) -> list[int]:
        """Return the seeds whose values differ between the ends, the farthest apart first."""
        if self.bits is None or self.alone:
            return []
        good, bad = self.bits.ends
        apart = {
            self.known[code]: abs(bad[code] - good[code])
            for code in good.keys() & bad.keys()
            if self.known[code] >= 0 and bad[code] != good[code]
        }
        return sorted(apart, key=lambda seed: (-apart[seed], seed))

    def paired(self, values: Floats, groups: Ints, floor: float = 0.0) -> equal_seeds.Readings:
        """Return values of these sites, of which those of a group share noise."""
        finest = max(abs(self.gap), 1e-3) / FINEST
        return equal_seeds.Readings(values, groups, finest, self.resolution, floor)


def tabulate(
    readings: Sequence[Reading], bad: int, *, exact: bool | None, by_session: bool = False
) -> Table | None:
    """Return the table of the readings; None without one of each end.

    Args:
        exact: Whether the ledger says that the metric repeats exactly; None if it knows nothing.
        by_session: The seeds are sessions: no value of one is a repeat of another.
    """
    ends = {GOOD, bad}
    if not ends <= {r.position for r in readings}:
        return None
    worst = max((r.value for r in readings if isfinite(r.value)), default=0.0)
    rows = sorted(
        (r.position, r.value if isfinite(r.value) else worst, *_numbers(r), isfinite(r.value))
        for r in readings
    )
    by_place: dict[int, set[float]] = {}
    of_value: dict[float, set[int]] = {}
    for place, value, seed, *_ in rows:
        by_place.setdefault(place, set()).add(value)
        of_value.setdefault(value, set()).add(seed)
    once = {row[:3] if row[2] >= 0 else (*row[:3], i) for i, row in enumerate(rows)}
    alone = exact
    if exact is None:
        alone = len(once) > len(by_place) and all(len(some) == 1 for some in by_place.values())
    alone = bool(alone)
    tied = not alone and any(len(some) > 1 for some in of_value.values())
    drawn = any(row[3] >= 0 for row in rows)
    digits = 2 * sum(map(fine, of_value)) >= len(of_value)
    is_fine = alone or drawn or (digits and not tied)

    # What cannot be told apart counts once: equal bits at an end, else at their first position.
    owners = [
        0 if alone else row[2] if row[2] >= 0 and not by_session else -1 - i
        for i, row in enumerate(rows)
    ]  # a number of its own for every reading without a seed
    keys = [
        (owner, "value", row[1]) if row[3] < 0 or alone else (owner, "draw", float(row[3]))
        for owner, row in zip(owners, rows, strict=True)
    ]
    at_ends = {key for row, key in zip(rows, keys, strict=True) if row[0] in ends and is_fine}
    counted: list[int] = []
    seen = set()
    for i, (row, key) in enumerate(zip(rows, keys, strict=True)):
        inner = row[0] not in ends and is_fine and not alone
        if (row[0], key) in seen or (inner and (key in at_ends or (None, key) in seen)):
            continue
        seen |= {(None, key), (row[0], key)}
        counted.append(i)
    positions, site = np.unique([row[0] for row in rows], return_inverse=True)
    counts = np.bincount(site[counted], minlength=len(positions))
    kept = positions[counts > 0].tolist()
    raw = np.array([rows[i][1] for i in counted], dtype=float)
    places = kept.index(GOOD), kept.index(bad)
    sites, unit = standardised(Sites(raw, counts[counts > 0], *places))
    distinct = np.unique(sites.values)
    distance = float(np.diff(distinct).min()) if len(distinct) > 1 else 1.0
    codes = {owner: code for code, owner in enumerate(dict.fromkeys(owners))}
    seed_of = np.array([codes[owner] for owner in owners])
    bits = None
    if alone or len({*zip(site.tolist(), seed_of.tolist(), strict=True)}) > len(codes):
        number = {key: at for at, key in enumerate(dict.fromkeys(keys))}
        of_key = {keys[i]: float(x) for i, x in zip(counted, sites.values, strict=True)}
        step = equal_seeds.FINE * float(np.abs(raw).max()) / unit if is_fine else distance
        bits = Bits(
            site, seed_of, np.array([number[key] for key in keys]),
            np.array([of_key[key] for key in keys]), -math.log(max(step, 1e-300)), alone,
        )  # fmt: skip
    of_session: dict[int, set[float]] = {}
    for row in rows:
        of_session.setdefault(row[2] if by_session else 0, set()).add(row[1])
    is_known = not (alone or by_session or exact is None)
    constant = 0 if is_known or any(len(some) > 1 for some in of_session.values()) else len(once)
    resolution = distance if tied or not is_fine else 0.0
    known = tuple(-1 if alone or owner < 0 else owner for owner in codes)
    finite = np.array([rows[i][4] for i in counted])
    table = Table(
        positions, counts, sites, unit, alone, constant, bits, seed_of[counted], resolution, finite,
        known, drawn,
    )  # fmt: skip
    if not by_session:
        return table
    sessions = np.unique([rows[i][2] for i in counted], return_inverse=True)[1]
    return replace(table, shared=table.paired(sites.values, sessions))


def _numbers(reading: Reading) -> tuple[int, int]:
    """Return seed and draw, -1 for none."""
    seed, draw = reading.seed, reading.draw
    return -1 if seed is None else seed, -1 if draw is None else draw


def failures(readings: Sequence[Reading], bad: int, *, crashed: bool) -> Table | None:
    """Return a table of 0 and 1 (not finite or, if `crashed`, 1): what repeats counts again."""
    rows = sorted(
        (r.position, float(not isfinite(r.value) or (crashed and r.value > 0.5))) for r in readings
    )
    positions, counts = np.unique([row[0] for row in rows], return_counts=True)
    places = positions.tolist()
    if GOOD not in places or bad not in places:
        return None
    values = np.array([row[1] for row in rows])
    sites = Sites(values, counts, places.index(GOOD), places.index(bad))
    nobody = np.zeros(0, dtype=np.int64)
    return Table(positions, counts, sites, 1.0, False, 0, None, nobody, 0.0, values == 0)


@dataclass(frozen=True)
class Worlds:
    """The evidence of each world for every split; priors of the candidates left out."""

    fit: Fit
    pairs: Pairs | None
    exact: Exact | None
    prior: Floats
    """(3,) logs"""

    def evidence(self, none_prior: float) -> tuple[Floats, Floats, Floats]:
        """(3, G) log evidence of a change beyond the floor, of one within it, and of none; with
        their priors."""
        fit = self.fit
        change, small, none = np.full((3, 3, len(fit.log_evidence)), -np.inf)
        change[FREE], small[FREE], none[FREE] = fit.log_evidence, fit.log_small, fit.log_none
        if self.pairs is not None:
            either = np.logaddexp(fit.log_evidence, fit.log_small) + self.pairs.log_factor
            change[PAIRED] = either + self.pairs.log_above
            small[PAIRED] = either + equal_seeds.log_rest(self.pairs.log_above)
            none[PAIRED] = fit.log_none + self.pairs.log_none
        priors = np.full(3, none_prior)
        if self.exact is not None:
            change[EXACT], none[EXACT] = self.exact.log_change, self.exact.log_none
            small[EXACT] = self.exact.log_small
            odds = none_prior / (1 - none_prior) * equal_seeds.NONE_ODDS
            priors[EXACT] = odds / (1 + odds)
        no, yes = np.log(priors)[:, None], np.log1p(-priors)[:, None]
        prior = self.prior[:, None]
        return change + prior + yes, small + prior + yes, none + prior + no


def weigh(
    table: Table, splits: Bools, fitted: Fit, log_prior: Floats, floor: float,
    selected: tuple[int, int], order: Bools | None,
) -> Worlds:  # fmt: skip
    """Return the worlds of a table for every row of `splits` (G, T). `order` (T, T) says which
    position is an ancestor of which, or it; without it more than two values of a seed rule out
    that values are exact."""
    never = -np.inf
    if table.bits is None:
        return Worlds(fitted, None, None, np.array((0.0, never, never)))
    pairs = compared = None
    prior = PRIOR.copy()
    readings = table.paired(table.sites.values, table.seeds, floor)
    if not table.alone:
        rows = np.repeat(splits[:, table.counts > 0], table.sites.counts, axis=1)
        # A value that is not finite is no draw of a normal distribution: the fit has it as outlier.
        pairs = compared = equal_seeds.compare(readings, rows, table.finite, selected)
        if table.finite.all() and not table.drawn:
            # What needs tails under one split is an outlier there, no effect of its seed. (Where
            # what was computed is known it may be: of 36 searches by four workers 2 were wrong
            # without this, 6 with it.)
            free = np.append(fitted.log_evidence, fitted.log_none)
            tails = equal_seeds.finite(free) - equal_seeds.finite(pairs.log_plain)
            tails = np.maximum(tails - tails[np.argmax(log_prior + pairs.log_plain[:-1])], 0.0)
            factor, none = pairs.log_factor - tails[:-1], pairs.log_none - float(tails[-1])
            pairs = compared = replace(pairs, log_factor=factor, log_none=none)
        weight = log_prior + fitted.log_evidence
        share = np.exp(weight - max(weight.max(), -1e300))
        modes = [not np.isnan(noise.offset) for noise in fitted.noises]
        if share @ fitted.good[:, modes].sum(axis=(1, 2, 3)) > MODES_BELIEVED * share.sum():
            capped = np.minimum(pairs.log_factor, 0.0)
            pairs = replace(pairs, log_factor=capped, log_none=min(pairs.log_none, 0.0))
            prior[PAIRED] *= 2
    bits, exact = table.bits, None
    if not bits.alone and len(equal_seeds.differences(*bits.ends)) < 2:
        # A single pair does not tell how far seeds differ, and so on which side of the floor.
        readings = replace(readings, floor=0.0)
    if not (bits.present @ bits.of_seed > 1).any():
        exact = equal_seeds.weigh(bits, splits, readings, selected)
        if not table.alone and fitted.background is not None:
            # The fit counts densities in its background's scale.
            unit = len(table.sites.values) * math.log(fitted.background.scale)
            exact = replace(
                exact, log_change=exact.log_change + unit, log_none=exact.log_none + unit,
                log_small=exact.log_small + unit,
            )  # fmt: skip
        if not exact.possible and order is not None:
            exact = equal_seeds.weigh_many(
                bits, splits, order, log_prior, fitted, compared, readings, selected,
            )  # fmt: skip
    apart = np.abs(equal_seeds.differences(*bits.ends))
    if exact is None or not exact.possible:
        exact, prior[EXACT] = None, never
    elif apart.any() and apart.max() < NEGLIGIBLE * floor:
        small = np.logaddexp(exact.log_change, exact.log_small)
        exact = replace(exact, log_change=np.full(len(small), never), log_small=small)
    if exact is not None and table.alone:
        prior[FREE] = never
    if pairs is None:
        prior[PAIRED] = never
    return Worlds(fitted, pairs, exact, prior)


# --- sessions, whose trials share an effect


def without_sessions(
    table: Table, splits: Bools, log_prior: Floats, selected: tuple[int, int]
) -> Table:
    """Return the table with the readings less what is expected of their sessions' effects, for
    every row of `splits` (G, T) and for no change."""
    assert table.shared is not None
    counts, shared = table.sites.counts, table.shared
    every = np.vstack([splits, np.zeros((1, splits.shape[1]), dtype=bool)])
    rows = np.repeat(every, counts, axis=1)
    pairs = equal_seeds.compare(shared, rows, table.finite, selected, ALIKE)
    log = pairs.log_factor + pairs.log_plain[:-1] + np.append(log_prior, 0.0)
    weight = np.exp(log - log.max())
    number = int(shared.seeds.max()) + 1
    expected = pairs.predict(weight, range(number))[0][0]  # of the good side, last of a new session
    effects = weight @ (expected[:, :-1] - expected[:, -1:]) / weight.sum()
    values = shared.values - effects[shared.seeds]
    order = np.lexsort((values, np.repeat(np.arange(len(counts)), counts)))
    raw = replace(shared, values=shared.values[order], seeds=shared.seeds[order])
    sites = replace(table.sites, values=values[order])
    return replace(table, sites=sites, shared=raw, finite=table.finite[order])


def of_sessions(
    fitted: Fit, table: Table, splits: Bools, log_prior: Floats, floor: float,
    selected: tuple[int, int],
) -> Fit:  # fmt: skip
    """Return the fit with the evidence of readings whose sessions each have an effect, which is
    integrated out. `fitted` is of the readings without it, for which it is known too well: only the
    tails that it needs are taken from it."""
    assert table.shared is not None
    rows, shared = np.repeat(splits, table.sites.counts, axis=1), replace(table.shared, floor=floor)
    pairs = equal_seeds.compare(shared, rows, table.finite, selected, ALIKE)
    alone = replace(shared, values=table.sites.values)
    plain = equal_seeds.compare(alone, rows, table.finite, selected).log_plain
    either = np.append(np.logaddexp(fitted.log_evidence, fitted.log_small), fitted.log_none)
    log = pairs.log_plain + np.append(pairs.log_factor, pairs.log_none)
    tails = equal_seeds.finite(either) - equal_seeds.finite(plain)
    log = log + np.minimum(tails, tails[np.argmax(log_prior + log[:-1])])
    return replace(
        fitted, log_evidence=log[:-1] + pairs.log_above, log_none=float(log[-1]),
        log_small=log[:-1] + equal_seeds.log_rest(pairs.log_above),
    )  # fmt: skip
