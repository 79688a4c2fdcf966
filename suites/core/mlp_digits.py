"""A perceptron with two hidden layers and dropout (Srivastava et al. 2014) on 8 x 8 digits.

Covers linear layers, GELU, dropout's random numbers, cross-entropy, and SGD with Nesterov momentum,
weight decay and a linearly falling rate.
Trivial baseline: the classes' shares, a loss of ln 10 = 2.30, 10 % right.
"""

import torch
from shared.digits import Digits
from shared.loop import batches, count_steps, linear, run, using
from torch import nn

from celedger.child.torch import parameters

p = parameters(
    epochs=8,
    passes=4,  # over the data an epoch: long enough to be timed
    lr=0.05,  # at the start; falls to 0, so that the last epoch says little of chance
    batch=32,  # images a step
    width=512,  # units of a hidden layer
    dropout=0.3,
    seed=0,
)

digits = Digits()
data = batches(p, digits.images, digits.labels, passes=p.passes)
optimiser = using(torch.optim.SGD, lr=p.lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
schedule = linear(count_steps(p, digits.images, p.passes))


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


run(p, model, optimiser, schedule, data, digits.loss, digits.evaluate)
