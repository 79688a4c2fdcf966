"""Which commit a commit of the line says it reverts."""

from __future__ import annotations

from pathlib import Path

from conftest import git

from celedger.judge.line import Line
from celedger.repo import Repository


def commit(root: Path, subject: str, text: str) -> str:
    (root / "model.py").write_text(text)
    git(root, "add", "model.py")
    git(root, "commit", "--quiet", "-m", subject)
    return git(root, "rev-parse", "HEAD")


def merge(root: Path, subject: str) -> None:
    git(root, "checkout", "--quiet", "main")
    git(root, "merge", "--quiet", "--no-ff", "-m", subject, "side")
    git(root, "branch", "--quiet", "-D", "side")


def test_a_revert_in_a_merged_branch_names_the_merge_that_brought_the_culprit(
    tmp_path: Path,
) -> None:
    git(tmp_path, "init", "--quiet", "-b", "main")
    commit(tmp_path, "begin", "1\n")
    git(tmp_path, "checkout", "--quiet", "-b", "side")
    commit(tmp_path, "tidy", "1 \n")
    culprit = commit(tmp_path, "worse", "2\n")
    merge(tmp_path, "Merge pull request #1")
    commit(tmp_path, "Faster (#2)", "2\n\n")
    commit(tmp_path, 'Revert "Faster (#2)" (#3)', "2\n")
    git(tmp_path, "checkout", "--quiet", "-b", "side")
    git(tmp_path, "revert", "--no-edit", culprit)
    merge(tmp_path, "Merge pull request #4")
    line = Line.of(Repository.open(tmp_path), "HEAD")
    assert [line.names(place) for place in range(5)] == [None, None, None, 2, 1]


def test_a_commit_that_takes_a_change_back_reverts_it_whatever_its_subject(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "-b", "main")
    (tmp_path / "other.py").write_text("0\n")
    git(tmp_path, "add", "other.py")
    for subject, text in (("begin", "1\n"), ("worse", "2\n")):
        commit(tmp_path, subject, text)
    (tmp_path / "other.py").write_text("1\n")
    git(tmp_path, "commit", "--quiet", "-am", "another file")
    commit(tmp_path, "back to one", "1\n")
    commit(tmp_path, "two and more", "2\n3\n")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "empty")
    line = Line.of(Repository.open(tmp_path), "HEAD")
    assert line.inverses(range(6)) == {3: 1}
    assert line.inverses([2]) == {}
