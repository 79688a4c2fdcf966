from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from celedger.demo.history import DemoHistory, build, materialise
from celedger.demo.library import expand, snapshot
from celedger.demo.steps import branches, steps
from celedger.demo.vocabulary import words
from celedger.errors import RepositoryError
from celedger.repo import Repository
from celedger.suite import command_lines, load

ROOT = Path(__file__).resolve().parents[2]


def trees(history: DemoHistory) -> dict[str, dict[str, bytes]]:
    """All files at every commit, from the changes against first parents."""
    found: dict[str, dict[str, bytes]] = {}
    for commit in history.commits:
        tree = dict(found[commit.parents[0]]) if commit.parents else {}
        for path, content in commit.files.items():
            if content is None:
                del tree[path]
            else:
                assert isinstance(content, bytes)
                tree[path] = content
        found[commit.key] = tree
    return found


def write(tree: dict[str, bytes], place: Path) -> Path:
    for path, content in tree.items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return place


def run_task(history: DemoHistory, tree: Path, task_name: str) -> subprocess.CompletedProcess[str]:
    suite = load(write(dict(history.suite_files), tree / "celedger-suite"))
    (task,) = (task for task in suite.tasks if task.name == task_name)
    ((_, line),) = command_lines(
        task, python=sys.executable, suite_dir=suite.folder, tree=tree, seed=0, out=tree / "out"
    )
    environment = {"PYTHONPATH": f"{tree}:{ROOT}", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    return subprocess.run(line, cwd=tree, env=environment, capture_output=True, text=True)


def test_equal_seeds_give_equal_histories_and_others_do_not():
    assert build(3) == build(3)
    assert build(3).commits != build(4).commits
    positions = {
        tuple([c.key for c in history.commits].index(p.commit) for p in history.planted)
        for history in map(build, range(5))
    }
    assert len(positions) == 5


@pytest.mark.parametrize("seed", range(8))
def test_a_history_has_what_the_demo_promises(seed):
    history = build(seed)
    keys = [commit.key for commit in history.commits]
    assert 55 <= len(keys) == len(set(keys)) <= 65
    assert sorted(p.kind for p in history.planted) == ["crash", "memory", "quality", "speed"]
    assert sum(len(commit.parents or ()) == 2 for commit in history.commits) == 2
    assert len(history.broken) == 2
    assert len({commit.author for commit in history.commits}) >= 3
    assert all(a.time < b.time for a, b in pairwise(history.commits))
    assert all(parent in keys[:i] for i, c in enumerate(history.commits) for parent in c.parents)
    ends = {history.commits[0].key, history.commits[-1].key}
    assert not ends & {*(p.commit for p in history.planted), *history.broken}


@pytest.mark.parametrize("seed", range(8))
def test_every_commit_changes_something_and_only_the_broken_ones_cannot_be_compiled(seed):
    history = build(seed)
    merges = {commit.key for commit in history.commits if len(commit.parents or ()) == 2}
    at = trees(history)
    checked: set[bytes] = set()
    for commit in history.commits:
        tree = at[commit.key]
        before = [at[parent] for parent in commit.parents or ()]
        assert all(tree != other for other in before), commit.key
        if commit.key in merges:  # nothing comes from nowhere
            assert all(any(o.get(p) for o in before) for p in tree)
        syntax = True
        for path, content in tree.items():
            if path.endswith(".py") and content not in checked:
                try:
                    ast.parse(content, path)
                    checked.add(content)
                except SyntaxError:
                    syntax = False
        assert syntax or commit.key in history.broken, commit.key


def test_the_repository_is_made_once_and_found_again(tmp_path):
    made = materialise(tmp_path / "demo", 5)
    repository = Repository.open(tmp_path / "demo")
    assert {planted.kind for planted, _ in made} == {"quality", "speed", "memory", "crash"}
    for planted, sha in made:
        assert repository.commit(sha).subject == planted.subject
    assert not repository.is_dirty()
    assert materialise(tmp_path / "demo", 5) == made
    with pytest.raises(RepositoryError, match="not the demo of seed 6"):
        materialise(tmp_path / "demo", 6)


def test_no_step_or_word_of_the_templates_is_unknown():
    vocabulary = words(Random(0))
    for flags in (frozenset(), frozenset(steps()), *(frozenset({n}) for n in steps())):
        snapshot("library", flags, vocabulary)  # KeyError for a word that is not there
    for name, inside in branches().items():
        needed = {need for step in inside for need in steps()[step].needs}
        assert needed <= set(inside) <= steps().keys(), f"{name} needs more than is on it"
    for step in steps().values():
        assert step.needs | step.excludes <= steps().keys()
        flags = step.needs | {step.name}
        assert snapshot("library", flags, vocabulary) != snapshot(
            "library", step.needs, vocabulary
        ), f"{step.name} changes nothing"


def test_directives_nest_and_choose_one_branch():
    template = "#% if a\n1\n#% if b or not c\n2\n#% end\n#% elif b\n3\n#% else\n4 @word@\n#% end"
    told = {"word": "w"}
    assert expand(template, {"a"}, told) == "1\n2\n"
    assert expand(template, {"a", "c"}, told) == "1\n"
    assert expand(template, {"b"}, told) == "3\n"
    assert expand(template, set(), told) == "4 w\n"
    assert expand("#% file if a\nx", set(), told) is None
    with pytest.raises(ValueError, match="without #% end"):
        expand("#% if a", set(), told)
    with pytest.raises(ValueError, match="without #% if"):
        expand("#% else", set(), told)


def test_tasks_run_at_the_first_commit_and_crash_where_the_truth_says(tmp_path):
    history = build(1)
    at = trees(history)
    first = write(at[history.commits[0].key], tmp_path / "first")
    for task in ("mlp", "conv", "resume"):
        done = run_task(history, first, task)
        assert done.returncode == 0, done.stderr
    (crash,) = (planted for planted in history.planted if planted.kind == "crash")
    (commit,) = (commit for commit in history.commits if commit.key == crash.commit)
    before = write(at[commit.parents[0]], tmp_path / "before")
    after = write(at[crash.commit], tmp_path / "after")
    head = write(at[history.commits[-1].key], tmp_path / "head")
    assert run_task(history, before, crash.task).returncode == 0
    assert run_task(history, after, crash.task).returncode == 1
    assert run_task(history, head, crash.task).returncode == 1
    assert run_task(history, head, "mlp").returncode == 0


@pytest.mark.parametrize(
    "step",
    [s for s in steps().values() if s.plant and s.plant.kind == "crash"],
    ids=lambda s: s.name,
)
def test_every_kind_of_crash_breaks_its_own_task_only(step, tmp_path):
    told = words(Random(2))
    history = replace(build(2), suite_files=snapshot("suite", frozenset(), told))
    tree = write(snapshot("library", {step.name}, told), tmp_path)
    for task in ("conv", "resume"):
        assert (run_task(history, tree, task).returncode != 0) == (task == step.plant.task)


@pytest.mark.parametrize("name", sorted(s.name for s in steps().values() if s.repairs))
def test_a_broken_commit_does_not_import_and_its_repair_does(name, tmp_path):
    vocabulary = words(Random(0))
    for flags, status in (({name}, 1), ({name, steps()[name].repaired}, 0)):
        tree = write(snapshot("library", flags, vocabulary), tmp_path / str(status))
        done = subprocess.run(
            [sys.executable, "-c", f"import {vocabulary['package']}"], cwd=tree, capture_output=True
        )
        assert done.returncode == status, done.stderr


@pytest.mark.parametrize("version", ["plain", "grown"])
def test_the_library_passes_its_own_tests_when_nothing_is_planted(version, tmp_path):
    flags = {s.name for s in steps().values() if not s.plant and not s.repairs}
    if version == "plain":
        flags = {name for name in flags if name.startswith("tests_")}
    write(snapshot("library", flags, words(Random(1))), tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
