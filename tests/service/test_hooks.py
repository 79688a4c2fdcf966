"""The hooks: how they come and go, when they fire, and that they cannot be in the way.

What stands where the interpreter should is a script that says when it was started: real git runs
the real hooks, without the second that a worker takes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PEOPLE, Project, celedger, git, make_project

from celedger.base import shipped
from celedger.base.errors import MachineError, RepositoryError
from celedger.repo import Repository
from celedger.service import hooks
from celedger.service.hooks import HookState

from .conftest import Bell, branch_ahead

Program = Callable[[Path, str], str]
RING = 'echo "$*" >"$BELL"'
STARTED = "-P -m celedger worker --from-hook"


@pytest.fixture
def python(tmp_path: Path, program: Program) -> str:
    return program(tmp_path / "bin" / "python", RING)


def notes(root: Path) -> list[str]:
    return [p.read_text() for p in (root / ".git" / "celedger" / "queue").glob("*.moved")]


def states(project: Project, python: str) -> list[HookState]:
    return [hook.state for hook in hooks.status(Repository.open(project.root), python)]


def foreign(folder: Path, text: str, name: str = "post-merge") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# --- install, status, uninstall


def test_install_status_and_uninstall_say_what_they_did(project: Project) -> None:
    folder = project.root / ".git" / "hooks"
    before = sorted(folder.iterdir())
    done = project.run("hook", "install")
    assert done.status == 0, done.err
    assert done.out.count(": installed\n") == 2
    texts = [(folder / name).read_bytes() for name in hooks.NAMES]
    assert project.run("hook", "install").out == done.out
    assert [(folder / name).read_bytes() for name in hooks.NAMES] == texts
    assert not list(folder.glob("*.legacy"))
    assert project.run("hook", "status").out == done.out
    gone = project.run("hook", "uninstall")
    assert gone.out.count(": removed\n") == 2
    assert sorted(folder.iterdir()) == before
    assert hooks.uninstall(Repository.open(project.root)) == []


def test_another_interpreter_makes_a_hook_outdated_and_install_renews_it(
    project: Project, python: str
) -> None:
    repository = Repository.open(project.root)
    assert states(project, python) == [HookState.ABSENT] * 2
    hooks.install(repository, "/old/python")
    assert states(project, python) == [HookState.OUTDATED] * 2
    hooks.install(repository, python)
    assert states(project, python) == [HookState.CURRENT] * 2


def test_a_hook_that_was_copied_by_hand_works_and_install_renews_it(
    project: Project, python: str, tmp_path: Path, program: Program, bell: Bell
) -> None:
    repository = Repository.open(project.root)
    copied = repository.hooks_dir() / "post-merge"
    shutil.copy2(shipped("hooks") / "post-merge", copied)
    foreign(repository.hooks_dir(), "exit 3", "post-merge.legacy")
    program(tmp_path / "other" / "celedger", RING)
    env = {**os.environ, "PATH": f"{tmp_path / 'other'}:{os.environ['PATH']}"}
    assert subprocess.run([copied, "0"], cwd=project.root, env=env).returncode == 3
    assert bell.wait() == "worker --from-hook"
    assert notes(project.root) == [str(project.root)]
    assert states(project, python) == [HookState.OUTDATED, HookState.ABSENT]
    hooks.install(repository, python)
    assert states(project, python) == [HookState.CURRENT] * 2


def test_a_foreign_hook_runs_first_with_its_arguments_and_stdin_and_keeps_its_status(
    project: Project, python: str, bell: Bell, tmp_path: Path
) -> None:
    repository = Repository.open(project.root)
    said = tmp_path / "said"
    script = f'printf "%s," "$@" >"{said}"; cat >>"{said}"; exit 3'
    theirs = foreign(repository.hooks_dir(), script, "post-rewrite")
    text = theirs.read_bytes()
    hooks.install(repository, python)
    hooks.install(repository, python)  # once more: our own hook is not a foreign one
    assert [h.chains for h in hooks.status(repository, python)] == [False, True]
    done = subprocess.run([theirs, "rebase", "a b"], cwd=project.root, input=b"old new\n")
    assert done.returncode == 3
    assert said.read_text() == "rebase,a b,old new\n"
    assert bell.wait() == STARTED
    hooks.uninstall(repository)
    assert theirs.read_bytes() == text
    assert os.access(theirs, os.X_OK)
    assert not list(repository.hooks_dir().glob("*.legacy"))


def test_a_foreign_hook_that_fails_or_is_off_changes_nothing(
    project: Project, python: str, bell: Bell
) -> None:
    repository = Repository.open(project.root)
    project.commit("first")
    branch_ahead(project)
    off = foreign(repository.hooks_dir(), "echo never; exit 9")
    off.chmod(0o644)
    hooks.install(repository, python)
    assert "never" not in git(project.root, "merge", "next")
    assert bell.wait() == STARTED


def test_a_foreign_hook_and_a_kept_one_are_not_overwritten(project: Project, python: str) -> None:
    repository = Repository.open(project.root)
    folder = repository.hooks_dir()
    theirs = [foreign(folder, "true", f"post-rewrite{end}") for end in ("", ".legacy")]
    texts = {path: path.read_bytes() for path in theirs}
    with pytest.raises(RepositoryError, match="neither is celedger's"):
        hooks.install(repository, python)
    assert {p: p.read_bytes() for p in texts} == texts
    assert not (folder / "post-merge").exists()  # all or none


def test_a_hook_manager_that_came_later_keeps_ours_alive(
    project: Project, python: str, bell: Bell
) -> None:
    """pre-commit too renames what it finds to NAME.legacy."""
    repository = Repository.open(project.root)
    project.commit("first")
    branch_ahead(project)
    folder = repository.hooks_dir()
    hooks.install(repository, "/old/python")
    (folder / "post-merge").rename(folder / "post-merge.legacy")
    manager = foreign(folder, '"$0.legacy" "$@"')
    text = manager.read_bytes()
    assert states(project, python)[0] is HookState.OUTDATED
    hooks.install(repository, python)
    assert states(project, python)[0] is HookState.CURRENT
    git(project.root, "merge", "-q", "next")
    assert bell.wait() == STARTED
    hooks.uninstall(repository)
    assert manager.read_bytes() == text
    assert not (folder / "post-merge.legacy").exists()


def test_a_link_to_nowhere_is_a_foreign_hook(project: Project, python: str) -> None:
    repository = Repository.open(project.root)
    link = repository.hooks_dir() / "post-merge"
    link.symlink_to("../../gone")
    hooks.install(repository, python)
    hooks.uninstall(repository)
    assert link.readlink() == Path("../../gone")


def test_a_folder_that_cannot_be_written_is_one_sentence(project: Project, python: str) -> None:
    repository = Repository.open(project.root)
    shutil.rmtree(repository.hooks_dir())
    repository.hooks_dir().write_text("no folder")
    with pytest.raises(MachineError, match="cannot be read or written"):
        hooks.install(repository, python)


# --- core.hooksPath


@pytest.mark.parametrize("scope", ["--local", "--global"])
def test_with_hooks_path_the_printed_line_does_the_work(
    scope: str, project: Project, tmp_path: Path, python: str, bell: Bell
) -> None:
    theirs = tmp_path / "their hooks"
    git(project.root, "config", scope, "core.hooksPath", str(theirs))
    project.commit("first")
    branch_ahead(project)
    done = project.run("hook", "install")
    assert done.status == 0
    assert str(theirs) in done.out
    assert not theirs.exists()
    assert not (project.root / ".git" / "hooks" / "post-merge").exists()
    assert states(project, python) == [HookState.UNCALLED] * 2
    # Whoever follows the advice, word by word, with an interpreter that tells us of it.
    hooks.install(Repository.open(project.root), python)
    for name, line in zip(hooks.NAMES, [t for t in done.out.splitlines() if t[:1] == " "]):  # noqa: B905
        foreign(theirs, line, name)
    assert states(project, python) == [HookState.CALLED] * 2
    git(project.root, "merge", "-q", "next")
    assert bell.wait() == STARTED
    assert notes(project.root) == [str(project.root)]
    # A folder of hooks for all repositories: in those without celedger the line does nothing.
    other = make_project(tmp_path / "other")
    git(other.root, "config", "core.hooksPath", str(theirs))
    ran = subprocess.run([theirs / "post-merge", "0"], cwd=other.root, capture_output=True)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, b"")
    hooks.uninstall(Repository.open(project.root))
    assert states(project, python) == [HookState.UNCALLED] * 2


def test_a_hooks_path_that_is_gits_own_folder_is_no_other_place(
    project: Project, python: str
) -> None:
    git(project.root, "config", "core.hooksPath", ".git/hooks")
    hooks.install(Repository.open(project.root), python)
    assert states(project, python) == [HookState.CURRENT] * 2
    assert (project.root / ".git" / "hooks" / "post-merge").exists()


# --- when they fire


def upstream(project: Project, folder: Path) -> tuple[Project, Project]:
    """The project and a clone of it; the project gets one commit more."""
    project.history([1.0])
    git(folder, "clone", "-q", str(project.root), "clone")
    clone = Project(folder / "clone")
    project.commit("upstream", {"up.py": "1\n"})
    return project, clone


@pytest.mark.parametrize(
    ("local", "words"),
    [(False, ["pull"]), (False, ["pull", "--rebase"]), (True, ["pull", "--no-rebase", "--no-edit"]),
     (True, ["pull", "--rebase"]), (True, ["pull", "--rebase", "--autostash"])],
)  # fmt: skip
def test_every_kind_of_pull_is_noted_once(
    local: bool, words: list[str], project: Project, tmp_path: Path, python: str, bell: Bell
) -> None:
    _, clone = upstream(project, tmp_path)
    if local:
        clone.commit("local", {"local.py": "1\n"})
    if "--autostash" in words:
        (clone.root / "model.py").write_text("work in progress\n")
    hooks.install(Repository.open(clone.root), python)
    git(clone.root, *words)
    assert bell.wait() == STARTED
    assert notes(clone.root) == [str(clone.root)]


def test_a_rebase_is_noted_an_amended_commit_and_a_squash_are_not(
    project: Project, python: str, bell: Bell
) -> None:
    project.commit("first")
    project.commit("second")
    branch_ahead(project, {"a.py": "1\n"})
    hooks.install(Repository.open(project.root), python)
    git(project.root, "commit", "-q", "--amend", "--allow-empty", "-m", "reworded")
    git(project.root, "merge", "-q", "--squash", "next")
    git(project.root, "reset", "-q", "--hard")
    assert notes(project.root) == []
    git(project.root, "rebase", "-q", "main", "next")
    assert bell.wait() == STARTED
    assert notes(project.root) == [str(project.root)]


def test_a_linked_worktree_is_noted_as_itself(
    project: Project, tmp_path: Path, python: str, bell: Bell
) -> None:
    project.commit("first")
    branch_ahead(project)
    git(project.root, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked tree"))
    hooks.install(Repository.open(tmp_path / "linked tree"), python)
    git(tmp_path / "linked tree", "merge", "-q", "next")
    assert bell.wait() == STARTED
    assert notes(project.root) == [str(tmp_path / "linked tree")]


def test_a_bare_repository_called_celedger_keeps_its_notes_inside(
    project: Project, tmp_path: Path, python: str, bell: Bell
) -> None:
    project.commit("first")
    branch_ahead(project)
    git(tmp_path, "clone", "-q", "--bare", str(project.root), "celedger")
    git(tmp_path / "celedger", "worktree", "add", "-q", str(tmp_path / "tree"), "main")
    hooks.install(Repository.open(tmp_path / "tree"), python)
    git(tmp_path / "tree", "merge", "-q", "next")
    assert bell.wait() == STARTED
    assert len(list((tmp_path / "celedger" / "celedger" / "queue").iterdir())) == 1


@pytest.mark.parametrize("name", ["a b", 'it\'s "it"', "line\nbreak", "$(touch x);&", "-dash"])
def test_no_name_of_a_folder_is_too_odd(
    name: str, tmp_path: Path, program: Program, bell: Bell
) -> None:
    project = make_project(tmp_path / name)
    project.commit("first")
    branch_ahead(project)
    repository = Repository.open(project.root)
    python = program(tmp_path / f"venv of {name}" / "python", RING)
    theirs = foreign(repository.hooks_dir(), "echo first >.git/ran")
    hooks.install(repository, python)
    git(project.root, "merge", "-q", "next")
    assert bell.wait() == STARTED
    assert notes(project.root) == [str(project.root)]
    assert (project.root / ".git" / "ran").exists()
    assert not (project.root / "x").exists()
    assert os.access(theirs, os.X_OK)


# --- that they cannot be in the way


def merged(project: Project, **env: str) -> subprocess.CompletedProcess[str]:
    """`git merge next`, which must succeed without a word of ours."""
    found = shutil.which("git")
    assert found is not None
    done = subprocess.run(
        [found, "merge", "-q", "next"], cwd=project.root, env={**os.environ, **PEOPLE, **env},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout + done.stderr == ""
    return done


@pytest.fixture
def ready(project: Project, python: str) -> Project:
    """Hooks installed, something to merge."""
    project.commit("first")
    branch_ahead(project)
    hooks.install(Repository.open(project.root), python)
    return project


def test_a_vanished_interpreter_leaves_the_note_and_uses_what_is_on_path(
    ready: Project, python: str, tmp_path: Path, program: Program, bell: Bell
) -> None:
    Path(python).unlink()
    program(tmp_path / "other" / "celedger", RING)
    merged(ready, PATH=f"{tmp_path / 'other'}:{os.environ['PATH']}")
    assert bell.wait() == "worker --from-hook"
    assert notes(ready.root) == [str(ready.root)]


def test_no_celedger_at_all_leaves_the_note(ready: Project, python: str) -> None:
    Path(python).unlink()
    merged(ready, PATH="/usr/bin:/bin")
    assert notes(ready.root) == [str(ready.root)]


def test_without_path_and_without_its_folder_it_still_works(ready: Project, bell: Bell) -> None:
    shutil.rmtree(ready.root / ".git" / "celedger")
    merged(ready, PATH="")
    assert bell.wait() == STARTED
    assert notes(ready.root) == [str(ready.root)]


def test_a_folder_that_takes_no_note_is_passed_over(ready: Project) -> None:
    """As a read-only one; nothing is read-only to root, who may run these tests."""
    shutil.rmtree(ready.root / ".git" / "celedger")
    (ready.root / ".git" / "celedger").write_text("")
    merged(ready)


def test_a_log_that_cannot_be_written_is_passed_over(ready: Project) -> None:
    (ready.root / ".git" / "celedger" / "worker.log").mkdir()
    merged(ready)
    assert notes(ready.root) == [str(ready.root)]


def test_a_piped_pull_does_not_wait(
    project: Project, tmp_path: Path, program: Program, bell: Bell
) -> None:
    """The process that must not be waited for lives until the pull is over."""
    _, clone = upstream(project, tmp_path)
    os.mkfifo(tmp_path / "gate")
    text = f'echo "$$" >"$BELL"; read line <"{tmp_path}/gate"; echo over >"$BELL"'
    hooks.install(Repository.open(clone.root), program(tmp_path / "slow", text))
    subprocess.run("git pull 2>&1 | cat", shell=True, cwd=clone.root, check=True, timeout=30,
                   capture_output=True, env={**os.environ, **PEOPLE})  # fmt: skip
    os.kill(int(bell.wait()), 0)  # still there
    (tmp_path / "gate").write_text("\n")
    assert bell.wait() == "over"


@pytest.mark.matrix
def test_the_folder_where_git_runs_it_holds_nothing_that_python_takes_for_its_own(
    project: Project, interpreter: str, bell: Bell
) -> None:
    project.commit("first", {"json.py": "raise SystemExit('mine')\n"})
    branch_ahead(project)
    hooks.install(Repository.open(project.root), interpreter)
    shutil.rmtree(project.root / "suites")
    git(project.root, "merge", "-q", "next")
    assert bell.wait() == "ended 0", (project.root / ".git/celedger/worker.log").read_text()
    assert notes(project.root) == []


def test_hooks_outside_a_repository_are_one_sentence(tmp_path: Path) -> None:
    done = celedger(tmp_path, "hook", "install")
    assert done.status != 0
    assert done.err.count("\n") == 1


def test_a_merge_prints_what_the_last_job_left_once(
    project: Project, tmp_path: Path, program: Program
) -> None:
    project.commit("first")
    repository = Repository.open(project.root)
    hooks.install(repository, program(tmp_path / "bin" / "python", "true"))  # rings nobody
    hooks.leave_line(repository, "1a2b3c: fit val_loss is worse\n\x1b[31m`x`")
    printed = []
    for name in ("one", "two"):
        branch_ahead(project, name=name)
        done = subprocess.run(
            ["git", "merge", "-q", name], cwd=project.root, capture_output=True, text=True,
            env={**os.environ, **PEOPLE}, check=True,
        )  # fmt: skip
        printed.append(done.stderr)
    assert printed == ["celedger: 1a2b3c: fit val_loss is worse `x`\n", ""]
