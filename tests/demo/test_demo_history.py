from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from celedger.base.errors import UsageError
from celedger.cli import demo_play as play
from celedger.demo.made_history import (
    KINDS,
    DemoHistory,
    Edit,
    build,
    edits,
    library,
    materialise,
    suite,
    words,
)
from celedger.repo import Repository
from celedger.suite import command_lines, load

ROOT = Path(__file__).resolve().parents[2]


def write(files: dict[str, str], folder: Path) -> Path:
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


FORKS = """
import json, os, runpy, sys, traceback
import torch, celedger.child.torch
for tree, argv in json.loads(sys.argv[1]):
    if (pid := os.fork()) == 0:
        os.chdir(tree)
        sys.path.insert(0, tree)
        sys.argv, status = argv, 1
        try:
            runpy.run_path(argv[0], run_name="__main__")
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def order(changes: list[Edit], name: str, options: str, folder: Path) -> tuple[str, list[str]]:
    """Return a tree, the library after the changes, and a task's command there."""
    vocabulary = words(Random(2))
    tree = write(library(changes, vocabulary) | suite(vocabulary), folder)
    measured = load(tree / "suites" / vocabulary["suite"])
    (task,) = (task for task in measured.tasks if task.name == name)
    ((_, line),) = command_lines(
        task, python=sys.executable, suite_dir=measured.folder, tree=tree, seed=0, out=tree
    )
    return str(tree), [*line[1:], *options.split()]


def broken(history: DemoHistory) -> set[str]:
    """Return the keys of the commits that cannot be imported."""
    subjects = {edit.subject for edit in edits() if edit.repair}
    return {c.key for c in history.commits if c.message.strip() in subjects}


def test_equal_seeds_give_equal_histories_and_others_do_not():
    assert build(3) == build(3)
    assert build(3).commits != build(4).commits
    assert len({tuple(build(seed).planted.items()) for seed in range(5)}) == 5


def test_a_history_has_what_the_demo_promises():
    for seed in range(40):
        history = build(seed)
        keys = [commit.key for commit in history.commits]
        assert 20 <= len(keys) == len(set(keys)) <= 25
        assert sorted(history.planted) == sorted(KINDS)
        assert sum(len(commit.parents or ()) == 2 for commit in history.commits) == 1
        assert len(broken(history)) == 2
        assert len({commit.author for commit in history.commits}) >= 2
        assert all(a.time < b.time for a, b in pairwise(history.commits))
        assert all(commit.files for commit in history.commits)  # every commit changes something
        for i, commit in enumerate(history.commits):
            assert set(commit.parents or ()) <= set(keys[:i])
        assert not {keys[0], keys[-1]} & {*history.planted.values(), *broken(history)}


def test_edits_come_in_any_order_and_leave_python_that_can_be_compiled():
    random = Random(0)
    for seed in range(10):
        vocabulary = words(Random(seed))
        chosen = [random.choice([e for e in edits() if e.kind == kind]) for kind in KINDS]
        chosen += [edit for edit in edits() if edit.kind == "ordinary"]
        random.shuffle(chosen)
        chosen += [each for e in edits() if e.repair for each in (e, e.repair)]
        files = library(chosen, vocabulary) | suite(vocabulary)
        assert not any("@" in line for line in files["README.md"].splitlines())
        for path, text in files.items():
            if path.endswith(".py"):
                ast.parse(text, path)
    with pytest.raises(ValueError, match="not there once"):
        library([edits()[0], edits()[0]], vocabulary)


def test_the_repository_is_made_once_and_found_again(tmp_path):
    made = materialise(tmp_path / "demo", 5)
    repository = Repository.open(tmp_path / "demo")
    subjects = {edit.subject: edit.kind for edit in edits()}
    assert {subjects[repository.commit(sha).subject]: sha for sha in made.values()} == made
    assert not repository.is_dirty()
    assert materialise(tmp_path / "demo", 5) == made
    with pytest.raises(UsageError, match="not the demo of seed 6"):
        materialise(tmp_path / "demo", 6)


def test_a_folder_with_something_else_and_a_lack_of_torch_are_refused(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").touch()
    monkeypatch.setattr(play, "find_spec", lambda name: object())
    with pytest.raises(UsageError, match="is not empty and not the demo of seed 0"):
        play.set_stage(tmp_path, 0)
    monkeypatch.setattr(play, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="the demo trains with torch"):
        play.set_stage(tmp_path / "new", 0)
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(find_spec("torch") is None, reason="needs celedger[torch]")
@pytest.mark.matrix
def test_tasks_run_and_each_crash_breaks_only_its_own(tmp_path):
    """All forked from one process: importing torch takes longer than these trainings."""
    crashes = [edit for edit in edits() if edit.kind == "crash"]
    orders = [
        order([], "resume", "", tmp_path / "first"),
        order(crashes, "mlp", "--epochs 1", tmp_path / "both"),
        *(order([crash], "resume", "", tmp_path / str(i)) for i, crash in enumerate(crashes)),
    ]
    done = subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps(orders)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["0", "0", *["1" for _ in crashes]], done.stderr


@pytest.mark.parametrize("number", range(2))
def test_a_broken_commit_does_not_import_and_its_repair_does(number, tmp_path):
    vocabulary = words(Random(0))
    edit = [edit for edit in edits() if edit.repair][number]
    assert edit.repair is not None
    code = f"""
import sys
from unittest.mock import MagicMock
sys.modules |= {{name: MagicMock() for name in ("torch", "torch.nn", "torch.nn.functional")}}
import {vocabulary["package"]}
"""
    for changes, status in (([edit], 1), ([edit, edit.repair], 0)):
        tree = write(library(changes, vocabulary), tmp_path / str(status))
        done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True)
        assert done.returncode == status, done.stderr
