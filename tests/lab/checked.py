"""Trainings with mistakes under preflight's probe, each in a process of its own, forked after torch
was imported once: python checked.py OUT NAME..."""

import contextlib
import gc
import os
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import torch
import torch._dynamo  # what making any optimiser imports: once, before the forks
import torch.nn.functional as F  # noqa: N812
from torch import nn

from celedger.child.torch import shuffled, train
from celedger.lab.probes import observe, preflight

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
    train(**{**whole, **changed})


def healthy():
    training()


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

    training(
        model=Spread, data=lambda: loader, loss=summed,
        evaluate=lambda m: {"val_loss": F.cross_entropy(m(spread, VAL_IMAGES), VAL_LABELS)},
    )  # fmt: skip


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
    training(data=lambda: shuffled(255 * IMAGES, torch.zeros_like(LABELS), size=32))


def eval_forgotten_and_confident():
    def large():
        made = model()
        nn.init.normal_(made[4].weight, std=20.0)
        return made

    training(model=large, evaluate=lambda m: evaluate(m.train()))


def dropout_left_on_and_validation_in_training():
    training(
        model=DropoutOn,
        evaluate=lambda m: {"val_loss": F.cross_entropy(m(IMAGES[:90]), LABELS[:90])},
    )


def detached_and_not_zeroed():
    training(model=Detached, optimiser=lambda m: Forgetful(m.parameters(), lr=0.01))


def forgotten():
    training(optimiser=lambda m: torch.optim.SGD(m[4].parameters(), lr=0.1))


class Blind(nn.Module):
    """Looks at the shape of its input alone."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return self.bias.sum(0).expand(len(x), 4)


def inputs_ignored():
    training(model=Blind)


class HalfBlind(nn.Module):
    """Takes a second input and uses the first alone."""

    def __init__(self):
        super().__init__()
        self.body = model()

    def forward(self, x, scale):
        return self.body(x) + 0 * scale


def one_input_ignored():
    training(
        model=HalfBlind,
        loss=lambda m, batch: F.cross_entropy(m(batch[0], batch[0][:, :4]), batch[1]),
        evaluate=lambda m: evaluate(lambda x: m(x, x[:, :4])),
    )


def never_negative():
    """A ReLU in front of targets that are negative at times."""

    def loss(net, x, y):
        return F.mse_loss(net(x), 3 * x[:, :1] + 3)

    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.ReLU())
    nn.init.constant_(net[2].bias, 3.0)
    by_hand(lambda: shuffled(IMAGES, LABELS, size=32), net, loss)


def softmax_twice():
    training(loss=lambda m, batch: F.cross_entropy(m(batch[0]).softmax(1), batch[1]))


def broadcast_and_split_badly():
    """Targets without the outputs' last axis; validation of another scale."""

    def wrong(model, batch):
        return F.mse_loss(model(batch[0]), batch[1].float())

    narrow = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    training(
        model=lambda: narrow, loss=wrong,
        evaluate=lambda m: {"val_loss": m(5 + 3 * VAL_IMAGES).mean()},
    )  # fmt: skip


def by_hand(batches, model=None, step=None, evaluated=True):
    """A training as people write it, without celedger's loop."""
    net = model or nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(3):
        for x, y in batches():
            optimiser.zero_grad()
            (step(net, x, y) if step else F.cross_entropy(net(x), y)).backward()
            optimiser.step()
        if evaluated:
            net.eval()
            with torch.set_grad_enabled(evaluated == "with a graph"):
                net(VAL_IMAGES)
            net.train()


def order_fixed_and_graph_recorded():
    pairs = list(zip(IMAGES.split(32), LABELS.split(32), strict=True))
    by_hand(lambda: pairs, evaluated="with a graph")


def codes_that_collapse():
    """Targets that the training computes itself, nearly all of one class, in a loss by hand."""
    centres = torch.cat([torch.zeros(1, 8), 50 + torch.zeros(3, 8)])

    def step(net, x, y):
        F.mse_loss(net(x).detach(), torch.full((len(x), 4), 1e-3))  # no part of the loss
        codes = torch.cdist(x, centres).argmin(1)
        return F.cross_entropy(net(x), codes.view(-1))

    by_hand(lambda: shuffled(IMAGES, LABELS, size=32), step=step)


class WithLoss(nn.Module):
    """Computes its loss itself and has a part that is not used, as library models do."""

    def __init__(self):
        super().__init__()
        self.body, self.pooler = nn.Linear(8, 4), nn.Linear(4, 4)

    def forward(self, x, labels=None):
        if x.abs().max() > 1000:
            raise ValueError("too large")  # as a distribution says of its parameters
        logits = self.body(x)
        return {"loss": None if labels is None else F.cross_entropy(logits, labels), "y": logits}


def loss_inside():
    by_hand(
        lambda: shuffled(IMAGES, LABELS, size=32), model=WithLoss(),
        step=lambda net, x, y: net(x, labels=y)["loss"],
    )  # fmt: skip


def adversarial():
    """Two optimisers, and a generator that is called without gradients at every other step."""
    maker, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    makers, critics = (torch.optim.Adam(m.parameters(), lr=1e-3) for m in (maker, critic))
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    judge = F.binary_cross_entropy_with_logits
    for _ in range(3):
        for x, _ in shuffled(IMAGES, LABELS, size=32):
            with torch.no_grad():
                made = maker(torch.randn(len(x), 4))
            critics.zero_grad()
            (judge(critic(x), ones) + judge(critic(made), zeros)).backward()
            critics.step()
            makers.zero_grad()
            judge(critic(maker(torch.randn(len(x), 4))), ones).backward()
            makers.step()


def words():
    """Next words, a view of the output in the loss, and a clipped gradient."""
    text = torch.randint(20, (64, 13))
    net = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 20))

    def step(net, x, y):
        return F.cross_entropy(net(x[:, :-1]).view(-1, 20), x[:, 1:].reshape(-1))

    by_hand(lambda: ((rows, None) for rows in text.split(16)), net, step, evaluated=False)


def graph_kept():
    """The sum of losses holds the graph of every step."""
    total = []

    def step(net, x, y):
        loss = F.cross_entropy(net(x), y)
        total[:] = [sum(total) + loss]
        return loss

    by_hand(lambda: shuffled(IMAGES, LABELS, size=32), step=step)


class Locked(nn.Module):
    """Cannot be copied, as one that holds a lock or a file."""

    def __init__(self):
        super().__init__()
        self.body, self.lock = model(), threading.Lock()

    def forward(self, x):
        return self.body(x)


def not_copied():
    training(model=Locked)


def rate_zero():
    training(optimiser=lambda m: torch.optim.SGD(m.parameters(), lr=0.0))


def main():
    out = Path(sys.argv[1])
    gc.collect()
    gc.freeze()  # else a look at all objects takes most of the time of a training
    for name in sys.argv[2:]:
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            if status:
                raise SystemExit(f"{name} failed")
            continue
        (out / name).mkdir()
        os.environ["CELEDGER_PROBE_OUT"] = str(out / name)
        torch.manual_seed(0)
        observe.attach(preflight.PreflightProbe({"steps": 60}))
        try:
            with contextlib.suppress(SystemExit):
                globals()[name]()
            observe._observer._ends()
            os._exit(0)
        finally:
            sys.stderr.flush()
            os._exit(1)


if __name__ == "__main__":
    main()
