"""Bisect: which commit to try next, what its trial means, when to stop.

The statistics are in `stats.firstbad` and `stats.choice`; trials run by `trial.runner`. This folder
joins them: a range and its symptoms become a `Search`, which ends as reports. A killed bisect
continues from the ledger when the same command is typed again."""

from celedger.judge.bisection.bisect import (
    Answer,
    Plan,
    bisect_many,
    inside,
    plan,
    proved,
)
from celedger.judge.bisection.bisect_report import Agreement, Report
from celedger.judge.bisection.planner import Limits
from celedger.judge.bisection.rehearsal import GuiltyHunks
from celedger.judge.bisection.symptom import Symptom

__all__ = [
    "Agreement", "Answer", "GuiltyHunks", "Limits", "Plan", "Report", "Symptom",
    "bisect_many", "inside", "plan", "proved",
]  # fmt: skip
