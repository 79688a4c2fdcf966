"""Real processes on one ledger: nothing is lost, nobody is told "locked", a kill takes nothing
whose append had returned."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celedger.base.errors import LedgerError
from celedger.ledger import Ledger, opening

FORK = multiprocessing.get_context("fork")
WRITERS, TRIALS, EPOCHS = 16, 2, 15


def all_end_well(processes: list[Any]) -> None:
    for one in processes:
        one.start()
    for one in processes:
        one.join(90)
    assert [one.exitcode for one in processes] == [0] * len(processes)


def write(path: Path, facts: Any, number: int, gate: Any) -> None:
    facts.random.seed(number)
    gate.wait()
    with Ledger.open(path, create=True) as ledger:
        for trial_number in range(TRIALS):
            trial = facts.trial(
                ledger, facts.commit(number % 3), seed=number * TRIALS + trial_number
            )
            for epoch in range(EPOCHS):
                ledger.append(trial.ulid, epoch, {"loss": number + epoch / 64, f"m{number}": epoch})
                if epoch % 5 == 0:
                    ledger.trials(commit=trial.commit)  # reads between writes


def test_sixteen_processes_make_one_ledger_and_lose_nothing(tmp_path: Path, facts: Any) -> None:
    path, gate = tmp_path / "ledger.db", FORK.Barrier(WRITERS)
    all_end_well(
        [FORK.Process(target=write, args=(path, facts, n, gate)) for n in range(WRITERS)]
    )  # fmt: skip
    with Ledger.open(path) as ledger:
        records = ledger.trials()
        assert len(records) == WRITERS * TRIALS
        assert len(ledger.commits()) == 3
        assert len(ledger.tasks()) == len(ledger.environments()) == 1
        for record in records:
            number = record.trial.seed // TRIALS
            assert ledger.series(record.trial.ulid) == {
                "loss": [(epoch, number + epoch / 64) for epoch in range(EPOCHS)],
                f"m{number}": [(epoch, float(epoch)) for epoch in range(EPOCHS)],
            }
        assert ledger._rows("PRAGMA integrity_check") == [("ok",)]
        assert ledger._rows("PRAGMA foreign_key_check") == []


def open_and_close(path: Path, gate: Any) -> None:
    gate.wait()
    for _ in range(10):  # the last one to close deletes the -wal under the next one's hands
        with Ledger.open(path, create=True) as ledger, ledger.transaction():
            ledger.jobs()


@pytest.mark.matrix
def test_opening_and_closing_all_at_once_is_never_locked(tmp_path: Path) -> None:
    path, gate = tmp_path / "ledger.db", FORK.Barrier(8)
    all_end_well([FORK.Process(target=open_and_close, args=(path, gate)) for _ in range(8)])
    assert {p.name for p in tmp_path.iterdir()} == {"ledger.db", ".celedger"}


def test_a_writer_waits_before_it_reads(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite refuses at once to let it write what rests on rows that another one has changed."""
    monkeypatch.setattr(opening, "BUSY_TIMEOUT", 0.01)
    with (
        Ledger.open(ledger.path) as other,
        ledger.transaction(),
        pytest.raises(LedgerError, match="another process has held"),
        other.transaction(),
    ):
        pytest.fail("two writers are in a transaction")


def same_epochs(path: Path, ulid: str, gate: Any) -> None:
    gate.wait()
    with Ledger.open(path) as ledger:
        for epoch in range(30):
            ledger.append(ulid, epoch, {"loss": float(os.getpid())})


def test_two_that_take_in_one_journal_keep_one_value_an_epoch(ledger: Ledger, facts: Any) -> None:
    ulid, gate = facts.trial(ledger).ulid, FORK.Barrier(3)
    all_end_well(
        [FORK.Process(target=same_epochs, args=(ledger.path, ulid, gate)) for _ in range(3)]
    )
    assert [epoch for epoch, _ in ledger.series(ulid)["loss"]] == list(range(30))


def append_for_ever(path: Path, ulid: str, first: int, pipe: int) -> None:
    with Ledger.open(path) as ledger:
        for epoch in range(first, 10**9):
            ledger.append(ulid, epoch, {"loss": epoch / 2, "speed": 1.0}, f"{epoch:x}")
            os.write(pipe, epoch.to_bytes(8, "little"))  # it returned


def test_a_kill_takes_no_epoch_whose_append_had_returned(ledger: Ledger, facts: Any) -> None:
    path, ulid = ledger.path, facts.trial(ledger).ulid
    ledger.close()  # so that each kill leaves a -wal that the next process must recover
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    returned: list[int] = []
    for _ in range(15):
        ours, theirs = os.pipe()
        first = returned[-1] + 2 if returned else 0
        process = FORK.Process(target=append_for_ever, args=(path, ulid, first, theirs))
        process.start()
        os.close(theirs)
        said = os.read(ours, 8)  # it is at work
        time.sleep(moments.random() * 0.02)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while chunk := os.read(ours, 8000):
            said += chunk
        os.close(ours)
        returned += [int.from_bytes(said[i : i + 8], "little") for i in range(0, len(said), 8)]
        with closing(sqlite3.connect(path)) as connection:
            held = dict(connection.execute("SELECT epoch, value FROM points WHERE metric = 1"))
        assert all(held.get(epoch) == epoch / 2 for epoch in returned), f"seed {seed}"
    with Ledger.open(path) as again:
        assert len(again.series(ulid)["loss"]) == len(again.series(ulid)["speed"])
        assert set(again.fingerprints(ulid)) == {e for e, _ in again.series(ulid)["loss"]}
        assert again._rows("PRAGMA integrity_check") == [("ok",)]
