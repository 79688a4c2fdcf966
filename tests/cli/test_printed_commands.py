"""What a report prints for a person to type works as printed: every command of it is typed."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import SCRIPT, SUITE, Done, Project, git, make_project, with_verbs
from scripted import scripted

from celedger.ledger import Ledger

SPEED = (
    SUITE
    + """\
[metrics.seconds]
direction = "lower"
kind = "speed"
"""
)
TIMED = SCRIPT.replace("import LEVEL", "import LEVEL, SECONDS").replace(
    "(epoch=epoch, ", "(epoch=epoch, seconds=SECONDS + rng.gauss(0, 0.01), "
)
GRID = SUITE + "grid = { size = [2, 3] }\n"
linux = pytest.mark.skipif(sys.platform != "linux", reason="what a trial reads is seen on Linux")


def commands(text: str) -> list[str]:
    """Those that stand in backquotes or by themselves on an indented line."""
    found = re.findall(r"`((?:celedger|git) [^`]+)`", text)
    found += re.findall(r"^ +((?:celedger|git) .+)$", text, flags=re.MULTILINE)
    return list(dict.fromkeys(found))


def type_all(project: Project, done: Done) -> dict[str, str]:
    """Type every command of a report as a shell would, in the repository; what each said."""
    answers = {}
    for line in commands(done.out + "\n" + done.err):
        program, *words = shlex.split(line)
        if program == "git":
            answers[line] = git(project.root, *words)
            continue
        typed = project.run(*words)
        assert typed.status in (0, 1, 125), f"{line}\n{typed.out}{typed.err}"
        answers[line] = typed.out
    return answers


@pytest.fixture
def merged(project: Project) -> tuple[Project, dict[str, str]]:
    """Two branches with commits that no training reads, among them the one before the bad one."""
    root, shas = project.root, {}
    shas["good"] = project.history([1.0])[0]
    git(root, "checkout", "--quiet", "-b", "side")
    shas["parent"] = project.commit("side: docs", {"docs.md": "a\n"})
    shas["bad"] = project.commit("side: worse", {"model.py": "LEVEL = 1.6\n"})
    shas["mate"] = project.commit("side: more docs", {"docs.md": "b\n"})
    git(root, "checkout", "--quiet", "main")
    for i in range(3):
        text = f"LEVEL = 1.0\nMAIN = {i}\n"
        shas[f"main {i}"] = project.commit(f"main {i}", {"helper.py": text, "main.md": text})
    git(root, "merge", "--quiet", "--no-ff", "-m", "Merge side", "side")
    shas["merge"] = git(root, "rev-parse", "HEAD")
    shas["end"] = project.commit("after", {"main.txt": "after\n"})
    return project, shas


@pytest.mark.matrix
@linux
def test_a_bisect_compares_the_culprit_with_its_parent_by_the_trials_that_stand_for_them(
    merged: tuple[Project, dict[str, str]],
) -> None:
    project, shas = merged
    for name in ("main 2", "mate"):
        project.run("run", shas[name])
    done = project.run("bisect", f"{shas['good']}..{shas['end']}", "--metric", "val_loss")
    assert done.status == 0, done.err
    assert f"first bad commit of fit val_loss: {shas['bad']}" in done.out
    assert f"not run     {shas['mate'][:8]} ran in its place" in done.out
    with Ledger.open(project.root / "ledger.db") as ledger:
        report: Any = ledger.bisects()[-1].report
    drawn_at = {report["commits"][position] for position, _ in report["readings"] if position >= 0}
    assert shas["mate"] in drawn_at
    assert shas["bad"] not in drawn_at, "no trial is drawn where none ran"
    said = type_all(project, done)
    (compared,) = [line for line in said if line.startswith("celedger diff")]
    assert compared.split()[-1] == f"{shas['parent'][:12]}..{shas['bad'][:12]}"
    assert re.search(r"val_loss .*\+\d+\.\d %", said[compared])
    again = project.run("bisect", f"{shas['good']}..{shas['end']}", "--metric", "val_loss")
    assert again.out.partition("  spent")[0] == done.out.partition("  spent")[0]


@pytest.mark.matrix
@linux
def test_a_crash_or_a_clock_runs_the_culprit_where_only_its_mates_ran(
    merged: tuple[Project, dict[str, str]],
) -> None:
    project, _ = merged
    (project.root / "suites" / "tiny" / "suite.toml").write_text(SPEED)
    (project.root / "suites" / "tiny" / "fit.py").write_text(TIMED)
    fast = project.commit("fast", {"model.py": "LEVEL, SECONDS = 1.0, 0.1\n"})
    slow = project.commit("slower", {"model.py": "LEVEL, SECONDS = 1.0, 0.3\n"})
    docs = project.commit("slower: docs", {"docs.md": "c\n"})
    project.run("run", docs)
    done = project.run("bisect", f"{fast}..{docs}", "--metric", "seconds")
    assert done.status == 0, done.err
    assert f"first bad commit of fit seconds: {slow}" in done.out
    said = type_all(project, done)
    assert re.search(r"seconds .*\+\d+", said[f"celedger diff {fast[:12]}..{slow[:12]}"])
    broken = project.commit("broken", {"model.py": "raise ValueError('boom')\n"})
    mate = project.commit("broken: docs", {"docs.md": "d\n"})
    project.run("run", mate)
    # Where no more may be run, the commits that ran are compared.
    kept = project.run("bisect", f"{docs}..{mate}", "--budget", "0")
    assert f"first bad commit of fit crash: {broken}" in kept.out
    assert f"not run     {mate[:8]} ran in its place" in kept.out
    assert f"celedger diff {docs[:12]}..{mate[:12]}" in type_all(project, kept)
    done = project.run("bisect", f"{fast}..{mate}")
    assert f"first bad commit of fit crash: {broken}" in done.out
    assert "not run" not in done.out
    assert "failed" in type_all(project, done)[f"celedger diff {docs[:12]}..{broken[:12]}"]


@pytest.mark.matrix
@linux
def test_reports_of_several_metrics_and_of_other_options_print_what_works(
    merged: tuple[Project, dict[str, str]],
) -> None:
    project, shas = merged
    # A suite whose folder has another name, which is not the one that is configured.
    (project.root / "suites" / "tiny").rename(project.root / "suites" / "my suite")
    (project.root / "suites" / "second").mkdir()
    (project.root / "suites" / "second" / "suite.toml").write_text(SPEED)
    (project.root / "suites" / "second" / "fit.py").write_text(SCRIPT)
    done = project.run(
        "-C", ".", "--ledger", "my ledger.db", "bisect", f"{shas['good']}..{shas['end']}",
        "--suite", "my suite", "--metric", "val_loss", "--first-parent", "--confidence", "0.9",
    )  # fmt: skip
    assert f"first bad commit of fit val_loss: {shas['merge']}" in done.out
    said = type_all(project, done)
    (again,) = [out for line, out in said.items() if " bisect " in line]
    assert f"first bad commit of fit val_loss: {shas['merge']}" in again
    # Under the name that it gives itself.
    assert project.run("check", "--suite", "tiny", shas["good"]).status in (0, 125)
    several = project.run(
        "bisect", f"{shas['good']}..{shas['end']}", "--suite", "my suite",
        "--metric", "val_loss", "--metric", "peak_rss",
    )  # fmt: skip
    said = type_all(project, several)
    assert f"celedger diff {shas['parent'][:12]}..{shas['bad'][:12]}" in said


@with_verbs("plot")
@pytest.mark.matrix
def test_what_a_hint_says_to_type_can_be_typed(tmp_path: Path) -> None:
    project = make_project(tmp_path / "a project", GRID)
    # Neither of two suites is the one that is meant when none is named.
    (project.root / "suites" / "other").mkdir()
    (project.root / "suites" / "other" / "suite.toml").write_text(SUITE)
    (project.root / "suites" / "other" / "fit.py").write_text(SCRIPT)
    good, end, bad = project.history([1.0, 1.1, 1.1])
    assert project.run("run", end, "--suite", "tiny", "--seed", "0").status == 0
    outside = Project(project.root.parent)
    task = ("--task", "fit[size=2]")
    for words, hint in (
        (("show", good), f"celedger -C 'a project' run {good[:12]} --suite tiny"),
        (("plot", "curves", bad, *task), f"run {bad[:12]} --suite tiny --task 'fit[size=2]'"),
        (("bisect", f"{good}..{end}", "--suite", "tiny", *task, "--budget", "0"), "bisect"),
    ):
        done = outside.run("-C", "a project", *words)
        answers = type_all(outside, done)
        assert any(hint in line for line in answers), done


@pytest.mark.matrix
def test_a_bad_end_that_is_good_again_names_the_commit_between_that_is_not(
    tmp_path: Path,
) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.0, 1.5, 1.5, 1.0, 1.0])
    ends = f"{shas[0]}..{shas[-1]}"
    project.run("run", ends, "--seed", "0")
    for words in ((), ("--metric", "val_loss")):
        done = project.run("bisect", ends, *words)
        assert done.status == 125
        said = done.out + done.err
        assert "nothing changed in" not in said
        worse = re.search(
            r"a commit between is worse than both ends in fit val_loss: (\w{40})", said
        )
        assert worse is not None, said
        assert worse[1] in shas[2:4]
        assert "1.83" in said or "1.82" in said
        (line,) = commands(said)
        assert f"first bad commit of fit val_loss: {shas[2]}" in type_all(project, done)[line]
    answer = json.loads(project.run("bisect", ends, "--metric", "val_loss", "--json").out)
    assert answer["bisect"]["between"]["commit"] == worse[1]


def test_the_middle_is_looked_at_before_nothing_changed_is_said(tmp_path: Path) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 1.0, 1.0])
    done = project.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    assert done.status == 125
    worse = re.search(
        r"a commit between is worse than both ends in fit val_loss: (\w{40})", done.out
    )
    assert worse is not None, done.out + done.err
    assert worse[1] in shas[3:6]


def test_a_middle_that_is_like_the_ends_takes_one_trial(tmp_path: Path) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0] * 8)
    project.executor.ran.clear()
    done = project.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    assert "nothing changed in fit val_loss" in done.out, done.out + done.err
    inside = [sha for sha, _ in project.executor.ran if sha in shas[1:-1]]
    assert 1 <= len(inside) <= 3
    assert len(set(inside)) == 1
