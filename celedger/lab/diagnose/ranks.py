"""Compare the ranks of a distributed training: how long each communicates and waits for it, and
which of them is late. Pure: takes profiles' documents. All times are means over the profiler's
window, in seconds a step.
"""

from __future__ import annotations

from collections.abc import Mapping

from celedger.lab.diagnose.stalls import Document

# All ranks end a collective at the same moment, so the one that comes last waits least. If waits
# differ by less than half of the longest, most of the wait is the transfer itself.
LATE = 0.5


def communication(profiles: Mapping[int, Document]) -> Document | None:
    """Return each rank's communication and the late rank (`rank`, the `seconds` that others wait
    more than it does, and the `phase` in which it spends more time than they do), None where no
    rank is late. None where no rank communicates."""
    rows = [
        {"rank": rank, **profile["communication"]}
        for rank, profile in profiles.items()
        if profile["communication"] is not None
    ]
    if not rows:
        return None
    waits = {row["rank"]: row["waited"] for row in rows}
    first, most = min(waits, key=waits.__getitem__), max(waits.values())
    seconds = most - waits[first]
    late = None
    if most and seconds >= LATE * most:
        late = {"rank": first, "seconds": seconds, "phase": _slower_phase(profiles, first)}
    return {"ranks": rows, "late": late}


def _slower_phase(profiles: Mapping[int, Document], rank: int) -> str:
    """Return the phase that takes a rank longest in comparison with the mean of the others."""
    medians: dict[int, dict[str, float]] = {
        one: {row["name"]: row["median"] for row in profile["phases"] if row["name"] != "step"}
        for one, profile in profiles.items()
    }
    median = medians.pop(rank)

    def excess(phase: str) -> float:
        return median[phase] - sum(row.get(phase, 0.0) for row in medians.values()) / len(medians)

    return max(median, key=excess)
