"""The union of two ledgers: complete, idempotent, and the newest definition counts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celedger.base.errors import LedgerDamaged
from celedger.base.model import Floor, OutcomeKind
from celedger.ledger import Ledger
from celedger.ledger import checksums as rows
from celedger.ledger.archive import Archive, restore


@pytest.fixture
def other(tmp_path: Path, facts: Any) -> Path:
    """A ledger with a row in every table, and a trial that runs."""
    (tmp_path / "theirs").mkdir()
    path = tmp_path / "theirs" / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        facts.fill(ledger)
        facts.trial(ledger, commit=facts.commit(99))
    return path


def merged(path: Path, other: Path, **options: Any) -> dict[str, int]:
    with Ledger.open(path, create=True) as ledger, Ledger.open(other, readonly=True) as source:
        return ledger.merge(source, **options)


def test_everything_comes_and_nothing_comes_twice(tmp_path: Path, other: Path, facts: Any) -> None:
    path = tmp_path / "ledger.db"
    would = merged(path, other, dry_run=True)
    with Ledger.open(path) as ledger:
        assert ledger.trials() == []
    assert merged(path, other) == would
    counted = ("trials", "unfinished_trials", "bisects", "baselines", "findings")
    assert [would[n] for n in counted] == [10, 1, 1, 1, 1]
    assert set(merged(path, other).values()) == {0}
    with Ledger.open(path) as ledger, Ledger.open(other, readonly=True) as source:
        ended = {r.trial.ulid for r in source.trials() if r.outcome}
        assert {r.trial.ulid for r in ledger.trials() if r.outcome} == ended
        assert ledger.damage() == []
        ulid = min(ended)
        assert repr(ledger.series(ulid)) == repr(source.series(ulid))
        assert ledger.steps(ulid) == source.steps(ulid)
        assert ledger.findings() == source.findings()
        assert ledger.trial_facts() == source.trial_facts() != {}
        assert ledger.said() == source.said() != []


def test_what_came_is_in_the_archive(tmp_path: Path, other: Path) -> None:
    path, archive = (
        tmp_path / "ledger.db",
        Archive(tmp_path / "git", tmp_path, tmp_path / "ledger.db"),
    )
    (tmp_path / "git").mkdir()
    with (
        Ledger.open(path, create=True, archive=archive) as ledger,
        Ledger.open(other, readonly=True) as source,
    ):
        ledger.merge(source)
    path.unlink()
    assert restore(path, archive).trials == 11


def test_what_a_node_measured_after_it_was_cut_off_comes_as_a_second_trial(
    tmp_path: Path, facts: Any
) -> None:
    path, node = tmp_path / "ledger.db", tmp_path / "node.db"
    with Ledger.open(path, create=True) as ledger:
        trial = facts.trial(ledger)
        ledger.append(trial.ulid, 0, {"loss": 0.5})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", (str(node),))
    with Ledger.open(path) as ledger:
        ledger.finish_trial(trial.ulid, facts.outcome(OutcomeKind.INTERRUPTED), {"loss": 0.5})
    with Ledger.open(node) as ledger:
        ledger.append(trial.ulid, 1, {"loss": 0.25})
        ledger.finish_trial(trial.ulid, facts.outcome(), {"loss": 0.25})
    for _ in range(2):
        merged(path, node)
        with Ledger.open(path) as ledger:
            first, second = ledger.trials()
            assert [first.trial.ulid, first.epochs] == [trial.ulid, 1]
            assert (second.ok, second.epochs, second.summaries) == (True, 2, {"loss": 0.25})
            assert ledger.damage() == []


def test_a_dead_nodes_ledger_brings_the_epochs_of_the_trial_that_died_with_it(
    tmp_path: Path, facts: Any
) -> None:
    """Without a file of the node but its ledger: no journal, no archive."""
    path, node = tmp_path / "ledger.db", tmp_path / "node.db"
    with Ledger.open(node, create=True) as there:
        trial = facts.trial(there)
        for epoch in range(18):
            there.append(trial.ulid, epoch, {"loss": 1 / (epoch + 1)}, f"f{epoch}")
        there.record_trial_facts(trial.ulid, {"session": "s1"})
        expected = there.series(trial.ulid)
    assert merged(path, node)["unfinished_trials"] == 1
    with Ledger.open(path) as ledger:
        assert ledger.series(trial.ulid) == expected
        assert len(ledger.fingerprints(trial.ulid)) == 18
        assert ledger.trial_facts() == {trial.ulid: {"session": "s1"}}
    with Ledger.open(node) as there:  # it was not dead after all
        there.append(trial.ulid, 18, {"loss": 0.0})
        there.finish_trial(trial.ulid, facts.outcome(), {"loss": 0.0})
    assert merged(path, node)["trials"] == 1
    with Ledger.open(path) as ledger:
        (record,) = ledger.trials()
        assert (record.ok, record.epochs, ledger.damage()) == (True, 19, [])


def test_a_dead_nodes_ledger_brings_the_epochs_that_came_after_it_was_cut_off(
    tmp_path: Path, facts: Any
) -> None:
    path, node = tmp_path / "ledger.db", tmp_path / "node.db"
    with Ledger.open(node, create=True) as there:
        trial = facts.trial(there)
        for epoch in range(18):
            there.append(trial.ulid, epoch, {"loss": 1 / (epoch + 1)})
        expected = there.series(trial.ulid)
    with Ledger.open(path, create=True) as ledger:
        facts.clock -= 1
        here = facts.trial(ledger)._replace(ulid=trial.ulid)
        ledger.start_trial(here)
        for epoch in range(17):
            ledger.append(trial.ulid, epoch, {"loss": 1 / (epoch + 1)})
        ledger.finish_trial(trial.ulid, facts.outcome(OutcomeKind.INTERRUPTED), {})
    for _ in range(2):
        merged(path, node)
        with Ledger.open(path) as ledger:
            (second,) = [r for r in ledger.trials(open_only=True) if r.epochs == 18]
            assert ledger.series(second.trial.ulid) == expected
            assert ledger.damage() == []


def test_a_trial_that_ran_in_one_ledger_gets_its_end_from_the_other(
    tmp_path: Path, facts: Any
) -> None:
    path, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
    with Ledger.open(path, create=True) as ledger:
        trial = facts.trial(ledger)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    with Ledger.open(copy) as ledger:
        ledger.append(trial.ulid, 0, {"loss": 0.5})
        ledger.finish_trial(trial.ulid, facts.outcome(), {"loss": 0.5})
    assert merged(path, copy)["trials"] == 1
    with Ledger.open(path, readonly=True) as ledger:
        (record,) = ledger.trials()
        assert (record.ok, record.summaries) == (True, {"loss": 0.5})


@pytest.mark.parametrize("theirs_is_newer", [False, True])
def test_the_newest_definition_counts_whichever_ledger_had_it(
    tmp_path: Path, facts: Any, theirs_is_newer: bool
) -> None:
    paths = [tmp_path / name for name in ("old.db", "new.db")]
    for day, path in enumerate(paths, 1):
        (loss,) = facts.task().metrics
        task = facts.task("mlp", loss._replace(floor=Floor(float(day), relative=False)))
        with Ledger.open(path, create=True) as ledger:
            ledger.record_task(task)
        with closing(sqlite3.connect(path)) as connection:  # as if it were another day
            connection.execute("DROP TRIGGER definitions_never_changed")
            connection.execute(f"UPDATE definitions SET recorded = '2026-01-0{day}T00:00:00Z'")
            rows.seal(connection, "definitions", 1)
            connection.commit()
    own, other = paths if theirs_is_newer else paths[::-1]
    for _ in range(2):
        merged(own, other)
        with Ledger.open(own, readonly=True) as ledger:
            assert [m.floor.amount for m in ledger.metrics(task.recipe)] == [2.0]
            assert ledger.damage() == []


def test_a_damaged_ledger_is_refused(tmp_path: Path, other: Path) -> None:
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("DROP TRIGGER points_never_changed")
        connection.execute("UPDATE points SET value = 7 WHERE epoch = 3")
        connection.commit()
    with pytest.raises(LedgerDamaged):
        merged(tmp_path / "ledger.db", other)
