"""One bisect of several metrics: shared trials, a culprit for each."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import Project, with_verbs
from scripted import Report, scripted

from celedger.ledger import Ledger

SUITE = """\
[suite]
name = "tiny"
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "0.1%"
[metrics.score]
direction = "higher"
kind = "quality"
[metrics.steps]
direction = "lower"
kind = "count"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py --seed {seed}"
seeds = [0, 1, 2]
"""


def descend(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
    rng = Random(seed)
    for epoch in range(3):
        yield {
            "epoch": epoch,
            "val_loss": model["LEVEL"] + rng.gauss(0, 0.01) + 1 / (epoch + 1),
            "score": model["SCORE"] + rng.gauss(0, 0.01) + epoch / 3,
            "steps": 100,
        }


MODEL = "LEVEL = {level}\nSCORE = {score}\n# {i}\n"


def project_of_two_steps(root: Path) -> tuple[Project, list[str]]:
    """The loss rises at commit 3, the score falls at commit 6, the steps stay."""
    project = scripted(root, SUITE, descend)
    shas = []
    for i in range(9):
        level, score = 1.4 if i >= 3 else 1.0, 0.5 if i >= 6 else 0.9
        text = MODEL.format(level=level, score=score, i=i)
        shas.append(project.commit(f"number {i}", {"model.py": text}))
    return project, shas


@with_verbs("plot")
@pytest.mark.matrix
def test_each_metric_gets_its_own_commit_from_the_same_trials(tmp_path: Path) -> None:
    project, shas = project_of_two_steps(tmp_path / "project")
    words = ("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss", "--metric", "score")
    done = project.run(*words, "-o", "both.svg")
    assert done.status == 0, done.err + done.out
    lines = {line.split()[0]: line for line in done.out.splitlines() if line.startswith("  ")}
    assert shas[3][:8] in lines["val_loss"]
    assert shas[6][:8] in lines["score"]
    assert f"{shas[3]}  val_loss" in done.out
    assert f"{shas[6]}  score" in done.out
    picture = (project.root / "both.svg").read_text()
    assert shas[3][:8] in picture and shas[6][:8] in picture
    with sqlite3.connect(project.root / "ledger.db") as connection:
        (trials,) = connection.execute("SELECT count(*) FROM trials").fetchone()
        kept = connection.execute("SELECT metric, culprits FROM bisects ORDER BY metric").fetchall()
    assert kept == [("score", json.dumps([shas[6]])), ("val_loss", json.dumps([shas[3]]))]

    again = project.run(*words, "--json")
    assert again.status == 0, again.err
    answer = json.loads(again.out)
    assert answer["schema"] == 1
    assert answer["culprits"] == [
        {"commit": shas[3], "metrics": ["val_loss"]},
        {"commit": shas[6], "metrics": ["score"]},
    ]
    assert [b["metric"] for b in answer["bisects"]] == ["val_loss", "score"]
    assert all(b["trials"] == 0 for b in answer["bisects"])
    with sqlite3.connect(project.root / "ledger.db") as connection:
        assert connection.execute("SELECT count(*) FROM trials").fetchone() == (trials,)
    planned = project.run(*words, "--dry-run")
    assert planned.status == 0, planned.err
    assert "its trials are shared" in planned.out


@pytest.mark.matrix
def test_a_metric_that_did_not_get_worse_is_said_and_is_no_success(tmp_path: Path) -> None:
    project, shas = project_of_two_steps(tmp_path / "project")
    asked = ("bisect", f"{shas[0]}..{shas[5]}", "--metric", "val_loss", "--metric", "steps")
    done = project.run(*asked)
    assert done.status == 125, done.err + done.out
    assert f"{shas[3]}  val_loss" in done.out
    assert any("steps" in x and "nothing changed" in x for x in done.out.splitlines())
    answer = json.loads(project.run(*asked, "--json").out)
    # Without a search, where the ends have enough trials by now.
    refused = {item["metric"] for item in answer["refused"]}
    unchanged = {b["metric"] for b in answer["bisects"] if b["status"] == "nothing-changed"}
    assert refused | unchanged == {"steps"}
    assert answer["culprits"] == [{"commit": shas[3], "metrics": ["val_loss"]}]
    wrong = project.run(*asked, "--metric", "los")
    assert wrong.status == 129
    assert "'los'" in wrong.err


def test_a_summary_that_is_declared_later_is_computed_from_stored_epochs(
    tmp_path: Path,
) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.0])
    assert project.run("run", f"{shas[0]}..{shas[1]}").status == 0
    assert project.run("run", shas[0]).status == 0
    suite = project.root / "suites" / "tiny" / "suite.toml"
    late = '[metrics.mean_loss]\nsummary = "area of val_loss"\ndirection = "lower"\n'
    suite.write_text(suite.read_text().replace("[[task]]", late + "[[task]]", 1))
    done = project.run("run", shas[1])
    assert "the ledger holds every trial asked for" in done.err
    assert "mean_loss" in done.out
    standings = json.loads(project.run("check", shas[1], "--json").out)["standings"]
    (standing,) = [s for s in standings if s["metric"] == "mean_loss"]
    assert standing["trials"] >= 2 and standing["standing"] != "missing"
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        for record in ledger.trials():
            losses = [value for _, value in ledger.series(record.trial.ulid)["val_loss"]]
            assert record.summaries["mean_loss"] == pytest.approx(sum(losses) / len(losses))
            assert record.rules["mean_loss"] == "area of val_loss"
    assert "damaged" not in project.run("doctor").out


@pytest.mark.parametrize(("level", "sought"), [(1.036, "val_loss"), (1.0, "duration")])
def test_telemetry_is_searched_only_where_nothing_declared_is_worse(
    tmp_path: Path, level: float, sought: str
) -> None:
    """A machine that was busy while one end was measured makes telemetry the surest of all."""
    project = scripted(tmp_path / "project", SUITE, descend)
    shas = [
        project.commit(f"number {i}", {"model.py": f"{text}SCORE = 0.9\n# {i}\n"})
        for i, text in enumerate([
            "LEVEL = 1.0\nSECONDS = 2.0\n", f"LEVEL = {level}\nSECONDS = 2.0\n",
            f"LEVEL = {level}\nSECONDS = 200.0\n",
        ])
    ]  # fmt: skip
    done = project.run("bisect", f"{shas[0]}..{shas[-1]}")
    culprit = shas[1] if sought == "val_loss" else shas[2]
    assert f"first bad commit of fit {sought}: {culprit}" in done.out, done.out + done.err


def test_a_declared_metric_that_no_trial_has_is_told(tmp_path: Path) -> None:
    suite = SUITE.replace("[[task]]", '[metrics.step_time]\ndirection = "lower"\n[[task]]')
    project = scripted(tmp_path / "project", suite, descend)
    project.commit("one", {"model.py": "LEVEL = 1.0\nSCORE = 0.9\n"})
    assert "warning: fit step_time: no trial had a value" in project.run("run", "HEAD").err
