"""For Lightning: `Trainer(logger=CeledgerLogger())`, or beside other loggers in a list. Reports the
values of `self.log`, an epoch at a time; does nothing outside celedger.

`python -m celedger.child.lightning SCRIPT …` runs a script with this logger in every trainer;
`--epochs N` before the script ends each of them after N epochs at the latest."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celedger.child.adapter import Gathered, run_script

# The two names of the library are two sets of classes: use the one that the script imports.
if __name__ == "__main__" and (
    b"pytorch_lightning" in Path(sys.argv[3 if sys.argv[1] == "--epochs" else 1]).read_bytes()
):
    import pytorch_lightning as _  # noqa: F401
if TYPE_CHECKING or "pytorch_lightning" not in sys.modules:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers.logger import Logger
    from lightning.pytorch.utilities.rank_zero import rank_zero_only
else:
    from pytorch_lightning import Callback, LightningModule, Trainer
    from pytorch_lightning.loggers.logger import Logger
    from pytorch_lightning.utilities.rank_zero import rank_zero_only


class CeledgerLogger(Logger):
    """Report an epoch when the next one logs its first value, and at the end of `fit`."""

    def __init__(self) -> None:
        super().__init__()
        self._gathered = Gathered()

    @property
    def name(self) -> str:
        return "celedger"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Report nothing: parameters belong to the suite."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        values = dict(metrics)
        epoch = values.pop("epoch", None)
        if epoch is not None:  # else no epoch of a training, such as a score to sort runs by
            self._gathered.put(int(epoch), values)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self._gathered.flush()


class _EachEpoch(Callback):
    """Let a training with fewer steps an epoch than its logging interval log the last one: it would
    log nothing of its steps."""

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        steps = trainer.num_training_batches // trainer.accumulate_grad_batches
        trainer.log_every_n_steps = min(trainer.log_every_n_steps, max(1, steps))


def _adapt(trainer: Trainer, epochs: float) -> None:
    asked = trainer.fit_loop.max_epochs  # None or -1 where the script sets no end
    if epochs < (asked if asked is not None and asked >= 0 else math.inf):
        trainer.fit_loop.max_epochs = int(epochs)
    if not any(isinstance(logger, CeledgerLogger) for logger in trainer.loggers):
        trainer.loggers = [*trainer.loggers, CeledgerLogger()]
        trainer.callbacks.append(_EachEpoch())


if __name__ == "__main__":
    run_script(Trainer, _adapt)
