"""Segments blobs with a small UNet."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Blobs(Dataset):
    """Discs on a noisy ground; the mask is where they are."""

    def __init__(self, count, size=16, seed=0, augment=False):
        g = torch.Generator().manual_seed(seed)
        self.augment = augment
        grid = torch.arange(size, dtype=torch.float32)
        yy, xx = torch.meshgrid(grid, grid, indexing="ij")
        cy, cx = torch.rand(2, count, 1, 1, generator=g) * (size - 6) + 3
        radius = torch.rand(count, 1, 1, generator=g) * 3 + 2
        self.masks = (((yy - cy) ** 2 + (xx - cx) ** 2) < radius**2).float().unsqueeze(1)
        noise = torch.randn(count, 3, size, size, generator=g)
        self.images = self.masks * 1.5 + 0.5 * noise
        self.images[:, 2] += xx / size

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, mask = self.images[index], self.masks[index]
        if self.augment and torch.rand(()) < 0.5:
            image = image.flip(-1)
            mask = mask.flip(-1)
        image = (image - 0.3) / 0.8
        return image, mask


class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.block(x)


class Down(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x):
        return self.conv(self.pool(x))


class Up(nn.Module):
    def __init__(self, in_channels, skip_channels, out_channels):
        super().__init__()
        self.reduce = nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)
        self.conv = DoubleConv(out_channels + skip_channels, out_channels)

    def forward(self, x, skip):
        x = self.reduce(x)
        x = torch.cat([skip, x], dim=1)
        return self.conv(x)


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = DoubleConv(3, width)
        self.down1 = Down(width, 2 * width)
        self.down2 = Down(2 * width, 4 * width)
        self.up1 = Up(4 * width, 2 * width, 2 * width)
        self.up2 = Up(2 * width, width, width)
        self.drop = nn.Dropout2d(0.1)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        s1 = self.stem(x)
        s2 = self.down1(s1)
        x = self.down2(s2)
        x = self.up1(x, s2)
        x = self.up2(x, s1)
        return self.head(self.drop(x))


def dice_loss(logits, target, smooth=1.0):
    probs = torch.sigmoid(logits)
    dims = (1, 2, 3)
    overlap = (probs * target).sum(dims)
    total = probs.sum(dims) + target.sum(dims)
    return (1 - (2 * overlap + smooth) / (total + smooth)).mean()


def criterion(logits, target):
    bce = F.binary_cross_entropy_with_logits(logits, target)
    return 0.5 * bce + 0.5 * dice_loss(logits, target)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total, overlap, union = 0.0, 0.0, 0.0
    for image, mask in loader:
        logits = model(image)
        total += criterion(logits, mask).item() * len(image)
        pred = logits > 0
        truth = mask > 0.5
        overlap += (pred & truth).sum().item()
        union += (pred | truth).sum().item()
    return total / len(loader.dataset), overlap / max(union, 1.0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    train = DataLoader(Blobs(96, seed=1, augment=True), batch_size=16, shuffle=True)
    val = DataLoader(Blobs(48, seed=2), batch_size=24)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    for epoch in range(args.epochs):
        model.train()
        for image, mask in train:
            loss = criterion(model(image), mask)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()
        val_loss, iou = evaluate(model, val)
        print(f"epoch {epoch} val_loss {val_loss:.6f} iou {iou:.6f}")


if __name__ == "__main__":
    main()
