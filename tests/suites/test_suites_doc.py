"""What docs/suites.md tells a person to type does what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def block(language: str, holding: str) -> str:
    page = (ROOT / "docs" / "suites.md").read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return next(text for text in blocks if holding in text)


@pytest.mark.matrix
@pytest.mark.skipif(find_spec("torch") is None, reason="needs celedger[torch]")
def test_the_example_of_the_training_loop_trains() -> None:
    run = subprocess.run(
        [sys.executable, "-c", block("python", "train("), "--epochs", "3"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CELEDGER_FD": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    reports = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert len(reports) == 3
    assert reports[-1]["val_loss"] < reports[0]["val_loss"]
    named = set(re.findall(r"`([a-z0-9_]+)`", (ROOT / "docs" / "suites.md").read_text()))
    assert set(reports[0]) - {"epoch", "fingerprint", "val_loss"} <= named


def test_the_shell_example_reports(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    fd = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(fd, 123)  # of three digits, as a runner with many files open hands out
    subprocess.run(
        ["bash", "-c", block("bash", "CELEDGER_FD")],
        pass_fds=[123],
        env={**os.environ, "CELEDGER_FD": "123"},
        check=True,
    )
    os.close(fd)
    os.close(123)
    assert json.loads(journal.read_text()) == {"epoch": 0, "val_loss": 0.41}


def test_the_suite_example_has_the_keys_of_the_shipped_one() -> None:
    example = tomllib.loads(block("toml", "[suite]"))
    shipped = tomllib.loads((ROOT / "suites" / "core" / "suite.toml").read_text())
    assert set(example) == set(shipped)
    assert set(example["metrics"]["val_loss"]) == set(shipped["metrics"]["val_loss"])
    assert set(example["task"][0]) == set(shipped["task"][0])


def test_the_grid_and_the_pattern_are_what_a_suite_may_say(tmp_path: Path) -> None:
    from celedger.suite import load

    for script in ("train.py", "test.py"):
        (tmp_path / script).touch()
    pattern = block("toml", "pattern =").removeprefix("[[task]]\n")
    text = block("toml", "[task.alias.size]").replace("[task.alias", pattern + "[task.alias")
    (tmp_path / "suite.toml").write_text(text)
    tasks = load(tmp_path).tasks
    assert [task.name for task in tasks] == [
        f"net[size={size},norm={norm}]"
        for size in ("small", "large")
        for norm in ("batch", "group")
    ]
    assert tasks[3].params["depth"] == 4 and len(tasks[0].pattern) == 2


def test_the_ledgers_page_reads_series_per_step() -> None:
    page = (ROOT / "docs" / "ledger.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    compile(code, "docs/ledger.md", "exec")
    from celedger.ledger.store import pack

    assert pack([0.5, 0.25]) == (4, bytes.fromhex("0000003f0000803e"))
