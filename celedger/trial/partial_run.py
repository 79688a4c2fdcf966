"""Run only some commands of a task: `celedger run --only test`. A part has its own definition and
name, so that it never counts as a trial of the whole, and its numbers are not judged. It starts
from a copy of the output folder of the whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from celedger.base.errors import UsageError
from celedger.base.model import Direction, Task, Trial
from celedger.ledger import Ledger
from celedger.trial import journal


def part(task: Task, names: Collection[str]) -> Task | None:
    """Return the task with only these commands, in its own order; None if it has none of them."""
    chosen = tuple(command for command in task.commands if command.name in names)
    if chosen == task.commands or not chosen:
        return task if chosen else None
    base, bracket, point = task.name.partition("[")
    label = f"only={'+'.join(command.name for command in chosen)}"
    return replace(
        task,
        name=f"{base}[{point[:-1]},{label}]" if bracket else f"{base}[{label}]",
        commands=chosen,
        metrics=tuple(replace(m, direction=Direction.INFO) for m in task.metrics),
        whole=task.recipe if chosen[0] != task.commands[0] else "",
    )


def inherit(ledger: Ledger, task: Task, trial: Trial, out: Path) -> None:
    """Fill the folder of a part's trial from the newest trial of the whole at the same commit with
    the same seed. Raises UsageError if there is none, OSError."""
    if not task.whole:
        return
    whole_trials = ledger.trials(
        commit=trial.commit, recipe=task.whole, environment=trial.environment, seed=trial.seed
    )
    folders = [journal.out_path(ledger, r.trial.ulid) for r in whole_trials if r.ok]
    existing = [folder for folder in folders if folder.is_dir()]
    if not existing:
        out.rmdir()
        name = task.name.rpartition("only=")[0].rstrip("[,")
        name += "]" if "[" in name else ""
        raise UsageError(
            f"no trial of {name} at {trial.commit[:10]} with seed {trial.seed} left files that "
            f"{task.commands[0].name!r} could go on from",
            f"celedger run {trial.commit[:10]} --task '{name}'",
        )
    shutil.copytree(existing[-1], out, dirs_exist_ok=True, symlinks=True)
