"""`celedger merge` of what is not ours: another repository's ledger, and hostile files."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from conftest import Project, celedger, git, load_script, make_project, with_verbs

from celedger.ledger import Ledger

hostile = load_script(Path(__file__).resolve().parents[2] / "benchmarks" / "hostile.py")


@pytest.fixture
def world(tmp_path: Path) -> hostile.World:  # type: ignore[name-defined]
    return hostile.World(tmp_path)


def test_a_ledger_without_a_common_commit_needs_a_word(
    world: hostile.World, tmp_path: Path
) -> None:  # type: ignore[name-defined]
    other = make_project(tmp_path / "unrelated")
    other.commit("another repository's", {"model.py": "LEVEL = 'x'\n"})
    refused = celedger(other.root, "merge", str(world.theirs))
    assert refused.status == 129
    assert "has no commit of this repository" in refused.err
    assert "--unrelated" in refused.err
    with Ledger.open(other.root / "ledger.db", create=True) as ledger:
        assert ledger.trials() == []
    done = celedger(other.root, "merge", str(world.theirs), "--unrelated")
    assert (done.status, done.out[:15]) == (0, "added 38 trials")
    # A new clone with an empty ledger has the commits in its repository.
    git(tmp_path, "clone", "-q", str(world.project.root), "clone")
    shutil.copytree(world.project.root / "suites", tmp_path / "clone" / "suites")
    assert celedger(tmp_path / "clone", "merge", str(world.theirs)).status == 0


def test_the_row_that_is_refused_is_named(world: hostile.World) -> None:  # type: ignore[name-defined]
    hostile.poison(world.theirs, hostile.ATTACKS["log: a path that climbs"], world.outside)
    done, _ = world.ask("merge", str(world.theirs))
    assert done.status == 128
    assert "its log is no path in the ledger's folder (nothing of it was merged)" in done.err
    assert world.harm(done) == ""


def test_a_poisoned_ledger_is_refused_by_its_row_and_rebuilt(world: hostile.World) -> None:  # type: ignore[name-defined]
    hostile.poison(world.ledger, hostile.ATTACKS["commit: author's time"], world.outside)
    for words in (("log",), ("drift",), ("run",)):
        done, _ = world.ask(*words)
        assert done.status == 128
        assert "is damaged: row 6 of commits" in done.err and "celedger doctor" in done.err
    done, _ = world.ask("doctor")
    assert "damaged     row 6 of commits" in done.out, done.out
    assert world.ask("doctor", "--restore")[0].out.count("restored")
    done, _ = world.ask("log")
    assert (done.status, done.err) == (0, "")


def test_a_tracked_link_in_the_place_of_the_stamp_is_not_written_through(
    world: hostile.World,  # type: ignore[name-defined]
) -> None:
    """As a merge brings it; `hook status` opens the ledger without a session."""
    project: Project = world.project
    hidden = project.root / ".celedger"
    hidden.mkdir(exist_ok=True)
    (hidden / "ledger.db.stamp").unlink(missing_ok=True)
    (hidden / "ledger.db.stamp").symlink_to("../../outside/precious")
    git(project.root, "add", "-f", ".celedger/ledger.db.stamp")
    for words in (("hook", "status"), ("log",), ("doctor", "--restore")):
        done, _ = world.ask(*words)
        assert "git tracks .celedger/ledger.db.stamp" in done.err + done.out, done
        assert world.harm(done) == ""


@with_verbs("report")
def test_the_page_reads_no_log_outside_of_the_folder_of_logs(world: hostile.World) -> None:  # type: ignore[name-defined]
    """Whatever the row says: here it is sound, and a link lies at its path."""
    with closing(sqlite3.connect(world.ledger)) as connection:
        (log,) = connection.execute("SELECT log FROM outcomes WHERE log != ''").fetchone()
    path = world.project.root / log
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(world.outside / "secret.txt")
    done, _ = world.ask("report")
    assert done.status == 0, done.err
    assert world.harm(done) == ""
    path.unlink()
    path.write_text(hostile.SECRET)
    done, _ = world.ask("report")
    assert world.harm(done) == "disclosed"  # its own log is shown: this test would see it


@with_verbs("report", "plot", "export")
def test_an_epoch_after_a_gap_of_any_length_does_not_fill_the_memory(world: hostile.World) -> None:  # type: ignore[name-defined]
    late = "UPDATE points SET epoch = 1 << 52 WHERE epoch = 3"
    hostile.poison(world.ledger, lambda db: db.execute(late), world.outside)
    for words in (("report",), ("show",), ("export",), ("plot", "curves", "HEAD", "--task", "fit")):
        done, _ = world.ask(*words)
        assert (done.status, world.harm(done)) == (0, ""), (words, done.err)
