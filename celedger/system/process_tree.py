"""Resource use of a tree of processes, how to find processes that escaped one, and how many the
kernel killed for lack of memory. Must not know why the processes run.

Processes end between being listed and being read; every reader here takes that for granted.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from celedger.system.supervisor import descendants, memory


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of the tree below the supervisor `root` at one moment. `rss` (bytes) counts a page
    that two processes share twice; so does `own`, the part of it that is no page of a file, 0
    where the kernel does not tell it. `cpu` (seconds, user + system) holds ended children too."""

    root: int = 0
    pids: tuple[int, ...] = ()
    rss: int = 0
    cpu: float = 0.0
    own: int = 0


def usage(supervisor: int) -> Usage:
    """Return the usage of everything below `supervisor`, which itself does not count. Its
    waited-for children do: they are orphans of the tree that it adopted."""
    pids: list[int] = []
    rss, cpu, private = 0, 0.0, 0
    with suppress(psutil.Error):
        times = psutil.Process(supervisor).cpu_times()
        cpu = times.children_user + times.children_system
    for pid in _descendants(supervisor):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            with process.oneshot():
                times, resident = process.cpu_times(), process.memory_info().rss
            kinds = memory(pid)
            pids.append(pid)
            rss += resident
            private += kinds.get("anonymous", 0) + kinds.get("shmem", 0)
            cpu += times.user + times.system + times.children_user + times.children_system
    return Usage(supervisor, tuple(pids), rss, cpu, private)


def _descendants(supervisor: int) -> list[int]:
    below: list[int] = []
    if sys.platform == "linux":  # psutil would look at every process of the machine
        below = descendants(supervisor)
    else:
        with suppress(psutil.Error):
            below = [child.pid for child in psutil.Process(supervisor).children(recursive=True)]
    return below


def hunt(*, session: int | None = None, variable: tuple[str, str] | None = None) -> int:
    """Kills every process of this user that is of the session or has the variable in its
    environment, round after round until a round finds none (at most 2 s). Returns how many
    were killed. This process and its ancestors are never killed. A session number must
    belong to a process that was not waited for yet, or it may be somebody else's by now."""
    spared = {os.getpid(), 1, *(p.pid for p in psutil.Process().parents())}
    killed: set[int] = set()
    deadline = time.monotonic() + 2.0
    while True:
        matching = [
            process
            for process in psutil.process_iter()
            if process.pid not in spared and _matches(process, session, variable)
        ]
        for process in matching:
            try:
                process.send_signal(signal.SIGKILL)
                killed.add(process.pid)
            except psutil.Error:
                continue
        if not matching or time.monotonic() > deadline:
            return len(killed)
        time.sleep(0.005)


def _matches(
    process: psutil.Process, session: int | None, variable: tuple[str, str] | None
) -> bool:
    try:
        if process.uids().effective != os.geteuid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        if session is not None and os.getsid(process.pid) == session:
            return True
        return variable is not None and process.environ().get(variable[0]) == variable[1]
    except (psutil.Error, OSError):
        return False


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory: in our control group
    where it counts them (v2), else on the machine. 0 where nothing is counted."""
    counters = [Path("/proc/vmstat")]
    with suppress(OSError, IndexError):
        group = Path("/proc/self/cgroup").read_text().splitlines()[-1].removeprefix("0::/")
        counters.insert(0, Path("/sys/fs/cgroup", group, "memory.events"))
    for path in counters:
        with suppress(OSError, ValueError, KeyError):
            counts = dict(line.split(" ", 1) for line in path.read_text().splitlines())
            return int(counts["oom_kill"])
    return 0
