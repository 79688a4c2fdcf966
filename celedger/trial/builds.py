"""The files that a suite's build commands add to a commit's tree: built once for equal inputs,
cached, and restored before each trial.

The cache key is the files that the suite declares as `inputs`, else the commit's tree. An entry has
the files that the build added to the tree and to the suite's copy, each as an archive, so that a
trial cannot change it by writing into its own files. Byte-code is not cached, nor a build that
rewrites files of the commit.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from celedger.base.errors import MachineError
from celedger.base.model import Bytes, Commit, OutcomeKind, Task
from celedger.repo import Repository
from celedger.repo.checkouts import Checkout
from celedger.repo.filters import attributes_above
from celedger.system.cache import FolderCache, shrink


@dataclass
class Builds:
    """The builds of one command. `limit` bounds the size of all `caches` together."""

    repository: Repository
    cache: FolderCache
    caches: tuple[FolderCache, ...]
    limit: Bytes
    _failed: dict[str, tuple[str, str]] = field(default_factory=dict)  # key: commit, reason

    def provide(
        self,
        commit: Commit,
        task: Task,
        checkout: Checkout,
        suite: Path,
        surroundings: Mapping[str, object],
        build: Callable[[], tuple[OutcomeKind, str]],
    ) -> tuple[OutcomeKind, str]:
        """Restore a cached build in a checkout that is at the commit, or call `build` there: return
        `ok`, or the outcome and the reason. `suite` is the suite's copy, `surroundings` are all
        inputs of a build besides the tree. This command does not retry a failed build."""
        inputs = self._inputs(commit, task)
        # A build may contain the path where it was made: each slot has its own.
        around = {**surroundings, "path": str(checkout.path), "written": checkout.manner}
        key = _hash({**around, "inputs": inputs or commit.tree})
        sha, reason = self._failed.get(key, ("", ""))
        if sha:
            alike = f" (so at {sha[:10]}, whose inputs are the same)" if sha != commit.sha else ""
            return OutcomeKind.UNTESTABLE, reason + alike
        if self._bring(key, checkout, suite):
            return OutcomeKind.OK, ""
        laid = set(_names(suite))
        kind, reason = build()
        if kind is OutcomeKind.OK:
            tracked = checkout.tracked()
            tracked |= {str(folder) for name in tracked for folder in Path(name).parents}
            products = {
                checkout.path: [n for n in _names(checkout.path) if n not in tracked],
                suite: [n for n in _names(suite) if n not in laid],
            }
            if not checkout.changed():  # a build that rewrote files of the commit is not cached
                self._keep(key, products)
        elif kind is not OutcomeKind.KILLED:
            self._failed[key] = commit.sha, reason
            kind = OutcomeKind.UNTESTABLE
        return kind, reason

    def _inputs(self, commit: Commit, task: Task) -> dict[str, str]:
        """Return the files that match the suite's globs, and the attributes that decide how git
        writes them, each with mode and blob. Empty if no file matches."""
        inputs = self.repository.matching(commit.sha, task.inputs)
        above = sorted(attributes_above(map(os.fsencode, inputs)))
        return inputs | self.repository.matching(commit.sha, map(os.fsdecode, above))

    def _keep(self, key: str, products: Mapping[Path, list[str]]) -> None:
        """Archive the build's files by the folder that holds them, unless they are larger than the
        whole cache. A build that is not cached runs again for each trial."""
        paths = [folder / name for folder, names in products.items() for name in names]
        if sum(path.lstat().st_size for path in paths) > self.limit:
            return

        def fill(home: Path) -> Mapping[str, object]:
            archives = [home / f"{number}.tar" for number in range(len(products))]
            for archive, (folder, names) in zip(archives, products.items(), strict=True):
                with tarfile.open(archive, "w") as tar:
                    for name in names:
                        tar.add(folder / name, name, recursive=False)
            return {}

        try:
            self.cache.make(key, fill).close()
        except (MachineError, OSError):
            return  # the disk is full: the next trial builds again
        shrink(self.caches, self.limit)

    def _bring(self, key: str, checkout: Checkout, suite: Path) -> bool:
        """Unpack a cached build. Return False if there is none, if it cannot be read, if the commit
        has a file of that name, or if a link on the way leads out of the folder."""
        entry = self.cache.use(key)
        if entry is None:
            return False
        with entry:
            try:
                if _unpack(entry.path, checkout, suite):
                    return True
            except (OSError, tarfile.TarError):
                entry.close()
                self.cache.drop(key)
        checkout.move_to(checkout.commit)
        return False


def _unpack(home: Path, checkout: Checkout, suite: Path) -> bool:
    """Unpack the archives of an entry. Return False if the commit has a file of that name, or a
    link on the way leads out of the folder. Raises OSError or TarError if one cannot be read."""
    tracked: Collection[str] = checkout.tracked()
    for number, folder in enumerate((checkout.path.resolve(), suite.resolve())):
        with tarfile.open(home / f"{number}.tar") as tar:
            for name in tar.getnames():
                if name in tracked or not (folder / name).parent.resolve().is_relative_to(folder):
                    return False
            # celedger made them on this machine; Python before 3.11.4 has no filters of its own.
            tar.extraction_filter = lambda member, _: member
            tar.extractall(folder)
        tracked = ()  # of the suite's copy nothing is
    return True


def _names(top: Path, above: str = "") -> Iterator[str]:
    """Yield the names in a folder, folders before their content, without byte-code and a
    repository's own files."""
    for entry in sorted(os.scandir(top / above), key=lambda entry: entry.name):
        if entry.name in (".git", "__pycache__") or entry.name.endswith(".pyc"):
            continue
        yield above + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _names(top, f"{above}{entry.name}/")


def _hash(facts: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
