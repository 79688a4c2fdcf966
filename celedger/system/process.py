"""Start every process of celedger, and end it: by time-out, silence, memory limit or request.

Lives here: trainings and builds under a supervisor that leaves nothing behind, helper commands, and
the detached worker; what a tree of processes uses, processes that escaped one, and how many the
kernel killed for lack of memory. Must not know what a trial, a suite or a ledger is: it reports how
a command ended and never what that means. Every reader expects that a process may end between being
listed and being read.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any, Protocol, Self

import psutil

from celedger.base import files
from celedger.base.errors import MachineError, explained
from celedger.system import supervisor
from celedger.system.supervisor import descendants, memory


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of the tree below the supervisor `root` at one moment. `rss` (bytes) counts a page
    that two processes share twice; so does `own`, the part of it that is no page of a file, 0
    where the kernel does not tell it. `cpu` (seconds, user + system) holds ended children too."""

    root: int = 0
    pids: tuple[int, ...] = ()
    rss: int = 0
    cpu: float = 0.0
    own: int = 0


def usage(supervisor: int) -> Usage:
    """Return the usage of everything below `supervisor`, which itself does not count. Its
    waited-for children do: they are orphans of the tree that it adopted."""
    pids: list[int] = []
    rss, cpu, private = 0, 0.0, 0
    with suppress(psutil.Error):
        times = psutil.Process(supervisor).cpu_times()
        cpu = times.children_user + times.children_system
    for pid in _descendants(supervisor):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            with process.oneshot():
                times, resident = process.cpu_times(), process.memory_info().rss
            kinds = memory(pid)
            pids.append(pid)
            rss += resident
            private += kinds.get("anonymous", 0) + kinds.get("shmem", 0)
            cpu += times.user + times.system + times.children_user + times.children_system
    return Usage(supervisor, tuple(pids), rss, cpu, private)


def _descendants(supervisor: int) -> list[int]:
    below: list[int] = []
    if sys.platform == "linux":  # psutil would look at every process of the machine
        below = descendants(supervisor)
    else:
        with suppress(psutil.Error):
            below = [child.pid for child in psutil.Process(supervisor).children(recursive=True)]
    return below


def hunt(*, session: int | None = None, variable: tuple[str, str] | None = None) -> int:
    """Kills every process of this user that is of the session or has the variable in its
    environment, round after round until a round finds none (at most 2 s). Returns how many
    were killed. This process and its ancestors are never killed. A session number must
    belong to a process that was not waited for yet, or it may be somebody else's by now."""
    spared = {os.getpid(), 1, *(p.pid for p in psutil.Process().parents())}
    killed: set[int] = set()
    deadline = time.monotonic() + 2.0
    while True:
        matching = [
            process
            for process in psutil.process_iter()
            if process.pid not in spared and _matches(process, session, variable)
        ]
        for process in matching:
            try:
                process.send_signal(signal.SIGKILL)
                killed.add(process.pid)
            except psutil.Error:
                continue
        if not matching or time.monotonic() > deadline:
            return len(killed)
        time.sleep(0.005)


