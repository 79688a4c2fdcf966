"""Warm trials through the program: what the ledger says of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import SCRIPT, SUITE, make_project

from celedger.base.model import OutcomeKind, TrialRecord
from celedger.ledger import Ledger

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="launchers are Linux's")

# `fractions` is small; a commit can replace it like any other module. `multiprocessing` gives the
# launcher a second name, `__mp_main__`, as torch does.
PRELOAD = 'name = "tiny"\npreload = ["fractions", "multiprocessing"]\n'
WARM = SUITE.replace('name = "tiny"\n', PRELOAD, 1)
HALF = SCRIPT.replace("import random, sys", "import fractions, random, sys").replace(
    "LEVEL +", "LEVEL + fractions.Fraction(1, 2) * 0 +"
)
MODEL = "LEVEL = 1.0\n"


def trials(root: Path) -> list[TrialRecord]:
    with Ledger.open(root / "ledger.db", readonly=True) as ledger:
        return ledger.trials()


@pytest.mark.matrix
def test_a_duration_without_the_start_has_another_rule(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", WARM, {"fit.py": HALF})
    project.commit("plain", {"model.py": MODEL})
    own = "from decimal import Decimal\nFraction = lambda a, b: a / b\n"
    shadowing = project.commit("its own fractions", {"fractions.py": own})
    said = project.run("run", "HEAD~1").err
    assert "starts cold" not in said
    assert said.count("importing fractions, multiprocessing once for all trainings") == 1
    said = project.run("run", "HEAD").err
    assert "celedger: fit starts cold: fractions.py in 0 stands before the preloaded" in said
    assert said.count("starts cold") == 1
    found = trials(project.root)
    assert len(found) == 4
    for record in found:
        assert record.ok and record.epochs == 3
        cold = record.trial.commit == shadowing
        assert ("peak_rss" in record.summaries) is not cold
        assert ("duration" in record.summaries) is not cold
        assert record.rules.get("duration", "warm") == "warm"
    values = {(r.trial.seed, r.summaries["val_loss"]) for r in found}
    assert len(values) == 2  # one a seed, warm or cold


@pytest.mark.matrix
def test_a_failing_warm_trial_says_why(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", WARM, {"fit.py": HALF})
    project.commit("broken", {"model.py": MODEL + "raise RuntimeError('no model today')\n"})
    project.run("run", "HEAD")
    for record in trials(project.root):
        assert record.outcome is not None and record.outcome.kind is OutcomeKind.FAILED
        assert record.outcome.message == "exit status 1: RuntimeError: no model today"
        # As Python shows it: the frames of the launcher came first.
        text = (project.root / record.outcome.log).read_text()
        frames = [line for line in text.splitlines() if line.startswith("  File")]
        assert "fit.py" in frames[0] and "launcher" not in text
        assert record.rules["duration"] == "warm"
