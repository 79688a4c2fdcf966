"""Change points on simulated histories: celedger beside its peers, in one process.

    python benchmarks/changepoint_simulator.py [--cases 40] [--peers] [--only NAME]
    python benchmarks/changepoint_simulator.py --only sparse --cases 200

Prints tables: F1 by scenario (a change counts as found within 5 commits), false alarms per 1,000
points on histories without a change, coverage of the 95 % set, coverage of what `celedger drift`
states on sparsely measured histories with merges, and time by length. Peers
(apache-otava, ruptures) are run where pip has put them; nothing else is needed. The scenarios were
written before anything was tuned on them; a cell's standard error is printed with it.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from celedger.base.model import (
    Command,
    Commit,
    Direction,
    Environment,
    Kind,
    Metric,
    Outcome,
    OutcomeKind,
    Task,
    Trial,
    Why,
)
from celedger.judge.drift.level_changes import courses
from celedger.ledger import Ledger
from celedger.repo import Ancestry
from celedger.stats.changepoints import detect

MARGIN = 5
Floats = np.ndarray
Detector = Callable[[Floats], list[int]]


@dataclass(frozen=True)
class History:
    values: Floats
    changes: tuple[int, ...]


Law = Callable[[np.random.Generator, int], Floats]


def normal(random: np.random.Generator, n: int) -> Floats:
    return random.standard_normal(n)


def heavy(random: np.random.Generator, n: int) -> Floats:
    """Student's t with 3 degrees of freedom, sd 1 in its core (IQR of the normal law)."""
    return random.standard_t(3, n) * 0.6745 / 0.7649


def skewed(random: np.random.Generator, n: int) -> Floats:
    """Log-normal, sigma 0.5, scaled to the IQR of the normal law."""
    return (np.exp(0.5 * random.standard_normal(n)) - 1) * 1.349 / 0.6872


def outliers(random: np.random.Generator, n: int) -> Floats:
    far = random.uniform(5, 20, n) * random.choice([-1, 1], n)
    return random.standard_normal(n) + (random.random(n) < 0.03) * far


def discrete(random: np.random.Generator, n: int) -> Floats:
    return np.round(random.standard_normal(n) * 1.5) / 1.5


def autocorrelated(random: np.random.Generator, n: int, rho: float = 0.3) -> Floats:
    white = random.standard_normal(n) * math.sqrt(1 - rho**2)
    x = np.empty(n)
    x[0] = random.standard_normal()
    for i in range(1, n):
        x[i] = rho * x[i - 1] + white[i]
    return x


def bimodal(random: np.random.Generator, n: int) -> Floats:
    return (random.random(n) < 0.4) * 2.0 + 0.3 * random.standard_normal(n)


def laplace(random: np.random.Generator, n: int) -> Floats:
    return random.laplace(size=n) * 0.973


def uniform(random: np.random.Generator, n: int) -> Floats:
    return random.uniform(-1.7, 1.7, n)


def pinned(random: np.random.Generator, n: int) -> Floats:
    """Equal seeds: a commit repeats the one before, but one in five draws anew."""
    fresh = random.standard_normal(n)
    drawn = random.random(n) < 0.2
    drawn[0] = True
    return fresh[np.maximum.accumulate(np.where(drawn, np.arange(n), 0))]


def with_steps(
    random: np.random.Generator, noise: Floats, sizes: list[float], gap: int = 15
) -> History:
    """Steps of the given sizes (random signs) at random places, `gap` apart from each other."""
    n = noise.size
    free = n - gap * (len(sizes) + 1)
    at = np.sort(random.integers(0, free + 1, len(sizes))) + gap * np.arange(1, len(sizes) + 1)
    level = np.zeros(n)
    for place, size in zip(at, sizes, strict=True):
        level[place:] += size * random.choice([-1, 1])
    return History(noise + level, tuple(int(a) for a in at))


def pinned_steps(random: np.random.Generator, n: int, count: int) -> History:
    """A step draws anew by itself: a change of the code is a change of the numbers."""
    gap = 25
    free = n - gap * (count + 1)
    at = np.sort(random.integers(0, free + 1, count)) + gap * np.arange(1, count + 1)
    fresh, drawn = random.standard_normal(n), random.random(n) < 0.2
    drawn[0] = True
    drawn[at] = True
    noise = fresh[np.maximum.accumulate(np.where(drawn, np.arange(n), 0))]
    level = np.zeros(n)
    for place in at:
        level[place:] += random.uniform(5, 8) * random.choice([-1, 1])
    return History(noise + level, tuple(int(a) for a in at))


def one_step(size: float, n: int = 200) -> Callable[[np.random.Generator], History]:
    return lambda random: with_steps(random, normal(random, n), [size], gap=30)


