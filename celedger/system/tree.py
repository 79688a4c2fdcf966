"""What a tree of processes uses, and how to find processes that escaped one. Reads /proc on
Linux, psutil elsewhere. Must not know why the processes run.

Processes end between being listed and being read; every reader here takes that for granted.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass

import psutil

from celedger.system.supervisor import descendants

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the tree below the supervisor `root` uses at one moment. `rss` (bytes) counts a page
    that two processes share twice; `cpu` (seconds, user + system) holds ended children too."""

    root: int = 0
    pids: tuple[int, ...] = ()
    rss: int = 0
    cpu: float = 0.0


def usage(supervisor: int) -> Usage:
    """The usage of everything below `supervisor`, which itself does not count. Its waited-for
    children do: they are orphans of the tree that it adopted."""
    if sys.platform != "linux":
        return _usage_psutil(supervisor)
    pids = descendants(supervisor)
    rss = 0
    ticks = _ticks(supervisor, own=False)
    for pid in pids:
        ticks += _ticks(pid, own=True)
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123
                rss += int(file.read().split()[1]) * _PAGE
        except (OSError, IndexError):
            continue
    return Usage(supervisor, tuple(pids), rss, ticks / _TICK)


@dataclass(frozen=True, slots=True)
class One:
    """One process of a tree: `cpu` seconds of its own so far, `rss` in bytes."""

    pid: int
    name: str
    cpu: float
    rss: int


def processes(supervisor: int) -> list[One]:
    """Every process below `supervisor`, each by itself."""
    found = []
    for pid in descendants(supervisor) if sys.platform == "linux" else _below(supervisor):
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                found.append(
                    One(pid, process.name(), times.user + times.system, process.memory_info().rss)
                )
        except psutil.Error:
            continue
    return found


def _below(supervisor: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(supervisor).children(recursive=True)]
    except psutil.Error:
        return []


def _ticks(pid: int, *, own: bool) -> int:
    """utime, stime, cutime and cstime of proc(5); without `own` only the last two."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15] if own else fields[13:15]))


def _usage_psutil(supervisor: int) -> Usage:
    pids: list[int] = []
    rss, cpu = 0, 0.0
    try:
        tree = psutil.Process(supervisor).children(recursive=True)
    except psutil.Error:
        return Usage()
    for process in tree:
        try:
            times = process.cpu_times()
            rss += process.memory_info().rss
            cpu += times.user + times.system
            pids.append(process.pid)
        except psutil.Error:
            continue
    return Usage(supervisor, tuple(pids), rss, cpu)


def hunt(*, session: int | None = None, variable: tuple[str, str] | None = None) -> int:
    """Kills every process of this user that is of the session or has the variable in its
    environment, round after round until a round finds none (at most 2 s). Returns how many
    were killed. This process and its ancestors are never killed. A session number must
    belong to a process that was not waited for yet, or it may be somebody else's by now."""
    spared = {os.getpid(), 1, *(p.pid for p in psutil.Process().parents())}
    killed: set[int] = set()
    deadline = time.monotonic() + 2.0
    while True:
        found = [
            process
            for process in psutil.process_iter()
            if process.pid not in spared and _matches(process, session, variable)
        ]
        for process in found:
            try:
                process.send_signal(signal.SIGKILL)
                killed.add(process.pid)
            except psutil.Error:
                continue
        if not found or time.monotonic() > deadline:
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
