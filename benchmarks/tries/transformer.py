"""A transformer of blocks in a list, on random sequences. HAND names a switch by hand."""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

HAND = sys.argv[1] if len(sys.argv) > 1 else ""
torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self, words=200, width=96, depth=4):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(depth)])
        self.head = nn.Linear(width, words)

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            again = HAND == "checkpointing"
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return self.head(x)


net = Model()
optimiser = torch.optim.AdamW(net.parameters(), 1e-3, fused=HAND == "fused" or None)
model = torch.compile(net) if HAND == "compile" else net
data = torch.randint(0, 200, (4000, 65))
for first in range(0, len(data), 16):
    rows = data[first : first + 16]
    with torch.autocast("cpu", torch.bfloat16, enabled=HAND == "amp"):
        scores = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
