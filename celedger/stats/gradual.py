"""Whether a metric got worse gradually, over several commits of a line, rather than at one or two
of them: three stories of the same readings, by least squares. Arrays in, arrays out; knows neither
trials nor what is concluded (docs/statistics.md, "Bisects").

Every story is level + shift x h(position), with normal noise: h is 0 before the change and 1 after
it. One step has nothing between, two have a share of the shift there, a slope rises evenly from one
mark to another. Level, shift and noise have flat priors and are integrated out; they are the same
in all stories, so their units cancel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from celedger.stats.arrays import Floats, Ints

PRIOR = {"one": 0.85, "two": 0.1, "slope": 0.05}
"""Of the stories: most regressions are one commit's."""
MARKS = 32
"""Places on a range, beside the tested ones, where a slope may begin or end."""
NARROWEST = 4
"""Commits of a slope at least: fewer are told as steps."""
SHARES = np.linspace(0.1, 0.9, 9)
"""Of the shift that the first of two steps may make."""
FINEST = 1e-6
"""Noise that is believed at least, in ranges of the readings."""


@dataclass(frozen=True)
class Slope:
    """A change that began after one position and ended at another."""

    probability: float
    """That it is gradual."""
    after: int
    by: int


def slope(
    positions: Ints, values: Floats, groups: Ints, prior: Floats, confidence: float
) -> Slope | None:
    """Return the interval that holds a slope with the asked confidence, if there is one; None where
    too few positions were tested to tell.

    Args:
        positions: (R,) of the readings, -1 for the good end.
        values: (R,) larger is worse.
        groups: (R,) readings that share a level: all, or those of one seed.
        prior: (n,) of the candidates.
    """
    n = len(prior)
    tested = np.unique(positions)
    values = values / max(float(np.abs(values).max(initial=0.0)), 5e-324)
    if len(tested) < 4 or np.ptp(values) == 0:
        return None
    below = np.concatenate(([0.0], np.cumsum(prior / prior.sum())))
    cell = np.diff(below[tested + 1])  # between tested positions
    after = positions[None, :] >= tested[1:, None]
    first, second = np.triu_indices(len(cell), 1)
    pair = cell[first] * cell[second]
    pair = pair / max(pair.sum(), 1e-300)
    two = SHARES[:, None, None] * after[first] + (1 - SHARES[:, None, None]) * after[second]
    marks = np.union1d(tested, np.linspace(-1, n - 1, min(MARKS, n)).round().astype(np.int64))
    begin, end = (marks[i] for i in np.triu_indices(len(marks), 1))
    wide = end - begin >= NARROWEST
    if not wide.any():
        return None
    begin, end = begin[wide], end[wide]
    rise = np.clip((positions - begin[:, None]) / (end - begin)[:, None], 0.0, 1.0)
    around = dict(zip(marks.tolist(), np.gradient(marks.astype(float)).tolist(), strict=True))
    near = np.array(
        [around[a] * around[b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
    )
    stories = {
        "one": (after.astype(float), cell),
        "two": (two.reshape(-1, len(values)), np.tile(pair, len(SHARES)) / len(SHARES)),
        "slope": (rise, near / near.sum()),
    }
    logs = {}
    for name, (shape, weight) in stories.items():
        with np.errstate(divide="ignore"):
            logs[name] = np.log(PRIOR[name] * weight) + _evidence(shape, values, groups)
    top = max(float(log.max(initial=-np.inf)) for log in logs.values())
    if not np.isfinite(top):
        return None
    mass = {name: np.exp(log - top) for name, log in logs.items()}
    total, sloping = sum(float(part.sum()) for part in mass.values()), float(mass["slope"].sum())
    if not sloping:
        return None
    share = mass["slope"] / sloping
    tail = (1 - confidence) / 2
    return Slope(
        sloping / total, _quantile(begin, share, tail), -_quantile(-end, share, tail)
    )  # fmt: skip


def _evidence(shape: Floats, values: Floats, groups: Ints) -> Floats:
    """(K,) log evidence of each shape (K, R), up to a constant that all share."""
    number = int(groups.max()) + 1
    own = np.zeros((number, len(values)))
    own[groups, np.arange(len(values))] = 1.0
    own /= own.sum(axis=1, keepdims=True)
    h = shape - (shape @ own.T)[:, groups]
    x = values - (own @ values)[groups]
    across, along = (h**2).sum(axis=1), h @ x
    least = len(values) * (FINEST * np.ptp(values)) ** 2
    rest = np.maximum(x @ x - along**2 / np.maximum(across, 1e-12), 0.0) + least
    freedom = len(values) - number - 1
    log = -0.5 * np.log(np.maximum(across, 1e-12)) - 0.5 * freedom * np.log(rest)
    return np.where((along > 0) & (across > 1e-9), log, -np.inf)


def _quantile(at: Ints, share: Floats, part: float) -> int:
    order = np.argsort(at, kind="stable")
    return int(at[order][np.searchsorted(np.cumsum(share[order]), part)])
