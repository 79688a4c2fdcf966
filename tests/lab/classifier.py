"""A small training of torch, whose steps repeat."""

from __future__ import annotations

from conftest import UNCOMPILED

FIT = (
    UNCOMPILED
    + """\
import torch
import torch.nn.functional as F
from celedger.child import log
torch.manual_seed(int(sys.argv[1]))
torch.set_num_threads(1)
rows = torch.randn(128, 4)
labels = (rows[:, 0] > 0).long()
net = torch.nn.Linear(4, 2)
optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
for epoch in range(3):
    for at in range(0, 128, 32):
        optimiser.zero_grad()
        F.cross_entropy(net(rows[at:at + 32]), labels[at:at + 32]).backward()
        optimiser.step()
    with torch.no_grad():
        log(epoch=epoch, val_loss=F.cross_entropy(net(rows), labels).item())
"""
)
