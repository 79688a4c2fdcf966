"""Warm starts: launchers that have imported what a suite preloads, and fork its trials. Decides
whether a command may start from one; `child/launcher.py` is the other end of the socket. Must not
know what a trial or a suite is.

A launcher serves one interpreter with one environment, so a task's thread count and device are
part of its identity. It is started outside of any checkout. Whatever goes wrong with one, the
command starts cold. Those of a measurement end with their command; those of a quick answer are
kept for the next one, by a socket in a folder of the user's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from celedger.base.errors import SuiteError
from celedger.system import environment, process
from celedger.system.process import SUPERVISOR, TRIAL_VARIABLE, Fork, Supervisor

LAUNCHERS = "launchers"  # in a repository's state: the folder of those that are kept
_LATE = ("PYTHONPATH", "CELEDGER_", "PWD")  # variables that a trial gets after the fork
_TOKEN = 26  # characters of TRIAL_VARIABLE, a ULID
_IMPORTING = 300.0  # seconds for importing, on a cold network file system
_ANSWER = 30.0  # seconds for a fork on a machine that swaps
_MOST = 3  # launchers held at once: each keeps the memory of what it imported
_MESSAGE = 1 << 20  # bytes
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_FIRST = frozenset({"sitecustomize", "usercustomize"})  # what Python imports before all else

_Key = tuple[str, tuple[str, ...], frozenset[tuple[str, str]]]


@dataclass
class _Forked:
    """A supervisor that a launcher forked: like a Popen of one."""

    pid: int
    launcher: _Launcher

    def kill(self) -> None:
        if self.launcher.alive():  # else it is reaped, and the number may be another's
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> object:
        self.launcher.reap(self.pid)
        return None


class _Launcher:
    """One launcher's process, at our end. `problem` says why it is unfit, "" where it is not;
    `modules` are those it has loaded, by top-level name, each with its file; `heap` the bytes that
    the imports left behind, 0 where they failed."""

    def __init__(self, script: Path, key: _Key, kept: Path | None = None) -> None:
        """Start it, or reach the one that listens at `kept`."""
        self.modules: dict[str, str] = {}
        self.problem = "importing never ended"
        self.heap = 0
        self._process: subprocess.Popen[Any] | None = None
        self._start_anew: Callable[[], socket.socket] | None = None
        if kept is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._process = _start(script, key, theirs)
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE)
            theirs.close()
        else:
            reached = _connected(kept)
            self._socket = reached or _started(script, key, kept)
            if reached is not None:
                self._start_anew = partial(_started, script, key, kept)

    def wait_for_imports(self) -> str:
        """Return why it is unfit, "" where it is not."""
        answer = self._greeting()
        if not answer and self._start_anew is not None:  # it was ending when it was reached
            self._socket.close()
            self._socket = self._start_anew()
            answer = self._greeting()
        self._socket.settimeout(_ANSWER)
        self.modules = answer.get("modules", {})
        self.heap = answer.get("heap", 0)
        return "" if self.modules else str(answer.get("unfit", self.problem))

    def _greeting(self) -> dict[str, Any]:
        """Return its first message, which comes after the imports."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE)
        self._socket.settimeout(_IMPORTING)
        return self._receive()

    def alive(self) -> bool:
        if self._process is None:
            return self._socket.fileno() >= 0
        return self._process.poll() is None

    def fork(self, order: Mapping[str, object], fds: Sequence[int]) -> _Forked | None:
        answer = {}
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [json.dumps(order).encode()], fds)
            answer = self._receive()
        if not answer:
            self.close()
            return None
        return _Forked(answer["pid"], self)

    def reap(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps({"reap": pid}).encode())

    def _receive(self) -> dict[str, Any]:
        """Return its next message; an empty one when it is gone, or says nothing for too long."""
        try:
            data = self._socket.recv(_MESSAGE)
        except (ConnectionError, TimeoutError):
            data = b""
        return json.loads(data) if data else {}

    def close(self) -> None:
        self._socket.close()
        if self._process is None:
            return
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _start(script: Path, key: _Key, door: socket.socket) -> subprocess.Popen[Any]:
    python, preload, variables = key
    channel = door.fileno()
    line = (python, str(script), str(channel), str(SUPERVISOR), json.dumps(preload))
    with tempfile.TemporaryFile() as output:
        return process.spawn(
            line, cwd="/", env={**dict(variables), TRIAL_VARIABLE: "0" * _TOKEN},
            stdout=output, stderr=output, pass_fds=(channel,),
        )  # fmt: skip


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a name of a socket: the path itself may have more than the 107 bytes of unix(7)."""
    folder = os.open(path.parent, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _connected(path: Path) -> socket.socket | None:
    """Return a connection to the launcher that listens at a path; None where there is none."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _short(path) as name:
            client.connect(name)
        return client
    except OSError:
        client.close()
        return None


