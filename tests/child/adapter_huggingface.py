"""One small training with the Trainer of transformers, twice: reported by `celedger.child.log`,
then by the callback. argv: the two journals, a folder."""

from __future__ import annotations

import os
import sys

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from celedger.child import log
from celedger.child.huggingface import CeledgerCallback

DATA = [{"x": x, "labels": x.sin()} for x in torch.linspace(-1, 1, 64).view(-1, 1)]


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x, labels):
        said = self.layer(x)
        return {"loss": (said - labels).square().mean(), "logits": said}


class ByHand(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        names = ("loss", "grad_norm", "learning_rate", "eval_loss")
        found = {name: logs[name] for name in names if name in logs}
        if found:
            log(epoch=round(state.epoch) - 1, **found)


for journal, callback in ((sys.argv[1], ByHand()), (sys.argv[2], CeledgerCallback())):
    os.environ["CELEDGER_FD"] = str(os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY))
    torch.manual_seed(1)
    arguments = TrainingArguments(
        output_dir=sys.argv[3], num_train_epochs=3, per_device_train_batch_size=16, seed=1,
        logging_strategy="epoch", eval_strategy="epoch", save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    Trainer(Line(), arguments, train_dataset=DATA, eval_dataset=DATA, callbacks=[callback]).train()
