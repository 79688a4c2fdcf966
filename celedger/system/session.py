"""The session of a trial: what it shares with others beyond the code.

That is the process that starts or forks them, on one boot of the host. Two commits in one session
differ by the code alone.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

_BOOT = Path("/proc/sys/kernel/random/boot_id")  # Linux; elsewhere the time of the boot
_ranks: Counter[int] = Counter()
_lock = threading.Lock()  # workers are threads


@cache
def _of_process(pid: int) -> str:
    boot = f"{psutil.boot_time():.0f}"
    with suppress(OSError):
        boot = _BOOT.read_text().strip()
    return f"{boot} {pid} {psutil.Process(pid).create_time():.2f}"


def take_part() -> tuple[str, int]:
    """Return the name of this process's session, and how many trials it had before this one."""
    pid = os.getpid()
    with _lock:
        rank = _ranks[pid]
        _ranks[pid] += 1
        return _of_process(pid), rank
