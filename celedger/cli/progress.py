"""Progress on stderr: a bar with the time left on a terminal, one line a trial elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from celedger.cli.session import note
from celedger.model import Task, TrialRecord
from celedger.trial import events

if TYPE_CHECKING:
    from celedger.trial.workplace import Need

SHORT = 10  # hex digits of a hash, as git shows them in a middling repository


def fancy() -> bool:
    """Whether stderr is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def trial_line(sha: str, record: TrialRecord, seconds: float) -> str:
    outcome = record.outcome
    assert outcome is not None
    text = f"{record.task} {sha[:SHORT]} seed {record.trial.seed}: {outcome.kind}"
    text += f", {record.epochs} epochs, {seconds:.1f} s"
    if outcome.marks:
        text += f" [{', '.join(outcome.marks)}]"
    if record.early_stopped:
        return f"{text}: {outcome.message}"
    if outcome.message:
        text += f"\n    {outcome.message}"
        if outcome.log:
            text += f"\n    log: {outcome.log}"
    return text


def reused_line(sha: str, record: TrialRecord) -> str:
    kind = record.outcome.kind if record.outcome else ""
    what = f"{record.task} {sha[:SHORT]} seed {record.trial.seed}: {kind}"
    return f"{what}, {record.reused}"


def _advice(root: Path, file: str) -> str:
    """What to do about a file that a trial took from the user's work tree."""
    if os.path.realpath(root) == os.path.realpath(os.path.expanduser("~")):  # noqa: PTH111
        return "your home folder is this repository: run celedger with HOME set to another one"
    if file.endswith((".py", ".so", ".pyx")):
        return "is the package installed in editable form?"
    return "name it by a path relative to the training's current folder, which has the commit's"


class Progress:
    """A listener for the runner's events. `guess` gives the seconds a task took before."""

    def __init__(
        self, needs: Sequence[Need] = (), *, guess: Callable[[Task], float | None] = lambda _: None
    ) -> None:
        self._total = len(needs)
        self._ahead = [guess(need.task) for need in needs]
        self._spent: list[float] = []
        self._done = 0
        self._what = ""
        self._waited: set[int] = set()
        self._strayed: set[str] = set()  # tasks
        self._bar: Any = None
        self._row: Any = None

    def __enter__(self) -> Progress:
        if fancy():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = [TextColumn("{task.description}")]
            if self._total:
                columns += [BarColumn(bar_width=24), MofNCompleteColumn()]  # type: ignore[list-item]
            columns += [TextColumn("{task.fields[left]}")]
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._row = self._bar.add_task("starting", total=self._total or None, left="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            note(text)

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Waiting(device, holder, pid):
                if pid not in self._waited:  # two that take turns wait for each other each time
                    self._waited.add(pid)
                    self.say(" ".join(f"waiting for {device}: held by {holder}".split("\n")))
            case events.Building(commit, task):
                self._show(f"building {commit.sha[:SHORT]} for {task.name}")
            case events.Installing(sha, task):
                self._show(f"installing the requirements of {sha[:SHORT]} for {task.name}")
            case events.Started(commit, task, seed):
                self._what = f"{task.name} {commit.sha[:SHORT]} seed {seed}"
                self._show(self._what)
            case events.StartedCold(task, reason):
                self.say(f"celedger: {task.name} starts cold: {reason}")
            case events.EpochReported(number):
                self._show(f"{self._what} epoch {number}")
            case events.Strayed(commit, task, root, file) if task.name not in self._strayed:
                self._strayed.add(task.name)
                self.say(
                    f"celedger: warning: {task.name} at {commit.sha[:SHORT]} read {file} of your "
                    "work tree, not of the commit: what it measures depends on what you have "
                    f"checked out ({_advice(root, file)})"
                )
            case events.Unreachable(commit, problem):
                self.say(f"celedger: {commit.sha[:SHORT]} is stepped around: {problem}")
            case events.Finished(commit, record, seconds):
                self._done += 1
                self._spent.append(seconds)
                count = f"[{self._done}/{self._total}] " if self._total else ""
                crashed = not record.ok
                if self._bar is None or crashed:
                    self.say(count + trial_line(commit.sha, record, seconds))
                self._show(self._what)
            case events.Reused(commit, record):
                self._done += 1
                count = f"[{self._done}/{self._total}] " if self._total else ""
                self.say(f"{count}{reused_line(commit.sha, record)}")

    def _show(self, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._row, description=text, completed=self._done, left=self._left())

    def _left(self) -> str:
        if not self._total:
            return ""
        ahead = self._ahead[self._done :]
        known = [s for s in ahead if s is not None] or self._spent
        if not known:
            return ""
        seconds = sum(s if s is not None else sum(known) / len(known) for s in ahead)
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}:{rest:02d} left"
