"""What is true of a simulated life: commits, regressions, environments, and the jobs that measure.

Places are positions on a line of commits, 0 the oldest. Larger values are worse. Sizes are in
standard deviations of a trial at the life's first level, one a metric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

Floats = np.ndarray
MOST_BISECTED = 9
"""Commits that a bisect of a life measures, both ends among them."""


@dataclass(frozen=True, eq=False)
class Regression:
    """One cause.

    Attributes:
        commit: The first bad one; of a drift, the first that moves.
        sizes: (metrics,) rise in sd.
        commits: Over how many commits it rises; 1 for a step.
        mends: Place and share of the whole that is left from there on.
        accepted: The number of hooks after which a person accepts it; None: never.
        kind: "step", "drift" or "short" (risen at one commit).
        beside_environment: It came in the same job as a change of environment.
        on_top: Another one was open, or came within the same cluster, when it came.
    """

    commit: int
    sizes: Floats
    commits: int = 1
    mends: tuple[tuple[int, float], ...] = ()
    accepted: int | None = None
    kind: str = "step"
    beside_environment: bool = False
    on_top: bool = False

    @property
    def last(self) -> int:
        """Return the newest commit that belongs to it."""
        return self.commit + self.commits - 1

    @property
    def size(self) -> float:
        """Return the rise of the metric that moves most."""
        return float(self.sizes.max())

    @property
    def mended(self) -> int | None:
        """Return the place from which nothing of it is left."""
        return next((place for place, left in self.mends if left == 0), None)

    def left(self, place: int) -> float:
        """Return the share of its rise that is in the code of a commit."""
        if place < self.commit:
            return 0.0
        share = min(1.0, (place - self.commit + 1) / self.commits)
        for mend, left in self.mends:
            if place >= mend:
                share = min(share, left)
        return share


@dataclass(frozen=True)
class Job:
    """A hook measures `head`; a bisect measures `commits`, which lie between two measured ones."""

    kind: str
    head: int
    commits: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One trial. `rank`: how many trials of its session began before it."""

    commit: int
    seed: int
    environment: int
    session: int
    rank: int
    values: Floats


class NoiseOfLife(Protocol):
    """Draws what a trial reports."""

    speed: bool
    sd: Floats

    def start_session(self) -> None: ...

    def value(
        self, level: Floats, commit: int, seed: int, environment: int, rank: int
    ) -> Floats: ...

    def rounded(self, values: Floats) -> Floats: ...

    def growth(self, level: float) -> float:
        """Return the sd of a trial at a level (in sd above the first), in first sd."""
        ...


@dataclass(eq=False)
class Life:
    """One repository: what is true, and in which order it is measured.

    Attributes:
        moves: Place and rise (metrics,) of changes that are no regression: improvements.
        environments: Places from which another environment measures, and its offset (metrics,).
        names: What a commit's subject says it reverts.
        touches: (commits, commits) does the newer commit change a file of the older one?
    """

    commits: int
    seeds: int
    noise: NoiseOfLife
    base: Floats
    regressions: tuple[Regression, ...]
    jobs: tuple[Job, ...]
    moves: tuple[tuple[int, Floats], ...] = ()
    environments: tuple[tuple[int, Floats], ...] = ()
    names: Mapping[int, int] = field(default_factory=dict)
    touches: np.ndarray | None = None
    number: str = ""

    @property
    def metrics(self) -> int:
        return self.base.size

    @property
    def speed(self) -> bool:
        return self.noise.speed

    def rise(self, place: int) -> Floats:
        """Return how far a commit's levels are above the first one's, in sd."""
        total = np.zeros(self.metrics)
        for regression in self.regressions:
            total += regression.left(place) * regression.sizes
        for move, size in self.moves:
            if place >= move:
                total += size
        return total

    def environment(self, head: int) -> int:
        return sum(head >= place for place, _ in self.environments)

    def touched(self, newer: int, older: int) -> bool:
        return self.touches is not None and bool(self.touches[newer, older])

    def heads(self) -> list[int]:
        return [job.head for job in self.jobs if job.kind == "hook"]


class Session:
    """What a judge may do in one job: run trials of commits, which counts."""

    def __init__(self, life: Life, job: int, seen: dict[int, int]) -> None:
        self.life = life
        self.number = job
        self.job = life.jobs[job]
        self.environment = life.environment(self.job.head)
        self.trials: list[Trial] = []
        self._seen = seen
        life.noise.start_session()

    def run(self, commit: int, count: int = 1) -> list[Trial]:
        """Run seeds that the commit has not seen yet."""
        first = self._seen.get(commit, 0)
        return [self.run_seed(commit, seed) for seed in range(first, first + count)]

    def run_seed(self, commit: int, seed: int) -> Trial:
        life, environment, rank = self.life, self.environment, len(self.trials)
        level = life.rise(commit)
        noise = life.noise.value(level, commit, seed, environment, rank)
        offset = life.environments[environment - 1][1] if environment else 0.0
        values = life.noise.rounded(life.base + life.noise.sd * (level + offset) + noise)
        trial = Trial(commit, seed, environment, self.number, rank, values)
        self._seen[commit] = max(self._seen.get(commit, 0), seed + 1)
        self.trials.append(trial)
        return trial


def bisected(low: int, high: int) -> tuple[int, ...]:
    """Return the commits that a bisect of low..high measures: both ends, and up to seven between,
    evenly spread."""
    inner = high - low - 1
    picked = np.linspace(low, high, min(inner, MOST_BISECTED - 2) + 2)
    return tuple(sorted({round(x) for x in picked}))


def hooks(places: Sequence[int]) -> tuple[Job, ...]:
    return tuple(Job("hook", place) for place in places)
