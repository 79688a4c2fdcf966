"""Ten optimisers and schedules on softmax regression of 8 x 8 digits (after Schmidt et al. 2021,
"Descending through a crowded valley", arXiv:2007.01547).

The instrument for the arithmetic of a step. The problem is convex, the heads start at zero and
the batches have one fixed order, so nothing depends on the seed: a loss that moves by a
hundred-thousandth moved for a reason. Each head has an optimiser of its own; the sum of the
losses keeps their gradients apart. Covers momentum, Nesterov's form, Adam's moments, bias
correction and epsilon, coupled and decoupled weight decay, clipping, schedules to the step,
averaged weights, label smoothing, ignored labels, and the weights of classes.
Trivial baseline: the classes' shares, a loss of ln 10 = 2.30.
"""

import math

import torch
import torch.nn.functional as F
from shared.digits import load
from shared.loop import cosine, count_steps, linear, run, using
from torch import nn, optim
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    LambdaLR,
    OneCycleLR,
    StepLR,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from celedger.child.torch import device, parameters

p = parameters(
    epochs=6,
    batch=128,  # images a step
    seed=0,  # of nothing here but what a change of the code under test makes of it
)

images, labels, val_images, val_labels = load()
images, val_images = images.flatten(1), val_images.flatten(1)
an_epoch = -(-len(images) // p.batch)
steps = count_steps(p, images)


def warmed(step):
    """Linear over a tenth of the steps, then a cosine to zero."""
    start = steps // 10
    if step < start:
        return (step + 1) / start
    return 0.5 * (1 + math.cos(math.pi * (step - start) / (steps - start)))


def constant(optimiser):
    return LambdaLR(optimiser, lambda step: 1.0)


# Of each head its optimiser and schedule.
HEADS = {
    "sgd": (
        using(optim.SGD, lr=0.3, momentum=0.9, weight_decay=1e-3),
        lambda o: OneCycleLR(o, 0.3, total_steps=steps),
    ),
    "nesterov": (using(optim.SGD, lr=0.3, momentum=0.9, nesterov=True), linear(steps)),
    "plain": (using(optim.SGD, lr=0.5), lambda o: StepLR(o, step_size=2 * an_epoch, gamma=0.1)),
    # Its gradient, of norm 0.3 and more, is held to 0.1 by `Race.step`.
    "clipped": (using(optim.SGD, lr=2.0), cosine(steps)),
    "adam": (  # an epoch ends before its restart
        using(optim.Adam, lr=0.01, weight_decay=1e-2),
        lambda o: CosineAnnealingWarmRestarts(o, an_epoch),
    ),
    # Adam with an epsilon that counts, as deep Q-learning and Inception use it.
    "careful": (using(optim.Adam, lr=0.02, eps=1e-3), constant),
    "adamw": (
        using(optim.AdamW, lr=0.02, betas=(0.9, 0.99), weight_decay=0.1),
        lambda o: LambdaLR(o, warmed),
    ),
    "rmsprop": (using(optim.RMSprop, lr=3e-3, momentum=0.9, eps=1e-3), linear(steps, 0.1)),
    "adagrad": (using(optim.Adagrad, lr=0.1), constant),
    # Large steps, scored at the exponential average of where they led.
    "averaged": (using(optim.SGD, lr=2.0, momentum=0.9), constant),
}


class Race(optim.Optimizer):
    """All the optimisers as one, each with its schedule."""

    def __init__(self, heads):
        super().__init__(heads.parameters(), {})
        self.heads = heads
        self.mean = AveragedModel(heads["averaged"], multi_avg_fn=get_ema_multi_avg_fn(0.95))
        self.members = [optimiser(heads[name]) for name, (optimiser, _) in HEADS.items()]
        self.schedules = [
            schedule(member)
            for (_, schedule), member in zip(HEADS.values(), self.members, strict=True)
        ]

    def step(self):
        nn.utils.clip_grad_norm_(self.heads["clipped"].parameters(), 0.1)
        for member, schedule in zip(self.members, self.schedules, strict=True):
            member.step()
            schedule.step()
        self.mean.update_parameters(self.heads["averaged"])


def model():
    heads = nn.ModuleDict({name: nn.Linear(64, 10) for name in HEADS})
    for weight in heads.parameters():
        nn.init.zeros_(weight)
    return heads


def optimiser(model):
    global race
    race = Race(model)
    return race


def data():
    return zip(images.split(p.batch), labels.split(p.batch), strict=True)


# What is special in the loss of some heads; the others have the plain cross-entropy.
LOSS = {
    "plain": {"label_smoothing": 0.1},
    "nesterov": {"ignore_index": 9},
    "adagrad": {"weight": torch.linspace(0.5, 1.5, 10, device=device())},
}


def loss(model, batch):
    x, y = batch
    return sum(F.cross_entropy(head(x), y, **LOSS.get(name, {})) for name, head in model.items())


def evaluate(model):
    heads = {**model, "averaged": race.mean}
    losses = {name: F.cross_entropy(head(val_images), val_labels) for name, head in heads.items()}
    best = max((heads[n](val_images).argmax(1) == val_labels).double().mean() for n in heads)
    return {
        "val_loss": sum(losses.values()) / len(losses),
        "val_accuracy": best,
        **{f"val_loss_{name}": value for name, value in losses.items()},
    }


run(p, model, optimiser, None, data, loss, evaluate)
