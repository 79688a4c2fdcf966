"""`git bisect run celedger check`, typed in real repositories: git checks out commits that are
older than the suite, or have another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PEOPLE, SCRIPT, SUITE, Project, git

pytestmark = pytest.mark.matrix

FILES = {"suites/tiny/suite.toml": SUITE, "suites/tiny/fit.py": SCRIPT}
CHECK = (sys.executable, "-m", "celedger", "check")


def unborn(root: Path) -> Project:
    """A repository without a suite."""
    root.mkdir()
    git(root, "init", "--quiet", "-b", "main")
    return Project(root)


def bisect_run(folder: Path, good: str, bad: str, *words: str) -> str:
    """What `git bisect run` says."""
    git(folder, "bisect", "start", bad, good)
    run = subprocess.run(
        ["git", "bisect", "run", *CHECK, *words], cwd=folder, env={**os.environ, **PEOPLE},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    return run.stdout


def test_git_bisect_finds_a_commit_that_is_older_than_suite_and_configuration(
    tmp_path: Path,
) -> None:
    project = unborn(tmp_path / "project")
    (project.root / "records").mkdir()
    shas = project.history([1.0] * 4 + [1.5] * 3)
    # The suite of the start is meant also where an earlier one is checked out.
    project.commit("a first try", {"suites/tiny/suite.toml": "[suite]\nno = true\n"})
    project.commit("the suite", {
        **{f"bench/{name}": text for name, text in FILES.items()},
        "celedger.toml": 'ledger = "records/trials.db"\nsuites = "bench/suites"\n',
    })  # fmt: skip
    end = project.commit("later", {"notes.txt": "x\n"})
    assert project.run("run", shas[0]).status == 0
    said = bisect_run(project.root, shas[0], end)
    assert f"{shas[4]} is the first bad commit" in said
    assert f"those of {end[:10]}, where git bisect began" in said
    # Readers find the same ledger, and the user's folders hold nothing new.
    assert shas[0][:7] in project.run("log").out
    assert git(project.root, "status", "--porcelain", "--ignored") == "!! records/"
    git(project.root, "bisect", "reset")
    again = project.run("run", shas[0])
    assert "holds every trial" in again.err, again.err  # it is the same suite


def test_changes_and_untracked_suites_count_as_they_lie_in_the_work_tree(tmp_path: Path) -> None:
    project = unborn(tmp_path / "project")
    project.commit("the suite", FILES)
    shas = project.history([1.0] * 3 + [1.5] * 2)
    suites = project.root / "suites"
    (suites / "mine").mkdir()
    for name in ("suite.toml", "fit.py"):
        text = (suites / "tiny" / name).read_text()
        (suites / "mine" / name).write_text(text.replace('"tiny"', '"mine"'))
    (suites / "mine" / "fit.py").write_text(SCRIPT.replace("LEVEL +", "2 * LEVEL +"))
    (suites / "tiny" / "fit.py").write_text(SCRIPT.replace("LEVEL +", "0 * LEVEL +"))
    assert project.run("run", shas[0], "--suite", "mine").status == 0
    assert project.run("run", shas[0], "--suite", "tiny").status == 0
    said = bisect_run(project.root, shas[0], shas[-1], "--suite", "mine")
    assert f"{shas[3]} is the first bad commit" in said
    changed = project.run("check", "--suite", "tiny", shas[3])
    assert changed.status == 0, changed.out  # what it trains no longer heeds the level


def test_a_bisect_is_that_of_its_work_tree_and_over_once_a_branch_is_checked_out(
    tmp_path: Path,
) -> None:
    project = unborn(tmp_path / "project")
    first, last = project.history([1.0, 1.5])
    project.commit("the suite", FILES)
    linked = Project(tmp_path / "linked")
    git(project.root, "worktree", "add", "--quiet", "-b", "side", str(linked.root))
    git(linked.root, "bisect", "start", "HEAD", first)
    assert git(linked.root, "rev-parse", "HEAD") == last
    (linked.root / "deep").mkdir()
    inside = Project(linked.root / "deep").run("check", first)
    assert "where git bisect began" in inside.err
    assert "git bisect" not in project.run("check", first).err
    git(linked.root, "checkout", "--quiet", "side")  # without `git bisect reset`
    assert "git bisect" not in linked.run("check", first).err
