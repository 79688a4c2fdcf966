"""Watchpoints fire on planted faults, name the place, and leave healthy trainings alone."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from conftest import matrix_after
from lab.record_watched import RECORDED, train
from readable import assert_readable

from celedger.base.errors import UsageError
from celedger.base.model import Task
from celedger.lab.diagnose.watch import WatchpointFinding, WatchReport, judge, limits
from celedger.lab.diagnose.watch_records import Watched, read
from celedger.lab.probes.watch import looks
from celedger.lab.views import watch_figure
from celedger.lab.views.watch import watch_text

pytestmark = pytest.mark.xdist_group("watchpoints")  # what they share is trained once

# The watchpoint, and the step, module and tensor that it has to name.
FAULTS = {
    "overflow": ("overflow", 53, "0", "output"),  # looked at first when all weights are lost
    "nan_by_hand": ("overflow", 0, "-", "gradient of weight"),
    "rate_zero": ("weight-unchanged", 0, "0", "weight"),
    "rate_large": ("weight-change-large", 0, "2", "weight"),
    "vanishing": ("gradient-vanishing", 1, "0", "gradient of weight"),
    "large_init": ("weight-init-large", 0, "0", "weight"),
    "zero_init": ("weight-symmetric", 3, "0", "weight"),
    "dead": ("dead-units", 0, "3", "output"),
    "detached": ("weight-unchanged", 0, "0", "weight"),
    "forgotten": ("weight-unchanged", 0, "0", "weight"),
    "saturated": ("saturated", 0, "1", "output"),
    "stale": ("stale-batch", 0, "", "input"),
    "first_of_many": ("stale-batch", 0, "", "input"),
    "random_labels": ("loss-not-decreasing", 0, "-", "loss"),
}
HEALTHY = (
    "healthy", "frozen", "zero_branches", "sparse", "whole_data", "masked", "falling_rate",
    "bias_before_norm", "bert",
)  # fmt: skip


@pytest.fixture(
    scope="module", params=["recorded", pytest.param("trained", marks=pytest.mark.matrix)]
)
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the trainings left: recorded once, or now."""
    folder = tmp_path_factory.mktemp("watched")
    if request.param == "trained":
        train(folder, [*FAULTS, *HEALTHY])
    else:
        with tarfile.open(RECORDED) as archive:
            archive.extractall(folder, filter="data")
    return folder


def findings(out: Path, name: str, **thresholds: float) -> dict[str, WatchpointFinding]:
    (training,) = read(out / name)
    return {f.watchpoint.name: f for f in judge(training, thresholds).findings}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named_where_it_began(out: Path, name: str) -> None:
    watchpoint, step, module, tensor = FAULTS[name]
    found = findings(out, name)
    assert watchpoint in found, list(found)
    first = found[watchpoint].first
    assert (first.step, first.module, first.tensor) == (step, module, tensor)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_is_left_alone(out: Path, name: str) -> None:
    assert findings(out, name) == {}


