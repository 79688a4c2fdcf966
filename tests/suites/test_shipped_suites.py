"""The shipped suites, each task cut short: it runs, reports what suite.toml declares, beats its
trivial baseline, repeats itself bit by bit in another process, and calls nothing that cannot."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from suites.conftest import ROOT, SUITES, Trials, task_of
from suites.test_determinism import raising_operators

from celedger.base.model import Direction, Kind

if find_spec("torch") is None or find_spec("sklearn") is None:
    pytest.skip("needs celedger[torch]", allow_module_level=True)

TEN_CLASSES = math.log(10)
UNIGRAM = 3.28  # nats a character, of the characters' frequencies alone

# Options that cut a task short, a metric, and a value on the bad side of which it may not end:
# that of the trivial baseline in the script's docstring.
SHORT = {
    "mlp_digits": ("--epochs 2 --passes 1", "val_loss", TEN_CLASSES),
    "resnet_digits": ("--epochs 4 --width 4", "val_loss", TEN_CLASSES),
    "char_transformer": ("--epochs 1 --layers 1 --width 16", "val_loss", UNIGRAM),
    "char_lstm": ("--epochs 1 --width 32 --batch 64", "val_loss", UNIGRAM),
    "linear_probe": ("--epochs 2", "val_loss", TEN_CLASSES),
    "optimisers": ("--epochs 2", "val_loss", TEN_CLASSES),
    "mobilenet_digits[amp=false]": ("--epochs 2 --width 8 --blocks 1", "val_loss", TEN_CLASSES),
    "mobilenet_digits[amp=true]": (
        "--epochs 2 --width 8 --blocks 1 --lr 1e-2",
        "val_loss",
        TEN_CLASSES,
    ),
    "vit_digits[amp=false]": ("--epochs 2 --layers 1", "val_loss", TEN_CLASSES),
    "vit_digits[amp=true]": ("--epochs 2 --layers 1", "val_loss", TEN_CLASSES),
    "vit_twins": ("--epochs 2 --batch 96", "val_loss", TEN_CLASSES + 0.05),
    "word_vectors": ("--epochs 2 --passes 1", "val_loss", 2.70),
    "graph_communities": ("--epochs 2", "val_loss", math.log(4)),
    "vae_digits": ("--epochs 1 --passes 2", "val_loss", 31.0),
    "diffusion_rings": ("--epochs 1 --passes 2", "val_loss", 1.0),
    "actor_critic": ("--epochs 1 --steps 8", "val_cost", 0.6),
    "averaged_cnn": ("--epochs 4 --last 2", "averaged_loss", TEN_CLASSES),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", SHORT)
def test_a_task_learns_reports_and_repeats_itself(name: str, tmp_path: Path, trial: Trials) -> None:
    options, metric, baseline = SHORT[name]
    first = trial(name, options, tmp_path / "a")
    second = trial(name, options, tmp_path / "b", operators=True)
    _, task = task_of(name)
    exact = {"epoch", "fingerprint"} | {m.name for m in task.metrics if m.kind is Kind.QUALITY}
    assert [{k: r[k] for k in exact & r.keys()} for r in first] == [
        {k: r[k] for k in exact & r.keys()} for r in second
    ]
    assert all("fingerprint" in report for report in first)
    assert raising_operators(tmp_path / "b") == []
    epochs = [report["epoch"] for report in first]
    assert sorted(set(epochs)) == epochs  # nothing is reported twice
    printed = (tmp_path / "a" / "printed").read_text()
    assert len(printed.splitlines()) == len(first)  # by hand: a line an epoch

    last: dict[str, float] = {}
    for report in first:
        last |= report
    declared = {m.name for m in task.metrics if m.direction is not Direction.INFO}
    assert declared <= set(last)
    assert all(math.isfinite(last[metric]) for metric in declared)
    assert last[metric] < baseline
    if name == "vit_twins":
        assert last["twins_apart"] == last["checkpoint_gap"] == 0
        assert last["accumulation_gap"] < 1e-9


@pytest.mark.matrix
def test_seeds_have_no_say_in_the_instruments(tmp_path: Path, trial: Trials) -> None:
    """What makes them exact: another seed is the same trial."""
    for name in ("linear_probe", "optimisers"):
        options, metric, _ = SHORT[name]
        one = trial(name, f"{options} --seed 1", tmp_path / f"{name}-1")
        two = trial(name, f"{options} --seed 2", tmp_path / f"{name}-2")
        assert one[-1]["fingerprint"] == two[-1]["fingerprint"]
        assert one[-1][metric] == two[-1][metric]


def test_suite_file_and_scripts_agree_on_defaults_and_scripts_say_what_they_are() -> None:
    for suite in SUITES.values():
        assert suite.warnings == ()
        for task in suite.tasks:
            word = next(w for w in task.commands[0].template if w.endswith(".py"))
            script = (suite.folder / Path(word).name).read_text()
            for name, value in task.params.items():
                default = re.search(rf"^    {name}=([^,]+),", script, re.MULTILINE)
                assert default is not None, f"{word} has no {name}"
                assert "[" in task.name or float(default[1]) == float(value)
            docstring = script.split('"""')[1]
            for part in ("Covers ", "Trivial baseline"):
                assert part in docstring, f"{word} does not say: {part}"
            assert re.search(r"arXiv:|\d{4}", docstring), f"{word} names no paper"


@pytest.mark.matrix
@pytest.mark.parametrize("suite", SUITES)
def test_both_suites_share_data_that_is_what_it_promises(suite: str) -> None:
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import torch
from shared import digits, text
images, labels, val_images, val_labels = digits.load()
assert images.shape == (1437, 1, 8, 8) and val_images.shape == (360, 1, 8, 8)
assert 0 <= images.min() and images.max() == 1
assert torch.bincount(val_labels, minlength=10).min() >= 25  # no class is missing
task = text.Text(32)
windows, val_windows = task.windows, task.val_windows
assert windows.shape[1] == 33 and len(windows) > 2000 and len(val_windows) > 250
assert torch.equal(windows[0, -1:], windows[1, :1])
counts = torch.bincount(windows.flatten(), minlength=len(text.ALPHABET)) + 1  # Laplace's rule
unigram = -(counts / counts.sum()).log()[val_windows[:, 1:]].mean().item()
assert abs(unigram - float(sys.argv[2])) < 0.05
assert "sklearn" not in sys.modules
print("read")
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(SUITES[suite].folder), str(UNIGRAM)],
        env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.stdout == "read\n", run.stderr
