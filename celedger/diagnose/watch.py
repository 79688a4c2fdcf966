"""Watch one training of a task, in a run outside the record, and judge what was seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from celedger.diagnose import watchpoints
from celedger.diagnose.watch_rules import overflow_step, sound
from celedger.diagnose.watched import LossScale, Watched, loss_scale, read
from celedger.diagnose.watchpoints import WatchpointFinding
from celedger.errors import CannotJudge
from celedger.model import Commit, Task
from celedger.trial.diagnostic import EAGER, diagnose
from celedger.trial.runner import Bench


@dataclass(frozen=True, slots=True)
class JudgedTraining:
    training: Watched
    findings: tuple[WatchpointFinding, ...]
    scale: LossScale


@dataclass(frozen=True, slots=True)
class WatchReport:
    task: Task
    commit: Commit
    seed: int
    trainings: tuple[JudgedTraining, ...]  # one for each process that trained, by their start
    failed: str = ""  # why the run did not end well, if it did not

    @property
    def fired(self) -> bool:
        return any(judged.findings for judged in self.trainings)


def watch(
    bench: Bench,
    commit: Commit,
    task: Task,
    seed: int,
    folder: Path,
    thresholds: Mapping[str, float],
    *,
    params: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> WatchReport:
    """Train once with watchpoints. Where something stopped to be finite, train again up to there:
    an equal seed meets it in the same step, and now every operator of it is followed. `params` and
    `environment` change the task's.

    Raises CannotJudge where nothing trained: no build, no torch, or a failure before any step.
    """
    watchpoints.limits(thresholds)  # what is misspelt is said before a training
    variables = {**EAGER, **(environment or {})}
    run = partial(diagnose, bench, commit, task, seed, params=params, environment=variables)
    done = run(folder / "watch", {"kind": "watch"})
    trainings = read(done.out)
    broken = [overflow_step(training) for training in trainings]
    # The step before, too: what breaks a gradient shows in the next step's loss.
    steps = sorted({s for step in broken if step is not None for s in (step - 1, step) if s >= 0})
    if steps:
        probe = {"kind": "watch", "closely": steps}
        closer = read(run(folder / "closer", probe).out)
        for i, (step, seen) in enumerate(zip(broken, closer, strict=False)):
            if step is not None:
                trainings[i] = _with_steps(trainings[i], seen, {step - 1, step})
    judged = tuple(
        JudgedTraining(one, tuple(watchpoints.judge(one, thresholds)), loss_scale(sound(one)))
        for one in trainings
    )
    report = WatchReport(task, commit, seed, judged, "" if done.ok else done.message)
    if not report.fired and not any(training.optimisers for training in trainings):
        reason = done.message or "no process of it took an optimiser's step with torch"
        raise CannotJudge(f"{task.name} cannot be watched at {commit.sha[:10]}: {reason}")
    return report


def _with_steps(training: Watched, closer: Watched, numbers: Collection[int]) -> Watched:
    found = [step for step in closer.steps if step.number in numbers]
    others = [step for step in training.steps if step.number not in {s.number for s in found}]
    return replace(training, steps=tuple(sorted([*others, *found], key=lambda s: s.number)))
