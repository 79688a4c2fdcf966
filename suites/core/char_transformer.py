"""A small GPT that predicts the next character of English text (Radford et al. 2019; nanoGPT).

Covers embeddings, causal attention, layer norm, GELU, weight tying, AdamW with decay only for
matrices, and a rate that warms up and falls as a cosine.
Trivial baseline: the characters' frequencies, 3.3 nats a character; the commonest one, 17 % right.
"""

import math

import torch
from shared.loop import batches, count_steps, run
from shared.text import ALPHABET, Text
from shared.transformer import Block
from torch import nn

from celedger.child.torch import parameters

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

text = Text(p.length)
data = batches(p, text.windows)
steps = count_steps(p, text.windows)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), p.width)
        self.places = nn.Embedding(p.length, p.width)
        self.blocks = nn.Sequential(
            *(Block(p.width, p.heads, 4 * p.width, causal=True) for _ in range(p.layers))
        )
        self.norm = nn.LayerNorm(p.width)
        self.head = nn.Linear(p.width, len(ALPHABET), bias=False)
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


run(p, Transformer, optimiser, schedule, data, text.loss, text.evaluate, clip=1.0)
