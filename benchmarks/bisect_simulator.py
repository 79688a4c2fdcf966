"""Trials and wrong answers of celedger's bisect, on simulated histories.

Every cell is (commits, shift in standard deviations of one trial, stored trials at each end,
noise). The limit is log2(n) over the capacity of the binary-input channel (Gaussian noise only).
`git show b67de0b:benchmarks/bisect_simulator.py` has its peers on the same cases.

    OMP_NUM_THREADS=1 python benchmarks/bisect_simulator.py --cells quick --cases 100 --jobs 2
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path

import numpy as np

from celedger.stats.choice import choose
from celedger.stats.equal_bits import SignedRange, alike, shows
from celedger.stats.firstbad import (
    Evidence,
    NoisePrior,
    Phase,
    Question,
    Reading,
    posterior,
)
from celedger.stats.lineage import GOOD, Lineage

MOST_TRIALS = 4000
SIGNING = 3.0
"""Seconds of a signature."""
NULL_TRIALS = 400
"""The same where nothing changed: a median needs no more."""


@dataclass(frozen=True)
class Cell:
    """One row of a table."""

    n: int
    shift: float
    stored: int = 10
    noise: str = "gauss"
    """gauss, t3 (sd 1), outlier (5 % with ten times the sd), exact (levels jitter by 1e-3), crash
    (`shift` is how often a bad commit crashes, and those stored at the bad end all did: else
    nobody would have asked)"""
    untestable: float = 0.0
    drift: float = 0.0
    """sd of the small effects of four more commits, in sd of one trial, where the bad end is
    still worse by half the shift"""
    own: float = 0.0
    """sd of every commit's own small effect"""
    sound: float = 0.0
    """how often a good commit crashes all the same"""
    known: float = 0.0
    """degrees of freedom of the noise the ledger knows"""
    redraw: float | None = None
    """trainings repeat to the last bit; share of commits that change bits and so redraw the noise
    of every seed. None: every trial draws anew"""
    bits: bool = True
    """whether equal bits are looked at"""
    confidence: float = 0.95
    signed: float | None = None
    """share of commits that change what the first steps compute. None: nothing is signed"""
    shown: float = 1.0
    """chance that the first bad commit is one of them"""
    cost: float = 100.0
    """seconds of a trial; a signature takes SIGNING"""


@dataclass
class Case:
    """One simulated history: levels by position (GOOD is -1), and a stream of noise."""

    cell: Cell
    first_bad: int
    levels: np.ndarray
    broken: frozenset[int]
    random: np.random.Generator
    classes: np.ndarray
    """(n + 1,) which commits have equal bits, GOOD last"""
    drawn: dict[tuple[int, int], float] = field(default_factory=dict)
    trials: int = 0
    digests: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))
    """(n + 1,) what the first steps of each commit compute, GOOD last"""

    def draw(self) -> float:
        kind = self.cell.noise
        if kind == "t3":
            return float(self.random.standard_t(3) / np.sqrt(3))
        if kind == "outlier":
            wide = 10.0 if self.random.random() < 0.05 else 1.0
            return float(wide * self.random.standard_normal())
        if kind == "exact":
            return 0.0
        return float(self.random.standard_normal())

    def level(self, position: int) -> float:
        return 0.0 if position == GOOD else float(self.levels[position])

    def read(self, position: int) -> float:
        """The value of one more trial."""
        self.trials += 1
        if self.cell.noise == "crash":
            bad = position >= self.first_bad
            return float(self.random.random() < (self.cell.shift if bad else self.cell.sound))
        return self.level(position) + self.draw()


def make(cell: Cell, number: int) -> Case:
    """Case `number` of a cell, the same for every procedure."""
    random = np.random.default_rng([number, cell.n, int(10 * cell.shift)])
    n = cell.n
    first_bad = int(random.integers(n))
    steps = np.zeros(n)
    while cell.drift:
        where = random.choice(n, size=min(4, n), replace=False)
        small = np.zeros(n)
        small[where] = cell.drift * random.standard_normal(len(where))
        small[first_bad] = 0.0
        if cell.shift + small.sum() >= cell.shift / 2:  # else nobody would have seen a change
            steps += small
            break
    if cell.noise == "exact":
        steps += 1e-3 * cell.shift * random.standard_normal(n)
    steps[first_bad] = cell.shift
    levels = np.cumsum(steps) + cell.own * random.standard_normal(n)
    broken = frozenset(int(i) for i in np.flatnonzero(random.random(n) < cell.untestable))
    changes = np.zeros(n, dtype=int)
    if cell.redraw is not None:
        changes = (random.random(n) < cell.redraw).astype(int)
        changes[first_bad] = 1 if cell.shift else changes[first_bad]
    classes = np.append(np.cumsum(changes), 0)
    own = np.random.default_rng([number, n, 31])
    moved = own.random(n) < (cell.signed or 0.0)
    moved[first_bad] = own.random() < cell.shown
    digests = np.append(np.cumsum(moved), 0)
    return Case(cell, first_bad, levels, broken - {n - 1}, random, classes, digests=digests)


