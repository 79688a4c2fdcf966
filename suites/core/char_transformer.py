"""A small GPT that predicts the next character of English text (Radford et al. 2019; block
layout of nanoGPT).

Feels changes in embeddings, causal attention, layer norm, GELU, weight tying, AdamW with decay
only for matrices, and a rate that warms up and falls as a cosine. Trivial baseline: the
characters' frequencies alone, 3.3 nats a character; always the commonest one, 17 % right.
Reaches 2.00 nats (sd over seeds 0.018), 45 % right.
"""

from __future__ import annotations

import math

import text
import torch
import torch.nn.functional as F
from torch import nn

from celedger.child.torch import device, parameters, shuffled, train

p = parameters(
    epochs=4,
    lr=6e-3,  # after the warm-up; falls to a tenth of it
    warmup=0.1,  # share of all steps
    decay=0.1,  # of weights with two dimensions or more
    batch=16,  # windows a step
    length=32,  # characters of a window
    width=48,
    heads=4,
    layers=2,
    std=0.08,  # of the first weights
    seed=0,
)

windows, val_windows = text.load(device(), p.length)
steps = p.epochs * -(-len(windows) // p.batch)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(p.width)
        self.qkv = nn.Linear(p.width, 3 * p.width)
        self.out = nn.Linear(p.width, p.width)
        self.norm2 = nn.LayerNorm(p.width)
        self.mlp = nn.Sequential(
            nn.Linear(p.width, 4 * p.width), nn.GELU(), nn.Linear(4 * p.width, p.width)
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, p.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding(len(text.ALPHABET), p.width)
        self.places = nn.Embedding(p.length, p.width)
        self.blocks = nn.Sequential(*(Block() for _ in range(p.layers)))
        self.norm = nn.LayerNorm(p.width)
        self.head = nn.Linear(p.width, len(text.ALPHABET), bias=False)
        self.head.weight = self.characters.weight
        for weight in self.parameters():
            if weight.dim() >= 2:
                nn.init.normal_(weight, std=p.std)

    def forward(self, x):
        x = self.characters(x) + self.places.weight[: x.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def optimiser(model):
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": p.decay},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=p.lr, betas=(0.9, 0.99))


def schedule(optimiser):
    warmup = max(1, round(p.warmup * steps))

    def share(step):
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, steps - warmup)
        return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))

    return torch.optim.lr_scheduler.LambdaLR(optimiser, share)


def data():
    return shuffled(windows, size=p.batch)


def loss(model, batch):
    (characters,) = batch
    logits = model(characters[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), characters[:, 1:].flatten())


def evaluate(model):
    logits, following = model(val_windows[:, :-1]), val_windows[:, 1:]
    return {
        "val_loss": F.cross_entropy(logits.flatten(0, 1), following.flatten()),
        "val_accuracy": (logits.argmax(2) == following).double().mean(),
    }


train(
    model=Transformer,
    optimiser=optimiser,
    schedule=schedule,
    data=data,
    loss=loss,
    evaluate=evaluate,
    clip=1.0,
    epochs=p.epochs,
    seed=p.seed,
)
