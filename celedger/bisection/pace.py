"""How fast the epochs of a task come: what stopping a trial early would save. Heard from the
runner's events while trials run; a search that heard none yet does not stop trials by numbers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from celedger.trial import events


class Pace:
    """A listener that keeps times and passes everything on."""

    def __init__(
        self, listen: events.Listener, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._listen, self._clock = listen, clock
        self._started = 0.0
        self._epochs: list[tuple[int, float]] = []
        self._shares: list[float] = []

    def __call__(self, event: events.Event) -> None:
        now = self._clock()
        match event:
            case events.Started():
                self._started, self._epochs = now, []
            case events.Epoch(number):
                self._epochs.append((number, now))
            case events.Finished(_, record, _):
                if record.ok and not record.early_stopped and self._epochs:
                    (first, begun), (last, ended) = self._epochs[0], self._epochs[-1]
                    each = (ended - begun) / (last - first) if last > first else 0.0
                    self._shares.append(each / max(now - self._started, 1e-9))
        self._listen(event)

    def share(self, epochs: int, of: int) -> float:
        """The part of a trial's time that `epochs` of its epochs take, its start included: the
        median over the whole trials heard. 1 where none was."""
        each = statistics.median(self._shares) if self._shares else 0.0
        return min(max(1.0 - each * (of - epochs), 0.0), 1.0)
