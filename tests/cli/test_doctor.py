"""`celedger doctor` lists what is kept; with --prune it frees what can be made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import SUITE, Project
from scripted import scripted

from celedger.repo.checkouts import Checkouts


@pytest.mark.matrix
def test_doctor_lists_what_is_kept_and_prunes_what_can_be_made_again(project: Project) -> None:
    toml = project.root / "suites" / "tiny" / "suite.toml"
    built = SUITE.replace("[metrics", 'build = ["touch made"]\ninputs = ["model.py"]\n[metrics', 1)
    toml.write_text(built)
    project.history([1.0, 1.1])
    assert project.run("run", "HEAD~1..HEAD").status == 0
    listed = project.run("doctor")
    assert "kept        builds: 1," in listed.out, listed.out + listed.err
    assert "checkouts: 1," in listed.out
    assert "logs: 2," in listed.out
    assert "doctor --prune" in listed.out
    pruned = project.run("doctor", "--prune")
    assert "removed     1 of 1 builds" in pruned.out
    assert "removed     1 of 1 checkouts" in pruned.out
    assert len(list((project.root / ".celedger" / "logs").iterdir())) == 2
    again = project.run("run", "HEAD", "--force")
    assert again.status in (0, 1), again.err


def test_doctor_runs_nothing_of_the_repository(project: Project) -> None:
    for number, python in enumerate(("./evil.sh", str(project.root / "evil.sh"))):
        evil = project.root / "evil.sh"
        evil.write_text(f"#!/bin/sh\ntouch {project.root}/pwned\n")
        evil.chmod(0o755)
        toml = project.root / "suites" / "tiny" / "suite.toml"
        toml.write_text(SUITE.replace('"tiny"', f'"tiny"\npython = "{python}"', 1))
        project.commit(f"evil {number}")
        project.allow()
        done = project.run("doctor")
        assert f"python      {evil}\n" in done.out
        assert not (project.root / "pwned").exists()


def test_doctor_says_in_one_line_which_folders_it_cannot_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = scripted(tmp_path / "project")
    project.history([1.0])
    project.run("run", "HEAD")

    def refuse(_: object) -> None:
        raise PermissionError(13, os.strerror(13), "checkouts")

    monkeypatch.setattr(Checkouts, "slots", refuse)  # root may list every folder
    done = project.run("doctor")
    assert done.status == 128
    state, own = project.root / ".git" / "celedger", project.root / ".celedger"
    what = f"cannot list what celedger keeps in {state} and {own}"
    assert done.err.splitlines()[-1] == f"celedger: {what}: Permission denied"
