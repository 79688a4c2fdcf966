"""The example that ships: its repository and its ledger fit each other, and today's code reads
both. Nothing trains."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import Done, celedger, git, with_verbs

from celedger.base.errors import UsageError
from celedger.cli import demo as example
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.suite import load

ROOT = Path(__file__).resolve().parents[2]
# Each verb that reads, without arguments beyond its own.
READING = (
    "log", "show", "show mlp", "diff HEAD~3..HEAD", "drift", "status", "status ID", "table",
    "baseline show", "queue", "hook status", "doctor",
    *(pytest.param(words, marks=with_verbs(words.split()[0])) for words in (
        "plot drift --task mlp --metric val_loss", "plot curves HEAD --task mlp", "plot bisect",
        "report", "export --format csv",
    )),
)  # fmt: skip


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked") / "example"
    done = celedger(folder.parent, "demo", "--example", str(folder))
    assert (done.status, done.err) == (0, "")
    return folder


def read(folder: Path, words: str) -> Done:
    incident = json.loads(celedger(folder, "status", "--json").out)["incidents"][0]["id"]
    return celedger(folder, *words.replace("ID", incident).split())


def test_the_repository_is_made_once_and_found_again(tmp_path: Path) -> None:
    made = example.materialise(tmp_path / "demo")
    repository = Repository.open(tmp_path / "demo")
    assert list(made) == list(example.SEEN_IN)
    assert len({*made.values()}) == len(made)
    assert not repository.is_dirty()
    assert example.materialise(tmp_path / "demo") == made
    (measured,) = (tmp_path / "demo" / "suites").iterdir()
    tasks = {task.name: {metric.name for metric in task.metrics} for task in load(measured).tasks}
    for task, metric in example.SEEN_IN.values():
        assert not metric or metric in tasks[task] or metric == "peak_rss"


def test_a_folder_with_something_else_and_a_lack_of_torch_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").touch()
    monkeypatch.setattr(example, "find_spec", lambda name: object())
    with pytest.raises(UsageError, match="is not empty and not the demo"):
        example.set_stage(tmp_path)
    git(tmp_path, "init", "--quiet")
    with pytest.raises(UsageError, match="is not empty and not the demo"):
        example.set_stage(tmp_path)
    monkeypatch.setattr(example, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="the demo trains with torch"):
        example.set_stage(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_ledger_is_not_replaced_by_the_example(unpacked: Path) -> None:
    before = (unpacked / "ledger.db").read_bytes()
    done = celedger(unpacked.parent, "demo", "--example", str(unpacked))
    assert done.status == 129
    assert "is there already" in done.err
    assert (unpacked / "ledger.db").read_bytes() == before


def test_the_ledger_is_of_the_repository_and_has_all_of_its_commits(unpacked: Path) -> None:
    before = example.ledger().read_bytes()
    assert len(before) < 1 << 20
    with Ledger.open(example.ledger(), readonly=True) as ledger:
        measured = {row.trial.commit for row in ledger.trials()}
        tasks = {task.name for task in ledger.tasks()}
        recipes = {task.recipe for task in ledger.tasks()}
        head = {
            row.trial.recipe
            for row in ledger.trials()
            if row.trial.commit == git(unpacked, "rev-parse", "HEAD")
        }
        assert ledger._rows("PRAGMA integrity_check") == [("ok",)]
        assert ledger._rows("PRAGMA foreign_key_check") == []
        assert {row[0] for row in ledger._rows("SELECT DISTINCT host FROM trials")} == {"example"}
    assert measured == set(git(unpacked, "rev-list", "HEAD").split())
    assert (tasks, head) == ({"mlp", "resume"}, recipes)
    assert example.ledger().read_bytes() == before
    assert [p.name for p in ROOT.glob("ledger.db.example*")] == ["ledger.db.example"]


def test_what_is_planted_is_what_is_worse(unpacked: Path) -> None:
    rows = json.loads(celedger(unpacked, "status", "--json").out)["incidents"]
    planted = example.materialise(unpacked)
    blamed = {row["likeliest"] for row in rows if row["state"] == "open"}
    assert set(planted.values()) <= blamed


@pytest.mark.parametrize("words", READING)
def test_every_verb_that_reads_answers(unpacked: Path, words: str) -> None:
    done = read(unpacked, words)
    assert done.status == 0, done.err
    assert done.out.strip()
    assert "incomplete" not in done.err
    assert "missing" not in done.err


def test_the_last_line_of_the_demo_can_be_typed(tmp_path: Path) -> None:
    done = celedger(tmp_path, "demo", "--example", "a folder")
    *_, last = done.out.splitlines()
    assert last.endswith("celedger -C 'a folder' status")


def test_the_page_of_the_example_is_of_this_history(unpacked: Path) -> None:
    page = (ROOT / "docs" / "example" / "report.html").read_text()
    for sha in example.materialise(unpacked).values():
        assert git(unpacked, "show", "--no-patch", "--format=%s", sha) in page


def test_todays_code_writes_to_a_copy_of_the_example(tmp_path: Path) -> None:
    shutil.copy(example.ledger(), tmp_path / "ledger.db")
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        new = ledger.trials()[-1].trial._replace(ulid="01NEW")
        ledger.start_trial(new)
        ledger.append(new.ulid, 99, {"val_loss": 0.5})
        assert ledger.series(new.ulid, "val_loss")["val_loss"] == [(99, 0.5)]


def test_a_person_finds_a_planted_regression_by_sql() -> None:
    with Ledger.open(example.ledger(), readonly=True) as ledger:
        rows = ledger._rows(
            "SELECT DISTINCT d.subject FROM incidents i JOIN drift d "
            "ON d.sha = i.oldest AND d.verdict = i.state WHERE i.metric LIKE '%_loss'"
        )
    assert ("Shorten the making of the optimiser",) in rows
