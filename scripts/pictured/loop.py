"""A plain training loop, as a person writes one who never heard of celedger: a masked transformer,
an optimiser of one's own, and a loader with its own order."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F  # noqa: N812
from shared import digits
from torch import nn

from celedger.child import log

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--seed", type=int, default=0)
p = parser.parse_args()
torch.manual_seed(p.seed)
torch.set_num_threads(1)

images, labels, val_images, val_labels = digits.load()
images, labels = images[:960], labels[:960]


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * self.scale
        mask = torch.ones(t, t, dtype=torch.bool).tril(0)
        scores = scores.masked_fill(~mask, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(n, t, c))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Rows(nn.Module):
    """Reads an image row by row, top to bottom."""

    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.places = nn.Parameter(0.02 * torch.randn(8, width))
        self.layers = nn.ModuleList([Layer(width, 4), Layer(width, 4)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, x):
        x = self.embed(x.squeeze(1)) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


class Momentum(torch.optim.Optimizer):
    """Stochastic gradient descent with momentum and decoupled decay."""

    def __init__(self, params, lr, momentum=0.9, decay=1e-3):
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "speed" not in state:
                    state["speed"] = torch.zeros_like(weight)
                speed = state["speed"]
                speed.mul_(group["momentum"]).add_(weight.grad)
                weight.mul_(1 - group["lr"] * group["decay"])
                weight.add_(speed, alpha=-group["lr"])


def batches(size=64):
    order = torch.randperm(len(images))
    for rows in order.split(size):
        yield images[rows], labels[rows]


def evaluate(model):
    model.eval()
    with torch.no_grad():
        logits = model(val_images)
        loss = F.cross_entropy(logits, val_labels)
        right = (logits.argmax(1) == val_labels).float().mean()
    return loss.item(), right.item()


model = Rows()
optimiser = Momentum(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, p.epochs * 15)
for epoch in range(p.epochs):
    model.train()
    for x, y in batches():
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    val_loss, val_accuracy = evaluate(model)
    log(epoch=epoch, val_loss=val_loss, val_accuracy=val_accuracy)
