"""Counts the instructions that a command and all that it starts run in user mode, by a hardware
counter of the kernel: perf_event_open(2), as `perf stat -e instructions:u` does. Many virtual
machines have none, and kernel.perf_event_paranoid may forbid it.

A supervisor loads this file by its path: it must import nothing of celedger.
"""

from __future__ import annotations

import ctypes
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBERS = {"x86_64": 298, "aarch64": 241}  # of the system call
_HARDWARE, _INSTRUCTIONS = 0, 1  # PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS
_TIMES = 1 | 2  # PERF_FORMAT_TOTAL_TIME_ENABLED, …_RUNNING: the kernel may have shared the counter
_FLAGS = 1 << 1 | 1 << 5 | 1 << 6  # inherit, exclude_kernel, exclude_hv
# type, size, config, sample_period, sample_type, read_format, flags, wakeup, breakpoint, address:
# `struct perf_event_attr` as of its first version, 64 bytes.
_ATTRIBUTES = struct.pack(
    "=IIQQQQQIIQ", _HARDWARE, 64, _INSTRUCTIONS, 0, 0, _TIMES, _FLAGS, 0, 0, 0
)
_CLOSE_ON_EXEC = 8  # PERF_FLAG_FD_CLOEXEC


def _perf_event_open(pid: int) -> int:
    """Return a descriptor that counts for a process from now on. Raises OSError."""
    number = _NUMBERS.get(os.uname().machine)
    if number is None:
        raise OSError(f"not known on {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.syscall(number, _ATTRIBUTES, pid, -1, -1, _CLOSE_ON_EXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


class Counter:
    """The instructions of a process and of all that it starts from now on."""

    def __init__(self, pid: int, start: Callable[[int], int] = _perf_event_open) -> None:
        self.problem = ""
        self._fd = -1
        try:
            self._fd = start(pid)
        except OSError as error:
            self.problem = error.strerror or str(error)

    def read(self) -> float | None:
        """Return their number; None where nothing counts them. Scaled, where the kernel shared the
        counter: by the part of the time for which it counted."""
        if self._fd < 0:
            return None
        count, enabled, running = struct.unpack("=QQQ", os.read(self._fd, 24))
        return count * enabled / running if running else None
