"""Preflight: the checks before trusting a training, in a run outside the record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from celedger.errors import CannotJudge, command
from celedger.model import Commit, Task
from celedger.trial.diagnostic import diagnose
from celedger.trial.runner import Bench


class CheckStatus(StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: CheckStatus
    figure: Any  # a number, or figures by name; None where there is none
    said: str


@dataclass(frozen=True, slots=True)
class PreflightReport:
    task: Task
    commit: Commit
    seed: int
    checks: tuple[Check, ...]
    finished: bool = True  # else it hung or was killed in a check

    def having(self, status: CheckStatus) -> Sequence[Check]:
        return [check for check in self.checks if check.status is status]


def preflight(bench: Bench, commit: Commit, task: Task, seed: int, folder: Path) -> PreflightReport:
    """Raises CannotJudge where the training fails before its first step, or is not described by
    `celedger.child.torch.train`."""
    done = diagnose(
        bench, commit, task, seed, folder / "preflight", {"kind": "preflight", "drives": True}
    )
    found = done.out / "preflight.json"
    if found.exists():  # commands after the training miss what it would have made: no matter
        rows = json.loads(found.read_text())
        checks = tuple(
            Check(
                raw["check"],
                CheckStatus(raw["status"]),
                raw["figure"],
                raw["said"] or f"not finished: {done.message or 'the training ended'}",
            )
            for raw in rows
        )
        finished = all(raw["said"] for raw in rows)
        return PreflightReport(task, commit, seed, checks, finished)
    if not done.ok:
        raise CannotJudge(f"{task.name} cannot train at {commit.sha[:10]}: {done.message}")
    raise CannotJudge(
        f"{task.name} does not train by celedger.child.torch.train, which preflight drives",
        f"{command('watch', task.name, commit.sha[:12], suite=task.suite)} works with any torch "
        "training",
    )
