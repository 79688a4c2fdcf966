"""What celedger keeps is its owner's alone; a training gets the umask of the person."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PEOPLE, SUITE, Project, git, make_project, with_verbs

from celedger.repo import Repository
from celedger.service import hooks

from .conftest import Bell, branch_ahead

FIT = """\
import os, sys
from celedger.child import log
from model import LEVEL
open(sys.argv[1] + "/weights", "w").write("x")
mask = os.umask(0)
log(epoch=0, val_loss=LEVEL, mask=mask, tracked=os.stat("model.py").st_mode)
"""


@pytest.fixture(params=[0o022, 0o027], ids=oct)
def mask(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("CELEDGER_TESTS_EXEC", "1")  # a process of ours, with our umask
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def others(path: Path) -> int:
    """What others than its owner may do with it."""
    return 0 if path.is_symlink() else stat.S_IMODE(path.lstat().st_mode) & 0o077


@pytest.mark.matrix
@with_verbs("plot")
def test_files_of_celedger_are_their_owners_alone(
    mask: int, tmp_path: Path, interpreter: str, bell: Bell
) -> None:
    suite = SUITE.replace("--seed {seed}", "{out}").replace("[0, 1]", "[0]")
    project = make_project(tmp_path / "project", suite, {"fit.py": FIT})
    assert project.run("hook", "install").status == 0
    hooks.install(Repository.open(project.root), interpreter)  # which rings the bell
    project.history([1.0])
    branch_ahead(project)
    git(project.root, "merge", "-q", "next", env=PEOPLE)
    assert bell.wait() == "ended 0"
    assert "nothing is worse" in project.run("queue").out
    assert project.run("run", "HEAD", "--force").status in (0, 1)
    state, beside = project.root / ".git" / "celedger", project.root / ".celedger"
    ours = [state, beside, project.root / "ledger.db", state / "worker.log",
            *state.glob("queue"), *beside.rglob("*.log"), *beside.glob("*"), *beside.glob("out/*"),
                *beside.glob("out/*/*"),
            *(state / "allowed").iterdir(), *state.glob("checkouts/*"), *state.glob("*.lock"),
            project.root / ".git" / "hooks" / "post-merge"]  # fmt: skip
    assert len(ours) > 15
    assert [str(path) for path in ours if others(path)] == []
    # And the person's own files, and the training's, are as ever.
    shown = project.run("plot", "curves", "HEAD", "--metric", "mask", "-o", "curve.png")
    assert shown.status == 0, shown.err
    assert others(project.root / "curve.png") == 0o066 & ~mask & 0o044
    weights = list(beside.glob("out/*/*/weights"))
    assert len(weights) >= 1
    assert {others(path) for path in weights} == {0o044 & ~mask}
    assert f"{mask:d}" in project.run("show", "--json").out


def test_init_writes_the_persons_files_as_the_person_does(tmp_path: Path, mask: int) -> None:
    git(tmp_path, "init", "-q")
    Project(tmp_path).commit("first")
    assert Project(tmp_path).run("init").status == 0
    for name in ("celedger.toml", "suites/first/suite.toml"):
        assert others(tmp_path / name) == 0o044 & ~mask
