"""An LSTM that predicts the next character of English text (Hochreiter & Schmidhuber 1997; as
Graves 2013, arXiv:1308.0850, generates text).

Feels changes in embeddings, the LSTM's gates and their gradient through time, gradient clipping
by norm, and Adam. Trivial baseline: the characters' frequencies alone, 3.3 nats a character;
always the commonest one, 17 % right.
Reaches 1.86 nats (sd over seeds 0.028), 50 % right.
"""

from __future__ import annotations

import text
import torch
import torch.nn.functional as F
from torch import nn

from celedger.child.torch import device, parameters, shuffled, train

p = parameters(
    epochs=5,
    lr=1e-2,  # at the start; falls to 0 as a line
    batch=32,  # windows a step
    length=32,  # characters of a window
    embedding=32,
    width=128,
    clip=1.0,  # largest norm of the gradient: at this rate it is needed
    seed=0,
)

windows, val_windows = text.load(device(), p.length)
steps = p.epochs * -(-len(windows) // p.batch)


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding(len(text.ALPHABET), p.embedding)
        self.lstm = nn.LSTM(p.embedding, p.width, batch_first=True)
        self.head = nn.Linear(p.width, len(text.ALPHABET))

    def forward(self, x):
        states, _ = self.lstm(self.characters(x))
        return self.head(states)


def optimiser(model):
    return torch.optim.Adam(model.parameters(), lr=p.lr)


def schedule(optimiser):
    return torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=steps)


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
    model=LSTM,
    optimiser=optimiser,
    schedule=schedule,
    data=data,
    loss=loss,
    evaluate=evaluate,
    clip=p.clip,
    epochs=p.epochs,
    seed=p.seed,
)
