"""What lay in each folder of a tree, remembered, so that what came later is found without looking
at every file: a folder whose time of change is the same holds the same names.

Names only: what is in the files git compares itself. Knows no git but for two of its file names.
Never follows a symbolic link, so nothing outside the tree is read or deleted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from celedger.repo.leftovers import delete

_RACY = -1  # the stamp of a folder that may have changed since in the same tick of the clock
_ATTRIBUTES = ".gitattributes"


@dataclass(frozen=True, slots=True)
class Folder:
    """`stamp` is the time of change (ns) when it was read, or _RACY; `mode` its permissions;
    `entries` each name's kind (d folder, l link, f file, o other); `below` the folders among them;
    `attributes` what tells one .gitattributes from another."""

    stamp: int
    mode: int
    entries: dict[str, str]
    below: tuple[str, ...]
    attributes: tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of `tree` by relative name ("" the tree itself), parents first."""

    tree: Path
    known: dict[str, Folder]

    @classmethod
    def read(cls, tree: Path, clock: Callable[[], int]) -> Folders:
        return cls(tree, {}).again(clock)

    def again(self, clock: Callable[[], int]) -> Folders:
        """What is there now; only folders that changed are read. `clock` gives the time (ns) of
        the file system's own clock. Raises OSError where a folder cannot be read."""
        # A change after the reading gets a later time than one before it only if the clock has
        # ticked in between (git's "racy git" problem): such a folder is read the next time too.
        now = clock()
        found: dict[str, Folder] = {}
        pending = [""]
        while pending:
            name = pending.pop()
            place = self.tree / name
            state = place.lstat()
            stamp = state.st_ctime_ns
            folder = self.known.get(name)
            if folder is None or folder.stamp != stamp:
                stamp = stamp if stamp < now else _RACY
                folder = _read(place, stamp, stat.S_IMODE(state.st_mode), top=not name)
            found[name] = folder
            pending += [_join(name, each) for each in folder.below]
        return Folders(self.tree, found)

    def sweep(self) -> list[str]:
        """Delete what is not among the known names, or is of another kind, and give folders back
        their modes; returns what went. What is missing stays so. Raises OSError where something
        cannot be deleted."""
        gone = []
        for name, folder in self.known.items():
            place = self.tree / name
            try:
                found = place.lstat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            if not stat.S_ISDIR(found.st_mode):
                if not name:
                    raise NotADirectoryError(str(place))
                continue  # its parent, which came before, has let it go
            if found.st_ctime_ns == folder.stamp:
                continue
            if stat.S_IMODE(found.st_mode) != folder.mode:
                place.chmod(folder.mode)
            for entry, kind in _entries(place, top=not name):
                if folder.entries.get(entry) != kind:
                    delete(place / entry)
                    gone.append(_join(name, entry))
        return gone

    def since(self, before: Folders) -> tuple[list[str], list[str]]:
        """The folders, and the other entries, that are here and were not before."""
        folders, files = [], []
        for name, folder in self.known.items():
            old = before.known.get(name)
            if old is folder:
                continue
            if old is None:
                folders.append(name)
            was = old.entries if old is not None else {}
            files += [
                _join(name, entry)
                for entry, kind in folder.entries.items()
                if kind != "d" and was.get(entry) != kind
            ]
        return folders, files

    def holds(self, name: str) -> bool:
        """Whether something has this relative name."""
        folder, _, entry = name.rpartition("/")
        return folder in self.known and entry in self.known[folder].entries

    @property
    def attributes(self) -> dict[str, tuple[int, int, int]]:
        return {n: f.attributes for n, f in self.known.items() if f.attributes is not None}


def _read(place: Path, stamp: int, mode: int, *, top: bool) -> Folder:
    entries = dict(_entries(place, top=top))
    attributes = None
    if _ATTRIBUTES in entries:
        found = (place / _ATTRIBUTES).lstat()
        attributes = (found.st_ino, found.st_size, found.st_ctime_ns)
    below = tuple(name for name, kind in entries.items() if kind == "d")
    return Folder(stamp, mode, entries, below, attributes)


def _entries(place: Path, *, top: bool) -> Iterator[tuple[str, str]]:
    with os.scandir(place) as found:
        entries = list(found)
    for entry in entries:
        if top and entry.name == ".git":
            continue
        if entry.is_symlink():
            kind = "l"
        elif entry.is_dir(follow_symlinks=False):
            kind = "d"
        else:
            kind = "f" if entry.is_file(follow_symlinks=False) else "o"
        yield entry.name, kind


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
