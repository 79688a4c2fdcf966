"""A part of `make bench-lab`: explain names what is planted in trainings as people write them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[2] / "benchmarks" / "lab.py"
EDITS = (
    "seq2seq/padding-attended", "seq2seq/split-file", "gan/average-wrong-way",
    "gan/optimisers-swapped", "gnn/jump-lost", "gnn/rename-modules",
)  # fmt: skip


@pytest.mark.matrix
def test_faults_in_trainings_as_people_write_them_are_named_and_refactors_are_not() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(LAB), "--only", *EDITS], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
