"""Real processes: how commands end, and that nothing of them is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from conftest import until

from celedger.base.errors import MachineError
from celedger.system import process
from celedger.system.process import End, Exit, Running, capture, run, sweep

PATH = os.environ["PATH"]


@pytest.fixture
def token(request: pytest.FixtureRequest) -> Iterator[str]:
    """A CELEDGER_TRIAL of this test's own; the test fails when a process with it is left."""
    value = f"test-{os.getpid()}-{random.SystemRandom().getrandbits(48):x}"
    yield value
    left = carrying(value)
    sweep(value)
    assert left == []


def carrying(token: str) -> list[str]:
    found = []
    for entry in psutil.process_iter():
        try:
            if entry.environ().get("CELEDGER_TRIAL") == token:
                found.append(f"{entry.pid} {entry.status()} {entry.cmdline()}")
        except psutil.Error:
            continue
    return found


@pytest.fixture
def execute(tmp_path: Path, token: str) -> Callable[..., Exit]:
    def call(*argv: str, **options: object) -> Exit:
        options = {
            "timeout": 20.0,
            "env": {"PATH": PATH, "CELEDGER_TRIAL": token},
        } | options
        return run(argv, cwd=tmp_path, log=tmp_path / "logs" / "log", **options)  # type: ignore[arg-type]

    return call


def test_a_command_gets_exactly_its_environment_folder_and_arguments(
    execute: Callable[..., Exit], tmp_path: Path
) -> None:
    code = "import os, sys; print(os.getcwd(), sys.argv[1:]); print(dict(os.environ))"
    env = {"PATH": PATH, "A": "1\n2", "LC_ALL": "C"}
    done = execute(sys.executable, "-c", code, "a b", "", "'\n", env=env)
    assert (done.end, done.returncode, done.ok) == (End.EXITED, 0, True)
    first, second, *_ = (tmp_path / "logs" / "log").read_text().splitlines()
    assert first == f"{tmp_path} ['a b', '', \"'\\n\"]"
    assert second == str(env)
    assert 0 < done.wall < 20
    assert done.max_rss > 1_000_000
    assert done.cpu > 0


def test_python_leaves_no_trace_of_its_own_locale_in_the_environment(
    execute: Callable[..., Exit], tmp_path: Path
) -> None:
    execute("env", env={"PATH": PATH})
    assert (tmp_path / "logs" / "log").read_text() == f"PATH={PATH}\n"


