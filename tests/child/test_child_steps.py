"""Series per step: from `log` through the journal's line to the ledger's blobs and back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celedger.base.model import Commit, Environment, Purpose, StepValues, Task, Trial
from celedger.child import MOST_STEPS, log
from celedger.ledger import Ledger, ulid
from celedger.ledger.store import pack, unpack
from celedger.trial.journal import Journal
from celedger.trial.protocol import Parser


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "journal.jsonl"
    fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    monkeypatch.setenv("CELEDGER_FD", str(fd))
    monkeypatch.setenv("CELEDGER_STEPS", "1")
    yield path
    os.close(fd)


def test_steps_join_the_epochs_line(journal: Path) -> None:
    log(epoch=1, val_loss=0.5, steps={"loss": [1, 0.5, None], "lr": np.array([0.25, 0.125])})
    assert json.loads(journal.read_text()) == {
        "epoch": 1, "val_loss": 0.5, "steps": {"loss": [1, 0.5, None], "lr": [0.25, 0.125]}
    }  # fmt: skip
    with pytest.raises(TypeError, match="lists of numbers"):
        log(epoch=1, steps={"loss": 3})
    with pytest.raises(TypeError, match="'high'"):
        log(epoch=1, steps={"loss": ["high"]})


def test_a_task_that_does_not_ask_pays_nothing(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CELEDGER_STEPS")
    log(epoch=1, steps={"loss": [object()]})
    log(epoch=1, val_loss=0.5, steps={"loss": [object()]})
    log(epoch=2, steps=100)  # a metric that happens to be called so
    assert list(map(json.loads, journal.read_text().splitlines())) == [
        {"epoch": 1, "val_loss": 0.5}, {"epoch": 2, "steps": 100}
    ]  # fmt: skip


def test_a_long_series_is_split_into_lines_that_continue_each_other(
    journal: Path, tmp_path: Path
) -> None:
    draw = Random(1)
    loss = [draw.uniform(-1, 1) * 10.0 ** draw.randint(-300, 300) for _ in range(2 * MOST_STEPS)]
    log(epoch=0, val_loss=1.0, steps={"loss": loss, "lr": [0.5] * 7})
    log(epoch=0, steps={"loss": [7.0]})
    lines = journal.read_bytes().splitlines()
    assert len(lines) == 5 and max(map(len, lines)) < 1 << 20
    with pytest.raises(ValueError, match="need an epoch"):
        log(steps={"loss": loss})

    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        task, environment = Task("s", "t", ()), Environment("e" * 64, {})
        commit = Commit("a" * 40, "b" * 40, (), "Ada", 0, 0, "first")
        ledger.record_commits([commit])
        ledger.record_task(task)
        ledger.record_environment(environment)
        name = ulid.new(1.0, Random(1))
        ledger.start_trial(
            Trial(
                name,
                commit.sha,
                task.recipe,
                environment.fingerprint,
                0,
                Purpose.RUN,
                1.0,
                "box",
            )
        )
        for _ in range(2):  # a second look from the beginning adds nothing
            Journal(journal, ledger, name).follow()
        found = ledger.steps(name)
        assert found == {"loss": {0: [*loss, 7.0]}, "lr": {0: [0.5] * 7}}
        assert ledger.steps(name, "lr") == {"lr": {0: [0.5] * 7}}
        assert ledger.series(name) == {"val_loss": [(0, 1.0)]}


def test_what_is_no_series_is_rubbish_and_hides_no_metric() -> None:
    parser = Parser()
    report = parser.feed(b'{"a": 1, "steps": {"x": [1, "nan", null], "y": 3, "a b": [1], "z": []}}')
    assert report is not None and report.values == {"a": 1.0}
    assert str(report.steps) == str({"x": StepValues(0, (1.0, float("nan"), float("nan")))})
    assert parser.rubbish == 2
    assert parser.feed(b'{"steps": [1]}') is None


@given(st.lists(st.floats() | st.floats(width=32), min_size=1))
def test_packing_loses_nothing(values: list[float]) -> None:
    width, blob = pack(values)
    assert len(blob) == width * len(values)
    assert str(unpack(width, blob)) == str(tuple(values))
    assert str(np.frombuffer(blob, f"<f{width}").astype(float).tolist()) == str(values)


def test_what_is_computed_in_single_precision_takes_four_bytes() -> None:
    assert pack([float(np.float32(0.1)), float("nan"), float("-inf"), 1e-45])[0] == 8
    assert pack([float(np.float32(0.1)), float("nan"), float("-inf"), -0.0])[0] == 4
    assert pack([0.1])[0] == 8
