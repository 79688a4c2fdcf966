"""The kernel's count of processes it killed because memory ran out."""

from __future__ import annotations

from pathlib import Path


def kills() -> int:
    """How many processes the kernel has killed for lack of memory: in our control group where
    it has a count (v2, then v1), else on the machine. 0 where nothing is counted."""
    for path, key in _counters():
        try:
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
        except (OSError, ValueError):
            continue
    return 0


def _counters() -> list[tuple[Path, str]]:
    root = Path("/sys/fs/cgroup")
    counters = [(Path("/proc/vmstat"), "oom_kill")]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return counters
    for line in lines:
        _, controllers, group = line.split(":", 2)
        inside = group.lstrip("/")
        if controllers == "":
            counters.insert(0, (root / inside / "memory.events", "oom_kill"))
        elif "memory" in controllers.split(","):
            counters.insert(0, (root / "memory" / inside / "memory.oom_control", "oom_kill"))
    return counters
