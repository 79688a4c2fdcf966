"""`celedger init` chooses the interpreter of the trainings, and says what it cannot import."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest
from conftest import Project, git

TORCH = "raise ImportError('libcudart.so.12: cannot open shared object file')\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    git(tmp_path, "init", "-q")
    return Project(tmp_path.resolve())


def interpreter(folder: Path) -> Path:
    """Make a virtual environment without celedger, pip or any package."""
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


def written(project: Project) -> str:
    suite = (project.root / "suites" / "first" / "suite.toml").read_text()
    return next(line.partition("  #")[0] for line in suite.splitlines() if "python =" in line)


def test_the_repositorys_environment_trains_and_needs_no_celedger(project: Project) -> None:
    python = interpreter(project.root / ".venv")
    project.commit("first", {"README": "", ".gitignore": ".venv\n"})
    done = project.run("init", env={"VIRTUAL_ENV": sys.prefix})
    assert f"python   {python}" in done.out, done.err
    assert written(project) == 'python = ".venv/bin/python"'
    assert project.run("run", "HEAD").status == 0


def test_the_active_environment_is_the_next_choice(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "project-env"
    python = interpreter(outside)
    project.run("init", env={"VIRTUAL_ENV": "", "CONDA_PREFIX": str(outside)})
    assert written(project) == f'python = "{python.relative_to(project.root)}"'


def test_celedgers_own_environment_is_the_default(project: Project) -> None:
    project.run("init", env={"VIRTUAL_ENV": sys.prefix})
    assert written(project).startswith('# python = "python"')


def test_imports_of_a_suite_are_tried_in_its_interpreter(project: Project) -> None:
    python = interpreter(project.root / ".venv")
    (packages,) = (project.root / ".venv" / "lib").glob("python*/site-packages")
    (packages / "torch.py").write_text(TORCH)
    (packages / "einops.py").write_text("print('hello')\n")
    project.commit("a library", {"ours/__init__.py": "", ".gitignore": ".venv\n"})
    project.run("init")
    script = project.root / "suites" / "first" / "first.py"
    lines = "import os, torch.nn\nfrom einops import rearrange\nimport ours, absent\n"
    optional = "try:\n    import wandb\nexcept ImportError:\n    pass\n"
    script.write_text(lines + optional + script.read_text().partition("import argparse")[2])
    done = project.run("init")
    assert done.status == 0
    assert f"python   {python} (imports einops)" in done.out
    problems = [line for line in done.err.splitlines() if "cannot import" in line]
    assert len(problems) == 2, done.err
    assert f"{python} cannot import absent: ModuleNotFoundError" in problems[0]
    assert "cannot import torch: ImportError: libcudart.so.12" in problems[1]


def test_a_suite_in_the_wrong_interpreter_is_told_the_right_one(project: Project) -> None:
    project.run("init", env={"VIRTUAL_ENV": ""})
    interpreter(project.root / "venv")
    script = project.root / "suites" / "first" / "first.py"
    script.write_text("import absent\n" + script.read_text())
    done = project.run("init")
    assert 'set `python = "venv/bin/python"` in' in done.err
