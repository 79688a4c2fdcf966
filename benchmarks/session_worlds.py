"""Wrong names and trials of `celedger bisect` for a step time whose stored history was measured in
several sessions, each with an effect of its own.

Every case calls the use case of `celedger bisect` with the battery's scripted bench
(`hard_worlds.py`). The history is cut into as many stretches as sessions; half of the sessions ran
the newest commit of the one before again. The bisect is a further session.

    OMP_NUM_THREADS=1 python benchmarks/session_worlds.py --change some --cases 240
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import hard_worlds as battery

from celedger.base.errors import CannotJudge
from celedger.base.model import Direction, Floor, Kind, Metric, OutcomeKind, Purpose, TrialRecord
from celedger.judge.bisection import Answer, Limits, bisect_many
from celedger.ledger import Ledger
from celedger.stats.lineage import GOOD
from celedger.trial.engine import Need

NAME = "step_time"
TASK = battery.TASK._replace(
    metrics=(Metric(NAME, direction=Direction.LOWER, kind=Kind.SPEED, floor=Floor(0.05, True)),),
)
SESSION_SD, TRIAL_SD = (0.03, 0.15), (0.01, 0.03)
"""Of the logarithms of a session's effect and of a trial; a case draws them from here."""
SOME = (0.1, 0.4)
"""Sizes of a change that a case draws."""
MEASURED = 0.6  # share of the commits that their session measured


@dataclass
class Case:
    """A history that `sessions` measured, `step` and `size` of what changed in it (0: nothing)."""

    range: battery.Range
    random: np.random.Generator
    step: int
    size: float
    sessions: int
    session_sd: float
    trial_sd: float

    world = replace(battery.NORMAL, why=Purpose.RUN, metric=NAME)
    session = 0
    """That which measures now"""

    def __post_init__(self) -> None:
        self.effects = np.exp(self.session_sd * self.random.standard_normal(self.sessions + 1))

    @classmethod
    def draw(cls, folder: Path, number: int, sizes: tuple[float, float], sessions: int) -> Case:
        random = np.random.default_rng([number, 77])
        opened = battery.Range.open(folder)
        step = int(random.integers(len(opened.history.commits)))
        spreads = [float(random.uniform(*pair)) for pair in (SESSION_SD, TRIAL_SD)]
        return cls(opened, random, step, float(random.uniform(*sizes)), sessions, *spreads)

    def is_bad(self, position: int) -> bool:
        return bool(self.size) and position >= self.step

    def outcome(self, position: int) -> OutcomeKind:
        return OutcomeKind.OK

    def reports(self, position: int, seed: int) -> list[float]:
        noise = math.exp(self.trial_sd * float(self.random.standard_normal()))
        return [(1 + self.size * self.is_bad(position)) * float(self.effects[self.session]) * noise]


class Bench(battery.ScriptedBench):
    """A bench that notes the session of each trial."""

    metric = NAME

    def _record(self, need: Need, kind: OutcomeKind, values: Sequence[float]) -> TrialRecord:
        record = super()._record(need, kind, values)
        facts = {"session": f"session {self.case.session}"}
        self.ledger.record_trial_facts(record.trial.ulid, facts)
        return record

    def measure(self, session: int, position: int, trials: int = 1) -> None:
        """Record trials of a commit that ran before anybody asked."""
        history = self.case.range.history
        commit = history.good if position == GOOD else history.commits[position]
        self.case.session = session
        for _ in range(trials):
            seed = len(self.ledger.trials(commit=commit.sha))
            self._record(Need(commit, TASK, seed), OutcomeKind.OK, self.case.reports(position, 0))


def store_history(bench: Bench) -> None:
    """Record what the sessions measured, one after the other: each commit once or twice, the ends
    three times."""
    case: Any = bench.case
    places, random = range(GOOD, len(case.range.history.commits)), case.random
    cuts = sorted(random.choice(places[1:], case.sessions - 1, replace=False).tolist())
    for session, (first, end) in enumerate(
        zip([GOOD, *cuts], [*cuts, len(places) - 1], strict=True)
    ):
        if session and random.random() < 0.5:
            bench.measure(session, first - 1)
        for position in range(first, end):
            if position in (GOOD, places[-1]):
                bench.measure(session, position, 3)
            elif random.random() < MEASURED or position == end - 1:
                bench.measure(session, position, int(random.integers(1, 3)))
    case.session = case.sessions


def search(bench: Bench, limits: Limits) -> Answer | None:
    """Return what a bisect answers; None where it refuses the ends."""
    bench.searches()
    bench.case.session = bench.case.sessions
    bench.pool = battery.Workers(bench, 1, 0)
    try:
        return bisect_many(bench, bench.case.range.history, [TASK], [NAME], limits)
    except CannotJudge:
        return None


def run_case(case: Case, limits: Limits) -> tuple[str, int, bool | None]:
    """Return the status, the trials, and whether the named commit is the right one."""
    with (
        tempfile.TemporaryDirectory(dir=case.range.repository.root.parent) as place,
        closing(Ledger.open(Path(place) / "ledger.db", create=True)) as ledger,
        Bench.of(case, ledger) as bench,
    ):
        with ledger.transaction():
            store_history(bench)
        answer = search(bench, limits)
    if answer is None:
        return "refused", 0, None
    (report,) = answer.reports
    named = [case.range.positions[commit.sha] for commit in report.culprits] if report.named else []
    right = named[0] == case.step and case.size > 0 if named else None
    return report.status, report.trials, right


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--change", default="none", help="none, some, or a share of the level")
    parser.add_argument("--cases", type=int, default=40, help="cases, with 1 to 4 sessions in turn")
    parser.add_argument("--first-seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--commits", type=int, default=24, help="candidates a range")
    options = parser.parse_args(words)
    named = {"none": (0.0, 0.0), "some": SOME}
    sizes = named.get(options.change) or (float(options.change),) * 2
    memory = Path("/dev/shm")
    results: dict[int, list[tuple[str, int, bool | None]]] = {}
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        folder = Path(place) / "line"
        battery.create(folder, battery.commits("line", options.commits), checkout=False)
        for number in range(options.first_seed, options.first_seed + options.cases):
            sessions = 1 + number % 4
            case = Case.draw(folder, number, sizes, sessions)
            results.setdefault(sessions, []).append(run_case(case, Limits(budget=100)))
    for sessions, rows in sorted(results.items()):
        trials = np.array([row[1] for row in rows], dtype=float)
        print(
            f"change {options.change}  sessions {sessions}  cases {len(rows)}  trials "
            f"{trials.mean():.1f} ± {trials.std() / math.sqrt(len(rows)):.1f}  right "
            f"{sum(row[2] is True for row in rows)}  wrong {sum(row[2] is False for row in rows)}  "
            f"{dict(Counter(row[0] for row in rows))}"
        )


if __name__ == "__main__":
    main()
