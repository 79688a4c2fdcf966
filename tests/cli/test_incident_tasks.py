"""One search for one incident that moved several tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import SUITE
from scripted import Report, ScriptedProject, scripted

from celedger.judge.bisection.bisect_report import restored
from celedger.ledger import Ledger
from celedger.repo import Repository

TASKS = SUITE + SUITE[SUITE.index("[[task]]") :].replace('"fit"', '"wide"').replace(
    "seeds = [0, 1]", "seeds = [10, 11, 12]"
)
FIRST_BAD = 4


def two_tasks(root: Path, first_bad_of_wide: int) -> ScriptedProject:
    """Make a project of two tasks, both worse since some commit; `wide`, of seeds from 10 on, moved
    more and takes ten times as long."""

    def training(model: dict[str, Any], seed: int) -> Iterator[Report]:
        is_wide, number = seed >= 10, model["NUMBER"]
        level = 1.0 + (0.6 if is_wide else 0.5) * (
            number >= (first_bad_of_wide if is_wide else FIRST_BAD)
        )
        model["SECONDS"] = 20.0 if is_wide else 2.0
        noise = Random(1000 * number + seed).gauss(0, 0.05 if is_wide else 0.01)
        yield {"epoch": 0, "val_loss": level + noise}

    return scripted(root, TASKS, training)


@pytest.mark.matrix
@pytest.mark.parametrize(("first_bad_of_wide", "word"), [(FIRST_BAD, "agrees"), (7, "disagrees")])
def test_an_incident_is_searched_with_the_task_that_tells_most_and_the_others_are_asked(
    tmp_path: Path, first_bad_of_wide: int, word: str
) -> None:
    project = two_tasks(tmp_path / "project", first_bad_of_wide)
    shas = project.history([1.0] * 10)
    for sha in (shas[0], shas[0], shas[9], shas[9]):
        project.run("run", sha, "--force")
    project.run("check", shas[9])
    (incident,) = json.loads(project.run("status", "--json").out)["incidents"]
    assert [metric["task"] for metric in incident["metrics"]] == ["wide", "fit"]

    for verb in ("show", "check"):
        shown = project.run(verb, incident["id"])
        assert (shown.status, shown.err) == (129, (
        f"celedger: unknown revision '{incident['id']}' (an incident is shown by "
        f"`celedger status {incident['id']}`)\n"
    ))  # fmt: skip

    project.executor.ran.clear()
    done = project.run("bisect", incident["id"])
    assert f"first bad commit of fit val_loss: {shas[FIRST_BAD]}" in done.out, done.err
    assert f"  {word:10s}  wide val_loss (" in done.out
    asked = [sha for sha, seed in project.executor.ran if seed >= 10]
    assert sorted(asked) == sorted(shas[FIRST_BAD - 1 : FIRST_BAD + 1])

    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        (stored,) = ledger.bisects()
    commits = {c.sha: c for c in Repository.open(project.root).log(shas[9])}
    (agreement,) = restored(stored, commits).agreements
    assert (agreement.task, agreement.probability >= 0.5) == ("wide", word == "agrees")
