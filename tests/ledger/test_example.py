"""The ledger in the repository that stands for those of users: today's code must open it."""

from __future__ import annotations

import runpy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from celedger.base.model import OutcomeKind
from celedger.ledger import Ledger

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "ledger.db.example"


def questions(ledger: Ledger) -> list[object]:
    return [ledger.commits(), ledger.tasks(), ledger.metrics(), ledger.environments(),
            ledger.trials(), ledger.said(), ledger.bisects(), ledger.jobs()]  # fmt: skip


def test_todays_code_opens_the_example_and_changes_no_byte() -> None:
    before = EXAMPLE.read_bytes()
    assert len(before) < 1 << 20
    with Ledger.open(EXAMPLE, readonly=True) as ledger:
        commits = ledger.commits()
        assert len(commits) == 40
        assert [task.name for task in ledger.tasks()] == ["digits_mlp", "digits_cnn", "chars_lstm"]
        assert len(ledger.trials()) == 40 * 3 * 3
        assert sum(r.outcome.kind is OutcomeKind.UNTESTABLE for r in ledger.trials()
                   if r.outcome) == 9  # fmt: skip
        rows = ledger.summaries("digits_mlp", "val_loss")
        level = {sha: [r.value for r in rows if r.commit == sha] for sha in
                 (commits[16].sha, commits[17].sha)}  # fmt: skip
        assert min(level[commits[17].sha]) > max(level[commits[16].sha])
        assert len(ledger.series(rows[0].ulid)["val_loss"]) == 6
        assert ledger._rows("PRAGMA integrity_check") == [("ok",)]
        assert ledger._rows("PRAGMA foreign_key_check") == []
    assert EXAMPLE.read_bytes() == before
    assert [p.name for p in ROOT.glob("ledger.db.example*")] == ["ledger.db.example"]


def test_todays_code_writes_to_a_copy_of_the_example(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path / "ledger.db")
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        new = replace(ledger.trials()[-1].trial, ulid="01NEW")
        ledger.start_trial(new)
        ledger.append(new.ulid, 99, {"val_loss": 0.5})
        assert ledger.series(new.ulid, "val_loss")["val_loss"] == [(99, 0.5)]


@pytest.mark.matrix
def test_the_script_makes_the_same_rows_from_the_same_seed(tmp_path: Path) -> None:
    make = runpy.run_path(str(ROOT / "scripts" / "make_example_ledger.py"))["make"]
    answers = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make(tmp_path / name, seed)
        with Ledger.open(tmp_path / name, readonly=True) as ledger:
            answers.append(questions(ledger))
    assert repr(answers[0]) == repr(answers[1])  # not ==: NaN is not itself
    assert repr(answers[0]) != repr(answers[2])
    with Ledger.open(EXAMPLE, readonly=True) as ledger:
        assert repr(questions(ledger)) == repr(answers[0])
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b", "c"}


def test_a_person_finds_the_planted_regression_in_the_example() -> None:
    with Ledger.open(EXAMPLE, readonly=True) as ledger:
        found = ledger._rows(
            "SELECT DISTINCT d.subject, i.state FROM incidents i "
            "JOIN drift d ON d.sha = i.oldest AND d.verdict = i.state WHERE i.metric = 'val_loss'"
        )
    assert found == [("Refactor the schedule", "open")]
