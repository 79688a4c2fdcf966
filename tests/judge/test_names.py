"""The names of incidents are their own."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from celedger.base.model import BisectRecord, Direction, IncidentState, Kind, Metric
from celedger.judge.failures import Failure
from celedger.judge.incident import IncidentMetric
from celedger.judge.standings import _of_another_kind
from celedger.judge.state import _first_of, _joined, _named, _Part
from celedger.stats.course import Acts
from tests.stats.made_steps import history, step


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


def test_a_leak_is_not_joined_to_a_named_crash_that_did_not_make_it() -> None:
    """The leak of a branch was told as that of the next one, which crashed another task."""
    row = IncidentMetric("s", "t", "m", 1.0, 2.0, 1.0, 0.9, 1.1, "", "memory", "open", True)
    leak = _Part(1, 6, 6, 1 / 6, IncidentState.OPEN, "metric", (row,), "aaaaaaaa")
    own = row._replace(task="u", name="", change=math.nan)
    failure = Failure(("s", "u", ""), "crash", 6, 6, None)
    crash = _Part(6, 6, 6, 0.99, IncidentState.OPEN, "crash", (own,), "aaaaaaaa", 6, 5)
    crash = replace(crash, failures=(failure,))
    age = {"aaaaaaaa": (0.0, "aaaaaaaa")}
    (joined,) = _joined([leak], crash, age, [], Acts(), ())
    assert {m.task for m in joined.metrics} == {"t", "u"}
    bisect = BisectRecord("1", "s", "u", "", "a", "b", ("c",), 0.99, "found", 0.0, {
        "agreements": [{"task": "t", "metric": "m", "probability": 0.33}],
    })  # fmt: skip
    acts = Acts(apart={("s", task): {6} for task in bisect.disagreeing()})
    parted = _joined([leak], crash, age, [], acts, ())
    assert [(p.first, p.last, p.id) for p in parted] == [(1, 6, ""), (6, 6, "aaaaaaaa")]


def test_an_incident_shows_first_within_its_set() -> None:
    """A busy machine made the time seem to rise at 5; a bisect named 8 for all metrics."""
    assert _first_of([5, 8], 8, 8) == 8
    assert _first_of([5, 9], 6, 10) == 9
    assert _first_of([5], 6, 10) == 10


@pytest.mark.parametrize(
    ("kind", "named_at", "ends"),
    [(Kind.QUALITY, 7, ("6", "10")), (Kind.MEMORY, 7, ()), (Kind.QUALITY, 10, ())],
)
def test_what_another_metric_named_is_searched_by_a_metric_of_another_kind(
    kind: Kind, named_at: int, ends: tuple[str, ...]
) -> None:
    """A search of the loss named a commit, and a leak of three commits later was said to be of it:
    no trial lay between, and nothing proposed one."""
    key = "core", "mlp", "memory_growth"
    derivation: Any = SimpleNamespace(
        histories={key: history(step(7, 10, size=9))}, place=int, sha=str
    )
    incident: Any = SimpleNamespace(
        is_named=True, likeliest=str(named_at), main=SimpleNamespace(kind=kind.value)
    )
    metric = Metric("memory_growth", "B", Direction.LOWER, Kind.MEMORY)
    assert _of_another_kind(derivation, key, metric, [incident]) == ends
