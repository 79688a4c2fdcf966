"""What a tree of processes reads of one folder, as the kernel tells: every path that any of them
names to it, found or not. Loaded by its path by the supervisor, so it imports nothing of celedger.

A seccomp filter, which every descendant inherits and none can shed, hands each system call that
takes a path to us before it is carried out (seccomp_unotify(2)). Unlike inotify this shows what
was looked for and was not there, what was only `stat`ed, and links that were followed; nothing
can overflow, and there is no moment before the watch begins. The filter sees a call's numbers and
not its strings, so a call costs a switch to this thread and back (benchmarks/closures.py).

Where the record may be incomplete it says so, in `unknown`, and is worth nothing.

Which sources were only imported is for sources.py to tell, who is shown every path that is named.
"""

# Pathlib would cost the supervisor an import, and paths here are bytes.
# ruff: noqa: PTH114, PTH115, PTH123

from __future__ import annotations

import _socket
import _thread
import ctypes
import errno
import fcntl
import os
import struct
import sys

TYPE_CHECKING = False  # importing `typing` would cost the supervisor as much as all the rest
if TYPE_CHECKING:
    from typing import Any

MOST = 200_000  # paths of one command; a trial that reads more is compared by running it

_ARCHITECTURES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}

# name: (number on x86_64, on aarch64 (-1: it has none), then each path it takes as (argument that
# holds it, argument that holds the folder it is relative to or -1 for the current one)).
_PATHS: dict[str, tuple[int, int, tuple[tuple[int, int], ...]]] = {
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
# Ways to a file that leave no path to be seen, or that change what paths mean.
_BLIND = {
    "pivot_root": (155, 41), "chroot": (161, 51), "mount": (165, 40),
    "open_by_handle_at": (304, 265), "io_uring_setup": (425, 425), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
}  # fmt: skip
_RENAMING = ("rename", "renameat", "renameat2")
_RELINKING = (*_RENAMING, "symlink", "symlinkat", "link", "linkat")
_X32 = 0x40000000  # system calls of the x32 ABI have this bit

# linux/seccomp.h, linux/audit.h, linux/bpf_common.h
_NEW_LISTENER, _SPEC_ALLOW, _WAIT_KILLABLE = 1 << 3, 1 << 2, 1 << 5
_ALLOW, _USER_NOTIF = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_NOTIFICATION = struct.Struct("<QIIiIQ6Q")
_PR_SET_NO_NEW_PRIVS = 38
_LD, _JEQ, _JGE, _RETURN = 0x20, 0x15, 0x35, 0x06

_AT_CWD = -100
_PATH_MAX = 4096
_LINKS = 40  # as many links does the kernel follow before it says ELOOP


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _numbers(column: int) -> tuple[dict[int, str], set[int]]:
    seen = {(row[0], row[1])[column]: name for name, row in _PATHS.items()}
    seen.pop(-1, None)
    return seen, {row[column] for row in _BLIND.values()}


def _filter(architecture: int, numbers: list[int]) -> bytes:
    """The BPF program: calls of `numbers`, and those of any other ABI, are notified."""
    size = len(numbers)
    rows = [
        (_LD, 0, 0, 4),  # seccomp_data.arch
        (_JEQ, 0, size + 3, architecture),
        (_LD, 0, 0, 0),  # seccomp_data.nr
        (_JGE, size + 1, 0, _X32),
        *((_JEQ, size - i, 0, number) for i, number in enumerate(numbers)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _USER_NOTIF),
    ]
    return b"".join(struct.pack("<HBBI", *row) for row in rows)


def install() -> int:
    """Put the filter on this thread, and so on what it forks from now on: the descriptor that a
    `Record` serves, or -1 where the system has no such thing. From here on this thread's own
    calls wait for the record to be served, by a thread that is not filtered."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES or struct.calcsize("P") != 8:
        return -1
    architecture, seccomp = _ARCHITECTURES[machine]
    seen, blind = _numbers(list(_ARCHITECTURES).index(machine))
    code = _filter(architecture, sorted({*seen, *blind}))
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


class Watch:
    """A recording between two processes: made before the fork, `begin` called in the one to be
    watched, `serve` in a thread of the other."""

    def __init__(self, tree: str) -> None:
        self.record = Record(tree)
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
            self.record.serve(struct.unpack("i", rights[0][2][:4])[0])


def _beside(name: str) -> Any:
    """A module in this folder, loaded by its path as this one was."""
    loader: Any = sys.modules["_frozen_importlib_external"]
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")  # noqa: PTH100, PTH118, PTH120
    return loader.SourceFileLoader(f"celedger_{name}", file).load_module()


class Record:
    """The paths below `tree` that were named, relative to it; "" is the tree itself."""

    def __init__(self, tree: str) -> None:
        self.paths: set[bytes] = set()
        self.unknown = ""
        self._tree = os.fsencode(os.path.realpath(tree))
        self._inside = self._tree + b"/"
        machine = os.uname().machine
        column = list(_ARCHITECTURES).index(machine) if machine in _ARCHITECTURES else 0
        self._architecture = _ARCHITECTURES.get(machine, (0, 0))[0]
        self._names, _ = _numbers(column)
        self._seen: dict[bytes, tuple[bytes, ...]] = {}  # paths, and what of the tree they named
        self._sources = _beside("sources").Sources(self._inside)
        self._kept: list[bytes] = []  # of the path that is followed
        self._lasting = True  # it means the same whenever it is named
        self._folders: set[bytes] = set()  # known to be no links
        self._remember = True
        self._busy = _thread.allocate_lock()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._buffer = ctypes.create_string_buffer(2 * _PATH_MAX)
        self._local = _Vector(ctypes.addressof(self._buffer), 2 * _PATH_MAX)
        self._remote = (_Vector * 2)()

    def write(self, path: str) -> None:
        """As a file: a line with why nothing is known (or an empty one), one with what is known of
        sources (a Python literal, see sources.py), then the paths, then two NULs, without which a
        full disk cut it. To be called when nobody is filtered any more; waits until the last
        call's paths are noted."""
        self._busy.acquire()
        if len(self.paths) > MOST:
            self.unknown = self.unknown or f"it names more than {MOST} paths"
        with open(path, "wb") as file:
            file.write(os.fsencode(self.unknown.replace("\n", " ")) + b"\n")
            if not self.unknown:
                file.write(ascii(self._sources.found()).encode() + b"\n")
                file.write(b"\0".join(sorted(self.paths)))
            file.write(b"\0\0")

    def serve(self, fd: int) -> None:
        """Let every call go on, noting what it names. Returns when nobody is filtered any more."""
        blank = bytes(_NOTIFICATION.size)
        while True:
            try:
                row = _NOTIFICATION.unpack(fcntl.ioctl(fd, _RECEIVE, blank))
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.ENOENT:  # the caller was killed in that moment
                    continue
                return
            with self._busy:
                self._take(fd, row)

    def _take(self, fd: int, row: tuple[int, ...]) -> None:
        answer = struct.pack("<QqiI", row[0], 0, 0, _CONTINUE)
        try:
            named = self._named(row)
            if self._remember:
                # The caller may go on already: what changes the meaning of a path comes by here
                # too, and waits.
                self._send(fd, answer)
                answer = b""
            for path in named:
                if path.startswith(self._sources.SAYS):
                    self._hear(path, row[1])
                    continue
                call = self._names[row[3]]
                kept = self._note(path, row[1])
                if call in _RENAMING:
                    kept += self._moved(path, kept)
                self._sources.weigh(path, kept, row[1], call)
        except Exception as error:
            self.unknown = self.unknown or f"a system call was not understood: {error!r}"
        finally:
            if answer:
                self._send(fd, answer)

    @staticmethod
    def _send(fd: int, answer: bytes) -> None:
        try:
            fcntl.ioctl(fd, _SEND, answer)
        except OSError:  # its process was killed
            pass

    def _named(self, row: tuple[int, ...]) -> list[bytes]:
        """The absolute paths that a call names, as it names them."""
        pid, number, architecture, arguments = row[1], row[3], row[4], row[6:]
        name = self._names.get(number)
        if architecture != self._architecture or name is None:
            self.unknown = self.unknown or f"system call {number} of {architecture:x} was made"
            return []
        found = []
        for at, base in _PATHS[name][2]:
            path = self._string(pid, arguments[at])
            if path is None or (not path and name not in ("execveat", "linkat")):
                continue  # the call ends in EFAULT or ENOENT, or is about a descriptor
            if not path.startswith(b"/"):
                folder = _AT_CWD
                if base >= 0:
                    folder = ctypes.c_int32(arguments[base] & 0xFFFFFFFF).value
                where = "cwd" if folder == _AT_CWD else f"fd/{folder}"
                try:
                    path = os.readlink(b"/proc/%d/%s" % (pid, where.encode())) + b"/" + path
                except OSError:  # EBADF for the caller, or it is gone
                    continue
            found.append(path)
        if name in _RELINKING:
            self._remember = False
            self._folders.clear()
            self._seen.clear()
        if name.startswith("execve"):
            self._sources.forget(pid)
            for path in list(found):
                found += self._interpreters(path, pid)
        return found

    def _string(self, pid: int, address: int) -> bytes | None:
        """The string at an address of another process; None where there is none."""
        first = _PATH_MAX - address % _PATH_MAX  # a page at a time: the next may not be there
        self._remote[0].base, self._remote[0].length = address, first
        self._remote[1].base, self._remote[1].length = address + first, _PATH_MAX
        size = self._libc.process_vm_readv(
            pid, ctypes.byref(self._local), 1, ctypes.byref(self._remote), 2, 0
        )
        if size < 0:
            if ctypes.get_errno() not in (errno.EFAULT, errno.ESRCH):
                raise OSError(ctypes.get_errno(), "cannot read a path")
            return None
        text = self._buffer.raw[:size]
        end = text.find(b"\0")
        return text[:end] if 0 <= end < _PATH_MAX else None

    def _interpreters(self, path: bytes, pid: int) -> list[bytes]:
        """What the kernel itself opens to execute a file."""
        found: list[bytes] = []
        for _ in range(4):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    head = os.read(fd, _PATH_MAX)
                finally:
                    os.close(fd)
                real = os.path.realpath(path)
            except OSError:
                break
            words = head[2:].split(b"\n")[0].split()
            if not head.startswith(b"#!") or not words:
                usual = b"/ld-linux" in head or b"/ld-musl" in head
                if head.startswith(b"\x7fELF") and real.startswith(self._inside) and not usual:
                    self.unknown = self.unknown or "it runs a programme with a loader of its own"
                break
            path = words[0]
            if not path.startswith(b"/"):
                path = os.readlink(b"/proc/%d/cwd" % pid) + b"/" + path
            found.append(path)
        return found

    def _hear(self, path: bytes, thread: int) -> None:
        begun = self._sources.hear(path, thread)
        # One that is reached by a link has another name for its code.
        if begun and self._note(begun, thread) != (begun[len(self._inside) :],):
            self._sources.doubt(thread)

    def _note(self, path: bytes, pid: int) -> tuple[bytes, ...]:
        """Note where a path leads, and every link on the way: what of it is in the tree."""
        known = self._seen.get(path)
        if known is None:
            self._kept, self._lasting = [], not path.startswith(b"/proc/")
            self._follow(path, pid)
            known = tuple(self._kept)
            if self._remember and self._lasting:
                self._seen[path] = known
        return known

    def _moved(self, path: bytes, kept: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """What a rename is about to take along with these: all that lies below a folder. Who
        reads it afterwards names it by a path at which no tree has anything."""
        if self._inside.startswith(os.path.realpath(path) + b"/"):
            self.unknown = self.unknown or "it moves the tree itself"
            return ()
        found: list[bytes] = []
        for name in kept:
            top = self._inside + name
            if os.path.islink(top):
                continue
            for above, folders, files in os.walk(top, onerror=self._fails):
                inside = above[len(self._inside) :] + b"/"
                found += [inside + other for other in (*folders, *files)]
                if len(found) > MOST:
                    self.unknown = self.unknown or f"it moves more than {MOST} paths"
                    return ()
        self.paths.update(found)
        return tuple(found)

    def _fails(self, error: OSError) -> None:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            self.unknown = self.unknown or f"a folder that it moves cannot be read: {error}"

    def _follow(self, path: bytes, pid: int) -> None:
        left = path.split(b"/")[::-1]
        here, links = b"", 0
        while left:
            part = left.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                here = here.rpartition(b"/")[0]
                continue
            there = here + b"/" + part
            if there in (b"/proc/self", b"/proc/thread-self"):
                there = b"/proc/%d" % pid
                self._lasting = False  # another process means another by it
            if there in self._folders:
                here = there
                continue
            try:
                target = os.readlink(there)
            except OSError as error:
                if error.errno != errno.EINVAL or not left:  # not there, or the last part
                    here = there
                    break
                here = there
                if self._remember and not there.startswith(b"/proc/"):
                    self._folders.add(there)
                continue
            self._keep(there)
            links += 1
            if links > _LINKS:
                return
            left += target.split(b"/")[::-1]
            if target.startswith(b"/"):
                here = b""
        self._keep(here)

    def _keep(self, path: bytes) -> None:
        if path == self._tree:
            self.paths.add(b"")
            self._kept.append(b"")
        elif path.startswith(self._inside):
            inside = path[len(self._inside) :]
            if inside.startswith(b".git/"):
                self.unknown = self.unknown or "it reads .git, which differs from commit to commit"
            elif inside != b".git":
                self.paths.add(inside)
                self._kept.append(inside)
