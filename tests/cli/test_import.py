"""`celedger import`: runs of other programs, as these programs write them."""

from __future__ import annotations

import base64
import json
import math
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import pytest
from conftest import Project

from celedger.base.model import TrialRecord
from celedger.ledger import Ledger

# run-ID.wandb of wandb 0.31, offline: project "p", seed 1, the loss of three epochs.
WANDB = """
eNp9kM9Kw0AQh53QlrBtRRYUqRcpKqIY9k82m3j0JTyGbbvVahJD0lpBRMlJevPqCwjePXjx4MFn8OrZZxDcCGKL6Jxm
YOb3fczu/sbe29NcWQ9zYFsFzLcbeWfUy7KYDrLjg+cGQvY4iUYqCcQEbuBnakHaXkFNVAvHKul1CrDOLxBClVzrXgFA
j6zTeAJ1++Pl7rW2cP34XrmF9VZ1Fa4A2jXuUOrIrRpxOHXIUSMaJKOznTPfCz33HrbwZs/lARUd3eeB6jKlpFaEKd1V
wpfC533Wlb4KPLd0T407whFq4kp0kucFVEwmRXVc1elJ99DYELSOUTgcxDofqjgtYMnQA+FTQiVnnumY0NskQMvYDrNR
Um4WUCcOMxZMCsrKtDAf6rRMw18vywy2iZMpLHHEDJb+i5WE+kT+hfWoFEROYym2bCjBlwa8gM9/X7mEuYy7fPqKoZVv
P2y+7fKZmrZlaG3WdnHGlhIZlLLGwvoE/tmGrQ==
"""
WANDB_COMMIT = b"d43915bef39ac2aa7ea02aeca587583f2c78a964"


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
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8-sig")  # Windows'
    words = ("import", "jsonl", str(path), "--column", "commit=git", "--column", "task=name",
             "--column", "epoch=step", "--column", "time=when", "--lower", "loss")  # fmt: skip
    wrong = project.run(*words, "--higher", "los")
    assert wrong.status == 129
    assert "no run has a metric 'los' (did you mean 'loss'?)" in wrong.err
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
                           {"name": "BM_fit/8_median", "aggregate_name": "median",
                            "real_time": 3000.0, "cpu_time": 3.0, "time_unit": "us"},
                           {"name": "BM_only_median", "aggregate_name": "median",
                            "real_time": 4000.0, "cpu_time": 4.0, "time_unit": "us"},
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
        "suite.track_loss-1": (shas[2], {"value": 0.1}),
        "suite.track_loss-3": (shas[2], {"value": 0.3}),
        "BM_fit-8": (shas[1], {"seconds": 0.002, "cpu_seconds": 0.001}),
        "BM_only": (shas[1], {"seconds": 0.004, "cpu_seconds": 4e-6}),
    }
    environments = {r.trial.environment for r in trials(project)}
    assert len(environments) == 4
    shown = " ".join(project.run("status").out.split())
    assert "more imported runs of one commit tell it" in shown and "celedger noise" not in shown
    shown = project.run("show", "HEAD~1").out
    assert "imported from google-benchmark" in shown
    assert "seconds_min  900 ms" in shown


def test_a_folder_of_benchmarks_is_read_whole(
    project: Project, shas: list[str], tmp_path: Path
) -> None:
    """As `--benchmark-autosave` and `asv run` leave it."""
    for number, sha in enumerate(shas):
        row = {
            "version": 2,
            "commit_hash": sha,
            "date": 1767323045000 + number,
            "result_columns": ["result", "params"],
            "results": {"suite.time_fit": [[0.5], []]},
        }
        file = tmp_path / "results" / "box" / f"{sha[:8]}-py3.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(row))
    for beside in ("benchmarks.json", "box/machine.json"):
        (tmp_path / "results" / beside).write_text('{"version": 1}')
    done = project.run("import", "asv", str(tmp_path / "results"))
    assert done.status == 0, done.err
    assert sorted(r.trial.commit for r in trials(project)) == sorted(shas)


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
    folder = tmp_path / "wandb" / "offline-run-20260102_030405-xyz"
    folder.mkdir(parents=True)
    data = zlib.decompress(base64.b64decode(WANDB)).replace(WANDB_COMMIT, shas[1].encode())
    (folder / "run-xyz.wandb").write_bytes(data + data[7:90])  # the last record is torn
    (tmp_path / "wandb" / "latest-run").symlink_to(folder)
    for form, place in (("mlflow", "mlruns"), ("wandb", "wandb")):
        done = project.run("import", form, str(tmp_path / place))
        assert done.status == 0, done.err
    first, second = sorted(trials(project), key=lambda r: r.task, reverse=True)
    assert (first.task, first.trial.commit, first.trial.seed) == ("train.py", shas[0], 7)
    assert series(project, first) == {"val_loss": [(0, 0.9), (1, 0.5)]}
    assert (second.task, second.trial.commit, second.trial.seed) == ("p", shas[1], 1)
    assert series(project, second) == {"loss": [(0, 1.01), (1, 0.51), (2, 1 / 3 + 0.01)]}
    pytest.importorskip("tensorboard")
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(tmp_path / "runs" / "a") as writer:
        writer.add_scalar("loss", 0.5, 0)
        writer.add_scalar("loss", 0.25, 1)
    words = ("import", "tensorboard", str(tmp_path / "runs"), "--commit-from", "HEAD")
    assert project.run(*words).status == 0
    third = next(r for r in trials(project) if r.task == "a")
    assert series(project, third) == {"loss": [(0, 0.5), (1, 0.25)]}


