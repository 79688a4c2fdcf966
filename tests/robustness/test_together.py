"""Many celedgers on one repository at once: nothing lost, nobody told that anything is locked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SCRIPT, Project, make_project, rows

from celedger.system import devices

pytestmark = pytest.mark.matrix

HEAD = """\
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "0.1%"
"""
TASK = """
[[task]]
name = "{name}"
command = "{{python}} {{suite}}/fit.py --seed {{seed}}"
"""


def start(project: Project, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "celedger", *words], cwd=project.root, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_eight_first_runs_at_once_lose_nothing_and_say_for_whom_they_wait(tmp_path: Path) -> None:
    names = [f"task{i}" for i in range(8)]
    suite = HEAD + "".join(TASK.format(name=name) for name in names)
    project = make_project(tmp_path / "project", suite, {"fit.py": SCRIPT})
    project.history([1.0])
    running = [start(project, "run", "--task", name) for name in names]
    said = [(process, *process.communicate(timeout=120)) for process in running]
    for process, _, err in said:
        assert process.returncode == 0, err
        assert "lock" not in err.replace(os.environ["CELEDGER_LOCK_DIR"], "")
        assert "interrupted" not in err
    waits = [err for _, _, err in said if "waiting for cpu: held by celedger run in" in err]
    assert waits, "none of eight had to wait"
    assert rows(project, "SELECT count(*), count(DISTINCT task) FROM epoch_metrics "
                "WHERE metric = 'val_loss' AND outcome = 'ok'") == [(24, 8)]  # fmt: skip
    state = project.root / ".git" / "celedger"
    for place in (state / "suites", state / "child"):
        left = [path.name for path in place.iterdir() if not path.name.isdigit()]  # a slot's
        assert len(left) == 1, f"drafts are left in {place}"
    assert not list((project.root / ".celedger" / "journals").iterdir())

    assert "/.celedger/" in (project.root / ".git" / "info" / "exclude").read_text()


def test_run_bisect_and_worker_at_once_all_end_well(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    shas = project.history([1.0] * 3 + [1.5] * 3)
    notes = project.root / ".git" / "celedger" / "queue"
    notes.mkdir(parents=True)
    (notes / "1.moved").write_text(str(project.root))
    running = [
        start(project, "run", shas[0]),
        start(project, "bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss"),
        start(project, "worker"),
        start(project, "run", shas[2]),
    ]
    said = [(process, *process.communicate(timeout=120)) for process in running]
    assert [p.returncode for p, _, _ in said] == [0, 0, 0, 0], [err for _, _, err in said]
    assert shas[3] in said[1][1]
    assert rows(project, "SELECT DISTINCT kind FROM outcomes") == [("ok",)]
    twice = (
        "SELECT revision, seed, count(*) FROM trials JOIN outcomes ON trial = trials.id "
        # Repeats that settle a doubt are asked for.
        "WHERE marks = '' AND NOT EXISTS (SELECT 1 FROM trial_facts "
        "WHERE trial_facts.trial = trials.id AND name = 'asked') GROUP BY 1, 2 HAVING count(*) > 1"
    )
    assert rows(project, twice) == [], "what one celedger measured, another measured again"


def test_two_that_wait_with_one_question_in_mind_measure_it_once(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    shas = project.history([1.0, 1.5])
    device = devices.DeviceLock("cpu", folder=devices.default_folder(), label="a long training")
    with device.hold(lambda holder: None):
        waiting = [
            start(project, "bisect", f"{shas[0]}..{shas[1]}", "--metric", "val_loss"),
            start(project, "run", shas[0], "--seed", "0"),
        ]
        for process in waiting:
            assert process.stderr is not None
            while "waiting for cpu" not in (line := process.stderr.readline()):
                assert line, "ended without waiting"
    for process in waiting:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    first = f"SELECT seed, count(*) FROM epoch_metrics WHERE epoch = 0 AND sha = '{shas[0]}'"
    assert (0, 1) in rows(project, first + " AND metric = 'val_loss' GROUP BY seed")


def test_who_waits_for_a_holder_without_a_name_is_told_of_no_process(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    project.history([1.0])
    device = devices.DeviceLock("cpu", folder=devices.default_folder(), label="")
    with device.hold(lambda _: None):
        device.path.write_text("")
        waiting = start(project, "run", "HEAD", "--seed", "0")
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "waiting for cpu: held by another celedger\n"
    assert waiting.wait(timeout=120) == 0
