"""The lines and calls of the user's own code, by each way in which a Python counts them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import celedger.lab.probes

SCRIPT = """\
import json, os, sys
sys.path.insert(0, sys.argv[1])
from probes.own_code import OwnCode

own = OwnCode()

def helper(x):
    y = x + 1
    return y

def step(n):
    total = 0
    for i in range(n):
        total += helper(i)
    return total

def main():
    own.start()
    counts = []
    for n in (3, 3, 10, 3):
        before = own.lines, own.calls
        step(n)
        json.dumps({"a": [1, 2, 3]})
        counts.append([own.lines - before[0], own.calls - before[1]])
    worker = os.fork()
    if worker == 0:
        before = own.lines, own.calls
        step(50)
        os._exit(int((own.lines, own.calls) != before))
    _, status = os.waitpid(worker, 0)
    print(json.dumps([own.is_counted, counts, os.waitstatus_to_exitcode(status)]))

main()
"""


def interpreter(minor: int) -> str:
    """Return a Python of this version, a shim of pyenv's among them; "" where none runs."""
    name = f"3.{minor}"
    python = sys.executable if sys.version_info[1] == minor else shutil.which(f"python{name}")
    words = [python or "false", "-c", "import sys; print(sys.executable)"]
    env = {**os.environ, "PYENV_VERSION": name}
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.mark.parametrize("minor", [11, 12, 13, 14])
def test_counts_are_exact_and_equal_in_each_python(minor: int, tmp_path: Path) -> None:
    """`sys.settrace` counts before 3.12, `sys.monitoring` from then on."""
    if not (python := interpreter(minor)):
        pytest.skip(f"there is no Python 3.{minor}")
    probes = tmp_path / "celedger" / "lab" / "probes"  # without celedger: no torch is there
    probes.mkdir(parents=True)
    (probes / "__init__.py").touch()
    for name in ("own_code.py", "stack.py"):
        shutil.copy(Path(celedger.lab.probes.__file__).parent / name, probes)
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [python, str(tmp_path / "script.py"), str(probes.parent)]
    done = subprocess.run(words, capture_output=True, text=True)
    # A forked loader's worker counts nothing.
    assert done.stdout == "[true, [[18, 4], [18, 4], [46, 11], [18, 4]], 0]\n", done.stderr
