"""The packages of docs/extend.md, installed as they stand there."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import packages
import pytest
from conftest import SUITE, UNCOMPILED, Project, git, make_project

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 60  # lines of a package
WEIGHED = (
    UNCOMPILED
    + """\
import torch
net = torch.nn.Linear(3, 4)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(2, 3)).sum().backward()
optimiser.step()
"""
)


def package(name: str, site: Path) -> dict[str, str]:
    """Install a package of the page; return the environment in which it is."""
    page = (ROOT / "docs" / "extend.md").read_text()
    files = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", page, flags=re.DOTALL))
    own = {path: text for path, text in files.items() if path.startswith(f"{name}/")}
    lines = [line for text in own.values() for line in text.splitlines() if line.strip()]
    assert own
    assert len(lines) <= LONGEST
    tables = [t for t in re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL) if f"{name}." in t]
    entry_points = re.sub(r'\[project\.entry-points\."(.+?)"\]', r"[\1]", tables[0])
    entry_points = entry_points.replace('"', "")
    folders = {path.parent for path in map(Path, own)}
    own |= {str(folder / "__init__.py"): "" for folder in folders}
    packages.install(site, name, entry_points, own)
    return {"PYTHONPATH": str(site)}


def test_a_verb(project: Project, tmp_path: Path) -> None:
    env = package("slowest", tmp_path / "site")
    project.history([1.0, 1.1])
    project.run("run", "HEAD~1..HEAD")
    done = project.run("slowest", "-n", "1", env=env)
    assert (done.status, done.err) == (0, "")
    assert re.fullmatch(r" +\d+\.\d\d s  [0-9a-f]{10}  fit seed [01]\n", done.out)
    listed = project.run("--help", env=env).out
    assert "  slowest    List the trials that took longest.\n" in listed
    assert project.run("slowest").status == 129


@pytest.mark.matrix
def test_an_engine(tmp_path: Path) -> None:
    """The other machine is another clone; what a trial sees there is this variable."""
    env = package("by_command", tmp_path / "site")
    project = make_project(tmp_path / "project", SUITE.replace("[0, 1]", "[0]"))
    exclude = project.root / ".git" / "info" / "exclude"
    exclude.write_text("")  # the clone has the suite from git
    shas = project.history([1.0, 1.1])
    git(tmp_path, "clone", "--quiet", str(project.root), "far")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "celedger"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m celedger "$@"\n')
    program.chmod(0o755)
    prefix = f"env MKL_FAR=1 PATH={tmp_path / 'bin'}:{os.environ['PATH']}"
    settings = Path(os.environ["XDG_CONFIG_HOME"]) / "celedger" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'engine = "command"\nengine_address = "{tmp_path / "far"} {prefix}"\n')
    assert project.run("run", "HEAD", env=env).status == 0
    done = project.run("run", "HEAD~1", env=env)
    assert done.status == 0, done.err
    assert not (project.root / ".git" / "celedger" / "checkouts").exists()
    commits = json.loads(project.run("log", "--json").out)["commits"]
    assert [commit["commit"] for commit in commits] == [shas[1], shas[0]]
    again = project.run("run", "HEAD~1", env=env)
    assert "the ledger holds every trial asked for" in again.err


@pytest.mark.matrix
def test_a_probe(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    env = package("weigh", tmp_path / "site")
    project = make_project(tmp_path / "project", SUITE, {"fit.py": WEIGHED})
    project.history([1.0])
    done = project.run("weigh", "fit", env=env)
    assert done.status == 0, done.err
    assert done.out.endswith(": 16 parameters\n")
