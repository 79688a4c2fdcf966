"""The system calls that take a path, or the address of a socket, which may be one, and the seccomp
filter that hands them to another process.
Loaded by its path by reads.py, so it imports nothing of celedger.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

ARCHITECTURES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}

# name: (number on x86_64, on aarch64 (-1: it has none), then each path it takes as (argument that
# holds it, argument that holds the folder it is relative to or -1 for the current one)).
PATHS: dict[str, tuple[int, int, tuple[tuple[int, int], ...]]] = {
    "open": (2, -1, ((0, -1),)), "stat": (4, -1, ((0, -1),)), "lstat": (6, -1, ((0, -1),)),
    "access": (21, -1, ((0, -1),)), "execve": (59, 221, ((0, -1),)),
    "truncate": (76, 45, ((0, -1),)), "chdir": (80, 49, ((0, -1),)),
    "rename": (82, -1, ((0, -1), (1, -1))), "mkdir": (83, -1, ((0, -1),)),
    "rmdir": (84, -1, ((0, -1),)), "creat": (85, -1, ((0, -1),)),
    "link": (86, -1, ((0, -1), (1, -1))), "unlink": (87, -1, ((0, -1),)),
    "symlink": (88, -1, ((1, -1),)), "readlink": (89, -1, ((0, -1),)),
    "chmod": (90, -1, ((0, -1),)), "chown": (92, -1, ((0, -1),)), "lchown": (94, -1, ((0, -1),)),
    "utime": (132, -1, ((0, -1),)), "mknod": (133, -1, ((0, -1),)),
    "uselib": (134, -1, ((0, -1),)), "statfs": (137, 43, ((0, -1),)),
    "setxattr": (188, 5, ((0, -1),)), "lsetxattr": (189, 6, ((0, -1),)),
    "getxattr": (191, 8, ((0, -1),)), "lgetxattr": (192, 9, ((0, -1),)),
    "listxattr": (194, 11, ((0, -1),)), "llistxattr": (195, 12, ((0, -1),)),
    "removexattr": (197, 14, ((0, -1),)), "lremovexattr": (198, 15, ((0, -1),)),
    "utimes": (235, -1, ((0, -1),)), "inotify_add_watch": (254, 27, ((1, -1),)),
    "openat": (257, 56, ((1, 0),)), "mkdirat": (258, 34, ((1, 0),)),
    "mknodat": (259, 33, ((1, 0),)), "fchownat": (260, 54, ((1, 0),)),
    "futimesat": (261, -1, ((1, 0),)), "newfstatat": (262, 79, ((1, 0),)),
    "unlinkat": (263, 35, ((1, 0),)), "renameat": (264, 38, ((1, 0), (3, 2))),
    "linkat": (265, 37, ((1, 0), (3, 2))), "symlinkat": (266, 36, ((2, 1),)),
    "readlinkat": (267, 78, ((1, 0),)), "fchmodat": (268, 53, ((1, 0),)),
    "faccessat": (269, 48, ((1, 0),)), "utimensat": (280, 88, ((1, 0),)),
    "fanotify_mark": (301, 263, ((4, 3),)), "name_to_handle_at": (303, 264, ((1, 0),)),
    "renameat2": (316, 276, ((1, 0), (3, 2))), "execveat": (322, 281, ((1, 0),)),
    "statx": (332, 291, ((1, 0),)), "openat2": (437, 437, ((1, 0),)),
    "faccessat2": (439, 439, ((1, 0),)), "fchmodat2": (452, 452, ((1, 0),)),
    "setxattrat": (463, 463, ((1, 0),)), "getxattrat": (464, 464, ((1, 0),)),
    "listxattrat": (465, 465, ((1, 0),)), "removexattrat": (466, 466, ((1, 0),)),
    "file_getattr": (468, 468, ((1, 0),)), "file_setattr": (469, 469, ((1, 0),)),
}  # fmt: skip
# Those that take the address of a socket, which may be a path: numbers as above, and the arguments
# that hold it and its length. (A datagram to the path of a socket is not seen.)
ADDRESSES = {"connect": (42, 203, 1, 2), "bind": (49, 200, 1, 2)}
# Ways to a file that leave no path to be seen, or that change what paths mean.
BLIND = {
    "pivot_root": (155, 41), "chroot": (161, 51), "mount": (165, 40), "umount2": (166, 39),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265), "io_uring_setup": (425, 425), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
}  # fmt: skip
RENAMING = ("rename", "renameat", "renameat2")
RELINKING = (*RENAMING, "symlink", "symlinkat", "link", "linkat")
# Those that give access to a file's content or to a folder's names; `rmdir` tells whether there are
# any. All others tell no more than `stat`.
TAKING = frozenset((
    "open", "openat", "openat2", "creat", "execve", "execveat", *RENAMING, "link", "linkat",
    "truncate", "uselib", "rmdir", "unlinkat",
))  # fmt: skip
# Of the calls we know, Linux 6.17; numbers above 423 are the same on all machines. A newer one may
# take a path.
NEWEST = 469

# linux/seccomp.h, linux/audit.h, linux/bpf_common.h
_NEW_LISTENER, _SPEC_ALLOW, _WAIT_KILLABLE = 1 << 3, 1 << 2, 1 << 5
_ALLOW, _USER_NOTIF = 0x7FFF0000, 0x7FC00000
RECEIVE, SEND = 0xC0502100, 0xC0182101
CONTINUE = 1
NOTIFICATION = struct.Struct("<QIIiIQ6Q")
_PR_SET_NO_NEW_PRIVS = 38
_LD, _JEQ, _JGE, _RETURN = 0x20, 0x15, 0x35, 0x06


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def numbers(column: int) -> tuple[dict[int, str], set[int]]:
    """Of an architecture, by its place: the calls that take a path or an address, and those that
    are blind."""
    seen = {row[:2][column]: name for name, row in PATHS.items()}
    seen |= {row[:2][column]: name for name, row in ADDRESSES.items()}
    seen.pop(-1, None)
    return seen, {row[column] for row in BLIND.values()}


def _filter(architecture: int, column: int) -> bytes:
    """The BPF program: notified are the calls that take a path or an address, the blind ones, those
    that are newer than what we know, and those of any other ABI (of x32 all have a higher number).
    """
    seen, blind = numbers(column)
    chosen = sorted({*seen, *blind})
    size = len(chosen)
    rows = [
        (_LD, 0, 0, 4),  # seccomp_data.arch
        (_JEQ, 0, size + 3, architecture),
        (_LD, 0, 0, 0),  # seccomp_data.nr
        (_JGE, size + 1, 0, NEWEST + 1),
        *((_JEQ, size - i, 0, number) for i, number in enumerate(chosen)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _USER_NOTIF),
    ]
    return b"".join(struct.pack("<HBBI", *row) for row in rows)


def install() -> int:
    """Put the filter on this thread, and so on what it forks from now on: the descriptor that a
    `Record` serves, or -1 where the system has no such thing. From here on this thread's own
    calls wait for the record to be served, by a thread that is not filtered."""
    machine = os.uname().machine
    if machine not in ARCHITECTURES or struct.calcsize("P") != 8:
        return -1
    architecture, seccomp = ARCHITECTURES[machine]
    code = _filter(architecture, list(ARCHITECTURES).index(machine))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.syscall
    call.restype = ctypes.c_long
    # Without _SPEC_ALLOW older kernels slow down all that is filtered (the mitigation of
    # speculative store bypass); _WAIT_KILLABLE keeps signals from restarting calls endlessly.
    for flags in (_NEW_LISTENER | _SPEC_ALLOW | _WAIT_KILLABLE, _NEW_LISTENER | _SPEC_ALLOW):
        for privileged in (True, False):
            if not privileged and libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
                return -1
            fd = call(
                ctypes.c_long(seccomp), ctypes.c_ulong(1), ctypes.c_ulong(flags),
                ctypes.byref(program),
            )  # fmt: skip
            if fd >= 0:
                return int(fd)
            if ctypes.get_errno() != errno.EACCES:
                break
    return -1