@dataclass(frozen=True)
class Answer:
    trials: int
    right: bool
    state: str = "found"
    size: int = 1
    seconds: float = 0.0
    sure: float = 1.0
    signatures: int = 0


class Trials:
    """Readings of a case, by seed and with their bits where trainings repeat exactly."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.readings: list[Reading] = []
        self.numbers: dict[tuple[int, int], int] = {}

    def add(self, position: int, seed: int | None = None) -> None:
        """Run a trial with a seed, or with the first one that tells something."""
        case = self.case
        if case.cell.redraw is None:
            self.readings.append(Reading(position, case.read(position)))
            return
        known = alike(self.readings, position)
        tried = {r.seed for r in self.readings if r.position in known}
        if seed is None:
            seed = next(s for s in count() if s not in tried)
        key = int(case.classes[position]), seed
        if key not in case.drawn:
            case.drawn[key] = case.draw()
        number = self.numbers.setdefault(key, len(self.numbers)) if case.cell.bits else None
        value = case.level(position) + case.drawn[key]
        self.readings.append(Reading(position, value, seed, number))


def ours(case: Case) -> Answer:
    return ours_at(case, [case.cell.confidence])[0]


def ours_at(case: Case, confidences: Sequence[float]) -> list[Answer]:
    """The answers of one bisect that is asked for ever more confidence, each after the last."""
    cell, n = case.cell, case.cell.n
    noise = None
    if cell.known:
        chi = case.random.chisquare(cell.known) / cell.known
        noise = NoisePrior(float(np.sqrt(chi)), cell.known)
    binary = cell.noise == "crash"
    done = Trials(case)
    for position in (GOOD, n - 1):
        for _ in range(cell.stored):
            if binary and position != GOOD:
                done.readings.append(Reading(position, 1.0))
            else:
                done.add(position)
    broken: set[int] = set()
    trials, spent, decisions = 0, 0.0, 0
    answers: list[Answer] = []
    lineage = Lineage.line(n)
    digests: dict[int, str] = {}
    while len(answers) < len(confidences):
        asked = max(cell.stored, 1)
        confidence = confidences[len(answers)]
        signing = SignedRange(lineage, digests, np.ones(n), shows(0, 0))
        prior = signing.prior().tolist() if digests else None
        question = Question(lineage, confidence, noise, prior, binary=binary, asked=asked)
        evidence = Evidence(tuple(done.readings), frozenset(broken))
        start = time.process_time()
        belief = posterior(question, evidence)
        choice = choose(question, evidence, belief)
        sign = None
        if cell.signed is not None and choice is not None and choice.gain:
            sign = signing.next(belief.probability)
        spent += time.process_time() - start
        decisions += 1
        if sign is not None and choice and sign[1] / SIGNING > choice.gain / cell.cost:
            digests[sign[0]] = str(case.digests[sign[0]])
            continue
        if choice is None or trials >= (MOST_TRIALS if cell.shift else NULL_TRIALS):
            right = (
                belief.state is not Phase.NOTHING_CHANGED and case.first_bad in belief.candidates
            )
            if not cell.shift:
                right = belief.state is Phase.NOTHING_CHANGED
            leader = float(belief.probability[belief.leader])
            state, size = belief.state.value, len(belief.candidates)
            mean = spent / decisions
            answers.append(Answer(trials, right, state, size, mean, leader, len(digests)))
            continue
        trials += 1
        if choice.position in case.broken:
            broken.add(choice.position)
        else:
            done.add(choice.position, choice.seed)
    return answers


def capacity(shift: float) -> float:
    """Bits one reading of a binary input in Gaussian noise can tell, levels `shift` sd apart."""
    x = np.linspace(-10, 10 + shift, 4001)
    two = [np.exp(-0.5 * (x - level) ** 2) / np.sqrt(2 * np.pi) for level in (0.0, shift)]
    mixed = (two[0] + two[1]) / 2
    entropy = -(mixed * np.log2(np.maximum(mixed, 1e-300))).sum() * (x[1] - x[0])
    return float(entropy - 0.5 * np.log2(2 * np.pi * np.e))


def _block(job: tuple[Cell, range]) -> list[Answer]:
    cell, numbers = job
    return [ours(make(cell, number)) for number in numbers]


def measure(cell: Cell, cases: int, pool: ProcessPoolExecutor | None) -> list[Answer]:
    jobs = [(cell, range(i, min(i + 10, cases))) for i in range(0, cases, 10)]
    blocks = pool.map(_block, jobs) if pool else map(_block, jobs)
    return [answer for block in blocks for answer in block]


CELLS: dict[str, list[Cell]] = {
    "clear": [Cell(n, d) for d in (8.0, 4.0, 2.0) for n in (16, 64, 256)],
    "faint": [Cell(n, d) for d in (1.0, 0.5) for n in (16, 64, 256)],
    "quick": [Cell(64, d) for d in (4.0, 2.0, 1.0)],
    "targets": [Cell(n, d) for n, d in product((64, 256, 1024, 4096), (4.0, 2.0, 1.0))],
    "known": [Cell(n, d, known=30) for n, d in product((64, 1024), (4.0, 2.0, 1.0))],
    "scarce": [Cell(256, d, stored=s) for s, d in product((0, 3), (4.0, 2.0, 1.0))],
    "rough": [
        cell
        for d in (4.0, 2.0, 1.0)
        for cell in (
            Cell(256, d, noise="t3"),
            Cell(256, d, noise="outlier"),
            Cell(256, d, untestable=0.1),
            Cell(256, d, drift=0.2),
            Cell(256, d, own=0.1),
        )
    ],
    "null": [Cell(n, 0.0, stored=s) for n, s in ((16, 10), (256, 10), (256, 3))],
    "bits": [
        Cell(64, d, stored=2, redraw=0.2, bits=bits)
        for d in (4.0, 2.0, 1.0, 0.0)
        for bits in (True, False)
    ],
    "crash": [
        Cell(n, rate, stored=stored, noise="crash", sound=sound)
        for n in (64, 1024)
        for stored in (1, 3)
        for rate, sound in ((1.0, 0.0), (0.9, 0.0), (0.7, 0.0), (0.5, 0.0), (0.3, 0.0), (1.0, 0.05))
    ],
    "signed": [
        Cell(64, d, signed=share, shown=shown)
        for d in (4.0, 2.0)
        for share, shown in (
            *((None, 1.0), (0.02, 0.9), (0.1, 0.9), (0.4, 0.9)),
            *((0.1, 0.7), (0.1, 0.0)),
        )
    ],
    "signed-cheap": [Cell(64, 4.0, signed=share, shown=0.9, cost=20.0) for share in (None, 0.1)],
    "ends": [Cell(n, d) for n, d in product((16, 256), (8.0, 0.5))],
    "exact": [Cell(n, 4.0, stored=2, noise="exact") for n in (64, 1024)],
}


def describe(cell: Cell, answers: list[Answer]) -> dict[str, object]:
    trials = np.array([a.trials for a in answers], dtype=float)
    wrong = sum(not a.right for a in answers)
    row: dict[str, object] = {
        "n": cell.n,
        "d": cell.shift,
        "stored": cell.stored,
        "noise": cell.noise,
        "extra": ",".join(
            f"{key}={getattr(cell, key)}"
            for key in ("untestable", "drift", "own", "sound", "known", "redraw")
            if getattr(cell, key)
        )
        + ("" if cell.bits else " bits ignored")
        + (f" conf={cell.confidence}" if cell.confidence != 0.95 else ""),
        "cases": len(answers),
        "trials": round(float(trials.mean()), 1),
        "se": round(float(trials.std() / np.sqrt(len(trials))), 1),
        "median": float(np.median(trials)),
        "wrong": f"{wrong / len(answers):.1%}",
    }
    if cell.noise in ("gauss",) and cell.shift:
        limit = np.log2(cell.n) / capacity(cell.shift)
        row["x limit"] = round(float(trials.mean() / limit), 2)
    signatures = np.array([a.signatures for a in answers], dtype=float)
    if signatures.any() or cell.signed is not None:
        seconds = trials * cell.cost + signatures * SIGNING
        row |= {"signed": cell.signed, "shown": cell.shown, "cost": cell.cost}
        row["signatures"] = round(float(signatures.mean()), 1)
        row["seconds"] = round(float(seconds.mean()))
    row["ms"] = round(1e3 * float(np.mean([a.seconds for a in answers])), 1)
    row["size"] = round(float(np.mean([a.size for a in answers])), 2)
    for state in ("nothing-changed", "searching"):
        row[state] = sum(a.state == state for a in answers)
    row["sure"] = round(float(np.mean([a.sure for a in answers])), 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", default="quick", help=", ".join(CELLS))
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, help="keep rows here; those it holds are not run again")
    options = parser.parse_args()
    kept = options.out.read_text().splitlines() if options.out and options.out.exists() else []
    done = {(row["cell"], row["cases"]): row for row in map(json.loads, kept)}
    with ProcessPoolExecutor(options.jobs) as pool:
        for group in options.cells.split(","):
            for cell in CELLS[group]:
                row = done.get((str(cell), options.cases))
                if row is None:
                    row = describe(cell, measure(cell, options.cases, pool))
                    if options.out:
                        with options.out.open("a") as out:
                            out.write(json.dumps({"cell": str(cell), **row}) + "\n")
                if options.json:
                    print(json.dumps(row))
                else:
                    print("  ".join(f"{key} {value}" for key, value in row.items()))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
