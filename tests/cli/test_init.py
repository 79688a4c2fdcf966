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


MONOREPO = {
    ".gitignore": ".venv\n",
    "services/fit/src/fit/__init__.py": "def error(w):\n    return (w - 3) ** 2\n",
    "services/fit/tools/train.py": """\
import sys
import random
from fit import error

random.seed(int(sys.argv[1]))
class Optimizer:
    def __init__(self): self.w = random.random()
    def backward(self): self.slope = 2 * (self.w - 3)
    def step(self): self.w -= 0.1 * self.slope
optimizer = Optimizer()
for epoch in range(5):
    optimizer.backward()
    optimizer.step()
    print(f"epoch {epoch}: val loss {error(optimizer.w):.5f}")
""",
    "other/train.py": "import torch\nfor _ in range(3):\n    x.backward()\n    y.step()\n",
}


@pytest.mark.matrix
def test_a_folder_of_a_monorepo_has_its_own_training_packages_and_environment(
    project: Project,
) -> None:
    python = interpreter(project.root / "services" / "fit" / ".venv")
    project.commit("two projects", MONOREPO)
    done = project.run("-C", "services/fit", "init", env={"VIRTUAL_ENV": sys.prefix})
    assert f"python   {python}" in done.out, done.err
    assert "runs     services/fit/tools/train.py: a training loop; watched: val_loss" in done.out
    assert written(project) == 'python = "services/fit/.venv/bin/python"'
    ran = project.run("run", "HEAD")
    assert ran.status == 0, ran.err
    assert "val_loss" in ran.out


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


def test_benchmarks_need_their_plugin(project: Project) -> None:
    python = interpreter(project.root / ".venv")
    test = "def test_sum(benchmark):\n    benchmark(sum, [1])\n"
    project.commit("first", {"test_sums.py": test, ".gitignore": ".venv\n"})
    done = project.run("init")
    assert f"{python} cannot import pytest_benchmark" in done.err
