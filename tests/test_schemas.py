"""The JSON schemas: they are those of the golden answers, and other answers keep to them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from conftest import load_script
from scripted import ScriptedProject, scripted

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "make_schemas.py"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return load_script(SCRIPT)


def test_the_schemas_are_those_of_the_golden_answers(maker: ModuleType) -> None:
    made = maker.files()
    assert {path: path.read_text() for path in maker.FOLDER.glob("*.json")} == made, "`make docs`"


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> ScriptedProject:
    """A regression that a bisect named, a crash, and what people said of them."""
    project = scripted(tmp_path_factory.mktemp("lived") / "project")
    shas = project.history([1.0, 1.0, 1.5, 1.5, 1.5])
    project.run("run", shas[0])
    project.run("check", "HEAD")
    (incident,) = json.loads(project.run("status", "--json").out)["incidents"]
    assert project.run("bisect", incident["id"]).status == 0
    project.run("baseline", "accept", incident["id"], "--why", "wanted")
    project.commit("broken", {"model.py": "raise ValueError('no')\n"})
    project.run("run", "HEAD")
    return project


@pytest.mark.parametrize(
    "line",
    [
        "log", "log --bisects", "show", "show HEAD~1", "show fit", "diff HEAD~5..HEAD~1", "drift",
        "status", "status ID", "check", "check HEAD~5", "queue", "table", "table HEAD~5..HEAD~1",
        "noise fit", "baseline show", "bisect HEAD~5..HEAD~1", "bisect HEAD~5..HEAD~1 --dry-run",
    ],
)  # fmt: skip
def test_answers_keep_to_their_schema(maker: ModuleType, lived: ScriptedProject, line: str) -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    (first, *_) = json.loads(lived.run("status", "--json").out)["incidents"]
    words = [first["id"] if word == "ID" else word for word in line.split()]
    done = lived.run(*words, "--json")
    answer = json.loads(done.out)
    path = maker.FOLDER / f"{maker.verb_of(words)}.json"
    validator(json.loads(path.read_text())).validate(answer)
    assert answer["schema"]


def test_a_wrong_answer_does_not_keep_to_the_schema(
    maker: ModuleType, lived: ScriptedProject
) -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    answer = json.loads(lived.run("log", "--json").out)
    answer["commits"][0]["tasks"][0]["trials"] = "none"
    schema = json.loads((maker.FOLDER / "log.json").read_text())
    assert not validator(schema).is_valid(answer)
