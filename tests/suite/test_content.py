from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path

import pytest

from celedger.base.errors import SuiteError
from celedger.base.model import Command, Task
from celedger.suite import build_lines, command_lines, load, snapshot
from celedger.suite.loading import content_hash

TOML = '[[task]]\nname = "t"\ncommand = "{python} {suite}/a.py {seed}"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "suites" / "s"
    (home / "data").mkdir(parents=True)
    (home / "suite.toml").write_text(TOML)
    (home / "a.py").write_text("1")
    (home / "data" / "d.bin").write_bytes(b"\0" * 1000)
    return home


def copied(folder: Path, cache: Path) -> Path:
    return snapshot(folder, content_hash(folder), cache)


def test_the_recipe_follows_what_a_training_reads_and_nothing_else(folder: Path) -> None:
    recipe = load(folder).tasks[0].recipe
    (folder / "README.md").write_text("text")
    (folder / ".notes").write_text("text")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.pyc").write_text("1")
    (folder / "suite.toml").write_text(TOML + "timeout = 5\n")
    assert load(folder).tasks[0].recipe == recipe
    (folder / "data" / "d.bin").write_bytes(b"\0" * 999 + b"1")
    changed = load(folder).tasks[0].recipe
    assert changed != recipe
    (folder / "data" / "prompt.md").write_text("text")
    assert load(folder).tasks[0].recipe != changed


def test_links_count_by_what_they_lead_to(folder: Path, tmp_path: Path) -> None:
    before = content_hash(folder)
    (tmp_path / "shared").mkdir()
    (folder / "data").rename(tmp_path / "shared" / "data")
    (folder / "data").symlink_to(tmp_path / "shared" / "data")
    assert content_hash(folder) == before
    copy = copied(folder, tmp_path / "cache")
    assert not (copy / "data").is_symlink() and (copy / "data" / "d.bin").stat().st_size == 1000
    (folder / "loop").symlink_to(folder)
    with pytest.raises(SuiteError, match="lies in"):
        load(folder)
    (folder / "loop").unlink()
    (folder / "dangling").symlink_to(tmp_path / "absent")
    with pytest.raises(SuiteError, match="neither a file"):
        load(folder)


def test_a_snapshot_is_out_of_reach_of_later_edits(folder: Path, tmp_path: Path) -> None:
    (folder / "a.py").chmod(0o755)
    (folder / "README.md").write_text("text")
    first = copied(folder, tmp_path / "cache")
    (folder / "a.py").write_text("2")
    second = copied(folder, tmp_path / "cache")
    assert ((first / "a.py").read_text(), (second / "a.py").read_text()) == ("1", "2")
    assert (first / "a.py").stat().st_mode & 0o100
    assert {path.name for path in first.iterdir()} == {"a.py", "data"}  # what trainings see
    assert sorted((tmp_path / "cache").iterdir()) == sorted([first, second])


def test_a_snapshot_that_was_changed_is_made_anew(folder: Path, tmp_path: Path) -> None:
    first = copied(folder, tmp_path / "cache")
    (first / "downloaded").write_text("x")
    (first / "a.py").write_text("broken")
    assert copied(folder, tmp_path / "cache") == first
    assert (first / "a.py").read_text() == "1" and not (first / "downloaded").exists()
    assert list((tmp_path / "cache").iterdir()) == [first]


def _take(job: tuple[Path, Path]) -> str:
    folder, cache = job
    return (copied(folder, cache) / "a.py").read_text()


def test_eight_processes_may_make_one_snapshot_at_once(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with multiprocessing.get_context("fork").Pool(8) as pool:
        assert set(pool.map(_take, [(folder, cache)] * 64, chunksize=1)) == {"1"}
    assert len(list(cache.iterdir())) == 1


def test_a_snapshot_in_use_is_not_taken_away_by_a_slower_process(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, faster = tmp_path / "cache", []
    copy = shutil.copy2

    def slow(source: Path, target: Path) -> None:
        if not faster:
            monkeypatch.undo()
            faster.append(copied(folder, cache).stat().st_ino)
        copy(source, target)

    monkeypatch.setattr(shutil, "copy2", slow)
    assert copied(folder, cache).stat().st_ino == faster[0]
    assert len(list(cache.iterdir())) == 1


def test_placeholders_are_filled_word_by_word() -> None:
    task = Task(
        "s", "t", params={"lr": 0.1, "odd": "a b {seed} $(x)", "on": True},
        commands=(
            Command(
                "train", ("{python}", "{suite}/t.py", "--lr={lr}", "{odd}", "{on}", "{{{seed}}}")
            ),
            Command("test", ("{tree}/run", "{out}")),
        ),
        build=(("{python}", "{tree}/setup.py", "{suite}"),),
    )  # fmt: skip
    tree, home, out = Path("/a tree"), Path("/suite"), Path("/out")
    assert command_lines(task, python="py", suite_dir=home, tree=tree, seed=3, out=out) == [
        ("train", ("py", "/suite/t.py", "--lr=0.1", "a b {seed} $(x)", "true", "{3}")),
        ("test", ("/a tree/run", "/out")),
    ]
    assert build_lines(task, python="py", suite_dir=home, tree=tree) == [
        ("py", "/a tree/setup.py", "/suite")
    ]
