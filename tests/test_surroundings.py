"""What the tests must not depend on: the signals that they inherit."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import matrix_after

# In a process of its own: it imports conftest as the tests do, and starts a child as they do.
PROBE = """\
import subprocess, sys
import conftest
sys.exit(subprocess.run(["sh", "-c", "kill -{name} $$; exit 7"]).returncode != -{number})
"""


@pytest.mark.parametrize(
    "number", matrix_after(1, [signal.SIGINT, signal.SIGHUP]), ids=lambda n: n.name
)
def test_children_of_tests_can_be_interrupted_whatever_was_inherited(
    number: signal.Signals,
) -> None:
    probe = PROBE.format(name=number.name.removeprefix("SIG"), number=number.value)
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=Path(__file__).parent, check=False,
        preexec_fn=lambda: signal.signal(number, signal.SIG_IGN),
    )  # fmt: skip
    assert done.returncode == 0