def _matches(
    process: psutil.Process, session: int | None, variable: tuple[str, str] | None
) -> bool:
    try:
        if process.uids().effective != os.geteuid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        if session is not None and os.getsid(process.pid) == session:
            return True
        return variable is not None and process.environ().get(variable[0]) == variable[1]
    except (psutil.Error, OSError):
        return False


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory: in our control group
    where it counts them (v2), else on the machine. 0 where nothing is counted."""
    counters = [Path("/proc/vmstat")]
    with suppress(OSError, IndexError):
        group = Path("/proc/self/cgroup").read_text().splitlines()[-1].removeprefix("0::/")
        counters.insert(0, Path("/sys/fs/cgroup", group, "memory.events"))
    for path in counters:
        with suppress(OSError, ValueError, KeyError):
            counts = dict(line.split(" ", 1) for line in path.read_text().splitlines())
            return int(counts["oom_kill"])
    return 0


# --- commands under a supervisor

SUPERVISOR = Path(__file__).with_name("supervisor.py")
TRIAL_VARIABLE = "CELEDGER_TRIAL"  # in the environment of every process of a trial

TERM_GRACE = 5.0  # seconds between TERM and KILL
KILL_GRACE = 10.0  # seconds until a process that KILL does not end is given up (a hung driver)


class End(StrEnum):
    """Why a command is no longer running."""

    EXITED = "exited"  # by itself, well or not, or by a signal that we did not send
    TIMEOUT = "timeout"
    SILENT = "silent"
    MEMORY = "memory"
    STOPPED = "stopped"
    NOT_STARTED = "not-started"


@dataclass(frozen=True)
class Exit:
    """The end of a command. `returncode` is negative for a signal, None when it never ran.
    `wall` counts from its start to its own end, as its supervisor saw it, in seconds.
    `max_rss` (bytes) is the largest peak of a single process of the tree, `cpu` (seconds) the
    sum over all. `heap` and `files` (bytes) are the anonymous memory and the pages of files that
    a warm command shared with its launcher when it began. `oom_killed`: it died of a SIGKILL that
    was not ours while the kernel's count of processes killed for memory rose. `message` is one
    line for people."""

    end: End
    returncode: int | None
    wall: float
    max_rss: int
    cpu: float
    oom_killed: bool
    message: str
    warm: bool = False  # forked by a launcher (system/warm.py), and stayed so
    heap: int = 0
    files: int = 0

    @property
    def ok(self) -> bool:
        return self.end is End.EXITED and self.returncode == 0


class Supervisor(Protocol):
    """The interface of a Popen, and of a supervisor that a launcher forked."""

    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...
    def wait(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Reads:
    """The paths to record (see path_recorder.py): all that is named of `tree`, and what is opened
    of the folders `beside` it; it goes into `file`. Of `packages`, where distributions lie, the
    first names."""

    tree: Path
    file: Path
    beside: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()


# Starts a command in a folder: by a supervisor that gets this order, the log and the descriptors
# that are passed on. None: it must start cold.
Fork = Callable[[dict[str, Any], Path, int, tuple[int, ...]], Supervisor | None]


class Running:
    """A command under its supervisor; make one with `start`. As a context manager it leaves
    nothing behind, whatever is raised in its body."""

    def __init__(self, argv: Sequence[str], token: str, output: Output) -> None:
        self.argv = tuple(argv)
        self.output = output
        self.pid = 0  # of the command; 0 when it was never started
        self.warm = False
        self._started = time.monotonic()
        self._killed_before = oom_kills()
        self._process: Supervisor | None = None
        self._control = -1
        self._status = -1
        self._buffer = b""
        self._facts: dict[str, float] = {}
        self._token = token
        self._end: End | None = None  # why we ended it, when we did
        self._why = ""
        self._exit: Exit | None = None

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        log: Path,
        pass_fds: Sequence[int] = (),
        reads: Reads | None = None,
        writable: Sequence[Path] = (),
        cores: Sequence[int] = (),
        fork: Fork | None = None,
    ) -> Self:
        """Start `argv` in `cwd` with exactly `env`; both its streams are appended to `log`. What it
        names is recorded as `reads` asks; `writable` is where alone it may write (sandbox.py), and
        `cores` are all that it may use. A command that cannot be started is no exception: its Exit
        says NOT_STARTED. Raises MachineError when the log cannot be written or the machine cannot
        start a process."""
        running = cls(argv, env.get(TRIAL_VARIABLE, ""), Output(log))
        program, problem = find_program(argv[0] if argv else "", cwd, env)
        if program is None:
            running._exit = _not_started(problem)
            return running
        order: dict[str, Any] = {
            "argv": list(argv), "program": program, "locale": env.get("LC_CTYPE", ""),
            "record": str(reads.file) if reads else "",
            "recorded": list(map(str, (reads.tree, *reads.beside))) if reads else [],
            "packages": list(reads.packages) if reads else [],
            "writable": list(map(str, writable)), "cores": list(cores),
        }  # fmt: skip
        try:
            running._spawn(order, cwd, env, tuple(pass_fds), fork)
            while not running.pid and running._exit is None:
                running.wait(1.0)
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            reason = error if isinstance(error, ValueError) else f"there is no folder {cwd}"
            running._exit = _not_started(f"{argv[0]} cannot be started: {reason}")
        except OSError as error:
            running._close()
            raise MachineError(
                f"no process can be started: {error.strerror}",
                "end some programmes or raise the limit that `ulimit -u` shows",
            ) from error
        except BaseException:  # Ctrl-C in the middle: the closed control pipe ends the child
            running.__exit__()
            raise
        return running

    def _spawn(
        self,
        order: dict[str, Any],
        cwd: Path,
        env: Mapping[str, str],
        passed: tuple[int, ...],
        fork: Fork | None,
    ) -> None:
        """Start the supervisor, which starts the command."""
        control, self._control = os.pipe()
        self._status, status = os.pipe()
        os.set_blocking(self._status, False)
        order |= {"control": control, "status": status}
        log = self.output.fd
        try:
            if fork is not None:
                self._process = fork(order, cwd, log, passed)
                self.warm = self._process is not None
            self._process = self._process or spawn(
                [sys.executable, "-I", "-S", str(SUPERVISOR), json.dumps(order)],
                cwd=cwd, env=dict(env), stdout=log, stderr=log, pass_fds=(control, status, *passed),
            )  # fmt: skip
        finally:
            os.close(control)
            os.close(status)

    def poll(self) -> Exit | None:
        """None while anything of the command's tree may still live."""
        if self._exit is None and self._read():
            self._conclude()
        return self._exit

    def wait(self, seconds: float) -> Exit | None:
        """`poll`, after at most so many seconds; returns early when something happened."""
        if self._exit is None:
            watch = select.poll()
            watch.register(self._status, select.POLLIN)
            watch.poll(max(seconds, 0.0) * 1000)
        return self.poll()

    def usage(self) -> Usage:
        """Return what the tree uses now; nothing when it has ended."""
        if self._process is None or self._exit is not None:
            return Usage()
        return usage(self._process.pid)

    def memory(self) -> dict[str, int]:
        """Return the bytes of the command alone by kind, see `supervisor.memory`."""
        return supervisor.memory(self.pid) if self.pid and self._exit is None else {}

    def stop(self, end: End, grace: float = TERM_GRACE, why: str = "") -> Exit:
        """TERM to the command's group, KILL to all that is left after `grace` seconds. A command
        that had ended by itself before keeps its own end. `why` goes into the message."""
        if (done := self.poll()) is not None:
            return done
        self._end, self._why = end, why
        if grace > 0:
            with contextlib.suppress(OSError):
                os.write(self._control, b"T")
            self._await_end(grace)
        return self._kill()

    def _kill(self) -> Exit:
        if self._control >= 0:
            os.close(self._control)
            self._control = -1
        self._await_end(KILL_GRACE)
        if self._exit is None:
            self._conclude()
        assert self._exit is not None
        return self._exit

    def _await_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._exit is None and (remaining := deadline - time.monotonic()) > 0:
            self.wait(remaining)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._exit is None and self._process is not None:
            self._end = self._end or End.STOPPED
            self._kill()
        self._close()
        self.output.close()

    def _read(self) -> bool:
        """Takes in what the supervisor said; True when it has nothing more to say."""
        while True:
            try:
                data = os.read(self._status, 65536)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._buffer += data
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                self._facts.update(json.loads(line))
            self.pid = int(self._facts.get("pid", 0))

    def _conclude(self) -> None:
        """The supervisor is gone, or hangs on a process that nothing can kill."""
        process = self._process
        assert process is not None
        if "cpu" not in self._facts:
            # Somebody killed the supervisor. It is not waited for yet, so its number, which is
            # that of the session, cannot be anybody else's.
            process.kill()
            variable = (TRIAL_VARIABLE, self._token) if self._token else None
            hunt(session=process.pid, variable=variable)
        process.wait()
        self._exit = self._describe()
        self._close()

    def _close(self) -> None:
        for fd in (self._control, self._status):
            if fd >= 0:
                os.close(fd)
        self._control = self._status = -1

    def _describe(self) -> Exit:
        facts = self._facts
        if "errno" in facts:
            problem = os.strerror(int(facts["errno"]))
            return _not_started(
                f"{self.argv[0]} cannot be executed: {problem} (is its #! line right?)"
            )
        code = int(facts.get("returncode", -SIGKILL))
        starved = self._end is None and code in (-SIGKILL, 128 + SIGKILL)
        starved = starved and oom_kills() > self._killed_before
        if self._end is not None:
            message = self._why or self._end.value
        elif starved:
            message = "killed by the kernel because memory ran out"
        elif "returncode" not in facts:
            message = "killed together with its supervisor"
        elif code < 0:
            names = {number.value: number.name for number in Signals}  # none for a real-time signal
            message = f"killed by {names.get(-code, f'signal {-code}')}"
        else:
            message = f"exit status {code}"
        wall = facts.get("wall", time.monotonic() - self._started)
        rss, cpu = int(facts.get("max_rss", 0)), facts.get("cpu", 0.0)
        return Exit(
            self._end or End.EXITED, code, wall, rss, cpu, starved, message,
            self.warm,
            *(int(self.warm and facts.get(name, 0)) for name in ("heap", "files")),
        )  # fmt: skip


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    silence: float | None = None,
    memory: int | None = None,
    on_tick: Callable[[Running], None] | None = None,
    tick: float = 0.05,
    activity: Callable[[], object] | None = None,
    stop: Callable[[], bool] | None = None,
    **start: Any,
) -> Exit:
    """Run a command to its end (`start`: of `Running.start`), or end it: after `timeout` seconds;
    after `silence` seconds in which neither the log grew nor `activity()` changed; when its tree
    takes more than `memory` bytes; when `stop()` says so. `on_tick` is called about every `tick`
    seconds; what it raises ends the command too and is passed on. Raises MachineError."""
    with Running.start(argv, **start) as running:
        started = heard = time.monotonic()
        sign: object = None
        while (done := running.wait(tick)) is None:
            running.output.trim()
            if on_tick is not None:
                on_tick(running)
            now = time.monotonic()
            if stop is not None and stop():
                return running.stop(End.STOPPED)
            if now - started > timeout:
                return running.stop(End.TIMEOUT, why=f"ran longer than {timeout:g} s")
            if memory is not None and (rss := running.usage().rss) > memory:
                why = f"used {rss / 1e6:,.0f} MB of memory, its limit is {memory / 1e6:,.0f} MB"
                return running.stop(End.MEMORY, grace=0.0, why=why)
            if silence is not None:
                last = sign
                sign = (running.output.size(), activity() if activity else None)
                heard = now if sign != last else heard
                if now - heard > silence:
                    return running.stop(End.SILENT, why=f"gave no sign for {silence:g} s")
        running.output.trim()
        return done


