"""The journal: followed into the ledger, and taken in when its runner is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from celedger.base import files
from celedger.base.model import (
    Command,
    Commit,
    Environment,
    Mark,
    Metric,
    Outcome,
    OutcomeKind,
    Purpose,
    Task,
    Trial,
)
from celedger.ledger import Ledger
from celedger.ledger.archive import Archive, restore
from celedger.trial import journal, protocol

TASK = Task("tiny", "fit", (Command("run", ("true",)),), metrics=(Metric("loss"),))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        fill(opened)
        yield opened


def fill(ledger: Ledger) -> None:
    ledger.record_commits([Commit("a" * 40, "b" * 40, (), "Ada", 1, 1, "first")])
    ledger.record_task(TASK)
    ledger.record_environment(Environment("e", {}))


def start(ledger: Ledger, ulid: str = "01HZZZZZZZZZZZZZZZZZZZZZZZ") -> Path:
    ledger.start_trial(Trial(ulid, "a" * 40, TASK.recipe, "e", 0, Purpose.RUN, 1.0, "host"))
    path = journal.folder(ledger) / f"{ulid}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def say(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def loss(ledger: Ledger, path: Path) -> list[tuple[int, float]]:
    return ledger.series(path.stem).get("loss", [])


def test_a_torn_line_is_taken_in_when_it_is_whole(ledger: Ledger) -> None:
    path = start(ledger)
    following = journal.Journal(path, ledger, path.stem)
    say(path, b'{"epoch": 0, "loss": 1}\n{"epoch": 1, "lo')
    following.follow(end=False)
    assert loss(ledger, path) == [(0, 1.0)]
    say(path, b'ss": 2}\n')
    following.follow()
    assert loss(ledger, path) == [(0, 1.0), (1, 2.0)]
    assert following.marks == set()


@pytest.mark.parametrize(
    ("last", "epochs", "marks"),
    [
        (b'{"loss": 2}', 2, set()),
        (b'{"loss": 2', 1, {Mark.RUBBISH}),
        (b"{" * 2 * protocol.MAX_LINE, 1, {Mark.RUBBISH}),
    ],
    ids=["whole", "torn", "endless"],
)
def test_at_the_end_a_line_needs_no_newline(
    ledger: Ledger, last: bytes, epochs: int, marks: set[Mark]
) -> None:
    path = start(ledger)
    following = journal.Journal(path, ledger, path.stem)
    say(path, b'{"loss": 1}\n' + last)
    following.follow(end=False)
    following.follow(end=False)
    assert following.marks == set()
    following.follow()
    assert len(loss(ledger, path)) == epochs
    assert following.marks == marks


def test_following_afresh_adds_nothing_and_says_nothing_was_repeated(ledger: Ledger) -> None:
    path = start(ledger)
    say(path, b'{"loss": 1}\n{"loss": 2, "fingerprint": "f"}\n')
    journal.Journal(path, ledger, path.stem).follow(lambda: {"rss": 7.0})
    again = journal.Journal(path, ledger, path.stem)
    again.follow(lambda: {"rss": 8.0})  # the runner's own figures differ, and do not count
    assert loss(ledger, path) == [(0, 1.0), (1, 2.0)]
    assert again.marks == set()


def test_another_value_or_fingerprint_for_an_epoch_is_marked(ledger: Ledger) -> None:
    for i, second in enumerate((b'"loss": 2', b'"loss": 1, "fingerprint": "g"')):
        path = start(ledger, f"01HZZZZZZZZZZZZZZZZZZZZZZ{i}")
        following = journal.Journal(path, ledger, path.stem)
        say(path, b'{"epoch": 0, "loss": 1, "fingerprint": "f"}\n')
        following.follow()
        say(path, b'{"epoch": 0, ' + second + b"}\n")
        following.follow()
        assert loss(ledger, path) == [(0, 1.0)]
        assert following.marks == {Mark.REPEATED}


def test_an_endless_line_is_one_piece_of_rubbish_and_what_follows_counts(ledger: Ledger) -> None:
    path = start(ledger)
    following = journal.Journal(path, ledger, path.stem)
    for _ in range(3):
        say(path, b"{" * protocol.MAX_LINE)
        following.follow(end=False)
    say(path, b'{"loss": 5}\n{"epoch": 0, "loss": 1}\n')
    following.follow()
    assert loss(ledger, path) == [(0, 1.0)]
    assert following.marks == {Mark.RUBBISH}


def test_before_the_end_a_piece_is_taken_at_a_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "CHUNK", 1 << 12)
    path = start(ledger)
    count = 3 * journal.CHUNK // len(b'{"loss": 1.000000}\n')
    say(path, b'{"loss": 1.000000}\n' * count)
    following = journal.Journal(path, ledger, path.stem)
    following.follow(end=False)
    assert 0 < len(loss(ledger, path)) < count
    following.follow()
    assert len(loss(ledger, path)) == count


def test_a_dead_runners_trial_is_taken_in_once(ledger: Ledger) -> None:
    path = start(ledger)
    say(path, b'{"loss": 1}\n')
    swept: list[str] = []
    (found,) = journal.recover(ledger, now=9.0, sweep=lambda u: swept.append(u) or 0)
    assert found.outcome is not None
    assert (found.outcome.kind, found.epochs) == (OutcomeKind.INTERRUPTED, 1)
    assert swept == [path.stem]
    assert not path.exists()
    assert journal.recover(ledger, now=9.0, sweep=lambda u: 0) == ()


def test_a_dead_runners_trial_ends_after_its_start_whatever_the_clock_says(ledger: Ledger) -> None:
    start(ledger)
    (record,) = journal.recover(ledger, now=-3600.0, sweep=lambda u: 0)
    assert record.outcome is not None
    assert record.outcome.ended == record.trial.started


def test_a_trial_whose_journal_is_held_is_somebodys(ledger: Ledger) -> None:
    path = start(ledger)
    reads = path.with_suffix(".reads")
    reads.touch()
    with files.try_flock(path):
        assert journal.recover(ledger, now=9.0, sweep=lambda u: 0) == ()
        assert path.exists()
        assert reads.exists()
    assert len(journal.recover(ledger, now=9.0, sweep=lambda u: 0)) == 1
    assert not list(path.parent.iterdir())


def test_the_journal_of_a_trial_that_the_ledger_lacks_waits_for_it(tmp_path: Path) -> None:
    database = tmp_path / "ledger.db"
    backup = Archive(tmp_path / "celedger", tmp_path, database)
    ulid = "01HZZZZZZZZZZZZZZZZZZZZZZZ"
    with Ledger.open(database, create=True, archive=backup) as ledger:
        fill(ledger)
        trial = Trial(ulid, "a" * 40, TASK.recipe, "e", 0, Purpose.RUN, 1.0, "host")
        path, channel, runner_lock = journal.create(ledger, trial)
        os.write(channel, b'{"loss": 1}\n')
        os.close(channel)
    assert runner_lock is not None
    runner_lock.close()
    database.unlink()
    Ledger.open(database, create=True).close()  # another one, which knows nothing of the trial
    with Ledger.open(database, archive=backup) as ledger:
        assert journal.recover(ledger, now=9.0, sweep=lambda u: 0) == ()
    assert path.exists()
    assert restore(database, backup).trials == 1
    with Ledger.open(database, archive=backup) as ledger:
        (record,) = journal.recover(ledger, now=9.0, sweep=lambda u: 0)
        assert (record.trial, record.epochs) == (trial, 1)
        assert ledger.series(ulid) == {"loss": [(0, 1.0)]}
        assert [m.name for m in ledger.metrics(TASK.recipe)] == ["loss"]
        assert not list(path.parent.iterdir()) and not list(journal.links(ledger).iterdir())


def test_files_of_trials_that_ended_or_never_began_go(ledger: Ledger) -> None:
    path = start(ledger)
    ledger.finish_trial(path.stem, Outcome(OutcomeKind.OK, 2.0), {})
    unknown, old, new = (path.with_name(n) for n in ("01X.jsonl", "01Y.new", "01Z.new"))
    for file in (unknown, old, new, path.with_suffix(".reads"), path.with_name("01W.reads")):
        file.touch()
    os.utime(old, (0, 0))
    journal.recover(ledger, now=new.stat().st_mtime, sweep=lambda u: 0)
    assert list(path.parent.iterdir()) == [new]
