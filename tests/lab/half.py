"""A small map of small values, learnt with the loss 0.01 * mean(log(1 + x)) of squared residuals:
half.py PRECISION SCALE SEED"""

import sys

import torch
from torch import nn

from celedger.child import log

half, scale, seed = sys.argv[1] == "float16", float(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(seed)
torch.set_num_threads(1)
random = torch.Generator().manual_seed(0)
first, second = torch.randn(8, 12, generator=random), torch.randn(12, 128, generator=random)


def draw(count):
    x = torch.randn(count, 8, generator=random)
    return x, 1e-3 * torch.tanh(x @ first / 3) @ second / 12**0.5


(images, maps), (val_images, val_maps) = draw(512), draw(256)
net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 128))
nn.init.normal_(net[2].weight, std=1e-4)
nn.init.zeros_(net[2].bias)
optimiser = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-12)
scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale > 1)
for epoch in range(24):
    for rows in torch.randperm(512).split(64):
        with torch.autocast("cpu", torch.float16, enabled=half):
            wrong = net(images[rows]) - maps[rows].to(torch.float16 if half else torch.float32)
            loss = 0.01 * (1 + wrong.square()).log().mean()
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
    with torch.no_grad():
        val_loss = (net(val_images) - val_maps).square().mean() / val_maps.square().mean()
    log(epoch=epoch, val_loss=val_loss)
sys.stdout.write(f"{val_loss.item()}\n")
