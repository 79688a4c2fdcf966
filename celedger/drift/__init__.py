"""Is this commit worse than its baseline? Gathers what the ledger holds, asks the statistics,
keeps the verdict, and runs more trials where they would settle a suspicion."""

from celedger.drift.baseline import (
    Baselines,
    last_good,
    noise,
    noise_beside,
    unjudged,
    usable,
)
from celedger.drift.history import Away, Course, Step, courses
from celedger.drift.judge import Judged, counted, judge, status
from celedger.drift.settle import RERUNS, settle

__all__ = [
    "RERUNS", "Away", "Baselines", "Course", "Judged", "Step", "counted", "courses", "judge",
    "last_good", "noise", "noise_beside", "settle", "status", "unjudged", "usable",
]  # fmt: skip
