"""A scripted executor: trainings that are functions, run where the process of a trial would be.

The program, the journal, the ledger and git's history are real. Nothing is checked out, no
process starts, and the program itself runs in this process. What a checkout, a process, a
signal or a build does is tested elsewhere.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import SUITE, Done, Project, make_project

from celedger.base import plugins
from celedger.base.model import Commit, Environment, OutcomeKind
from celedger.cli.app import run as run_program
from celedger.system import environment, process
from celedger.system.process import Usage
from celedger.trial.station import Station

_sessions = count()
ENVIRONMENT = Environment("e" * 64, {"python": "CPython 3.11", "device": "cpu"})
Report = Mapping[str, object]
# What a training reports, epoch by epoch, given the names of `model.py` at its commit and its
# seed. What it raises is its failure, SystemExit its exit status. It takes the model's SECONDS and
# memory of PEAK_RSS.
Training = Callable[[Mapping[str, Any], int], Iterator[Report]]


def descend(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
    """Report what `conftest.SCRIPT` does."""
    rng = Random(seed)
    for epoch in range(3):
        loss = model["LEVEL"] + rng.gauss(0, 0.01) + 1 / (epoch + 1)
        yield {"epoch": epoch, "val_loss": loss}


def typed(words: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> Done:
    """Run one command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    own = f"session {next(_sessions)}"
    with pytest.MonkeyPatch.context() as patch:
        # A command is a process of its own, and so is a session of trials.
        patch.setattr(process, "_session_of", lambda _: own)
        patch.setattr(process, "_ranks", Counter())
        patch.chdir(cwd)
        for name, value in {"COLUMNS": "100", **(env or {})}.items():
            patch.setenv(name, value)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run_program(list(words))
    return Done(int(status), out.getvalue(), err.getvalue())


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Leave pictures empty: laying out a bisect's takes three times as long as the bisect."""

    def empty(*arguments: Any, **_: Any) -> Path:
        path: Path = arguments[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    from matplotlib.figure import Figure

    patch.setattr(Figure, "savefig", empty)
    if plugins.installed(plugins.VERBS).get("plot"):
        patch.setattr("celedger.page.bisect_picture.draw", lambda *_: Figure())


@dataclass
class Executor:
    """Runs trainings. `ran` lists them: commit, seed."""

    training: Training
    ran: list[tuple[str, int]] = field(default_factory=list)
    _models: dict[str, str] = field(default_factory=dict)  # commit -> its model.py
    _commit: str = ""

    @contextlib.contextmanager
    def at(self, root: Path) -> Iterator[pytest.MonkeyPatch]:
        """Run the trials of this repository while a `with` lasts."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process, "run", self.run)
            patch.setattr(Station, "prepare", self.prepare)
            # Of another manner than git's: no result of a scripted training is re-used.
            patch.setattr(Station, "checkout", SimpleNamespace(path=root, manner="", filtered={}))
            patch.setattr(environment, "describe", lambda *_, **__: ENVIRONMENT)
            yield patch

    @property
    def prepare(self) -> Callable[..., tuple[OutcomeKind, str]]:
        """Return what takes the place of `Station.prepare`."""

        def prepare(station: Station, commit: Commit, *_: object) -> tuple[OutcomeKind, str]:
            if commit.sha not in self._models:
                model = station.setup.repository.blob(commit.sha, "model.py")
                self._models[commit.sha] = model.decode()
            self._commit = commit.sha
            return OutcomeKind.OK, ""

        return prepare

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        on_tick: Callable[[process.Running], None] = lambda _: None,
        pass_fds: Sequence[int] = (),
        stop: Callable[[], bool] = lambda: False,
        **_: object,
    ) -> process.Exit:
        """Take the place of `process.run`. No probe can be attached: a diagnosis fails."""
        if not pass_fds:
            log.write_text("a scripted training has no process\n")
            return process.Exit(process.End.EXITED, 1, 0.0, 0, 0.0, False, "exit status 1")
        seed = int(env["CELEDGER_SEED"])
        self.ran.append((self._commit, seed))
        end, status, message = process.End.EXITED, 0, ""
        model: dict[str, Any] = {}
        try:
            exec(self._models[self._commit], model)
            for report in self.training(model, seed):
                os.write(pass_fds[0], json.dumps(report).encode() + b"\n")
                on_tick(_Quiet())  # type: ignore[arg-type]
                if stop():
                    end, message = process.End.STOPPED, "stopped"
                    break
        except SystemExit as ended:
            status, message = int(str(ended.code)), f"exit status {ended.code}"
        except Exception:
            log.write_text(traceback.format_exc())
            status, message = 1, "exit status 1"
        seconds, peak = model.get("SECONDS", 2.0), model.get("PEAK_RSS", 2**28)
        return process.Exit(end, status, seconds, peak, seconds, False, message)


class _Quiet:
    """A running process that uses nothing."""

    def usage(self) -> Usage:
        return Usage()


@dataclass(frozen=True)
class ScriptedProject(Project):
    """A project whose commands run in this process, and its trainings by the executor."""

    executor: Executor

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> Done:
        with self.executor.at(self.root) as patch:
            if "-o" not in words:
                draw_nothing(patch)
            return typed(words, self.root, env)


def scripted(root: Path, suite: str = SUITE, training: Training = descend) -> ScriptedProject:
    """Make a project whose trainings are this function."""
    made = make_project(root, suite, {"fit.py": "raise SystemExit('a scripted training')\n"})
    return ScriptedProject(made.root, Executor(training))
