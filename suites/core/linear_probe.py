"""A linear classifier on the features of a frozen random network (Rahimi & Recht 2008, "Random
features"; Alain & Bengio 2016, arXiv:1610.01644) on 8 x 8 digits.

The instrument for forward passes. Frozen weights come from a generator of their own, the head
starts at zero and every step sees all the data, so nothing depends on the seed: a loss that moves
by a hundred-thousandth moved for a reason. Covers convolution (plain and depthwise), batch, group
and layer norm, GELU, SiLU, average and max pooling at the border, attention, and softmax.
Trivial baseline: the classes' shares, a loss of ln 10 = 2.30, 10 % right.
"""

import torch
import torch.nn.functional as F
from shared.digits import Digits
from shared.loop import run
from shared.transformer import attention
from torch import nn

from celedger.child.torch import device, parameters

p = parameters(
    epochs=8,
    steps=25,  # an epoch, each over all images
    lr=0.2,  # constant: the problem is convex
    decay=1e-4,  # of the head's weights
    width=32,  # channels
    heads=4,
    seed=0,  # of nothing here but what a change of the code under test makes of it
)

digits = Digits()


class Backbone(nn.Module):
    """(n, 1, 8, 8) -> (n, 3 * width): summaries of three stages."""

    def __init__(self):
        super().__init__()
        c = p.width
        self.stem = nn.Conv2d(1, c, 3, padding=1)
        self.norm = nn.BatchNorm2d(c)
        self.pool = nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False)
        self.depthwise = nn.Conv2d(c, c, 3, padding=1, groups=c)
        self.group_norm = nn.GroupNorm(4, c)
        self.layer_norm = nn.LayerNorm(c)
        self.qkv = nn.Linear(c, 3 * c)
        self.last_norm = nn.LayerNorm(c)
        self.score = nn.Linear(c, 1)
        self.standard = nn.BatchNorm1d(3 * c, affine=False)

    def forward(self, x):
        x = self.pool(F.gelu(self.norm(self.stem(x))))  # n, c, 4, 4
        y = F.silu(self.group_norm(self.depthwise(x)))
        first = F.max_pool2d(y, 3, stride=2, padding=1).mean((2, 3))
        tokens = y.flatten(2).transpose(1, 2)  # n, 16, c
        mixed = attention(self.qkv(self.layer_norm(tokens)), p.heads)
        mixed = self.last_norm(tokens + mixed)
        share = F.softmax(self.score(mixed), dim=1)  # of each token in the summary
        return self.standard(torch.cat([first, mixed.mean(1), (share * mixed).sum(1)], dim=1))


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone().to(device()).requires_grad_(False)
        random = torch.Generator().manual_seed(0)
        for weight in self.backbone.parameters():
            scale = weight[0].numel() ** -0.5 if weight.dim() > 1 else 0.5
            weight.copy_(torch.randn(weight.shape, generator=random) * 1.5 * scale)
        for _ in range(10):  # gathers batch norm's statistics: it was made in training mode
            self.backbone(digits.images)
        self.backbone.eval()
        self.features = self.backbone(digits.images)
        self.head = nn.Linear(self.features.shape[1], 10)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(self.backbone(x))


def optimiser(model):
    return torch.optim.SGD(
        model.head.parameters(), lr=p.lr, momentum=0.9, nesterov=True, weight_decay=p.decay
    )


def data():
    return [digits.labels] * p.steps


def loss(model, batch):
    return F.cross_entropy(model.head(model.features), batch)


with torch.no_grad():
    probe = Probe()

run(p, lambda: probe, optimiser, None, data, loss, digits.evaluate)
