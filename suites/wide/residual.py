"""A residual block (He et al. 2016, arXiv:1512.03385)."""

import torch.nn.functional as F
from torch import nn


def conv(inputs, outputs, stride=1):
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            conv(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            conv(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))
