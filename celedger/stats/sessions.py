"""Contrasts within a session, in which what its trials share cancels.

A session's effect cancels between two commits that it measured side by side: the contrast tells how
much of an incident is left, and that a doubted rise ran again. Pure; knows nothing of incidents.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from celedger.stats.course import Measurements, MetricHistory, MetricKey

MEDIAN_VARIANCE = 1.25
"""Variance of a robust mean of few trials, in units of the plain mean's."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two commits of one chain in one session.

    Attributes:
        old, new: Places; `old` is the older one.
        difference: Median at `new` - median at `old`; `error` its standard error.
    """

    key: MetricKey
    chain: int
    old: int
    new: int
    difference: float
    error: float


def contrasts(
    key: MetricKey, measurements: Measurements, history: MetricHistory
) -> Iterator[Contrast]:
    """Yield each session's contrasts of its newest commit with the older ones that another
    session had measured before, whoever asked for them."""
    session, place = measurements.session[measurements.own], measurements.place[measurements.own]
    order = np.lexsort((place, session))
    session, place = session[order], place[order]
    _, begins, which = np.unique(place, return_index=True, return_inverse=True)
    newest = place[np.searchsorted(session, session, side="right") - 1]
    again = (place < newest) & (session > session[begins][which])
    columns = (session[again].tolist(), place[again].tolist(), newest[again].tolist())
    for during, old, new in dict.fromkeys(zip(*columns, strict=True)):
        yield from _contrast(key, measurements, history, during, old, new)


def _contrast(
    key: MetricKey, data: Measurements, history: MetricHistory, session: int, old: int, new: int
) -> Iterator[Contrast]:
    """Yield what a session tells of two commits that it measured, if it did so in one chain."""
    there = data.own & (data.session == session)
    at_old, at_new = there & (data.place == old), there & (data.place == new)
    chain = int(data.chain[at_old][0])
    if chain != int(data.chain[at_new][0]):
        return
    here, now = float(np.median(data.value[at_old])), float(np.median(data.value[at_new]))
    parts = (here, at_old), (now, at_new)
    noise, level = history.noise, max(abs(here), abs(now))
    variance = sum(noise.at(value) ** 2 / int(rows.sum()) for value, rows in parts)
    share = noise.session * noise.at(level) / level if data.grows and level else 0.0
    error = math.sqrt(MEDIAN_VARIANCE * variance + (share * (now - here)) ** 2)
    yield Contrast(key, chain, old, new, now - here, max(error, 1e-300))
