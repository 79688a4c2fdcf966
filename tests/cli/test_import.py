"""`celedger import`: runs of other programs, as these programs write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Project

from celedger.base.model import TrialRecord
from celedger.ledger import Ledger


@pytest.fixture
def shas(project: Project) -> list[str]:
    return [project.commit(f"work {n}", {"model.py": f"LEVEL = {n}\n"}) for n in range(3)]


def trials(project: Project) -> list[TrialRecord]:
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        return ledger.trials()


def series(project: Project, record: TrialRecord) -> dict[str, list[tuple[int, float]]]:
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        return ledger.series(record.trial.ulid)


def test_rows_of_a_table_are_epochs_of_runs_and_count_once(
    project: Project, shas: list[str], tmp_path: Path
) -> None:
    lines = [
        {"git": sha[:12], "name": "my net", "seed": seed, "step": step, "loss": 1 / (step + 1),
         "note": "x", "when": "2026-01-02T03:04:05+00:00"}
        for sha in shas for seed in (0, 1) for step in range(3)
    ]  # fmt: skip
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    words = ("import", "jsonl", str(path), "--column", "commit=git", "--column", "task=name",
             "--column", "epoch=step", "--column", "time=when", "--lower", "loss")  # fmt: skip
    assert project.run(*words, "--dry-run").status == 0 and not trials(project)
    done = project.run(*words)
    assert done.status == 0, done.err
    records = trials(project)
    assert [(r.trial.commit, r.trial.seed) for r in records] == [
        (s, n) for s in shas for n in (0, 1)
    ]
    assert {(r.suite, r.task) for r in records} == {("imported", "my-net")}
    assert series(project, records[0]) == {"loss": [(0, 1.0), (1, 0.5), (2, 1 / 3)]}
    assert project.run(*words).status == 0 and len(trials(project)) == 6
    shown = project.run("show", shas[0]).out
    assert "imported/my-net  ok, 2 trials" in shown and "loss" in shown
    assert project.run("drift").status == 0


def test_a_csv_without_commits_is_placed_by_date_or_refused(
    project: Project, shas: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "history.csv"
    path.write_text("_step,val_acc,time\n0,0.5,\n1,0.75,\n")
    words = ("import", "csv", str(path), "--column", "epoch=_step", "--higher", "val_acc")
    refused = project.run(*words)
    assert refused.status == 129 and refused.err.count("\n") == 1
    assert "history.csv:2 names no commit (--commit-from REV, or --commit-from date)" in refused.err
    assert "before the first commit" in project.run(*words, "--commit-from", "date").err
    path.write_text("_step,val_acc,time\n0,0.5,4102444800\n1,0.75,4102444800\n")
    assert project.run(*words, "--commit-from", "date").status == 0
    (record,) = trials(project)
    assert record.trial.commit == shas[-1] and record.summaries == {"val_acc": 0.75}
    assert project.run(*words, "--commit-from", "HEAD~1").status == 0
    assert {r.trial.commit for r in trials(project)} == {shas[-1], shas[-2]}


def test_benchmarks_of_four_programs(project: Project, shas: list[str], tmp_path: Path) -> None:
    documents = {
        "pytest-benchmark": {
            "machine_info": {"node": "box", "python_version": "3.11.7"},
            "commit_info": {"id": shas[0], "dirty": False}, "datetime": "2026-01-02T03:04:05",
            "benchmarks": [{"fullname": "tests/test_a.py::test_fit",
                            "stats": {"median": 0.25, "min": 0.2, "mean": 0.3}}],
        },
        "hyperfine": {"results": [{"command": "./train --fast", "mean": 1.1, "median": 1.0,
                                   "min": 0.9, "times": [0.9, 1.0, 1.4]}]},
        "asv": {
            "commit_hash": shas[2], "date": 1767323045000, "version": 2,
            "params": {"machine": "box", "python": "3.11"}, "result_columns": ["result", "params"],
            "results": {"suite.time_fit": [[0.5], []], "suite.track_loss": [[0.1, None, 0.3],
                                                                             [["1", "2", "3"]]]},
        },
        "google-benchmark": {
            "context": {"date": "2026-01-02T03:04:05+00:00", "host_name": "box"},
            "benchmarks": [{"name": "BM_fit/8", "real_time": 2000.0, "cpu_time": 1000.0,
                            "time_unit": "us"},
                           {"name": "BM_fit/8_stddev", "aggregate_name": "stddev", "real_time": 1.0,
                            "cpu_time": 1.0, "time_unit": "us"}],
        },
    }  # fmt: skip
    for form, document in documents.items():
        path = tmp_path / f"{form}.json"
        path.write_text(json.dumps(document))
        done = project.run("import", form, str(path), "--commit-from", "HEAD~1")
        assert done.status == 0, done.err
    told = {r.task: (r.trial.commit, r.summaries) for r in trials(project)}
    assert told == {
        "tests-test_a.py-test_fit": (shas[0], {"seconds": 0.25, "seconds_min": 0.2}),
        "train---fast": (shas[1], {"seconds": 1.0, "seconds_min": 0.9}),
        "suite.time_fit": (shas[2], {"seconds": 0.5}),
        "suite.track_loss-0": (shas[2], {"value": 0.1}),
        "suite.track_loss-2": (shas[2], {"value": 0.3}),
        "BM_fit-8": (shas[1], {"seconds": 0.002, "cpu_seconds": 0.001}),
    }
    environments = {r.trial.environment for r in trials(project)}
    assert len(environments) == 4
    shown = " ".join(project.run("status").out.split())
    assert "more imported runs of one commit tell it" in shown and "celedger noise" not in shown


def test_stores_of_mlflow_wandb_and_tensorboard(
    project: Project, shas: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "mlruns" / "0" / "abc"
    for name, text in {
        "metrics/val_loss": "1767323045000 0.9 0\n1767323046000 0.5 1\n",
        "params/seed": "7", "tags/mlflow.source.git.commit": shas[0] + "\n",
        "tags/mlflow.source.name": "/home/me/train.py",
    }.items():  # fmt: skip
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    files = tmp_path / "wandb" / "run-20260102_030405-xyz" / "files"
    files.mkdir(parents=True)
    (files / "wandb-summary.json").write_text('{"val_loss": 0.25, "_step": 9, "best": "no"}')
    (files / "wandb-metadata.json").write_text(
        json.dumps({"git": {"commit": shas[1]}, "program": "/x/fit.py",
                    "startedAt": "2026-01-02T03:04:05.123456Z"})
    )  # fmt: skip
    for form, place in (("mlflow", "mlruns"), ("wandb", "wandb")):
        done = project.run("import", form, str(tmp_path / place))
        assert done.status == 0, done.err
    first, second = sorted(trials(project), key=lambda r: r.task, reverse=True)
    assert (first.task, first.trial.commit, first.trial.seed) == ("train.py", shas[0], 7)
    assert series(project, first) == {"val_loss": [(0, 0.9), (1, 0.5)]}
    assert (second.task, second.summaries) == ("fit.py", {"val_loss": 0.25})
    pytest.importorskip("tensorboard")
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(tmp_path / "runs" / "a") as writer:
        writer.add_scalar("loss", 0.5, 0)
        writer.add_scalar("loss", 0.25, 1)
    words = ("import", "tensorboard", str(tmp_path / "runs"), "--commit-from", "HEAD")
    assert project.run(*words).status == 0
    third = next(r for r in trials(project) if r.task == "a")
    assert series(project, third) == {"loss": [(0, 0.5), (1, 0.25)]}


@pytest.mark.parametrize(
    ("form", "text", "cause"),
    [
        ("jsonn", "", "there is no format 'jsonn' (did you mean 'jsonl'?)"),
        ("jsonl", "{nonsense\n", "is not of the form jsonl"),
        ("jsonl", "3\n", "line 1 is no JSON object"),
        ("csv", "a,b\n", "has no run with a number"),
        ("hyperfine", "{}", "it lacks 'results'"),
        ("asv", "[]", "it is no JSON object"),
        ("jsonl", '{"commit": "0123456789", "loss": 1}\n', "is not in this repository"),
    ],
)
def test_what_is_no_run_is_one_line(
    project: Project, shas: list[str], tmp_path: Path, form: str, text: str, cause: str
) -> None:
    path = tmp_path / "file.txt"
    path.write_text(text)
    done = project.run("import", form, str(path))
    assert done.status == 129 and done.err.count("\n") == 1, done.err
    assert cause in done.err