def several(law: Law, n: int = 400) -> Callable[[np.random.Generator], History]:
    def draw(random: np.random.Generator) -> History:
        sizes = random.uniform(2, 6, 6).tolist()
        return with_steps(random, law(random, n), sizes, gap=25)

    return draw


def heteroscedastic(random: np.random.Generator) -> History:
    """The noise doubles for the second half, with steps of 4 to 8 sd."""
    noise = normal(random, 300) * np.where(np.arange(300) < 150, 1.0, 2.0)
    return with_steps(random, noise, random.uniform(5, 8, 3).tolist(), gap=30)


def drifting(random: np.random.Generator) -> History:
    """A slow drift of one sd over the history, which is no step, and two steps that are."""
    noise = normal(random, 300) + np.linspace(0, 1, 300)
    return with_steps(random, noise, random.uniform(3, 6, 2).tolist(), gap=30)


def transient(random: np.random.Generator) -> History:
    """A regression that is fixed again after 6 to 15 commits."""
    x = normal(random, 200)
    start, length = int(random.integers(40, 140)), int(random.integers(6, 16))
    x[start : start + length] += random.uniform(4, 6)
    return History(x, (start, start + length))


def short(random: np.random.Generator) -> History:
    return with_steps(random, normal(random, 40), [random.uniform(3, 6)], gap=10)


def late(random: np.random.Generator) -> History:
    """A step of 4 to 6 sd only five commits before the end."""
    x = normal(random, 150)
    x[-5:] += random.uniform(4, 6)
    return History(x, (145,))


SCENARIOS: dict[str, Callable[[np.random.Generator], History]] = {
    "step 0.5": one_step(0.5),
    "step 1": one_step(1.0),
    "step 2": one_step(2.0),
    "step 4": one_step(4.0),
    "step 8": one_step(8.0),
    "several": several(normal),
    "several t3": several(heavy),
    "several skewed": several(skewed),
    "several outliers": several(outliers),
    "several discrete": several(discrete),
    "several AR .3": several(autocorrelated),
    "pinned": lambda random: pinned_steps(random, 300, 4),
    "heteroscedastic": heteroscedastic,
    "drift": drifting,
    "transient": transient,
    "short": short,
    "late": late,
}

LAWS: dict[str, Law] = {
    "normal": normal,
    "t3": heavy,
    "skewed": skewed,
    "outliers": outliers,
    "discrete": discrete,
    "bimodal": bimodal,
    "uniform": uniform,
    "AR .3": autocorrelated,
    "pinned": pinned,
}


