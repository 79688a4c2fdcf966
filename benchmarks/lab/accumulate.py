"""A ViT in bfloat16 autocast, gradients accumulated over micro-batches, an average of weights."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def textures(count, seed, size=16):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (count,), generator=g)
    angle = y * (math.pi / 4) + 0.1 * torch.randn(count, generator=g)
    phase = torch.rand(count, generator=g) * 2 * math.pi
    grid = torch.arange(size).float()
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    wave = xx * angle.cos()[:, None, None] + yy * angle.sin()[:, None, None]
    x = torch.sin(0.9 * wave + phase[:, None, None])
    x = x + 0.4 * torch.randn(count, size, size, generator=g)
    return TensorDataset(x.unsqueeze(1), y)


class PatchEmbed(nn.Module):
    def __init__(self, patch=4, dim=32, size=16):
        super().__init__()
        self.proj = nn.Conv2d(1, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim) * 0.02)

    def forward(self, x):
        x = self.proj(x).flatten(2).transpose(1, 2)
        cls = self.cls.expand(x.shape[0], -1, -1)
        return torch.cat([cls, x], dim=1) + self.pos


class SelfAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        scale = q.shape[-1] ** -0.5
        attn = (q @ k.transpose(-2, -1)) * scale
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, d))


class EncoderBlock(nn.Module):
    def __init__(self, dim, mlp_ratio=2, drop=0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = SelfAttention(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, mlp_ratio * dim), nn.GELU(), nn.Linear(mlp_ratio * dim, dim)
        )
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        x = x + self.drop(self.attn(self.norm1(x)))
        x = x + self.drop(self.mlp(self.norm2(x)))
        return x


class ViT(nn.Module):
    def __init__(self, dim=32, depth=2, classes=4):
        super().__init__()
        self.embed = PatchEmbed(dim=dim)
        self.blocks = nn.ModuleList([EncoderBlock(dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Trainer:
    def __init__(self, args):
        self.args = args
        torch.manual_seed(args.seed)
        self.model = ViT()
        self.average = torch.optim.swa_utils.AveragedModel(
            self.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
        )
        decay, rest = [], []
        for param in self.model.parameters():
            (decay if param.ndim > 1 else rest).append(param)
        groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98))
        self.train_loader = DataLoader(textures(256, 1), batch_size=16, shuffle=True)
        self.val_loader = DataLoader(textures(96, 2), batch_size=48)

    def train_epoch(self):
        self.model.train()
        self.optimizer.zero_grad()
        for i, (x, y) in enumerate(self.train_loader):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.model(x)
            loss = F.cross_entropy(logits.float(), y, label_smoothing=0.05)
            (loss / self.args.accumulate).backward()
            if (i + 1) % self.args.accumulate == 0:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.average.update_parameters(self.model)

    @torch.inference_mode()
    def validate(self):
        self.average.eval()
        loss, right, count = 0.0, 0, 0
        for x, y in self.val_loader:
            logits = self.average(x)
            loss += F.cross_entropy(logits, y, reduction="sum").item()
            right += (logits.argmax(-1) == y).sum().item()
            count += len(y)
        return loss / count, right / count

    def fit(self):
        for epoch in range(self.args.epochs):
            self.train_epoch()
            val_loss, acc = self.validate()
            print(f"epoch {epoch} val_loss {val_loss:.6f} acc {acc:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    Trainer(parser.parse_args()).fit()
