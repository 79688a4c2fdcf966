"""Measure for preflight what stays of inference: the bytes of tensors that a batch makes and that
outlive it, in eval mode without gradients, and the line that makes most of them.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from celedger.child.probes.latency import RANDOM, evaluated_copy, variants
from celedger.child.probes.memory import storage_of
from celedger.child.probes.stack import Lines
from celedger.child.probes.tensors import tensors
from celedger.child.torch import call_times

if TYPE_CHECKING:
    from celedger.child.probes.first_steps import FirstSteps

WARM = 2  # batches in which caches fill
PARTS = 3  # growth that ends, as that of a cache, is missing in the last of them
BATCHES, PART_SECONDS = 8, 1.0  # of each part; one batch if it takes longer


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes and the maker's line of each storage that was made inside and lives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines = Lines()
        self._live: dict[int, tuple[Any, int, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for _, tensor in tensors(result):
            storage = storage_of(tensor)
            if storage is not None and storage.nbytes() and storage._cdata not in self._live:
                key, line = storage._cdata, self.lines.of(sys._getframe())
                reference = weakref.ref(storage, functools.partial(self._freed, key))
                self._live[key] = reference, storage.nbytes(), line
        return result

    def _freed(self, key: int, _: object) -> None:
        self._live.pop(key, None)

    def by_line(self) -> Counter[int]:
        gc.collect()  # what it can free is not kept
        sizes: Counter[int] = Counter()
        for _, size, line in list(self._live.values()):
            sizes[line] += size
        return sizes


def inference_memory(probe: FirstSteps) -> tuple[str, Any, str]:
    """Call the largest module with random batches, and compare what lives after equal parts."""
    copied = evaluated_copy(probe)
    if isinstance(copied, str):
        return "n/a", None, copied
    module, *inputs = copied

    def batch() -> None:
        args, kwargs = variants(inputs)[RANDOM]
        module(*args, **kwargs)

    live = LiveStorages()
    with torch.no_grad():
        try:
            usual = max(call_times(batch, WARM))
        except Exception as error:
            return "n/a", None, f"the module cannot be called alone: {type(error).__name__}"
        batches = min(BATCHES, 1 + int(PART_SECONDS / usual))
        marks = []
        with live:
            for _ in range(PARTS):
                call_times(batch, batches)
                marks.append(live.by_line())
    totals = [0, *(sum(mark.values()) for mark in marks)]
    kept = min(totals[at + 1] - totals[at] for at in range(PARTS)) / batches
    ran = f"{PARTS * batches} batches without gradients"
    if kept <= 0:
        return "pass", kept, f"no tensor is kept, in {ran}"
    ((line, _),) = (marks[-1] - marks[0]).most_common(1)
    file, function, number = live.lines.table[line]
    where = f"{Path(file).name}:{number} in {function}"
    return "warn", kept, f"{kept:,.0f} B more after each of {ran}, most of it made at {where}"
