"""A wide perceptron with its own activation, many small operators. HAND names a switch by hand."""

import sys

import torch
from torch import nn

HAND = sys.argv[1] if len(sys.argv) > 1 else ""
torch.manual_seed(0)
torch.set_num_threads(1)


class Wave(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.7 * x) + 0.1 * torch.sin(x) * torch.exp(-x.square())


layers = [nn.Linear(64, 256)]
for _ in range(6):
    layers += [Wave(), nn.Linear(256, 256)]
net = nn.Sequential(*layers, Wave(), nn.Linear(256, 1))
optimiser = torch.optim.Adam(net.parameters(), 1e-3, fused=HAND == "fused" or None)
model = torch.compile(net) if HAND == "compile" else net
x = torch.randn(4096, 64)
y = x[:, :8].sin().sum(1, keepdim=True)
for _ in range(300):
    at = torch.randint(0, len(x), (128,))
    with torch.autocast("cpu", torch.bfloat16, enabled=HAND == "amp"):
        loss = nn.functional.mse_loss(model(x[at]).float(), y[at])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
