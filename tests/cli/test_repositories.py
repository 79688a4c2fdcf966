"""Repositories as they come: build steps, sources in a subfolder, leaks, commits that cannot be
tested, merges. Real trainings where what surrounds them is asked, scripted ones elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Project, git, make_project
from scripted import ScriptedProject, scripted

BUILT = """\
[suite]
name = "tiny"
build = ["make"]
pythonpath = ["src"]
[metrics.val_loss]
direction = "lower"
kind = "quality"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py {seed}"
seeds = [0, 1, 2]
"""
FIT = """\
import random, sys
from celedger.child import log
from package.level import LEVEL
rng = random.Random(int(sys.argv[1]))
for epoch in range(3):
    log(epoch=epoch, val_loss=LEVEL + rng.gauss(0, 0.01))
"""
MAKEFILE = 'src/package/level.py: level.txt\n\techo "LEVEL = $$(cat level.txt)" > $@\n'


@pytest.fixture
def quick(tmp_path: Path) -> ScriptedProject:
    return scripted(tmp_path / "quick")


def built(tmp_path: Path) -> Project:
    project = make_project(tmp_path / "built", BUILT, {"fit.py": FIT})
    files = {"Makefile": MAKEFILE, "src/package/__init__.py": "", ".gitignore": "level.py\n"}
    project.commit("lay out", {**files, "level.txt": "1.0\n"})
    return project


@pytest.mark.matrix
def test_a_build_runs_once_a_commit_and_its_product_is_never_stale(tmp_path: Path) -> None:
    project = built(tmp_path)
    shas = [git(project.root, "rev-parse", "HEAD")]
    shas += [project.commit(f"note {i}", {"notes.txt": f"{i}\n"}) for i in range(3)]
    shas += [project.commit("worse", {"level.txt": "1.5\n"})]
    shas += [project.commit(f"later {i}", {"notes.txt": f"later {i}\n"}) for i in range(3)]
    done = project.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    assert done.status == 0, done.err
    assert f"first bad commit of fit val_loss: {shas[4]}" in done.out


@pytest.mark.matrix
def test_commits_that_do_not_build_are_stepped_around_and_hide_an_answer_honestly(
    tmp_path: Path,
) -> None:
    project = built(tmp_path)
    shas = [git(project.root, "rev-parse", "HEAD")]
    shas += [project.commit("fine", {"notes.txt": "fine\n"})]
    shas += [project.commit("break the build", {"Makefile": "all:\n\tfalse\n"})]
    shas += [project.commit("worse, hidden", {"level.txt": "1.5\n"})]
    shas += [project.commit("mend the build", {"Makefile": MAKEFILE})]
    shas += [project.commit(f"later {i}", {"notes.txt": f"later {i}\n"}) for i in range(2)]
    done = project.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    assert done.status == 125, done.out + done.err
    assert "one of 3" in done.out
    for sha in shas[2:5]:
        assert sha[:7] in done.out
    again = project.run("run", shas[2])
    assert again.status == 125
    assert "untestable" in again.err + again.out


LEAKY = """\
import sys
from celedger.child import log
import model
for epoch in range(4):
    model.step(epoch)
    log(epoch=epoch, val_loss=1.0 + epoch)
"""


@pytest.mark.matrix
def test_a_leak_over_epochs_is_found_without_naming_a_metric(tmp_path: Path) -> None:
    suite = """\
