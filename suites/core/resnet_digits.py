"""A small residual network with batch norm on randomly shifted 8 x 8 digits
(He et al. 2016, arXiv:1512.03385; the pre-activation order of arXiv:1603.05027).

Covers convolution, batch norm (its statistics in training, its running ones in evaluation), ReLU,
pooling, the shortcut, label smoothing, and SGD with momentum under a one-cycle rate.
Trivial baseline: the classes' shares, a loss of ln 10 = 2.30, 10 % right. With labels smoothed by
0.1 a perfect model still has a loss of 0.50.
"""

import torch
import torch.nn.functional as F
from shared.digits import Digits
from shared.loop import count_steps, one_cycle, run, using
from torch import nn

from celedger.child.torch import parameters, shuffled

p = parameters(
    epochs=8,
    lr=0.05,  # the highest of the cycle
    batch=64,  # images a step
    width=20,  # channels of the first stage; each of the two later ones has twice as many
    smoothing=0.1,  # of the labels, in training and validation alike: steadier than bare loss
    shift=1,  # pixels an image is moved at most, each way
    seed=0,
)

digits = Digits(p.smoothing)
optimiser = using(torch.optim.SGD, lr=p.lr, momentum=0.9, weight_decay=5e-4)
schedule = one_cycle(p.lr, count_steps(p, digits.images))


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(x))
        return self.conv2(F.relu(self.norm2(self.conv1(y)))) + self.shortcut(y)


def model():
    c = p.width
    return nn.Sequential(
        nn.Conv2d(1, c, 3, padding=1, bias=False),
        Block(c, c, stride=1),
        Block(c, 2 * c, stride=2),
        Block(2 * c, 4 * c, stride=2),
        nn.BatchNorm2d(4 * c),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * c, 10),
    )


def shifted(images):
    """Each image moved by up to `shift` pixels; what leaves the frame is lost."""
    s, rows = p.shift, len(images)
    places = F.pad(images, (s, s, s, s)).unfold(2, 8, 1).unfold(3, 8, 1)  # n, 1, down, right, 8, 8
    down, right = torch.randint(2 * s + 1, (2, rows)).to(images.device)
    return places[torch.arange(rows, device=images.device), :, down, right]


def data():
    return ((shifted(x), y) for x, y in shuffled(digits.images, digits.labels, size=p.batch))


run(p, model, optimiser, schedule, data, digits.loss, digits.evaluate)