def _started(script: Path, key: _Key, path: Path) -> socket.socket:
    """Start a launcher that listens at a path and outlives this command, and connect to it. Raises
    OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)  # of one that has ended
    paths = sorted(path.parent.glob("*.sock"), key=lambda p: p.lstat().st_mtime_ns, reverse=True)
    for oldest in paths[_MOST - 1 :]:
        _end(oldest)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        with _short(path) as name:
            door.bind(name)
        door.listen()
        server = _start(script, key, door)
    server.returncode = 0  # this command does not wait for it
    client = _connected(path)
    if client is None:
        raise ConnectionRefusedError("it ended at once")
    return client


def kept(folder: Path) -> int:
    """Return how many launchers with a socket in this folder wait for a next command."""
    clients = list(filter(None, map(_connected, folder.glob("*.sock"))))
    for client in clients:
        client.close()
    return len(clients)


def end_kept(folder: Path) -> int:
    """End the launchers with a socket in this folder, and return how many there were."""
    return sum(map(_end, folder.glob("*.sock")))


def _end(path: Path) -> bool:
    """End the launcher that listens at a path, and return True, or False where none does."""
    client = _connected(path)
    if client is not None:
        with client, contextlib.suppress(ConnectionError):
            client.send(json.dumps({"end": True}).encode())
            while client.recv(_MESSAGE):  # until it is gone
                pass
    path.unlink(missing_ok=True)
    return client is not None


class Launchers:
    """The launchers of one celedger command. `script` is `celedger/child/launcher.py`, copied to
    where no user's edit reaches it; `repository` the one under test. With a folder `kept`, they
    stay for later commands, and have their sockets there."""

    def __init__(self, script: Path, repository: Path, kept: Path | None = None) -> None:
        self._script = script
        self._repository = repository
        self._kept = kept
        self._launchers: dict[_Key, _Launcher] = {}  # unfit ones too: they would be again

    def kept(self, folder: Path) -> Launchers:
        """Return launchers that stay for later commands, and have their sockets in a folder."""
        return Launchers(self._script, self._repository, folder)

    def _socket_path(self, key: _Key) -> Path | None:
        """Return where a launcher listens that is kept. What is installed is part of its name: a
        module that is loaded stays as it was."""
        if self._kept is None:
            return None
        python, preload, variables = key
        folders = environment.package_folders(python)
        times = [Path(folder).stat().st_mtime_ns for folder in folders if Path(folder).is_dir()]
        text = repr((str(self._script), python, preload, sorted(variables), folders, times))
        name = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
        return self._kept / f"{name}.sock"

    def close(self) -> None:
        for launcher in self._launchers.values():
            launcher.close()
        self._launchers.clear()

    def forker(
        self,
        argv: Sequence[str],
        cwd: Path,
        python: str,
        preload: Sequence[str],
        env: Mapping[str, str],
        waits: Callable[[], None] = lambda: None,
    ) -> Fork | str:
        """Return how to start a command warm, or why it must start cold. Waits for the imports when
        it is the first of its kind, which `waits` is told before. Raises SuiteError where a
        preloaded module is the repository's own."""
        if not startable(argv, python) or len(env.get(TRIAL_VARIABLE, "")) != _TOKEN:
            return "only `python script.py …` and `python -m module …` can be forked"
        key = _key(python, preload, env)
        try:
            launcher = self._launcher(key, waits)
        except OSError as error:
            return f"the launcher cannot be started: {error.strerror}"
        first = cwd if argv[1] == "-m" else (cwd / argv[1]).resolve().parent
        roots = [Path(root) for root in env.get("PYTHONPATH", "").split(os.pathsep) if root]
        celedger_root = self._script.parents[2]  # has a `sitecustomize` for every traced trial
        problem = launcher.problem or _shadowed(
            [first, *(root for root in roots if not root.is_relative_to(celedger_root))],
            launcher.modules,
        )
        if problem:
            return problem

        def fork(
            order: dict[str, Any], cwd: Path, log: int, passed: tuple[int, ...]
        ) -> Supervisor | None:
            if not cwd.is_dir() or not (argv[1] == "-m" or (cwd / argv[1]).is_file()):
                return None
            late = {name: value for name, value in env.items() if name.startswith(_LATE)}
            order = {**order, "late": late, "cwd": str(cwd), "fds": passed}
            fds = (order["control"], order["status"], log, *passed)
            forked = launcher.fork(order, fds)
            if forked is None:  # killed, perhaps after it forked
                process.hunt(variable=(TRIAL_VARIABLE, env[TRIAL_VARIABLE]))
            return forked

        return fork

    def heap(self, python: str, preload: Sequence[str], env: Mapping[str, str]) -> int:
        """Return the bytes that the imports left in this environment's launcher, 0 where it has
        none. A cold command that imports the same modules has about as many."""
        launcher = self._launchers.get(_key(python, preload, env))
        return launcher.heap if launcher is not None else 0

    def preloaded(self) -> set[str]:
        """Return the top-level modules that any launcher has loaded."""
        return {name for launcher in self._launchers.values() for name in launcher.modules}

    def _launcher(self, key: _Key, waits: Callable[[], None]) -> _Launcher:
        launcher = self._launchers.pop(key, None)
        if launcher is None or not (launcher.problem or launcher.alive()):
            if len(self._launchers) >= _MOST:
                self._launchers.pop(next(iter(self._launchers))).close()
            path = self._socket_path(key)
            if path is None or not path.exists():
                waits()
            launcher = _Launcher(self._script, key, path)
            try:
                problem = launcher.wait_for_imports()
                launcher.problem = problem or self._own_module(key[1], launcher)
            finally:
                if launcher.problem:
                    launcher.close()
        self._launchers[key] = launcher  # the newest
        return launcher

    def _own_module(self, preload: Sequence[str], launcher: _Launcher) -> str:
        """Return a problem where it imported a module of the repository under test: that comes from
        the user's files, not from the commit's. Raises SuiteError where the suite preloads it."""
        for name, file in launcher.modules.items():
            path = Path(file)
            if not path.is_relative_to(self._repository) or _INSTALLED.intersection(path.parts):
                continue
            if name in {word.partition(".")[0] for word in preload}:
                raise SuiteError(
                    f"the suite preloads {name}, which is the repository's own ({file})",
                    "take it out of `preload`: it has to come from the commit under test",
                )
            return f"what is preloaded imports {name}, which is the repository's own"
        return ""


def _key(python: str, preload: Sequence[str], env: Mapping[str, str]) -> _Key:
    early = {name: value for name, value in env.items() if not name.startswith(_LATE)}
    return python, tuple(preload), frozenset(early.items())


def _shadowed(folders: Sequence[Path], modules: Mapping[str, str]) -> str:
    """Return a problem where a folder that a trial has in front of `sys.path` holds a module of the
    name of one that is loaded already: a cold start would import that one."""
    for folder in folders:
        for entry in folder.iterdir() if folder.is_dir() else ():
            name = entry.name.partition(".")[0]
            is_package = entry.is_dir() and (entry / "__init__.py").exists()
            is_source = entry.suffix in (".py", ".so") and not entry.is_dir()
            if (name in modules or name in _FIRST) and (is_package or is_source):
                return f"{entry.name} in {folder.name} stands before the preloaded {name}"
    return ""


def startable(argv: Sequence[str], python: str) -> bool:
    """Return True if a launcher can fork a command of this form: the interpreter, without options,
    and a script or a module."""
    if sys.platform != "linux" or len(argv) < 2 or argv[0] != python:
        return False
    return (argv[1] == "-m" and len(argv) > 2) or (
        argv[1].endswith(".py") and not argv[1].startswith("-")
    )
