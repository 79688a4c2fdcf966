"""What travels between a head and its nodes, as JSON."""

from __future__ import annotations

import math
from dataclasses import replace

from celedger.base.model import (
    Command,
    Commit,
    Direction,
    Environment,
    EpochReport,
    Floor,
    Footprint,
    Mark,
    Metric,
    Outcome,
    OutcomeKind,
    Purpose,
    StepValues,
    Task,
)
from celedger.engines.order import Order
from celedger.ledger import store

TASK = Task(
    "tiny", "fit", (Command("run", ("{python}", "fit.py")),), {"lr": 0.1, "layers": [1, 2]},
    metrics=(Metric("loss", direction=Direction.LOWER, floor=Floor(0.01, True)),),
    build=(("make", "all"),), silence=3.0,
)  # fmt: skip


def test_an_order_comes_back_as_it_was() -> None:
    commit = Commit("a" * 40, "b" * 40, ("c" * 40,), "Ada", 1, 2, "a subject")
    environments = {"fit": Environment("e", {"packages": {"torch": "2"}})}
    given = Order(
        "01U", "key", "a" * 40, (TASK,), "cpu", False, Purpose.BISECT, commit, 3, environments,
        {"fit": ("torch",)},
    )  # fmt: skip
    assert store.from_json(Order, store.to_json(given)) == given
    question = replace(given, commit=None, environments=None, imported=None)
    assert store.from_json(Order, store.to_json(question)) == question
    assert store.from_json(Order, store.to_json(given)).tasks[0].recipe == TASK.recipe


def test_what_a_node_writes_comes_back_to_the_last_bit() -> None:
    report = EpochReport(
        1, {"a": 0.1 + 0.2, "b": math.inf, "c": -0.0}, "f00", {"s": StepValues(0, (1e-300,))}
    )
    outcome = Outcome(OutcomeKind.TIMEOUT, 1.5, "late", None, "log", (Mark.REPEATED,))
    footprint = Footprint((b"model.py", b"\xff\xfe"), (b"",), ("*.txt",))
    for noun in (report, outcome, footprint):
        assert repr(store.from_json(type(noun), store.to_json(noun))) == repr(noun)
    undefined = store.from_json(EpochReport, store.to_json(EpochReport(0, {"x": math.nan})))
    assert math.isnan(undefined.values["x"])
