"""How long trials still take: by the epochs of those that run, and by the usual seconds of those
that wait. Told the time; must not know how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from celedger.base.model import Task


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
        for each in {t.recipe: t for t in (task, *self._waiting)}.values():
            if each.recipe not in self._known:
                self._known[each.recipe] = self._usual(each)
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
        at = next((i for i, each in enumerate(self._waiting) if each.name == task), None)
        if at is not None:
            del self._waiting[at]

    def seconds(self, now: float) -> float | None:
        """Return the seconds left; None while no trial runs, or where they cannot be told."""
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
        known = [seconds for seconds in left if seconds is not None]
        if not running or len(known) < len(left):
            return None
        return max(sum(known) / self._workers, *known[: len(running)])
