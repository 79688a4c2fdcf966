"""Disk use of a training, and its waits for disks, by Linux's own counters.
Standard library only; elsewhere nothing is known."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from pathlib import Path
from typing import Any

_COUNTED = ("rchar", "wchar", "read_bytes", "write_bytes")  # of /proc/PID/io, see proc(5)
_DELAY = 42  # field of /proc/PID/stat: ticks of waiting for block devices, where they are counted


class DiskUse:
    """Counts from its construction on, of this process and of a data loader's workers."""

    def __init__(self) -> None:
        self._start = _counters(os.getpid())
        self._waited = 0  # ticks, by workers that ended

    def workers_end(self, iterator: Any, *_: Any) -> None:
        """Count the waits of a data loader's workers. Linux adds the bytes of a process that ended
        to those of its parent."""
        for worker in getattr(iterator, "_workers", ()):
            self._waited += _counters(worker.pid)["wait"]

    def read(self) -> dict[str, float] | None:
        """Return bytes by name and `wait`, in seconds; None where the system does not count."""
        counters = _counters(os.getpid())
        if not counters:
            return None
        counters.subtract(self._start)
        for worker in multiprocessing.active_children():
            counters.update(_counters(worker.pid or 0))
        counters["wait"] += self._waited
        return {**counters, "wait": counters["wait"] / os.sysconf("SC_CLK_TCK")}


def _counters(pid: int) -> Counter[str]:
    try:
        rows = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        # The name before the fields may have spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        counted = {name: int(rows[name]) for name in _COUNTED}
        return Counter({**counted, "wait": int(fields[_DELAY - 3])})
    except (OSError, ValueError, KeyError, IndexError):
        return Counter()
