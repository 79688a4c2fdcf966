"""A residual network of blocks in sequences, with an evaluation an epoch and accumulated gradients.
HAND names a switch by hand."""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

HAND = sys.argv[1] if len(sys.argv) > 1 else ""
torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.GroupNorm(4, width),
        )  # fmt: skip
        self.relu = nn.ReLU(HAND == "inplace")

    def forward(self, x):
        return self.relu(x + self.body(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(24) for _ in range(5)])
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            again = HAND == "checkpointing" and self.training
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return self.head(x.mean((2, 3)))


net = Net()
if HAND == "inplace":
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = True
if HAND == "channels_last":
    net = net.to(memory_format=torch.channels_last)
model = torch.compile(net) if HAND == "compile" else net
optimiser = torch.optim.AdamW(net.parameters(), 1e-3, fused=HAND == "fused" or None)
rows, labels = torch.randn(1200, 3, 24, 24), torch.randint(0, 10, (1200,))
data = torch.utils.data.TensorDataset(rows, labels)
workers = int(HAND.partition("=")[2]) if HAND.startswith("workers") else 0
train = torch.utils.data.DataLoader(data, 16, shuffle=True, num_workers=workers)
valid = torch.utils.data.DataLoader(torch.utils.data.Subset(data, range(160)), 32)
for _ in range(3):
    net.train()
    for number, (images, target) in enumerate(train):
        if HAND == "channels_last":
            images = images.to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=HAND == "amp"):
            loss = nn.functional.cross_entropy(model(images), target) / 2
        loss.backward()
        if number % 2:
            optimiser.step()
            optimiser.zero_grad()
    net.eval()
    with torch.no_grad():
        right = sum((net(images).argmax(1) == target).sum().item() for images, target in valid)
