"""The levels of one metric between its steps, as one Gaussian vector: two steps that share the
stretch between them share its level, and its error cancels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from celedger.stats.arrays import Floats
from celedger.stats.controls import Contrast
from celedger.stats.course import Step

SAME_LEVEL = 2.0
"""Standard errors within which the level after a step and that before the next one are one."""
SIDE_BY_SIDE = 0.9
"""Share of the two levels' variance below which a size was measured side by side, in a session."""


class MetricLevels:
    """Mean and covariance of a metric's levels, and each step as a difference of two of them."""

    def __init__(self, steps: Sequence[Step], contrasts: Sequence[Contrast] = ()) -> None:
        self.unit = steps[-1].unit if steps else 1.0
        self._ends: dict[Step, tuple[int, int]] = {}
        mean: list[float] = []
        variance: list[float] = []
        previous: Step | None = None
        for step in steps:
            if previous is not None and _shares_level(previous, step):
                before = self._ends[previous][1]
                mean[before] = (previous.after + step.before) / 2
                variance[before] = min(previous.after_error, step.before_error) ** 2
            else:
                before = len(mean)
                mean.append(step.before)
                variance.append(step.before_error**2)
            mean.append(step.after)
            variance.append(step.after_error**2)
            self._ends[step] = (before, len(mean) - 1)
            previous = step
        self.mean: Floats = np.array(mean)
        self.covariance: Floats = np.diag(np.array(variance)) if variance else np.zeros((0, 0))
        for step in steps:
            if step.error**2 < SIDE_BY_SIDE * (step.before_error**2 + step.after_error**2):
                self._narrow(step)
        for contrast in contrasts:
            self._include(contrast, steps)

    def sizes(self, steps: Sequence[Step | None]) -> tuple[Floats, Floats]:
        """Return mean and covariance of the sizes of some steps; 0 for no step."""
        mean, covariance = np.zeros(len(steps)), np.zeros((len(steps), len(steps)))
        ends = [(i, *self._ends[step]) for i, step in enumerate(steps) if step is not None]
        if ends:
            at, before, after = np.array(ends).T
            mean[at] = self.mean[after] - self.mean[before]
            rows = self.covariance[after] - self.covariance[before]
            covariance[at[:, None], at] = rows[:, after] - rows[:, before]
        return mean, covariance

    def _narrow(self, step: Step) -> None:
        """Make the difference of two levels what was measured side by side."""
        before, after = self._ends[step]
        prior = self._variance_between(after, before)
        if prior <= 0:
            return
        wanted = max(step.error**2, 1e-12 * prior)
        if wanted < 0.95 * prior:
            error = 1 / (1 / wanted - 1 / prior)
            assumed = float(self.mean[after] - self.mean[before])
            seen = assumed + (step.size - assumed) * (prior + error) / prior
            self._observe(after, before, seen, error)

    def _include(self, contrast: Contrast, steps: Sequence[Step]) -> None:
        """Add what a control in one session tells of two stretches that are no neighbours."""
        own = [s for s in steps if s.chain == contrast.chain]
        later = [s for s in own if s.first > contrast.old]
        earlier = [s for s in own if s.last <= contrast.new]
        if not later or not earlier or later[0] is earlier[-1]:
            return
        before, after = self._ends[later[0]][0], self._ends[earlier[-1]][1]
        if before != after and self._ends[later[0]][1] <= after:
            self._observe(after, before, contrast.difference, contrast.error**2)

    def _variance_between(self, a: int, b: int) -> float:
        v = self.covariance
        return float(v[a, a] + v[b, b] - 2 * v[a, b])

    def _observe(self, a: int, b: int, seen: float, variance: float) -> None:
        """Update by: level a - level b was seen as this."""
        gain = self.covariance[:, a] - self.covariance[:, b]
        total = float(gain[a] - gain[b]) + variance
        if total <= 0:
            return
        self.mean = self.mean + gain * ((seen - self.mean[a] + self.mean[b]) / total)
        self.covariance = self.covariance - np.outer(gain, gain) / total


def _shares_level(earlier: Step, later: Step) -> bool:
    apart = abs(earlier.after - later.before)
    error = math.hypot(earlier.after_error, later.before_error)
    return earlier.chain == later.chain and apart <= SAME_LEVEL * error
