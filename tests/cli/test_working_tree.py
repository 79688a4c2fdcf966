"""What is not committed yet, measured: `run .`, `show .`, `diff HEAD .`, `check .`."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from conftest import SUITE, git, make_project
from scripted import ScriptedProject, scripted

from celedger.base.errors import CannotJudge
from celedger.diagnose.explain import Side


@pytest.fixture
def quick(tmp_path: Path) -> ScriptedProject:
    return scripted(tmp_path / "quick")


def rows(project: ScriptedProject, sql: str) -> list[tuple]:
    with sqlite3.connect(project.root / "ledger.db") as connection:
        return connection.execute(sql).fetchall()


def edit(project: ScriptedProject, text: str) -> None:
    (project.root / "model.py").write_text(text)


def test_the_working_tree_is_measured_and_the_ledger_does_not_know_of_it(
    quick: ScriptedProject,
) -> None:
    head = quick.history([1.0])[-1]
    quick.run("run", "HEAD")
    facts = "SELECT ulid FROM trials UNION ALL SELECT sha FROM commits"
    before = rows(quick, facts)
    edit(quick, "LEVEL = 0.5\n")
    done = quick.run("run", ".")
    assert done.status == 0, done.err
    assert f"working tree at {head[:10]}" in done.out
    assert "0.83" in done.out  # 0.5 + 1 / 3
    assert (
        rows(quick, "SELECT ulid FROM trials"),
        rows(quick, "SELECT sha FROM commits"),
    ) == before
    assert "working tree" not in quick.run("log").out + quick.run("drift").out
    assert "0.83" not in quick.run("export").out


def test_what_was_measured_is_not_measured_again(quick: ScriptedProject) -> None:
    quick.history([1.0])
    edit(quick, "LEVEL = 0.5\n")
    quick.run("run", ".")
    ran = len(quick.executor.ran)
    assert "holds every trial" in quick.run("run", ".").err
    edit(quick, "LEVEL = 0.4\n")
    quick.run("run", ".")
    assert len(quick.executor.ran) == ran + 2
    edit(quick, "LEVEL = 0.5\n")
    quick.run("run", ".")
    assert len(quick.executor.ran) == ran + 2


def test_a_tree_equal_to_heads_runs_nothing(quick: ScriptedProject) -> None:
    quick.history([1.0])
    for verb in ("run",):
        done = quick.run(verb, ".")
        assert (done.status, quick.executor.ran) == (0, []), done.err
        assert "nothing to measure" in done.out


def test_a_training_that_fails_is_bad_and_one_that_is_killed_is_no_answer(
    quick: ScriptedProject,
) -> None:
    quick.history([1.0])
    edit(quick, "LEVEL = None\n")
    done = quick.run("run", ".")
    assert done.status == 1
    assert "TypeError" in done.out


def test_head_and_the_working_tree_are_compared(quick: ScriptedProject) -> None:
    head = quick.history([1.0])[-1]
    quick.run("run", "HEAD")
    edit(quick, "LEVEL = 0.5\n")
    assert quick.run("diff", "HEAD", ".").status == 128  # not measured yet
    quick.run("run", ".")
    done = quick.run("diff", "HEAD", ".", "--json")
    assert done.status == 0, done.err
    answer = json.loads(done.out)
    (loss,) = [m for m in answer["tasks"][0]["metrics"] if m["metric"] == "val_loss"]
    assert answer["a"] == head
    assert loss["delta"] == pytest.approx(-0.5)
    assert f"working tree at {head[:10]}" in quick.run("diff", "HEAD", ".").out
    assert f"working tree at {head[:10]}" in quick.run("show", ".").out


def test_a_commit_reverted_is_measured(quick: ScriptedProject) -> None:
    _, culprit, head = quick.history([1.0, 2.0, 2.0])
    quick.run("run", "HEAD")
    done = quick.run("run", f"HEAD-{culprit[:10]}")
    assert done.status == 125  # the later commit changed the next line
    assert f"{culprit[:10]} cannot be reverted cleanly on {head[:10]}: model.py" in done.err
    done = quick.run("run", "HEAD-HEAD")
    assert f"{head[:10]} without {head[:10]}" in done.out
    assert "2.3" in done.out


def test_the_suite_of_each_side_has_that_sides_files(tmp_path: Path) -> None:
    """An edit of the training script is an edit. The trainings are real."""
    made = make_project(tmp_path / "own", SUITE.replace("[0, 1]", "[0]"))
    (made.root / ".git" / "info" / "exclude").write_text("")
    made.history([1.0])
    assert made.run("run", "HEAD").status == 0
    script = made.root / "suites" / "tiny" / "fit.py"
    script.write_text(script.read_text().replace("LEVEL +", "LEVEL / 2 +"))
    assert made.run("run", ".").status == 0
    answer = json.loads(made.run("diff", "HEAD", ".", "--json").out)
    assert answer["tasks"][0]["comparable"] is True
    (loss,) = [m for m in answer["tasks"][0]["metrics"] if m["metric"] == "val_loss"]
    assert loss["delta"] == pytest.approx(-0.5)
    git(made.root, "add", "-A")
    git(made.root, "commit", "--quiet", "-m", "halve")
    done = made.run("run", "HEAD-HEAD")  # with the script that was reverted, too
    assert done.status == 0, done.err
    assert "re-used from" in done.out


def test_a_synthetic_revision_does_not_leave_the_machine(quick: ScriptedProject) -> None:
    quick.history([1.0])
    edit(quick, "LEVEL = 0.5\n")
    done = quick.run("run", ".", "--engine", "ray")
    assert done.status == 129
    assert "on this machine alone" in done.err
    quick.run("run", ".")
    assert quick.executor.ran
    sha = json.loads(quick.run("show", ".", "--json").out)["commit"]["sha"]
    assert quick.run("run", sha).status == 129  # only the grammar reaches it


def test_explain_trains_each_side_with_its_own_files(
    quick: ScriptedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (quick.root / ".git" / "info" / "exclude").write_text("")
    head = quick.history([1.0])[-1]
    script = quick.root / "suites" / "tiny" / "fit.py"
    script.write_text("edited\n")
    sides = []

    def explain(_: object, a: Side, b: Side) -> None:
        sides.extend([a, b])
        raise CannotJudge("enough")

    monkeypatch.setattr("celedger.diagnose.explain.explain", explain)
    assert quick.run("explain", "HEAD", ".", "fit").status == 125
    a, b = sides
    assert (a.name, b.name) == (head[:10], f"working tree at {head[:10]}")
    assert a.suite_files is not None
    assert b.suite_files is not None
    assert (a.suite_files / "fit.py").read_text() != "edited\n"
    assert (b.suite_files / "fit.py").read_text() == "edited\n"
