"""When memory runs out: the kernel's count of processes it killed for that, and the limits beyond
which celedger ends a training itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil

from celedger.system.tree import Usage

# The last resort against a machine that swaps to death: the tree holds more than half of the
# memory and nearly nothing is left.
MACHINE_MEMORY_LEFT = 0.03
MACHINE_MEMORY_HELD = 0.50


def excess(usage: Callable[[], Usage], limit: int | None) -> str | None:
    """Return why a tree must end for its memory (`limit` in bytes), or None."""
    machine = psutil.virtual_memory()
    scarce = machine.available < MACHINE_MEMORY_LEFT * machine.total
    if limit is None and not scarce:
        return None
    rss = usage().rss
    if limit is not None and rss > limit:
        return f"used {rss / 1e6:,.0f} MB of memory, its limit is {limit / 1e6:,.0f} MB"
    if scarce and rss > MACHINE_MEMORY_HELD * machine.total:
        return f"used {rss / 1e6:,.0f} MB of memory and left the machine nearly none"
    return None


def kills() -> int:
    """Return how many processes the kernel has killed for lack of memory: in our control group
    where it has a count (v2, then v1), else on the machine. 0 where nothing is counted."""
    root, counters = Path("/sys/fs/cgroup"), [Path("/proc/vmstat")]
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            inside = group.lstrip("/")
            if controllers == "":
                counters.insert(0, root / inside / "memory.events")
            elif "memory" in controllers.split(","):
                counters.insert(0, root / "memory" / inside / "memory.oom_control")
    except OSError:
        pass
    for path in counters:
        try:
            counts = dict(line.split(" ", 1) for line in path.read_text().splitlines())
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0
