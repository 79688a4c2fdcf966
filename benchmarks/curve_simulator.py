"""Epochs and wrong answers of a bisect that stops trials early, beside one of whole trials.

Histories are simulated with curves: a training of EPOCHS epochs whose metric falls towards its
level, with noise that is larger at first and correlated from epoch to epoch. Most commits do not
touch the numerics; some draw new noise; one moves the level; in the cell `early` another moves
the first half of the curve and not its end. A change acts from the first epoch on, or later. The
code is that of the real search: traces, twins, posterior and choice; only the trainings are made
up. Trials of one seed repeat to the last bit; where they do not, none is stopped.

    OMP_NUM_THREADS=1 python benchmarks/curve_simulator.py --cases 100 --jobs 2
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count

import numpy as np

from celedger.base.model import (
    Command,
    Direction,
    Kind,
    Mark,
    Metric,
    Outcome,
    OutcomeKind,
    Task,
    Trial,
    TrialRecord,
    Why,
)
from celedger.judge.bisection.identical_trials import Traces
from celedger.judge.bisection.symptom import Symptom
from celedger.stats import draws, equal_bits, firstbad
from celedger.stats.choice import Choice
from celedger.stats.lineage import GOOD, Lineage

EPOCHS = 16
LOSS = Metric("loss", direction=Direction.LOWER, kind=Kind.QUALITY)
MORE = [Metric(name, direction=Direction.LOWER, kind=Kind.QUALITY) for name in "ab"]
TASK = Task("s", "t", (Command("main", ("true",)),), metrics=(LOSS, *MORE))
SYMPTOM = Symptom(TASK, LOSS)
BUDGET = 300


@dataclass(frozen=True)
class Cell:
    n: int = 64
    shift: float = 4.0
    touching: float = 0.2  # share of commits that change the numerics without moving the level
    early: float = 0.0  # a step of the first half of the curve at one other commit, in sd
    late: float = 0.0  # probability that the culprit acts only from the middle on
    stored: int = 3
    confidence: float = 0.95


class History:
    """A range, and its trainings: `series(position, seed)` is the metric of every epoch."""

    def __init__(self, cell: Cell, number: int) -> None:
        random = np.random.default_rng([number, cell.n, int(10 * cell.shift)])
        n = cell.n
        self.cell, self.key = cell, number
        self.first_bad = int(random.integers(n))
        onset = np.zeros(n, dtype=int)  # epoch from which a commit changes the numerics
        touches = random.random(n) < cell.touching
        onset[touches] = np.where(random.random(touches.sum()) < 0.2, EPOCHS // 2, 0)
        self.speed = float(random.choice([0.05, 0.2, 0.5]))
        late = random.random() < cell.late
        self.start = EPOCHS // 2 if late else 0
        touches[self.first_bad] = True
        onset[self.first_bad] = self.start
        self.early_at = int(random.integers(n))
        if cell.early:
            touches[self.early_at], onset[self.early_at] = True, 0
        self.touching = [(int(p), int(onset[p])) for p in np.flatnonzero(touches)]

    def level(self, position: int) -> np.ndarray:
        at = np.arange(1, EPOCHS + 1)
        curve = 60 * np.exp(-4 * at / EPOCHS)
        if position >= self.first_bad:
            grown = np.clip(at - self.start, 0, None) / (EPOCHS - self.start)
            part = (1 - np.exp(-grown / self.speed)) / (1 - np.exp(-1 / self.speed))
            curve = curve + self.cell.shift * part
        if self.cell.early and position >= self.early_at:
            curve = curve + self.cell.early * np.clip(1 - 2 * at / EPOCHS, 0, 1)
        return curve

    def noise(self, random: np.random.Generator) -> np.ndarray:
        step = random.standard_normal(EPOCHS)
        path = np.empty(EPOCHS)
        path[0] = step[0]
        for e in range(1, EPOCHS):
            path[e] = 0.85 * path[e - 1] + np.sqrt(1 - 0.85**2) * step[e]
        return path * (1 + 2 * np.exp(-6 * np.arange(1, EPOCHS + 1) / EPOCHS))

    def series(self, position: int, seed: int) -> np.ndarray:
        path = self.noise(np.random.default_rng([self.key, seed, 0]))
        for place, onset in self.touching:
            if place <= position:
                new = self.noise(np.random.default_rng([self.key, seed, place + 1]))
                path = np.concatenate([path[:onset], new[onset:]])
        return self.level(position) + path


class Trainings:
    """Stands in for the ledger: series of trials, nothing else."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, list[tuple[int, float]]]] = {}

    def keep(self, ulid: str, points: list[tuple[int, float]]) -> None:
        # Trainings report more than one number: three of an epoch are bits enough.
        self.kept[ulid] = {"loss": points} | {
            name: [(e, factor * v) for e, v in points] for name, factor in (("a", 1.1), ("b", 1.3))
        }

    def series(self, ulid: str) -> dict[str, list[tuple[int, float]]]:
        return self.kept[ulid]

    def fingerprints(self, ulid: str) -> dict[int, str]:
        return {}


