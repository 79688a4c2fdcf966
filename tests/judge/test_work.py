"""Rises of work and changes of bits along a line of signatures; nothing is trained."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from celedger.base.model import Commit, Direction, Floor, Kind, Metric, SignatureRow
from celedger.judge.incident import WORK, Incident, IncidentMetric, State
from celedger.judge.state import with_work
from celedger.judge.work import SignedLine, WorkRise, repeating
from celedger.views.incidents import bits, summary

COMMITS = [Commit(f"{n:040d}", f"tree {n}", (), "Ada", n, n, f"number {n}") for n in range(8)]


def row(
    place: int,
    numerics: str = "a",
    seed: int = 0,
    recipe: str = "r",
    scheme: str = "short",
    probe: str = "p",
    environment: str = "e",
    **work: float,
) -> SignatureRow:
    names = {
        "environment": environment, "probe": probe, "recipe": recipe, "scheme": scheme,
        "seed": seed,
    }  # fmt: skip
    key = json.dumps(names, sort_keys=True)
    commit = COMMITS[place]
    growth = {"lines": work.pop("growth")} if "growth" in work else {}
    return SignatureRow(
        "tiny", "fit", commit.sha, commit.tree, key, numerics, 0.1,
        {"operators": 400.0, "lines": 50.0, "waits": 0.0, **work}, growth,
    )  # fmt: skip


def rises(rows: Sequence[SignatureRow], metrics: Sequence[Metric] = ()) -> list[WorkRise]:
    return SignedLine.of(rows, COMMITS).rises(lambda recipe: metrics)


def test_a_signature_that_differs_from_another_of_its_tree_and_key_is_used_by_nobody() -> None:
    rows = [row(0), row(1), row(1, "b"), row(2, "c")]
    assert [r.commit for r in repeating(rows)] == [COMMITS[0].sha, COMMITS[2].sha]
    signed = list(SignedLine.of(rows, COMMITS).commits())
    assert [(s.commit, s.is_new) for s in signed] == [
        (COMMITS[0].sha, None), (COMMITS[2].sha, True),
    ]  # fmt: skip


def test_commits_are_compared_by_one_key() -> None:
    rows = [row(0, "x", recipe="old"), row(0), row(2), row(3, "b")]
    signed = list(SignedLine.of(rows, COMMITS).commits())
    assert [s.is_new for s in signed] == [None, False, True]


def test_another_scheme_forgets_nothing_that_was_compared_before() -> None:
    rows = [row(0, "x", recipe="old"), row(1, "x", recipe="old"), row(1), row(2)]
    signed = list(SignedLine.of(rows, COMMITS).commits())
    assert [(s.commit, s.is_new) for s in signed] == [
        (COMMITS[0].sha, None), (COMMITS[1].sha, False), (COMMITS[2].sha, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ({"operators": 480.0}, True), ({"operators": 479.0}, False),
        ({"lines": 59.0}, False), ({"lines": 60.0}, True),
        ({"waits": 1.0}, True), ({"operators": 100.0}, False),
    ],
)  # fmt: skip
def test_a_count_that_rises_by_the_limit_is_told(work: dict[str, float], told: bool) -> None:
    found = rises([row(0), row(3, **work)])
    assert [(r.count, r.first, r.last) for r in found] == (
        [(next(iter(work)), 1, 3)] if told else []
    )


def test_a_few_lines_more_of_a_short_step_are_not_told() -> None:
    assert rises([row(0, lines=5.0), row(1, lines=8.0)]) == []


def test_a_rise_is_over_when_the_count_is_back_and_not_before() -> None:
    rows = [row(0), row(1, operators=900.0), row(2, operators=700.0), row(4, operators=410.0)]
    (rise,) = rises(rows)
    assert (rise.before, rise.after, rise.closed) == (400.0, 900.0, 4)
    (rise,) = rises(rows[:3])
    assert rise.closed is None


def test_a_rise_that_made_signatures_shorter_is_over_by_a_short_one() -> None:
    slow = {"operators": 2000.0}
    rows = [row(0), row(1, **slow), row(2, scheme="steps", **slow), row(4, scheme="steps")]
    assert [(r.first, r.last, r.closed) for r in rises(rows)] == [(1, 1, 4)]
    growing = [row(0), row(1, growth=2.0), row(2, scheme="steps")]  # too few steps to see it
    assert [(r.count, r.closed) for r in rises(growing)] == [("growth of lines", None)]


def test_a_rise_is_over_by_another_version_of_the_probes_that_counts_alike() -> None:
    """After an upgrade of celedger a rise stayed open for ever."""
    slow = {"operators": 900.0}
    rows = [row(0), row(1, **slow), row(1, probe="new", **slow), row(3, probe="new")]
    assert [(r.last, r.closed) for r in rises(rows)] == [(1, 3)]
    otherwise = [*rows[:2], row(1, probe="new", operators=300.0), row(3, probe="new")]
    assert [(r.last, r.closed) for r in rises(otherwise)] == [(1, None), (3, None)]


@pytest.mark.parametrize("changed", [{"environment": "upgraded"}, {"recipe": "edited"}])
def test_a_rise_goes_on_where_an_anchor_counts_alike(changed: dict[str, str]) -> None:
    """After an upgrade of einops, an open rise was told as no longer measured."""
    rows = [row(0), row(1, waits=1.0), row(1, waits=1.0, operators=390.0, **changed)]  # type: ignore[arg-type]
    (rise,) = rises(rows)
    assert rise.is_current and rise.closed is None
    (rise,) = rises([*rows, row(3, **changed)])  # type: ignore[arg-type]
    assert (rise.is_current, rise.closed) == (True, 3)
    anchor = row(2, waits=1.0, scheme="steps", **changed)  # type: ignore[arg-type]
    again = row(2, waits=1.0, scheme="steps", probe="new")  # and then another change
    assert rises([*rows, anchor, again, row(4, scheme="steps", probe="new")])[0].closed == 4
    otherwise = [*rows[:2], row(1, **changed)]  # type: ignore[arg-type]
    assert not rises(otherwise)[0].is_current


def test_a_second_rise_on_an_open_one_is_another() -> None:
    found = rises([row(0), row(1, operators=600.0), row(2, operators=900.0), row(3)])
    assert [(r.before, r.after, r.closed) for r in found] == [
        (400.0, 600.0, 3), (600.0, 900.0, 3),
    ]  # fmt: skip


def test_a_count_that_begins_to_grow_with_each_step_is_told() -> None:
    (rise,) = rises([row(0), row(1, growth=1.0), row(2, growth=1.0)])
    assert (rise.count, rise.before, rise.after, rise.last) == ("growth of lines", 0.0, 1.0, 1)


def test_other_seeds_show_one_rise_and_an_older_definition_is_no_longer_current() -> None:
    rows = [row(n, seed=s, operators=400.0 + 400 * (n > 0)) for s in (0, 1) for n in range(2)]
    (rise,) = rises(rows)
    assert rise.is_current
    (rise,) = rises([*rows, row(3, recipe="new")])
    assert not rise.is_current


def test_a_declared_count_has_its_own_floor() -> None:
    metric = Metric("operators", "", Direction.LOWER, Kind.WORK, Floor(0.01, relative=True))
    (rise,) = rises([row(0), row(1, operators=405.0)], [metric])
    assert rise.is_declared and math.isclose(rise.floor, 4.0)
    processor_time = Metric("operators", "", Direction.LOWER, Kind.SPEED, Floor(0.01))
    assert rises([row(0), row(1, operators=405.0)], [processor_time]) == []


def test_a_signature_of_an_equal_tree_has_the_place_of_the_line() -> None:
    moved = SignatureRow(**{
        **{name: getattr(row(2, "b"), name) for name in SignatureRow._fields}, "commit": "f" * 40,
    })  # fmt: skip
    signed = list(SignedLine.of([row(0), moved], COMMITS).commits())
    assert [s.is_new for s in signed] == [None, True]


def incident(key: str, name: str, kind: str, first_bad: str, state: str = "open") -> Incident:
    metric = IncidentMetric("tiny", "fit", name, 1, 2, 1, 1, 1, kind=kind, declared=kind != WORK)
    of = WORK if kind == WORK else "metric"
    return Incident(key, of, state, (metric,), tuple(first_bad), first_bad[-1], 0.9, first_bad[-1])


@pytest.mark.parametrize(
    ("names", "verb"),
    [
        (["step_cpu_time", "peak_rss"], ("profile",)),  # `explain` said: no difference
        (["peak_rss", "step_cpu_time"], ("profile", "--memory")),
        (["val_loss", "step_time"], ("explain",)),
    ],
)
def test_a_diagnosis_is_of_the_first_metric_that_moved(
    names: list[str], verb: tuple[str, ...]
) -> None:
    kinds = {"step_cpu_time": "work", "peak_rss": "memory", "step_time": "speed"}
    parts = [incident("a", name, kinds.get(name, "quality"), "b").metrics[0] for name in names]
    other = parts[-1]._replace(task="other", kind="quality")
    whole = incident("a", "", "quality", "b")._replace(metrics=(*parts, other))
    assert whole.diagnosis("fit") == verb
    assert whole.diagnosis("other") == ("explain",)
    fails = parts[0]._replace(change=math.nan)
    assert whole._replace(kind="crash", metrics=(fails,)).diagnosis("fit") == ("explain",)


@pytest.mark.parametrize(
    ("host", "together"),
    [
        (incident("h", "step_time", "speed", "bcd"), True),  # slower by one of the same commits
        (incident("h", "step_time", "speed", "de"), False),
        (incident("h", "step_time", "speed", "bcd", "recovered"), False),  # the work is not back
        (incident("h", "val_loss", "quality", "bcd"), False),  # one of three: perhaps another
        (incident("h", "val_loss", "quality", "c"), True),
    ],
)
def test_a_rise_of_work_stands_beside_what_shares_its_cause(host: Incident, together: bool) -> None:
    rise = incident("r", "operators", WORK, "c")
    listed = with_work([host, rise])
    assert [i.id for i in listed] == (["h"] if together else ["h", "r"])
    assert listed[0].work == (rise.metrics if together else ())
    assert listed[0].metrics == host.metrics
    answers = State("c", tuple(listed)).find("r")  # the name under which it was told alone
    assert answers is not None and answers.id == ("h" if together else "r")


def test_a_rise_of_work_that_is_over_is_of_what_was_mended_and_of_no_false_alarm() -> None:
    """Counts that a revert undid stood beside a false alarm of two commits before them."""
    rise = incident("r", "operators", WORK, "bc", "recovered")
    false = incident("f", "step_time", "speed", "abc", "withdrawn")
    wide = incident("w", "step_time", "speed", "abc", "recovered")
    mended = incident("m", "step_time", "speed", "c", "recovered")
    assert [(i.id, bool(i.work)) for i in with_work([false, wide, mended, rise])] == [
        ("f", False), ("w", False), ("m", True)
    ]  # fmt: skip
    assert [i.id for i in with_work([false, rise])] == ["f", "r"]


def test_a_rise_of_several_tasks_is_of_the_named_commit_of_one_also_once_it_is_accepted() -> None:
    """Validation on more rows was accepted; what that allocates stood there as worse."""
    rise = incident("r", "allocated", WORK, "c")
    (metric,) = rise.metrics
    rise = rise._replace(metrics=(metric._replace(task="other"), metric))
    for state in ("open", "accepted"):
        host = incident("h", "map", "quality", "c", state)
        assert [i.id for i in with_work([host, rise])] == ["h"]
    wide = incident("h", "map", "quality", "bc", "accepted")
    assert [i.id for i in with_work([wide, rise])] == ["h", "r"]


def test_a_merge_that_raises_what_nobody_declared_is_not_told_as_nothing() -> None:
    rise = incident("r", "operators", WORK, "c")
    assert summary(State("c", (rise,)), {}) == (
        "nothing declared is worse; telemetry: fit operators +100 %"
    )
    assert summary(State("c", (rise, rise)), {}).endswith(" +100 % and 1 more")
    assert summary(State("c"), {}) == "nothing is worse"


def test_bits_that_moved_at_a_commit_nobody_trained_are_told_at_the_next_one() -> None:
    rows = [row(0), row(1, "b"), row(2, "b"), row(3, "b")]
    signed = tuple(SignedLine.of(rows, COMMITS).commits())
    state = State("", signed=signed, trials_at={COMMITS[i].sha: 1 for i in (0, 2, 3)})
    told = [bits(state, COMMITS[i].sha, "tiny", "fit") for i in range(4)]
    new = COMMITS[1].sha[:8]
    assert told == [["bits: signed"], ["bits: new"], [f"bits: new at {new}"], ["bits: ="]]
    assert bits(state, "f" * 40, "tiny", "fit") == []


def test_a_rise_of_work_is_over_at_a_revert_that_nobody_signs_anew() -> None:
    commits = [*COMMITS[:3], COMMITS[3]._replace(tree=COMMITS[1].tree)]
    line = SignedLine.of([row(1), row(2, "b", operators=900.0)], commits)
    (rise,) = line.rises(lambda recipe: ())
    assert (rise.first, rise.last, rise.closed) == (2, 2, 3)
    assert [(s.commit, s.is_new) for s in line.commits()] == [
        (commits[1].sha, None), (commits[2].sha, True), (commits[3].sha, True),
    ]  # fmt: skip
