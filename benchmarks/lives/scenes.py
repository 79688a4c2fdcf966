"""Fixed scenes: what went wrong once, what the targets name beside the lives, and lives in which
nothing ever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from lives import events
from lives.life import Job, Life, Regression, hooks
from lives.noise import KINDS, SPEED, Noise, Paired
from lives.score import LISTED, LifeScore

Cells = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Scene:
    """Lives of one sort, what they are asked beside the usual, and the targets of both.

    `targets`: cell -> ("at least" or "at most", limit, factor of the figure).
    """

    name: str
    lives: int
    make: Callable[[int], Life]
    ask: Callable[[Life, LifeScore], Cells] = lambda life, score: {}
    targets: Mapping[str, tuple[str, float, float]] = field(default_factory=dict)


def _line(
    number: int, kind: str, commits: int, regressions: tuple[Regression, ...] = (), *,
    seeds: int = 2, sd: float = 0.01, session: float | None = None, jobs: tuple[Job, ...] = (),
    every: int = 1, base: float = 1.0, environments: tuple[int, ...] = (),
) -> Life:  # fmt: skip
    """Return a life of one metric; every `every`th commit has a hook unless `jobs` says else."""
    random = np.random.default_rng([number, *kind.encode(), commits, seeds])
    changed = {p for r in regressions for p in (r.commit, *(m for m, _ in r.mends))}
    level = np.array([base])
    noise = Noise(
        kind, random, level, commits=commits, changed=changed, sd=level * sd, session=session
    )
    offsets = tuple((place, random.uniform(-8, 8, 1)) for place in environments)
    names, touches = events.evidence(random, commits, regressions)
    return Life(
        commits=commits, seeds=seeds, noise=noise, base=level, regressions=regressions,
        jobs=jobs or hooks(range(0, commits, every)), environments=offsets, names=names,
        touches=touches, number=f"scene:{kind}:{number}",
    )  # fmt: skip


def _rise(commit: int, size: float, mended: int | None = None, **more: object) -> Regression:
    mends = () if mended is None else ((mended, 0.0),)
    return Regression(commit, np.array([size]), mends=mends, **more)  # type: ignore[arg-type]


def _states(score: LifeScore, truth: Regression) -> set[str]:
    return {r.state for r in score.rows if r.id in score.known[truth].ids}


def _stairs(number: int) -> Life:
    steps = (_rise(2, 13.3), _rise(4, 13.3, on_top=True), _rise(6, 25, on_top=True))
    every = tuple(range(8))
    jobs = (*hooks((0, 7)), Job("bisect", 7, every), Job("bisect", 7, every))
    return _line(number, "seed", 8, steps, sd=0.003, jobs=jobs)


def _named(life: Life, score: LifeScore) -> Cells:
    named = {(r.first, r.last) for r in score.rows if r.state == "open"}
    return {"all named, open": (named == {(r.commit, r.commit) for r in life.regressions}, 1)}


def _again(number: int) -> Life:
    steps = (_rise(12, 35, 18), _rise(24, 35))
    jobs: list[Job] = [*hooks(range(0, 16, 3))]
    jobs += [Job("bisect", 12, (9, 10, 11, 12)), *hooks(range(18, 31, 3))]
    return _line(number, "seed", 31, steps, jobs=tuple(jobs))


def _first_recovered(life: Life, score: LifeScore) -> Cells:
    first, second = (_states(score, r) for r in life.regressions)
    return {"first recovered, second open": (first == {"recovered"} and second == {"open"}, 1)}


def _memory(number: int) -> Life:
    steps = (_rise(20, 76, 32),)
    return _line(number, "session", 42, steps, sd=0.5 / 364, base=364, session=60, seeds=1)


def _told_and_recovered(life: Life, score: LifeScore) -> Cells:
    (truth,) = life.regressions
    told = score.known[truth].opened is not None
    return {"told": (told, 1), "recovered": ("recovered" in _states(score, truth), 1)}


def _upgrades(kind: str) -> Callable[[int], Life]:
    def make(number: int) -> Life:
        random = np.random.default_rng([number, 77])
        first, second = int(random.integers(15, 45)), int(random.integers(60, 90))
        steps = (_rise(first, 6, int(random.integers(95, 110))), _rise(second, 6, on_top=True))
        return _line(number, kind, 120, steps, every=2, environments=(30, 60, 90))

    return make


def _one_seed(sd: float, steps: tuple[Regression, ...] = ()) -> Callable[[int], Life]:
    return lambda number: _line(number, "seed", 80, steps, seeds=1, sd=sd)


def _told_at_once(life: Life, score: LifeScore) -> Cells:
    (truth,) = life.regressions
    opened = score.known[truth].opened
    return {"told at its first job": (opened == truth.commit, 1)}


def _paired(
    own: float, redrawn: float, size: float, *, seeds: int = 2, share: float = 1.0
) -> Callable[[int], Life]:
    def make(number: int) -> Life:
        random = np.random.default_rng([number, 5])
        place, level = int(random.integers(50, 80)), np.array([1.0])
        steps = (_rise(place, size),) if size else ()
        noise = Paired(
            random,
            level,
            100,
            redrawn=redrawn,
            own=own,
            steps=[r.commit for r in steps],
            share=share,
        )
        return Life(
            commits=100, seeds=seeds, noise=noise, base=level, regressions=steps,
            jobs=hooks(range(100)), number=f"paired:{number}",
        )  # fmt: skip

    return make


def _within(pairs: int) -> Callable[[Life, LifeScore], Cells]:
    def ask(life: Life, score: LifeScore) -> Cells:
        (truth,) = life.regressions
        opened = score.known[truth].opened
        told = opened is not None and opened <= truth.commit + 4
        spent = sum(n for head, n in score.extra if truth.commit <= head <= (opened or 0))
        return {"told": (told, 1), f"told within {pairs} pairs": (told and spent <= 2 * pairs, 1)}

    return ask


def _short(kind: str) -> Callable[[int], Life]:
    """+40 % at sd 2 %, at one commit."""
    steps = (_rise(30, 20, 31, kind="short"),)
    return lambda number: _line(number, kind, 40, steps, sd=0.02, session=1.0)


def _recovered(life: Life, score: LifeScore) -> Cells:
    (truth,) = life.regressions
    return {"recovered": ("recovered" in _states(score, truth), 1)}


def _open_first(life: Life, score: LifeScore) -> Cells:
    return {"ever open": (any(s in LISTED for s in score.states.values()), 1)}


ALWAYS = ("at least", 97.0, 100.0)


def _false(limit: float) -> dict[str, tuple[str, float, float]]:
    return {"false incidents": ("at most", limit, 1000.0)}


def _all() -> Iterator[Scene]:
    yield Scene("stairs", 20, _stairs, _named, {"all named, open": ALWAYS})
    yield Scene("again", 20, _again, _first_recovered, {"first recovered, second open": ALWAYS})
    yield Scene(
        "memory", 20, _memory, _told_and_recovered,
        {"told": ALWAYS, "recovered": ALWAYS, **_false(0.13)},
    )  # fmt: skip
    for kind in ("seed", "session"):
        share = 87.0 if kind == "seed" else 80.0
        targets = {"open list right": ("at least", share, 100.0)}
        yield Scene(f"upgrades-{kind}", 20, _upgrades(kind), targets=targets)
    for kind in (*KINDS, "warm"):
        lives = 10 if kind in (*SPEED, "warm") else 20
        limit = 0.35 if kind != "warm" else 1.0
        yield Scene(f"quiet-{kind}", lives, _quiet(kind), _open_first, _false(limit))
    for sd in (0.005, 0.02, 0.05, 0.15):
        yield Scene(f"one-seed-{sd:g}", 20, _one_seed(sd), targets=_false(0.13))
    rise = (_rise(40, 20),)
    yield Scene(
        "one-seed-rise", 20, _one_seed(0.02, rise), _told_at_once, {"told at its first job": ALWAYS}
    )
    yield Scene(
        "pairs-alike", 20, _paired(0, 0, 1.0), _within(3),
        {"told within 3 pairs": ("at least", 90.0, 100.0)},
    )  # fmt: skip
    yield Scene(
        "pairs-alike-redrawn", 20, _paired(0, 0.1, 1.0), _within(3),
        {"told within 3 pairs": ("at least", 90.0, 100.0)},
    )  # fmt: skip
    yield Scene(
        "pairs-own", 20, _paired(0.3, 0, 1.0), _within(6),
        {"told within 6 pairs": ("at least", 90.0, 100.0)},
    )  # fmt: skip
    for share in (0.95, 0.8):
        yield Scene(
            f"pairs-{share:g}", 20, _paired(0, 0, 1.0, share=share), _within(6),
            {"told within 6 pairs": ("at least", 90.0, 100.0)},
        )  # fmt: skip
        yield Scene(
            f"pairs-{share:g}-quiet", 20, _paired(0, 0.1, 0.0, share=share), targets=_false(0.13)
        )
    yield Scene("pairs-redrawn", 20, _paired(0, 1.0, 0.0), targets=_false(0.13))
    yield Scene(
        "short-quality", 20, _short("seed"), _recovered, {"recovered": ("at least", 95, 100.0)}
    )
    yield Scene(
        "short-speed", 20, _short("session"), _recovered, {"recovered": ("at least", 95, 100.0)}
    )
    for metrics, false, extra, lives in ((10, 0.4, 1.8, 6), (100, 1.0, 2.0, 1)):
        yield Scene(
            f"many-{metrics}", lives, lambda n, m=metrics: events.life(n, "seed", m),
            targets=_false(false) | {"extra trials": ("at most", extra, 1.0)},
        )  # fmt: skip


def _quiet(kind: str) -> Callable[[int], Life]:
    return lambda number: _line(number, kind, 120, every=2)


SCENES = {scene.name: scene for scene in _all()}
