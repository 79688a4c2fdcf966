"""Preflight: the checks before trusting a training, in a run outside the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from celedger.errors import CannotJudge, command
from celedger.model import Commit, Task
from celedger.trial.diagnostic import diagnose
from celedger.trial.runner import Bench

STATUSES = ("pass", "warn", "fail", "n/a")


def preflight(
    bench: Bench, commit: Commit, task: Task, seed: int, folder: Path
) -> tuple[list[dict[str, Any]], bool]:
    """Run the checks, and return them as the probe wrote them ("check", one of STATUSES as
    "status", "figure", "said"), and whether all were reached before the training hung or was
    killed. Raises CannotJudge where it fails before its first step, or is not described by
    `celedger.child.torch.train`."""
    probe = {"kind": "preflight", "drives": True}
    ended = diagnose(bench, commit, task, seed, folder / "preflight", probe)
    results = ended.out / "preflight.json"
    if results.exists():  # commands after the training miss what it would have made: no matter
        checks = json.loads(results.read_text())
        why = f"not finished: {ended.message or 'the training ended'}"
        finished = all(check["said"] for check in checks)
        return [{**check, "said": check["said"] or why} for check in checks], finished
    if not ended.ok:
        raise CannotJudge(f"{task.name} cannot train at {commit.sha[:10]}: {ended.message}")
    raise CannotJudge(
        f"{task.name} does not train by celedger.child.torch.train, which preflight drives",
        f"{command('watch', task.name, commit.sha[:12], suite=task.suite)} works with any torch "
        "training",
    )
