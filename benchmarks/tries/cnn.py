"""A convolutional network on images whose augmentation is slow. HAND names a switch by hand."""

import sys

import torch
from torch import nn

HAND = sys.argv[1] if len(sys.argv) > 1 else ""
torch.manual_seed(0)
torch.set_num_threads(1)


class Images(torch.utils.data.Dataset):
    def __init__(self, count=1600):
        made = torch.Generator().manual_seed(1)
        self.rows = torch.randn(count, 8, 20, 20, generator=made)
        self.labels = self.rows.mean((1, 2, 3)).gt(0).long()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        image = self.rows[at]
        for shift in range(24):
            image = torch.roll(image, shift % 3, -1) * 0.99 + 0.01 * image.flip(-1)
        return image, self.labels[at]


inplace = HAND == "inplace"
net = nn.Sequential(
    nn.Conv2d(8, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace),
    nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(inplace), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(64, 2),
)  # fmt: skip
if HAND == "channels_last":
    net = net.to(memory_format=torch.channels_last)
workers = int(HAND.partition("=")[2]) if HAND.startswith("workers") else 0
loader = torch.utils.data.DataLoader(Images(), batch_size=16, shuffle=True, num_workers=workers)
optimiser = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, fused=HAND == "fused" or None)
model = torch.compile(net) if HAND == "compile" else net
for _ in range(3):
    for images, labels in loader:
        if HAND == "channels_last":
            images = images.to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=HAND == "amp"):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
