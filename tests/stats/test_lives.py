"""benchmarks/lives.py: its lives are what they say, and its scores tell right from wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] == "lives"]:
        del sys.modules[name]


class Oracle:
    """Lists what is true, and runs HEAD alone. `says` changes the state that it lists."""

    def __init__(self, says: dict[str, str] | None = None) -> None:
        self._says = says or {}

    def start(self, life: Any) -> None:
        self._life, self._accepted = life, set()

    def accept(self, commit: int, incident: str) -> None:
        self._accepted.add(commit)

    def job(self, session: Any) -> list[Any]:
        from lives.judges import Row

        for commit in session.job.commits or (session.job.head,):
            session.run(commit, self._life.seeds)
        rows = []
        for number, r in enumerate(self._life.regressions):
            head = session.job.head
            if head < (r.last if r.commits > 1 else r.commit):
                continue
            left = r.left(head)
            state = "open" if left == 1 else "partly" if left else "recovered"
            state = "accepted" if r.commit in self._accepted else state
            sd, size = self._life.noise.sd, r.sizes
            sizes = {
                m: (x, x - s, x + s) for m, (x, s) in enumerate(zip(size * sd, sd, strict=True))
            }
            state = self._says.get(state, state)
            kind = "drift" if r.commits > 1 else "metric"
            rows.append(Row(str(number), kind, state, r.commit, r.last, sizes))
        return rows


def score(judge: Any, lives: int = 12, kind: str = "seed") -> Any:
    from lives import events
    from lives.score import play, total

    return total(play(events.life(n, kind), judge)[0] for n in range(lives))


def test_a_judge_who_knows_the_truth_has_full_marks() -> None:
    cells = score(Oracle()).cells
    for name in (
        "found 1.5-2.5", "found 2.5-4", "found 4-6", "found 6-10", "found on top", "sets hold",
        "intervals hold", "open list right", "mends told alone", "mends told in a stack",
        "drift told as one",
    ):  # fmt: skip
        assert cells[name].share == 1 and cells[name].cases, name
    for name in (
        "false incidents", "false drifts", "good, nothing mended", "wrong one good",
        "true ones withdrawn", "steps told as drift", "extra trials",
    ):  # fmt: skip
        assert cells[name].share == 0, name


def test_good_again_without_a_mend_is_counted() -> None:
    cells = score(Oracle({"open": "recovered"})).cells
    assert cells["good, nothing mended"].hits + cells["wrong one good"].hits > 10
    assert cells["open list right"].share < 0.2


def test_a_withdrawn_truth_is_counted() -> None:
    assert score(Oracle({"partly": "withdrawn", "recovered": "withdrawn"})).cells[
        "true ones withdrawn"
    ].hits  # fmt: skip


def test_equal_numbers_are_equal_lives() -> None:
    from lives import events

    one, same, other = (events.life(n, "exact") for n in (3, 3, 4))
    assert (one.jobs, one.names) == (same.jobs, same.names)
    assert np.array_equal(one.touches, same.touches)
    assert [r.commit for r in one.regressions] == [r.commit for r in same.regressions]
    assert (one.commits, one.jobs) != (other.commits, other.jobs)


def test_exact_seeds_repeat_where_no_commit_draws_anew() -> None:
    from lives import events
    from lives.life import Session

    life = events.life(0, "exact")
    session = Session(life, 0, {})
    values = [float(session.run_seed(commit, 0).values[0]) for commit in range(10)]
    assert 1 < len(set(values)) < 10
    assert float(session.run_seed(4, 0).values[0]) == values[4]


def test_a_session_is_shared_by_its_trials() -> None:
    from lives.life import Session
    from lives.noise import Noise
    from lives.scenes import _line

    life = _line(0, "session", 10, session=50.0)
    assert isinstance(life.noise, Noise)
    means = []
    for number in range(10):
        session = Session(life, number, {})
        values = [float(t.values[0]) for t in session.run(0, 20)]
        assert np.std(values) < 2 * life.noise.sd[0]
        means.append(np.mean(values))
    assert np.std(means) > 10 * life.noise.sd[0]


def test_what_is_missed_by_chance_is_not_missed() -> None:
    from lives.report import misses
    from lives.score import Cell

    few, many = Cell(), Cell()
    few.add(4, 5)
    many.add(400, 500)
    assert not misses(few, 87, 100, at_least=True)
    assert misses(many, 87, 100, at_least=True)
    assert not misses(Cell(), 87, 100, at_least=True)


def quiet(number: int, kind: str, **more: Any) -> Any:
    from lives.scenes import _line

    return _line(number, kind, 16, **more)


def upgraded(number: int) -> Any:
    """A regression comes in the same job as another environment."""
    from lives.scenes import _line, _rise

    step = _rise(16, 8, beside_environment=True)
    return _line(number, "seed", 26, (step,), environments=(16,))


def late(number: int) -> Any:
    """A regression, measured by one trial a commit, shortly before the end."""
    from lives.scenes import _line, _rise

    return _line(number, "seed", 33, (_rise(30, 5),), seeds=1)


def half_mended(number: int) -> Any:
    from lives.life import Regression
    from lives.scenes import _line

    step = Regression(12, np.array([6.0]), mends=((18, 0.5),))
    return _line(number, "seed", 24, (step,))


LIVES: dict[str, tuple[Any, str, float]] = {
    "repeats": (lambda n: quiet(n, "seed", sd=0.1), "false incidents", 0),
    "anchors": (upgraded, "found with environment", 1),
    "sessions": (lambda n: quiet(n, "session", session=6.0), "false incidents", 0),
    "reruns": (late, "found 4-6", 1),
    "recovered": (half_mended, "wrong one good", 0),
}


@pytest.mark.matrix
@pytest.mark.parametrize("part", LIVES)
def test_each_part_of_the_model_is_needed(part: str) -> None:
    from lives.pure import PureJudge
    from lives.score import play, total

    make, cell, right = LIVES[part]
    whole, less = (
        total(play(make(n), PureJudge(without))[0] for n in range(2)).cells[cell].share
        for without in ((), (part,))
    )
    assert whole == right != less
