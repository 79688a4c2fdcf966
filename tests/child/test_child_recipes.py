"""The harness's recipes beyond a plain step: accumulated gradients, a gradient scaler, latency."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    pytest.skip("needs celedger[torch]", allow_module_level=True)

import torch
from torch import nn

from celedger.child import torch as harness

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without CUDA")
X = torch.linspace(-1, 1, 22, dtype=torch.float64).view(-1, 1)


def trained(**changes: object) -> torch.Tensor:
    """The weights after a few steps on batches of 8, 8 and 6."""
    description = {
        "model": lambda: nn.Linear(1, 3).double(),
        "optimiser": lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
        "data": lambda: X.split(8),
        "loss": lambda model, x: (model(x) - 40 * x).square().mean(),
        "evaluate": lambda model: {},
        "epochs": 1,
        "clip": 0.7,
        "seed": 5,
    }
    training = harness.Training(**{**description, **changes})  # type: ignore[arg-type]
    model, optimiser, schedule = harness.prepare(training, torch.device("cpu"))
    for batch in training.data():
        harness.step(training, model, optimiser, schedule, batch)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_accumulated_gradients_are_those_of_the_batch_uneven_pieces_too() -> None:
    assert torch.allclose(trained(), trained(pieces=3), rtol=0, atol=1e-14)


def test_the_loss_of_a_step_in_pieces_is_that_of_the_batch() -> None:
    model = nn.Linear(1, 1).double()
    losses = []
    for pieces in (1, 4):
        training = harness.Training(
            model=lambda: model,
            optimiser=lambda m: torch.optim.SGD(m.parameters(), lr=0.0),
            data=lambda: [(X, X)],
            loss=lambda m, batch: (m(batch[0]) - batch[1]).square().mean(),
            evaluate=lambda m: {},
            epochs=1,
            pieces=pieces,
        )
        prepared = harness.prepare(training, torch.device("cpu"))
        losses.append(float(harness.step(training, *prepared, (X, X))))
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_a_scaled_loss_trains_as_a_bare_one_and_is_clipped_after_unscaling() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    assert torch.allclose(trained(), trained(scaler=scaler), rtol=0, atol=1e-12)
    unclipped = trained(clip=None)
    assert not torch.allclose(trained(), unclipped)  # the limit of this test is reached


def test_latency_leaves_out_the_warm_up_and_is_ordered() -> None:
    calls = []
    found = harness.latency(lambda: calls.append(1), warmup=3, calls=10)
    assert len(calls) == 13
    assert 0 < found["latency_p50"] <= found["latency_p90"] <= found["latency_p99"]


@NO_GPU
def test_a_gpu_that_torch_cannot_use_is_no_reason_to_train_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger would record the CPU's figures as the GPU's."""
    assert harness.device().type == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa-0")
    with pytest.raises(RuntimeError, match="cannot use GPU-aaaa-0: install"):
        harness.device()
