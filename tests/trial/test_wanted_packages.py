"""A commit that wants another version of a package than its training imported."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import SUITE, Project, make_project

from celedger.repo import Repository
from celedger.trial.venvs import unmet

INSTALLED = {"torch": "2.12.0+cpu", "Aug.Kit": "0.1.0", "unused": "1.0"}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("requirements.txt", "torch==2.13.0\n", ["torch ==2.13.0, trained with 2.12.0+cpu"]),
        ("requirements-dev.txt", "aug_kit >=0.2, <1  # new\n",
         ["aug_kit <1,>=0.2, trained with 0.1.0"]),
        ("requirements.txt", "-e .\n# torch==9\ntorch>=2.1,!=2.11.*\naug-kit~=0.1.0\n", []),
        ("requirements.txt", "torch==9; os_name == 'nt'\nunused==2\nabsent==3\ntorch\n", []),
        ("requirements.txt", "torch @ https://x/torch-9.whl\ntorch==2.12\n", []),
        ("pyproject.toml", "[project]\ndependencies = ['torch~=2.13']\n",
         ["torch ~=2.13, trained with 2.12.0+cpu"]),
        ("pyproject.toml", "nonsense = [\n", []),
        ("uv.lock", "[[package]]\nname = 'aug-kit'\nversion = '0.2.0'\n",
         ["aug-kit ==0.2.0, trained with 0.1.0"]),
    ],
)  # fmt: skip
def test_what_a_commit_wants(project: Project, name: str, text: str, told: list[str]) -> None:
    sha = project.commit("wants", {name: text})
    repository = Repository.open(project.root)
    assert unmet(repository, sha, INSTALLED, {"torch", "Aug.Kit"}) == told


def test_a_training_in_another_environment_is_told_so_once(tmp_path: Path) -> None:
    script = "import psutil\nfrom celedger.child import log\nlog(epoch=0, val_loss=1.0)\n"
    project = make_project(tmp_path / "project", SUITE, {"fit.py": script})
    sha = project.commit("needs more", {"requirements.txt": "psutil==0.0.1\npytest==0.0.1\n"})
    done = project.run("run", "HEAD")
    has = version("psutil")
    told = f"warning: {sha[:10]} wants psutil ==0.0.1, trained with {has}: `venv` in the suite"
    assert done.err.count(told) == 1 and "pytest" not in done.err
