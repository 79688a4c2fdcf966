from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import load_script
from lab.edited import TrainingServer

ROOT = Path(__file__).resolve().parents[2]
Answered = Callable[[str, str], Any]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingServer]:
    server = TrainingServer(tmp_path_factory.mktemp("trained"))
    yield server
    server.close()


@pytest.fixture
def answered(request: pytest.FixtureRequest) -> Answered:
    """Read a verb's JSON, which keeps to its schema in docs/schemas. With --update-golden it is one
    of those from which `make docs` makes the schema."""
    maker = load_script(ROOT / "scripts" / "make_schemas.py")

    def read(verb: str, text: str) -> Any:
        answer = json.loads(text)
        if request.config.getoption("--update-golden"):
            name = re.sub(r"\W+", "-", request.node.name).strip("-")
            kept = json.dumps(answer, separators=(",", ":"))
            (maker.LAB / f"{verb}.{name}.json").write_text(f"{kept}\n", encoding="utf-8")
        elif find_spec("jsonschema"):
            from jsonschema import validate

            validate(answer, json.loads((maker.FOLDER / f"{verb}.json").read_text()))
        return answer

    return read
