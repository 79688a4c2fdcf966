"""A state is derived of any ledger, however odd its numbers, without a warning of numpy's, and its
rows can be packed, read and printed."""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from views.conftest import LineWithoutRepository

from celedger.base.model import (
    Command,
    Commit,
    Direction,
    Environment,
    Floor,
    Footprint,
    Kind,
    Metric,
    Outcome,
    OutcomeKind,
    Purpose,
    Task,
    Trial,
)
from celedger.judge.derivation import derive
from celedger.judge.incident import State
from celedger.judge.state import state_of
from celedger.judge.two_commits import compare, smallest_change
from celedger.ledger import Ledger, store
from celedger.views.document import document, dumps
from celedger.views.drift import DriftDocument

PLACES = 7
METRICS = (
    Metric("val_loss", "", Direction.LOWER, Kind.QUALITY, Floor(0.01, relative=True)),
    Metric("accuracy", "%", Direction.HIGHER, Kind.QUALITY),
    Metric("speed", "1/s", Direction.HIGHER, Kind.SPEED, Floor(0.05, relative=True)),
    Metric("peak", "B", Direction.LOWER, Kind.MEMORY, Floor(0.0)),
)
ENVIRONMENTS = tuple(Environment(letter * 64, {"python": letter}) for letter in "ab")
TASK = Task("core", "mlp", (Command("train", ("{python}", "train.py")),), metrics=METRICS)


class LineOfNoRepository(LineWithoutRepository):
    def touches(self, place: int, other: int) -> bool:
        return True


def commits() -> tuple[Commit, ...]:
    names = [f"{place:040x}" for place in range(1, PLACES + 1)]
    return tuple(
        Commit(sha, sha[::-1], (names[i - 1],) if i else (), "Ada", i, i, f"number {i}")
        for i, sha in enumerate(names)
    )


LEVELS = st.sampled_from(
    (0.0, -0.0, 1.0, 1.5, 0.25, 1e-300, 5e-324, 1e308, -1e308, 1.7e308, 1e15, -3.0, math.inf,
     -math.inf, math.nan)
)  # fmt: skip
NOISE = st.sampled_from((0.0, 1e-17, 1e-3, 0.1, 10.0))


@dataclass(frozen=True)
class Run:
    """A trial: its commit's place, its environment, its seed, whether it fails or is re-used, and
    what it reports."""

    place: int
    environment: int
    seed: int
    kind: OutcomeKind
    is_reused: bool
    values: tuple[float, ...]


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    """Draw a life: levels that change at some commits, and trials with some noise about them."""
    levels = draw(st.lists(st.tuples(LEVELS, LEVELS), min_size=1, max_size=3))
    noise = draw(NOISE)
    made = []
    for place in range(PLACES):
        low, high = levels[place * len(levels) // PLACES]
        for seed in range(draw(st.integers(0, 4))):
            factor = 1 + noise * draw(st.floats(-1, 1, width=16))
            kind = draw(st.sampled_from((OutcomeKind.OK,) * 5 + (
                OutcomeKind.FAILED, OutcomeKind.TIMEOUT, OutcomeKind.MISSING)))  # fmt: skip
            values = (low * factor, high, high * factor, draw(st.sampled_from((low, 0.0, high))))
            environment = draw(st.sampled_from((0, 0, 0, 1)))
            is_reused = draw(st.booleans()) and place > 0
            made.append(Run(place, environment, seed, kind, is_reused, values))
    return draw(st.permutations(made)) if draw(st.booleans()) else made


def fill(ledger: Ledger, line: Sequence[Commit], made: Sequence[Run]) -> None:
    ledger._connection.execute("PRAGMA synchronous=OFF")
    ledger.record_commits(line)
    ledger.record_task(TASK)
    for environment in ENVIRONMENTS:
        ledger.record_environment(environment)
    for number, run in enumerate(made):
        where = ENVIRONMENTS[run.environment].fingerprint
        trial = Trial(
            f"01K{number:023d}", line[run.place].sha, TASK.recipe, where, run.seed, Purpose.RUN,
            1e9 + 60 * number, "box",
        )  # fmt: skip
        if run.is_reused:
            known = ledger.reusable_trials(recipe=TASK.recipe, environment=where, seed=run.seed)
            if known:
                ledger.reuse_trial(trial, known[-1], [])
                continue
        ledger.start_trial(trial)
        named = {m.name: v for m, v in zip(METRICS, run.values, strict=True)}
        ok = run.kind is OutcomeKind.OK
        ledger.finish_trial(
            trial.ulid, Outcome(run.kind, 1e9 + 60 * number + 9), named if ok else {}
        )
        if ok:
            ledger.record_footprint(trial.ulid, Footprint((b"model.py",)), "0" * 64)
        if number % 3 == 0:
            session = f"session {number // 6}"
            ledger.record_trial_facts(trial.ulid, {"session": session, "place": str(number % 6)})


FAR_APART = [
    Run(place, 0, 0, OutcomeKind.OK, False, (0.0, value, value, 0.0))
    for place, value in ((3, 1.0), (4, 1e-300), (6, 1e-300))
]
SMALLEST = [
    Run(place, 0, seed, OutcomeKind.OK, False, (0.0, value, value, 0.0))
    for place, seed, value in ((2, 0, 5e-324), (2, 1, 5e-324), (5, 0, 1.0))
]


@example(SMALLEST)
@example(FAR_APART)
@given(runs())
def test_a_state_is_derived_without_a_warning(made: list[Run]) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        with Ledger.open(Path(folder) / "ledger.db", create=True) as ledger:
            own = commits()
            fill(ledger, own, made)
            line = LineOfNoRepository(None, own, {}, True)  # type: ignore[arg-type]
            derivation = derive(ledger, line)
            known = state_of(derivation)
            state_of(derivation, own[2].sha)
        again = store.from_json(State, store.to_json(known))
        assert repr(again) == repr(known)
        environments = {e.fingerprint: e for e in ENVIRONMENTS}
        drift = DriftDocument(known, own, {c.sha: c for c in own}, environments)
        assert drift.text(100)
        json.loads(dumps(document(**drift.json())))
        for noise in known.noise:
            metric = next(m for m in METRICS if m.name == noise.metric)
            smallest_change(noise, 2, 3)
            compare(metric, noise, (), (1.0, 2), (0.0, 3))
        for incident in known.incidents:
            assert 0 < incident.probability <= 1
            assert incident.likeliest in incident.first_bad
            assert incident.next() or not incident.is_searchable
