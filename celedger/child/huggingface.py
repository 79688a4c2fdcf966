"""For transformers: `Trainer(..., callbacks=[CeledgerCallback()])`. Reports the trainer's logs, an
epoch at a time; does nothing outside celedger.

`python -m celedger.child.huggingface SCRIPT …` runs a script with this callback in every trainer;
`--epochs N` before the script ends each of them after N epochs at the latest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from transformers import Trainer, TrainerCallback

from celedger.child.adapter import Gathered, run_script

# What the Trainer adds to each evaluation of its own accord; no measure of the code under test.
_CLOCKS = ("_runtime", "_per_second")


class CeledgerCallback(TrainerCallback):
    """Report an epoch, with the evaluation that follows it, when the next one begins and at the end
    of the training. An evaluation after the end belongs to the last epoch. Epochs count from 0."""

    def __init__(self) -> None:
        self._gathered = Gathered()
        self._ended = False

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Mapping[str, object] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and logs:
            # The trainer's epoch is the share of the data seen: 0.25, 1.0, 1.25. Half a millionth
            # is less than any step, and more than the rounding error of its sums.
            epoch = max(0, math.ceil((state.epoch or 0.0) - 5e-7) - 1)
            values = {n: v for n, v in logs.items() if n != "epoch" and not n.endswith(_CLOCKS)}
            self._gathered.put(epoch, values)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._gathered.flush()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._ended = False

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._gathered.flush()
        self._ended = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._ended:  # `trainer.evaluate()` after `trainer.train()`: nothing follows
            self._gathered.flush()


def _adapt(trainer: Any, epochs: float) -> None:
    trainer.args.num_train_epochs = min(trainer.args.num_train_epochs, epochs)
    trainer.add_callback(CeledgerCallback)


if __name__ == "__main__":
    run_script(Trainer, _adapt)
