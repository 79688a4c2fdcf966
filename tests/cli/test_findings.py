"""Answers of diagnoses stay in the ledger: bounded, listed with their commit, never in the way."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import with_verbs
from scripted import ScriptedProject, scripted

from celedger.base.model import Task
from celedger.cli.session import Options, keep, writing
from celedger.ledger import opening
from celedger.ledger.write import LARGEST_DOCUMENT, LONGEST_HEADLINE


@pytest.fixture
def project(tmp_path: Path) -> ScriptedProject:
    made = scripted(tmp_path / "project")
    made.history([1.0, 1.0, 1.5])
    return made


def keep_one(project: ScriptedProject, *revisions: str, **changes: Any) -> None:
    words = {"headline": "The loss is <b>NaN</b>", "answer": {"schema": 1, "loss": math.nan}}
    with writing(Options(project.root, None), read_only=True) as session:
        commits = [session.repository.resolve(revision) for revision in revisions]
        keep(session, Task("tiny", "fit", ()), commits, "explain X..Y fit", started=1.8e9,
             **{**words, **changes})  # fmt: skip


def test_show_lists_them_of_a_commit_that_was_never_measured_too(project: ScriptedProject) -> None:
    keep_one(project, "HEAD~2", "HEAD")
    done = project.run("show")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert lines[-3].startswith("explain of fit, 2027-01-15 08:00 UTC, against ")
    assert lines[-2:] == ["  The loss is <b>NaN</b>", "  `celedger explain X..Y fit`"]
    (kept,) = json.loads(project.run("show", "--json").out)["findings"]
    document = {"schema": 1, "loss": None, "not_finite": {"/loss": "nan"}}
    assert (kept["verb"], kept["document"]) == ("explain", document)


@with_verbs("report")
def test_the_page_has_them_with_their_task(project: ScriptedProject) -> None:
    project.run("run", "HEAD~2..HEAD")
    keep_one(project, "HEAD~2", "HEAD")
    keep_one(project, "HEAD", headline="a step takes 2 ms")
    assert project.run("report", "-o", "page.html").status == 0
    page = (project.root / "page.html").read_text()
    (part,) = re.findall(r'class="task" data-task="tiny/fit">(.*?)</script>', page)
    task = json.loads(gzip.decompress(base64.b64decode(part)))
    assert task["findings"] == [
        [1, "explain", "2027-01-15", "The loss is <b>NaN</b>", "explain X..Y fit"],
        [1, "explain", "2027-01-15", "a step takes 2 ms", "explain X..Y fit"],
    ]


def test_a_document_of_any_size_takes_little_room(project: ScriptedProject) -> None:
    keep_one(project, "HEAD", answer={"x": "y" * LARGEST_DOCUMENT}, headline="z" * 9999)
    (kept,) = json.loads(project.run("show", "--json").out)["findings"]
    assert kept["document"]["left_out"] > LARGEST_DOCUMENT
    assert len(kept["headline"]) == LONGEST_HEADLINE


def test_a_read_only_ledger_costs_a_line(
    project: ScriptedProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.run("run", "HEAD")
    monkeypatch.setattr(opening, "writable", lambda _: False)
    keep_one(project, "HEAD")
    assert "the answer was not stored: " in capsys.readouterr().err
    assert json.loads(project.run("show", "--json").out)["findings"] == []
