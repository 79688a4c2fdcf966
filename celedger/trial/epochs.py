"""Values as they come, gathered into epochs. Knows neither where they were found nor the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from celedger.model import EpochReport
from celedger.trial.protocol import MAX_EPOCH


@dataclass
class Epochs:
    """Gathers values into epochs: of a value that comes several times in one, the last counts.

    Where no epoch is ever told, the second coming of a name begins the next one.
    """

    number: int = 0
    told: bool = False
    values: dict[str, float] = field(default_factory=dict)

    def put(self, epoch: float | None, values: Mapping[str, float]) -> list[EpochReport]:
        """The epoch that this ends, if it ends one. A fractional epoch, as some trainers say
        0.25 and 1.0, is the one it ends in: the first is 1."""
        ended: list[EpochReport] = []
        if epoch is not None and math.isfinite(epoch) and 0 <= epoch <= MAX_EPOCH:
            self.told = True
            if math.ceil(epoch) != self.number:
                ended = self.flush()
                self.number = math.ceil(epoch)
        elif not self.told and values.keys() & self.values.keys():
            ended = self.flush()
            self.number += 1
        self.values.update(values)
        return ended

    def flush(self) -> list[EpochReport]:
        values, self.values = self.values, {}
        return [EpochReport(self.number, values)] if values else []
