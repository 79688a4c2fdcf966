"""What a trial would tell beyond the trials under way, whose values nobody knows yet. Pure: tables
of chances in, bits out; knows no commits.

Trials under way cut the candidates into cells. What they will tell together is estimated by how
far each pair of cells is apart: - sum_i w_i ln sum_j w_j r^d(i, j), where d counts the trials on
which two cells differ and r is what a trial leaves of the likeness of two levels
(docs/statistics.md, "Bisects").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from celedger.stats.arrays import Bools, Floats, Ints

NOTHING = 1e-9
"""Nats of the estimate that are rounding."""


@dataclass(frozen=True)
class UnderWay:
    """The trials that run beside the next one."""

    positions: tuple[int, ...] = ()
    """One for each trial."""
    workers: int = 1
    """So many run at once."""


def likeness(bits: float) -> float:
    """Return r where one trial between equal halves of the candidates tells so many bits."""
    return float(2 ** (1 - np.clip(bits, 0.0, 1.0)) - 1)


def told(weight: Floats, bad: Bools, r: float) -> float:
    """Return what trials tell together, in nats: `weight` (C,) of the cells, `bad` (C, trials)
    whether the first bad commit in a cell makes a trial's commit bad."""
    return float(-weight @ _log(_kernel(bad, r) @ weight))


def beyond(weight: Floats, bad: Bools, share: Floats, r: float) -> tuple[Floats, Floats]:
    """(P,) what one more trial tells beyond those, and what it tells alone. `share` (P, C) is how
    much of each cell makes the position bad."""
    kernel, on_bad = _kernel(bad, r), share * weight
    on_good = weight - on_bad
    near_bad, near_good = on_bad @ kernel, on_good @ kernel
    all_bad, all_good = on_bad.sum(axis=1), on_good.sum(axis=1)
    together = on_bad * _log(near_bad + r * near_good) + on_good * _log(near_good + r * near_bad)
    alone = all_bad * _log(all_bad + r * all_good) + all_good * _log(all_good + r * all_bad)
    return np.maximum(-together.sum(axis=1) - told(weight, bad, r), 0.0), np.maximum(-alone, 0.0)


def _kernel(bad: Bools, r: float) -> Floats:
    differ: Ints = (bad[:, None, :] != bad[None, :, :]).sum(axis=-1)
    return np.asarray(np.float64(r) ** differ)


def _log(x: Floats) -> Floats:
    return np.asarray(np.log(np.maximum(x, 1e-300)))
