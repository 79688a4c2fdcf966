"""A folder of things that were costly to make, each under the hash of what it was made from.

Who uses an entry holds a shared lock on its folder, who makes or removes one an exclusive one:
the kernel lets go of both however a process dies, so nothing in use is ever removed and an entry
that was never finished is made anew. Must not know what the entries are.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from celedger.errors import Interrupted, MachineError
from celedger.system.lock import Lock

FACTS = "facts.json"  # written last: an entry without it was never finished
_POLL = 0.05  # seconds between two looks at an entry that another process makes


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as it lies there: `size` in bytes, `used` the last use in seconds since the
    epoch; `facts` as they were given by who made it, None where it was never finished."""

    path: Path
    size: int
    used: float
    in_use: bool
    facts: Mapping[str, object] | None


class Held(Lock):
    """An entry in use, until it is closed or the process ends."""

    def __init__(self, path: Path, facts: Mapping[str, object], fd: int) -> None:
        super().__init__(path, fd)
        self.facts = facts


class Cache:
    """The entries of one folder. Times are the wall clock's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def use(self, key: str) -> Held | None:
        """The entry of a key, held; None where there is none, or another process makes it."""
        path = self.folder / key
        fd = _open(path)
        if fd is None:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            facts = _facts(path) if _is_still(path, fd) else None
            if facts is not None:
                os.utime(path / FACTS)
                return Held(path, facts, fd)
        except OSError:
            pass
        os.close(fd)
        return None

    def make(
        self,
        key: str,
        fill: Callable[[Path], Mapping[str, object]],
        *,
        stop: Callable[[], bool] | None = None,
    ) -> Held:
        """The entry of a key, made by `fill` (which is given its empty folder and returns its
        facts) unless another process made it meanwhile. What `fill` raises leaves no entry.
        Raises MachineError where the folder cannot be written, Interrupted when `stop()`."""
        path = self.folder / key
        while True:
            held = self.use(key)
            if held is not None:
                return held
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise MachineError(f"{path} cannot be made: {error.strerror}") from error
            fd = _open(path)
            if fd is not None and _lock(fd) and _is_still(path, fd):
                break
            if fd is not None:
                os.close(fd)
            if stop is not None and stop():
                raise Interrupted(f"stopped while another process makes {path}")
            time.sleep(_POLL)
        try:
            if (facts := _facts(path)) is None:
                facts = self._fill(path, fill)
            fcntl.flock(fd, fcntl.LOCK_SH)
            return Held(path, facts, fd)
        except BaseException:
            os.close(fd)
            raise

    def _fill(
        self, path: Path, fill: Callable[[Path], Mapping[str, object]]
    ) -> Mapping[str, object]:
        try:
            _empty(path)
            facts = dict(fill(path))
            draft = path / f"{FACTS}.new"
            draft.write_text(json.dumps({"size": size_of(path), "facts": facts}))
            draft.rename(path / FACTS)
            return facts
        except BaseException:
            with contextlib.suppress(OSError):
                shutil.rmtree(path)
            raise

    def drop(self, key: str) -> bool:
        """Remove an entry unless it is in use."""
        path = self.folder / key
        fd = _open(path)
        if fd is None:
            return False
        try:
            if not (_lock(fd) and _is_still(path, fd)):
                return False
            # First out of sight: a removal that is cut short must not leave half an entry.
            (path / FACTS).unlink(missing_ok=True)
            shutil.rmtree(path)
            return True
        except OSError:
            return False
        finally:
            os.close(fd)

    def entries(self) -> list[Entry]:
        """What lies there, the longest unused first."""
        found = []
        for path in _folders(self.folder):
            fd = _open(path)
            if fd is None:
                continue
            try:
                free = _lock(fd)
                text = _text(path)
                used = (path / FACTS if text else path).stat().st_mtime
                size = int(text["size"]) if text else size_of(path)  # type: ignore[call-overload]
                found.append(Entry(path, size, used, not free, _facts(path)))
            except (OSError, TypeError, ValueError):
                continue  # removed at this moment
            finally:
                os.close(fd)
        return sorted(found, key=lambda entry: entry.used)


def shrink(caches: Sequence[Cache], limit: int) -> int:
    """Remove the entries unused for longest until all together take at most `limit` bytes, and
    what was never finished. Nothing in use goes. Returns the bytes freed."""
    freed = 0
    for cache, entry in excess(caches, limit):
        if cache.drop(entry.path.name):
            freed += entry.size
    return freed


def excess(caches: Sequence[Cache], limit: int) -> list[tuple[Cache, Entry]]:
    """What `shrink` would remove."""
    all_ = [(cache, entry) for cache in caches for entry in cache.entries()]
    total = sum(entry.size for _, entry in all_)
    found = []
    for cache, entry in sorted(all_, key=lambda pair: (pair[1].facts is not None, pair[1].used)):
        if not entry.in_use and (entry.facts is None or total > limit):
            found.append((cache, entry))
            total -= entry.size
    return found


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_still(path: Path, fd: int) -> bool:
    """Whether the locked folder is the one of that name: another may have removed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except OSError:
        return False


def _text(path: Path) -> dict[str, object] | None:
    try:
        found = json.loads((path / FACTS).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"size", "facts"} <= set(found) else None


def _facts(path: Path) -> Mapping[str, object] | None:
    text = _text(path)
    facts = text["facts"] if text is not None else None
    return facts if isinstance(facts, dict) else None


def _folders(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from sorted(path for path in folder.iterdir() if path.is_dir())


def _empty(path: Path) -> None:
    for each in path.iterdir():
        shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()


def size_of(folder: Path) -> int:
    """Bytes that a folder takes on the disk; a file with two names counts once."""
    seen, total = set(), folder.lstat().st_blocks * 512 if not folder.is_dir() else 0
    for above, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                found = Path(above, name).lstat()
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    total += found.st_blocks * 512
    return total
