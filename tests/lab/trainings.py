"""Trainings with one fault each, and healthy ones that look odd; every one under watchpoints in a
process of its own, forked after torch was imported once: python trainings.py OUT NAME..."""

import gc
import json
import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # what making any optimiser imports: once, before the forks
import torch.nn.functional as F  # noqa: N812
from torch import nn

from celedger.lab.probes import observe, watch

CENTRES = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)) * 1.5


def draw():
    labels = torch.randint(4, (32,))
    return CENTRES[labels] + torch.randn(32, 8), labels


class Bad(nn.Module):
    """The logarithm of zero, from the 40th step on."""

    calls = 0

    def forward(self, x):
        Bad.calls += 1
        return x if Bad.calls < 41 else x + 0 * (x - x.detach().amin()).log()


class Cut(nn.Module):
    def forward(self, x):
        return x.detach()


def perceptron(*extra):
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), *extra,
                         nn.Linear(16, 4))  # fmt: skip


def fit(model, lr=0.05, steps=60, optimiser=None, batch=draw):
    optimiser = optimiser or torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(steps):
        x, labels = batch()
        loss = F.cross_entropy(model(x), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def healthy():
    fit(perceptron())


def overflow():
    fit(perceptron(Bad()))


def rate_zero():
    fit(perceptron(), lr=0.0)


def rate_large():
    fit(perceptron(), lr=5.0)


def vanishing():
    layers = [part for _ in range(10) for part in (nn.Linear(16, 16), nn.Sigmoid())]
    fit(nn.Sequential(nn.Linear(8, 16), *layers, nn.Linear(16, 4)))


def large_init():
    model = perceptron()
    nn.init.normal_(model[0].weight, std=30 * 8**-0.5)
    fit(model, lr=1e-3)


def zero_init():
    model = perceptron()
    for parameter in model[:4].parameters():
        nn.init.zeros_(parameter)
    fit(model)


def dead():
    model = perceptron()
    nn.init.constant_(model[2].bias, -50.0)
    fit(model)


def detached():
    fit(perceptron(Cut()))


def forgotten():
    model = perceptron()
    fit(model, optimiser=torch.optim.SGD(model[2:].parameters(), lr=0.05))


def saturated():
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    fit(model, batch=lambda: (draw()[0] * 1e3, draw()[1]), lr=1e-4)


def stale():
    x, labels = draw()
    fit(perceptron(), batch=lambda: (x.clone(), labels))


def first_of_many():
    every = torch.randn(640, 8)
    fit(perceptron(), batch=lambda: (every[:32], torch.arange(32) % 4))


def random_labels():
    fit(perceptron(), batch=lambda: (draw()[0], torch.randint(4, (32,))), lr=1e-3)


def frozen():
    model = perceptron()
    model[0].requires_grad_(False)
    fit(model, optimiser=torch.optim.SGD(list(model.parameters()), lr=0.05))


class Residual(nn.Module):
    """A branch that begins at zero, twice: by its norm and by its last matrix (zero-init)."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        nn.init.zeros_(self.norm.weight)
        nn.init.zeros_(self.last.weight)

    def forward(self, x):
        return x + self.last(F.relu(self.first(x))) + self.norm(x)


def zero_branches():
    model = nn.Sequential(nn.Linear(8, 16), Residual(), Residual(), nn.Linear(16, 4))
    nn.init.zeros_(model[3].weight)
    fit(model)


def sparse():
    """An embedding with sparse gradients, most rows of which a step does not touch."""
    bag = nn.EmbeddingBag(500, 8, sparse=True)
    head = nn.Linear(8, 4)
    optimisers = [torch.optim.SparseAdam(bag.parameters(), lr=0.05),
                  torch.optim.Adam(head.parameters(), lr=0.01)]  # fmt: skip
    for _ in range(60):
        words = torch.randint(500, (16, 5))
        loss = F.cross_entropy(head(bag(words)), words[:, 0] % 4)
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()


def whole_data():
    """Every step on all the data there is: the same batch by right."""
    x, labels = draw()
    fit(perceptron(), batch=lambda: (x, labels))


def masked():
    """Attention with a mask of minus infinity, under bfloat16."""
    attention, head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 4)
    mask = torch.full((4, 4), -torch.inf).triu(1)
    optimiser = torch.optim.Adam([*attention.parameters(), *head.parameters()], lr=0.01)
    for _ in range(60):
        x, labels = draw()
        with torch.autocast("cpu", torch.bfloat16):
            y = x.view(8, 4, 8)
            found = head(attention(y, y, y, attn_mask=mask, need_weights=False)[0])
        loss = F.cross_entropy(found.flatten(0, 1).float(), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def bias_before_norm():
    """A bias that the norm takes away again: its gradient is rounding."""
    fit(nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)))


def falling_rate():
    model = perceptron()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=55)
    optimiser.register_step_post_hook(lambda *_: schedule.step())
    fit(model, optimiser=optimiser, steps=60)


def nan_by_hand():
    weight = torch.ones(3, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=0.1)
    for _ in range(6):
        loss = ((weight * 0).log() * 0 + weight).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


class Encoder(nn.Module):
    """A layer of BERT: the norms behind the sums."""

    def __init__(self, width=32):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.up, self.down = (
            nn.Linear(width, width),
            nn.Linear(width, 64),
            nn.Linear(64, width),
        )
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        parts = (f(x).unflatten(-1, (2, -1)) for f in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts))
        x = self.norm1(x + self.out(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def bert():
    """Every matrix drawn with a standard deviation of 0.02: attention is level, and its queries
    and keys get next to no gradient at first."""
    words, body = nn.Embedding(50, 32), nn.Sequential(nn.LayerNorm(32), Encoder(), Encoder())
    head = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    model = nn.ModuleList([words, body, head])
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(60):
        rows = torch.randint(50, (16, 12))
        loss = F.cross_entropy(head(body(words(rows))[:, 0]), rows[:, 0] % 4)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def main():
    out = Path(sys.argv[1])
    gc.collect()
    gc.freeze()  # else a search for garbage in a fork copies every page of torch
    for name in sys.argv[2:]:
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            if status:
                raise SystemExit(f"{name} failed")
            continue
        (out / name).mkdir()
        os.environ["CELEDGER_PROBE_OUT"] = str(out / name)
        torch.manual_seed(0)
        observe.attach(watch.WatchProbe(json.loads(os.environ.get("CELEDGER_PROBE", "{}"))))
        try:
            globals()[name]()
            observe._observer._ends()
        except SystemExit:  # a closer look ends a training
            os._exit(0)
        finally:
            sys.stderr.flush()
            os._exit(sys.exc_info()[0] is not None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
