"""What keeps a regression open, on verdicts that are written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from scripted import scripted

from celedger.base.model import BaselineAct, BaselineRecord, Verdict, VerdictKind
from celedger.judge.drift.baseline import last_good
from celedger.judge.drift.open_regressions import open_regressions
from celedger.ledger import Ledger
from celedger.ledger.read import Reader
from celedger.repo import Repository

Kinds = Mapping[str, str]  # metric: kind


class Recorded:
    """A ledger whose verdicts are `commits`, oldest first."""

    def __init__(self, *commits: Kinds, accepted: float = 0.0) -> None:
        self.commits, self._accepted = commits, accepted
        self.history = {str(number): number for number in range(len(commits))}

    def judged(self) -> list[tuple[str, str, str, float]]:
        return [("s", "fit", sha, float(number)) for sha, number in self.history.items()]

    def verdicts(self, *, commit: str, **_: str) -> list[Verdict]:
        return [
            Verdict(commit, "s", "fit", metric, VerdictKind(kind))
            for metric, kind in self.commits[int(commit)].items()
        ]

    def verdict_kinds(self, **_: str) -> dict[tuple[str, str], VerdictKind]:
        return {
            (v.commit, v.metric): v.kind for sha in self.history for v in self.verdicts(commit=sha)
        }

    def bisects(self) -> list[Any]:
        return []

    def baselines(self) -> list[BaselineRecord]:
        act = BaselineRecord(
            "1", BaselineAct.ACCEPT, "0", "s", "fit", "", "me", "why", self._accepted
        )
        return [act] * (self._accepted > 0)

    def open(self) -> list[tuple[str, str]]:
        regressions = open_regressions(cast(Reader, self), self.history)
        return [(r.verdict.commit, r.verdict.metric) for r in regressions]


BAD: Kinds = {"loss": "regressed", "speed": "same"}


def test_a_verdict_that_is_not_clear_settles_nothing() -> None:
    for kind in ("too-noisy", "undecided", "environment-changed"):
        unclear = {"loss": kind, "speed": "same"}
        assert Recorded(BAD, unclear, unclear).open() == [("0", "loss")]
        assert Recorded(BAD, unclear, unclear, accepted=0.5).open() == []
    for kind in ("same", "improved"):
        assert Recorded(BAD, {"loss": kind}, {"loss": "too-noisy"}).open() == []
    assert Recorded(BAD, {"loss": "regressed"}).open() == [("1", "loss")]


def test_a_crash_hides_no_regression_and_a_trial_that_runs_ends_it() -> None:
    crash = {"": "failed"}
    assert Recorded(BAD, crash).open() == [("1", ""), ("0", "loss")]
    assert Recorded(BAD, crash, {"loss": "same"}).open() == []
    assert Recorded(BAD, crash, {"loss": "too-noisy"}).open() == [("0", "loss")]


def test_what_is_judged_no_more_is_not_open() -> None:
    assert Recorded(BAD, {"accuracy": "undecided"}).open() == []


def test_a_search_starts_where_the_verdict_was_clear(tmp_path: Any) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0] * 6)
    repository = Repository.open(project.root)
    project.run("run", f"{shas[0]}..{shas[5]}")
    project.run("run", shas[0])
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        trial = ledger.trials()[0].trial
        bad = Verdict(
            shas[5], "tiny", "fit", "val_loss", VerdictKind.REGRESSED,
            recipe=trial.recipe, environment=trial.environment,
        )  # fmt: skip
        for kinds, start in {
            ("undecided", "same", "same", "too-noisy", "too-noisy"): 2,
            ("undecided", "too-noisy", "too-noisy", "undecided", "too-noisy"): 0,
            ("undecided", "same", "regressed", "too-noisy", "improved"): 4,
            ("regressed",) * 5: None,
        }.items():
            rows = {
                (sha, "val_loss"): VerdictKind(kind) for sha, kind in zip(shas, kinds, strict=False)
            }
            ledger.verdict_kinds = lambda rows=rows, **_: rows  # type: ignore[method-assign]
            good = last_good(repository, ledger, bad)
            assert (shas.index(good.sha) if good else None) == start, kinds
