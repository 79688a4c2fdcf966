"""Progress on stderr: a bar with the time left on a terminal. Elsewhere one line a trial, and in a
long one a line a minute."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celedger.base.model import Task, TrialRecord
from celedger.cli.session import note
from celedger.trial.engine import (
    Building,
    EpochReported,
    Event,
    Finished,
    Preparing,
    Remark,
    Started,
    Waiting,
)
from celedger.views.document import count, duration

if TYPE_CHECKING:
    from celedger.trial.engine import Need
    from celedger.trial.runner import Bench


_MINUTE = 60.0
SHORT = 10  # hex digits of a hash, as git shows them in a middling repository


_Key = tuple[str, str, int]  # of a trial: its task's name, its commit's hash, its seed


def _name(key: _Key) -> str:
    task, sha, seed = key
    return f"{task} {sha[:SHORT]} seed {seed}"


def _trial_line(sha: str, record: TrialRecord, seconds: float) -> str:
    outcome = record.outcome
    kind = outcome.kind if outcome else ""
    text = f"{record.task} {sha[:SHORT]} seed {record.trial.seed}: {kind}"
    if outcome is None:
        return text
    text += f", {count(record.epochs, 'epoch')}, {seconds:.1f} s"
    if outcome.marks:
        text += f" [{', '.join(outcome.marks)}]"
    return f"{text}: {outcome.message}" if record.early_stopped else text


def _failure(record: TrialRecord) -> str:
    """Return why a trial did not end well, "" for one that did."""
    outcome = record.outcome
    if outcome is None or not outcome.message or record.early_stopped:
        return ""
    return f"    {outcome.message}" + (f"\n    log: {outcome.log}" if outcome.log else "")


class Progress:
    """A listener for the events of a bench, which runs the `needs`. `clock` is in seconds."""

    def __init__(
        self,
        bench: Bench | None = None,
        needs: Sequence[Need] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = len(needs)
        self._done = self._reused = 0
        self._trials: dict[_Key, str] = {}  # that run: what is said of each
        self._announced: set[str] = set()  # holders that were waited for, what remarks are about
        self._bar: Any = None
        self._row: Any = None
        self._clock = clock
        self._said: dict[_Key, float] = {}  # when a trial that runs had its last line
        self._left = TimeLeft(
            [need.task for need in needs],
            lambda task: None if bench is None else bench.ledger.usual_seconds(task),
            1 if bench is None else bench.engine.workers,
        )
        if bench is not None:
            bench.station.listen = self

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
        if self._reused:
            note(f"celedger: re-used {count(self._reused, 'result')}: these commits differ in no "
                 "file that the training reads")  # fmt: skip

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            note(text)

    def __call__(self, event: Event) -> None:
        match event:
            case Waiting(device, holder) if holder not in self._announced:
                self._announced.add(holder)  # two that take turns wait for each other each time
                self.say(" ".join(f"waiting for {device}: held by {holder}".split("\n")))
            case Building(commit, task):
                self._show(f"building {commit.sha[:SHORT]} for {task.name}")
            case Preparing(text):
                self._show(text)
                if self._bar is None and text not in self._announced:
                    self._announced.add(text)
                    note(text)
            case Started(commit, task, seed):
                key = task.name, commit.sha, seed
                self._left.start(key, task, self._clock())
                self._said[key] = self._clock()
                self._trials[key] = _name(key)
                self._show()
            case EpochReported(commit, task, seed, number):
                self._epoch((task.name, commit.sha, seed), number)
            case Remark(text, about) if not about or not self._announced.issuperset(about):
                self._announced.update(about)
                self.say(f"celedger: {text}")
            case Finished(commit, record, seconds):
                self._reused += seconds is None
                self._end(commit.sha, record, seconds)

    def _epoch(self, key: _Key, number: int) -> None:
        now = self._clock()
        self._left.epoch(key, now)
        text = self._trials[key] = f"{_name(key)} epoch {number}"
        self._show()
        if self._bar is None and now - self._said.setdefault(key, now) >= _MINUTE:
            self._said[key] = now
            self.say(", ".join(filter(None, [text, self._time_left()])))

    def _time_left(self) -> str:
        seconds = self._left.seconds(self._clock())
        if seconds is None:
            return ""
        return f"{f'{seconds:.0f} s' if seconds < 59.5 else duration(seconds)} left"

    def _end(self, sha: str, record: TrialRecord, seconds: float | None) -> None:
        self._done += 1
        key = record.task, sha, record.trial.seed
        self._left.end(key, record.task)
        self._trials.pop(key, None)
        # Further seeds that a check asks for have no number.
        number = f"[{self._done}/{self._total}] " if self._done <= self._total else ""
        if seconds is not None and (self._bar is None or not record.ok):
            self.say(number + _trial_line(sha, record, seconds))
            about = f"{record.task} {record.outcome.message}" if record.outcome else ""
            if (why := _failure(record)) and about not in self._announced:
                self._announced.add(about)  # what fails alike is told once
                self.say(why)
        self._show()

    def _show(self, text: str = "") -> None:
        """Show a step before a trial, or without one the trials that run."""
        if self._bar is not None:
            text = text or "; ".join(self._trials.values())
            self._bar.update(self._row, description=text, completed=self._done)


# --- how long trials still take: by the epochs of those that run, and the usual seconds of others


@dataclass
class _RunningTrial:
    task: Task
    began: float
    epochs: list[float] = field(default_factory=list)  # when each ended

    def left(self, now: float, usual: float | None) -> float | None:
        """Return the seconds to its end: by its epochs where the task has a parameter `epochs`,
        else by the usual ones; None for a trial that takes longer than usual."""
        number, whole = len(self.epochs), self.task.params.get("epochs")
        if number > 1 and isinstance(whole, int) and whole >= number:
            first, last = self.epochs[0], self.epochs[-1]
            return max(0.0, (whole - number) * (last - first) / (number - 1) - (now - last))
        left = None if usual is None else usual - (now - self.began)
        return left if left is not None and left > 0 else None


class TimeLeft:
    """The seconds that trials of some tasks still take on so many workers. `usual` returns those
    that a trial of a task takes. A trial is named by what it is started with."""

    def __init__(
        self, tasks: Sequence[Task], usual: Callable[[Task], float | None], workers: int = 1
    ) -> None:
        self._waiting = list(tasks)
        self._usual = usual
        self._workers = workers
        self._known: dict[str, float | None] = {}  # usual seconds, by recipe
        self._running: dict[Hashable, _RunningTrial] = {}

    def start(self, trial: Hashable, task: Task, now: float) -> None:
        self._running[trial] = _RunningTrial(task, now)
        # Here, and not in `seconds`: a bar asks in a thread, where no ledger can be read.
        for waiting in {t.recipe: t for t in (task, *self._waiting)}.values():
            if waiting.recipe not in self._known:
                self._known[waiting.recipe] = self._usual(waiting)
        self._remove(task.name)

    def epoch(self, trial: Hashable, now: float) -> None:
        if trial in self._running:
            self._running[trial].epochs.append(now)

    def end(self, trial: Hashable, task: str) -> None:
        """Note the end of a trial, which need not have started: it may re-use a result."""
        ended = self._running.pop(trial, None)
        if ended is None:
            self._remove(task)
        else:
            self._known.pop(ended.task.recipe, None)

    def _remove(self, task: str) -> None:
        at = next((i for i, waiting in enumerate(self._waiting) if waiting.name == task), None)
        if at is not None:
            del self._waiting[at]

    def seconds(self, now: float) -> float | None:
        """Return the seconds left; None while no trial is running, or where they cannot be told."""
        running = list(self._running.values())
        left = [trial.left(now, self._known.get(trial.task.recipe)) for trial in running]
        alike = {
            trial.task.recipe: now - trial.began + seconds
            for trial, seconds in zip(running, left, strict=True)
            if seconds is not None
        }
        for task in self._waiting:
            usual = self._known.get(task.recipe)
            left.append(alike.get(task.recipe) if usual is None else usual)
        seconds_left = [seconds for seconds in left if seconds is not None]
        if not running or len(seconds_left) < len(left):
            return None
        return max(sum(seconds_left) / self._workers, *seconds_left[: len(running)])
