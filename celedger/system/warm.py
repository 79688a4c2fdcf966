"""Warm starts: launchers that have imported what a suite preloads, and fork its trials. Decides
whether a command may start from one; `child/launcher.py` is the other end of the socket. Must not
know what a trial or a suite is.

A launcher serves one interpreter with one environment, so a task's thread count and device are
part of its identity. It is started outside of any checkout. Whatever goes wrong with one, the
command starts cold.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celedger.base.errors import SuiteError
from celedger.system import process, process_tree
from celedger.system.process import SUPERVISOR, TRIAL_VARIABLE, Fork, Supervisor

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

    def __init__(self, script: Path, key: _Key) -> None:
        self.modules: dict[str, str] = {}
        self.problem = "importing never ended"
        self.heap = 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE)
        self._socket = ours
        python, preload, variables = key
        channel = theirs.fileno()
        line = (python, str(script), str(channel), str(SUPERVISOR), json.dumps(preload))
        with theirs, tempfile.TemporaryFile() as output:
            self._process = process.spawn(
                line, cwd="/", env={**dict(variables), TRIAL_VARIABLE: "0" * _TOKEN},
                stdout=output, stderr=output, pass_fds=(channel,),
            )  # fmt: skip

    def wait_for_imports(self) -> str:
        """Return why it is unfit, "" where it is not."""
        self._socket.settimeout(_IMPORTING)
        answer = self._receive()
        self._socket.settimeout(_ANSWER)
        self.modules = answer.get("modules", {})
        self.heap = answer.get("heap", 0)
        return "" if self.modules else str(answer.get("unfit", self.problem))

    def alive(self) -> bool:
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
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Launchers:
    """The launchers of one celedger command. `script` is `celedger/child/launcher.py`, copied to
    where no user's edit reaches it; `repository` the one under test."""

    def __init__(self, script: Path, repository: Path) -> None:
        self._script = script
        self._repository = repository
        self._launchers: dict[_Key, _Launcher] = {}  # unfit ones too: they would be again

    def twin(self) -> Launchers:
        """Return launchers of their own for another worker."""
        return Launchers(self._script, self._repository)

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
    ) -> Fork | str:
        """Return how to start a command warm, or why it must start cold. Waits for the imports when
        it is the first of its kind. Raises SuiteError where a preloaded module is the
        repository's own."""
        if not startable(argv, python) or len(env.get(TRIAL_VARIABLE, "")) != _TOKEN:
            return "only `python script.py …` and `python -m module …` can be forked"
        key = _key(python, preload, env)
        try:
            launcher = self._launcher(key)
        except OSError as error:
            return f"the launcher cannot be started: {error.strerror}"
        first = cwd if argv[1] == "-m" else (cwd / argv[1]).resolve().parent
        roots = [Path(root) for root in env.get("PYTHONPATH", "").split(os.pathsep) if root]
        own = self._script.parents[2]  # has a `sitecustomize` for every traced trial
        problem = launcher.problem or _shadowed(
            [first, *(root for root in roots if not root.is_relative_to(own))], launcher.modules
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
                process_tree.hunt(variable=(TRIAL_VARIABLE, env[TRIAL_VARIABLE]))
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

    def _launcher(self, key: _Key) -> _Launcher:
        launcher = self._launchers.pop(key, None)
        if launcher is None or not (launcher.problem or launcher.alive()):
            if len(self._launchers) >= _MOST:
                self._launchers.pop(next(iter(self._launchers))).close()
            launcher = _Launcher(self._script, key)
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
