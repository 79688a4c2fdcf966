"""A failure that its seed does not repeat is no doing of a commit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from scripted import Report, ScriptedProject, descend, scripted


def project(tmp_path: Path, fault: str, times: int) -> ScriptedProject:
    """A project whose second commit fails with seed 1 so many times."""
    left = [times]

    def train(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
        fails = model.get("FRAGILE") and seed == 1 and left[0] > 0
        left[0] -= bool(fails)
        if fails and fault == "crash":
            raise ConnectionResetError("by peer")
        for report in descend(model, seed):
            yield {**report, "val_loss": math.nan} if fails else report

    made = scripted(tmp_path / "project", training=train)
    for number in range(3):
        made.commit(f"number {number}", {"model.py": f"LEVEL = 1.0\nN = {number}\n"})
        assert made.run("check", "HEAD", "--lenient").status == 0
    made.commit("fragile", {"model.py": "LEVEL = 1.0\nFRAGILE = True\n"})
    return made


@pytest.mark.parametrize("fault", ["crash", "nan"])
def test_what_a_second_trial_of_the_seed_does_not_repeat_is_no_incident(
    tmp_path: Path, fault: str
) -> None:
    made = project(tmp_path, fault, 1)
    done = made.run("check", "HEAD", "--lenient")
    assert "seed 1: does it fail again?" in done.err
    assert done.status == 0, done.out
    assert json.loads(made.run("status", "--json").out)["incidents"] == []
    assert "does it fail again?" not in made.run("check", "HEAD", "--lenient").err


@pytest.mark.parametrize("fault", ["crash", "nan"])
def test_what_the_seed_repeats_is_one(tmp_path: Path, fault: str) -> None:
    made = project(tmp_path, fault, 9)
    done = made.run("check", "HEAD")
    assert done.err.count("does it fail again?") == 1
    assert done.status == 1
    (incident,) = json.loads(made.run("status", "--json").out)["incidents"]
    assert incident["kind"] == ("crash" if fault == "crash" else "not-finite")
    assert "does it fail again?" not in made.run("check", "HEAD").err
