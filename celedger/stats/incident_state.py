"""The states of an incident, and when noise is known. Here, apart from arrays, for the verbs that
only read."""

from __future__ import annotations

from enum import StrEnum

FEWEST_REPEATS = 4
"""Degrees of freedom of repeats below which nothing opens: log sd is known to .35, the prior's
weight is 5 %. Without it one seed a commit gave 5 false incidents in 12,480 commits, with it 0."""


class IncidentState(StrEnum):
    OPEN = "open"
    PARTLY = "partly"
    RECOVERED = "recovered"
    ACCEPTED = "accepted"
    WITHDRAWN = "withdrawn"
