"""Draws lives: 60 to 180 commits, a hook every 1 to 5 of them, 1 to 3 seeds, and what happens.

Events follow one another by 16 to 50 commits; many begin while others are open. A step is reverted
after 5 to 25 commits (.4), accepted after 2 to 8 hooks (.25) or left. Of the full mends 75 % are
reverts, which name what they revert in 70 % and touch its files in 90 %; the others are fixes,
which touch them in 60 %. 2 % of the other commits revert something else. 10 % of the regressions
are reverted in name only, which mends nothing. Any other commit touches a regression's files in
8 %. A bisect follows the first job that measures a regression in 35 %.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from lives.life import Floats, Job, Life, Regression, bisected, hooks
from lives.noise import Noise, log_uniform

SMALLEST, LARGEST = 1.5, 10.0
REVERTS, NAMED, REVERT_TOUCHES, FIX_TOUCHES = 0.75, 0.7, 0.9, 0.6
OTHER_REVERTS, IN_NAME_ONLY, FOREIGN_FILES = 0.02, 0.1, 0.08
BISECTED = 0.35
EVENTS = {
    "step": 0.24,
    "cluster": 0.1,
    "second": 0.12,
    "partial": 0.1,
    "drift": 0.1,
    "environment": 0.08,
    "environment_and_step": 0.1,
    "improvement": 0.07,
    "gap": 0.05,
    "short": 0.06,
}


class Story:
    """Gathers what happens in one life."""

    def __init__(self, random: Generator, metrics: int) -> None:
        self.random, self.metrics = random, metrics
        self.commits = int(random.integers(60, 181))
        self.regressions: list[Regression] = []
        self.moves: list[tuple[int, Floats]] = []
        self.environments: list[tuple[int, Floats]] = []
        self.gaps: list[tuple[int, int]] = []
        self.measured: set[int] = set()  # commits that have a hook of their own
        self._taken: set[int] = set()

    def tell(self) -> None:
        """Let events follow one another to the end."""
        names, weights = list(EVENTS), np.array(list(EVENTS.values()))
        place = int(self.random.integers(10, 18))
        while place < self.commits - 10:
            event = str(self.random.choice(names, p=weights / weights.sum()))
            end = getattr(self, f"_{event}")(place)
            place = end + int(self.random.integers(16, 51))

    def _free(self, place: int) -> int:
        """Return the first commit from `place` on at which nothing happens yet."""
        while place in self._taken:
            place += 1
        self._taken.add(place)
        return place

    def _sizes(self, low: float = SMALLEST, high: float = LARGEST) -> Floats:
        """Draw how far each metric moves: one by the size drawn, of the others half, by less."""
        sizes = float(log_uniform(self.random, low, high)) * np.ones(self.metrics)
        if self.metrics > 1:
            others = self.random.uniform(0.2, 1, self.metrics)
            sizes *= others * (self.random.random(self.metrics) < 0.5)
            sizes[self.random.integers(self.metrics)] = sizes.max() or self._sizes(low, high).max()
        return sizes

    def _fate(self, place: int) -> tuple[tuple[tuple[int, float], ...], int | None]:
        """Draw the mends and the acceptance of a step."""
        drawn = self.random.random()
        if drawn < 0.4:
            return ((self._free(place + int(self.random.integers(5, 26))), 0.0),), None
        return (), int(self.random.integers(2, 9)) if drawn < 0.65 else None

    def _add(self, place: int, **more: object) -> int:
        place = self._free(place)
        mends, accepted = self._fate(place)
        facts = {"mends": mends, "accepted": accepted, "sizes": self._sizes()} | more
        facts.setdefault("on_top", self._is_open(place))
        self.regressions.append(Regression(place, **facts))  # type: ignore[arg-type]
        return place

    def _is_open(self, place: int) -> bool:
        return any(r.left(place) > 0 for r in self.regressions)

    def _step(self, place: int) -> int:
        return self._add(place)

    def _cluster(self, place: int) -> int:
        """Three steps within 4 to 8 commits."""
        length = int(self.random.integers(4, 9))
        middle = int(self.random.integers(1, length))
        self._add(place)
        self._add(place + middle, on_top=True)
        return self._add(place + length, on_top=True)

    def _second(self, place: int) -> int:
        """A second regression comes while the first is open."""
        first = self._add(place, mends=(), accepted=None)
        second = self._add(first + int(self.random.integers(4, 16)), on_top=True, accepted=None)
        if self.random.random() < 0.5:
            mend = self._free(second + int(self.random.integers(4, 20)))
            at = next(i for i, r in enumerate(self.regressions) if r.commit == first)
            old = self.regressions[at]
            self.regressions[at] = Regression(
                old.commit, old.sizes, mends=((mend, 0.0),), on_top=old.on_top
            )
        return second

    def _partial(self, place: int) -> int:
        """A part of it is mended, then perhaps the rest."""
        part = self._free(place + int(self.random.integers(6, 21)))
        mends = [(part, float(self.random.uniform(0.3, 0.7)))]
        if self.random.random() < 0.4:
            mends.append((self._free(part + int(self.random.integers(6, 16))), 0.0))
        self._add(place, mends=tuple(mends), accepted=None)
        return part

    def _drift(self, place: int) -> int:
        length = int(self.random.integers(25, 46))
        if place + length > self.commits - 8:
            return self._step(place)
        mends, accepted = self._fate(place + length)
        self._add(
            place, commits=length, kind="drift", sizes=self._sizes(3, 8), mends=mends,
            accepted=accepted,
        )  # fmt: skip
        return place + length

    def _environment(self, place: int) -> int:
        offset = np.zeros(self.metrics)
        if self.random.random() < 0.6:
            offset = log_uniform(self.random, 1, 8, self.metrics)
            offset *= self.random.choice([-1, 1], self.metrics)
        self.environments.append((place, offset))
        return place

    def _environment_and_step(self, place: int) -> int:
        self._environment(place)
        return self._add(place, beside_environment=True)

    def _improvement(self, place: int) -> int:
        place = self._free(place)
        self.moves.append((place, -self._sizes()))
        return place

    def _gap(self, place: int) -> int:
        """No hook comes for 8 to 15 commits; half the time a step lies within."""
        length = int(self.random.integers(8, 16))
        self.gaps.append((place, place + length))
        if self.random.random() < 0.5:
            self._add(place + int(self.random.integers(1, length)))
        return place + length

    def _short(self, place: int) -> int:
        """A rise that the very next commit mends; a hook measures both."""
        place = self._free(place)
        mend = self._free(place + 1)
        if mend != place + 1:
            return self._step(place)
        self.measured |= {place, mend}
        self.regressions.append(
            Regression(
                place, self._sizes(), mends=((mend, 0.0),), kind="short",
                on_top=self._is_open(place),
            )
        )  # fmt: skip
        return mend

    def changed(self) -> set[int]:
        """Return every commit that changes a level."""
        places = {place for place, _ in self.moves}
        for r in self.regressions:
            places |= set(range(r.commit, r.last + 1)) | {place for place, _ in r.mends}
        return places


def life(number: int, kind: str, metrics: int = 1) -> Life:
    """Draw life `number` of a kind of noise."""
    random = np.random.default_rng([number, *kind.encode(), metrics])
    story = Story(random, metrics)
    story.tell()
    base = log_uniform(random, 0.1, 100, metrics)
    noise = Noise(kind, random, base, commits=story.commits, changed=story.changed())
    # Events may lie beyond the last commit: they do not happen.
    regressions = tuple(
        sorted((r for r in story.regressions if r.commit < story.commits), key=lambda r: r.commit)
    )
    names, touches = evidence(random, story.commits, regressions)
    return Life(
        commits=story.commits, seeds=int(random.integers(1, 4)), noise=noise, base=base,
        regressions=regressions, jobs=_jobs(random, story, regressions), moves=tuple(story.moves),
        environments=tuple(sorted(story.environments, key=lambda e: e[0])), names=names,
        touches=touches, number=f"{kind}:{number}",
    )  # fmt: skip


def _jobs(random: Generator, story: Story, regressions: tuple[Regression, ...]) -> tuple[Job, ...]:
    every, place, places = int(random.integers(1, 6)), 0, []
    while place < story.commits:
        if not any(low <= place < high for low, high in story.gaps):
            places.append(place)
        place += int(np.clip(every + random.integers(-1, 2), 1, 5))
    jobs: list[Job] = []
    asked = {r.commit for r in regressions if r.commits == 1 and random.random() < BISECTED}
    environments = [place for place, _ in story.environments]
    before = 0
    for job in hooks(sorted({*places, *(p for p in story.measured if p < story.commits)})):
        jobs.append(job)
        due = {c for c in asked if before < c <= job.head}
        new_environment = any(before < e <= job.head for e in environments)
        if due and job.head - before > 1 and not new_environment:
            jobs.append(Job("bisect", job.head, bisected(before, job.head)))
        before = job.head
    return tuple(jobs)


def evidence(
    random: Generator, commits: int, regressions: tuple[Regression, ...]
) -> tuple[dict[int, int], np.ndarray]:
    """Draw what subjects name and which files commits share."""
    touches = np.tril(random.random((commits, commits)) < FOREIGN_FILES, -1)
    names = {
        c: int(random.integers(0, c)) for c in range(1, commits) if random.random() < OTHER_REVERTS
    }
    for r in regressions:
        for place, left in r.mends:
            if place >= commits:
                continue
            names.pop(place, None)
            is_revert = left == 0 and random.random() < REVERTS
            share = REVERT_TOUCHES if is_revert else FIX_TOUCHES
            touches[place, r.commit : min(r.last, place - 1) + 1] = random.random() < share
            if is_revert and random.random() < NAMED:
                names[place] = r.commit
        futile = r.commit + int(random.integers(3, 21))
        mends = {place for x in regressions for place, _ in x.mends}
        if random.random() < IN_NAME_ONLY and futile < commits and futile not in mends:
            names[futile] = r.commit
            touches[futile, r.commit] = random.random() < REVERT_TOUCHES
    return names, touches
