"""A depthwise CNN with group norm and squeeze-and-excitation on 8 x 8 digits (Sandler et al. 2018,
arXiv:1801.04381; Howard et al. 2019, arXiv:1905.02244; Wu & He 2018, arXiv:1803.08494).

Covers depthwise and pointwise convolution, group norm, hard-swish, the sigmoid gate, average
pooling at the border, RMSprop with momentum, and label smoothing; with `--amp true` autocast and
the gradient scaler, too.
Trivial baseline: the classes' shares, a loss of ln 10 = 2.30, 10 % right. With labels smoothed by
0.1 a perfect model still has a loss of 0.50.
"""

import torch
import torch.nn.functional as F
from shared.digits import Digits
from shared.loop import batches, cosine, count_steps, run, using
from torch import nn

from celedger.child.torch import device, latency, parameters

p = parameters(
    epochs=10,
    lr=2e-3,  # at the start; falls to 0 as a cosine
    batch=24,  # images a step
    width=16,  # channels between the blocks
    expand=3,  # times as many inside a block
    blocks=2,
    smoothing=0.1,  # of the labels, in training and validation alike
    clip=2.0,  # largest norm of the gradient: half of the steps reach it
    amp=False,  # mixed precision
    seed=0,
)

digits = Digits(p.smoothing, p.amp)
data = batches(p, digits.images, digits.labels)
optimiser = using(torch.optim.RMSprop, lr=p.lr, alpha=0.95, momentum=0.9, eps=1e-3)
schedule = cosine(count_steps(p, digits.images))


class Gate(nn.Module):
    """Squeeze-and-excitation: each channel times what a look at all channels says of it."""

    def __init__(self, channels):
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // 4)
        self.excite = nn.Linear(channels // 4, channels)

    def forward(self, x):
        share = self.excite(F.relu(self.squeeze(x.mean((2, 3)))))
        return x * share.sigmoid()[:, :, None, None]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        inner = p.expand * width
        self.body = nn.Sequential(
            nn.Conv2d(width, inner, 1, bias=False),
            nn.GroupNorm(8, inner),
            nn.Hardswish(),
            nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False),
            nn.GroupNorm(8, inner),
            nn.Hardswish(),
            Gate(inner),
            nn.Conv2d(inner, width, 1, bias=False),
            nn.GroupNorm(8, width),
        )

    def forward(self, x):
        return x + self.body(x)


def model():
    c = p.width
    return nn.Sequential(
        nn.Conv2d(1, c, 3, padding=1),
        nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        *(Block(c) for _ in range(p.blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(c, 10),
    )


def evaluate(model):
    return {
        **digits.evaluate(model),
        **latency(lambda: model(digits.val_images[:1])),
    }


scaler = torch.amp.GradScaler(device().type) if p.amp else None
run(p, model, optimiser, schedule, data, digits.loss, evaluate, clip=p.clip, scaler=scaler)
