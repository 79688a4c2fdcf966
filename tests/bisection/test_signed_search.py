"""A bisect signs commits where that tells more a second than a training. What signs is scripted:
tests/lab/test_signed_bisect.py has the lab's, with real trainings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import git, matrix_after
from scripted import ScriptedProject, scripted

from celedger.base import config
from celedger.base.errors import CannotJudge
from celedger.base.model import Commit
from celedger.judge.bisection import bisect_many, planner
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.trial.permissions import Gate
from celedger.trial.workplace import choose_tasks, local_bench, suite_of

COMMITS, BAD = 12, 8
HOUR = 3600.0


class Signer:
    """Knows the digest of the first steps of each commit (by hash), and holds those of some trees.
    None for all: no bits repeat."""

    def __init__(self, digests: Mapping[str, str] | None, **held: str) -> None:
        self.digests, self.held = digests, held
        self.asked: list[str] = []

    def stored(self, _: Commit) -> dict[str, str]:
        return self.held

    def sign(self, commit: Commit) -> str:
        self.asked.append(commit.sha)
        if self.digests is None:
            raise CannotJudge("fit: it does not repeat its own bits")
        return self.digests[commit.sha]


@pytest.fixture
def project(tmp_path: Path) -> ScriptedProject:
    return scripted(tmp_path / "project")


def history(project: ScriptedProject, seconds: float = HOUR) -> list[str]:
    """Commit edits of which one makes it worse. A trial takes so many seconds."""
    levels = [1.4 if number >= BAD else 1.0 for number in range(COMMITS + 1)]
    return [
        project.commit(f"edit {n}", {"model.py": f"LEVEL, N, SECONDS = {level}, {n}, {seconds}\n"})
        for n, level in enumerate(levels)
    ]


def digests(shas: list[str]) -> dict[str, str]:
    return {sha: "new" if number >= BAD else "old" for number, sha in enumerate(shas)}


def bisected(
    project: ScriptedProject, shas: list[str], signer: Signer, *words: str
) -> dict[str, Any]:
    for end in (shas[0], shas[-1]):
        assert project.run("run", end).status == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "signer_of", lambda *_: signer)
        ends = f"{shas[0]}..{shas[-1]}"
        done = project.run("bisect", ends, "--metric", "val_loss", "--json", *words)
    assert done.status == 0, done.out + done.err
    answer: dict[str, Any] = json.loads(done.out)
    return answer


def searched(project: ScriptedProject, shas: list[str], signer: Signer, *words: str) -> Any:
    report = bisected(project, shas, signer, *words)["bisect"]
    assert report["culprits"] == [shas[BAD]]
    return report


def whole(report: dict[str, Any]) -> int:
    """Return how many trials were not stopped early."""
    return int(report["trials"] - report["stopped"])


def test_signatures_take_the_place_of_trainings(project: ScriptedProject) -> None:
    shas = history(project)
    signer = Signer(digests(shas))
    report = searched(project, shas, signer)
    assert report["signed"] == len(signer.asked) == len({*signer.asked})
    assert 0 < report["signed"] <= 6
    assert whole(report) <= 3  # of the commit and of its parent, mostly


@pytest.mark.matrix
def test_stored_signatures_count(project: ScriptedProject) -> None:
    shas = history(project)
    (before,) = bisected(project, shas, Signer(digests(shas)), "--dry-run")["plans"]
    trees = {
        git(project.root, "rev-parse", f"{sha}^{{tree}}"): digest
        for sha, digest in digests(shas).items()
    }
    signer = Signer({}, **trees)
    (after,) = bisected(project, shas, signer, "--dry-run")["plans"]
    (without,) = bisected(project, shas, signer, "--dry-run", "--no-signature")["plans"]
    assert after["trials"] < before["trials"] == without["trials"]
    assert (after["signs"], without["signs"]) == (True, False)
    report = searched(project, shas, signer)
    assert (report["signed"], whole(report) <= 3) == (0, True)


@pytest.mark.parametrize(
    ("words", "seconds"), matrix_after(1, [(["--no-signature"], HOUR), ([], 0.1)])
)
def test_without_them_as_ever(project: ScriptedProject, words: list[str], seconds: float) -> None:
    shas = history(project, seconds)
    report = searched(project, shas, signer := Signer(digests(shas)), *words)
    assert (report["signed"], signer.asked) == (0, [])
    assert report["trials"] >= 4


def test_a_training_that_does_not_repeat_its_bits_is_searched_as_ever(
    project: ScriptedProject,
) -> None:
    shas = history(project)
    report = searched(project, shas, signer := Signer(None))
    assert (report["signed"], len(signer.asked)) == (0, 1)


def test_a_search_of_the_worker_signs_as_a_typed_one_does(
    project: ScriptedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    shas = history(project)
    for end in (shas[0], shas[-1]):
        assert project.run("run", end).status == 0
    monkeypatch.setattr(planner, "signer_of", lambda *_: Signer(digests(shas)))
    repository = Repository.open(project.root)
    settings = config.load(repository.root, {})
    suite = suite_of(repository, settings)
    tasks = choose_tasks(suite, ())
    gate = Gate.of(repository, attended=True)
    with (
        project.executor.at(project.root),
        Ledger.open(settings.ledger) as ledger,
        local_bench(repository, ledger, settings, suite, tasks, gate=gate) as bench,
    ):
        found = bisect_many(bench, repository.history(shas[0], shas[-1]), tasks, ["val_loss"])
    (report,) = found.reports
    assert report.culprits[0].sha == shas[BAD]
    assert report.signed > 0
