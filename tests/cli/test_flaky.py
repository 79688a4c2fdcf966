"""A failure that its seed does not repeat is no doing of a commit. One that two seeds share is."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import matrix_after
from scripted import SUITE, Report, ScriptedProject, descend, scripted

FIVE = SUITE.replace("[0, 1]", "[0, 1, 2, 3, 4]")


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


@pytest.mark.parametrize("fault", matrix_after(1, ["crash", "nan"]))
def test_what_a_second_trial_of_the_seed_does_not_repeat_is_no_incident(
    tmp_path: Path, fault: str
) -> None:
    made = project(tmp_path, fault, 1)
    done = made.run("check", "HEAD", "--lenient")
    assert "seed 1: does it fail again?" in done.err
    assert done.status == 0, done.out
    assert json.loads(made.run("status", "--json").out)["incidents"] == []
    assert "does it fail again?" not in made.run("check", "HEAD", "--lenient").err


@pytest.mark.parametrize("fault", matrix_after(1, ["nan", "crash"]))
def test_what_the_seed_repeats_is_one(tmp_path: Path, fault: str) -> None:
    made = project(tmp_path, fault, 9)
    done = made.run("check", "HEAD")
    assert done.err.count("does it fail again?") == 1
    assert done.status == 1
    (incident,) = json.loads(made.run("status", "--json").out)["incidents"]
    assert incident["kind"] == ("crash" if fault == "crash" else "not-finite")
    assert "does it fail again?" not in made.run("check", "HEAD").err


def _broken(tmp_path: Path, message: str) -> ScriptedProject:
    """A project with five seeds whose second commit ends each trial with a message."""

    def train(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
        if model.get("BROKEN"):
            raise ValueError(message.format(seed=seed))
        yield from descend(model, seed)

    made = scripted(tmp_path / "project", suite=FIVE, training=train)
    made.commit("sound", {"model.py": "LEVEL = 1.0\n"})
    assert made.run("run", "HEAD").status == 0
    made.commit("broken", {"model.py": "LEVEL = 1.0\nBROKEN = True\n"})
    made.executor.ran.clear()
    return made


def test_two_seeds_that_fail_alike_are_enough(tmp_path: Path) -> None:
    made = _broken(tmp_path, "no such layer")
    done = made.run("run", "HEAD")
    assert len(made.executor.ran) == 2
    assert done.err.count("fails alike: its other seeds are not trained") == 1
    assert "holds every trial" in made.run("run", "HEAD").err
    assert made.run("check", "HEAD", "--budget", "0").status == 1
    assert len(made.executor.ran) == 2
    made.run("run", "HEAD", "--seed", "4")
    assert len(made.executor.ran) == 3


def test_seeds_that_fail_each_in_its_own_way_are_all_trained(tmp_path: Path) -> None:
    made = _broken(tmp_path, "seed {seed} meets no target")
    made.run("run", "HEAD")
    assert len(made.executor.ran) == 5
