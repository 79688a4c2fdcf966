"""Preflight's checks fail on planted mistakes, each on its own, and pass on sound trainings,
whoever wrote the loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [  # what they share is trained once
    pytest.mark.xdist_group("preflight"),
    pytest.mark.matrix,
]

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# Of each training: what is no "pass", and the checks that need not pass either.
MISTAKES: dict[str, tuple[dict[str, str], set[str]]] = {
    "labels_constant_and_unscaled": (
        {"labels balanced": "fail", "inputs in range": "warn"}, {"train and validation alike"},
    ),
    "eval_forgotten_and_confident": (
        {"train and eval mode": "fail", "loss at the start": "fail"}, set(),
    ),
    "dropout_left_on_and_validation_in_training": (
        {"train and eval mode": "fail", "train and validation apart": "fail"},
        {"overfits one batch"},
    ),
    "detached_and_not_zeroed": (
        {"every parameter learns": "fail", "gradients cleared": "fail"}, {"overfits one batch"},
    ),
    "forgotten": ({"every parameter learns": "fail"}, {"overfits one batch"}),
    "inputs_ignored": ({"looks at its inputs": "fail"}, {"overfits one batch"}),
    "one_input_ignored": ({"looks at its inputs": "warn"}, set()),
    "never_negative": (
        {"output fits the loss": "warn"}, {"overfits one batch", "labels follow inputs"},
    ),
    "rate_zero": (
        {"overfits one batch": "fail", "every parameter learns": "fail"}, set(),
    ),
    "softmax_twice": ({"output fits the loss": "warn"}, {"overfits one batch"}),
    "broadcast_and_split_badly": (
        {"output fits the loss": "fail", "train and validation alike": "warn"},
        {"overfits one batch", "loss at the start"},
    ),
    "graph_kept": ({"memory stays flat": "warn"}, set()),
    "order_fixed_and_graph_recorded": (
        {"training data shuffled": "warn", "train and eval mode": "warn"}, set(),
    ),
}  # fmt: skip
ROWS = {"labels follow inputs", "labels agree with near rows"}
EVALUATION = {"train and validation apart", "train and validation alike", "train and eval mode"}
# What cannot be told of a sound one, or is worth a warning.
SOUND: dict[str, set[str]] = {
    "healthy": set(),
    "on_a_sparse_graph_with_ignored_labels": {"training data shuffled"},
    "not_copied": {"overfits one batch"},
    "loss_inside": {"loss at the start", "every parameter learns"},
    "codes_that_collapse": {"labels balanced", *ROWS},
    "adversarial": {
        "labels balanced",
        "loss at the start",
        "overfits one batch",
        "training data shuffled",
        *EVALUATION,
        *ROWS,
    },
    "words": {
        "overfits one batch",
        "memory stays flat",
        "training data shuffled",
        "no outlying rows",
        *EVALUATION,
        *ROWS,
    },
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checked")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "checked.py"), str(folder), *MISTAKES, *SOUND]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def checks(out: Path, name: str) -> dict[str, dict[str, Any]]:
    assert not (out / name / "probe-failed.txt").exists()
    rows = (out / name / "0" / "events.jsonl").read_text().splitlines()
    (event,) = map(json.loads, rows)
    return {check["check"]: check for check in event["checks"]}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_fails_its_check(out: Path, name: str) -> None:
    expected, consequences = MISTAKES[name]
    found = checks(out, name)
    assert {check: found[check]["status"] for check in expected} == expected, found
    other = {check for check, result in found.items() if result["status"] in ("fail", "warn")}
    assert other <= set(expected) | consequences, [found[check]["said"] for check in other]


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_training_passes(out: Path, name: str) -> None:
    found = checks(out, name)
    assert not [result for result in found.values() if result["status"] == "fail"]
    other = {check for check, result in found.items() if result["status"] != "pass"}
    assert other <= SOUND[name], found


def test_an_input_without_effect_and_an_output_without_range_are_named(out: Path) -> None:
    said = checks(out, "one_input_ignored")["looks at its inputs"]["said"]
    assert said == "no effect on the output: input 1 of the model"
    said = checks(out, "never_negative")["output fits the loss"]["said"]
    assert said.endswith("never below 0")


def test_labels_that_the_loss_ignores_are_no_class(out: Path) -> None:
    found = checks(out, "on_a_sparse_graph_with_ignored_labels")
    assert found["labels balanced"]["said"].startswith("4 of 4 classes in ")
    assert "0 of 200 validation rows" in found["train and validation apart"]["said"]


def test_targets_that_the_training_computes_are_codes(out: Path) -> None:
    found = checks(out, "codes_that_collapse")["labels balanced"]
    assert (found["status"], found["said"]) == (
        "n/a", "the training computes its targets itself, so they are not labels",
    )  # fmt: skip


def test_a_loss_that_the_model_computes_is_learnt_by_heart(out: Path) -> None:
    found = checks(out, "loss_inside")
    assert found["overfits one batch"]["said"].startswith("loss of 8 rows")
    assert "never called: pooler.weight" in found["every parameter learns"]["said"]
