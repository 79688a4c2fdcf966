"""Which Python sources of a tree were only imported, and what of them was entered.

`child/importing.py`, inside the Pythons of a trial, says when an import begins and ends, by calls
that name a path which cannot be; they come by here in their order among the thread's other calls.
A source that is named at any other time, or by a process that says nothing, was read for its text.
Loaded by its path by reads.py, so it imports nothing of celedger.
"""

# ruff: noqa: PTH123

from __future__ import annotations

import os
import re

SAYS = b"/.celedger-says/"  # as `child/importing.py` has it
_LOOKING = ("stat", "lstat", "newfstatat", "statx", "readlink", "readlinkat")
_INSTALLED = re.compile(rb"/(?:site|dist)-packages/(?:__pycache__/)?([^/]+)")
_SYSTEM = re.compile(rb"/(?:proc|sys|dev/(?!shm/))")
_STANDARD = re.compile(rb"(.*?/lib(?:64)?/python\d\.\d+/)", re.DOTALL)
COMPILED = re.compile(rb"(.*/)__pycache__/([^/]+?)\.[^/]*\.pyc", re.DOTALL)
# Files outside of the tree that may say what is done with it, whatever is in them.
SOURCES = (
    b".py", b".pth", b".sh", b".toml", b".yaml", b".yml", b".json", b".cfg", b".ini", b".txt",
    b".pyc", b".zip", b".whl", b".egg", b".pyz",
)  # fmt: skip
# And those that are data: by their suffix, unless something carries out what a file says, or by
# where they lie.
_DATA = (
    b".so", b".a", b".o", b".h", b".hpp", b".cuh", b".mo", b".csv", b".tsv", b".jsonl", b".npy",
    b".safetensors", b".arrow", b".parquet", b".h5", b".png", b".jpg", b".jpeg", b".wav", b".flac",
    b".mp3", b".mp4", b".gz", b".bz2", b".xz", b".zst", b".tar", b".log", b".db", b".sqlite",
    b".lock", b".webp", b".bmp", b".gif", b".tif", b".tiff", b".npz", b".pkl", b".pt", b".bin",
    b".tfrecord", b".ogg", b".xml", b".dcm", b".mat", b".hdf5",
)  # fmt: skip
_SOME = 2000  # files of data that are told: an image folder has millions
_MACHINE = re.compile(rb"/(?:etc|usr/(?:share|include|lib[^/]*))/")


class Sources:
    """`inside`: the tree's path, with a slash behind; `opening`: the calls by which a file is
    read."""

    SAYS = SAYS

    def __init__(self, inside: bytes, opening: tuple[str, ...]) -> None:
        self._inside, self._opening = inside, opening
        self._importing: dict[int, bytes] = {}  # thread: the source it reads
        self._pythons: set[int] = set()  # main threads of those that say what they import
        self._imported: dict[bytes, set[bytes]] = {}  # source: versions of Python
        self._text: set[bytes] = set()  # sources that were named otherwise
        self._entered: set[bytes] = set()
        self._reader = b""  # what takes code for data
        self._packages: set[bytes] = set()
        self._foreign: set[bytes] = set()
        self._data: set[bytes] = set()
        self._standard: dict[bytes, bool] = {}  # folders that may be a standard library

    def found(self) -> dict[str, object]:
        """`imported`: sources of the tree and the versions of Python that imported them (with a
        last digit 1 where they say what they enter); `text`: those read otherwise; `entered`: path,
        line, qualified name; `reader`: what takes code for data; `packages`: installed ones that
        were opened; `foreign`: other files outside of the tree; `data`: more of these, that are so
        by their suffix (where there are very many, the first)."""
        return {
            "imported": {path: sorted(found) for path, found in self._imported.items()},
            "text": sorted(self._text),
            "entered": sorted(self._entered),
            "reader": self._reader,
            "packages": sorted(self._packages),
            "foreign": sorted(self._foreign),
            "data": sorted(self._data),
        }

    def hear(self, verb: bytes, text: bytes, thread: int) -> bytes:
        """What `child/importing.py` says. The path, where it begins to import a source."""
        if verb == b"begin":
            version, _, path = text.partition(b"/")
            path = os.path.normpath(b"/" + path)  # where a link goes another way, nobody opens it
            self._importing[thread] = path
            if path.startswith(self._inside):
                self._imported.setdefault(path[len(self._inside) :], set()).add(version)
                return path
        elif verb == b"end":
            self._importing.pop(thread, None)
        elif verb == b"python":
            self._pythons.add(thread)
        elif verb == b"entered":
            path, sign, rest = text.partition(b"\x1f")
            self._entered.add(os.path.normpath(path) + sign + rest if b"/." in path else text)
        elif verb == b"package":
            self._packages.add(text)
        else:
            self._reader = self._reader or text or verb
        return b""

    def doubt(self, thread: int) -> None:
        """What is imported there now has another name for its code than its path."""
        self._imported.pop(self._importing[thread][len(self._inside) :], None)
        self._importing[thread] = b"/"  # no path: all that it reads now counts whole

    def forget(self, thread: int) -> tuple[int, int]:
        """A thread that executes something is its process's only one from then on, by the number of
        the second of these."""
        group = thread
        try:
            with open(f"/proc/{thread}/status", "rb") as file:
                group = int(re.findall(rb"^Tgid:\s*(\d+)", file.read(), re.MULTILINE)[0])
        except (OSError, IndexError):
            pass
        for number in (thread, group):
            self._pythons.discard(number)
            self._importing.pop(number, None)
        return thread, group

    def weigh(self, path: bytes, kept: tuple[bytes, ...], thread: int, call: str) -> None:
        """Take in that a call names a path, which leads to `kept` in the tree: which sources are
        read as text, and what is opened elsewhere."""
        at = self._importing.get(thread)
        for inside in kept:
            if not inside.endswith(b".py"):
                continue
            if at is not None:
                own = at == self._inside + inside
            else:  # finding a module, or where one is: what a `stat` tells has a name in Python
                own = call in _LOOKING and thread in self._pythons
            if not own:
                self._text.add(inside)
        if at and path.endswith(b".pyc") and os.path.lexists(path):
            self._text.add(at[len(self._inside) :])  # its own compiled code was there
        if not kept and call in self._opening:
            installed = _INSTALLED.search(path)
            if installed:
                self._packages.add(installed[1])
            elif path.lower().endswith(_DATA) and not call.startswith("execve"):
                some = len(self._data) <= _SOME and path not in self._data
                place = _SYSTEM.match(path) or _MACHINE.match(path) or self._is_standard(path)
                if some and not place and os.path.lexists(path):
                    self._data.add(path)
            elif not (
                _SYSTEM.match(path)
                or self._is_standard(path)
                or (not os.path.lexists(path) if path.endswith(SOURCES) else _MACHINE.match(path))
            ):
                compiled = COMPILED.fullmatch(path)
                self._foreign.add(compiled[1] + compiled[2] + b".py" if compiled else path)

    def _is_standard(self, path: bytes) -> bool:
        """Whether it lies in the standard library of an interpreter, which never depends on the
        tree. A folder of that name may be anyone's: that one has no `os`."""
        found = _STANDARD.match(path)
        if found is None:
            return False
        if found[1] not in self._standard:
            self._standard[found[1]] = os.path.lexists(found[1] + b"os.py")
        return self._standard[found[1]]
