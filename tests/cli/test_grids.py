"""Grids, aliases, parts of a task, and tasks that report in other ways than `log`, through the
real program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Project, make_project, rows

SUITE = """\
[suite]
pass_env = ["WAIT"]
name = "tiny"
[metrics.val_loss]
direction = "lower"
[metrics.score]
direction = "higher"
[[task]]
name = "job"
commands.train = "{python} {suite}/job.py train {out} {width} {depth} {seed}"
commands.test = "{python} {suite}/job.py test {out} {width} {depth} {seed}"
params = { depth = 2 }
grid = { size = ["small", "large", "again"] }
pattern = ['epoch (?P<epoch>[0-9]+)', 'val_loss=(?P<val_loss>[0-9.]+)', 'score (?P<score>[0-9.]+)']
seeds = [0, 1]
[task.alias.size]
small = { width = 2 }
large = { width = 4 }
again = { width = 2 }
"""

# Reports by printing alone. With WAIT in the environment it waits after epoch 1 for its end.
JOB = """\
import os, sys, time
from pathlib import Path
stage, out, width, depth, seed = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
if stage == "train":
    for epoch in range(3):
        print(f"epoch {epoch}: val_loss={1 / width + seed / 100 + 1 / (epoch + 1):.4f}")
        while epoch == 1 and "WAIT" in os.environ:
            time.sleep(0.02)
    (out / "model").write_text(str(width * depth))
else:
    print("score", float((out / "model").read_text()))
"""

ENDED = (
    "SELECT t.name, r.seed, o.kind, o.epochs FROM trials r JOIN tasks t ON t.id = r.task "
    "LEFT JOIN outcomes o ON o.trial = r.id ORDER BY r.id"
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path / "project", SUITE, {"job.py": JOB})
    made.commit("first", {"a": "1"})
    return made


@pytest.mark.matrix
def test_a_grid_is_run_tabled_and_run_in_parts(project: Project) -> None:
    early = project.run("run", "HEAD", "--only", "test")
    assert early.status == 129
    assert "no trial of job[size=small]" in early.err and "celedger run" in early.err
    assert project.run("run", "HEAD").status == 0
    whole = [(f"job[size={s}]", seed, "ok", 3) for s in ("small", "large") for seed in (0, 1)]
    assert rows(project, ENDED) == whole  # `again` runs what `small` does: once
    assert rows(project, "SELECT DISTINCT epoch, metric, value FROM epoch_metrics WHERE "
                "task = 'job[size=large]' AND seed = 1 AND metric IN ('val_loss', 'score')") == [
        (0, "val_loss", 1.26), (1, "val_loss", 0.76), (2, "val_loss", 0.5933), (2, "score", 8.0),
    ]  # fmt: skip

    text = project.run("table", "--metric", "score", "--metric", "val_loss")
    shown, leads = text.out.split("\n\n")
    assert leads.splitlines() == [
        "score: size=large width=4 is surely the best of 2, +100 % from size=small width=2",
        "val_loss: size=large width=4 is surely the best of 2, -29.8 % from size=small width=2",
    ]
    assert [line.split() for line in shown.splitlines()] == [
        ["size", "width", "n", "score", "val_loss"],
        ["small", "2", "2", "4", "±", "0", "0.8383", "±", "0.0071"],
        ["large", "4", "2", "8", "±", "0", "0.5883", "±", "0.0071"],
    ]
    answer = json.loads(project.run("table", "--json").out)
    assert answer["parameters"] == ["size", "width"]
    assert answer["rows"][1]["values"]["score"] == {"mean": 8.0, "sd": 0.0, "n": 2}
    assert [(each["metric"], each["best"]["size"], each["sure"]) for each in answer["leads"]] == [
        ("val_loss", "large", True), ("score", "large", True),
    ]  # fmt: skip
    wrong = project.run("table", "--param", "x")
    assert (wrong.status, wrong.out) == (129, "") and "depth" in wrong.err

    part = project.run("run", "HEAD", "--only", "test", "--task", "job[size=small]")
    assert part.status == 0, part.err
    assert rows(project, ENDED)[4:] == [("job[size=small,only=test]", s, "ok", 1) for s in (0, 1)]
    assert project.run("table", "--metric", "score", "--metric", "val_loss").out == text.out
    assert "known: train, test" in project.run("run", "HEAD", "--only", "tset").err


@pytest.mark.matrix
def test_what_a_killed_run_left_is_taken_in_from_the_log_and_run_again(project: Project) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-m", "celedger", "run", "HEAD"], cwd=project.root,
        env={**os.environ, "WAIT": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    logs = project.root / ".celedger" / "logs"
    deadline = time.monotonic() + 120
    while not any("epoch 1:" in path.read_text() for path in logs.glob("*.log")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    again = project.run("run", "HEAD")
    assert again.status == 0, again.err
    assert "was interrupted; the ledger has 2 epochs of it" in again.err
    ended = rows(project, ENDED)
    assert ended[0] == ("job[size=small]", 0, "interrupted", 2)
    assert ended[1:] == [(f"job[size={s}]", seed, "ok", 3) for s in ("small", "large")
                         for seed in (0, 1)]  # fmt: skip
