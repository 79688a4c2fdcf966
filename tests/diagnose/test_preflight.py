"""Preflight's checks fail on planted mistakes, each on its own, and pass on sound trainings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [  # what they share is trained once
    pytest.mark.xdist_group("preflight"),
    pytest.mark.matrix,
]

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# Of each training: the checks that have to fail or to warn, and those that may fail with them.
MISTAKES: dict[str, tuple[dict[str, str], set[str]]] = {
    "labels_constant_and_unscaled": (
        {"labels balanced": "fail", "inputs in range": "warn"}, {"looks at its inputs"},
    ),
    "eval_forgotten_and_confident": (
        {"train and eval mode": "fail", "loss at the start": "fail"}, set(),
    ),
    "dropout_left_on_and_validation_in_training": (
        {"train and eval mode": "fail", "train and validation apart": "fail"}, set(),
    ),
    "detached_and_not_zeroed": (
        {"every parameter learns": "fail", "gradients cleared": "fail"}, {"overfits one batch"},
    ),
    "forgotten_and_unseeded": (
        {"every parameter learns": "fail", "same seed, same result": "fail"},
        {"overfits one batch"},
    ),
    "inputs_ignored_and_leak": (
        {"looks at its inputs": "fail", "memory stays flat": "fail"},
        {"every parameter learns", "overfits one batch", "inputs in range"},
    ),
    "rate_zero": (
        {"overfits one batch": "fail"}, {"every parameter learns", "looks at its inputs"},
    ),
}  # fmt: skip
SOUND = ("healthy", "on_a_sparse_graph_with_ignored_labels")
BROKEN = "evaluation_breaks"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checked")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "checked.py"), str(folder), *MISTAKES, *SOUND, BROKEN]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def checks(out: Path, name: str) -> dict[str, dict[str, object]]:
    found = json.loads((out / name / "preflight.json").read_text())
    return {check["check"]: check for check in found}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_fails_its_check(out: Path, name: str) -> None:
    expected, consequences = MISTAKES[name]
    found = checks(out, name)
    assert {check: found[check]["status"] for check in expected} == expected
    failed = {check for check, result in found.items() if result["status"] == "fail"}
    assert failed <= set(expected) | consequences, [found[check]["said"] for check in failed]


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_training_passes(out: Path, name: str) -> None:
    found = checks(out, name)
    assert {check for check, r in found.items() if r["status"] not in ("pass", "n/a")} <= {
        "loader keeps up", "inference latency",  # of this machine and moment
    }, found  # fmt: skip
    tried = {check for check, r in found.items() if r["status"] == "n/a"}
    assert tried == ({"loader keeps up"} if name == "healthy" else set())


def test_labels_that_the_loss_ignores_are_no_class(out: Path) -> None:
    found = checks(out, SOUND[1])
    assert str(found["labels balanced"]["said"]).startswith("4 of 4 classes in 547 labels")
    assert "0 of 200 validation rows" in str(found["train and validation apart"]["said"])


def test_where_the_epoch_breaks_what_does_not_need_it_is_still_tried(out: Path) -> None:
    found = checks(out, BROKEN)
    lost = {check for check, r in found.items() if "ZeroDivisionError" in str(r["said"])}
    assert {check for check, r in found.items() if r["status"] == "pass"} == {
        "loss at the start", "overfits one batch", "same seed, same result", "memory stays flat",
    }  # fmt: skip
    assert set(found) - lost == {
        "loss at the start", "overfits one batch", "same seed, same result", "memory stays flat",
        "loader keeps up",
    }  # fmt: skip


def test_latency_is_told_for_each_number_of_processes(out: Path) -> None:
    figure = checks(out, "healthy")["inference latency"]["figure"]
    assert isinstance(figure, dict)
    assert {"one row", "largest batch", "denormal values", "extreme values"} == set(figure)
    cores = len(os.sched_getaffinity(0))
    assert list(figure["one row"]) == [str(n) for n in (1, 2, 4, 8, 16) if n <= cores]
    p50, p90, p99 = figure["one row"]["1"]
    assert 0 < p50 <= p90 <= p99
