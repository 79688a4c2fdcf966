"""A node that sends what no celedger writes: its trial ends, and nothing of the line enters."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from celedger.base.model import Command, Commit, Environment, Metric, Purpose, Task, Trial
from celedger.engines.order import Order
from celedger.engines.order_lines import Intake
from celedger.ledger import Ledger, ulid

TASK = Task("tiny", "fit", (Command("run", ("{python}", "fit.py")),), metrics=(Metric("loss"),))
COMMIT = Commit("a" * 40, "b" * 40, (), "Ada", 1, 2, "a subject")
ULID = ulid.new(1.0, Random(1))
TRIAL = Trial(ULID, COMMIT.sha, TASK.recipe, "e" * 64, 0, Purpose.RUN, 1.0, "node")
OUTCOME = {"kind": "ok", "ended": 2.0, "message": "", "returncode": 0, "log": "", "marks": []}


def line(write: str, *arguments: object) -> bytes:
    return json.dumps({"write": write, "arguments": arguments}).encode() + b"\n"


def finish(**odd: object) -> bytes:
    return line("finish_trial", ULID, [*{**OUTCOME, **odd}.values()], {"loss": 1.0})


def epoch(**odd: object) -> bytes:
    report = {"epoch": 0, "values": {"loss": 1.0}, "fingerprint": None, "steps": {}, **odd}
    return line("append_epochs", ULID, [[*report.values()]])


LINES: dict[str, bytes] = {
    "no JSON": b"{\n",
    "a list": b"[1]\n",
    "an unknown write": line("drop", "trials"),
    "a log that climbs": finish(log="../../secret.txt"),
    "an unknown outcome": finish(kind="fine"),
    "an end in the year 10^292": finish(ended=1e300),
    "a summary that is a text": line("finish_trial", ULID, [*OUTCOME.values()], {"loss": "x"}),
    "a metric with escapes": epoch(values={"\x1b[2J": 1.0}),
    "an epoch of 2^62": epoch(epoch=2**62),
    "the 2^60th step": epoch(steps={"loss": [2**60, [1.0]]}),
    "an environment of another shape": line("record_environment", ["f" * 64, [1]]),
    "another commit's trial": line("start_trial", TRIAL._replace(commit="c" * 40)),
}


def begun(ledger: Ledger) -> Intake:
    order = Order(ULID, "key", COMMIT.sha, (TASK,), "cpu", False, Purpose.RUN, COMMIT)
    intake = Intake(order, ledger)
    with ledger.transaction():
        environment = Environment("e" * 64, {})
        assert not list(intake.take(line("record_environment", environment)))
        list(intake.take(line("start_trial", TRIAL)))
        list(intake.take(epoch()))
    return intake


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_no_celedger_writes_ends_the_trial(name: str, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        intake = begun(ledger)
        before: Any = ledger.series(ULID), ledger.environments(), ledger.metrics()
        with ledger.transaction():
            list(intake.take(LINES[name] + finish()))
        assert "sent what no celedger writes" in str(intake.error)
        assert (ledger.series(ULID), ledger.environments(), ledger.metrics()) == before
        assert not intake.is_whole
        intake.interrupt(3.0, str(intake.error))
        intake.close()
        (record,) = ledger.trials()
        assert record.outcome is not None and record.outcome.kind == "interrupted"
        assert ledger.damage() == []


def test_an_honest_node_is_taken_in(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        intake = begun(ledger)
        with ledger.transaction():
            list(intake.take(finish(log=f".celedger/logs/{ULID}.log")))
        assert intake.error is None and intake.is_whole
        intake.close()
        assert ledger.damage() == []
