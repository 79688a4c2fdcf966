"""The levels that the chain weighs, in standard deviations of a trial.

Lives here: the grid. It depends on the nodes' means alone, and moves in blocks, so that a cached
message about it stays valid while new commits come.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from celedger.stats.arrays import Floats

BLOCK = 10.0
"""The grid is made of blocks of ten deviations."""
MARGIN = 3.0
"""A level lies within three deviations of the mean of some node."""
MOST_POINTS = 700
SPACINGS = (0.2, 0.4, 1.0)
"""The finest that fits is taken. At 1.0 the sum over the grid still equals the integral for the
mean of two trials: its deviation is .7."""
SESSION_SPACINGS = (0.2, 0.4, 0.5)
LEAST_WIDTH = 40.0
"""Width of the prior of a level after a step."""


@dataclass(frozen=True, slots=True, eq=False)
class LevelGrid:
    """Attributes:
    points: Levels, ascending.
    spacing: Between neighbours within a block.
    prior: Prior probability of each point after a step.
    has_gaps: True if some neighbours are further apart than `spacing`.
    """

    points: Floats
    spacing: float
    prior: Floats
    has_gaps: bool


def level_grid(means: Floats, has_sessions: bool) -> LevelGrid:
    """Return the grid for nodes of the given means.

    One stretch without gaps is taken if it fits. Else only the blocks near some mean are: stretches
    between far levels hold no probability, and a coarser grid would smear small steps. Where even
    these are too many, each mean is a point.
    """
    low, high = (np.floor((means + side) / BLOCK).astype(np.int64) for side in (-MARGIN, MARGIN))
    every = np.arange(low.min(), min(high.max(), low.min() + MOST_POINTS) + 1)
    is_short = every[-1] == high.max()
    near = np.unique(np.concatenate([low, high]))
    choices = [(every, d) for d in (SESSION_SPACINGS if has_sessions else SPACINGS[:1]) if is_short]
    for blocks, spacing in [*choices, *((near, d) for d in SPACINGS)]:
        size = round(BLOCK / spacing)
        if len(blocks) * size <= MOST_POINTS:
            points = (blocks[:, None] * BLOCK + (np.arange(size) + 0.5) * spacing).ravel()
            has_gaps = bool(len(blocks) != blocks[-1] - blocks[0] + 1)
            width = max(LEAST_WIDTH, len(blocks) * BLOCK)
            return LevelGrid(points, spacing, np.full(len(points), spacing / width), has_gaps)
    points = np.unique(np.rint(means / SPACINGS[-1]) * SPACINGS[-1])
    width = max(LEAST_WIDTH, len(points) * SPACINGS[-1])
    prior = np.full(len(points), SPACINGS[-1] / width)
    return LevelGrid(points, SPACINGS[-1], prior, True)