def test_databases_of_mlflow_and_trackio(project: Project, shas: list[str], tmp_path: Path) -> None:
    """The tables that MLflow 3.17 and trackio make."""
    (tmp_path / "tk").mkdir()
    tables = {
        "mlflow.db": f"""
            CREATE TABLE runs (run_uuid, start_time, lifecycle_stage);
            CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan);
            CREATE TABLE params (key, value, run_uuid);
            CREATE TABLE tags (key, value, run_uuid);
            INSERT INTO runs VALUES ('r', 1767323045000, 'active'), ('gone', 1, 'deleted');
            INSERT INTO metrics VALUES ('val/loss', 0.5, 2, 'r', 1, 0),
                ('val/loss', 0.9, 1, 'r', 0, 0), ('val/loss', 0.0, 3, 'r', 2, 1),
                ('val/loss', 7.0, 3, 'gone', 0, 0);
            INSERT INTO params VALUES ('seed', '7', 'r'), ('lr', '0.1', 'r');
            INSERT INTO tags VALUES ('mlflow.source.name', '/home/me/train.py', 'r'),
                ('mlflow.source.git.commit', '{shas[0]}', 'r');
            """,
        "tk/waves.db": """
            CREATE TABLE metrics (id, run_id, timestamp, run_name, step, metrics);
            CREATE TABLE configs (id, run_id, run_name, config);
            INSERT INTO metrics VALUES
                (1, 'x', '2026-01-02T03:04:05+00:00', 'sunset', 0, '{"loss": 1}'),
                (2, 'x', '2026-01-02T03:04:06+00:00', 'sunset', 1, '{"loss": 0.5, "note": "b"}');
            INSERT INTO configs VALUES (1, 'x', 'sunset', '{"seed": 3, "_Group": null}');
            """,
    }
    for name, script in tables.items():
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            connection.executescript(script)
    assert project.run("import", "mlflow", str(tmp_path)).status == 0  # the folder of mlflow.db
    done = project.run("import", "trackio", str(tmp_path / "tk"), "--commit-from", "HEAD~1")
    assert done.status == 0, done.err
    first, second = sorted(trials(project), key=lambda r: r.task)
    assert (first.task, first.trial.commit, first.trial.seed) == ("train.py", shas[0], 7)
    told = series(project, first)["val/loss"]
    assert told[:2] == [(0, 0.9), (1, 0.5)] and math.isnan(told[2][1])
    assert (second.task, second.trial.commit, second.trial.seed) == ("waves", shas[1], 3)
    assert series(project, second) == {"loss": [(0, 1.0), (1, 0.5)]}


@pytest.mark.parametrize(
    ("form", "text", "cause"),
    [
        ("jsonn", "", "there is no format 'jsonn' (did you mean 'jsonl'?)"),
        ("jsonl", "{nonsense\n", "is not valid jsonl"),
        ("jsonl", "3\n", "line 1 is not a JSON object"),
        ("csv", "a,b\n", "has no run with a number"),
        ("hyperfine", "{}", "it lacks 'results'"),
        ("asv", "[]", "it is not a JSON object"),
        ("wandb", "{}", "it does not begin with :W&B"),
        ("mlflow", "{}", "file is not a database"),
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
