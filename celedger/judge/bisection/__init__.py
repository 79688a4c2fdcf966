"""Plans and drives a bisect: which commit to try next, what its trial said, when to stop.

The statistics are `stats.firstbad` and `stats.choice`; a trial is `trial.runner`. What lives
here joins them: `search` plans, and `drive` keeps the workers of an engine busy. It can be killed
at any time: typed again it goes on from the ledger.
"""

from celedger.judge.bisection.bisect import (
    Answer,
    Plan,
    bisect_many,
    inside,
    lacking_ends,
    plan,
    proved,
)
from celedger.judge.bisection.bisect_report import Report
from celedger.judge.bisection.other_tasks import Agreement
from celedger.judge.bisection.planner import Limits, SearchStep, search
from celedger.judge.bisection.rehearsal import GuiltyHunks
from celedger.judge.bisection.symptom import Symptom, find_symptom

__all__ = [
    "Agreement", "Answer", "GuiltyHunks", "Limits", "Plan", "Report", "SearchStep", "Symptom",
    "bisect_many", "find_symptom", "inside", "lacking_ends", "plan", "proved", "search",
]  # fmt: skip
