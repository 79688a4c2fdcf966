"""Trainings with mistakes, given to preflight's driver, each in a process of its own, forked after
torch was imported once: python checked.py OUT NAME..."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import torch
import torch._dynamo  # what making any optimiser imports: once, before the forks
import torch.nn.functional as F  # noqa: N812
from torch import nn

from celedger.child.probes import preflight
from celedger.child.torch import Training, shuffled

CENTRES = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)) * 1.5


def points(count, seed):
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=random)
    return CENTRES[labels] + torch.randn(count, 8, generator=random), labels


IMAGES, LABELS = points(640, seed=2)
VAL_IMAGES, VAL_LABELS = points(200, seed=3)


def model():
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1),
                         nn.Linear(32, 4))  # fmt: skip


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def evaluate(model):
    return {"val_loss": F.cross_entropy(model(VAL_IMAGES), VAL_LABELS)}


def training(**changed):
    whole = {
        "model": model,
        "optimiser": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
        "data": lambda: shuffled(IMAGES, LABELS, size=32),
        "loss": loss,
        "evaluate": evaluate,
        "epochs": 3,
    }
    return Training(**{**whole, **changed})


def healthy():
    return training()


class Batch(NamedTuple):
    rows: torch.Tensor
    labels: torch.Tensor


def on_a_sparse_graph_with_ignored_labels():
    """Named batches of a batch sampler, a sum for a loss, and one batch without any label."""
    kept = LABELS.clone()
    kept[::10] = -100
    kept[64:96] = -100
    rows = torch.utils.data.TensorDataset(IMAGES, kept)
    spread = torch.eye(8).to_sparse()
    loader = torch.utils.data.DataLoader(
        rows, batch_sampler=[range(at, at + 32) for at in range(0, 640, 32)],
        collate_fn=lambda some: Batch(*map(torch.stack, zip(*some, strict=True))),
    )  # fmt: skip

    class Spread(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = model()

        def forward(self, graph, x):
            return self.body((graph @ x.T).T)

    def summed(model, batch):
        loss = F.cross_entropy(model(spread, batch.rows), batch.labels, reduction="sum")
        return loss / len(batch.rows)

    return training(
        model=Spread, data=lambda: loader, loss=summed,
        evaluate=lambda m: {"val_loss": F.cross_entropy(m(spread, VAL_IMAGES), VAL_LABELS)},
    )  # fmt: skip


def evaluation_breaks():
    return training(evaluate=lambda m: {"val_loss": 1 / 0})


class DropoutOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = model()

    def forward(self, x):
        return F.dropout(self.body(x))  # torch's default is training=True


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.last(self.first(x).relu().detach())


class Forgetful(torch.optim.SGD):
    def zero_grad(self, set_to_none=True):
        pass


def labels_constant_and_unscaled():
    return training(data=lambda: shuffled(255 * IMAGES, torch.zeros_like(LABELS), size=32))


def eval_forgotten_and_confident():
    def large():
        made = model()
        nn.init.normal_(made[4].weight, std=20.0)
        return made

    return training(model=large, evaluate=lambda m: evaluate(m.train()))


def dropout_left_on_and_validation_in_training():
    return training(
        model=DropoutOn,
        evaluate=lambda m: {"val_loss": F.cross_entropy(m(IMAGES[:90]), LABELS[:90])},
    )


def detached_and_not_zeroed():
    return training(model=Detached, optimiser=lambda m: Forgetful(m.parameters(), lr=0.01))


def forgotten_and_unseeded():
    def noisy(model, batch):
        return loss(model, batch) * (1 + int.from_bytes(os.urandom(2), "big") * 1e-6)

    return training(loss=noisy, optimiser=lambda m: torch.optim.SGD(m[4].parameters(), lr=0.1))


def inputs_ignored_and_leak():
    kept = []

    def keeping(model, batch):
        kept.append(F.cross_entropy(model(0 * batch[0]), batch[1]))
        return kept[-1]

    return training(loss=keeping)


def rate_zero():
    return training(optimiser=lambda m: torch.optim.SGD(m.parameters(), lr=0.0))


def main():
    out = Path(sys.argv[1])
    for name in sys.argv[2:]:
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            if status:
                raise SystemExit(f"{name} failed")
            continue
        (out / name).mkdir()
        try:
            preflight.drive(globals()[name](), out / name)
        except SystemExit:
            os._exit(0)
        finally:
            sys.stderr.flush()
            os._exit(1)


if __name__ == "__main__":
    main()
