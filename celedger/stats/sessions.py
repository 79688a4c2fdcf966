"""Contrasts within a session, in which what its trials share cancels.

A session's effect cancels between two commits that it measured side by side. The contrast decides
whether a short rise was real, and tells how much of an incident is left. Pure; knows nothing of
incidents.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from celedger.stats import Bools
from celedger.stats.course import Measurements, MetricHistory, MetricKey, Node

MEDIAN_VARIANCE = 1.25
"""Variance of a robust mean of few trials, in units of the plain mean's."""
SURE = math.log(99.0)
"""Log likelihood ratio of "as large as it was" to "nothing" that decides: .99 at even odds."""
MORE_GONE_THAN_LEFT = 3.0
"""Standard errors by which more than half of a rise must be gone before it is called recovered.
Without it half-mended ones were called good about once in 60 simulated lives."""
FEWEST, FEWEST_SMALL, SMALL = 2, 4, 6.0
"""Trials of either commit before a control decides: two, and four for a rise below six standard
deviations of a trial (two made one wrong "good again" in 80 simulated lives)."""
MOST = 4
"""Trials of either commit after which a control asks for no more."""


class RiseVerdict(StrEnum):
    REAL = "real"
    FALSE = "false"
    UNSETTLED = "unsettled"


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two commits of one chain in one session.

    Attributes:
        old, new: Places; `old` is the older one.
        difference: Mean at `new` - mean at `old`; `error` its standard error.
        trials: Of the commit that has fewer in this session.
        rise: How much worse `old` was in the other sessions than the commit before it;
            `rise_error` its standard error. 0 where no other session measured it.
        new_above: How much worse `new` is here than the commit before `old`.
        unit: Standard deviation of a trial.
        high_sessions: The other sessions, in which `old` was higher than here by more than half
            of `rise`. They were disturbed if the rise is false.
        is_asked: True for a control that was run since the rise of `old` was in doubt.
    """

    key: MetricKey
    chain: int
    session: int
    old: int
    new: int
    difference: float
    error: float
    trials: int
    rise: float
    rise_error: float
    new_above: float
    unit: float
    high_sessions: tuple[int, ...] = ()
    is_asked: bool = False

    def verdict(self, size: float | None = None, error: float | None = None) -> RiseVerdict:
        """Compare "`old` is as much worse than `new` as it once rose" with "it is not worse".

        Unsettled while `new` has not fallen below half of the rise: both may be worse then.

        Args:
            size: Of the rise; that of the other sessions where it is not given.
            error: Standard error of `size`.
        """
        size, error = self._rise(size, error)
        fewest = FEWEST if size >= SMALL * self.unit else FEWEST_SMALL
        if self.trials < fewest or size <= 0 or self.new_above > size / 2:
            return RiseVerdict.UNSETTLED
        still = -self.difference
        risen_error = math.hypot(self.error, error)
        ratio = _log_t5((still - size) / risen_error) - math.log(risen_error)
        ratio -= _log_t5(still / self.error) - math.log(self.error)
        if abs(ratio) < SURE:
            return RiseVerdict.UNSETTLED
        return RiseVerdict.REAL if ratio > 0 else RiseVerdict.FALSE

    def is_over(self, size: float | None = None, error: float | None = None) -> bool:
        """Return True if at `new` more than half of the rise is gone by three standard errors."""
        size, error = self._rise(size, error)
        gone = -self.difference - size / 2
        return gone >= MORE_GONE_THAN_LEFT * math.hypot(self.error, error / 2)

    def _rise(self, size: float | None, error: float | None) -> tuple[float, float]:
        if size is None or error is None:
            return self.rise, self.rise_error
        return size, error


def contrasts(
    key: MetricKey,
    measurements: Measurements,
    history: MetricHistory,
    asked: Collection[tuple[int, int]] = (),
) -> Iterator[Contrast]:
    """Yield each session's contrasts of its newest commit with the older ones that another
    session had measured before: controls, whoever asked for them.

    Args:
        asked: Place and session of the controls that were run for a rise in doubt. They count
            also when the trials that they showed to be disturbed are left out.
    """
    session, place = measurements.session[measurements.own], measurements.place[measurements.own]
    order = np.lexsort((place, session))
    session, place = session[order], place[order]
    _, begins, which = np.unique(place, return_index=True, return_inverse=True)
    newest = place[np.searchsorted(session, session, side="right") - 1]
    is_asked = np.zeros(len(place), dtype=bool)
    for at, during in asked:
        is_asked |= (place == at) & (session == during)
    again = (place < newest) & (is_asked | (session > session[begins][which]))
    columns = (session[again].tolist(), place[again].tolist(), newest[again].tolist())
    for during, old, new in dict.fromkeys(zip(*columns, strict=True)):
        yield from _contrast(key, measurements, history, during, old, new, (old, during) in asked)


def _contrast(
    key: MetricKey, data: Measurements, history: MetricHistory, session: int, old: int, new: int,
    is_asked: bool,
) -> Iterator[Contrast]:  # fmt: skip
    """Yield what a session tells of two commits that it measured, if it did so in one chain."""
    there = data.own & (data.session == session)
    at_old, at_new = there & (data.place == old), there & (data.place == new)
    chain = int(data.chain[at_old][0])
    if chain != int(data.chain[at_new][0]):
        return
    here, now = float(np.median(data.value[at_old])), float(np.median(data.value[at_new]))
    elsewhere = data.own & (data.place == old) & (data.chain == chain) & (data.session != session)
    previous = [n for n in history.nodes if n.chain == chain and n.last < old]
    counts = int(at_old.sum()), int(at_new.sum())
    sds = history.noise.at(here), history.noise.at(now)
    variance = sum(sd**2 / n for sd, n in zip(sds, counts, strict=True))
    rise, rise_error = _rise(data, history, previous, elsewhere)
    high = [
        int(s)
        for s in np.unique(data.session[elsewhere])
        if np.median(data.value[elsewhere & (data.session == s)]) - here > rise / 2 > 0
    ]
    yield Contrast(
        key,
        chain,
        session,
        old,
        new,
        difference=now - here,
        error=max(math.sqrt(MEDIAN_VARIANCE * variance), 1e-300),
        trials=min(counts),
        rise=rise,
        rise_error=rise_error,
        new_above=now - previous[-1].level if previous else 0.0,
        unit=sds[0],
        high_sessions=tuple(high),
        is_asked=is_asked,
    )


def _rise(
    measurements: Measurements, history: MetricHistory, previous: list[Node], elsewhere: Bools
) -> tuple[float, float]:
    """Return how much worse a commit was in other sessions than the one before, and the error."""
    if not previous or not elsewhere.any():
        return 0.0, 0.0
    noise = history.noise
    sessions = len(np.unique(measurements.session[elsewhere]))
    variance = MEDIAN_VARIANCE / int(elsewhere.sum()) + noise.session**2 / sessions
    level = float(np.median(measurements.value[elsewhere]))
    error = math.hypot(math.sqrt(variance) * noise.at(level), previous[-1].error)
    return level - previous[-1].level, error


def _log_t5(z: float) -> float:
    return -3 * math.log1p(z * z / 5)
