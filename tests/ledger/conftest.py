"""What the tests of the ledger share: a new ledger, and facts to put into it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest
from old_verdicts import record_verdict

from celedger.base.model import (
    BaselineAct,
    BaselineRecord,
    BisectRecord,
    Command,
    Commit,
    Direction,
    Environment,
    EpochReport,
    FindingRecord,
    Floor,
    Footprint,
    Kind,
    Metric,
    Outcome,
    OutcomeKind,
    Purpose,
    SaidRecord,
    StepValues,
    Task,
    Trial,
)
from celedger.ledger import Ledger, ulid

LOSS = Metric("loss", "", Direction.LOWER, Kind.QUALITY, Floor(0.005, relative=True), "last")


class Facts:
    """Makes facts that belong together, each different from the one before."""

    def __init__(self) -> None:
        self.random = Random(20)
        self.clock = 1_700_000_000.0
        self.numbers = count(1000)

    def number(self) -> int:
        """One that no commit of this test has had."""
        return next(self.numbers)

    def commit(self, number: int, *parents: Commit, subject: str = "a change") -> Commit:
        return Commit(
            f"{number:040x}", f"{number + 4096:040x}", tuple(p.sha for p in parents),
            "Ann <ann@example.org>", 1_600_000_000 + number, 1_600_000_100 + number, subject,
        )  # fmt: skip

    def task(self, name: str = "mlp", *metrics: Metric, epochs: int = 3) -> Task:
        command = Command("train", ("{python}", f"{name}.py", "{epochs}"))
        return Task("core", name, (command,), {"epochs": epochs}, metrics=metrics or (LOSS,))

    def environment(self, name: str = "e0") -> Environment:
        return Environment(name, {"python": "3.11", "device": name})

    def trial(
        self,
        ledger: Ledger,
        commit: Commit | None = None,
        task: Task | None = None,
        environment: Environment | None = None,
        seed: int = 0,
    ) -> Trial:
        """A trial that has started, with all it refers to."""
        commit = commit or self.commit(1)
        task = task or self.task()
        environment = environment or self.environment()
        ledger.record_commits([commit])
        ledger.record_task(task)
        ledger.record_environment(environment)
        self.clock += 1
        trial = Trial(
            ulid.new(self.clock, self.random), commit.sha, task.recipe, environment.fingerprint,
            seed, Purpose.RUN, self.clock, "host", "cpu",
        )  # fmt: skip
        ledger.start_trial(trial)
        return trial

    def outcome(self, kind: OutcomeKind = OutcomeKind.OK) -> Outcome:
        return Outcome(kind, self.clock)

    def finished(
        self, ledger: Ledger, value: float, kind: OutcomeKind = OutcomeKind.OK, **of: object
    ) -> Trial:
        """A trial that has ended, with one epoch and one summary."""
        trial = self.trial(ledger, **of)  # type: ignore[arg-type]
        ledger.append(trial.ulid, 0, {"loss": value})
        assert ledger.finish_trial(trial.ulid, self.outcome(kind), {"loss": value})
        return trial

    def fill(self, ledger: Ledger, commits: int = 4) -> list[Trial]:
        """A row in every table, and trials whose points take several pages."""
        before, trials = None, []
        for number in range(commits):
            commit = self.commit(number, *([before] if before else []))
            before = commit
            for seed in (0, 1):
                trial = self.trial(ledger, commit=commit, seed=seed)
                ledger.append_epochs(trial.ulid, [
                    EpochReport(e, {"loss": 1 / (e + 1), "nan": float("nan"), "inf": float("inf")},
                                f"f{e}", {"loss": StepValues(0, (0.5, 0.25))})
                    for e in range(60)
                ])  # fmt: skip
                assert ledger.finish_trial(trial.ulid, Outcome(OutcomeKind.OK, 2.0), {"loss": 0.5})
                trials.append(trial)
            record_verdict(ledger, commit, trial.ulid)
        footprint = Footprint((b"model.py",), inputs=("*.txt",))
        ledger.record_footprint(trials[0].ulid, footprint, "around")
        ledger.record_unknown_footprint(trials[1].ulid, "it mounts")
        (evidence,) = ledger.reusable_trials(recipe=trial.recipe, environment=trial.environment)
        derived = self.trial(ledger, commit=self.commit(77)).ulid
        ledger.finish_trial(derived, Outcome(OutcomeKind.FAILED, 3.0, "exit status 1", 1), {})
        twin = trials[0]._replace(ulid=f"{1:026}", commit=self.commit(77).sha, started=9.0)
        ledger.reuse_trial(twin, evidence, ["nan"])
        ledger.record_bisect(
            BisectRecord(
                f"{2:026}",
                "core",
                "mlp",
                "loss",
                trials[0].commit,
                commit.sha,
                (commit.sha,),
                0.5,
                "found",
                1,
            )
        )
        ledger.record_baseline(
            BaselineRecord(
                f"{3:026}", BaselineAct.PIN, commit.sha, "core", "", "", "Ada", "release", 1.0
            )
        )
        ledger.record_finding(
            FindingRecord(
                f"{4:026}",
                "explain",
                "core",
                "mlp",
                commit.sha,
                trials[0].commit,
                "explain a..b",
                1.0,
                "it differs",
                {"schema": 1},
            )
        )
        ledger.record_trial_facts(trials[0].ulid, {"session": "s1", "place": "2"})
        ledger.record_said([self.said(f"{5:026}", commit)])
        return trials

    def said(self, ulid: str, commit: Commit) -> SaidRecord:
        return SaidRecord(
            ulid, "5e0c91aa", "open", "opened", "metric", "core", "mlp", "loss", commit.sha,
            commit.sha, "j1", "", 1.0, {"change": 0.5},
        )  # fmt: skip

    def answers(self, ledger: Ledger) -> str:
        """All that can be asked, as text: NaN is not itself."""
        trials = ledger.trials()
        return repr([
            ledger.commits(), ledger.tasks(), ledger.metrics(), *ledger.environments().values(),
            ledger.bisects(), ledger.baselines(), ledger.findings(),
            ledger.trial_facts(), ledger.said(),
            ledger.summaries("mlp", "loss"),
            [(ledger.series(r.trial.ulid), ledger.fingerprints(r.trial.ulid),
              ledger.steps(r.trial.ulid)) for r in trials],
        ])  # fmt: skip


@pytest.fixture
def facts() -> Facts:
    return Facts()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened
