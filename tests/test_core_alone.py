"""A copy of celedger without its three wings, their tests and their entry points does all else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Done, Project

from celedger.base.model import FindingRecord
from celedger.ledger import Ledger
from celedger.repo import Repository

ROOT = Path(__file__).resolve().parent.parent
WINGS = ("lab", "engines", "page")
pytestmark = [
    pytest.mark.matrix,
    pytest.mark.xdist_group("core"),  # one process makes the copy
]


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install what is left of this checkout."""
    copy = tmp_path_factory.mktemp("core") / "celedger"
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        parts = Path(name).parts
        if parts[0] in ("celedger", "tests") and len(parts) > 2 and parts[1] in WINGS:
            continue
        if name == f"tests/{Path(__file__).name}":
            continue
        if (ROOT / name).is_file():  # not one that is removed and not yet committed
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
            # Compiled files are valid for a copy: they name the source's time and size.
            for file in (ROOT / name).parent.glob(f"__pycache__/{parts[-1][:-3]}.*.pyc"):
                (copy / name).with_name("__pycache__").mkdir(exist_ok=True)
                shutil.copy2(file, (copy / name).parent / "__pycache__")
    text = (copy / "pyproject.toml").read_text()
    own, tables = re.subn(r'(?s)\[project\.entry-points\."celedger\.\w+"\].*?\n(?=\[|#)', "", text)
    assert tables == 4
    (copy / "pyproject.toml").write_text(own)
    return copy


_EACH = """\
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from celedger.cli.app import run
for line in sys.argv[1:]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = run(line.split())
    print(json.dumps([int(status), out.getvalue(), err.getvalue()]))
"""


def answers(core: Path, project: Project, *lines: str) -> list[Done]:
    """Run command lines in one process of the copy."""
    env = {**os.environ, "PYTHONPATH": str(core), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _EACH, *lines], cwd=project.root, env=env, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [Done(*json.loads(line)) for line in done.stdout.splitlines()]


def test_every_verb_of_the_core_answers(core: Path, project: Project) -> None:
    shas = project.history([1.0, 1.0, 1.0, 2.0])
    asked = {
        "run HEAD~3..": 1, "--help": 0, "check --lenient": 1, "log": 0, "show HEAD": 0, "drift": 0,
        "bisect HEAD~3..HEAD --task fit --metric val_loss": 0, "queue": 0, "status": 0,
        "bisect HEAD~3..HEAD --explain": 129, "explain HEAD~1..HEAD": 129, "report": 129,
        "plot drift": 129, "export": 129, "bisect HEAD~3..HEAD -o answer.png": 129,
        "run HEAD --engine ray": 129,
    }  # fmt: skip
    said = dict(zip(asked, answers(core, project, *asked), strict=True))
    assert {line: done.status for line, done in said.items()} == asked, said
    assert (
        f"first bad commit of fit val_loss: {shas[3]}"
        in said["bisect HEAD~3..HEAD --task fit --metric val_loss"].out
    )
    assert not {"explain", "report", "watch"} & {*said["--help"].out.split()}
    for line in ("bisect HEAD~3..HEAD --explain", "explain HEAD~1..HEAD", "run HEAD --engine ray"):
        assert len(said[line].err.splitlines()) == 1, said[line]
    assert "known: local)" in said["run HEAD --engine ray"].err
    assert f"celedger show {shas[3][:12]}" in said["status"].out
    assert "explain" not in said["status"].out


def test_what_the_lab_found_is_shown_without_it(core: Path, project: Project) -> None:
    (sha,) = project.history([1.0])
    with Ledger.open(project.root / "ledger.db", create=True) as ledger:
        ledger.record_commits([Repository.open(project.root).resolve(sha)])
        ledger.record_finding(FindingRecord(
            "01HZZZZZZZZZZZZZZZZZZZZZZZ", "explain", "tiny", "fit", sha, "", "explain HEAD fit",
            1.0, "the head is transposed", {},
        ))  # fmt: skip
    (done,) = answers(core, project, f"show {sha}")
    assert "the head is transposed" in done.out, done


def test_the_worker_goes_on_without_the_page(core: Path, project: Project, tmp_path: Path) -> None:
    project.history([1.0])
    settings = Path(os.environ["XDG_CONFIG_HOME"]) / "celedger" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'report = "{tmp_path / "page.html"}"\n')
    note = project.root / ".git" / "celedger" / "queue" / "1.moved"
    note.parent.mkdir(parents=True)
    note.write_text(str(project.root))
    (done,) = answers(core, project, "worker")
    assert "1 job run, the queue is empty" in done.err, done
    assert not (tmp_path / "page.html").exists()
    assert "report" not in done.err


def test_its_tests_pass(core: Path) -> None:
    """All are imported; those run that start no program and may know a verb: none of a lower room
    (tests/test_architecture.py), and the others take eight minutes more."""
    lower = ("stats", "repo", "suite", "system", "ledger", "ledgers", "trial", "child", "bisection")
    words = [f"--deselect=tests/{room}/" for room in lower]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-m", "core", *words],
        cwd=core, env={**os.environ, "PYTHONPATH": str(core)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
