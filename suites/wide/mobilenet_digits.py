"""A depthwise CNN with group norm and squeeze-and-excitation on 8 x 8 digits (inverted residuals
of Sandler et al. 2018, arXiv:1801.04381; Howard et al. 2019, arXiv:1905.02244; group norm of Wu &
He 2018, arXiv:1803.08494).

Feels changes in depthwise and pointwise convolution, group norm, hard-swish, the sigmoid gate,
average pooling at the border, RMSprop with momentum, and label smoothing; with `--amp true` also
in autocast (bfloat16 on a CPU, float16 on a GPU) and the gradient scaler.
Trivial baseline: always the commonest class, 10 % right; knowing only the classes' shares, a
loss of ln 10 = 2.30. With labels smoothed by 0.1 a perfect model still has a loss of 0.50.
Reaches 97.3 % right (sd over three seeds 0.3 points) at a loss of 0.621 (sd 0.008).
"""

from __future__ import annotations

import digits
import torch
import torch.nn.functional as F
from torch import nn

from celedger.child.torch import device, latency, parameters, shuffled, train

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

images, labels, val_images, val_labels = digits.load(device())
steps = p.epochs * -(-len(images) // p.batch)
half = torch.float16 if device().type == "cuda" else torch.bfloat16


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


def optimiser(model):
    return torch.optim.RMSprop(model.parameters(), lr=p.lr, alpha=0.95, momentum=0.9, eps=1e-3)


def schedule(optimiser):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)


def data():
    return shuffled(images, labels, size=p.batch)


def loss(model, batch):
    images, labels = batch
    with torch.autocast(device().type, half, enabled=p.amp):
        logits = model(images)
    return F.cross_entropy(logits.float(), labels, label_smoothing=p.smoothing)


def evaluate(model):
    with torch.autocast(device().type, half, enabled=p.amp):
        logits = model(val_images).float()
    return {
        "val_loss": F.cross_entropy(logits, val_labels, label_smoothing=p.smoothing),
        "val_accuracy": (logits.argmax(1) == val_labels).double().mean(),
        **latency(lambda: model(val_images[:1])),
    }


train(
    model=model,
    optimiser=optimiser,
    schedule=schedule,
    data=data,
    loss=loss,
    evaluate=evaluate,
    clip=p.clip,
    scaler=torch.amp.GradScaler(device().type) if p.amp else None,
    epochs=p.epochs,
    seed=p.seed,
)
