"""The states of an incident. Here, apart from arrays, for the verbs that only read."""

from __future__ import annotations

from enum import StrEnum


class IncidentState(StrEnum):
    OPEN = "open"
    PARTLY = "partly"
    RECOVERED = "recovered"
    ACCEPTED = "accepted"
    WITHDRAWN = "withdrawn"
