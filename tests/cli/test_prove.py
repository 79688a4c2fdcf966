"""`bisect --prove`: the bad end without the named commit proves its name, or takes it back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import git
from scripted import ScriptedProject, scripted

PADDING = "".join(f"# {n}\n" for n in range(9))
LEVELS = {"alone": "0.4 * A", "either": "0.4 * (A or B)", "crash": "1 / (1 - A)"}


@pytest.fixture
def project(tmp_path: Path) -> ScriptedProject:
    return scripted(tmp_path / "project")


def history(project: ScriptedProject, level: str, *, same_line: bool = False) -> list[str]:
    """Commit what sets A, in the middle of eight commits, and then B."""
    names = {"A": 0, "B": 0}
    shas = []
    for number in range(8):
        names["A"] = names["A"] or int(number == 3)
        names["B"] = names["B"] or int(number == 5)
        lines = [f"{name} = {value}\n{PADDING}" for name, value in names.items()]
        if same_line and number > 5:
            lines[0] = f"A = 1  # another word\n{PADDING}"
        text = "".join(lines) + f"LEVEL = 1 + {level}\n"
        other = {f"other{number}.py": ""}
        shas.append(project.commit(f"number {number}", {"model.py": text, **other}))
    return shas


def bisected(project: ScriptedProject, shas: list[str], *words: str) -> str:
    done = project.run("bisect", f"{shas[0]}..{shas[-1]}", "--prove", *words)
    assert (done.status == 0) == ("first bad commit" in done.out), done.out + done.err
    return done.out


def test_a_revert_that_mends_it_proves_the_commit_and_is_printed(project: ScriptedProject) -> None:
    shas = history(project, LEVELS["alone"])
    project.run("run", "HEAD", "--seed", "0", "--seed", "1", "--seed", "2")
    out = bisected(project, shas, "--metric", "val_loss")
    assert f"first bad commit of fit val_loss: {shas[3]}" in out
    head = f"  proof       reverting {shas[3][:8]} on {shas[-1][:8]} restores "
    share = int(out.partition(head)[2].partition("%")[0])
    assert 90 <= share <= 110
    assert f"git revert {shas[3][:12]}" in out
    ran = len(project.executor.ran)
    assert head in bisected(project, shas, "--metric", "val_loss")  # nothing runs again
    assert len(project.executor.ran) == ran
    listed = json.loads(project.run("log", "--bisects", "--json").out)["bisects"]
    assert len(listed) == 1  # the search and its proof are one
    again = project.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss", "--json")
    document = json.loads(again.out)["bisect"]
    assert document["rehearsal"]["low"] > 0.5
    assert git(project.root, "status", "--porcelain") == ""


@pytest.mark.matrix
def test_a_name_that_the_revert_does_not_mend_is_taken_back(project: ScriptedProject) -> None:
    shas = history(project, LEVELS["either"])
    project.run("run", "HEAD", "--seed", "0", "--seed", "1", "--seed", "2")
    out = bisected(project, shas, "--metric", "val_loss")
    assert f"not sure of fit val_loss: its revert does not mend it: {shas[3]}" in out
    assert "restores " in out
    assert "git revert" not in out
    assert "first bad commit of fit" not in project.run("log").out
    plain = project.run("bisect", f"{shas[0]}..{shas[-1]}", "--metric", "val_loss")
    assert plain.status == 125  # it stays so when it is asked again
    assert "not sure" in plain.out


def test_a_crash_is_proved_by_a_training_that_runs(project: ScriptedProject) -> None:
    shas = history(project, LEVELS["crash"])
    out = bisected(project, shas)
    assert f"first bad commit of fit crash: {shas[3]}" in out
    assert f"proof       reverting {shas[3][:8]} on {shas[-1][:8]}: every training runs" in out


def test_a_commit_that_cannot_be_reverted_keeps_its_name_and_says_so(
    project: ScriptedProject,
) -> None:
    shas = history(project, LEVELS["alone"], same_line=True)
    out = bisected(project, shas, "--metric", "val_loss")
    assert f"first bad commit of fit val_loss: {shas[3]}" in out
    assert "proof       reverting it is not rehearsed: " in out
    assert "cannot be reverted cleanly" in out
    assert "model.py" in out
