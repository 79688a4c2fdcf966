"""Records what a tree of processes names of some folders: every path that any of them hands to the
kernel, found or not. The supervisor loads it by its path, so it imports nothing of celedger.

A seccomp filter, which every descendant inherits and none can shed, hands each system call that
takes a path to this process before it is carried out (seccomp_unotify(2)). Unlike inotify this
shows what was looked for in vain, what was only `stat`ed, and the links that were followed; nothing
can overflow, and no moment before the watch begins is missed. The filter sees the numbers of a call
and not its strings, so a call costs a switch to this thread and back (benchmarks/README.md).

Where the record may be incomplete it says so in `unknown`, and is worth nothing.
"""

# Pathlib would cost the supervisor an import, and paths here are bytes.
# ruff: noqa: PTH115, PTH123

from __future__ import annotations

import _socket
import _thread
import ctypes
import errno
import fcntl
import os
import re
import struct

MOST = 200_000  # paths of one command; a trial that names more stands for no other
_AT_CWD = -100
_PATH_MAX = 4096
_PAGE = 4096  # bytes: no machine's is smaller
_SHORT = 256  # bytes: nearly all paths are shorter
_MOST_NOTED = 100_000  # names, of 150 bytes or so each
_PASSING = re.compile(rb"/proc/|^/dev/")  # what means something else once a file is closed
# Links of /proc/PID/fd and /proc/PID/ns that lead to no file: a pipe, a socket, a namespace. CUDA
# looks at such links of its own. Who reads by one reads what it has already.
_NO_FILE = re.compile(rb"[a-z_]+:")
_SCRIPTS = 6  # more than the kernel follows
_LINKS = 40  # as many links does the kernel follow before it says ELOOP


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
    "statx": (332, 291, ((1, 0),)),
    "faccessat2": (439, 439, ((1, 0),)), "fchmodat2": (452, 452, ((1, 0),)),
    "setxattrat": (463, 463, ((1, 0),)), "getxattrat": (464, 464, ((1, 0),)),
    "listxattrat": (465, 465, ((1, 0),)), "removexattrat": (466, 466, ((1, 0),)),
    "file_getattr": (468, 468, ((1, 0),)), "file_setattr": (469, 469, ((1, 0),)),
}  # fmt: skip
# Ways to a file that leave no path to be seen, or that change what paths mean.
BLIND = {
    "pivot_root": (155, 41), "chroot": (161, 51), "mount": (165, 40), "umount2": (166, 39),
    "setns": (308, 268), "openat2": (437, 437),
    "open_by_handle_at": (304, 265), "io_uring_setup": (425, 425), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
}  # fmt: skip
RENAMING = ("rename", "renameat", "renameat2")
RELINKING = (*RENAMING, "symlink", "symlinkat", "link", "linkat")
# Those that give access to a file's content or to a folder's names; `rmdir` tells whether there are
# any. All others tell no more than `stat`.
TAKING = frozenset((
    "open", "openat", "creat", "execve", "execveat", *RENAMING, "link", "linkat",
    "truncate", "uselib", "rmdir", "unlinkat",
))  # fmt: skip
# Of the calls we know; numbers above 423 are the same on all machines. A newer one may take a path.
NEWEST = 469
KERNEL = (6, 18)  # the last Linux without a newer call

# linux/seccomp.h, linux/audit.h, linux/bpf_common.h
_NEW_LISTENER, _SPEC_ALLOW, _WAIT_KILLABLE = 1 << 3, 1 << 2, 1 << 5
_ALLOW, _USER_NOTIF = 0x7FFF0000, 0x7FC00000
RECEIVE, SEND, SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104
CONTINUE = 1
_SYNC_WAKE_UP = 1  # of SET_FLAGS, Linux 6.6
NOTIFICATION, _ANSWER = struct.Struct("<QIIiIQ6Q"), struct.Struct("<QqiI")
_VECTOR = struct.Struct("=QQ")  # struct iovec
_PR_SET_NO_NEW_PRIVS = 38
_LD, _JEQ, _JGE, _RETURN = 0x20, 0x15, 0x35, 0x06


def numbers(column: int) -> tuple[dict[int, str], set[int]]:
    """Of an architecture, by its place: the calls that take a path, and those that
    are blind."""
    seen = {row[:2][column]: name for name, row in PATHS.items()}
    seen.pop(-1, None)
    return seen, {row[column] for row in BLIND.values()}


