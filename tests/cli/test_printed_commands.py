"""What a report prints for a person to type works as printed: every command of it is typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PEOPLE, Done, Project, git

linux = pytest.mark.skipif(sys.platform != "linux", reason="what a trial reads is seen on Linux")


def commands(text: str) -> list[str]:
    """Those that stand in backquotes or by themselves on an indented line."""
    found = re.findall(r"`((?:celedger|git) [^`]+)`", text)
    found += re.findall(r"^ +((?:celedger|git) .+)$", text, flags=re.MULTILINE)
    return list(dict.fromkeys(found))


def type_all(project: Project, done: Done) -> dict[str, str]:
    """Type every command of a report into a shell, in the repository; what each said."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    answers = {}
    for line in commands(done.out + "\n" + done.err):
        run = subprocess.run(
            line, shell=True, cwd=project.root, env={**os.environ, **PEOPLE, "PATH": path},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert run.returncode in (0, 1, 125), f"{line}\n{run.stdout}{run.stderr}"
        answers[line] = run.stdout
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
    said = type_all(project, done)
    (compared,) = [line for line in said if line.startswith("celedger diff")]
    parent, culprit = (
        git(project.root, "rev-parse", sha) for sha in compared.split()[-1].split("..")
    )
    # None of main, on which the commit was not yet.
    assert parent == shas["parent"]
    assert culprit == shas["bad"]
    assert re.search(r"val_loss .*\+\d+\.\d %", said[compared])
    if culprit != shas["bad"]:
        assert f"not run     {culprit[:8]} ran in its place" in done.out
