"""The steps of an optimiser are measured from outside of the training's script."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import UNCOMPILED, make_project

from celedger.base.model import TrialRecord
from celedger.child import step_meter
from celedger.ledger import Ledger
from celedger.trial import protocol

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is attached by the recorder")

SUITE = """\
[suite]
name = "tiny"
@preload@
[metrics.memory_growth]
direction = "lower"
kind = "memory"
floor = 1024

[[task]]
name = "fit"
command = "{python} {suite}/fit.py"
"""
TRAINING = (
    UNCOMPILED
    + """\
import torch
import model
from celedger.child import log

torch.manual_seed(0)
layer = torch.nn.Linear(64, 64)
optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
for epoch in range(4):
    for _ in range(150):
        loss = (layer(torch.randn(8, 64)) - 1).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        model.after(loss)
    log(epoch=epoch, loss=loss)
"""
)
LEAK = "import torch\nkept = []\ndef after(loss):\n    kept.append(torch.ones(10_000))\n"


def newest(root: Path) -> TrialRecord:
    with Ledger.open(root / "ledger.db", readonly=True) as ledger:
        return ledger.trials()[-1]


@pytest.mark.matrix
def test_a_leak_shows_and_the_bits_are_those_without_celedger(tmp_path: Path) -> None:
    suite = SUITE.replace("@preload@", 'preload = ["torch"]')
    project = make_project(tmp_path / "project", suite, {"fit.py": TRAINING})
    plain, prints = {}, []
    for name, text in (("clean", "def after(loss): pass\n"), ("leak", LEAK)):
        project.commit(name, {"model.py": text})
        done = project.run("run", "HEAD")
        record = newest(project.root)
        assert record.ok and record.epochs == 4, done.err
        plain[name] = record.summaries
        with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
            ((epoch, bits),) = ledger.fingerprints(record.trial.ulid).items()
        assert epoch == 3
        prints.append(bits)
    assert prints[0] == prints[1] != ""  # the leak changes no number
    clean, leak = plain["clean"], plain["leak"]
    assert clean["optimiser_steps"] == leak["optimiser_steps"] == 600
    assert 1e-5 < clean["step_time"] < clean["duration"] / 300
    assert 1e-5 < clean["step_cpu_time"] < 1.5 * clean["step_time"]
    assert abs(clean["memory_growth"]) < 1024
    assert 40_000 < leak["memory_growth"] < 42_000
    script = project.root / "suites" / "tiny" / "fit.py"
    alone = subprocess.run(
        ["bash", "-c", 'CELEDGER_FD=1 exec "$0" "$1"', sys.executable, str(script)],
        env={"PYTHONPATH": f"{project.root}:{Path(step_meter.__file__).parents[2]}",
             "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f'"loss": {clean["loss"]!r}}}' in alone.stdout.splitlines()[-1]


@pytest.mark.matrix
def test_a_training_ends_well_after_the_steps_that_it_is_given(tmp_path: Path) -> None:
    """In a process of its own, not a fork."""
    suite = SUITE.replace("@preload@\n", "") + "stop_after = 160\n"
    project = make_project(tmp_path / "project", suite, {"fit.py": TRAINING})
    project.commit("clean", {"model.py": "def after(loss): pass\n"})
    done = project.run("run", "HEAD")
    record = newest(project.root)
    assert record.ok and record.epochs == 1, done.err  # the second has ten steps, and no report
    assert record.summaries["optimiser_steps"] == 160
    assert 1e-5 < record.summaries["step_time"] < record.summaries["duration"] / 80
    assert abs(record.summaries["memory_growth"]) < 1024


def test_the_time_of_a_step_is_the_median_and_memory_grows_from_the_middle_on() -> None:
    meter = step_meter.StepMeter()
    now = 0.0
    for step in range(200):
        now += 5.0 if step % 50 == 0 else 0.25  # an evaluation between epochs
        meter.step(now, step * 0.125, min(step, 60) * 1_000_000 + step * 64)
    assert meter.figures().pop("bits")
    expected = {
        "optimiser_steps": 200, "step_time": 0.25, "step_cpu_time": 0.125, "memory_growth": 64,
    }  # fmt: skip
    assert expected.items() <= meter.figures().items()
    assert step_meter.StepMeter().figures() == {}


def test_a_long_training_is_thinned() -> None:
    meter = step_meter.StepMeter()
    for step in range(3 * step_meter.LONGEST):
        meter.step(step * 0.5, step * 0.25, step * 8)
    figures = meter.figures()
    assert (figures["step_time"], figures["step_cpu_time"]) == (0.5, 0.25)
    assert figures["memory_growth"] == 8
    assert len(meter._moments) == len(meter._cpu) < step_meter.LONGEST


def test_a_step_costs_microseconds() -> None:
    torch = pytest.importorskip("torch")
    groups = [{"params": [torch.nn.Parameter(torch.ones(64, 64))]}]
    meter, seconds = step_meter.StepMeter(), []
    for _ in range(5):
        began = time.thread_time()
        for step in range(2000):
            meter.step(float(step), time.process_time(), None)
            meter.see(groups)
        seconds.append((time.thread_time() - began) / 2000)
    assert min(seconds) < 8e-6  # under 1 % of a step of 1 ms, on a slow machine


def test_odd_parameters_are_not_hashed_and_disturb_nothing() -> None:
    torch = pytest.importorskip("torch")
    lazy = torch.nn.parameter.UninitializedParameter()
    odd = [[], [{"params": []}], [{"params": [torch.ones(3)]}], [{"params": [lazy]}],
           [{"params": [torch.nn.Parameter(torch.ones(4, 4).t()[1:, 1:])]}], None]  # fmt: skip
    for groups in odd:
        meter = step_meter.StepMeter()
        for step in range(9):
            meter.step(float(step), time.process_time(), None)
            meter.see(groups)
        assert "bits" not in meter.figures()


def test_figures_of_the_process_with_most_steps_count_and_are_no_epoch() -> None:
    parser = protocol.Parser()
    for steps, seconds in ((10, 1.0), (90, 2.0), (20, 3.0)):
        line = b'{"trial": {"optimiser_steps": %d, "step_time": %g}}' % (steps, seconds)
        assert parser.feed(line) is None
    assert parser.totals == {"optimiser_steps": 90, "step_time": 2.0} and not parser.rubbish
    assert parser.feed(b'{"trial": {"step_time": "much"}}') is None and parser.rubbish
    report = parser.feed(b'{"trial": 3}')
    assert report is not None and report.values == {"trial": 3} and report.epoch == 0


def test_what_a_reading_of_the_memory_takes_is_no_part_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, hooks, ends, lines = [0.0], list[Any](), list[Any](), list[Any]()

    def allocated() -> int:
        clock[0] += 0.004
        return int(clock[0] * 1000)

    monkeypatch.setenv("CELEDGER_FD", "3")
    monkeypatch.setattr(step_meter, "_allocated", lambda: allocated)
    monkeypatch.setattr(step_meter.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(step_meter.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(step_meter.atexit, "register", ends.append)
    monkeypatch.setattr(step_meter.child, "_journal", lambda: 3)
    monkeypatch.setattr(step_meter.child, "_write", lambda _, line: lines.append(line))
    step_meter.attach(SimpleNamespace(register_optimizer_step_post_hook=hooks.append))
    optimiser = SimpleNamespace(param_groups=[])
    for _ in range(100):
        clock[0] += 0.5
        hooks[0](optimiser)
    ends[0]()
    figures = lines[0]["trial"]
    assert figures["step_time"] == pytest.approx(0.5)
    assert figures["step_cpu_time"] == pytest.approx(0.5)
    assert figures["memory_growth"] == pytest.approx(504, abs=1)  # read at every step