def _filter(architecture: int, column: int) -> bytes:
    """Return the BPF program: notified are the calls that take a path, the blind ones, those that
    are newer than what we know, and those of any other ABI (of x32 all have a higher number).
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
    program = struct.pack("HP", len(code) // 8, ctypes.addressof(buffer))  # struct sock_fprog
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.syscall
    call.restype = ctypes.c_long
    # Without _SPEC_ALLOW older kernels slow down all that is filtered (the mitigation of
    # speculative store bypass); _WAIT_KILLABLE keeps signals from restarting calls endlessly.
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return -1
    for flags in (_NEW_LISTENER | _SPEC_ALLOW | _WAIT_KILLABLE, _NEW_LISTENER | _SPEC_ALLOW):
        fd = call(ctypes.c_long(seccomp), ctypes.c_ulong(1), ctypes.c_ulong(flags), program)
        if fd >= 0:
            return int(fd)
    return -1


def parse(record: bytes) -> tuple[str, set[bytes], set[bytes]] | None:
    """Return what `Record.write` wrote: why nothing is known, the paths that were opened and those
    that were only looked at. None where the file was cut short."""
    parts = record.split(b"\0\0")
    if len(parts) != 4 or parts[3]:
        return None
    opened, looked = (set(part.split(b"\0")) - {b""} for part in parts[1:3])
    return os.fsdecode(parts[0]), opened, looked


def _nobody_is_filtered(fd: int) -> bool:
    import select  # most supervisors end before they need it

    poll = select.poll()
    poll.register(fd, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


class Watch:
    """A recording between two processes: made before the fork, `begin` called in the one to be
    watched, `serve` in a thread of the other."""

    def __init__(self, folders: list[str], packages: list[str]) -> None:
        self.record = Record(folders, packages)
        self.record.unknown = "this system does not tell what is read"  # until it does
        self._ours, self._theirs = _socket.socketpair()

    def begin(self) -> None:
        """From here on every path that this process names is recorded."""
        fd = install()
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", fd))]
        self._theirs.sendmsg([b"."], rights if fd >= 0 else [])
        if fd >= 0:
            os.close(fd)
        self._ours.close()
        self._theirs.close()

    def serve(self) -> None:
        """Returns when there is nothing to serve; else never."""
        self._theirs.close()
        _, rights, _, _ = self._ours.recvmsg(1, _socket.CMSG_SPACE(4))
        if rights:
            # Before the first call goes on, and so before the record can be asked for.
            self.record.unknown = ""
            fd = struct.unpack("i", rights[0][2][:4])[0]
            try:  # caller and server run in turns: on one core a switch is several times cheaper
                fcntl.ioctl(fd, SET_FLAGS, _SYNC_WAKE_UP)
            except OSError:  # an older kernel
                pass
            self.record.serve(fd)


class Record:
    """The absolute paths in these folders, of which the first is the tree, that were `opened` and
    those that were only `looked` at: of these a process learns what `stat` tells, and neither
    content nor listing. What is opened of the folders `packages` counts by its first name there."""

    def __init__(self, folders: list[str], packages: list[str]) -> None:
        self.opened: set[bytes] = set()
        self.looked: set[bytes] = set()
        self.unknown = ""
        real = [os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/" for folder in folders]
        self._tree, self._recorded = real[0], tuple(real)
        self._packages = tuple(os.fsencode(os.path.realpath(p)) + b"/" for p in packages)
        machine = os.uname().machine
        column = list(ARCHITECTURES).index(machine) if machine in ARCHITECTURES else 0
        self._architecture = ARCHITECTURES.get(machine, (0, 0))[0]
        self._names: dict[int, str] = numbers(column)[0]
        self._blind = {row[column]: name for name, row in BLIND.items()}
        self._folders: set[bytes] = set()  # known to be no links
        self._noted: tuple[set[bytes], set[bytes]] = (set(), set())  # looked at, opened: as named
        # Calls that name one path and change the meaning of none: where it is, and what is noted.
        self._plain = {
            number: (6 + PATHS[name][2][0][0], self._noted[name in TAKING])
            for number, name in self._names.items()
            if len(PATHS[name][2]) == 1 and name not in (*RELINKING, "execve", "execveat")
        }
        self._remember = True
        self._busy = _thread.allocate_lock()
        self._read = ctypes.CDLL(None, use_errno=True).process_vm_readv
        word, address = ctypes.c_ulong, ctypes.c_void_p
        self._read.argtypes = (ctypes.c_int, address, word, address, word, word)
        self._read.restype = ctypes.c_ssize_t
        self._buffer = ctypes.create_string_buffer(2 * _PATH_MAX)
        self._vectors = bytearray(3 * _VECTOR.size)  # ours, then two of the other process
        _VECTOR.pack_into(self._vectors, 0, ctypes.addressof(self._buffer), 2 * _PATH_MAX)
        self._local = ctypes.addressof(
            (ctypes.c_char * len(self._vectors)).from_buffer(self._vectors)
        )
        self._remote = self._local + _VECTOR.size

    def write(self, path: str) -> None:
        """Write the record as `parse` reads it. Call it when nobody is filtered any more; it waits
        until the paths of the last call are noted."""
        self._busy.acquire()
        looked = self.looked - self.opened
        if len(self.opened) + len(looked) > MOST:
            self.unknown = self.unknown or f"it names more than {MOST} paths"
        parts = [os.fsencode(self.unknown), b"", b"", b""]
        if not self.unknown:
            parts[1:3] = b"\0".join(sorted(self.opened)), b"\0".join(sorted(looked))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o666), "wb") as file:
            file.write(b"\0\0".join(parts))

    def serve(self, fd: int) -> None:
        """Let every call go on, noting what it names. Returns when nobody is filtered any more."""
        blank = bytes(NOTIFICATION.size)
        while True:
            try:
                row = NOTIFICATION.unpack(fcntl.ioctl(fd, RECEIVE, blank))
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.ENOENT and not _nobody_is_filtered(fd):
                    continue  # the caller was killed in that moment
                return
            with self._busy:
                self.take(fd, row)

    def take(self, fd: int, row: tuple[int, ...]) -> None:
        """Note what a call names, and let it go on. A path that was noted before, by the same name,
        needs no second look: most calls of a trial are such."""
        answer = _ANSWER.pack(row[0], 0, 0, CONTINUE)
        at, noted = self._plain.get(row[3], (0, None))
        only = None
        if noted is not None and row[4] == self._architecture:
            only = self._short_string(row[1], row[at])
            if self._remember and (only == b"" or only in noted):
                self._send(fd, answer)
                return
        self._note(fd, row, answer, only)

    def _note(self, fd: int, row: tuple[int, ...], answer: bytes, only: bytes | None) -> None:
        try:
            named = self._named(row, only)
            if self._remember and not any(map(_PASSING.search, named)):
                # The caller may go on already: what changes the meaning of a path comes by here
                # too, and waits.
                self._send(fd, answer)
                answer = b""
            call = self._names.get(row[3])
            for path in named:
                *way, end = self._follow(path, row)
                self.looked.update(filter(self._is_recorded, way))
                if call in TAKING and end.startswith(self._packages):
                    top = next(top for top in self._packages if end.startswith(top))
                    self.opened.add(top + end[len(top) :].split(b"/")[0])
                if self._is_recorded(end):
                    (self.opened if call in TAKING else self.looked).add(end)
                    if call in RENAMING:
                        self._move(end)
        except Exception as error:
            self.unknown = self.unknown or f"a system call was not understood: {error!r}"
        finally:
            if answer:
                self._send(fd, answer)

    @staticmethod
    def _send(fd: int, answer: bytes) -> None:
        try:
            fcntl.ioctl(fd, SEND, answer)
        except OSError:  # its process was killed
            pass

    def _named(self, row: tuple[int, ...], only: bytes | None) -> list[bytes]:
        """Return the absolute paths that a call names, as it names them. If it names one and that
        was read, it is `only`."""
        pid, number, architecture, arguments = row[1], row[3], row[4], row[6:]
        name = self._names.get(number)
        if architecture != self._architecture or name is None:
            call = self._blind.get(number, f"system call {number} of {architecture:x}")
            self.unknown = self.unknown or f"it uses {call}, which may read without being seen"
            return []
        paths = []
        for at, base in PATHS[name][2]:
            text = self._string(pid, arguments[at]) if only is None else only
            if text is None or (not text and name not in ("execveat", "linkat")):
                continue  # the call ends in EFAULT or ENOENT, or is about a descriptor
            folder = _AT_CWD
            if base >= 0:
                folder = ctypes.c_int32(arguments[base] & 0xFFFFFFFF).value
            path = self._absolute(text, pid, folder)
            if path is not None:
                paths.append(path)
        if name in RELINKING:
            self._remember = False
            for known in (self._folders, *self._noted):
                known.clear()
        if name.startswith("execve"):
            for path in paths:  # grows: an interpreter may be a script, as in binfmt_script.c
                paths += self._interpreter(path, pid) if len(paths) < _SCRIPTS else []
        return paths

    @staticmethod
    def _absolute(path: bytes, pid: int, folder: int = _AT_CWD) -> bytes | None:
        """Return a path that a process names, relative to what it has open as a `folder`; None
        where it has no such thing."""
        if path.startswith(b"/"):
            return path
        where = "cwd" if folder == _AT_CWD else f"fd/{folder}"
        try:
            return os.readlink(b"/proc/%d/%s" % (pid, where.encode())) + b"/" + path
        except OSError:  # EBADF for the caller, or it is gone
            return None

    def _short_string(self, pid: int, address: int) -> bytes | None:
        """Return `_string`; None also where it is long, or not in one page."""
        size = min(_SHORT, _PAGE - address % _PAGE)
        _VECTOR.pack_into(self._vectors, _VECTOR.size, address, size)
        size = self._read(pid, self._local, 1, self._remote, 1, 0)
        text: bytes = self._buffer.value  # it may run on into what was read before
        return text if len(text) < size else None

    def _string(self, pid: int, address: int) -> bytes | None:
        """Return the string at an address of another process; None where there is none."""
        if (text := self._short_string(pid, address)) is not None:
            return text
        first = _PAGE - address % _PAGE  # a page at a time: the next may not be there
        _VECTOR.pack_into(self._vectors, _VECTOR.size, address, first)
        _VECTOR.pack_into(self._vectors, 2 * _VECTOR.size, address + first, _PATH_MAX)
        size = self._read(pid, self._local, 1, self._remote, 2, 0)
        if size < 0 and ctypes.get_errno() not in (errno.EFAULT, errno.ESRCH):
            raise OSError(ctypes.get_errno(), "cannot read a path")
        text = self._buffer.value
        return text if len(text) < min(size, _PATH_MAX) else None

    def _interpreter(self, path: bytes, pid: int) -> list[bytes]:
        """Return what the kernel itself opens to execute a file."""
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                head = file.read(_PATH_MAX)
        except OSError:
            return []
        words = head[2:].split(b"\n")[0].split()[:1] if head.startswith(b"#!") else []
        return list(filter(None, (self._absolute(word, pid) for word in words)))

    def _move(self, top: bytes) -> None:
        """Note what a rename is about to take along: all that lies below a folder. Who reads it
        afterwards names it by a path at which no tree has anything."""
        if self._tree.startswith(top + b"/"):
            self.unknown = self.unknown or "it moves the tree itself"
            return
        for above, folders, files in os.walk(top):
            self.opened.update(above + b"/" + name for name in (*folders, *files))

    def _follow(self, path: bytes, row: tuple[int, ...]) -> list[bytes]:
        """Return every link on the way of a path that a call names, what had to be there, and where
        it leads. Remember a name whose meaning only a call of RELINKING can change."""
        pid, lasting = row[1], self._remember and row[3] in self._plain
        here, _, last = path.rpartition(b"/")
        left, links = [last], 0
        if here not in self._folders or last in (b"", b".", b".."):
            here, left = b"", path.split(b"/")[::-1]
        met: list[bytes] = []
        while left:
            part = left.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                met.append(here or b"/")
                here = here.rpartition(b"/")[0]
                continue
            there = here + b"/" + part
            if there in (b"/proc/self", b"/proc/thread-self"):
                there = b"/proc/%d" % pid
            lasting = lasting and not there.startswith((b"/proc", b"/dev"))
            if there in self._folders:
                here = there
                continue
            try:
                target = os.readlink(there)
            except OSError as error:
                if links and error.errno != errno.EINVAL and there.startswith(b"/proc/"):
                    # A link led there, and the caller may have gone on and closed it.
                    self.unknown = self.unknown or (
                        f"it reads by a link to what it has open, {os.fsdecode(path)}"
                    )
                here = there
                if error.errno != errno.EINVAL or not left:  # not there, or the last part
                    # A folder that is not there may be made.
                    lasting = lasting and not left and error.errno in (errno.EINVAL, errno.ENOENT)
                    break
                if self._remember and not there.startswith(b"/proc/"):
                    self._folders.add(there)
                continue
            met.append(there)
            links += 1
            nowhere = there.startswith(b"/proc/") and _NO_FILE.match(target)
            if nowhere or links > _LINKS:
                here, lasting = there, False
                break
            left += target.split(b"/")[::-1]
            if target.startswith(b"/"):
                here = b""
        if lasting:
            noted = self._plain[row[3]][1]
            if len(noted) >= _MOST_NOTED:
                noted.clear()
            noted.add(path)
        return [*met, here or b"/"]

    def _is_recorded(self, path: bytes) -> bool:
        return (path.rstrip(b"/") + b"/").startswith(self._recorded)
