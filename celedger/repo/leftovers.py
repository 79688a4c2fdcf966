"""What a build left in a tree, remembered, and what came after it, undone.

Files only: knows no git. Never follows a symbolic link, so nothing outside the tree is touched.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Mode, size, time of change and inode, and a link's target: what changes when a file is written.
Key = tuple[int, int, int, int, str]


@dataclass(frozen=True, slots=True)
class Seal:
    """Paths relative to the tree. `files` are those git does not track, and `changed` ones that
    it does but the build rewrote (a deleted one has no key)."""

    tracked: frozenset[str]
    changed: frozenset[str]
    files: dict[str, Key]
    folders: frozenset[str]

    @classmethod
    def of(cls, tree: Path, tracked: frozenset[str], changed: frozenset[str]) -> Seal:
        files: dict[str, Key] = {}
        folders = set()
        for name, entry in _walk(tree):
            if entry.is_dir(follow_symlinks=False):
                folders.add(name)
            elif name not in tracked or name in changed:
                files[name] = _key(entry)
        return cls(tracked, changed, files, frozenset(folders))

    def undo(self, tree: Path) -> bool:
        """Delete what was not there. False where something that was there is changed or gone.
        Tracked files that the build left alone are git's to restore."""
        seen = set()
        whole = True
        for name, entry in _walk(tree, skip=lambda folder: folder not in self.folders):
            if entry.is_dir(follow_symlinks=False):
                if name not in self.folders:
                    delete(Path(entry.path))
            elif name in self.files:
                seen.add(name)
                whole = whole and _key(entry) == self.files[name]
            elif name not in self.tracked or name in self.changed:
                whole = whole and name not in self.changed  # deleted by the build, back again
                delete(Path(entry.path))
        for name in self.folders:
            (tree / name).mkdir(parents=True, exist_ok=True)
        return whole and len(seen) == len(self.files)


def _walk(
    tree: Path, skip: Callable[[str], bool] = lambda folder: False
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All entries below a tree, folders before what is in them, but for its own `.git`.
    Folders that `skip` names are given and not entered."""
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(tree / folder) as found:
            entries = list(found)
        for entry in entries:
            name = f"{folder}{entry.name}"
            if name == ".git":
                continue
            yield name, entry
            if entry.is_dir(follow_symlinks=False) and not skip(name):
                pending.append(f"{name}/")


def _key(entry: os.DirEntry[str]) -> Key:
    found = entry.stat(follow_symlinks=False)
    target = str(Path(entry.path).readlink()) if stat.S_ISLNK(found.st_mode) else ""
    return (found.st_mode, found.st_size, found.st_mtime_ns, found.st_ino, target)


def delete(path: Path) -> None:
    """Delete a file, a link (never what it points to) or a whole folder, if it is there."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path)
    except OSError:
        open_folders(path)
        shutil.rmtree(path)


def open_folders(path: Path) -> None:
    """Let the owner write in a folder and all folders below it, so that they can be deleted."""
    path.chmod(0o755)
    for above, folders, _ in os.walk(path):
        for name in folders:
            folder = Path(above) / name
            if not folder.is_symlink():
                folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IRWXU)
