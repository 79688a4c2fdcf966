"""What else changed in the range of a bisect: steps that its trials happen to show beside the one
that was searched. A hint for the next bisect, not an answer: nothing was run to find them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from celedger.model import Commit
from celedger.stats import changepoints, firstbad

# A step much smaller than the one searched is more likely the jitter of commits between two
# trials than something a person would bisect.
_WORTH = 0.2


@dataclass(frozen=True, slots=True)
class Other:
    """A change after `after` and not later than `by`, in the metric's own unit and direction."""

    after: Commit
    by: Commit
    effect: float
    probability: float


def others(
    question: firstbad.Question,
    evidence: firstbad.Evidence,
    effect: float,
    leader: int,
    line: tuple[Commit, ...],
    sign: int,
) -> tuple[Other, ...]:
    """Steps in either direction beside the leader's, on a history without merges. `effect` is
    that of the search, `line` holds GOOD and then the candidates."""
    if not question.lineage.linear or question.binary or not math.isfinite(effect):
        return ()
    values: dict[int, list[float]] = {}
    for reading in evidence.readings:
        if math.isfinite(reading.value):
            values.setdefault(reading.position, []).append(reading.value)
    places = sorted(values)
    changes = changepoints.detect([values[p] for p in places])
    least = max(question.floor, _WORTH * abs(effect))
    found = []
    for point in changes.points:
        after, by = places[point.index - 1], places[point.index]
        if abs(point.effect) >= least and not after < leader <= by:
            found.append(
                Other(line[after + 1], line[by + 1], sign * point.effect, point.probability)
            )
    return tuple(found)
