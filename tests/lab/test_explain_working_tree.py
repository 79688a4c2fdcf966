"""Diagnoses of the working tree: each side trains with its own files."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted import ScriptedProject, scripted

from celedger.base.errors import CannotJudge
from celedger.base.model import Commit
from celedger.lab.diagnose.explain import Side
from celedger.trial.runner import Bench


@pytest.fixture
def quick(tmp_path: Path) -> ScriptedProject:
    return scripted(tmp_path / "quick")


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

    monkeypatch.setattr("celedger.lab.diagnose.explain.explain", explain)
    assert quick.run("explain", "HEAD", ".", "fit").status == 125
    a, b = sides
    assert (a.name, b.name) == (head[:10], f"working tree at {head[:10]}")
    assert a.suite_files is not None
    assert b.suite_files is not None
    assert (a.suite_files / "fit.py").read_text() != "edited\n"
    assert (b.suite_files / "fit.py").read_text() == "edited\n"


def test_an_unchanged_working_tree_differs_in_nothing(quick: ScriptedProject) -> None:
    (quick.root / ".git" / "info" / "exclude").write_text("")
    quick.history([1.0])
    quick.commit("all", {"other.py": "1\n"})  # the suite, too
    done = quick.run("explain", "HEAD", ".", "fit")
    assert (done.status, done.out) == (0, "HEAD and . have the same files: nothing differs\n")
    assert quick.run("explain", "HEAD..HEAD", "fit").status == 129


@pytest.mark.parametrize("verb", ["watch", "preflight", "profile"])
def test_other_diagnoses_take_the_working_tree_and_a_revert(
    verb: str, quick: ScriptedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    (quick.root / ".git" / "info" / "exclude").write_text("")
    quick.history([1.0])
    bad = quick.commit("bad", {"other.py": "0\n"})
    quick.commit("last", {"more.py": "1\n"})
    (quick.root / "suites" / "tiny" / "fit.py").write_text("edited\n")
    asked: list[tuple[list[str], str]] = []

    def diagnose(bench: Bench, commit: Commit, *_: object, **_named: object) -> None:
        script = (bench.setup.suite_files / "fit.py").read_text()
        asked.append((list(bench.repository.matching(commit.sha, ["*.py"])), script))
        raise CannotJudge("enough")

    monkeypatch.setattr(f"celedger.lab.diagnose.{verb}.{verb}", diagnose)
    for revision in ("HEAD", ".", f"HEAD-{bad[:8]}"):
        words = [revision, "fit"] if verb == "profile" else ["fit", revision]
        assert quick.run(verb, *words).status == 125
    (_, plain), (_, edited), (reverted, old) = asked
    assert plain == edited == "edited\n"
    assert old != "edited\n"
    assert "more.py" in reverted
    assert "other.py" not in reverted
