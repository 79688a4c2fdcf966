"""Digits of noise with PyTorch Lightning: self.log, a schedule, a callback."""

import argparse
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from celedger.child import log

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Patterns(L.LightningDataModule):
    def __init__(self, batch_size=32):
        super().__init__()
        self.batch_size = batch_size

    def make(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        templates = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(5))
        y = torch.randint(6, (count,), generator=g)
        x = templates[y] + 0.8 * torch.randn(count, 1, 8, 8, generator=g)
        return TensorDataset(x, y)

    def setup(self, stage=None):
        self.train, self.val = self.make(192, 1), self.make(96, 2)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=48)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        h = F.silu(self.norm(self.conv1(x)))
        return x + self.conv2(h)


class Classifier(L.LightningModule):
    def __init__(self, lr=2e-3, width=16, smoothing=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 6)

    def forward(self, x):
        h = self.blocks(self.stem(x))
        return self.head(h.mean((2, 3)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y, label_smoothing=self.hparams.smoothing)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(-1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.hparams.lr, total_steps=self.trainer.estimated_stepping_batches
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Report(Callback):
    def on_validation_epoch_end(self, trainer, module):
        values = {k: float(v) for k, v in trainer.callback_metrics.items()}
        print(f"epoch {trainer.current_epoch} {values}")
        log(epoch=trainer.current_epoch, val_loss=values["val_loss"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    L.seed_everything(args.seed, verbose=False)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        gradient_clip_val=1.0,
        callbacks=[Report()],
    )
    trainer.fit(Classifier(), Patterns())


if __name__ == "__main__":
    main()
