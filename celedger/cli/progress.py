"""Progress on stderr: a bar with the time left on a terminal, one line a trial elsewhere."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celedger.cli.session import note
from celedger.model import Task, TrialRecord
from celedger.trial import events

if TYPE_CHECKING:
    from celedger.ledger import Ledger
    from celedger.trial.engine import Need
    from celedger.trial.runner import Bench

SHORT = 10  # hex digits of a hash, as git shows them in a middling repository


def usual_seconds(ledger: Ledger, task: Task) -> float | None:
    """Return the median wall time of this definition's trials, where there are any."""
    rows = [
        row
        for name in ("duration", "warm_duration")
        for row in ledger.summaries(task.name, name, recipe=task.recipe)
    ]
    rows.sort(key=lambda row: row.started)
    seconds = [row.value for row in rows if row.value == row.value]
    return statistics.median(seconds[-20:]) if seconds else None


def _trial_line(sha: str, record: TrialRecord, seconds: float | None) -> str:
    """Describe a trial; one that was re-used took no seconds."""
    outcome = record.outcome
    kind = outcome.kind if outcome else ""
    text = f"{record.task} {sha[:SHORT]} seed {record.trial.seed}: {kind}"
    if seconds is None or outcome is None:
        return f"{text}, {record.reused}"
    text += f", {record.epochs} epochs, {seconds:.1f} s"
    if outcome.marks:
        text += f" [{', '.join(outcome.marks)}]"
    if record.early_stopped:
        return f"{text}: {outcome.message}"
    if outcome.message:
        text += f"\n    {outcome.message}"
        text += f"\n    log: {outcome.log}" if outcome.log else ""
    return text


class Progress:
    """A listener for the events of a bench, which runs the `needs`."""

    def __init__(self, bench: Bench | None = None, needs: Sequence[Need] = ()) -> None:
        self._total = len(needs)
        self._done = 0
        self._trial = ""
        self._announced: set[str] = set()  # holders that were waited for, tasks that strayed
        self._bar: Any = None
        self._row: Any = None
        if bench is not None:
            bench.listen = self

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
            from rich import progress
            from rich.console import Console

            columns: list[Any] = [progress.TextColumn("{task.description}")]
            if self._total:
                columns += [progress.BarColumn(bar_width=24), progress.MofNCompleteColumn()]
                columns += [progress.TimeRemainingColumn(elapsed_when_finished=True)]
            self._bar = progress.Progress(
                *columns, console=Console(stderr=True), transient=True, speed_estimate_period=3600
            )
            self._bar.start()
            self._row = self._bar.add_task("starting", total=self._total or None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            note(text)

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Waiting(device, holder, _) if holder not in self._announced:
                self._announced.add(holder)  # two that take turns wait for each other each time
                self.say(" ".join(f"waiting for {device}: held by {holder}".split("\n")))
            case events.Building(commit, task):
                self._show(f"building {commit.sha[:SHORT]} for {task.name}")
            case events.Installing(sha, task):
                self._show(f"installing the requirements of {sha[:SHORT]} for {task.name}")
            case events.Started(commit, task, seed):
                self._trial = f"{task.name} {commit.sha[:SHORT]} seed {seed}"
                self._show(self._trial)
            case events.StartedCold(task, reason):
                self.say(f"celedger: {task.name} starts cold: {reason}")
            case events.EpochReported(number):
                self._show(f"{self._trial} epoch {number}")
            case events.Strayed(_, task, _, file) if task.name not in self._announced:
                self._announced.add(task.name)
                self.say(
                    f"celedger: warning: {task.name} read {file} of your work tree, not of the "
                    "commit: what it measures depends on what you have checked out (is the "
                    "package installed in editable form, or is a path absolute?)"
                )
            case events.Unreachable(commit, problem):
                self.say(f"celedger: {commit.sha[:SHORT]} is stepped around: {problem}")
            case events.Elsewhere(commit, task, reason):
                again = f"{task.name} {commit.sha[:SHORT]} runs again on another node"
                self.say(f"celedger: {again}: {reason}")
            case events.Finished(commit, record, seconds):
                self._end(commit.sha, record, seconds)
            case events.Reused(commit, record):
                self._end(commit.sha, record, None)

    def _end(self, sha: str, record: TrialRecord, seconds: float | None) -> None:
        self._done += 1
        count = f"[{self._done}/{self._total}] " if self._total else ""
        if self._bar is None or not record.ok or seconds is None:
            self.say(count + _trial_line(sha, record, seconds))
        self._show(self._trial)

    def _show(self, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._row, description=text, completed=self._done)
