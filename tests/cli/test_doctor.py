"""`celedger doctor` lists what is kept; with --prune it frees what can be made again."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from conftest import SUITE, Project
from scripted import scripted

from celedger.ledger import checksums
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


@pytest.mark.parametrize("harm", ["altered", "altered without checksums", "removed"])
def test_doctor_sees_what_was_altered_or_removed(tmp_path: Path, harm: str) -> None:
    project = scripted(tmp_path / "project")
    project.history([1.0, 1.1])
    assert project.run("run", "HEAD~1..HEAD").status in (0, 1)
    with closing(sqlite3.connect(project.root / "ledger.db", isolation_level=None)) as person:
        for (name,) in person.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
            person.execute(f"DROP TRIGGER {name}")
        if harm == "removed":  # the newest of all: no gap shows it
            for part in ("points", "outcomes", "summaries", "closures", "trial_facts"):
                person.execute(f"DELETE FROM {part} WHERE trial = 2")
            person.execute("DELETE FROM verdicts")
            person.execute("DELETE FROM trials WHERE id = 2")
            person.execute("DELETE FROM checksums")
            for table, row in list(checksums.facts(person, ())):
                checksums.seal(person, table, row)
        else:
            person.execute("UPDATE points SET value = 9 WHERE trial = 2")
        if harm == "altered without checksums":
            person.execute("DELETE FROM checksums")
    answer = project.run("doctor")
    line = "its archive has 1 more" if harm == "removed" else "damaged     "
    assert line in answer.out and "doctor --restore" in answer.out, answer.out
    assert answer.status == (0 if harm == "removed" else 128)
