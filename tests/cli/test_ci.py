"""What `celedger check` leaves where a CI service shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted import ScriptedProject, scripted


@pytest.fixture
def project(tmp_path: Path) -> ScriptedProject:
    made = scripted(tmp_path / "project")
    made.history([1.0, 1.0, 1.0, 1.0])
    made.run("run", "HEAD~3..HEAD")
    made.commit("make it <b>worse</b> | @all `x`", {"model.py": "LEVEL = 1.5\n"})
    return made


def test_a_workflow_gets_a_summary_and_annotations(
    project: ScriptedProject, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("what was there\n")
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    done = project.run("check", "--markdown", env=github)
    assert done.status == 1
    assert done.out.startswith("### celedger: 1 metric worse\n")
    assert "| ❌ | fit | val\\_loss | worse | +3" in done.out
    assert "make it &lt;b&gt;worse&lt;/b&gt; \\| &#64;all \\`x\\`" in done.out
    assert summary.read_text() == "what was there\n" + done.out.rstrip("\n") + "\n"
    (error,) = [line for line in done.err.splitlines() if line.startswith("::")]
    assert error.startswith("::error title=fit val_loss%3A worse +3")


def test_outside_of_a_workflow_nothing_is_added(project: ScriptedProject) -> None:
    done = project.run("check", "--json")
    assert "::error" not in done.out + done.err
    assert project.run("check", "--json", "--markdown").status == 129


def test_a_summary_that_cannot_be_written_changes_no_answer(project: ScriptedProject) -> None:
    done = project.run("check", env={"GITHUB_STEP_SUMMARY": str(project.root)})
    assert (done.status, "cannot be written" in done.err) == (1, True)
