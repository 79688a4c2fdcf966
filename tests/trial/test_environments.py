"""The environment of a trial: the distributions that it imported, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SUITE, Project, make_project

from celedger.ledger import Ledger

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recording is Linux's")

SCRIPT = """\
from importlib.metadata import entry_points
from celedger.child import log
import used, model
entry_points(group="x")  # looks through the metadata of all, as torch does
log(epoch=0, val_loss=used.LEVEL + model.EXTRA)
"""


def install(packages: Path, name: str, version: int) -> None:
    """Lay out a distribution of one module."""
    for old in packages.glob(f"{name}-*.dist-info/*"):
        old.unlink()
        if not any(old.parent.iterdir()):
            old.parent.rmdir()
    (packages / f"{name}.py").write_text(f"LEVEL = {version}\n")
    info = packages / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name}.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (folder,) = venv.glob("lib/python*/site-packages")
    for name in ("used", "other"):
        install(folder, name, 1)
    return folder


def environments(project: Project) -> list[str]:
    """The environment of each trial, the oldest first."""
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        return [record.trial.environment for record in ledger.trials()]


@pytest.mark.matrix
def test_only_what_a_training_imports_is_its_environment_and_what_changed_is_named(
    tmp_path: Path, packages: Path
) -> None:
    head = f'name = "tiny"\npython = "{tmp_path / "venv" / "bin" / "python"}"\n'
    suite = SUITE.replace('name = "tiny"\n', head, 1).replace("[0, 1]", "[0]")
    project = make_project(tmp_path / "p", suite, {"fit.py": SCRIPT})
    project.commit("one", {"model.py": "EXTRA = 0\n"})
    assert project.run("run", "HEAD").status == 0
    install(packages, "other", 2)
    install(packages, "third", 1)
    again = project.run("run", "HEAD")
    assert (again.status, len(environments(project))) == (0, 1), again.err
    project.commit("two", {"model.py": "EXTRA = 0.0\n"})
    assert project.run("run", "HEAD").status == 0
    install(packages, "used", 2)
    project.commit("three", {"model.py": "EXTRA = 0.00\n"})
    assert project.run("run", "HEAD").status == 0
    first, second, third = environments(project)
    assert first == second != third
    said = project.run("diff", "HEAD~1..HEAD").out
    assert "used" in said and "other" not in said and "third" not in said
    install(packages, "other", 3)
    install(packages, "used", 1)  # back again: the first environment
    project.commit("four", {"model.py": "EXTRA = 0.000\n"})
    assert project.run("run", "HEAD").status == 0
    assert environments(project)[-1] == first
