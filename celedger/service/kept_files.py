"""List the files that celedger keeps beside a repository and its ledger, their sizes, and which may
go.

Everything but logs and output folders can be made again, and goes when asked unless somebody uses
it. Logs and output folders are evidence, and stay.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from celedger.base.model import Bytes
from celedger.repo import Repository
from celedger.repo.checkouts import Checkouts
from celedger.system.cache import FolderCache, size_of
from celedger.trial.workplace import CACHES

STALE = 24 * 3600.0  # seconds since a suite's copy was last used: longer than any trial


@dataclass(frozen=True, slots=True)
class Item:
    """One thing, whether it stays, and how to remove it."""

    name: str
    size: Bytes
    stays: bool
    remove: Callable[[], bool]


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
        cache = FolderCache(state / name)
        parts[name] = [
            Item(e.path.name, e.size, e.in_use, partial(cache.drop, e.path.name))
            for e in cache.entries()
        ]
    parts["checkouts"] = [
        Item(path.name, size_of(path), used, partial(checkouts.remove, path))
        for path, used in slots
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
        yield Item(path.name, size_of(path), stays(path), partial(_delete, path))


def _delete(path: Path) -> bool:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:
        return False
    return True
