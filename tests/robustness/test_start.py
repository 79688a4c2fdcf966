"""`celedger --help` stays cheap: what it must not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "torch", "matplotlib", "numpy", "scipy", "git", "sqlite3", "psutil", "pynvml",
    "rich", "celedger.base.model", "celedger.ledger", "celedger.repo", "celedger.stats",
}  # fmt: skip


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys; from celedger.cli import unix; unix.prepare(); "
        f"from celedger.cli.app import run; status = run({words!r}); "
        "print(status, *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, *loaded = done.stderr.split()
    assert status == "0"
    assert done.stdout
    assert "typer" in loaded
    assert not HEAVY.intersection(loaded)
