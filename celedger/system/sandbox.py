"""Landlock (landlock(7)): from here on, this process and all that it starts write only where they
may. Plain system calls; the supervisor loads it by its path, so it imports nothing of celedger.

It restrains the content of files and folders. It does not restrain what a process reads, the
network, other processes, or the modes and times of files.
"""

# Pathlib would cost the supervisor an import, and a warm trial must not find one there.
# ruff: noqa: PTH112, PTH208

from __future__ import annotations

import ctypes
import os
import struct

NEEDED = 3  # the version that knows truncation (Linux 6.2): without it any file could be emptied
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # system calls, the same on every architecture
_VERSION = 1  # flag of the first: say which version this kernel has
_PATH_BENEATH = 1
_NO_NEW_PRIVS = 38  # prctl(2)
# Rights of landlock(7). All but reading, executing and ioctl; of a file, the first and last.
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_OF_FILES = _WRITE_FILE | _TRUNCATE
_WRITING = _OF_FILES | sum(1 << bit for bit in range(4, 14))
# Of /dev, what programs write that is no file of anybody's; of NVIDIA's there are many.
_DEVICES = (
    "null", "zero", "full", "random", "urandom", "shm", "ptmx", "pts", "tty", "dri", "kfd",
)  # fmt: skip


def version() -> int:
    """Return the version of Landlock that this kernel has; 0 where it has none, or it is off."""
    if os.uname().sysname != "Linux":
        return 0
    try:
        return max(0, _call(_CREATE, None, 0, _VERSION))
    except OSError:
        return 0


def restrict(writable: list[str]) -> None:
    """Let this process write only below these paths, to devices and in the temporary folder. Those
    that are not there are left out. Raises OSError."""
    rules = struct.pack("=Q", _WRITING)  # struct landlock_ruleset_attr
    fd = _call(_CREATE, rules, len(rules), 0)
    devices = [f"/dev/{name}" for name in os.listdir("/dev")
               if name in _DEVICES or name.startswith("nvidia")]  # fmt: skip
    for path in (*writable, os.environ.get("TMPDIR") or "/tmp", *devices):
        try:
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        # struct landlock_path_beneath_attr, which is packed
        rule = struct.pack("=Qi", _WRITING if os.path.isdir(path) else _OF_FILES, parent)
        _call(_ADD_RULE, fd, _PATH_BENEATH, rule, 0)
        os.close(parent)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    _call(_RESTRICT, fd, 0)
    os.close(fd)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    words = (ctypes.c_ulong(word) if isinstance(word, int) else word for word in arguments)
    done = int(libc.syscall(ctypes.c_long(number), *words))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done
