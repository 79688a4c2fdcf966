"""The vision transformer of `vit_digits.py` and `vit_twins.py` (Dosovitskiy et al. 2021,
arXiv:2010.11929), for 8 x 8 images."""

import torch
from shared.transformer import Block
from torch import nn
from torch.utils.checkpoint import checkpoint


class VisionTransformer(nn.Module):
    """(n, 1, 8, 8) -> (n, 10), reading 16 patches of 2 x 2 pixels and the mean of what becomes of
    them (Beyer et al. 2022, arXiv:2205.01580: it learns sooner than with a class token).

    With `recompute`, a block's activations are not kept for the backward pass but made again
    (Chen et al. 2016, arXiv:1604.06174): less memory, the same gradient.
    """

    def __init__(self, width, heads, layers, dropout, recompute=False):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.places = nn.Parameter(0.5 * torch.randn(1, 16, width))
        self.blocks = nn.ModuleList(Block(width, heads, 2 * width, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)
        self.recompute = recompute

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            if self.recompute and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(self.norm(x).mean(1))
