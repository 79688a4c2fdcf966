"""The names of incidents are their own."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from celedger.base.model import IncidentState
from celedger.judge.incident import IncidentMetric
from celedger.judge.state import _first_of, _named, _Part


def test_what_parts_from_an_incident_gets_another_name() -> None:
    """Of two metrics that moved between the same commits, a bisect named the commit of one: both
    parts began at the same commit, and were recorded as one incident, which no command found."""
    sha = "a" * 40
    derivation: Any = SimpleNamespace(
        among=lambda *_: (sha,), sha=lambda _: sha, bisects=(), sets=(), acts=(),
        line=SimpleNamespace(parent=lambda _: ""), is_measured=lambda *_: True,
    )  # fmt: skip
    row = IncidentMetric("s", "t", "m", 1.0, 2.0, 1.0, 0.9, 1.1, "", "quality", "open", True)
    part = _Part(0, 0, 0, 1.0, IncidentState.OPEN, "metric", (row,))
    first = _named(derivation, part, set())
    second = _named(derivation, part, {first.id})
    assert first.id != second.id
    assert _named(derivation, part, {first.id}).id == second.id
    assert _named(derivation, replace(part, id=first.id), {first.id}).id == first.id


def test_an_incident_shows_first_within_its_set() -> None:
    """A busy machine made the time seem to rise at 5; a bisect named 8 for all metrics."""
    assert _first_of([5, 8], 8, 8) == 8
    assert _first_of([5, 9], 6, 10) == 9
    assert _first_of([5], 6, 10) == 10