def report(out: Path, name: str) -> WatchReport:
    (training,) = read(out / name)
    commit = SimpleNamespace(sha="c" * 40)
    return WatchReport(Task("core", name, ()), commit, 0, (judge(training, {}),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", matrix_after(1, ["overflow", "healthy", "vanishing", "rate_large", "bert"])
)
def test_the_panels_share_their_steps_and_the_bars_show_the_thresholds(
    out: Path, name: str
) -> None:
    figure = watch_figure.draw(report(out, name))
    loss, gradients, changes, *bars = figure.axes
    assert loss.get_xlim() == gradients.get_xlim() == changes.get_xlim()
    assert loss.get_xscale() == gradients.get_xscale() == changes.get_xscale()
    for bar in bars:
        assert len(bar.get_yticks()) >= 3
    for limit in (1.0, 1e-6):
        assert [limit, limit] in [list(line.get_ydata()) for line in bars[1].lines]
    assert_readable(figure)


def test_only_what_fired_is_marked_and_every_zero_is_seen(out: Path) -> None:
    """BERT's queries get small gradients without a finding; the text says so, and the picture."""
    marks = {}
    for name in ("bert", "vanishing"):
        _, gradients, changes, *_ = watch_figure.draw(report(out, name)).axes
        marks[name] = [sum(len(line.get_xdata()) for line in axes.lines)
                       for axes in (gradients, changes)]  # fmt: skip
    assert marks["bert"] == [0, 0]
    assert min(marks["vanishing"]) > 20
    assert changes.get_title("left").endswith("(×); black is 0")


def test_a_forward_pass_without_modules_is_not_called_finite(out: Path) -> None:
    note = findings(out, "nan_by_hand")["overflow"].first.note
    assert note == "no module was called: the forward pass was not looked at"


@pytest.mark.matrix
def test_a_nan_made_by_hand_in_the_first_step_is_followed_to_its_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELEDGER_PROBE", '{"closely": [0]}')
    train(tmp_path, ["nan_by_hand", "overflow"])
    first = findings(tmp_path, "nan_by_hand")["overflow"].first
    assert (first.step, first.module, first.tensor) == (0, "-", "log, forward")
    assert "overflow" not in findings(tmp_path, "overflow")  # its first step is sound


def test_losses_too_noisy_or_too_few_to_show_a_fall_say_nothing(out: Path) -> None:
    (training,) = read(out / "random_labels")
    draw = Random(0)

    def fires(count: int, noise: float) -> bool:
        losses = [(step, 2.0 + draw.gauss(0, noise)) for step in range(count)]
        found = judge(replace(training, losses=losses), {}).findings
        return "loss-not-decreasing" in {finding.watchpoint.name for finding in found}

    assert [fires(20, 0.3), fires(2000, 0.3), fires(20, 0.05)] == [False, True, True]


def test_the_weight_of_a_module_that_is_called_alone_is_its_own() -> None:
    """`weight` of `Embedding:` was told as `Embedding:weight` of the model itself."""
    training = Watched(1, {}, 1, [], [])
    assert training.place_of("Embedding:weight") == ("Embedding:", "weight")
    assert training.place_of("Teacher:body.0.bias", "gradient") == (
        "Teacher:body.0", "gradient of bias",
    )  # fmt: skip


def test_why_a_weight_stays_is_said(out: Path) -> None:
    notes = {name: findings(out, name)["weight-unchanged"].first.note
             for name in ("rate_zero", "detached", "forgotten", "dead")}  # fmt: skip
    assert notes == {
        "rate_zero": "the learning rate is 0",
        "detached": "no gradient reaches it",
        "forgotten": "it gets gradients, and no optimiser holds it",
        "dead": "its gradient is zero",
    }


def test_the_ranks_of_a_distributed_training_are_named(out: Path) -> None:
    (training,) = read(out / "healthy")
    ranks = [replace(training, rank=f"rank {number} of 2") for number in range(2)]
    task, commit = SimpleNamespace(suite="core", name="fit"), SimpleNamespace(sha="0" * 40)
    judged = tuple(judge(one, {}) for one in ranks)
    text = watch_text(WatchReport(task, commit, 0, judged))  # type: ignore[arg-type]
    assert [line.rpartition(", ")[2] for line in text.splitlines() if " sampled" in line] == [
        "rank 0 of 2", "rank 1 of 2",
    ]  # fmt: skip


def test_thresholds_can_be_set_and_a_wrong_name_is_refused(out: Path) -> None:
    assert "activation-range" in findings(out, "healthy", **{"activation-range": 0.1})
    assert (
        findings(out, "rate_large", **{"weight-change-large": 1e30})
        .keys()
        .isdisjoint({"weight-change-large"})
    )
    with pytest.raises(UsageError, match="no watchpoint 'nope'"):
        limits({"nope": 1.0})


def test_steps_looked_at_thin_out_and_never_keep_time_with_a_loop() -> None:
    seen = list(takewhile(lambda step: step < 100_000, looks()))
    assert seen[:10] == [0, 1, 2, 3, 5, 8, 13, 21, 34, 53]
    assert len(seen) < 400
    for every in range(2, 12):  # as many optimisers take turns, or batches make an epoch
        assert {step % every for step in seen} == set(range(every))
