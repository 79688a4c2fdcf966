"""A bisect signs commits by the lab's own signer. Real trainings; only how long they are said to
take is not. What a search does with signatures: tests/bisection/test_signed_search.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Project, make_project
from lab.classifier import FIT
from scripted import typed

from celedger.judge.bisection.equal_commits import shown
from celedger.lab.diagnose import same
from celedger.ledger import Ledger
from celedger.system.warm import LAUNCHERS, end_kept

SUITE = """\
[suite]
name = "tiny"
preload = ["torch"]
seeds = [0, 1]
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "1%"
[[task]]
name = "fit"
command = "{python} fit.py {seed}"
"""
COMMITS, BAD = 8, 5

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.xdist_group("signed-bisect"),  # the ends are trained once
]


def history(project: Project, fit: str = FIT) -> list[str]:
    """Commit edits that no bit shows, and one that makes it worse."""
    shas = []
    for number in range(COMMITS + 1):
        unused = "".join(f"def unused_{i}():\n    return {i}\n\n\n" for i in range(number))
        text = fit.replace("lr=0.5)", "lr=0.01)") if number >= BAD else fit
        head, begin, rest = text.partition("torch.manual_seed")
        shas.append(project.commit(f"edit {number}", {"fit.py": head + unused + begin + rest}))
    return shas


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, list[str]]:
    """Return a repository with its commits, of which both ends are measured."""
    made = make_project(tmp_path_factory.mktemp("signed") / "project", SUITE, {"none.py": ""})
    shas = history(made)
    for end in (shas[0], shas[-1]):
        locks = {"CELEDGER_LOCK_DIR": str(made.root.parent / "locks")}
        assert made.run("run", end, env=locks).status == 0
    return made, shas


@pytest.fixture
def project(measured: tuple[Project, list[str]], tmp_path: Path) -> Iterator[Project]:
    """Return a copy of what is measured."""
    root = tmp_path / "project"
    shutil.copytree(measured[0].root, root, ignore=shutil.ignore_patterns("checkouts"))
    yield Project(root)
    end_kept(root / ".git" / "celedger" / LAUNCHERS)


@pytest.fixture
def shas(measured: tuple[Project, list[str]]) -> list[str]:
    return measured[1]


def bisected(project: Project, shas: list[str], *words: str) -> dict[str, Any]:
    ends = f"{shas[0]}..{shas[-1]}"
    done = typed(["bisect", ends, "--metric", "val_loss", "--json", *words], project.root)
    assert done.status == 0, done.out + done.err
    report: dict[str, Any] = json.loads(done.out)["bisect"]
    assert report["culprits"] == [shas[BAD]]
    return report


def whole(report: dict[str, Any]) -> int:
    """Return how many trials were not stopped early."""
    return int(report["trials"] - report["stopped"])


def test_signatures_take_the_place_of_trainings(
    project: Project, shas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "usual_seconds", lambda *_: 3600.0)
    report = bisected(project, shas)
    assert report["signed"]
    assert whole(report) == 2  # of the commit and of its parent
    assert report["trials"] <= 4
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        signed = {row.commit for row in ledger.signatures()}
        assert {shas[BAD - 1], shas[BAD]} <= signed
        assert shown(ledger) == (1, 0)
    again = bisected(project, shas)
    assert (again["signed"], again["trials"]) == (0, 0)


def test_nothing_is_signed_twice_where_its_bits_are_known_to_repeat(
    project: Project, shas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project.run("same", f"{shas[1]}..{shas[2]}")
    monkeypatch.setattr(Ledger, "usual_seconds", lambda *_: 3600.0)
    signed = []
    sign = same.sign
    monkeypatch.setattr(same, "sign", lambda *words: signed.append(words[1].sha) or sign(*words))
    report = bisected(project, shas)
    assert 0 < report["signed"] == len(signed) == len(set(signed))


def test_a_training_that_does_not_repeat_its_bits_is_searched_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_time = FIT.replace(
        "net = torch", "import time\nrows += 1e-4 * (time.time() % 1)\nnet = torch"
    )
    project = make_project(tmp_path / "project", SUITE, {"none.py": ""})
    shas = history(project, import_time)
    monkeypatch.setattr(Ledger, "usual_seconds", lambda *_: 3600.0)
    report = bisected(project, shas)
    assert report["signed"] == 0