[suite]
name = "tiny"
[metrics.val_loss]
direction = "lower"
kind = "quality"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py {seed}"
"""
    project = make_project(tmp_path / "leak", suite, {"fit.py": LEAKY})
    calm = "def step(epoch):\n    bytes(8_000_000)\n"
    leak = "kept = []\ndef step(epoch):\n    kept.append(bytearray(b'x') * 8_000_000)\n"
    shas = [project.commit(f"calm {i}", {"model.py": calm + f"# {i}\n"}) for i in range(5)]
    shas += [project.commit("cache what was computed", {"model.py": leak})]
    shas += [project.commit(f"more {i}", {"model.py": leak + f"# {i}\n"}) for i in range(4)]
    done = project.run("bisect", f"{shas[0]}..{shas[-1]}")
    assert done.status == 0, done.out + done.err
    # Filling the memory takes time, which on a busy machine may be the clearer sign.
    named = [f"first bad commit of fit {metric}: {shas[5]}" for metric in ("peak_rss", "duration")]
    assert any(line in done.out for line in named), done.out


def test_a_regression_that_came_by_a_merged_branch_is_found_on_the_branch(
    quick: ScriptedProject,
) -> None:
    root = quick.root
    good = quick.history([1.0, 1.0])[0]
    git(root, "checkout", "--quiet", "-b", "side")
    quick.commit("side: notes", {"notes.txt": "a\n"})
    worse = quick.commit("side: worse", {"model.py": "LEVEL = 1.6\n"})
    quick.commit("side: more notes", {"notes.txt": "b\n"})
    git(root, "checkout", "--quiet", "main")
    for i in range(3):
        quick.commit(f"main {i}", {"main.txt": f"{i}\n"})
    git(root, "merge", "--quiet", "--no-ff", "-m", "Merge side", "side")
    merge = git(root, "rev-parse", "HEAD")
    quick.commit("after", {"main.txt": "after\n"})
    found = quick.run("bisect", f"{good}..HEAD", "--metric", "val_loss")
    assert found.status == 0, found.err
    assert worse in found.out
    main_line = quick.run("bisect", f"{good}..HEAD", "--metric", "val_loss", "--first-parent")
    assert main_line.status == 0, main_line.err
    assert f"first bad commit of fit val_loss: {merge}" in main_line.out


def test_an_improvement_is_found_too(quick: ScriptedProject) -> None:
    shas = quick.history([1.5] * 4 + [1.0] * 5)
    done = quick.run(
        "bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss", "--find", "improved"
    )
    assert done.status == 0, done.err
    assert f"first better commit of fit val_loss: {shas[4]}" in done.out


def test_a_dry_run_runs_nothing_and_says_what_it_would_take(quick: ScriptedProject) -> None:
    shas = quick.history([1.0] * 8)
    done = quick.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss", "--dry-run")
    assert done.status == 0, done.err
    assert "7 commits in the range" in done.out
    assert "the two ends need 3 more trials" in done.out
    words = ("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss", "--metric", "peak_rss")
    answer = json.loads(quick.run(*words, "--dry-run", "--json").out)
    assert answer["schema"] == 1
    assert [(plan["commits"], plan["ends"]) for plan in answer["plans"]] == [(7, 3), (7, 3)]
    assert quick.run("log").status != 0


@pytest.mark.matrix
def test_a_training_that_writes_into_its_checkout_cannot_reach_the_next_trial(
    tmp_path: Path,
) -> None:
    script = """\
import os, sys
from celedger.child import log
seen = os.path.exists("checkpoint")
open("checkpoint", "w").write("x")
open("model.py", "a").write("broken(\\n")
log(epoch=0, val_loss=2.0 if seen else 1.0)
"""
    project = make_project(tmp_path / "litter", scripts={"fit.py": script})
    project.history([1.0])
    done = project.run("run", "HEAD", "--repeat", "2")
    assert done.status == 0, done.err
    shown = project.run("show", "HEAD")
    assert "2.0" not in shown.out.partition("val_loss")[2].partition("\n")[0]


@pytest.mark.matrix
def test_with_all_what_the_named_commit_leaves_is_searched_too(quick: ScriptedProject) -> None:
    shas = quick.history([1.0] * 5 + [1.8] * 5 + [2.6] * 5)
    done = quick.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss", "--all", "--json")
    assert done.status == 0, done.out + done.err
    answer = json.loads(done.out)
    reports = [answer["bisect"], *answer["further"]]
    named = {report["culprits"][0] for report in reports if report["status"] == "found"}
    assert named == {shas[5], shas[10]}


def test_several_changes_in_a_range_the_largest_is_named_and_the_others_are_listed(
    quick: ScriptedProject,
) -> None:
    shas = quick.history([1.0] * 5 + [1.3] * 5 + [2.3] * 5)
    quick.run("run", f"{shas[0]}..{shas[-1]}", "--seed", "0")
    done = quick.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    assert done.status == 0, done.out + done.err
    assert f"first bad commit of fit val_loss: {shas[10]}" in done.out
    beside = next(
        line.split() for line in done.out.splitlines() if line.startswith(("  also", "  perhaps"))
    )
    after, by = next(word for word in beside if ".." in word).split("..")
    numbers = [next(i for i, sha in enumerate(shas) if sha.startswith(s)) for s in (after, by)]
    assert numbers[0] < 5 <= numbers[1] < 10
