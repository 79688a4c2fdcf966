"""Ctrl-C and SIGTERM at every stage: status 130, the trial recorded, nothing left running."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Project, celedger, git, make_project, matrix_after, until

from celedger.base.errors import UsageError
from celedger.cli import service, unix

HANGING = """\
import os, sys, time
from celedger.child import log
log(epoch=0, val_loss=1.0)
if os.fork() == 0:
    os.setsid()  # tries to get away
open(os.environ["MARK"], "w").close()
time.sleep(600)
"""
SUITE = """\
[suite]
name = "tiny"
pass_env = ["MARK"]
[metrics.val_loss]
direction = "lower"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py"
"""


class Program:
    """`celedger` under way, on a terminal of its own or on pipes."""

    def __init__(self, project: Project, *words: str, terminal: bool = False) -> None:
        self.mark = project.root.parent / "mark"
        self._keys = -1
        environment = {**os.environ, "MARK": str(self.mark), "TERM": "xterm"}
        if terminal:
            self._keys, line = pty.openpty()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celedger", *words], cwd=project.root, env=environment,
                stdin=line, stdout=line, stderr=line, start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
            )  # fmt: skip
            os.close(line)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celedger", *words], cwd=project.root, env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def press_ctrl_c(self) -> None:
        os.write(self._keys, b"\x03")

    def end(self) -> tuple[int, str]:
        """Its status, and what it said."""
        if self._keys < 0:
            out, _ = self.process.communicate(timeout=120)
            return self.process.returncode, out.decode()
        said = b""
        while True:
            try:
                piece = os.read(self._keys, 65536)
            except OSError:  # EIO: nobody has the terminal open any more
                break
            if not piece:
                break
            said += piece
        os.close(self._keys)
        return self.process.wait(120), said.decode(errors="replace")


def carrying(text: str) -> list[int]:
    """The processes that have this in their environment and belong to a trial or a checkout."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(text) in environment:
                found.append(int(folder.name))
    return found


def outcomes(project: Project) -> list[tuple[str, int]]:
    """(kind, epochs) of every trial; "open" for one without an outcome."""
    with sqlite3.connect(project.root / "ledger.db") as connection:
        return connection.execute(
            "SELECT coalesce(kind, 'open'), coalesce(epochs, 0) FROM trials "
            "LEFT JOIN outcomes ON trial = trials.id ORDER BY trials.id"
        ).fetchall()


def assert_nothing_left(project: Project) -> None:
    until(lambda: not carrying(str(project.root.parent / "mark")))
    journals = project.root / ".celedger" / "journals"
    assert not journals.exists() or not list(journals.iterdir())
    for lock in (project.root / ".git" / "celedger" / "checkouts").glob("*.lock"):
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.fixture
def hanging(tmp_path: Path) -> Project:
    project = make_project(tmp_path / "project", SUITE, {"fit.py": HANGING})
    project.history([1.0])
    return project


@pytest.mark.matrix
@pytest.mark.parametrize("how", matrix_after(2, ["SIGINT", "terminal", "SIGTERM", "SIGHUP"]))
def test_an_interrupt_in_a_training_is_recorded_and_ends_its_group(
    hanging: Project, how: str
) -> None:
    program = Program(hanging, "run", terminal=how == "terminal")
    until(program.mark.exists)
    if how == "terminal":
        program.press_ctrl_c()
    else:
        program.process.send_signal(signal.Signals[how])
    status, said = program.end()
    assert status == 130, said
    assert "celedger: interrupted; what was measured is in the ledger" in said
    assert "Traceback" not in said
    assert outcomes(hanging) == [("interrupted", 1)]
    assert_nothing_left(hanging)


@pytest.mark.matrix
def test_stop_ends_the_worker_and_its_job_stays(hanging: Project) -> None:
    queue = hanging.root / ".git" / "celedger" / "queue"
    queue.mkdir(parents=True)
    (queue / "1.moved").write_bytes(os.fsencode(hanging.root))
    program = Program(hanging, "worker")
    until(program.mark.exists)
    told = celedger(hanging.root, "stop")
    assert told.status == 0 and "stays queued: `celedger worker` goes on" in told.out
    status, said = program.end()
    assert status == 130 and "Traceback" not in said
    assert outcomes(hanging) == [("interrupted", 1)]
    assert " queued " in celedger(hanging.root, "queue").out
    assert celedger(hanging.root, "stop").out == "no worker and no fork server is running\n"
    assert_nothing_left(hanging)


def test_a_worker_ends_at_a_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Callable[..., None]] = []
    waits: list[float] = []
    monkeypatch.setattr(signal, "signal", lambda _, handler: handlers.append(handler))
    monkeypatch.setattr(signal, "setitimer", lambda _, seconds: waits.append(seconds))
    monkeypatch.setattr(os, "kill", lambda _, number: waits.append(number))
    is_up = service._interrupt_at("07:00")
    assert 0 < waits[0] <= 25 * 3600 and not is_up
    handlers[0]()
    assert is_up and waits[1] == signal.SIGINT
    with pytest.raises(UsageError, match="not a time of day"):
        service._interrupt_at("7")


