"""Progress on stderr: a bar with the time left on a terminal. Elsewhere one line a trial, and in a
long one a line a minute."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from celedger.cli.session import note
from celedger.model import Task, TrialRecord
from celedger.trial import events
from celedger.views.format import count, duration

if TYPE_CHECKING:
    from celedger.ledger import Ledger
    from celedger.trial.engine import Need
    from celedger.trial.runner import Bench

_MINUTE = 60.0
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


class TimeLeft:
    """How long the needs still take, by the epochs of the trial that runs, where its task has a
    parameter `epochs`, and by the usual seconds of each task. `now` is in seconds."""

    def __init__(self, needs: Sequence[Need], usual: Callable[[Task], float | None]) -> None:
        self._tasks = [need.task for need in needs]
        self._usual = usual
        self._known: dict[str, float | None] = {}  # usual seconds, by recipe
        self._ended = 0
        self._task: Task | None = None
        self._began = 0.0
        self._epochs: list[float] = []  # when each ended

    def start(self, task: Task, now: float) -> None:
        self._task, self._began, self._epochs = task, now, []
        # Here, and not in `seconds`: a bar asks in a thread, where no ledger can be read.
        for each in {task.recipe: task, **{t.recipe: t for t in self._tasks}}.values():
            if each.recipe not in self._known:
                self._known[each.recipe] = self._usual(each)

    def epoch(self, now: float) -> None:
        self._epochs.append(now)

    def end(self) -> None:
        self._ended += 1
        if self._task is not None:
            self._known.pop(self._task.recipe, None)
        self._task = None

    def seconds(self, now: float) -> float | None:
        """Return the seconds left; None while no trial runs, or where they cannot be told."""
        if self._task is None or (left := self._of_trial(self._task, now)) is None:
            return None
        for task in self._tasks[self._ended + 1 :]:
            usual = self._known.get(task.recipe)
            if usual is None and task.recipe == self._task.recipe:
                usual = now - self._began + left
            if usual is None:
                return None
            left += usual
        return left

    def _of_trial(self, task: Task, now: float) -> float | None:
        number, whole = len(self._epochs), task.params.get("epochs")
        if number > 1 and isinstance(whole, int) and whole >= number:
            first, last = self._epochs[0], self._epochs[-1]
            return max(0.0, (whole - number) * (last - first) / (number - 1) - (now - last))
        usual = self._known.get(task.recipe)
        left = None if usual is None else usual - (now - self._began)
        return left if left is not None and left > 0 else None


def _trial_line(sha: str, record: TrialRecord, seconds: float | None) -> str:
    """Describe a trial; one that was re-used took no seconds."""
    outcome = record.outcome
    kind = outcome.kind if outcome else ""
    text = f"{record.task} {sha[:SHORT]} seed {record.trial.seed}: {kind}"
    if seconds is None or outcome is None:
        return f"{text}, {record.reused}"
    text += f", {count(record.epochs, 'epoch')}, {seconds:.1f} s"
    if outcome.marks:
        text += f" [{', '.join(outcome.marks)}]"
    if record.early_stopped:
        return f"{text}: {outcome.message}"
    if outcome.message:
        text += f"\n    {outcome.message}"
        text += f"\n    log: {outcome.log}" if outcome.log else ""
    return text


class Progress:
    """A listener for the events of a bench, which runs the `needs`. `clock` is in seconds."""

    def __init__(
        self,
        bench: Bench | None = None,
        needs: Sequence[Need] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = len(needs)
        self._done = 0
        self._trial = ""
        self._announced: set[str] = set()  # holders that were waited for, tasks that strayed
        self._bar: Any = None
        self._row: Any = None
        self._clock, self._said = clock, 0.0  # when the trial that runs had its last line
        self._left = TimeLeft(
            needs, lambda task: None if bench is None else usual_seconds(bench.ledger, task)
        )
        if bench is not None:
            bench.listen = self

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb"):
            from rich import progress
            from rich.console import Console
            from rich.text import Text

            class Left(progress.ProgressColumn):
                def render(_, task: progress.Task) -> Text:  # noqa: N805 -- `self` is the listener
                    return Text(self._time_left())

            columns: list[Any] = [progress.TextColumn("{task.description}", markup=False)]
            if self._total:
                columns += [progress.BarColumn(bar_width=24), progress.MofNCompleteColumn()]
            self._bar = progress.Progress(
                *columns, Left(), console=Console(stderr=True), transient=True
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
                self._left.start(task, self._clock())
                self._said = self._clock()
                self._show(self._trial)
            case events.StartedCold(task, reason):
                self.say(f"celedger: {task.name} starts cold: {reason}")
            case events.EpochReported(number):
                self._epoch(f"{self._trial} epoch {number}")
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

    def _epoch(self, text: str) -> None:
        now = self._clock()
        self._left.epoch(now)
        self._show(text)
        if self._bar is None and now - self._said >= _MINUTE:
            self._said = now
            self.say(", ".join(filter(None, [text, self._time_left()])))

    def _time_left(self) -> str:
        seconds = self._left.seconds(self._clock())
        if seconds is None:
            return ""
        return f"{f'{seconds:.0f} s' if seconds < 59.5 else duration(seconds)} left"

    def _end(self, sha: str, record: TrialRecord, seconds: float | None) -> None:
        self._done += 1
        self._left.end()
        # Further seeds that a check asks for have no number.
        number = f"[{self._done}/{self._total}] " if self._done <= self._total else ""
        if self._bar is None or not record.ok or seconds is None:
            self.say(number + _trial_line(sha, record, seconds))
        self._show(self._trial)

    def _show(self, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._row, description=text, completed=self._done)
