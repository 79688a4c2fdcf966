"""Run preflight, the checks before trusting a training, outside the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celedger.base.model import Commit, Task
from celedger.lab.diagnose.profile import run
from celedger.trial.runner import Bench

STATUSES = ("fail", "warn", "pass", "n/a")  # the most urgent first
REPEATED = 3  # steps after which the weights of two runs are compared


def preflight(
    bench: Bench, commit: Commit, task: Task, seed: int, folder: Path
) -> list[dict[str, Any]]:
    """Run the checks, and return them as the probe wrote them ("check", one of STATUSES as
    "status", "figure", "said"). The first steps run a second time, to see whether they repeat.
    Raises CannotJudge if the training fails or cannot be observed."""
    event, again = (
        run(bench, commit, task, seed, folder / name, {"kind": "preflight", "steps": steps})
        for name, steps in (("checks", 200), ("again", REPEATED))
    )
    count, equal = min(REPEATED, again["steps"]), event["fingerprint"] == again["fingerprint"]
    text = f"{'equal bits' if equal else 'the weights differ'} after {count} steps of the same seed"
    repeats = {
        "check": "same seed, same result", "status": "pass" if equal else "fail",
        "figure": None, "said": text,
    }  # fmt: skip
    return [*event["checks"], repeats]
