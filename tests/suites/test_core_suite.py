"""The suite `core`, each task cut short: it runs by hand, reports what suite.toml declares, beats
its trivial baseline, and repeats itself bit by bit in another process."""

from __future__ import annotations

import math
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from suites.conftest import Trials

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


@pytest.mark.parametrize("task", SHORT)
def test_a_task_learns_reports_and_repeats_itself(task: str, tmp_path: Path, trial: Trials) -> None:
    options, baseline = SHORT[task]
    first, second = (trial(task, options, tmp_path / run) for run in ("a", "b"))
    exact = ("epoch", "fingerprint", "train_loss", "val_loss", "val_accuracy")
    assert [[r[k] for k in exact] for r in first] == [[r[k] for k in exact] for r in second]

    declared = tomllib.loads((CORE / "suite.toml").read_text())["metrics"]
    for report in first:
        assert set(declared) <= set(report)
        assert all(math.isfinite(report[name]) for name in declared)
    assert first[-1]["val_loss"] < baseline
    printed = (tmp_path / "a" / "said").read_text()
    assert len(printed.splitlines()) == len(first)  # by hand: a line an epoch


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
