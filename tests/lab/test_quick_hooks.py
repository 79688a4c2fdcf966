"""pre-push and pre-commit, through real git and real trainings."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PEOPLE, UNCOMPILED, Project, git, make_project

from celedger.system.warm import LAUNCHERS, end_kept, kept

SUITE = """\
[suite]
name = "tiny"
preload = ["torch"]
[metrics.val_loss]
direction = "lower"
kind = "quality"
[[task]]
name = "fit"
command = "{python} fit.py {seed}"
"""
FIT = (
    UNCOMPILED
    + """\
import torch
torch.manual_seed(int(sys.argv[1]))
rows = torch.randn(64, 4)
net = torch.nn.Linear(4, 1)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(6):
    optimiser.zero_grad()
    net(rows).square().mean().backward()
    optimiser.step()
"""
)
OTHER = FIT.replace("lr=0.1", "lr=0.2")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = make_project(tmp_path / "project", SUITE, {"none.py": ""})
    made.commit("one", {"fit.py": FIT})
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "remote")], check=True)
    git(made.root, "remote", "add", "origin", str(tmp_path / "remote"))
    git(made.root, "push", "-q", "origin", "main")
    yield made
    end_kept(made.root / ".git" / "celedger" / LAUNCHERS)


def typed(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **PEOPLE}
    return subprocess.run(
        ["git", "-C", str(project.root), *words], capture_output=True, text=True, env=env
    )


def tip(project: Project) -> str:
    return git(project.root, "ls-remote", "origin", "main").split()[0]


@pytest.mark.matrix
def test_a_push_is_compared_with_what_the_remote_has_and_goes_on(project: Project) -> None:
    assert project.run("hook", "install", "--pre-push").status == 0
    sha = project.commit("two", {"fit.py": OTHER})
    done = typed(project, "push", "origin", "main")
    assert done.returncode == 0, done.stderr
    assert "celedger: fit: different from step 1: the optimiser's lr: 0.1 → 0.2" in done.stderr
    assert tip(project) == sha
    project.commit("three", {"fit.py": f"{OTHER}# a comment\n"})
    assert "celedger: fit: same bits in 6 steps" in typed(project, "push", "origin", "main").stderr
    project.commit("four", {"fit.py": FIT})
    new = typed(project, "push", "origin", "main:other").stderr  # a branch that it has not
    assert "fit: different from step 1" in new
    subprocess.run(["git", "init", "-q", "--bare", str(project.root / ".git" / "r")], check=True)
    new = typed(project, "push", ".git/r", "main").stderr
    assert "refs/heads/main is not compared: nothing before it is known to be on" in new
    gone = typed(project, "push", "origin", ":other")
    assert (gone.returncode, "celedger" in gone.stderr) == (0, False)


@pytest.mark.matrix
def test_it_blocks_where_it_was_asked_to_and_the_users_hook_decides_first(
    project: Project, tmp_path: Path
) -> None:
    users = project.root / ".git" / "hooks" / "pre-push"
    users.parent.mkdir(exist_ok=True)
    seen = tmp_path / "seen"
    text = f"#!/bin/sh\ncat >{seen}\ntest ! -e {tmp_path / 'no'}\n"
    users.write_text(text)
    users.chmod(0o755)
    done = project.run("hook", "install", "--pre-push", "--block")
    assert f"{users}: installed, the earlier hook runs first" in done.out
    before = tip(project)
    sha = project.commit("two", {"fit.py": OTHER})
    done_push = typed(project, "push", "origin", "main")
    assert done_push.returncode != 0
    assert (tip(project), seen.read_text().split()[1]) == (before, sha)
    assert typed(project, "push", "--no-verify", "origin", "main").returncode == 0

    (tmp_path / "no").touch()
    project.commit("three", {"fit.py": f"{OTHER}# a comment\n"})
    refused = typed(project, "push", "origin", "main")
    assert (refused.returncode != 0, "same bits" in refused.stderr) == (True, False)

    renewed = project.run("hook", "install")  # keeps what was asked for
    assert "block=yes" in users.read_text() and f"{users}: installed" in renewed.out
    gone = project.run("hook", "uninstall")
    assert f"{users}: the earlier hook is back" in gone.out
    assert users.read_text() == text


@pytest.mark.matrix
def test_a_commit_is_what_the_index_has(project: Project) -> None:
    assert project.run("hook", "install", "--pre-commit", "--block").status == 0
    (project.root / "fit.py").write_text(f"{FIT}# staged\n")
    assert "same bits" in project.run("same").out
    git(project.root, "add", "fit.py")
    (project.root / "fit.py").write_text(OTHER)  # and not staged
    done = typed(project, "commit", "-m", "a comment")
    assert done.returncode == 0, done.stderr
    assert "celedger: index at " in done.stderr and "fit: same bits in 6 steps" in done.stderr
    assert kept(project.root / ".git" / "celedger" / LAUNCHERS) == 1  # in a hook, too
    refused = typed(project, "commit", "-a", "-m", "all")
    assert refused.returncode == 1
    assert "the optimiser's lr: 0.1 → 0.2" in refused.stderr
    (project.root / "other.py").write_text("1\n")
    git(project.root, "add", "other.py")
    part = typed(project, "commit", "-m", "a part", "other.py")  # an index of its own
    assert part.returncode == 0, part.stderr
    assert git(project.root, "show", "--format=", "--name-only") == "other.py"


def test_only_an_allowed_suite_runs_and_nothing_hinders_a_push(project: Project) -> None:
    assert project.run("hook", "install", "--pre-push", "--block").status == 0
    suite = project.root / "suites" / "tiny" / "suite.toml"
    suite.write_text(suite.read_text().replace("fit.py {seed}", "fit.py {seed} --new"))
    project.commit("two", {"fit.py": OTHER})
    done = typed(project, "push", "origin", "main")
    assert done.returncode == 0, done.stderr
    assert "celedger: not compared: " in done.stderr and "celedger allow" in done.stderr


def test_words_that_make_no_sense_are_a_line(project: Project) -> None:
    done = project.run("hook", "install", "--block")
    assert (done.status, "--block is for --pre-push" in done.err) == (129, True)
    done = project.run("hook", "run", "pre-rebase")
    assert (done.status, "'pre-rebase' is not a hook" in done.err) == (129, True)
