"""What of a tree was named, and which of its folders only Python's import system looked at.

A folder that is named in any way may have been listed, and counts with its listing. Where it was
the import system that named it, what can be told of it is that it is there, and which entries a
module that is sought there could come from: `child/importing.py` says which. Who asks only whether
it is a link, or makes it the current folder, learns nothing of what is in it, either: who lists
that has to name it once more. In doubt the listing counts.
Loaded by its path by reads.py, so it imports nothing of celedger.
"""

from __future__ import annotations

import os

_STATING = ("stat", "newfstatat", "statx")
_LOOKS = (*_STATING, "open", "openat")
_TELLING_NOTHING = ("readlink", "readlinkat", "chdir")  # but that it is there


class Looks:
    """`paths`: what was named, relative to the tree (`inside`: its path, with a slash behind).
    `folders`: what else was looked at; `sought`: folder -> names of modules."""

    def __init__(self, inside: bytes) -> None:
        self._inside = inside
        self.paths: set[bytes] = set()
        self.folders: set[bytes] = set()
        self.sought: dict[bytes, set[bytes]] = {}
        self._lost = False  # a message, so nobody knows what was sought
        self._next: dict[int, bytes] = {}  # thread: what its import system names next
        self._resolving: set[int] = set()  # threads in `os.path.realpath`
        # What a thread named since it executed a programme, which may turn out to be a Python, and
        # of this what that one says to have searched.
        self._starting: dict[int, set[bytes]] = {}
        self._started: dict[int, set[bytes]] = {}
        self._images: dict[int, list[bytes]] = {}  # of the threads that are about to execute

    def take(
        self, path: bytes, kept: tuple[bytes, ...], thread: int, call: str, follows: bool
    ) -> None:
        """Take in that a call names a path, which leads to `kept` in the tree. `follows`: it does
        so where that is a link."""
        expected = self._next.pop(thread, None) == path and call in _LOOKS
        if len(kept) == 1 and (
            (expected and self._name(path) == kept[0])
            or call in _TELLING_NOTHING
            or (thread in self._resolving and not follows)
        ):
            self.folders.update(kept)
        elif thread in self._starting:
            self._starting[thread].update(kept)
        else:
            self.paths.update(kept)

    def hear(self, verb: bytes, text: bytes, thread: int) -> bool:
        """What `child/importing.py` says; False where it is of no concern here alone."""
        if verb == b"look":
            self._next[thread] = text
        elif verb in (b"seek", b"start"):
            names, _, folder = text.partition(b"//")
            name = self._name(b"/" + folder)
            if name is not None:  # else it is named in another way than it is looked at
                self.sought.setdefault(name, set()).update(names.split(b"/"))
                if verb == b"start":
                    self._started.setdefault(thread, set()).add(name)
        elif verb == b"resolve":
            self._resolving.add(thread)
        elif verb == b"resolved":
            self._resolving.discard(thread)
        else:
            if verb == b"python":
                self._settle(thread)
                self._next.pop(thread, None)  # of another thread that had its number
                self._resolving.discard(thread)
            self._lost = self._lost or verb == b"lost"
            return False
        return True

    def begin(self, threads: tuple[int, ...]) -> None:
        """One of these executes something, and goes on as the last."""
        for thread in threads:
            self.paths.update(self._starting.pop(thread, ()))
            self._started.pop(thread, None)
            self._next.pop(thread, None)
            self._resolving.discard(thread)
        self._starting[threads[-1]] = set()
        self._images[threads[-1]] = _image(threads[0])

    def _settle(self, thread: int) -> None:
        """A Python says that it is one: did nothing but its import system look at the tree?"""
        named, searched = self._starting.pop(thread, set()), self._started.pop(thread, set())
        if not named:
            return
        try:
            executed = os.path.basename(os.readlink(f"/proc/{thread}/exe"))  # noqa: PTH115, PTH119
        except OSError:
            executed = ""
        before, now = self._images.pop(thread, []), _image(thread)
        fresh = bool(before and now) and before != now  # else the call may have failed
        looks = fresh and named <= searched and executed.startswith("python")
        (self.folders if looks else self.paths).update(named)

    def close(self) -> None:
        """Nothing is named any more."""
        for named in self._starting.values():
            self.paths.update(named)
        self._starting.clear()
        if self._lost:
            self.paths.update(self.folders)
        self.folders -= self.paths

    def _name(self, path: bytes) -> bytes | None:
        if path + b"/" == self._inside:
            return b""
        return path[len(self._inside) :] if path.startswith(self._inside) else None


def _image(thread: int) -> list[bytes]:
    """What tells the programme that a thread carries out from the one before: the addresses of its
    arguments and variables (proc(5): arg_start to env_end), which Linux chooses anew. Nothing where
    that is not known."""
    try:
        with open(f"/proc/{thread}/stat", "rb") as file:  # noqa: PTH123
            found = file.read().rpartition(b")")[2].split()[45:49]
    except OSError:
        return []
    return found if any(word != b"0" for word in found) else []
