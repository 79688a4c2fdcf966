"""Folders of celedger: caches (builds, environments, copies), and the list of all files beside a
repository and its ledger, with their size and whether they may be deleted.

The name of a cache entry is the hash of what it was made from. A user of an entry has a shared lock
on its folder, and who makes or removes one an exclusive lock. The kernel releases both however a
process dies, so nothing in use is removed, and an unfinished entry is made anew. Everything but
logs and output folders can be made again and is deleted on request unless it is in use. Logs and
output folders are evidence, and stay. Must not know what the entries are.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from celedger.base import files
from celedger.base.errors import explained
from celedger.base.files import Lock
from celedger.base.model import Bytes
from celedger.repo import Repository
from celedger.repo.checkouts import Checkouts, delete

FACTS = "facts.json"  # written last: an entry without it was never finished
_POLL = 0.05  # seconds between two looks at an entry that another process makes

Fill = Callable[[Path], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that lies there: its size, whether it stays, as what is in use does, how to remove
    it, and of a cache's entry when it was used last, in seconds since the epoch; 0 for what was
    never finished."""

    path: Path
    size: Bytes
    stays: bool
    remove: Callable[[], bool]
    used: float = 0.0


class Held(Lock):
    """An entry in use, until it is closed or the process ends; `facts` are its maker's."""

    def __init__(self, path: Path, fd: int, facts: Mapping[str, object]) -> None:
        super().__init__(path, fd)
        self.facts = facts


class FolderCache:
    """The entries of one folder. Times are the wall clock's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def use(self, key: str) -> Held | None:
        """Return the entry of a key, held; None where there is none, or another process makes
        it."""
        path = self.folder / key
        fd = _lock(path, fcntl.LOCK_SH)
        if fd is None:
            return None
        try:
            facts = json.loads((path / FACTS).read_text())["facts"]
            os.utime(path / FACTS)
            return Held(path, fd, facts)
        except (OSError, ValueError, LookupError, TypeError):  # never finished, or damaged
            os.close(fd)
            return None

    def make(self, key: str, fill: Fill) -> Held:
        """Return the entry of a key, made by `fill` (which is given its empty folder and returns
        its facts) unless another process made it meanwhile. What `fill` raises leaves no entry.
        Raises MachineError where the folder cannot be written."""
        path = self.folder / key
        while (entry := self.use(key)) is None:
            with explained(f"{path} cannot be made"):
                path.mkdir(parents=True, exist_ok=True)
            fd = _lock(path, fcntl.LOCK_EX)
            if fd is None:
                time.sleep(_POLL)
                continue
            try:
                for file in path.iterdir():
                    delete(file)
                facts = dict(fill(path))
                files.replace(path / FACTS, json.dumps({"facts": facts}).encode())
            except BaseException:
                with contextlib.suppress(OSError):
                    shutil.rmtree(path)
                raise
            finally:
                os.close(fd)
        return entry

    def drop(self, key: str) -> bool:
        """Remove an entry unless it is in use."""
        path = self.folder / key
        fd = _lock(path, fcntl.LOCK_EX)
        if fd is None:
            return False
        try:
            # First out of sight: a removal that is cut short must not leave half an entry.
            (path / FACTS).unlink(missing_ok=True)
            shutil.rmtree(path)
            return True
        except OSError:
            return False
        finally:
            os.close(fd)

    def entries(self) -> list[Item]:
        """Return what lies there, the longest unused first."""
        entries = []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            fd = _lock(path, fcntl.LOCK_EX)
            with contextlib.suppress(OSError):  # removed at this moment, or never finished
                used = (path / FACTS).stat().st_mtime if (path / FACTS).exists() else 0.0
                remove = partial(self.drop, path.name)
                entries.append(Item(path, size_of(path), fd is None, remove, used))
            if fd is not None:
                os.close(fd)
        return sorted(entries, key=lambda entry: entry.used)


def shrink(caches: Sequence[FolderCache], limit: int) -> int:
    """Remove the entries unused for longest until all together take at most `limit` bytes, and
    what was never finished. Nothing in use goes. Returns the bytes freed."""
    entries = [entry for cache in caches for entry in cache.entries()]
    total, freed = sum(entry.size for entry in entries), 0
    for entry in sorted(entries, key=lambda entry: entry.used):
        surplus = not entry.used or total - freed > limit
        if surplus and not entry.stays and entry.remove():
            freed += entry.size
    return freed


def _lock(path: Path, kind: int) -> int | None:
    """Return a descriptor of a folder that is locked; None where there is no such folder, or
    another process locks it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        if os.path.samestat(path.stat(), os.fstat(fd)):  # else another has removed it
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def size_of(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk."""
    total = 0
    for above, folders, names in os.walk(folder):
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                total += Path(above, name).lstat().st_blocks * 512
    return total or folder.lstat().st_blocks * 512


CACHES = ("builds", "venvs")  # folders of `Repository.state_dir`
STALE = 24 * 3600.0  # seconds since a suite's copy was last used: longer than any trial


def survey(
    repository: Repository,
    private: Path,
    *,
    now: float,
    busy: bool,
) -> dict[str, list[Item]]:
    """Return what there is of each sort. `private` is the folder of celedger's files beside the
    ledger. While trials run (`busy`), copies of suites stay."""
    checkouts = Checkouts(repository)
    slots = checkouts.slots()
    busy |= any(used for _, used in slots)
    state = repository.state_dir

    def copy_stays(path: Path) -> bool:
        return busy or now - path.stat().st_mtime <= STALE

    parts: dict[str, list[Item]] = {}
    for name in CACHES:
        parts[name] = FolderCache(state / name).entries()
    parts["checkouts"] = [
        Item(path, size_of(path), used, partial(checkouts.remove, path)) for path, used in slots
    ]
    parts["copies of suites"] = [
        *_below(state / "suites", copy_stays), *_below(state / "child", copy_stays)
    ]  # fmt: skip
    parts["logs"] = [*_below(private / "logs", lambda _: True)]
    parts["output folders"] = [*_below(private / "out", lambda _: True, "*/")]
    return parts


def prune(items: Iterable[Item]) -> list[Item]:
    """Remove what may go, and return it. What somebody has begun to use since stays."""
    return [item for item in items if not item.stays and item.remove()]


def _below(folder: Path, stays: Callable[[Path], bool], depth: str = "") -> Iterator[Item]:
    """Yield what lies in a folder, but for dotfiles; with a `depth` of `*/` in its folders."""
    for path in sorted(folder.glob(f"{depth}[!.]*")):
        yield Item(path, size_of(path), stays(path), partial(_delete, path))


def _delete(path: Path) -> bool:
    with contextlib.suppress(OSError):
        delete(path)
        return True
    return False
