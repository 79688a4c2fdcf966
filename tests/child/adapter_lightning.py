"""One small training with Lightning, twice: reported by `celedger.child.log`, then by the logger.
argv: the two journals."""

from __future__ import annotations

import os
import sys

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from celedger.child import log
from celedger.child.lightning import CeledgerLogger

X = torch.linspace(-1, 1, 64).view(-1, 1)


class Line(pl.LightningModule):
    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.by_hand = by_hand

    def training_step(self, batch):
        loss = (self.layer(batch[0]) - batch[0].sin()).square().mean()
        self.log("loss", loss)  # every step: the last of an epoch counts
        self.log("mean_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch):
        self.log("val_loss", (self.layer(batch[0]) - batch[0].sin()).square().mean())

    def on_train_epoch_end(self) -> None:
        if self.by_hand:
            names = ("loss", "mean_loss", "val_loss")
            log(epoch=self.current_epoch, **{n: self.trainer.callback_metrics[n] for n in names})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


for journal, logger in ((sys.argv[1], False), (sys.argv[2], CeledgerLogger())):
    os.environ["CELEDGER_FD"] = str(os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY))
    torch.manual_seed(1)
    trainer = pl.Trainer(
        max_epochs=3, logger=logger, accelerator="cpu", log_every_n_steps=1,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(X), batch_size=16)
    trainer.fit(Line(not logger), loader, loader)
