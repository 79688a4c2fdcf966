"""A perceptron with two hidden layers and dropout (Srivastava et al. 2014) on 8 x 8 digits: the
plainest training there is.

Feels changes in linear layers, GELU, dropout's random numbers, cross-entropy, and SGD with
Nesterov momentum, weight decay and a linearly falling rate. Trivial baseline: always the
commonest class, 10 % right; knowing only the classes' shares, a loss of ln 10 = 2.30.
Reaches 97.7 % right (sd over seeds 0.2 points) at a loss of 0.083.
"""

from __future__ import annotations

import digits
import torch
import torch.nn.functional as F
from torch import nn

from celedger.child.torch import device, parameters, shuffled, train

p = parameters(
    epochs=8,
    passes=4,  # over the data an epoch: long enough to be timed
    lr=0.05,  # at the start; falls to 0, so that the last epoch says little of chance
    batch=32,  # images a step
    width=512,  # units of a hidden layer
    dropout=0.3,
    seed=0,
)

images, labels, val_images, val_labels = digits.load(device())
steps = p.epochs * p.passes * -(-len(images) // p.batch)


def model():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, p.width),
        nn.GELU(),
        nn.Dropout(p.dropout),
        nn.Linear(p.width, p.width),
        nn.GELU(),
        nn.Dropout(p.dropout),
        nn.Linear(p.width, 10),
    )


def optimiser(model):
    return torch.optim.SGD(
        model.parameters(), lr=p.lr, momentum=0.9, nesterov=True, weight_decay=1e-4
    )


def schedule(optimiser):
    return torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=steps)


def data():
    for _ in range(p.passes):
        yield from shuffled(images, labels, size=p.batch)


def loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def evaluate(model):
    logits = model(val_images)
    return {
        "val_loss": F.cross_entropy(logits, val_labels),
        "val_accuracy": (logits.argmax(1) == val_labels).double().mean(),
    }


train(
    model=model,
    optimiser=optimiser,
    schedule=schedule,
    data=data,
    loss=loss,
    evaluate=evaluate,
    epochs=p.epochs,
    seed=p.seed,
)
