"""The suite `core`, each task cut short: it runs by hand, reports what suite.toml declares, beats
its trivial baseline, and repeats itself bit by bit in another process."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("torch") is None or find_spec("sklearn") is None:
    pytest.skip("needs celedger[torch]", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "suites" / "core"

UNIGRAM = 3.28  # nats a character: see text.unigram_loss

SHORT = {  # options that cut a task to about a second, and the baseline its val_loss must beat
    "mlp_digits": ("--epochs 2 --passes 1", math.log(10)),
    "resnet_digits": ("--epochs 4 --width 4", math.log(10)),
    "char_transformer": ("--epochs 1 --layers 1 --width 16", UNIGRAM),
    "char_lstm": ("--epochs 1 --width 32 --batch 64", UNIGRAM),
}


def start(task: str, options: str, journal: Path) -> subprocess.Popen[str]:
    fd = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        return subprocess.Popen(
            [sys.executable, str(CORE / f"{task}.py"), *options.split()],
            pass_fds=[fd],
            env={**os.environ, "PYTHONPATH": str(ROOT), "CELEDGER_FD": str(fd)},
            stdout=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(fd)


@pytest.mark.parametrize("task", SHORT)
def test_a_task_learns_reports_and_repeats_itself(task: str, tmp_path: Path) -> None:
    options, baseline = SHORT[task]
    journals = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    running = [start(task, options + " --seed 3", journal) for journal in journals]
    printed = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]

    first, second = (
        [json.loads(line) for line in journal.read_text().splitlines()] for journal in journals
    )
    exact = ("epoch", "fingerprint", "train_loss", "val_loss", "val_accuracy")
    assert [[r[k] for k in exact] for r in first] == [[r[k] for k in exact] for r in second]

    declared = tomllib.loads((CORE / "suite.toml").read_text())["metrics"]
    for report in first:
        assert set(declared) <= set(report)
        assert all(math.isfinite(report[name]) for name in declared)
    assert first[-1]["val_loss"] < baseline
    assert len(printed[0].splitlines()) == len(first)  # by hand: a line an epoch


def test_suite_file_and_scripts_agree_on_the_defaults() -> None:
    """By hand and from celedger it is the same training."""
    suite = tomllib.loads((CORE / "suite.toml").read_text())
    for task in suite["task"]:
        script = (CORE / f"{task['name']}.py").read_text()
        for name, value in task["params"].items():
            default = re.search(rf"^    {name}=([^,]+),", script, re.MULTILINE)
            assert default is not None and float(default[1]) == value


def test_the_data_is_what_the_docstrings_say_and_sklearn_is_not_imported() -> None:
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import torch, digits, text
cpu = torch.device("cpu")
images, labels, val_images, val_labels = digits.load(cpu)
assert images.shape == (1437, 1, 8, 8) and val_images.shape == (360, 1, 8, 8)
assert 0 <= images.min() and images.max() == 1
assert torch.bincount(val_labels, minlength=10).min() >= 25  # no class is missing
windows, val_windows = text.load(cpu, 32)
assert windows.shape[1] == 33 and len(windows) > 2000 and len(val_windows) > 250
assert torch.equal(windows[0, -1:], windows[1, :1])
assert abs(text.unigram_loss(windows, val_windows) - float(sys.argv[2])) < 0.05
assert "sklearn" not in sys.modules
print("read")
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(CORE), str(UNIGRAM)], capture_output=True, text=True
    )
    assert run.stdout == "read\n", run.stderr
