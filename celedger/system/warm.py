"""Warm starts: launchers that have imported what a suite preloads, and fork its trials. Decides
whether a command may start from one; what the forked process then does to be like a cold one is
in `child/launcher.py`, the other end of the socket. Must not know what a trial or a suite is.

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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from celedger.errors import SuiteError
from celedger.system import process, tree
from celedger.system.gate import Permit, mark
from celedger.system.process import SUPERVISOR, TRIAL_VARIABLE, Fork, Reads, Supervisor

FOLDER = Path("/")  # where a launcher starts: outside of any checkout
_LATE = ("PYTHONPATH", "CELEDGER_", "PWD")  # variables that a trial gets after the fork
_TOKEN = 26  # characters of TRIAL_VARIABLE, a ULID
_IMPORTING = 300.0  # seconds for importing, on a cold network file system
_ANSWER = 30.0  # seconds for a fork on a machine that swaps
_MOST = 3  # launchers held at once: each keeps the memory of what it imported
_ORDER = 1 << 20  # bytes of a message
_INSTALLED = frozenset({"site-packages", "dist-packages"})

_Key = tuple[str, tuple[str, ...], frozenset[tuple[str, str]]]


class _Forked:
    """A supervisor that a launcher forked: like a Popen of one."""

    def __init__(self, pid: int, launcher: _Launcher) -> None:
        self.pid = pid
        self._launcher = launcher

    def kill(self) -> None:
        if not self._launcher.alive():  # it is reaped, and the number may be another's
            self.pid = -1
            return
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> object:
        self._launcher.tell({"reap": self.pid})
        return None


class _Launcher:
    """One launcher's process, at our end."""

    def __init__(
        self, script: Path, python: str, preload: Sequence[str], env: Mapping[str, str],
        permit: Permit,
    ) -> None:  # fmt: skip
        self.stamps: tuple[tuple[str, int, int], ...] = ()
        self.files: dict[str, str] = {}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ORDER)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ORDER)
        self._socket = ours
        with theirs, tempfile.TemporaryFile() as output:
            self._process = process.spawn(
                line(python, preload), cwd=FOLDER, env={**env, TRIAL_VARIABLE: "0" * _TOKEN},
                permit=_with(permit, script, theirs.fileno()),
                stdout=output, stderr=output, pass_fds=(theirs.fileno(),),
            )  # fmt: skip

    def imported(self, stop: Callable[[], bool] | None) -> bool:
        """Waits for it; False where it is unfit."""
        said = None
        deadline = time.monotonic() + _IMPORTING
        self._socket.settimeout(0.1)
        while said is None and time.monotonic() < deadline and not (stop and stop()):
            with contextlib.suppress(TimeoutError):
                said = self._receive()
        if not said or "unfit" in said:
            return False
        self.files = said["files"]
        self.stamps = tuple((folder, time, inode) for folder, time, inode in said["stamps"])
        self._socket.settimeout(_ANSWER)
        return True

    def alive(self) -> bool:
        return self._process.poll() is None

    def outdated(self) -> bool:
        """Whether something was installed since it started."""
        for folder, modified, inode in self.stamps:
            try:
                state = os.stat(folder)  # noqa: PTH116 (as the launcher asked)
            except OSError:
                return True
            if (state.st_mtime_ns, state.st_ino) != (modified, inode):
                return True
        return False

    def fork(self, order: Mapping[str, object], fds: Sequence[int]) -> _Forked | None:
        try:
            socket.send_fds(self._socket, [json.dumps(order).encode()], fds)
            answer = self._receive()
        except OSError:
            answer = {}
        if not answer:
            self.close()
            return None
        return _Forked(answer["pid"], self)

    def tell(self, order: Mapping[str, object]) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps(order).encode())

    def _receive(self) -> dict[str, Any]:
        """Its next message; empty when it is gone."""
        try:
            data = self._socket.recv(_ORDER)
        except TimeoutError:
            raise
        except OSError:
            return {}
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
        self._held: dict[_Key, _Launcher | None] = {}  # None: unfit, and will be again

    def close(self) -> None:
        for launcher in self._held.values():
            if launcher is not None:
                launcher.close()
        self._held.clear()

    def forker(
        self,
        argv: Sequence[str],
        python: str,
        preload: Sequence[str],
        env: Mapping[str, str],
        permit: Permit,
        stop: Callable[[], bool] | None = None,
    ) -> Fork | None:
        """How to start a command warm; None where it must start cold. Waits for the imports, for
        which the permit is, when it is the first of its kind, unless `stop()`. Raises SuiteError
        where a preloaded module is the repository's own, NotAllowed."""
        token = env.get(TRIAL_VARIABLE, "")
        if not preload or not startable(argv, python) or len(token) != _TOKEN:
            return None
        early = early_variables(env)
        late = {k: v for k, v in env.items() if k not in early}
        key = (python, tuple(preload), frozenset(early.items()))
        launcher = self._launcher(key, early, permit, stop)
        if launcher is None:
            return None

        def fork(
            argv: Sequence[str],
            cwd: Path,
            own: Sequence[int],
            log: int,
            passed: Sequence[int],
            reads: Reads | None,
            writable: str,
        ) -> Supervisor | None:
            script = argv[1] == "-m" or (cwd / argv[1]).is_file()
            if not script or not cwd.is_dir():
                return None
            order = {"late": late, "cwd": str(cwd), "argv": list(argv), "fds": list(passed)}
            order["reads"] = reads.words() if reads else ("", "", "")
            order["writable"] = writable
            forked = launcher.fork(order, [*own, log, *passed])
            if forked is None:  # killed, perhaps after it forked
                tree.hunt(variable=(TRIAL_VARIABLE, token))
            return forked

        return fork

    def _launcher(
        self, key: _Key, env: Mapping[str, str], permit: Permit, stop: Callable[[], bool] | None
    ) -> _Launcher | None:
        held = self._held.get(key)
        if held is None and key in self._held:
            return None
        if held is not None and held.alive() and not held.outdated():
            self._held[key] = self._held.pop(key)  # the newest
            return held
        if held is not None:
            held.close()
            del self._held[key]
        while sum(one is not None for one in self._held.values()) >= _MOST:
            oldest = next(k for k, one in self._held.items() if one is not None)
            (self._held.pop(oldest) or held).close()  # type: ignore[union-attr]
        python, preload, _ = key
        try:
            launcher = _Launcher(self._script, python, preload, env, permit)
        except OSError:
            return None
        fit = False
        try:
            fit = launcher.imported(stop) and not self._own(preload, launcher)
        finally:
            if not fit:
                launcher.close()
        self._held[key] = launcher if fit else None
        return self._held[key]

    def _own(self, preload: Sequence[str], launcher: _Launcher) -> bool:
        """Return True if it imported a module of the repository under test: that comes from the
        user's files, not from the commit's. Raises SuiteError where the suite preloads it."""
        own = {
            name: Path(file)
            for name, file in launcher.files.items()
            if Path(file).is_relative_to(self._repository)
            and not _INSTALLED.intersection(Path(file).parts)
        }
        for name in preload:
            if folder := own.get(name.partition(".")[0]):
                raise SuiteError(
                    f"the suite preloads {name}, which is the repository's own ({folder})",
                    "take it out of `preload`: it has to come from the commit under test",
                )
        return bool(own)


def line(python: str, preload: Sequence[str]) -> tuple[str, ...]:
    """Return the words that start a launcher, marks for what is celedger's own."""
    own = map(mark, ("script", "channel", "supervisor"))
    return (python, *own, json.dumps(preload))


def early_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a training that its launcher has, too."""
    return {k: v for k, v in env.items() if not k.startswith(_LATE)}


def _with(permit: Permit, script: Path, channel: int) -> Permit:
    own = {"script": str(script), "channel": str(channel), "supervisor": str(SUPERVISOR)}
    return replace(permit, values=own)


def startable(argv: Sequence[str], python: str) -> bool:
    """Whether a command has the form of those that a launcher can fork: the interpreter, without
    options, and a script or a module."""
    if sys.platform != "linux" or len(argv) < 2 or argv[0] != python:
        return False
    return (argv[1] == "-m" and len(argv) > 2) or (
        argv[1].endswith(".py") and not argv[1].startswith("-")
    )
