"""kill -9 of training, supervisor, `celedger run` and worker: the short version of
benchmarks/kills.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"


@pytest.mark.matrix  # tests/cli/test_restore.py and tests/engines/test_loopback.py kill one each
@pytest.mark.parametrize("kind", ["run", "trial", "worker", "supervisor", "both"])
def test_a_kill_loses_no_epoch_and_leaves_nothing_behind(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--times", "1", "--seed", "7", kind],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed 1 times" in done.stdout
