"""Records what a tree of processes names of some folders: every path that any of them hands to the
kernel, found or not. The supervisor loads it by its path, so it imports nothing of celedger.

A seccomp filter, which every descendant inherits and none can shed, hands each system call that
takes a path to this process before it is carried out (seccomp_unotify(2)). Unlike inotify this
shows what was looked for in vain, what was only `stat`ed, and the links that were followed; nothing
can overflow, and no moment before the watch begins is missed. The filter sees the numbers of a call
and not its strings, so a call costs a switch to this thread and back (benchmarks/reuse.py).

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
import sys

TYPE_CHECKING = False  # importing `typing` would cost the supervisor as much as all the rest
if TYPE_CHECKING:
    from typing import Any

MOST = 200_000  # paths of one command; a trial that names more stands for no other
_AT_CWD = -100
_IN_ROOT = 0x10  # of openat2(2): absolute paths begin at the descriptor
_PATH_MAX = 4096
_AF_UNIX = _socket.AF_UNIX.to_bytes(2, sys.byteorder)
_SOCKADDR = 110  # bytes of the longest sockaddr_un
_PASSING = re.compile(rb"/proc/|^/dev/")  # what means something else once a file is closed
_SCRIPTS = 6  # more than the kernel follows
_LINKS = 40  # as many links does the kernel follow before it says ELOOP


def _module(name: str) -> Any:
    """A module in this folder, loaded by its path as this one was."""
    loader: Any = sys.modules["_frozen_importlib_external"]
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")  # noqa: PTH100, PTH118, PTH120
    module = loader.SourceFileLoader(f"celedger_{name}", file).load_module()
    del sys.modules[module.__name__]  # what a launcher has there, its trials have too
    return module


_calls = _module("calls")


def parse(record: bytes) -> tuple[str, set[bytes], set[bytes]] | None:
    """Return what `Record.write` wrote: why nothing is known, the paths that were opened and those
    that were only looked at. None where the file was cut short."""
    parts = record.split(b"\0\0")
    if len(parts) != 4 or parts[3]:
        return None
    opened, looked = (set(part.split(b"\0")) - {b""} for part in parts[1:3])
    return os.fsdecode(parts[0]), opened, looked


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Watch:
    """A recording between two processes: made before the fork, `begin` called in the one to be
    watched, `serve` in a thread of the other."""

    def __init__(self, tree: str, beside: str = "") -> None:
        self.record = Record(tree, beside)
        self.record.unknown = "this system does not tell what is read"  # until it does
        self._ours, self._theirs = _socket.socketpair()

    def begin(self) -> None:
        """From here on every path that this process names is recorded."""
        fd = _calls.install()
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


class Record:
    """The absolute paths in `tree`, and in the folders `beside` it (joined by "//", which no path
    has inside), that were `opened` and those that were only `looked` at: of these a process learns
    what `stat` tells, and neither content nor listing."""

    def __init__(self, tree: str, beside: str = "") -> None:
        self.opened: set[bytes] = set()
        self.looked: set[bytes] = set()
        self.unknown = ""
        folders = [tree, *filter(None, beside.split("//"))]
        real = [os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/" for folder in folders]
        self._tree, self._recorded = real[0], tuple(real)
        machine = os.uname().machine
        known = _calls.ARCHITECTURES
        column = list(known).index(machine) if machine in known else 0
        self._architecture = known.get(machine, (0, 0))[0]
        self._names: dict[int, str] = _calls.numbers(column)[0]
        self._blind = {row[column]: name for name, row in _calls.BLIND.items()}
        self._folders: set[bytes] = set()  # known to be no links
        self._remember = True
        self._busy = _thread.allocate_lock()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._buffer = ctypes.create_string_buffer(2 * _PATH_MAX)
        self._local = _Vector(ctypes.addressof(self._buffer), 2 * _PATH_MAX)
        self._remote = (_Vector * 2)()

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
        with open(path, "wb") as file:
            file.write(b"\0\0".join(parts))

    def serve(self, fd: int) -> None:
        """Let every call go on, noting what it names. Returns when nobody is filtered any more."""
        blank = bytes(_calls.NOTIFICATION.size)
        while True:
            try:
                row = _calls.NOTIFICATION.unpack(fcntl.ioctl(fd, _calls.RECEIVE, blank))
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.ENOENT:  # the caller was killed in that moment
                    continue
                return
            with self._busy:
                self._take(fd, row)

    def _take(self, fd: int, row: tuple[int, ...]) -> None:
        answer = struct.pack("<QqiI", row[0], 0, 0, _calls.CONTINUE)
        try:
            named = self._named(row)
            if self._remember and not any(map(_PASSING.search, named)):
                # The caller may go on already: what changes the meaning of a path comes by here
                # too, and waits.
                self._send(fd, answer)
                answer = b""
            call = self._names.get(row[3])
            for path in named:
                *way, end = self._follow(path, row[1])
                self.looked.update(filter(self._is_recorded, way))
                if self._is_recorded(end):
                    (self.opened if call in _calls.TAKING else self.looked).add(end)
                    if call in _calls.RENAMING:
                        self._move(end)
        except Exception as error:
            self.unknown = self.unknown or f"a system call was not understood: {error!r}"
        finally:
            if answer:
                self._send(fd, answer)

    @staticmethod
    def _send(fd: int, answer: bytes) -> None:
        try:
            fcntl.ioctl(fd, _calls.SEND, answer)
        except OSError:  # its process was killed
            pass

    def _named(self, row: tuple[int, ...]) -> list[bytes]:
        """The absolute paths that a call names, as it names them."""
        pid, number, architecture, arguments = row[1], row[3], row[4], row[6:]
        name = self._names.get(number)
        if architecture != self._architecture or name is None:
            call = self._blind.get(number, f"system call {number} of {architecture:x}")
            self.unknown = self.unknown or f"it uses {call}, which may read without being seen"
            return []
        found: list[bytes | None] = []
        if name in _calls.ADDRESSES:
            found.append(self._absolute(self._socket(pid, name, arguments), pid))
        for at, base in _calls.PATHS[name][2] if name in _calls.PATHS else ():
            path = self._string(pid, arguments[at])
            if path is None or (not path and name not in ("execveat", "linkat")):
                continue  # the call ends in EFAULT or ENOENT, or is about a descriptor
            folder = _AT_CWD
            if base >= 0:
                folder = ctypes.c_int32(arguments[base] & 0xFFFFFFFF).value
            found.append(self._absolute(path, pid, folder))
        paths = list(filter(None, found))
        if name in _calls.RELINKING:
            self._remember = False
            self._folders.clear()
        if name == "openat2":
            how = self._text(pid, arguments[2])  # struct open_how
            if how is not None and len(how) >= 24 and how[16] & _IN_ROOT:
                self.unknown = self.unknown or "it opens a file by openat2 with a root of its own"
        if name.startswith("execve"):
            for path in paths:  # grows: an interpreter may be a script, as in binfmt_script.c
                paths += self._interpreter(path, pid) if len(paths) < _SCRIPTS else []
        return paths

    @staticmethod
    def _absolute(path: bytes | None, pid: int, folder: int = _AT_CWD) -> bytes | None:
        """A path that a process names, relative to what it has open as a `folder`; None where it
        has no such thing."""
        if path is None or path.startswith(b"/"):
            return path
        where = "cwd" if folder == _AT_CWD else f"fd/{folder}"
        try:
            return os.readlink(b"/proc/%d/%s" % (pid, where.encode())) + b"/" + path
        except OSError:  # EBADF for the caller, or it is gone
            return None

    def _socket(self, pid: int, name: str, arguments: tuple[int, ...]) -> bytes | None:
        """The path in the address of a socket; None where it has none."""
        at, size = _calls.ADDRESSES[name][2:]
        text = self._text(pid, arguments[at]) or b""
        # It may end without a NUL; what begins with one is no path.
        path = text[2 : min(arguments[size] & 0xFFFFFFFF, _SOCKADDR)].partition(b"\0")[0]
        return path if path and text[:2] == _AF_UNIX else None

    def _string(self, pid: int, address: int) -> bytes | None:
        """The string at an address of another process; None where there is none."""
        text = self._text(pid, address)
        if text is None:
            return None
        end = text.find(b"\0")
        return text[:end] if 0 <= end < _PATH_MAX else None

    def _text(self, pid: int, address: int) -> bytes | None:
        """What lies there, up to two pages."""
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
        return self._buffer.raw[:size]

    def _interpreter(self, path: bytes, pid: int) -> list[bytes]:
        """What the kernel itself opens to execute a file."""
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                head = file.read(_PATH_MAX)
        except OSError:
            return []
        if head.startswith(b"#!"):
            words = head[2:].split(b"\n")[0].split()[:1]
            return list(filter(None, (self._absolute(word, pid) for word in words)))
        odd = head.startswith(b"\x7fELF") and not (b"/ld-linux" in head or b"/ld-musl" in head)
        if odd and os.path.realpath(path).startswith(self._tree):
            self.unknown = self.unknown or "it runs a programme with a loader of its own"
        return []

    def _move(self, top: bytes) -> None:
        """Note what a rename is about to take along: all that lies below a folder. Who reads it
        afterwards names it by a path at which no tree has anything."""
        if self._tree.startswith(top + b"/"):
            self.unknown = self.unknown or "it moves the tree itself"
            return
        for above, folders, files in os.walk(top, onerror=self._fails):
            self.opened.update(above + b"/" + name for name in (*folders, *files))
            if len(self.opened) > MOST:
                return

    def _fails(self, error: OSError) -> None:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            self.unknown = self.unknown or f"a folder that it moves cannot be read: {error}"

    def _follow(self, path: bytes, pid: int) -> list[bytes]:
        """Return every link on the way of a path, what had to be there, and where it leads."""
        left = path.split(b"/")[::-1]
        here, links = b"", 0
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
            if there in self._folders:
                here = there
                continue
            try:
                target = os.readlink(there)
            except OSError as error:
                if links and error.errno != errno.EINVAL and there.startswith(b"/proc/"):
                    # A link led there, and the caller may have gone on and closed it.
                    self.unknown = self.unknown or "it reads by a link to what it has open"
                here = there
                if error.errno != errno.EINVAL or not left:  # not there, or the last part
                    break
                if self._remember and not there.startswith(b"/proc/"):
                    self._folders.add(there)
                continue
            met.append(there)
            links += 1
            if links > _LINKS:
                here = there
                break
            left += target.split(b"/")[::-1]
            if target.startswith(b"/"):
                here = b""
        return [*met, here or b"/"]

    def _is_recorded(self, path: bytes) -> bool:
        return (path.rstrip(b"/") + b"/").startswith(self._recorded)
