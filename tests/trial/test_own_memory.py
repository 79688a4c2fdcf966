"""The memory of trials whose suite preloads torch: without what the fork server imported, warm or
cold."""

from __future__ import annotations

import numbers
import sys
from pathlib import Path

import pytest
from conftest import SUITE, make_project

from celedger.base.model import ALLOCATOR, TrialRecord
from celedger.ledger import Ledger

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="launchers are Linux's"),
    pytest.mark.matrix,
]

WARM = SUITE.replace('name = "tiny"\n', 'name = "tiny"\npreload = ["torch"]\n', 1)
# A cold trial's pages of files are those that the runner saw last: the training holds its memory
# until the runner has stored two epochs, and has therefore looked once after the first.
TRAINING = """\
import os
import sqlite3
import time

import torch

import celedger.child as celedger
from model import WIDTH

torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
inputs = torch.randn(64, WIDTH)
ledger = sqlite3.connect("file:<ledger>?mode=ro", uri=True)
stored = "SELECT count(DISTINCT epoch) FROM points JOIN trials ON trials.id = trial WHERE ulid = ?"
trial = os.environ["CELEDGER_TRIAL"]
for epoch in range(3):
    loss = layers(inputs).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter -= 0.1 * parameter.grad
    layers.zero_grad()
    celedger.log(val_loss=loss.item())
    while ledger.execute(stored, (trial,)).fetchone()[0] <= epoch:
        time.sleep(0.01)
"""


def peaks(root: Path, commit: str) -> list[tuple[bool, float]]:
    """Return of each trial of a commit whether it was warm, and its memory."""
    with Ledger.open(root / "ledger.db", readonly=True) as ledger:
        trials: list[TrialRecord] = [t for t in ledger.trials() if t.trial.commit == commit]
    assert all(trial.ok for trial in trials)
    return [("duration" in t.summaries, t.summaries["peak_rss"]) for t in trials]


def test_warm_and_cold_trials_have_the_same_memory(tmp_path: Path) -> None:
    root = tmp_path / "project"
    training = TRAINING.replace("<ledger>", str(root / "ledger.db"))
    project = make_project(root, WARM, {"fit.py": training})
    plain = project.commit("plain", {"model.py": "WIDTH = 3000\n"})
    larger = project.commit("larger", {"model.py": "WIDTH = 3600\n"})
    own = Path(numbers.__file__).read_text()  # which torch imports
    shadowing = project.commit("its own module", {"model.py": "WIDTH = 3000\n", "numbers.py": own})
    for commit in (plain, larger, shadowing, plain):
        project.run("run", commit, "--force")
    warm, more, cold = (peaks(project.root, commit) for commit in (plain, larger, shadowing))
    assert all(starts_warm for starts_warm, _ in warm + more)
    assert not any(starts_warm for starts_warm, _ in cold)
    assert len(warm) == 2 * len(cold)  # two sessions
    lowest, highest = min(warm)[1], max(warm)[1]
    figures = f"{warm=} {more=} {cold=}"
    # One per cent on a quiet machine; anonymous memory moves by pages of 2 MiB, and by luck.
    assert highest - lowest < ALLOCATOR, figures
    assert all(lowest - ALLOCATOR < peak < highest + ALLOCATOR for _, peak in cold), figures
    # Weights and their gradients, and one more of them as a temporary: not what torch itself takes.
    assert lowest > 2 * 4 * 3000**2 and highest < 5 * 4 * 3000**2, figures
    assert all(peak > highest + 2 * ALLOCATOR for _, peak in more), figures  # 32 MB and more
