"""Plans and drives a bisect: which commit to try next, what its trial said, when to stop.

The statistics are `stats.firstbad` and `stats.choice`; a trial is `trial.runner`. What lives
here joins them: a range and its symptoms go into one `Search`, and come out as reports. It can be
killed at any time: typed again it goes on from the ledger.
"""

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
