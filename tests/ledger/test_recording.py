"""What is recorded comes back as it was said, once, and is never changed."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from old_verdicts import record_verdict

from celedger.base.errors import LedgerError
from celedger.base.model import (
    BaselineAct,
    BaselineRecord,
    BisectRecord,
    Commit,
    Direction,
    EpochReport,
    FindingRecord,
    Footprint,
    Mark,
    Metric,
    Outcome,
    OutcomeKind,
    StepValues,
)
from celedger.base.text import escaped, without_sequences
from celedger.ledger import Ledger

Facts = Any  # tests/ledger/conftest.py, which no test can import

NAMES = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_./-]{0,63}\Z")
VALUES = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(10**400), 10**400)
REPORTS = st.builds(
    EpochReport,
    epoch=st.integers(0, 5) | st.integers(0, 2**63 - 1),
    values=st.dictionaries(NAMES, VALUES, max_size=5),
    fingerprint=st.none() | st.text("0123456789abcdef", min_size=1, max_size=64),
    steps=st.just({}),  # of a tuple hypothesis draws what has a default, too
)


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value > 0 or -1)


@settings(suppress_health_check=list(HealthCheck))
@given(reports=st.lists(REPORTS, max_size=8), one_by_one=st.booleans())
@pytest.mark.matrix
def test_the_first_value_of_each_epoch_comes_back_and_others_are_named(
    ledger: Ledger, facts: Facts, reports: list[EpochReport], one_by_one: bool
) -> None:
    first: dict[tuple[int, str], float] = {}
    fingerprints: dict[int, str] = {}
    told_otherwise: set[str] = set()
    for report in reports:
        for name, value in report.values.items():
            if not same(first.setdefault((report.epoch, name), as_float(value)), as_float(value)):
                told_otherwise.add(name)
        if report.fingerprint is not None and report.fingerprint != fingerprints.setdefault(
            report.epoch, report.fingerprint
        ):
            told_otherwise.add("fingerprint")

    ulid = facts.trial(ledger).ulid
    if one_by_one:
        named = set()
        for report in reports:
            named |= set(ledger.append(ulid, report.epoch, report.values, report.fingerprint))
    else:
        named = set(ledger.append_epochs(ulid, reports))
    assert named == told_otherwise
    # Said again, by a journal that is taken in twice, it changes nothing.
    assert set(ledger.append_epochs(ulid, reports)) == told_otherwise

    series = ledger.series(ulid)
    assert {(e, n) for n, points in series.items() for e, _ in points} == set(first)
    for name, points in series.items():
        assert points == sorted(points, key=lambda point: point[0])
        assert all(same(value, first[epoch, name]) for epoch, value in points)
        assert [e for e, _ in ledger.series(ulid, name)[name]] == [e for e, _ in points]
    assert ledger.fingerprints(ulid) == fingerprints


@settings(suppress_health_check=list(HealthCheck))
@given(subject=st.text(st.characters(exclude_categories=[])), author=st.text())
def test_any_text_is_taken_and_comes_back_with_control_characters_written_out(
    ledger: Ledger, facts: Facts, subject: str, author: str
) -> None:
    commit = facts.commit(facts.number(), subject=subject)._replace(author=author)
    ledger.record_commits([commit])
    found = ledger.commit(commit.sha)
    assert found is not None
    found.subject.encode()  # raises where a surrogate is left
    if not any("\ud800" <= c <= "\udfff" for c in subject):
        shown = {
            name: escaped(without_sequences(text))
            for name, text in (("subject", subject), ("author", author))
        }
        assert found == commit._replace(**shown)


def test_bytes_of_a_subject_that_are_no_utf8_show_as_replacement_characters(
    ledger: Ledger, facts: Facts
) -> None:
    subject = b"caf\xe9 au lait \xc3\xa9".decode("utf-8", "surrogateescape")
    ledger.record_commits([facts.commit(1, subject=subject)])
    assert ledger.commits()[0].subject == "caf\ufffd au lait é"


def test_recording_twice_is_recording_once(ledger: Ledger, facts: Facts) -> None:
    commit, task, environment = facts.commit(1), facts.task(), facts.environment()
    trial = facts.trial(ledger, commit, task, environment)
    before = ledger._connection.total_changes
    ledger.record_commits([commit, commit])
    ledger.record_task(task)
    ledger.record_environment(environment)
    ledger.start_trial(trial)
    assert ledger._connection.total_changes == before
    assert ledger.commits() == [commit]
    assert [t.recipe for t in ledger.tasks()] == [task.recipe]
    assert [*ledger.environments().values()] == [environment]
    assert [r.trial for r in ledger.trials()] == [trial]


def test_a_trial_ends_once(ledger: Ledger, facts: Facts) -> None:
    trial = facts.trial(ledger)
    ledger.append(trial.ulid, 0, {"loss": 1.0})
    ledger.append(trial.ulid, 7, {"loss": 0.5})
    outcome = Outcome(
        OutcomeKind.FAILED, 12.5, "exit status 1", 1, ".celedger/logs/x.log",
        (Mark.RUBBISH, Mark.DISTURBED),
    )  # fmt: skip
    assert ledger.finish_trial(trial.ulid, outcome, {"loss": 0.5, "other": math.nan})
    assert not ledger.finish_trial(trial.ulid, Outcome(OutcomeKind.OK, 99.0), {"loss": 9.0})
    (record,) = ledger.trials()
    assert record.outcome == outcome
    assert record.epochs == 2
    assert record.summaries["loss"] == 0.5
    assert math.isnan(record.summaries["other"])


def test_what_a_trial_refers_to_must_be_there(ledger: Ledger, facts: Facts) -> None:
    trial = facts.trial(ledger)
    for odd in ({"commit": "f" * 40}, {"recipe": "none"}, {"environment": "none"}):
        with pytest.raises(LedgerError, match="record it first"):
            ledger.start_trial(trial._replace(ulid="another", **odd))
    with pytest.raises(LedgerError, match="record it first"):
        ledger.append("no such trial", 0, {"loss": 1.0})
    with pytest.raises(LedgerError, match="not an epoch"):
        ledger.append(trial.ulid, 2**63, {"loss": 1.0})
    with pytest.raises(LedgerError, match="not an epoch"):
        ledger.append(trial.ulid, -1, {"loss": 1.0})
    assert ledger.series(trial.ulid) == {}


def test_the_latest_definition_of_a_metric_counts_even_when_it_returns_to_an_older_one(
    ledger: Ledger, facts: Facts
) -> None:
    last, best = Metric("loss", summary="last"), Metric("loss", "nats", Direction.LOWER,
                                                        summary="best")  # fmt: skip
    task = facts.task("mlp", last)
    for metric in (last, best, last, last):
        ledger.record_task(facts.task("mlp", metric))
        assert ledger.metrics(task.recipe) == [metric]
    assert ledger._rows("SELECT count(*) FROM definitions") == [(3,)]


def test_a_metric_that_its_suite_drops_is_judged_no_more(ledger: Ledger, facts: Facts) -> None:
    loss, seconds = (Metric(n, direction=Direction.LOWER) for n in ("loss", "seconds"))
    task = facts.task("mlp", loss, seconds)
    ledger.record_task(task, is_whole=True)
    ledger.record_task(facts.task("mlp", loss))  # as of a file that was imported: not all
    assert {m.name for m in ledger.metrics(task.recipe) if m.direction.sign} == {"loss", "seconds"}
    for _ in range(2):
        ledger.record_task(facts.task("mlp", loss), is_whole=True)
        assert ledger.metrics(task.recipe) == [loss, Metric("seconds")]
    assert ledger._rows("SELECT count(*) FROM definitions") == [(3,)]
    ledger.record_task(task, is_whole=True)
    assert ledger.metrics(task.recipe) == [loss, seconds]


def test_a_summary_remembers_the_rule_that_made_it(ledger: Ledger, facts: Facts) -> None:
    for rule in ("last", "best"):
        facts.finished(ledger, 1.0, task=facts.task("mlp", Metric("loss", summary=rule)))
    assert [row.summary for row in ledger.summaries("mlp", "loss")] == ["last", "best"]


def test_a_metric_nobody_declared_is_shown_but_not_judged(ledger: Ledger, facts: Facts) -> None:
    trial = facts.trial(ledger)
    ledger.append(trial.ulid, 0, {"surprise": 1.0})
    assert Metric("surprise") in ledger.metrics()
    assert Metric("surprise").direction is Direction.INFO


def test_what_fails_within_a_transaction_leaves_nothing_behind(
    ledger: Ledger, facts: Facts
) -> None:
    trial = facts.trial(ledger)
    with pytest.raises(RuntimeError), ledger.transaction():
        ledger.append(trial.ulid, 0, {"new name": 1.0})
        raise RuntimeError
    assert ledger.series(trial.ulid) == {}
    # The id of the name went with it, and must not be used from a cache.
    with ledger.transaction():
        ledger.append(trial.ulid, 1, {"other": 2.0})
        ledger.append(trial.ulid, 2, {"new name": 3.0})
    assert ledger.series(trial.ulid) == {"other": [(1, 2.0)], "new name": [(2, 3.0)]}


def test_a_bisect_comes_back_as_it_was_recorded(ledger: Ledger) -> None:
    bisect = BisectRecord(
        "01", "core", "mlp", "loss", "a" * 40, "b" * 40, ("c" * 40, "d" * 40), 0.97, "found", 5.0,
        {"effect": [0.1, 0.3], "spent": {"trials": 12}},
    )  # fmt: skip
    ledger.record_bisect(bisect)
    ledger.record_bisect(bisect)
    assert ledger.bisects() == [bisect]


def test_what_is_known_of_a_trial_comes_back_by_task_and_its_first_value_stays(
    ledger: Ledger, facts: Facts
) -> None:
    first, second = facts.trial(ledger), facts.trial(ledger)
    other = facts.trial(ledger, task=facts.task("cnn"))
    for trial, place in ((first, "0"), (second, "1"), (other, "0")):
        ledger.record_trial_facts(trial.ulid, {"session": "s1", "place": place})
    ledger.record_trial_facts(first.ulid, {"session": "s2", "role": "anchor"})
    assert ledger.trial_facts(task="mlp") == {
        first.ulid: {"session": "s1", "place": "0", "role": "anchor"},
        second.ulid: {"session": "s1", "place": "1"},
    }
    assert ledger.damage() == []


def test_what_was_said_comes_back_in_its_order(ledger: Ledger, facts: Facts) -> None:
    rows = [facts.said(ulid, facts.commit(1)) for ulid in (f"{2:026}", f"{1:026}")]
    ledger.record_said(rows)
    ledger.record_said(rows)
    assert ledger.said() == rows
    assert ledger.damage() == []


def test_no_row_is_ever_changed_or_deleted_but_in_the_queue(ledger: Ledger, facts: Facts) -> None:
    commit, parent = facts.commit(2, facts.commit(1)), facts.commit(1)
    ledger.record_commits([commit, parent])
    trial = facts.trial(ledger, commit=commit)
    ledger.append(trial.ulid, 1, {"loss": 1.0}, "f1")
    ledger.append_epochs(trial.ulid, [EpochReport(1, {}, steps={"loss": StepValues(0, (1.0,))})])
    assert ledger.finish_trial(trial.ulid, Outcome(OutcomeKind.OK, 1.0), {"loss": 1.0})
    record_verdict(ledger, commit)
    footprint = Footprint((b"", b"model.py"), (b"docs",), ("*.c",))
    ledger.record_footprint(trial.ulid, footprint, "around")
    (evidence,) = ledger.reusable_trials(recipe=trial.recipe, environment=trial.environment)
    assert (evidence.tree, evidence.surroundings) == (commit.tree, "around")
    assert ledger.footprint(evidence.footprint) == footprint
    ledger.reuse_trial(trial._replace(ulid="01DERIVED", commit=parent.sha), evidence, [])
    ledger.record_bisect(BisectRecord("1", "c", "t", "m", "a", "b", (), 0.5, "found", 1.0))
    ledger.record_baseline(
        BaselineRecord("1", BaselineAct.PIN, commit.sha, "core", "", "", "Ada", "release", 1.0)
    )
    ledger.record_finding(
        FindingRecord("1", "watch", "c", "t", commit.sha, parent.sha, "watch t", 1.0, "quiet", {})
    )
    ledger.record_trial_facts(trial.ulid, {"session": "s1"})
    ledger.record_said([facts.said("1", commit)])
    tables = [
        name
        for (name,) in ledger._rows("SELECT name FROM sqlite_schema WHERE type = 'table'")
        if not name.startswith(("sqlite_", "_sqlite_")) and name != "jobs"
    ]
    assert len(tables) == 23
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as person:
        for table in tables:
            (before,) = person.execute(f"SELECT count(*) FROM {table}").fetchone()
            assert before
            (column,) = person.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchone()
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                person.execute(f"UPDATE {table} SET {column} = {column}")
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                person.execute(f"DELETE FROM {table}")
            with pytest.raises(LedgerError, match="append-only"), ledger.transaction() as writer:
                writer.execute(f"REPLACE INTO {table} SELECT * FROM {table}")
            assert person.execute(f"SELECT count(*) FROM {table}").fetchone() == (before,)


def test_2000_commits_are_recorded_and_come_back_with_their_parents(
    ledger: Ledger, facts: Facts
) -> None:
    random = Random(3)
    commits: list[Commit] = []
    for number in range(2000):
        parents = random.sample(commits, min(len(commits), random.choice((1, 1, 1, 2, 3))))
        commits.append(facts.commit(number, *parents))
    ledger.record_commits(commits)
    assert ledger.commits() == commits
