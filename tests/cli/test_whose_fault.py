"""Whose fault a failure is: the commit's, the interpreter's, or this clone's. Only the first is
held against a commit."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Done, Project, git
from scripted import Report, scripted


def once(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
    yield {"epoch": 0, "val_loss": model["LEVEL"]}


def outcomes(project: Project, sha: str) -> list[str]:
    with sqlite3.connect(project.root / "ledger.db") as connection:
        found = connection.execute(
            "SELECT outcomes.kind FROM trials JOIN outcomes ON outcomes.trial = trials.id "
            "JOIN commits ON commits.id = trials.revision WHERE sha = ?", (sha,),
        )  # fmt: skip
        return [kind for (kind,) in found]


def importing(tmp_path: Path, *modules: str) -> tuple[Project, list[str]]:
    """A commit for each of these modules, whose model imports it ("" for none)."""
    project = scripted(tmp_path / "project", training=once)
    return project, [
        project.commit(
            f"number {i}", {"model.py": f"import {name or 'sys'}\nLEVEL, N = 1.0, {i}\n"}
        )
        for i, name in enumerate(modules)
    ]


def test_a_module_that_the_interpreter_lacks_is_no_commits_fault(tmp_path: Path) -> None:
    project, (fine, lacking, *_) = importing(tmp_path, "", "no_such_torch")
    said = "this interpreter has no no_such_torch: set `python =` in suite.toml"
    ran = project.run("run", lacking)
    assert ran.status == 125
    assert said in ran.err
    assert project.run("check", fine).status != 1
    checked = project.run("check", lacking, "--json")
    assert checked.status == 125
    assert said in json.loads(checked.out)["standings"][0]["note"]
    searched = project.run("bisect", f"{fine}..{lacking}")
    assert searched.status == 125
    assert said in searched.err
    assert "crash" not in searched.out


@pytest.mark.parametrize(
    ("name", "hinted"),
    [("data/train.csv", True), ("model.py", False), ("absent.csv", False)],
)
def test_a_file_that_git_does_not_track_is_explained(
    tmp_path: Path, name: str, hinted: bool
) -> None:
    def reading(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
        yield {"epoch": 0, "val_loss": 1.0}
        raise FileNotFoundError(2, os.strerror(2), name)

    project = scripted(tmp_path / "project", training=reading)
    (sha,) = project.history([1.0])
    (project.root / "data").mkdir()
    (project.root / "data" / "train.csv").touch()
    ran = project.run("run", sha)
    assert f"No such file or directory: '{name}'" in ran.err
    assert ("a trial sees only files that git tracks (docs/how-to.md" in ran.err) == hinted


def test_a_commit_that_needs_such_a_module_is_stepped_around(tmp_path: Path) -> None:
    levels = [1.0, 1.0, 1.0, 1.0, 1.5, 1.5]
    project = scripted(tmp_path / "project")
    shas = project.history(levels[:2])
    text = "import no_such_torch\nLEVEL = 1.0\n"
    shas += [project.commit("try another package", {"model.py": text})]
    shas += project.history(levels[3:])
    done = project.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    assert done.status == 0, done.err
    assert f"first bad commit of fit val_loss: {shas[4]}" in done.out


def test_a_module_that_some_commit_has_is_the_codes(tmp_path: Path) -> None:
    project, (forgotten,) = importing(tmp_path, "layers")
    project.commit("add what was forgotten", {"layers/dense.py": ""})
    (fine,) = project.history([1.0])
    git(project.root, "rm", "-rq", "layers")
    removed = project.commit("remove it", {"model.py": "import layers\nLEVEL = 1.0\n"})
    for sha in (forgotten, removed):
        done = project.run("check", sha)
        assert done.status == 1, done.out
        assert outcomes(project, sha) == ["failed", "failed"]
    found = project.run("bisect", f"{fine}..{removed}")
    assert found.status == 0, found.err
    assert f"first bad commit of fit crash: {removed}" in found.out


def test_both_ends_that_fail_alike_are_no_reason_for_an_older_good_end(tmp_path: Path) -> None:
    project, shas = importing(tmp_path, "no_such_torch", "no_such_torch", "no_such_torch")
    lacking = project.run("bisect", f"{shas[0]}..{shas[-1]}")
    assert lacking.status == 125
    assert "at both ends: this interpreter has no no_such_torch" in lacking.err
    assert "good end" not in lacking.err
    crash = project.commit("x", {"model.py": "raise OSError('no data at 0x7f01')\n"})
    later = project.commit("y", {"model.py": "raise OSError('no data at 0x7f02')\n"})
    failing = project.run("bisect", f"{crash}..{later}")
    assert failing.status == 125
    assert "fails in the same way at both ends: exit status 1: OSError: no data" in failing.err
    assert "good end" not in failing.err
    assert project.run("show", crash[:10]).status == 0
    other = project.commit("z", {"model.py": "raise ValueError('other')\n"})
    assert "choose an older good end" in project.run("bisect", f"{crash}..{other}").err


def test_a_good_end_that_needs_a_removed_name_of_a_package_asks_for_a_newer_one(
    tmp_path: Path,
) -> None:
    project, (removed,) = importing(tmp_path, "json.no_such_part")
    moved = "raise ImportError(\"cannot import name 'relu' from 'layers.dense'\")\n"
    own = project.commit("own", {"model.py": moved, "layers/dense.py": ""})
    project.commit("fine", {"model.py": "LEVEL = 1.0\n"})
    newer = "choose a newer good end: this json lacks what older ones ask for, too"
    assert newer in project.run("bisect", f"{removed}..HEAD").err
    assert "choose an older good end" in project.run("bisect", f"{own}..HEAD").err


def blob_file(project: Project, sha: str, name: str) -> Path:
    blob = git(project.root, "rev-parse", f"{sha}:{name}")
    return project.root / ".git" / "objects" / blob[:2] / blob[2:]


def asked_again(project: Project, sha: str, what: str) -> Done:
    """The clone fails: nothing is kept of it, and the command says what failed."""
    for words in (("run", sha), ("check", sha)):
        done = project.run(*words)
        assert done.status == 128, done.err + done.out
        assert what in done.err
    assert set(outcomes(project, sha)) == {"interrupted"}
    return done


@pytest.mark.matrix
def test_an_object_that_this_clone_lacks_is_not_held_against_the_commit(project: Project) -> None:
    shas = project.history([1.0, 1.0, 1.5])
    lost = blob_file(project, shas[1], "model.py")
    content = lost.read_bytes()
    lost.unlink()
    assert shas[1][:10] in asked_again(project, shas[1], "cannot check out").err
    lost.write_bytes(content)
    mended = project.run("run", shas[1])
    assert mended.status == 0, mended.err


@pytest.mark.matrix
def test_a_filter_that_fails_is_not_held_against_the_commit(project: Project) -> None:
    store = project.root.parent / "store"
    git(project.root, "config", "filter.store.smudge", f"cat {store}")
    git(project.root, "config", "filter.store.clean", "cat")
    git(project.root, "config", "filter.store.required", "true")
    sha = project.commit(
        "stored elsewhere",
        {".gitattributes": "*.bin filter=store\n", "a.bin": "x", "model.py": "LEVEL = 1.0\n"},
    )
    asked_again(project, sha, "filter")
    store.write_text("x")
    mended = project.run("run", sha)
    assert mended.status == 0, mended.err


@pytest.mark.matrix
def test_a_bisect_steps_around_a_commit_that_this_clone_lacks_until_it_is_there(
    project: Project,
) -> None:
    shas = project.history([1.0] * 4 + [1.5] * 3)
    lost = {sha: blob_file(project, sha, "model.py") for sha in shas}
    kept = {sha: path.read_bytes() for sha, path in lost.items()}
    words = ("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    lost[shas[3]].unlink()
    around = project.run(*words)
    assert around.status == 125, around.out + around.err
    assert f"{shas[3][:10]} is skipped: cannot check out" in around.err
    assert "is one of 2" in around.out
    lost[shas[3]].write_bytes(kept[shas[3]])
    again = project.run(*words)
    assert again.status == 0, again.err
    assert f"first bad commit of fit val_loss: {shas[4]}" in again.out


@pytest.mark.matrix
def test_a_bisect_in_a_clone_that_lacks_everything_ends(project: Project) -> None:
    shas = project.history([1.0] * 8 + [1.5])
    for end in (shas[0], shas[-1]):
        project.run("run", end)
    for sha in shas[1:-1]:
        blob_file(project, sha, "model.py").unlink()
    done = project.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    assert done.status == 128, done.out + done.err
    assert done.err.count("is skipped") == 3
    assert done.err.count("cannot check out") == 4


def kill_first(tmp_path: Path, *words: str) -> list[Done]:
    """A commit with a trial that is fine; then these words, whose first trial somebody kills; and
    the same once more."""
    kills: list[int] = []

    def training(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
        if kills:
            raise SystemExit(kills.pop())
        yield from once(model, seed)

    project = scripted(tmp_path / "project", training=training)
    project.history([1.0, 1.0])
    for before in (["HEAD~1", "--repeat", "2"], ["HEAD", "--seed", "0"]):
        fine = project.run("run", *before)
        assert fine.status == 0, fine.err
    kills.append(128 + signal.SIGKILL)
    return [project.run(*words) for _ in range(2)]


def test_a_command_whose_only_trial_was_killed_does_not_pass_by_an_older_one(
    tmp_path: Path,
) -> None:
    killed, fine = kill_first(tmp_path, "run", "--seed", "0", "--force")
    assert (killed.status, fine.status) == (125, 0), killed.err + killed.out
    assert "killed" in killed.err


def test_a_check_does_not_pass_by_the_seeds_that_were_not_killed(tmp_path: Path) -> None:
    killed, fine = kill_first(tmp_path, "check", "--lenient", "--budget", "0")
    assert (killed.status, fine.status) == (125, 0), killed.err + killed.out + fine.out
    assert "killed" in killed.err