def test_inherited_descriptors_reach_the_command_and_the_pipes_of_celedger_do_not(
    execute: Callable[..., Exit], tmp_path: Path
) -> None:
    fd = os.open(tmp_path / "journal", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    code = (
        f"import os; os.write({fd}, b'epoch'); names = os.listdir('/proc/self/fd')\n"
        "print(sorted(int(n) for n in names if os.path.exists('/proc/self/fd/' + n)))"
    )
    try:
        done = execute(sys.executable, "-c", code, pass_fds=(fd,))
    finally:
        os.close(fd)
    assert done.ok
    assert (tmp_path / "journal").read_text() == "epoch"
    assert (tmp_path / "logs" / "log").read_text() == f"{[0, 1, 2, fd]}\n"


def test_a_command_ignores_no_signal_that_celedger_ignores(execute: Callable[..., Exit]) -> None:
    code = "import signal as s; assert s.getsignal(s.SIGINT) is s.default_int_handler"
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert execute(sys.executable, "-c", code).ok
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize(
    ("script", "returncode", "message"),
    [
        ("exit 3", 3, "exit status 3"),
        ("kill -SEGV $$", -11, "killed by SIGSEGV"),
        ("kill -KILL $$", -9, "killed by SIGKILL"),
    ],
)
def test_a_command_that_fails_says_how(
    execute: Callable[..., Exit], script: str, returncode: int, message: str
) -> None:
    done = execute("sh", "-c", script)
    assert (done.end, done.returncode, done.message) == (End.EXITED, returncode, message)
    assert not done.oom_killed


def test_a_command_that_does_not_exist_is_named(
    execute: Callable[..., Exit], tmp_path: Path
) -> None:
    (tmp_path / "plain").write_text("not executable")
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    for name, said in {
        "no-such-command": "no command 'no-such-command' on PATH",
        "./absent": "no command './absent' in",
        "plain": "write ./plain",
        "./plain": "plain is not an executable file",
        "./broken": "./broken cannot be executed: No such file",
        "nul\0": "no command",
        "": "no command",
    }.items():
        done = execute(name)
        assert (done.end, done.returncode) == (End.NOT_STARTED, None)
        assert said in done.message
        assert "\n" not in done.message
    done = run(
        ["true"],
        cwd=tmp_path / "gone",
        env={"PATH": PATH},
        log=tmp_path / "l",
        timeout=60,
    )
    assert done.end is End.NOT_STARTED
    assert "gone" in done.message


def test_a_log_that_cannot_be_written_is_an_error_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot be written"):
        run(
            ["true"],
            cwd=tmp_path,
            env={"PATH": PATH},
            log=tmp_path / "file" / "log",
            timeout=60,
        )


def test_grandchildren_that_left_the_session_die_with_the_command(
    execute: Callable[..., Exit],
) -> None:
    script = "setsid sleep 100 & (setsid sh -c 'sleep 101 & sleep 102' &) ; sleep 0.05; exit 0"
    done = execute("sh", "-c", script)
    assert done.ok  # and the fixture finds nothing left
    assert done.wall < 50


def test_leftovers_may_clean_up_for_a_moment(execute: Callable[..., Exit], tmp_path: Path) -> None:
    assert execute("sh", "-c", "(sleep 0.05; echo done > cleaned) & exit 0").ok
    assert (tmp_path / "cleaned").read_text() == "done\n"


def test_a_time_out_ends_a_command_that_ignores_sigterm(
    execute: Callable[..., Exit], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Running.stop, "__defaults__", (0.2, ""))
    done = execute("sh", "-c", "trap '' TERM; setsid sleep 100 & sleep 100", timeout=0.2)
    assert (done.end, done.returncode) == (End.TIMEOUT, -9)
    assert done.message == "ran longer than 0.2 s"
    assert done.wall < 50


def test_a_time_out_lets_a_polite_command_finish(
    execute: Callable[..., Exit], tmp_path: Path
) -> None:
    script = "trap 'echo saved; exit 0' TERM; echo on; while :; do :; done"
    done = execute("sh", "-c", script, timeout=0.3)
    assert (done.end, done.returncode) == (End.TIMEOUT, 0)
    assert not done.ok
    assert (tmp_path / "logs" / "log").read_text() == "on\nsaved\n"


def test_silence_ends_a_command_and_any_sign_of_life_keeps_it(
    execute: Callable[..., Exit],
) -> None:
    done = execute("sleep", "50", silence=0.2)
    assert (done.end, done.message) == (End.SILENT, "gave no sign for 0.2 s")
    talking = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done"
    assert execute("sh", "-c", talking, silence=0.5).ok
    signs = iter(range(10_000))
    assert execute("sleep", "0.6", silence=0.3, activity=lambda: next(signs)).ok


def test_a_memory_hog_is_ended_at_its_limit(execute: Callable[..., Exit]) -> None:
    hog = "import time; kept = [bytearray(b'x' * 10_000_000) for _ in range(30)]; time.sleep(60)"
    done = execute("sh", "-c", f'{sys.executable} -c "{hog}"; true', memory=100_000_000)
    assert done.end is End.MEMORY
    assert "its limit is 100 MB" in done.message
    assert not done.oom_killed
    assert done.max_rss > 90_000_000


def test_a_kill_by_the_kernel_for_memory_is_told_from_any_other(
    execute: Callable[..., Exit], monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = iter([4, 5, 5, 6])
    monkeypatch.setattr(process, "oom_kills", lambda: next(kills))
    killed = execute("sh", "-c", "kill -KILL $$")
    assert killed.oom_killed
    assert "memory ran out" in killed.message
    assert not execute("sh", "-c", "exit 1").oom_killed


def test_a_flood_of_output_is_cut_to_head_and_tail(
    execute: Callable[..., Exit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.Output.__init__, "__defaults__", (4_000_000,))
    code = (
        "print('first'); line = 'x' * 99\n"
        "for _ in range(300_000): print(line)\n"
        "import time, sys; sys.stdout.flush(); time.sleep(0.2); print('last')"
    )
    done = execute(sys.executable, "-c", code, silence=10.0)
    text = (tmp_path / "logs" / "log").read_text()
    assert done.ok
    assert len(text) < 4_000_000
    assert text.startswith("first\n")
    assert text.endswith("last\n")
    assert text.count("[celedger: output was dropped here]") == 1


def test_stop_is_asked_at_every_tick(execute: Callable[..., Exit]) -> None:
    asked = iter([False, False, True])
    assert execute("sleep", "60", stop=lambda: next(asked)).end is End.STOPPED


def test_an_exception_in_a_tick_leaves_nothing(execute: Callable[..., Exit]) -> None:
    def interrupt(running: Running) -> None:
        assert running.usage().pids == (running.pid,)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute("sleep", "60", on_tick=interrupt)


def test_the_command_is_out_of_reach_of_the_terminals_ctrl_c(tmp_path: Path, token: str) -> None:
    env = {"PATH": PATH, "CELEDGER_TRIAL": token}
    with Running.start(["sleep", "60"], cwd=tmp_path, env=env, log=tmp_path / "log") as running:
        assert os.getsid(running.pid) != os.getsid(0)
        assert os.getpgid(running.pid) == running.pid
        assert running.poll() is None
    assert running.poll() is not None
    assert not psutil.pid_exists(running.pid)
    assert running.usage().pids == ()


def test_a_killed_supervisor_is_noticed_and_its_tree_ended(tmp_path: Path, token: str) -> None:
    env = {"PATH": PATH, "CELEDGER_TRIAL": token}
    script = "setsid sleep 100 & sleep 101 & echo ready; wait"
    log = tmp_path / "log"
    with Running.start(["sh", "-c", script], cwd=tmp_path, env=env, log=log) as running:
        until(lambda: log.read_text() == "ready\n" and len(running.usage().pids) == 3)
        os.kill(os.getsid(running.pid), signal.SIGKILL)
        until(running.poll)
        done = running.poll()
    assert done is not None
    assert (done.end, done.returncode) == (End.EXITED, -9)
    assert "supervisor" in done.message


RUNNER = """
import sys
from pathlib import Path
from celedger.system.process import run
script = ("import os, time; print('up', flush=True)\\n"
          "for _ in range(3):\\n"
          "    if os.fork() == 0:\\n"
          "        os.setsid(); time.sleep(100) if os.fork() else time.sleep(100)\\n"
          "        os._exit(0)\\n"
          "time.sleep(100)")
folder = Path(sys.argv[1])
run([sys.executable, "-S", "-c", script], cwd=folder, timeout=100, log=folder / "log",
    env={"CELEDGER_TRIAL": sys.argv[2]})
"""


@pytest.mark.matrix
def test_kill_9_of_the_runner_at_random_moments_leaves_no_process(
    tmp_path: Path, token: str
) -> None:
    """Half of the moments before the command has said that it is up, half after."""
    seed = random.SystemRandom().getrandbits(32)
    chance = random.Random(seed)
    for round_ in range(12):
        folder = tmp_path / str(round_)
        folder.mkdir()
        with subprocess.Popen([sys.executable, "-c", RUNNER, str(folder), token]) as runner:
            until((folder / "log").exists)
            if round_ % 2:
                until(lambda log=folder / "log": log.read_text() != "")
            time.sleep(chance.uniform(0.0, 0.12))
            runner.kill()
        until(lambda: not carrying(token), note=f"seed {seed}")


def test_sweep_ends_what_a_dead_runner_left_and_spares_the_rest(tmp_path: Path) -> None:
    ulid = f"sweep-{os.getpid()}"
    env = {"PATH": PATH, "CELEDGER_TRIAL": ulid}
    left = [subprocess.Popen(["sleep", "60"], env=env, start_new_session=True) for _ in range(2)]
    other = subprocess.Popen(["sleep", "60"], env=env | {"CELEDGER_TRIAL": ulid + "x"})
    reapers = [threading.Thread(target=one.wait) for one in left]
    for reaper in reapers:
        reaper.start()
    try:
        until(lambda: len(carrying(ulid)) == 2)
        assert sweep(ulid) == 2
        assert sweep("") == 0
        assert other.poll() is None
    finally:
        for one in (*left, other):
            one.kill()
        for reaper in reapers:
            reaper.join()
        other.wait()


def test_capture_returns_status_and_both_streams(tmp_path: Path) -> None:
    script = "echo out; echo err >&2; exit 4"
    assert capture(["sh", "-c", script], timeout=60) == (4, "out\n", "err\n")
    with pytest.raises(MachineError, match="no-such-command"):
        capture(["no-such-command"], timeout=60)
    started = time.monotonic()
    with pytest.raises(MachineError, match="no answer within"):
        capture(["sh", "-c", "sleep 100 & sleep 100"], timeout=0.1)
    assert time.monotonic() - started < 60
