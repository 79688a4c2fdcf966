"""What celedger keeps beside a repository and its ledger, how large it is, and what of it may go.

Everything but logs and output folders can be made again, and goes when asked unless somebody uses
it. Logs and output folders are evidence: they go only past a stated age, once their trial is over.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from celedger.model import Bytes, Seconds
from celedger.repo import Repository
from celedger.repo.checkouts import Checkouts
from celedger.system.cache import Cache, size_of
from celedger.trial.workplace import CACHES

STALE = 24 * 3600.0  # seconds since a suite's copy was last used: longer than any trial


@dataclass(frozen=True, slots=True)
class Item:
    """`keep` says why it stays ("" for what may go)."""

    name: str
    size: Bytes
    keep: str
    remove: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Part:
    """All that is kept of one sort."""

    name: str
    items: tuple[Item, ...]

    @property
    def size(self) -> Bytes:
        return sum(item.size for item in self.items)

    @property
    def spare(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if not item.keep)


def survey(
    repository: Repository,
    home: Path,
    *,
    now: float,
    running: Collection[str] = (),
    older_than: Seconds | None = None,
) -> list[Part]:
    """Return what there is. `home` is the ledger's folder, `running` the ulids of trials that are
    not over; logs and outputs older than `older_than` may go (None: none may)."""
    checkouts = Checkouts(repository)
    slots = checkouts.slots()
    busy = bool(running) or any(used for _, used in slots)
    state, own = repository.state_dir, home / ".celedger"

    def of_copy(path: Path) -> str:
        unused = now - path.stat().st_mtime > STALE
        return "a trial runs" if busy else "" if unused else "used within a day"

    def of_evidence(path: Path) -> str:
        if path.name.removesuffix(".log") in running:
            return "its trial runs"
        if older_than is None:
            return "evidence"
        return "" if now - path.stat().st_mtime > older_than else "not old enough"

    return [
        *(Part(name, _cached(Cache(state / name))) for name in CACHES),
        Part("checkouts", tuple(
            Item(path.name, size_of(path), "in use" if used else "",
                 partial(checkouts.remove, path))
            for path, used in slots
        )),
        Part("copies of suites", _below(of_copy, state / "suites", state / "child")),
        Part("logs", _below(of_evidence, own / "logs")),
        Part("output folders", _below(of_evidence, own / "out")),
    ]  # fmt: skip


def prune(part: Part) -> tuple[int, Bytes]:
    """Remove what may go; return how many went, and their bytes. What somebody has begun to use
    since stays."""
    gone = [item for item in part.spare if item.remove()]
    return len(gone), sum(item.size for item in gone)


def _cached(cache: Cache) -> tuple[Item, ...]:
    return tuple(
        Item(entry.path.name, entry.size, "in use" if entry.in_use else "",
             partial(cache.drop, entry.path.name))
        for entry in cache.entries()
    )  # fmt: skip


def _below(keep: Callable[[Path], str], *folders: Path) -> tuple[Item, ...]:
    """Return what lies in folders, but for dotfiles."""
    paths = [path for folder in folders for path in sorted(folder.glob("[!.]*"))]
    return tuple(Item(p.name, size_of(p), keep(p), partial(_delete, p)) for p in paths)


def _delete(path: Path) -> bool:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:
        return False
    return True
