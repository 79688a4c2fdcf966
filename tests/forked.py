"""Runs the program in processes forked from one that has imported it: what takes most of the time
of a short command is importing numpy, scipy and git, a thousand times over the whole suite.

A forked process has the arguments, environment, working directory and standard streams of a fresh
one, and ends as one. Where its environment would change what an import does, and with
CELEDGER_TESTS_EXEC set, a fresh one is started instead.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

# Variables that Python and the imported packages read when they are imported. Not among them are
# those that a test's own import of torch or scikit-learn sets for the rest of the session.
_EARLY = (
    "PYTHON", "LD_", "LANG", "LC_", "OMP_", "OPENBLAS_", "MKL_", "NPY_", "MPL", "TZ", "TERM",
    "FORCE_COLOR", "PY_COLORS", "_TYPER",
)  # fmt: skip

# In a fork: run a program, and end as a process of its own does.
FINISH = """
import os, sys
def finish(run, *words, **options):
    status = 1
    try:
        run(*words, **options)
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
"""

_SERVER = (
    FINISH
    + """
import gc, importlib, json, os, pathlib, pkgutil, random, runpy, sys, tempfile
import celedger, matplotlib.figure
for found in pkgutil.walk_packages(celedger.__path__, "celedger."):
    if not found.name.startswith(("celedger.child", "celedger.lab.probes", "celedger.__main__")):
        importlib.import_module(found.name)
sys.path.insert(0, sys.argv[1])  # of the tests
from compiled import compile_once, prepare
sys.path.pop(0)
compile_once()
from celedger.trial.training_variables import child_copy
with tempfile.TemporaryDirectory() as folder:
    child_copy(pathlib.Path(folder))
    prepare(pathlib.Path(folder))
gc.collect()
gc.freeze()  # else collecting in a fork copies every page of what is imported here
gc.set_threshold(10_000)
for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    for number, path in ((0, os.devnull), (1, order["out"]), (2, order["err"])):
        given = os.open(path, os.O_RDWR)
        os.dup2(given, number)
        os.close(given)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.path[0] = order["cwd"]
    sys.argv = ["celedger", *order["words"]]
    random.seed()
    tempfile.tempdir = None  # it may be that of a test which is over
    finish(runpy.run_module, "celedger", run_name="__main__", alter_sys=True)
"""
)


class Server:
    """One such process, for this process."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._environment: dict[str, str] = {}

    def run(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> tuple[int, str, str]:
        """Status, stdout and stderr. Raises subprocess.TimeoutExpired."""
        exec_ = "CELEDGER_TESTS_EXEC" in os.environ
        if exec_ or not self._knows(env) or not self._turn.acquire(blocking=False):
            done = subprocess.run(
                [sys.executable, "-m", "celedger", *words], cwd=cwd, env=dict(env),
                capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            return done.returncode, done.stdout, done.stderr
        try:
            return self._fork(words, cwd, env, timeout)
        finally:
            self._turn.release()

    def adopt(self, env: Mapping[str, str]) -> None:
        """Take the environment of all tests, before one of them changes it."""
        self._environment = _early(env)
        tempfile.gettempdir()  # which stays, while a test has a TMPDIR of its own

    def _knows(self, env: Mapping[str, str]) -> bool:
        return _early(env) == self._environment

    def _fork(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> tuple[int, str, str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(Path(__file__).parent)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        server = self._process
        assert server.stdin is not None
        assert server.stdout is not None
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
            order = {
                "words": list(words), "cwd": str(cwd), "env": dict(env),
                "out": out.name, "err": err.name,
            }  # fmt: skip
            server.stdin.write(json.dumps(order) + "\n")
            server.stdin.flush()
            pid = int(server.stdout.readline())
            late: list[int] = []

            def kill() -> None:
                late.append(pid)
                os.kill(pid, 9)

            clock = threading.Timer(timeout, kill)
            clock.start()
            status = int(server.stdout.readline())
            clock.cancel()
            said = [stream.read().decode() for stream in (out, err)]
        if late:
            raise subprocess.TimeoutExpired(list(words), timeout, *said)
        return status, said[0], said[1]


def _early(env: Mapping[str, str]) -> dict[str, str]:
    early = {name: value for name, value in env.items() if name.startswith(_EARLY)}
    # Importing asks for one program.
    return {**early, "has git": str(shutil.which("git", path=env.get("PATH")) is not None)}


PROGRAM = Server()  # here, because conftest may be imported under two names