@pytest.mark.matrix
def test_a_kill_of_celedger_ends_a_hanging_training_before_any_next_command(
    hanging: Project,
) -> None:
    program = Program(hanging, "run")
    until(program.mark.exists)
    assert len(carrying(str(program.mark))) >= 3  # celedger, the training and its runaway child
    program.process.kill()
    program.end()
    until(lambda: not carrying(str(program.mark)))
    assert outcomes(hanging)[0][0] == "open"
    assert "was interrupted; the ledger has 1 epoch of it" in celedger(hanging.root, "log").err
    assert outcomes(hanging) == [("interrupted", 1)]
    assert_nothing_left(hanging)


@pytest.mark.matrix
def test_an_interrupt_while_waiting_for_the_device(hanging: Project) -> None:
    locks = Path(os.environ["CELEDGER_LOCK_DIR"])
    locks.mkdir(parents=True)
    with (locks / "cpu.lock").open("w") as file:
        file.write('{"pid": 7, "label": "a neighbour", "since": 0, "host": "here"}')
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        program = Program(hanging, "run", terminal=True)
        waiting = b""
        while b"a neighbour (process 7" not in waiting:
            waiting += os.read(program._keys, 4096)
        program.press_ctrl_c()
        status, said = program.end()
    assert status == 130, said
    assert outcomes(hanging) == []
    assert_nothing_left(hanging)


@pytest.mark.matrix
def test_an_interrupt_in_a_build(tmp_path: Path) -> None:
    suite = SUITE.replace("[metrics", "build = ['''sh -c 'touch $MARK; sleep 600' ''']\n[metrics")
    project = make_project(tmp_path / "project", suite, {"fit.py": HANGING})
    project.history([1.0])
    program = Program(project, "run")
    until(program.mark.exists)
    program.process.send_signal(signal.SIGTERM)
    status, said = program.end()
    assert status == 130, said
    assert outcomes(project) == [("interrupted", 0)]
    assert_nothing_left(project)


@pytest.mark.matrix
@pytest.mark.parametrize("terminal", [True, False])
def test_an_interrupt_in_a_checkout(tmp_path: Path, terminal: bool) -> None:
    project = make_project(tmp_path / "project")
    project.commit("filtered", {".gitattributes": "*.py filter=slow\n", "model.py": "LEVEL = 1\n"})
    git(project.root, "config", "filter.slow.smudge", 'touch "$MARK"; sleep 600')
    program = Program(project, "run", terminal=terminal)
    until(program.mark.exists)
    if terminal:
        program.press_ctrl_c()
    else:
        program.process.send_signal(signal.SIGTERM)
    status, said = program.end()
    assert status == 130, said
    assert outcomes(project) == [("interrupted", 0)]
    assert_nothing_left(project)
    git(project.root, "config", "--unset", "filter.slow.smudge")
    assert project.run("run").status == 0


@pytest.mark.matrix
def test_a_checkout_whose_holder_was_killed_is_not_used_while_its_git_still_writes(
    tmp_path: Path,
) -> None:
    project = make_project(tmp_path / "project")
    project.commit("filtered", {".gitattributes": "*.py filter=slow\n", "model.py": "LEVEL = 1\n"})
    git(project.root, "config", "filter.slow.smudge", 'touch "$MARK"; sleep 600')
    program = Program(project, "run")
    until(program.mark.exists)
    program.process.kill()
    git(project.root, "config", "--unset", "filter.slow.smudge")
    done = project.run("run")
    assert done.status == 0, done.err
    assert (project.root / ".git" / "celedger" / "checkouts" / "1").is_dir()
    for pid in carrying(str(program.mark)):
        os.kill(pid, signal.SIGKILL)
    program.process.communicate()


def test_a_second_ctrl_c_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    times = iter([10.0, 10.1, 11.5])
    monkeypatch.setattr(unix, "_interrupted", None)
    monkeypatch.setattr(unix.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(unix.os, "_exit", ended.append)
    with pytest.raises(KeyboardInterrupt):
        unix._interrupt(signal.SIGINT, None)
    unix._interrupt(signal.SIGINT, None)  # what a wrapper passes on: not a second wish
    assert ended == []
    unix._interrupt(signal.SIGINT, None)
    assert ended == [130]


def test_an_interrupt_at_the_start_leaves_no_traceback(hanging: Project) -> None:
    for delay in (0.06, 0.12, 0.2, 0.3):
        program = Program(hanging, "log")
        time.sleep(delay)
        program.process.send_signal(signal.SIGTERM)
        status, said = program.end()
        assert status in (130, 128, -signal.SIGTERM), said  # 128: it had ended, without a ledger
        assert "Traceback" not in said
