"""`celedger.open`, as docs/python.md has it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scripted import scripted

import celedger
from celedger.base.errors import LedgerError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "python.md"
SUITE = '[suite]\nname = "tiny"\n[metrics.val_loss]\ndirection = "lower"\n'
SUITE += '[[task]]\nname = "mlp"\ncommand = "{python} {suite}/fit.py {seed}"\nseeds = [0, 1]\n'


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    project = scripted(tmp_path / "project", SUITE)
    project.history([1.0, 2.0])
    project.run("run", "HEAD~1..HEAD")
    project.run("run", "HEAD~1")
    return project.root / "ledger.db"


def test_trials_series_and_summaries_agree(ledger: Path) -> None:
    with celedger.open(ledger) as opened:
        trials = opened.trials(task="mlp")
        assert [r.trial.seed for r in trials] == [0, 1, 0, 1]
        losses = opened.summaries("mlp", "val_loss")
        assert losses.trial.tolist() == [r.trial.ulid for r in trials]
        assert losses.value.tolist() == [r.summaries["val_loss"] for r in trials]
        assert losses.commit.tolist() == [r.trial.commit for r in trials]
        for record, last in zip(trials, losses.value, strict=True):
            curve = opened.series(record, "val_loss")
            assert (curve.epoch.dtype, curve.value.dtype) == (np.int64, np.float64)
            assert curve.epoch.tolist() == [0, 1, 2]
            assert curve.value[-1] == last
        assert opened.series(trials[0], "absent").value.shape == (0,)
        assert {c.sha for c in opened.commits()} == set(losses.commit.tolist())


def test_the_example_of_the_manual_runs(ledger: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    example = "\n".join(line for line in example.splitlines() if "pandas" not in line)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=ledger.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "val_loss" in done.stdout


def test_a_notebook_shows_what_is_in_it(ledger: Path) -> None:
    with celedger.open(ledger) as opened:
        assert repr(opened).startswith(f"<ledger {ledger}: 4 trials; metrics ")
        assert repr(opened).endswith("\n  tiny/mlp: 2 commits>")
        assert "<td>tiny</td><td>mlp</td><td>2</td>" in opened._repr_html_()
    assert repr(opened) == f"<ledger {ledger}: closed>"
    assert opened._repr_html_() == f"&lt;ledger {ledger}: closed&gt;"


def test_a_table_becomes_a_data_frame(ledger: Path) -> None:
    polars = pytest.importorskip("polars")
    with celedger.open(ledger) as opened:
        losses = opened.summaries("mlp", "val_loss")
    frame = losses.to_polars()
    assert isinstance(frame, polars.DataFrame)
    assert frame["value"].to_list() == losses.value.tolist()
    assert frame["commit"].to_list() == losses.commit.tolist()


def test_what_is_no_ledger_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger at"):
        celedger.open(tmp_path / "absent.db")
    with pytest.raises(AttributeError):
        celedger.close  # noqa: B018


def test_importing_celedger_imports_nothing() -> None:
    code = "import sys; a = set(sys.modules); import celedger; print(*(set(sys.modules) - a))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["celedger"]
