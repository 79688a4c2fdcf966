"""What a bisect named stays visible, and its picture can be drawn again."""

from __future__ import annotations

import json
import re
from pathlib import Path

from conftest import with_verbs
from scripted import scripted

from celedger.judge.bisection.bisect_report import record, restored
from celedger.ledger import Ledger
from celedger.repo import Repository


@with_verbs("plot")
def test_a_bisect_is_listed_shown_and_drawn_again(tmp_path: Path) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.0, 1.0, 1.5, 1.5])
    project.run("bisect", f"{shas[0]}..{shas[4]}", "--metric", "val_loss", "-o", "first.svg")
    name = "first bad commit of fit val_loss ("

    assert name in project.run("show", shas[3], env={"COLUMNS": "80"}).out
    assert name not in project.run("show", shas[2]).out
    log = project.run("log", env={"COLUMNS": "60"}).out
    assert name in log[log.index(shas[3][:8]) : log.index(shas[2][:8])]
    tasks = {
        c["commit"]: c["tasks"][0] for c in json.loads(project.run("log", "--json").out)["commits"]
    }
    assert tasks[shas[2]]["first_bad"] == []
    (first_bad,) = tasks[shas[3]]["first_bad"]
    assert first_bad["probability"] > 0.95

    listed = project.run("log", "--bisects").out
    assert f"{first_bad['bisect']}  " in listed
    assert f"first bad commit {shas[3][:8]} (" in listed
    (entry,) = json.loads(project.run("log", "--bisects", "--json").out)["bisects"]
    assert (entry["id"], entry["culprits"][0]) == (first_bad["bisect"], shas[3])

    redrawn = project.run("plot", "bisect", entry["id"][:20].lower(), "-o", "again.svg")
    assert redrawn.status == 0, redrawn.err
    drawn = [(project.root / f"{name}.svg").read_text() for name in ("first", "again")]
    # Stored probabilities have six digits.
    one, other = (re.sub(r"-?\d+\.\d+|[#\"][a-z]?[0-9a-f]{8,}", "", text) for text in drawn)
    assert one == other

    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        (stored,) = ledger.bisects()
    commits = {c.sha: c for c in Repository.open(project.root).log(shas[4])}
    again = record(restored(stored, commits))
    assert json.dumps(again.report) == json.dumps({k: stored.report[k] for k in again.report})


@with_verbs("plot")
def test_a_bisect_whose_commits_are_gone_is_one_sentence(tmp_path: Path) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.5])
    project.run("bisect", f"{shas[0]}..{shas[1]}", "--metric", "val_loss")
    other = scripted(tmp_path / "other")
    other.history([2.0])
    ledger = str(project.root / "ledger.db")
    done = other.run("--ledger", ledger, "plot", "bisect", "-o", "x.svg")
    assert (done.status, "lacks commits of the bisect" in done.err) == (128, True), done.err
    assert other.run("--ledger", ledger, "plot", "bisect", "7").status == 129
