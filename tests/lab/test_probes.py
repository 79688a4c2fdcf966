"""What the probes make of a training's tensors, losses and moments, without a training."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from celedger.base.errors import CannotJudge
from celedger.base.model import OutcomeKind
from celedger.child.torch import shuffled
from celedger.child.torch_steps import StepSeries
from celedger.lab.diagnose import profile as profiling
from celedger.lab.probes import memory, observe, profile
from celedger.lab.probes.losses import LossCall, leading, loss_call
from celedger.lab.probes.phases import FORWARD, TAIL, PhaseClock
from celedger.trial.diagnostic import Diagnostic

Z = torch.linspace(-2, 2, 24).reshape(8, 3)
LABELS = torch.tensor([0, 1, 2, -100, 1, 0, -100, 2])
WEIGHT = torch.tensor([1.0, 2.0, 0.5])


@pytest.mark.parametrize(
    ("function", "target", "more", "guess"),
    [
        (F.mse_loss, Z.flip(0) + 1, {}, float((Z + 1).square().mean())),
        (F.binary_cross_entropy_with_logits, Z.sigmoid(), {}, math.log(2)),
        (F.cross_entropy, LABELS, {}, math.log(3)),
        (F.cross_entropy, LABELS, {"weight": WEIGHT}, math.log(3)),
        (F.cross_entropy, LABELS.clamp(min=0), {"ignore_index": 0}, math.log(3)),
        (F.cross_entropy, Z.softmax(1), {}, math.log(3)),
    ],
)
def test_a_loss_is_seen_alike_whatever_its_reduction(
    function: Any, target: torch.Tensor, more: dict[str, Any], guess: float
) -> None:
    calls = [made(function, Z, target, reduction=kind, **more) for kind in ("mean", "sum", "none")]
    values = [float(call.mean(call.output)) for call in calls]
    assert values == pytest.approx([values[0]] * 3)
    assert [call.guess() for call in calls] == pytest.approx([guess] * 3)
    assert len({call.floor() for call in calls}) == 1
    if not target.is_floating_point():
        assert more.get("ignore_index", -100) not in calls[0].target


def made(function: Any, output: torch.Tensor, target: torch.Tensor, **more: Any) -> LossCall:
    output = output.clone().requires_grad_()
    call = loss_call(function, (output, target), more, function(output, target, **more))
    assert call is not None
    return call


@pytest.mark.parametrize(
    ("function", "output", "target", "misfit"),
    [
        (F.cross_entropy, Z, LABELS, ""),
        (F.cross_entropy, Z.softmax(1), LABELS, "softmax comes twice"),
        (F.cross_entropy, Z.softmax(1).bfloat16(), LABELS, "softmax comes twice"),
        (F.nll_loss, Z, LABELS, "log_softmax is missing"),
        (F.nll_loss, Z.log_softmax(1), LABELS, ""),
        (F.binary_cross_entropy_with_logits, Z.sigmoid(), Z.sigmoid(), "sigmoid comes twice"),
        (F.mse_loss, Z, Z, ""),
        (F.mse_loss, Z[:, :1], Z[:, 0], "broadcasts (8, 1) with (8,)"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_what_a_loss_does_not_take_is_told(
    function: Any, output: torch.Tensor, target: torch.Tensor, misfit: str
) -> None:
    said = made(function, output, target).misfit()
    assert misfit in said if misfit else not said


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_loss_that_a_library_computes_inside_is_not_judged(by_hand: bool) -> None:
    """A model that reports how far its codes are from a target, as vector quantisers do."""
    inside = made(F.mse_loss, Z, torch.full((8, 3), 1e-3))
    call = made(F.cross_entropy, Z, LABELS)
    loss = Z.clone().requires_grad_().sum()
    if not by_hand:
        loss = loss + function_of(call)
    assert leading([inside, call], [loss]) == ([] if by_hand else [call])


def function_of(call: LossCall) -> torch.Tensor:
    """A value whose graph leads through the call's own node."""
    value: torch.Tensor = call.function(call.output, call.arguments["target"])
    call.node = value.grad_fn
    return value * 0.5


def test_memory_passes_over_tensors_without_a_storage(tmp_path: Path) -> None:
    before = torch.eye(3).to_sparse()
    probe = memory.MemoryProbe({})
    probe.out = tmp_path
    probe.starts()
    made = torch.eye(4).to_sparse().requires_grad_() * 2
    probe.reported(0, {})
    probe.ends()
    assert before.is_sparse and made.grad_fn is not None
    probe.flush()
    assert len(json.loads((tmp_path / "events.jsonl").read_text())["marks"]) == 1