def capture(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float
) -> tuple[int, str, str]:
    """Run a short helper command; return its exit status, stdout and stderr. Raises MachineError
    when it cannot be started or gives no answer within `timeout` seconds."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        with spawn(
            argv, env=env, text=True, encoding="utf-8", errors="replace", **pipes
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, SIGKILL)
                raise
            return process.returncode, out, err
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"{argv[0]} gave no answer within {timeout:g} s") from error
    except (OSError, ValueError) as error:
        raise MachineError(f"{argv[0]} cannot be started: {error}") from error


def spawn(argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process in a session of its own: the one place where any begins. Raises OSError."""
    return subprocess.Popen(
        list(argv), umask=files.users_umask(), stdin=subprocess.DEVNULL, start_new_session=True,
        **options,
    )  # fmt: skip


def find_program(name: str, cwd: Path, env: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the file to execute, or None and the reason. It is looked for as exec would, from
    `cwd` and with the PATH of `env`, but a missing command can be told from one that failed."""
    if not name:
        return None, "no command: its name is empty"
    if "/" in name:
        candidates = [cwd / name]
    else:
        folders = env.get("PATH", os.defpath).split(os.pathsep)
        candidates = [cwd / folder / name for folder in folders]
    try:
        for path in candidates:
            if path.is_file() and os.access(path, os.X_OK):
                return str(path), ""
        existing = [path for path in candidates if path.exists()]
        nearby = (cwd / name).is_file()
    except (OSError, ValueError) as error:  # a name too long, or with a NUL in it
        return None, f"no command {name[:80]!r}: {error}"
    if existing:
        return None, f"{existing[0]} is not an executable file"
    if "/" in name:
        return None, f"no command {name!r} in {cwd}"
    return None, f"no command {name!r} on PATH" + (f"; write ./{name} if it is meant" * nearby)


def sweep(ulid: str) -> int:
    """Kills what a trial of a dead runner left: every process of this user that carries its
    ulid. Returns how many there were."""
    return hunt(variable=(TRIAL_VARIABLE, ulid)) if ulid else 0


def _not_started(message: str) -> Exit:
    return Exit(End.NOT_STARTED, None, 0.0, 0, 0.0, False, message)


# --- the log of a command: both its streams, kept from filling the disk


LIMIT = 64 << 20  # bytes: a log that grew past this is cut …
HEAD = 1 << 20  # … to its beginning, where a command says what it is about to do,
TAIL = 64 << 10  # … and its end, where the traceback may just have been written


class Output:
    """A log opened for appending. A command inherits `fd`; because of O_APPEND its writes go
    to the end of the file, wherever a cut has moved that. Raises MachineError when the file
    cannot be opened."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path = path
        self.limit = limit
        with explained(
            f"the log file {path} cannot be written",
            "free the disk or correct its permissions, then run the same command again",
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self.fd = os.open(path, flags, 0o666)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def trim(self) -> None:
        """Cut a log that passed its limit to head, a line that says so, and tail."""
        size = self.size()
        if size > self.limit:
            tail = os.pread(self.fd, TAIL, size - TAIL)
            os.ftruncate(self.fd, min(HEAD, self.limit // 4))
            os.write(self.fd, b"\n[celedger: output was dropped here]\n" + tail)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


# --- the session of a trial: the process that starts or forks it, on one boot of the host. Two
# commits in one session differ by the code alone


_BOOT = Path("/proc/sys/kernel/random/boot_id")  # Linux; elsewhere the time of the boot
_ranks: Counter[int] = Counter()
_lock = threading.Lock()  # workers are threads


def session() -> str:
    """Return the name of this process's session."""
    return _session_of(os.getpid())


@cache
def _session_of(pid: int) -> str:
    boot = f"{psutil.boot_time():.0f}"
    with suppress(OSError):
        boot = _BOOT.read_text().strip()
    return f"{boot} {pid} {psutil.Process(pid).create_time():.2f}"


def join_session() -> tuple[str, int]:
    """Return the name of this process's session, and how many trials it had before this one."""
    pid = os.getpid()
    with _lock:
        rank = _ranks[pid]
        _ranks[pid] += 1
        return _session_of(pid), rank
