"""Trials of the shipped suites, cut short, all forked from one process: importing torch takes
longer than most of these trainings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celedger import suite as suites
from celedger.base.model import Task

ROOT = Path(__file__).resolve().parents[2]
SUITES = {name: suites.load(ROOT / "suites" / name) for name in ("core", "wide")}

FORKS = """
import contextlib, json, os, runpy, sys
import torch, torch._dynamo, scipy.ndimage
from torch.utils._python_dispatch import TorchDispatchMode
class Noted(TorchDispatchMode):
    called = set()
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        words = [word for word in (*args, *(kwargs or {}).values()) if isinstance(word, str)]
        kinds = [t.dtype.is_floating_point for t in args if isinstance(t, torch.Tensor)][:1]
        self.called.add((function._schema.name, *words, *map(str, kinds)))
        return function(*args, **(kwargs or {}))
for line in sys.stdin:
    order = json.loads(line)
    if (pid := os.fork()) == 0:
        printed = os.open(order["printed"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        fd = os.open(order["journal"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.environ["CELEDGER_FD"] = str(fd)
        sys.argv = order["argv"]
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        code = 1
        try:
            with Noted() if order["operators"] else contextlib.nullcontext():
                runpy.run_path(sys.argv[0], run_name="__main__")
            if order["operators"]:
                json.dump(sorted(Noted.called), open(order["operators"], "w"))
            code = 0
        except BaseException:
            __import__("traceback").print_exc()
        sys.stdout.flush()
        os._exit(code)
    print(os.waitpid(pid, 0)[1], flush=True)
"""
# A task's name, further options, a folder to be made: the reports. The folder's file `printed` has
# what the task printed, and `operators`, if asked for, what it called of torch's.
Trials = Callable[..., list[dict[str, float]]]


def task_of(name: str) -> tuple[Path, Task]:
    """Return the task of this name with its suite's folder."""
    ((folder, task),) = [(s.folder, t) for s in SUITES.values() for t in s.tasks if t.name == name]
    return folder, task


@pytest.fixture(scope="session")
def trial() -> Iterator[Trials]:
    """Run one trial with seed 3, all commands of the task in turn; return its reports."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as forks:  # fmt: skip
        assert forks.stdin is not None and forks.stdout is not None

        def run(
            name: str, options: str, folder: Path, *, operators: bool = False
        ) -> list[dict[str, float]]:
            suite_folder, task = task_of(name)
            folder.mkdir()
            journal, printed = folder / "journal.jsonl", folder / "printed"
            for _, line in suites.command_lines(
                task, python=sys.executable, suite_dir=suite_folder, tree=ROOT, seed=3, out=folder
            ):
                order = {"argv": [*line[1:], *options.split()], "journal": str(journal)}
                order["operators"] = str(folder / "operators") if operators else ""
                print(json.dumps({**order, "printed": str(printed)}), file=forks.stdin, flush=True)
                assert forks.stdout.readline() == "0\n", printed.read_text()
            return [json.loads(line) for line in journal.read_text().splitlines()]

        yield run
        forks.stdin.close()