@pytest.mark.parametrize(
    ("kind", "owner", "part"),
    [
        (memory.MemoryProbe, memory.MemoryProbe, "_count_existing"),
        (profile.ProfileProbe, PhaseClock, "watch_loaders"),
    ],
)
def test_a_probe_that_could_not_start_gives_up_and_leaves_torch_as_it_is(
    kind: type[observe.Probe], owner: type, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, part, lambda _: 1 / 0)
    before = dict(torch.Tensor.__dict__)
    probe = kind({})
    with pytest.raises(ZeroDivisionError):
        probe.starts()
    probe.gives_up()  # an error of its own would hide the one to tell
    assert dict(torch.Tensor.__dict__) == before


@pytest.mark.parametrize(
    ("kind", "variables"), [("memory", {"TORCHDYNAMO_DISABLE": "1"}), ("profile", None)]
)
def test_nothing_is_compiled_where_every_operator_is_seen(
    kind: str, variables: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []

    def diagnose(*_: object, environment: object, **__: object) -> Diagnostic:
        given.append(environment)
        return Diagnostic(tmp_path, tmp_path, OutcomeKind.FAILED)

    monkeypatch.setattr(profiling, "diagnose", diagnose)
    bench: Any = SimpleNamespace(device=SimpleNamespace(gpu=None))
    thing: Any = SimpleNamespace(name="fit", sha="a" * 40)
    with pytest.raises(CannotJudge):
        profiling.run(bench, thing, thing, 0, tmp_path, {"kind": kind})
    assert given == [variables]


class Moments:
    """In place of CUDA's events: the next is a second after the one before."""

    clock = itertools.count()

    def __init__(self, *, enable_timing: bool) -> None:
        self.at = math.nan

    def record(self) -> None:
        self.at = float(next(self.clock))

    def elapsed_time(self, end: Moments) -> float:
        return 1e3 * (end.at - self.at)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> PhaseClock:
    monkeypatch.setattr(torch.cuda, "Event", Moments)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return PhaseClock(cuda=True)


def step(clock: PhaseClock, *, optimisers: int = 1) -> None:
    clock.begin_backward()
    clock.enter(TAIL)
    for _ in range(optimisers):
        clock.end_step()


def read(clock: PhaseClock) -> dict[str, list[float]]:
    steps, evaluations, _ = profiling._steps(clock.read())
    times = {name: values.tolist() for name, values in steps.times.items()}
    return {**times, "wall": steps.wall.tolist(), "evaluations": evaluations}


def test_the_tail_of_a_second_optimiser_is_added_on_the_device(clock: PhaseClock) -> None:
    for optimisers in (1, 3, 1):
        clock.enter(FORWARD)
        step(clock, optimisers=optimisers)
    columns = read(clock)
    assert columns["tail"] == [1, 3, 1]
    assert columns["forward"] == columns["backward"] == [1, 1, 1]
    assert columns["wall"] == [4, 6, 4]


def test_the_gap_of_a_step_without_modules_is_its_forward_pass(clock: PhaseClock) -> None:
    step(clock)
    columns = read(clock)
    assert (columns["other"], columns["forward"], columns["wall"]) == ([0], [1], [3])


def test_a_gap_until_the_last_evaluation_is_no_part_of_the_step(clock: PhaseClock) -> None:
    step(clock)
    clock.evaluated()
    clock.evaluated()
    clock.enter(FORWARD)
    clock.evaluated()  # within a step: a report, and no evaluation
    step(clock)
    columns = read(clock)
    assert (columns["evaluations"], columns["other"], columns["forward"]) == ([2], [0, 1], [1, 1])


def test_passes_before_the_last_backward_pass_are_no_tail(clock: PhaseClock) -> None:
    clock.enter(FORWARD)
    for _ in range(2):
        clock.begin_backward()
        clock.enter(TAIL)
    clock.end_step()
    columns = read(clock)
    assert (columns["forward"], columns["backward"], columns["tail"]) == ([2], [2], [1])


def test_an_order_is_drawn_on_the_cpu_whatever_the_default_device() -> None:
    rows = torch.arange(6)
    with torch.device("meta"):
        batches = list(shuffled(rows, size=4))
    assert sorted(torch.cat([batch for (batch,) in batches]).tolist()) == rows.tolist()


def test_a_loss_is_kept_as_it_was_in_its_step() -> None:
    series, loss = StepSeries(), torch.tensor(1.0)
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    series.add(loss, torch.zeros(()), optimiser)
    loss.add_(5.0)
    assert series.values([0.1])["loss"] == [1.0]


def test_the_least_number_of_steps_to_profile_is_the_probe_s() -> None:
    from celedger.lab.diagnose.profile import FEWEST_STEPS, LEAST_STEPS
    from celedger.lab.probes.profile import SETTLE, WARM_UP, WINDOW

    assert LEAST_STEPS == WARM_UP + 1 + WINDOW + SETTLE + FEWEST_STEPS