@dataclass(frozen=True)
class Answer:
    right: bool
    wrong: bool
    trials: int
    epochs: int
    stopped: int


def search(history: History, *, stop: bool) -> Answer:
    cell, n = history.cell, history.cell.n
    ledger, numbers = Trainings(), count()
    traces = Traces(ledger, SYMPTOM, n - 1)  # type: ignore[arg-type]
    records: list[tuple[int, TrialRecord]] = []
    spent = stopped = 0

    def keep(position: int, seed: int, ulid: str, epochs: int) -> None:
        whole = epochs == EPOCHS
        marks = () if whole else (Mark.EARLY_STOPPED,)
        trial = Trial(ulid, str(position), "r", "e", seed, Why.BISECT, 0.0, "here")
        values = {"loss": ledger.kept[ulid]["loss"][-1][1]} if whole else {}
        outcome = Outcome(OutcomeKind.OK, 1.0, marks=marks)
        records.append((position, TrialRecord(trial, "s", "t", outcome, values, epochs)))

    def train(position: int, seed: int, pick: Choice | None) -> int:
        ulid = f"{next(numbers):06d}"
        values = history.series(position, seed)
        points = [(e, float(v)) for e, v in enumerate(values)]
        epochs = EPOCHS
        if pick is not None and stop and not pick.whole:
            enough = traces.enough(records, seed)
            for epochs in range(1, EPOCHS + 1):
                ledger.keep(ulid, points[:epochs])
                if enough(traces.read(ulid)):
                    break
        ledger.keep(ulid, points[:epochs])
        keep(position, seed, ulid, epochs)
        return epochs

    for end in (GOOD, n - 1):
        for seed in range(cell.stored):
            train(end, seed, None)
    ends = len(records)
    while True:
        readings = tuple(
            firstbad.Reading(p, r.summaries["loss"], r.trial.seed, traces.draw(r))
            for p, r in records
            if not r.early_stopped
        )
        evidence = firstbad.Evidence(readings, frozenset(), draws.sides(readings, n - 1))
        question = firstbad.Question(Lineage.line(n), cell.confidence)
        alike = traces.alike(records) if stop else ()
        seen = equal_bits.view(question, evidence, alike)
        pick = equal_bits.pick(question, evidence, seen)
        if pick is None or len(records) - ends >= BUDGET:
            break
        same = {pick.position} if pick.whole else draws.alike(readings, pick.position, alike)
        here = {r.trial.seed for p, r in records if p in same and not (
            pick.whole and r.early_stopped)}  # fmt: skip
        seed = next(s for s in count() if s not in here)
        epochs = train(pick.position, seed, pick)
        spent += epochs
        stopped += epochs < EPOCHS
    found = seen.posterior.state in (firstbad.State.FOUND, firstbad.State.SET)
    right = found and history.first_bad in seen.posterior.candidates
    return Answer(right, found and not right, len(records) - ends, spent, stopped)


def _both(job: tuple[Cell, int]) -> tuple[Answer, Answer]:
    cell, number = job
    return search(History(cell, number), stop=False), search(History(cell, number), stop=True)


CELLS: dict[str, list[Cell]] = {
    "bits": [Cell(shift=d, touching=t) for t in (0.05, 0.2) for d in (8.0, 4.0, 2.0)],
    "late": [Cell(shift=4.0, late=1.0), Cell(shift=2.0, late=1.0)],
    "early": [Cell(shift=d, early=6.0, stored=10) for d in (4.0, 2.0)],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", default=",".join(CELLS), help=", ".join(CELLS))
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs) as pool:
        for group in options.cells.split(","):
            for cell in CELLS[group]:
                jobs = [(cell, i) for i in range(options.cases)]
                pairs = list(pool.map(_both, jobs, chunksize=5))
                print(f"{group}: {cell}")
                for name, answers in zip(
                    ("whole", "stopped"), zip(*pairs, strict=True), strict=True
                ):
                    mean = {
                        key: float(np.mean([getattr(a, key) for a in answers]))
                        for key in ("right", "wrong", "trials", "epochs", "stopped")
                    }
                    print(f"  {name:8s} right {mean['right']:.1%}  wrong {mean['wrong']:.1%}  "
                          f"trials {mean['trials']:.1f}  epochs {mean['epochs']:.0f}  "
                          f"stopped {mean['stopped']:.1f}")  # fmt: skip
                sys.stdout.flush()


if __name__ == "__main__":
    main()
