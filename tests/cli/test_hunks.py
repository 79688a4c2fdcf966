"""`bisect --hunks`: the smallest part of the named commit that moves the metric."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import git, matrix_after
from scripted import ScriptedProject, scripted

NAMES = "ABCDEFG"
PADDING = "".join(f"# {n}\n" for n in range(5))


@pytest.fixture
def project(tmp_path: Path) -> ScriptedProject:
    return scripted(tmp_path / "project")


def model(level: str, **values: int) -> str:
    lines = [f"{name} = {values.get(name, 0)}\n{PADDING}" for name in NAMES]
    return "".join(lines) + f"LEVEL = 1 + {level}\n"


def planted(project: ScriptedProject, level: str) -> list[str]:
    """Commit seven hunks and a new file at once, in the middle of some commits."""
    before, after = model(level), model(level, **dict.fromkeys(NAMES, 1))
    shas = [project.commit(f"before {n}", {"model.py": before, f"b{n}.py": ""}) for n in range(3)]
    shas.append(project.commit("all at once", {"model.py": after, "new.py": "x = 1\n"}))
    shas += [project.commit(f"after {n}", {f"a{n}.py": ""}) for n in range(2)]
    return shas


@pytest.mark.parametrize(
    ("level", "guilty"),
    matrix_after(1, [("0.4 * (B and E)", "BE"), ("0.4 * C", "C"), ("0.4 * F", "F")]),
)
def test_the_hunks_that_move_the_metric_are_found(
    level: str, guilty: str, project: ScriptedProject
) -> None:
    shas = planted(project, level)
    ends = f"{shas[0]}..{shas[-1]}"
    done = project.run("bisect", ends, "--metric", "val_loss", "--hunks")
    assert done.status == 0, done.err
    places = [f"model.py:{1 + 6 * NAMES.index(name)}" for name in guilty]
    verb = "alone moves" if len(guilty) == 1 else "together move"
    start = f"{', '.join(places)} {verb} fit val_loss ({len(guilty)} of 8 parts of {shas[3][:8]}; "
    assert start in done.out, done.out
    trainings = int(done.out.partition(start)[2].partition(" ")[0])
    assert trainings <= (10 if len(guilty) == 1 else 30)
    for name in guilty:
        assert f"    +{name} = 1" in done.out
    again = project.run("bisect", ends, "--metric", "val_loss", "--hunks", "--json")
    (answer,) = json.loads(again.out)["hunks"]
    assert (answer["commit"], answer["of"], answer["trainings"]) == (shas[3], 8, 0)
    assert git(project.root, "status", "--porcelain") == ""


def test_a_crash_has_its_hunk_too(project: ScriptedProject) -> None:
    shas = planted(project, "1 / (1 - D)")
    done = project.run("bisect", f"{shas[0]}..{shas[-1]}", "--hunks")
    assert f"model.py:{1 + 6 * 3} alone moves fit crash (1 of 8 parts" in done.out, done.out
