"""The torch harness on models of a few weights: what it reports, and that it repeats itself."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from celedger.child import torch as harness  # noqa: E402


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "journal.jsonl"
    fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    monkeypatch.setenv("CELEDGER_FD", str(fd))
    yield path
    os.close(fd)


def reports(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


X = torch.linspace(-1, 1, 40).view(20, 2)
Y = X.sum(1, keepdim=True)


def line(**changes: object) -> dict[str, object]:
    """A straight line through points, with dropout so that chance has a part."""
    return {
        "model": lambda: nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 1)),
        "optimiser": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        "data": lambda: harness.shuffled(X, Y, size=8),
        "loss": lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        "evaluate": lambda model: {"val_loss": (model(X) - Y).square().mean()},
        "epochs": 3,
        **changes,
    }


@pytest.mark.matrix
def test_every_epoch_is_reported_with_all_its_metrics(journal: Path) -> None:
    harness.train(**line())
    seen = reports(journal)
    assert [report["epoch"] for report in seen] == [0, 1, 2]
    assert set(seen[0]) == {
        "epoch", "fingerprint", "train_loss", "val_loss", "samples_per_second",
        "step_time_p50", "step_time_p90", "step_time_p99", "least_moved", "peak_memory",
        "evaluation_time",
    }  # fmt: skip
    assert seen[2]["val_loss"] < seen[0]["val_loss"]
    assert 0 < seen[1]["step_time_p50"] <= seen[1]["step_time_p90"] <= seen[1]["step_time_p99"]


def test_a_layer_without_gradient_shows_in_what_moved_least(journal: Path) -> None:
    class Stuck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(2, 8), nn.Linear(8, 1)
            self.shift = nn.Parameter(torch.zeros(1, 1))  # all zero at the start: moves

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.head(torch.tanh(self.body(x).detach())) + self.shift
            return y

    harness.train(**line())
    harness.train(**line(model=Stuck))
    moved = [report["least_moved"] for report in reports(journal)]
    assert 0 < moved[0] < moved[2]
    assert moved[3:] == [0, 0, 0]


def test_equal_seeds_give_equal_bits_and_others_do_not(journal: Path) -> None:
    for seed in (5, 5, 6):
        harness.train(**line(seed=seed))
    marks = [report["fingerprint"] for report in reports(journal)]
    assert marks[0:3] == marks[3:6]
    assert len(set(marks)) == 6


@pytest.mark.matrix
@pytest.mark.parametrize("clip", [None, 0.05])
def test_steps_are_reported_where_asked_for_and_change_no_bit(
    journal: Path, monkeypatch: pytest.MonkeyPatch, clip: float | None
) -> None:
    def schedule(optimiser: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.5)

    harness.train(**line(epochs=2, schedule=schedule, clip=clip))
    monkeypatch.setenv("CELEDGER_STEPS", "1")
    harness.train(**line(epochs=2, schedule=schedule, clip=clip))
    seen = reports(journal)
    assert [r["fingerprint"] for r in seen[:2]] == [r["fingerprint"] for r in seen[2:]]
    assert "steps" not in seen[0]
    steps = seen[3]["steps"]
    assert set(steps) == {"loss", "gradient_norm", "learning_rate", "step_time"}
    assert steps["learning_rate"] == [0.1 * 0.5**n for n in (3, 4, 5)]
    # Batches of 8, 8 and 4 rows make the epoch's mean.
    mean = sum(n * loss for n, loss in zip((8, 8, 4), steps["loss"], strict=True)) / 20
    assert mean == pytest.approx(seen[3]["train_loss"])
    assert all(norm > (clip or 0) for norm in steps["gradient_norm"])  # before it is clipped
    assert all(0 < seconds < 60 for seconds in steps["step_time"])


def test_the_norm_of_a_sparse_gradient_is_that_of_its_values() -> None:
    from celedger.child.torch_steps import gradient_norm

    table = nn.Embedding(9, 2, sparse=True)
    assert gradient_norm(table.parameters()) == 0
    (3 * table(torch.tensor([1, 1, 4]))).sum().backward()
    assert gradient_norm(table.parameters()) == pytest.approx((2 * 6**2 + 2 * 3**2) ** 0.5)


def test_the_training_loss_weighs_a_smaller_last_batch_by_its_size(journal: Path) -> None:
    def constant(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return len(batch[0]) + 0 * model(batch[0]).sum()

    harness.train(**line(epochs=1, loss=constant))
    assert reports(journal)[0]["train_loss"] == pytest.approx((8 * 8 + 8 * 8 + 4 * 4) / 20)


def test_evaluation_sees_no_dropout_and_no_gradients(journal: Path) -> None:
    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"training": float(model.training), "gradients": float(torch.is_grad_enabled())}

    trained = harness.train(**line(epochs=2, evaluate=evaluate))
    assert [(r["training"], r["gradients"]) for r in reports(journal)] == [(0, 0), (0, 0)]
    assert all(weight.grad is not None for weight in trained.parameters())


def test_the_first_step_is_not_timed_and_waiting_for_data_is(journal: Path) -> None:
    """Sleeps are the quantity under test here: 1 s in the first step, 10 ms in the others."""
    first = iter([True])

    def slow() -> Iterator[tuple[torch.Tensor, ...]]:
        for batch in harness.shuffled(X, Y, size=5):
            time.sleep(1.0 if next(first, False) else 0.01)
            yield batch

    harness.train(**line(epochs=1, data=slow))
    report = reports(journal)[0]
    assert 0.01 < report["step_time_p50"] <= report["step_time_p99"] < 1.0
    assert 5 / 1.0 < report["samples_per_second"] < 5 / 0.01


def test_one_step_alone_claims_no_speed(journal: Path) -> None:
    harness.train(**line(epochs=2, data=lambda: [(X, Y)]))
    first, second = reports(journal)
    assert "samples_per_second" not in first and "step_time_p50" not in first
    assert second["samples_per_second"] > 0


def test_a_diverged_loss_is_reported_as_it_is(journal: Path) -> None:
    harness.train(**line(optimiser=lambda m: torch.optim.SGD(m.parameters(), lr=1e30)))
    assert "NaN" in journal.read_text()


def test_clipping_and_schedule_are_applied(journal: Path) -> None:
    rates: list[float] = []

    def loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        rates.append(optimiser[0].param_groups[0]["lr"])
        return 1e6 * (model(batch[0]) - batch[1]).square().mean()

    optimiser: list[torch.optim.Optimizer] = []

    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimiser.append(torch.optim.SGD(model.parameters(), lr=1.0))
        return optimiser[0]

    trained = harness.train(
        **line(
            epochs=1,
            optimiser=make,
            loss=loss,
            clip=0.5,
            schedule=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
        )
    )
    assert rates == [1.0, 0.5, 0.25]
    squares = sum(weight.grad.square().sum() for weight in trained.parameters())
    assert float(squares) ** 0.5 == pytest.approx(0.5, rel=1e-3)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="learning_rate"):
        harness.train(**line(learning_rate=1))


class TestFingerprint:
    def test_one_bit_of_a_weight_or_a_buffer_changes_it(self) -> None:
        model = nn.BatchNorm1d(3)
        marks = {harness.fingerprint(model)}
        with torch.no_grad():
            model.weight[0] = torch.nextafter(model.weight[0], torch.tensor(2.0))
        marks.add(harness.fingerprint(model))
        model.num_batches_tracked += 1
        marks.add(harness.fingerprint(model))
        marks.add(harness.fingerprint(model.double()))
        assert len(marks) == 4

    def test_shape_and_name_count_and_order_of_registration_does_not(self) -> None:
        def of(**tensors: torch.Tensor) -> str:
            model = nn.Module()
            for name, tensor in tensors.items():
                model.register_buffer(name, tensor)
            return harness.fingerprint(model)

        a, b = torch.arange(6.0), torch.zeros(2, dtype=torch.bfloat16)
        assert of(a=a, b=b) == of(b=b, a=a)
        assert of(a=a) != of(a=a.view(2, 3))
        assert of(a=a) != of(b=a)
        assert of(a=a.view(2, 3).T) == of(a=a.view(2, 3).T.contiguous())
        assert of(a=torch.zeros(0), b=torch.tensor(True)) != of(b=torch.tensor(True))

    def test_it_hashes_exactly_what_it_says(self) -> None:
        """Spelled out by hand, because a change would make every stored fingerprint differ."""
        model = nn.Linear(2, 1)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[1.0, 2.0]]))
            model.bias.fill_(3.0)
        spelled = (
            b"bias torch.float32 (1,)\n" + struct.pack("=f", 3.0)
            + b"weight torch.float32 (1, 2)\n" + struct.pack("=2f", 1.0, 2.0)
        )  # fmt: skip
        assert harness.fingerprint(model) == hashlib.sha256(spelled).hexdigest()[:32]


class TestParameters:
    def test_values_take_the_type_of_their_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        words = "--lr 1e-2 --epochs=3 --tied false --name b"
        monkeypatch.setattr(sys, "argv", ["train.py", *words.split()])
        p = harness.parameters(lr=0.1, epochs=8, tied=True, name="a", seed=7)
        assert (p.lr, p.epochs, p.tied, p.name, p.seed) == (0.01, 3, False, "b", 7)

    @pytest.mark.parametrize("words", ["--rate 1", "--epochs 1.5", "--tied maybe", "--epoch 1"])
    def test_what_it_does_not_know_ends_the_script(
        self, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["train.py", *words.split()])
        with pytest.raises(SystemExit):
            harness.parameters(epochs=8, tied=True)
        assert words.split()[0] in capsys.readouterr().err


def test_quantiles_are_numpys() -> None:
    numpy = pytest.importorskip("numpy")
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    for share in (0.0, 0.5, 0.9, 0.99, 1.0):
        assert harness.quantile(values, share) == pytest.approx(numpy.quantile(values, share))


@pytest.mark.matrix
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_peak_memory_is_this_processs_own() -> None:
    """ru_maxrss would answer with the size of the process that started this one."""
    held = bytearray(os.urandom(1)) * (600 << 20)  # touched: part of this process's RSS
    code = "from celedger.child.torch import peak_rss; print(peak_rss())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert len(held) == 600 << 20
    assert 20 << 20 < int(said) < 600 << 20


def test_an_exception_in_a_step_says_in_which(journal: Path) -> None:
    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        steps.append(0)
        if len(steps) == 6:
            raise ValueError("shapes")
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    steps: list[int] = []
    options = line(loss=loss)
    with pytest.raises(ValueError, match="shapes") as raised:
        harness.train(**options)
    batches = len(list(options["data"]()))  # type: ignore[operator]
    place = f"in step {5 % batches} of epoch {5 // batches}"
    assert raised.value.__notes__ == [place]


def test_a_training_is_described_in_either_spelling() -> None:
    parts = {"model": len, "data": list, "loss": max, "evaluate": dict, "epochs": 1}
    either = [harness.Training(**parts, **{name: len}) for name in ("optimiser", "optimizer")]
    assert either[0] == either[1]
    with pytest.raises(TypeError, match="optimizer"):
        harness.Training(**parts, optimizer=len, optimiser=len)
