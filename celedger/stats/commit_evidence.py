"""What commits say of one another: that one reverts another, touches its files, has the code of
before it; as likelihood ratios from counted shares. Pure; knows places, not hashes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

REVERTS, NAMED = 0.6, 0.7
"""Share of reverts among mends, and of reverts that name the commit they revert."""
NAMES_IT = REVERTS * NAMED
SILENT_REVERT = REVERTS * (1 - NAMED)
FIX = 1 - REVERTS
REVERT_TOUCHES, FIX_TOUCHES = 0.9, 0.6
"""P(touches the culprit's files): a revert, a fix."""
OTHER_REVERT = 0.02
"""P(a commit reverts something else)."""
NAMES_OTHER = 0.002
"""P(a mend of this incident names another commit)."""
PART_NAMES_IT, PART_SILENT = 0.03, 0.04
"""The same of a commit that mends a part: it is seldom a revert."""
FUTILE = 0.1
"""Share of regressions that are reverted in name only."""
REMEMBERED = 20
"""Commits over which a revert in name only is spread."""
MOST_PAIRS = 4000
"""Pairs of commits beyond which the two sets are too wide to tell anything."""


@dataclass(frozen=True, slots=True)
class CommitEvidence:
    """What the commits of a line say of one another.

    Attributes:
        names: Place of a commit -> place of the commit that it says it reverts, or the change of
            which it takes back; -1 for a revert of something else.
        touches: Whether a commit (the first) touches files that another one touched.
        foreign: Share of unrelated pairs of commits that overlap so, counted in the repository.
        same_code: By task: place of a commit -> the older place whose results it re-uses, since it
            differs in nothing that the task reads.
    """

    names: Mapping[int, int]
    touches: Callable[[int, int], bool]
    foreign: float = 0.08
    same_code: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)


class MendRatios:
    """P(what commits say | one of them mends an incident) / P(the same | none does)."""

    def __init__(self, evidence: CommitEvidence | None) -> None:
        self._evidence = evidence
        self._cache: dict[tuple[tuple[int, int], tuple[int, int]], tuple[float, float]] = {}
        self._undoing: dict[tuple[tuple[int, int], frozenset[tuple[str, str]]], list[int]] = {}

    def of(self, culprits: tuple[int, int], menders: tuple[int, int]) -> tuple[float, float]:
        """Return the ratios of mending the whole and of mending a part.

        Args:
            culprits: First and last place of the incident's set.
            menders: First and last place of the fall's set.
        """
        pairs = (culprits[1] - culprits[0] + 1) * (menders[1] - menders[0] + 1)
        if self._evidence is None or pairs > MOST_PAIRS:
            return 1.0, 1.0
        if (culprits, menders) not in self._cache:
            whole = part = 0.0
            for mender in range(menders[0], menders[1] + 1):
                named = self._evidence.names.get(mender)
                for culprit in range(culprits[0], culprits[1] + 1):
                    names = None if named is None else named == culprit
                    touches = self._evidence.touches(mender, culprit)
                    w, p = _ratios(self._evidence.foreign, touches, names)
                    whole, part = whole + w, part + p
            self._cache[culprits, menders] = whole / pairs, part / pairs
        return self._cache[culprits, menders]

    def undoing(
        self,
        culprits: tuple[int, int],
        menders: tuple[int, int],
        tasks: frozenset[tuple[str, str]],
    ) -> int | None:
        """Return the commit of a fall that has, for every task, the code of before the culprits:
        whatever they did is undone."""
        if (culprits, tasks) not in self._undoing:
            code = self._evidence.same_code if self._evidence is not None else {}
            own = [code.get(task, {}) for task in tasks]
            places = sorted(p for p in own[0] if p > culprits[1]) if all(own) else []
            self._undoing[culprits, tasks] = [
                p for p in places if all(0 <= c.get(p, -1) < culprits[0] for c in own)
            ]
        places = self._undoing[culprits, tasks]
        at = bisect_left(places, menders[0])
        return places[at] if at < len(places) and places[at] <= menders[1] else None

    def naming(self, culprits: tuple[int, int], menders: tuple[int, int]) -> int | None:
        """Return the newest commit of a fall that says it reverts one of the culprits."""
        names = self._evidence.names if self._evidence is not None else {}
        for mender in range(menders[1], menders[0] - 1, -1):
            if culprits[0] <= names.get(mender, -1) <= culprits[1]:
                return mender
        return None


@cache
def _ratios(foreign: float, touches: bool, names: bool | None) -> tuple[float, float]:
    """Return the ratios of one pair of commits. `names`: that a revert names the culprit; None of
    a commit that is no revert."""

    def chance(share: float) -> float:
        return share if touches else 1 - share

    unrelated = chance(min(max(foreign, 0.01), 0.9))
    falsely = FUTILE / REMEMBERED
    if names:
        reverts = chance(REVERT_TOUCHES) / (falsely * unrelated)
        return NAMES_IT * reverts, PART_NAMES_IT * reverts
    if names is not None:
        other = NAMES_OTHER * chance(FIX_TOUCHES) / (OTHER_REVERT * unrelated)
        return other, other
    none = (1 - OTHER_REVERT - falsely) * unrelated
    whole = SILENT_REVERT * chance(REVERT_TOUCHES) + FIX * chance(FIX_TOUCHES)
    part_fix = 1 - PART_NAMES_IT - PART_SILENT
    part = PART_SILENT * chance(REVERT_TOUCHES) + part_fix * chance(FIX_TOUCHES)
    return whole / none, part / none