def clean(random: np.random.Generator) -> History:
    """The clean battery: other laws and lengths than the scenarios, steps of 1.5 to 8 sd."""
    n = int(random.choice([60, 120, 250, 500, 1000, 1500]))
    law = [laplace, uniform, normal, heavy, skewed][random.integers(5)]
    count = int(random.integers(1, max(2, min(8, n // 50)) + 1))
    gap = max(10, min(25, n // (count + 2)))
    sizes = random.uniform(1.5, 8, count).tolist()
    return with_steps(random, law(random, n) * 3.7, [s * 3.7 for s in sizes], gap=gap)


def ours(x: Floats) -> list[int]:
    return [p.index for p in detect(x).points]


def ours_confirmed(x: Floats) -> list[int]:
    return [p.index for p in detect(x).points if p.confirmed]


def peers() -> dict[str, Detector]:
    found: dict[str, Detector] = {}
    try:
        from otava.analysis import compute_change_points

        def otava(p: float) -> Detector:
            return lambda x: [c.index for c in compute_change_points(x.tolist(), max_pvalue=p)[0]]

        found["otava"] = otava(0.001)
        found["otava 1e-5"] = otava(1e-5)
    except ImportError:
        print("apache-otava is not installed: left out")
    try:
        import ruptures

        def pelt(x: Floats) -> list[int]:
            sd = float(np.median(np.abs(np.diff(x)))) * 1.4826 / math.sqrt(2)
            model = ruptures.KernelCPD(kernel="linear", min_size=2).fit(x[:, None] / max(sd, 1e-12))
            return list(model.predict(pen=5 * math.log(x.size)))[:-1]

        found["PELT 5 log n"] = pelt
    except ImportError:
        print("ruptures is not installed: left out")
    return found


def matches(truth: tuple[int, ...], found: list[int], margin: int = MARGIN) -> int:
    """The most pairs (true, found) within the margin, each used once."""
    left = sorted(found)
    hits = 0
    for t in truth:
        near = [f for f in left if abs(f - t) <= margin]
        if near:
            left.remove(min(near, key=lambda f: abs(f - t)))
            hits += 1
    return hits


def f1(cases: list[History], detector: Detector) -> tuple[float, float, float]:
    """(F1, precision, recall), counted over all cases."""
    hits = truth = found = 0
    for case in cases:
        answer = detector(case.values)
        hits += matches(case.changes, answer)
        truth += len(case.changes)
        found += len(answer)
    precision, recall = hits / max(1, found), hits / max(1, truth)
    return 2 * hits / max(1, truth + found), precision, recall


def draw(name: str, count: int, seed: int = 1) -> list[History]:
    scenario = clean if name == "clean" else SCENARIOS[name]
    return [scenario(np.random.default_rng([seed, sum(name.encode()), i])) for i in range(count)]


def table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)))
    print()


def scenarios(detectors: dict[str, Detector], cases: int, only: str) -> None:
    rows, sums = [], dict.fromkeys(detectors, 0.0)
    names = [n for n in SCENARIOS if only in n]
    for name in names:
        drawn = draw(name, cases)
        scores = {d: f1(drawn, f)[0] for d, f in detectors.items()}
        rows.append([name, *(f"{s:.3f}" for s in scores.values())])
        for d, s in scores.items():
            sums[d] += s
    rows.append(["mean", *(f"{s / len(names):.3f}" for s in sums.values())])
    print(f"F1 by scenario, {cases} histories each, margin {MARGIN}")
    table(["scenario", *detectors], rows)


def clean_battery(detectors: dict[str, Detector], cases: int) -> None:
    drawn = draw("clean", cases)
    rows = [[d, *(f"{s:.3f}" for s in f1(drawn, f))] for d, f in detectors.items()]
    print(f"clean battery, {cases} histories")
    table(["detector", "F1", "precision", "recall"], rows)


def false_alarms(detectors: dict[str, Detector], cases: int) -> None:
    rows = []
    for name, law in LAWS.items():
        counts = dict.fromkeys(detectors, 0)
        for i in range(cases):
            x = law(np.random.default_rng([2, sum(name.encode()), i]), 1000)
            for d, f in detectors.items():
                counts[d] += len(f(x))
        rows.append([name, *(f"{c / cases:.3f}" for c in counts.values())])
    print(f"false alarms per 1,000 points, {cases} histories of 1,000 points without a change")
    table(["noise", *detectors], rows)


def coverage(cases: int) -> None:
    rows = []
    for size in (1.0, 1.5, 2.0, 4.0):
        for law in (normal, heavy, outliers):
            held, sizes, total = 0, [], 0
            for i in range(cases):
                random = np.random.default_rng([3, int(size * 10), i])
                case = with_steps(random, law(random, 200), [size], gap=40)
                near = [
                    p for p in detect(case.values).points if abs(p.index - case.changes[0]) <= 30
                ]
                if len(near) == 1:
                    total += 1
                    held += case.changes[0] in near[0].commits
                    sizes.append(len(near[0].commits))
            share = held / max(1, total)
            rows.append(
                [
                    f"{size:g} sd",
                    law.__name__,
                    f"{share:.3f}",
                    f"{np.median(sizes):.0f}",
                    str(total),
                ]
            )
    print("share of 95 % sets that hold the commit, and their median size")
    table(["step", "noise", "held", "size", "found"], rows)


# Sparse histories ---------------------------------------------------------------------------

LOSS = Metric("loss", "", Direction.LOWER, Kind.QUALITY)
TASK = Task("simulated", "task", (Command("train", ("true",)),), metrics=(LOSS,))
ENVIRONMENTS = tuple(Environment(digit * 64, {}) for digit in "ab")


@dataclass(frozen=True)
class Sparse:
    """A history with merges of which few commits of the main line were measured."""

    lineage: tuple[Commit, ...]  # oldest first
    main: tuple[Commit, ...]
    culprit: Commit
    values: tuple[tuple[Commit, int, tuple[float, ...]], ...]  # commit, environment, by seed


def sparse_history(random: np.random.Generator, law: Law) -> Sparse:
    """Any commit, of the main line or of a merged branch, makes it worse by 2 to 8 sd. In half
    of the histories the environment changes at some commit, with other levels; some commits are
    measured in both."""
    lineage: list[Commit] = []
    main: list[Commit] = []

    def add(*parents: Commit) -> Commit:
        number = len(lineage)
        shas = tuple(parent.sha for parent in parents)
        lineage.append(Commit(f"{number:040x}", "0" * 40, shas, "", number, number, ""))
        return lineage[-1]

    main.append(add())
    for _ in range(int(random.integers(30, 200))):
        tip, merged = main[-1], ()
        if random.random() < 0.2:
            side = main[-int(random.integers(1, min(6, len(main)) + 1))]
            for _ in range(int(random.integers(1, 5))):
                side = add(side)
            merged = (side,)
        main.append(add(tip, *merged))
    culprit = lineage[int(random.integers(1, len(lineage)))]
    ancestry = Ancestry(lineage)
    size, seeds = random.uniform(2, 8), int(random.choice([1, 2, 3, 5]))
    chance = random.uniform(0.08, 0.5)
    change = int(random.integers(1, 2 * len(main)))
    values = []
    for i, commit in enumerate(main):
        if i not in (0, len(main) - 1) and random.random() > chance:
            continue
        level = size * ancestry.descends(commit.sha, culprit.sha)
        both = random.random() < 0.1
        for environment in {int(i >= change), int(both and change < len(main))}:
            noise = law(random, seeds)
            values.append((commit, environment, tuple(noise + level + 3.0 * environment)))
    return Sparse(tuple(lineage), tuple(main), culprit, tuple(values))


def record(ledger: Ledger, case: Sparse) -> None:
    ledger.record_commits(case.lineage)
    ledger.record_task(TASK)
    for environment in ENVIRONMENTS:
        ledger.record_environment(environment)
    ended = Outcome(OutcomeKind.OK, 1.0)
    number = 0
    for commit, environment, values in case.values:
        for seed, value in enumerate(values):
            number += 1
            ulid = f"01K{number:023d}"
            ledger.start_trial(
                Trial(ulid, commit.sha, TASK.recipe, ENVIRONMENTS[environment].fingerprint, seed,
                      Why.RUN, float(number), "simulated")
            )  # fmt: skip
            ledger.finish_trial(ulid, ended, {LOSS.name: float(value)})


def sparse_histories(cases: int) -> None:
    rows = []
    for law in (normal, heavy, outliers, skewed):
        stated = held = without_gaps = several = 0
        sizes = []
        for i in range(cases):
            case = sparse_history(np.random.default_rng([6, sum(law.__name__.encode()), i]), law)
            with (
                tempfile.TemporaryDirectory() as folder,
                Ledger.open(Path(folder) / "ledger.db", create=True) as ledger,
            ):
                ledger._connection.execute("PRAGMA synchronous=OFF")
                record(ledger, case)
                found = courses(ledger, case.main, lineage=case.lineage)
            steps = [step for course in found for step in course.steps]
            valued = {commit.sha for commit, *_ in case.values}
            several += len(steps) > 1
            for step in steps:
                stated += 1
                held += case.culprit in step.among
                without_gaps += case.culprit in step.among and case.culprit.sha in valued
                sizes.append(len(step.among))
        rows.append(
            [
                law.__name__,
                str(stated),
                f"{held / max(1, stated):.3f}",
                f"{without_gaps / max(1, stated):.3f}",
                f"{np.median(sizes):.0f}",
                str(several),
            ]
        )
    print(f"sparse histories, {cases} each: share of the stated sets that hold the commit")
    table(["noise", "stated", "held", "by a measured one", "size", "several steps"], rows)


def short_histories(cases: int) -> None:
    rows = []
    for seeds in (1, 4):
        found = alarms = 0
        for i in range(cases):
            random = np.random.default_rng([4, seeds, i])
            n = int(random.integers(6, 15))
            at = int(random.integers(2, n - 1))
            x = random.standard_normal((n, seeds))
            alarms += len(detect(x).points) > 0
            x[at:] += 2.0
            found += any(abs(p.index - at) <= 1 for p in detect(x).points)
        rows.append([str(seeds), f"{found / cases:.3f}", f"{alarms / cases:.4f}"])
    print(f"6 to 14 commits, {cases} histories: a 2 sd step found within 1, and alarms without")
    table(["seeds", "found", "alarmed"], rows)


def speed(detectors: dict[str, Detector]) -> None:
    rows = []
    for n in (100, 1000, 10_000, 100_000):
        random = np.random.default_rng(5)
        level = np.repeat(random.standard_normal(n // 200 + 1) * 3, 200)[:n]
        x = normal(random, n) + level
        row = [str(n)]
        for f in detectors.values():
            started = time.process_time()
            f(x)
            row.append(f"{time.process_time() - started:.4f}")
        rows.append(row)
    print("CPU seconds, one change in 200 points")
    table(["points", *detectors], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.only == "sparse":
        sparse_histories(options.cases)
        return
    detectors: dict[str, Detector] = {"celedger": ours, "celedger >= .9": ours_confirmed}
    if options.peers:
        detectors |= peers()
    scenarios(detectors, options.cases, options.only)
    if options.only:
        return
    clean_battery(detectors, options.cases * 6)
    false_alarms(detectors, options.cases)
    coverage(options.cases * 5)
    sparse_histories(options.cases * 5)
    short_histories(options.cases * 25)
    speed(detectors)


if __name__ == "__main__":
    main()
