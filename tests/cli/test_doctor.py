"""`celedger doctor` lists what is kept; with --prune it frees what can be made again."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from conftest import SUITE, Project


@pytest.mark.matrix
def test_doctor_lists_what_is_kept_and_prunes_what_can_be_made_again(project: Project) -> None:
    toml = project.root / "suites" / "tiny" / "suite.toml"
    built = SUITE.replace("[metrics", 'build = ["touch made"]\ninputs = ["model.py"]\n[metrics', 1)
    toml.write_text(built)
    project.history([1.0, 1.1])
    assert project.run("run", "HEAD~1..HEAD").status == 0
    listed = project.run("doctor")
    assert "kept        1 builds," in listed.out, listed.out + listed.err
    assert "1 checkouts" in listed.out
    assert "2 logs" in listed.out and "2 stay: evidence" in listed.out
    assert "doctor --prune" in listed.out
    pruned = project.run("doctor", "--prune")
    assert "removed     1 of 1 builds" in pruned.out
    assert "removed     1 of 1 checkouts" in pruned.out
    logs = project.root / ".celedger" / "logs"
    assert len(list(logs.iterdir())) == 2
    old = time.time() - 40 * 86400
    os.utime(sorted(logs.iterdir())[0], (old, old))
    aged = project.run("doctor", "--prune", "--older-than", "30")
    assert "removed     1 of 2 logs" in aged.out
    assert len(list(logs.iterdir())) == 1
    again = project.run("run", "HEAD", "--force")
    assert again.status in (0, 1), again.err
    assert project.run("doctor", "--older-than", "30").status == 129


def test_doctor_runs_nothing_of_the_repository(project: Project) -> None:
    for number, python in enumerate(("./evil.sh", str(project.root / "evil.sh"))):
        evil = project.root / "evil.sh"
        evil.write_text(f"#!/bin/sh\ntouch {project.root}/pwned\n")
        evil.chmod(0o755)
        toml = project.root / "suites" / "tiny" / "suite.toml"
        toml.write_text(SUITE.replace('"tiny"', f'"tiny"\npython = "{python}"', 1))
        project.commit(f"evil {number}")
        project.run("allow")
        done = project.run("doctor")
        assert f"{evil}, in the repository: not asked" in done.out
        assert not (project.root / "pwned").exists()


def test_doctor_asks_no_interpreter_that_nobody_allowed(project: Project, tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    evil.write_text(f'#!/bin/sh\ntouch {tmp_path}/asked\nexec "{sys.executable}" "$@"\n')
    evil.chmod(0o755)
    toml = project.root / "suites" / "tiny" / "suite.toml"
    toml.write_text(SUITE.replace('"tiny"', f'"tiny"\npython = "{evil}"', 1))
    project.commit("evil")
    assert f"{evil}, not allowed yet: not asked" in project.run("doctor").out
    assert not (tmp_path / "asked").exists()
    project.run("allow")
    assert f"{evil}, environment " in project.run("doctor").out
    assert (tmp_path / "asked").exists()
