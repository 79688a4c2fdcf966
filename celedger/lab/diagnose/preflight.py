"""Run preflight, the checks before trusting a training, outside the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celedger.base.config import closest
from celedger.base.errors import SuiteError
from celedger.base.model import Commit, Task
from celedger.lab.diagnose.profile import run
from celedger.trial.runner import Bench

STATUSES = ("fail", "warn", "waived", "pass", "n/a")  # the most urgent first
REPEATED = 3  # steps after which the weights of two runs are compared


def preflight(
    bench: Bench, commit: Commit, task: Task, seed: int, folder: Path
) -> list[dict[str, Any]]:
    """Run the checks, those of the suite first, and return them as the probe wrote them ("check",
    one of STATUSES as "status", "figure", "said"). The first steps run a second time, to see
    whether they repeat. Raises CannotJudge if the training fails or cannot be observed, SuiteError
    for a waiver of no check."""
    files, suite = bench.setup.suite_files, bench.suite
    own = {name: str(files / name.partition(":")[0]) for name in suite.checks}
    event, again = (
        run(
            bench, commit, task, seed, folder / name,
            {"kind": "preflight", "steps": steps, "own": own},
        )
        for name, steps in (("checks", 200), ("again", REPEATED))
    )  # fmt: skip
    count, equal = min(REPEATED, again["steps"]), event["fingerprint"] == again["fingerprint"]
    text = f"{'equal bits' if equal else 'the weights differ'} after {count} steps of the same seed"
    repeats = {
        "check": "same seed, same result", "status": "pass" if equal else "fail",
        "figure": None, "said": text,
    }  # fmt: skip
    checks = [*event["checks"], repeats]
    names = [check["check"] for check in checks]
    for name in suite.waivers:
        if name not in names:
            raise SuiteError(
                f"[preflight] waives {name!r}, which is not a check", closest(name, names)
            )
    return [_waived(check, suite.waivers.get(check["check"], "")) for check in checks]


def _waived(check: dict[str, Any], reason: str) -> dict[str, Any]:
    """Return a check that fails or warns as waived, where there is a reason."""
    if not reason or check["status"] not in ("fail", "warn"):
        return check
    return {**check, "status": "waived", "said": f"{check['said']}; waived: {reason}"}
