"""Ten kinds of noise, and what scenes need beside them.

| kind | a trial reports, in sd beyond its level |
|---|---|
| seed | N(0, 1), drawn anew for every trial |
| exact | a seed repeats bit by bit; one commit in four, events, environments draw all seeds anew |
| outlier | N(0, 1), 3 % lie 5 to 20 sd off, on either side |
| collapse | N(0, 1), 3 to 12 % lie 6 to 20 sd above (both one a life; spread .15 of the latter) |
| integer | N(0, 1), then rounded to multiples of .5 to 1.5 sd |
| scale | N(0, 1) times 1 + .1 × the level's rise in sd, at least .4 |
| session | N(0, 1), and an effect of the session of .5 to 3 sd (log-uniform, one a life) |
| walk | N(0, 1), and a state of the machine: AR(1), .9 a session, sd .5 to 3 |
| share | as "session", noise and effect both in proportion to the level |
| lognormal | a log-normal of sigma .6 with sd 1, and an effect of the session of .2 to 1 sd |

The sd is .3 to 3 % of the level for quality and 1 to 5 % for speed, 3 to 10 % for "share"
(log-uniform, one a metric).
Several metrics share half of a trial's variance. `warm`: "walk", and a session's first trials are
slower by 1.5 sd × e^(-rank/3). `paired`: seeds repeat and keep their own part over commits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.random import Generator

from lives.life import Floats

QUALITY = ("seed", "exact", "outlier", "collapse", "integer", "scale")
SPEED = ("session", "walk", "lognormal", "share")
KINDS = QUALITY + SPEED
SHARED = 0.5  # of a trial's variance, between the metrics of a task
REDRAWN = 0.25  # of the commits that change no level draw all seeds anew ("exact")
GROWTH = 0.1  # of the sd for each sd of rise ("scale")
MACHINE = 0.9  # of the machine's state stays from session to session ("walk")


def log_uniform(random: Generator, low: float, high: float, size: int | None = None) -> Floats:
    return np.exp(random.uniform(math.log(low), math.log(high), size))


class Noise:
    """What trials of one life report beyond their level."""

    def __init__(
        self, kind: str, random: Generator, base: Floats, *, commits: int = 1,
        changed: Iterable[int] = (), sd: Floats | None = None, session: float | None = None,
    ) -> None:  # fmt: skip
        self.kind = kind
        self.speed = kind in (*SPEED, "warm")
        self.metrics = base.size
        self._random = random
        self.grows = self.speed and session is None  # times: that of memory is given
        low, high = (0.01, 0.05) if self.speed else (0.003, 0.03)
        if kind == "share":
            low, high = 0.03, 0.1
        self.sd = base * log_uniform(random, low, high, base.size) if sd is None else sd
        self._collapses = float(random.uniform(0.03, 0.12))
        self._fall = float(log_uniform(random, 6, 20))
        self._digit = self.sd * random.uniform(0.5, 1.5, base.size)
        widest = {
            "session": (0.5, 3.0),
            "walk": (0.5, 3.0),
            "warm": (0.5, 3.0),
            "lognormal": (0.2, 1),
            "share": (0.5, 3.0),
        }
        drawn = float(log_uniform(random, *widest.get(kind, (1.0, 1.0))))
        self.session_sd = (drawn if session is None else session) if self.speed else 0.0
        self._share = self.sd / base if kind == "share" else np.zeros(base.size)
        self._effect = self.session_sd * random.standard_normal(base.size)
        redrawn = (random.random(commits) < REDRAWN).tolist()
        self._draw = np.cumsum([r or c in set(changed) for c, r in enumerate(redrawn)])
        self._repeats: dict[tuple[int, int, int], Floats] = {}

    def start_session(self) -> None:
        fresh = self.session_sd * self._normal(1.0)
        stays = MACHINE if self.kind in ("walk", "warm") else 0.0
        self._effect = stays * self._effect + math.sqrt(1 - stays**2) * fresh

    def growth(self, level: float) -> float:
        if self.kind == "scale":
            return max(0.4, 1 + GROWTH * level)
        return 1 + float(self._share.mean()) * level

    def value(self, level: Floats, commit: int, seed: int, environment: int, rank: int) -> Floats:
        if self.kind == "exact":
            key = (environment, int(self._draw[commit]), seed)
            if key not in self._repeats:
                self._repeats[key] = self.sd * self._normal()
            return self._repeats[key]
        z = self._normal()
        if self.kind == "outlier" and self._random.random() < 0.03:
            z = z + self._random.choice([-1, 1]) * self._random.uniform(5, 20)
        if self.kind == "collapse" and self._random.random() < self._collapses:
            z = z + self._fall * (1 + 0.15 * self._random.standard_normal())
        if self.kind == "scale":
            z = z * np.array([self.growth(float(x)) for x in level])
        if self.kind == "lognormal":
            mean, sd = math.exp(0.18), math.exp(0.18) * math.sqrt(math.exp(0.36) - 1)
            z = (np.exp(0.6 * z) - mean) / sd
        if self.kind == "warm":
            z = z + 1.5 * math.exp(-rank / 3)
        return self.sd * (z + self._effect) * (1 + self._share * level)

    def rounded(self, values: Floats) -> Floats:
        """Return the values as the metric can have them."""
        if self.kind != "integer":
            return values
        return np.round(values / self._digit) * self._digit

    def _normal(self, shared: float = SHARED) -> Floats:
        if self.metrics == 1:
            return self._random.standard_normal(1)
        own = self._random.standard_normal(self.metrics)
        return math.sqrt(shared) * self._random.standard_normal() + math.sqrt(1 - shared) * own


class Paired:
    """Equal seeds: y(c, i) = level(c) + u(i). `own`: sd of the part that a step adds to each seed
    alone; `redrawn`: share of the commits that draw all seeds anew; `share`: of the variance, that
    is the seed's. The rest is drawn anew for every trial."""

    speed = False

    def __init__(
        self, random: Generator, base: Floats, commits: int, *, redrawn: float = 0.0,
        own: float = 0.0, steps: Iterable[int] = (), sd: float = 0.01, share: float = 1.0,
    ) -> None:  # fmt: skip
        self.sd, self._share = base * sd, share
        self._random, self._own = random, own
        drawn = random.random(commits) < redrawn
        drawn[list(steps)] = False
        self._draw = np.cumsum(drawn)
        self._steps = np.array(sorted(steps), int)
        self._parts: dict[tuple[int, ...], float] = {}

    def start_session(self) -> None:
        pass

    def growth(self, level: float) -> float:
        return 1.0

    def rounded(self, values: Floats) -> Floats:
        return values

    def value(self, level: Floats, commit: int, seed: int, environment: int, rank: int) -> Floats:
        """Return the seed's part. A re-draw forgets what steps before it added."""
        draw = int(self._draw[commit])
        total = self._part(math.sqrt(self._share), environment, draw, seed)
        if self._share < 1:
            total += math.sqrt(1 - self._share) * self._random.standard_normal()
        for step in self._steps[self._steps <= commit]:
            if self._draw[step] == draw:
                total += self._part(self._own, environment, draw, seed, int(step))
        return self.sd * total

    def _part(self, sd: float, *key: int) -> float:
        if key not in self._parts:
            self._parts[key] = sd * self._random.standard_normal()
        return self._parts[key]
