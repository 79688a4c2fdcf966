"""The recipes work as they are written: each block is pasted into an empty repository."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PEOPLE, git

PAGE = Path(__file__).resolve().parent.parent / "docs" / "recipes.md"
RECIPES = {
    section.partition("\n")[0]: "".join(re.findall(r"^```sh\n(.*?)^```", section, re.M | re.DOTALL))
    for section in PAGE.read_text().split("\n## ")[1:]
}
NEEDS = {
    "accelerate": "accelerate",
    "Hydra": "hydra",
    "trackio": "trackio",
    "pytest-benchmark": "pytest_benchmark",
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", list(RECIPES))
def test_a_recipe_can_be_pasted(name: str, tmp_path: Path) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    git(tmp_path, "init", "--quiet", ".")
    environment = {
        **os.environ,
        **PEOPLE,
        "VIRTUAL_ENV": "",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-e"], input=RECIPES[name], cwd=tmp_path, env=environment, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    shown = subprocess.run(
        ["celedger", "log", "--json"], cwd=tmp_path, env=environment, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    (task,) = json.loads(shown.stdout)["commits"][0]["tasks"]
    assert set(task["outcomes"]) == {"ok"}
    assert re.fullmatch(r"(\w+_)?loss|accuracy|total_time", task["main"]["metric"])


def test_every_recipe_has_a_block() -> None:
    titles = re.findall(r"^## (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    assert titles == [name for name, block in RECIPES.items() if block]
