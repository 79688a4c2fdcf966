"""Several trials at once on this machine: real processes, real locks, a real ledger."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import SUITE, Project, make_project, rows

from celedger.base.model import Kind, TrialRecord
from celedger.system.devices import CPU, DeviceLock
from celedger.trial.engine import Need
from celedger.trial.runner import run_all, share_out

# Waits for as many trials as the commit asks for, then reports which cores it may use.
MEETING = """
import argparse, os, random, time
from pathlib import Path
from celedger.child import log
import model
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
seed = parser.parse_args().seed
meeting = Path(os.environ["MEETING"])
(meeting / f"{model.NUMBER}-{seed}").touch()
while len(list(meeting.glob(f"{model.NUMBER}-*"))) < model.AT_ONCE:
    time.sleep(0.01)
rng = random.Random(seed)
cores = sum(1 << core for core in os.sched_getaffinity(0))
log(epoch=0, val_loss=rng.random(), cores=cores)
time.sleep(model.SLEEP)
log(epoch=1, val_loss=rng.random(), cores=cores)
"""
MET = SUITE.replace('name = "tiny"', 'name = "tiny"\npass_env = ["MEETING"]')
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@pytest.fixture
def meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "meeting"
    folder.mkdir()
    monkeypatch.setenv("MEETING", str(folder))
    return folder


def commit(project: Project, number: int, *, at_once: int, sleep: float = 0) -> str:
    model = f"NUMBER = {number}\nAT_ONCE = {at_once}\nSLEEP = {sleep}\n"
    return project.commit(str(number), {"model.py": model})


VALUES = "SELECT seed, epoch, value FROM epoch_metrics WHERE metric = 'val_loss' ORDER BY 1, 2"


@pytest.mark.matrix
@TWO_CORES
def test_trials_at_once_have_cores_of_their_own_and_the_values_of_trials_alone(
    tmp_path: Path, meeting: Path
) -> None:
    together = make_project(tmp_path / "together", MET, {"fit.py": MEETING})
    commit(together, 0, at_once=2)
    done = together.run("run", "--workers", "2")
    assert done.status == 0, done.err
    alone = make_project(tmp_path / "alone", MET, {"fit.py": MEETING})
    commit(alone, 1, at_once=1)
    assert alone.run("run").status == 0

    assert rows(together, VALUES) == rows(alone, VALUES)
    marks = "SELECT DISTINCT marks FROM outcomes"
    assert (rows(together, marks), rows(alone, marks)) == ([("accompanied",)], [("",)])
    masks = "SELECT DISTINCT value FROM epoch_metrics WHERE metric = 'cores'"
    (first,), (second,) = rows(together, masks)
    assert int(first) & int(second) == 0
    assert "hindered" in together.run("show").out, "their speed is not judged"


@pytest.mark.matrix
@TWO_CORES
def test_an_interrupt_ends_all_trials_and_records_them(tmp_path: Path, meeting: Path) -> None:
    project = make_project(tmp_path / "project", MET, {"fit.py": MEETING})
    commit(project, 0, at_once=2, sleep=600)
    program = subprocess.Popen(
        [sys.executable, "-m", "celedger", "run", "--workers", "2"],
        cwd=project.root, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    query = "SELECT count(DISTINCT seed) FROM epoch_metrics WHERE epoch = 0"
    while not (project.root / "ledger.db").exists() or rows(project, query) != [(2,)]:
        assert program.poll() is None
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=60)
    assert program.returncode == 130, err
    kinds = "SELECT kind, epochs FROM outcomes"
    assert rows(project, kinds) == [("interrupted", 1)] * 2
    assert "Traceback" not in err


@TWO_CORES
def test_what_fails_in_a_worker_ends_the_command_with_one_line(
    tmp_path: Path, meeting: Path
) -> None:
    project = make_project(tmp_path / "project", MET, {"fit.py": MEETING})
    commit(project, 0, at_once=1)
    (project.root / ".git" / "celedger").mkdir()
    (project.root / ".git" / "celedger" / "checkouts").touch()  # no folder can be made
    done = project.run("run", "--workers", "2")
    assert done.status == 128
    assert done.err.count("\n") == 1, done.err
    assert "cannot make a checkout" in done.err


def test_the_whole_cpu_waits_for_a_trial_on_some_cores_and_other_cores_do_not(
    tmp_path: Path,
) -> None:
    waited: list[str] = []

    class _WaitedError(Exception):
        pass

    def wait(holder: object) -> None:
        waited.append(str(holder))
        raise _WaitedError

    def lock(*cores: int) -> DeviceLock:
        return DeviceLock("cpu", folder=tmp_path, label=f"on {cores}", cores=cores)

    whole, first, second = lock(), lock(0, 1), lock(2)
    with first.hold(wait):
        assert not first.was_shared()
        with second.hold(wait):
            pass
        assert first.was_shared(), "although the other has ended"
        for other in (whole, lock(1, 2)):
            with pytest.raises(_WaitedError), other.hold(wait):
                pass
    with whole.hold(wait), pytest.raises(_WaitedError), second.hold(wait):
        pass
    assert [words.partition(" (process")[0] for words in waited] == [
        "on (0, 1)", "on (0, 1)", "on ()"
    ]  # fmt: skip


def test_workers_are_as_many_as_the_machine_has_cores_for() -> None:
    said: list[str] = []
    assert share_out(None, CPU, range(8), 1) == [(CPU, ())]
    assert share_out(2, CPU, range(5), 2) == [(CPU, (0, 1)), (CPU, (2, 3))]
    assert len(share_out(9, CPU, range(4), 2, said.append)) == 2
    assert said == ["2 of 9 workers: each trial needs 2 of 4 cores"]


class _Scripted:
    """A pool of two whose trials end in the order in which they were submitted."""

    workers = 2

    def __init__(self) -> None:
        self.under_way: list[tuple[Need, Future[TrialRecord]]] = []
        self.most: list[list[Need]] = []

    def submit(self, need: Need) -> Future[TrialRecord]:
        self.under_way.append((need, Future()))
        self.most.append([each for each, _ in self.under_way])
        return self.under_way[-1][1]

    def wait(self) -> None:
        need, future = self.under_way.pop(0)
        future.set_result(need)  # type: ignore[arg-type]


def test_a_task_is_not_run_at_two_commits_at_once_while_another_can(tmp_path: Path) -> None:
    fit, speed = (SimpleNamespace(name=name, metrics=()) for name in ("fit", "speed"))
    speed.metrics = (SimpleNamespace(name="rate", kind=Kind.SPEED),)
    pool = _Scripted()
    alone: list[Need] = []

    def run(need: Need) -> Need:
        alone.append(need)
        return need

    bench: Any = SimpleNamespace(
        engine=pool, run=run, suite=SimpleNamespace(judged={("speed", "rate")})
    )
    needs: list[Any] = [
        Need(at, task, 0)  # type: ignore[arg-type]
        for task in (fit, speed)
        for at in ("a", "b")
    ]
    assert run_all(bench, needs) == needs
    assert all(len({each.task.name for each in group}) == len(group) for group in pool.most)
    assert run_all(bench, needs, speed_too=False) == needs
    assert alone == needs[2:], "whose speed is judged"
