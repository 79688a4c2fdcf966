"""A block of a transformer (Vaswani et al. 2017, arXiv:1706.03762), normed before each part."""

import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads, hidden, dropout=0.0, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        y = attention(self.qkv(self.norm1(x)), self.heads, self.causal)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.mlp(self.norm2(x)))


def attention(qkv, heads, causal=False):
    """Return what each token (n, t, c) attends to, given its query, key and value (n, t, 3 c)."""
    n, t, c = qkv.shape
    q, k, v = qkv.view(n, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return y.transpose(1, 2).reshape(n, t, c // 3)
