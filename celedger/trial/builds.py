"""What a suite's build commands make in a commit's tree: made once for equal inputs, kept, and
brought back before each trial.

A build is known by the files that the suite declares as `inputs`, else by the commit's tree. What
is kept is what the build added to the tree and to the suite's copy: an archive of each, so that a
trial that writes into what it was given cannot reach it. Byte-code is not kept, nor a build that
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

from celedger.errors import MachineError
from celedger.model import Bytes, Commit, OutcomeKind, Task
from celedger.repo import Repository
from celedger.repo.checkouts import Checkout
from celedger.repo.filters import attributes_above
from celedger.system.cache import Cache, Held, shrink


@dataclass
class Builds:
    """The builds of one command. `limit` bounds what all `caches` together take on the disk."""

    repository: Repository
    cache: Cache
    caches: tuple[Cache, ...]
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
        """Bring what is kept into a checkout that is at the commit, or `build` there: `ok`, or the
        outcome and the reason. `suite` is the suite's copy, `surroundings` are all but the tree
        that a build depends on. What failed once fails for this command."""
        inputs = self._inputs(commit, task)
        # What a build makes may hold the path it was made at: each slot has its own.
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
            if not checkout.changed():  # what rewrote files of the commit is made for each trial
                self._keep(key, products)
        elif kind is not OutcomeKind.KILLED:
            self._failed[key] = commit.sha, reason
            kind = OutcomeKind.UNTESTABLE
        return kind, reason

    def _inputs(self, commit: Commit, task: Task) -> dict[str, str]:
        """Return the files that the suite's globs match, and the attributes by which git writes
        them, each with mode and blob. Nothing where no file matches."""
        inputs = self.repository.matching(commit.sha, task.inputs)
        above = sorted(attributes_above(map(os.fsencode, inputs)))
        return inputs | self.repository.matching(commit.sha, map(os.fsdecode, above))

    def _keep(self, key: str, products: Mapping[Path, list[str]]) -> None:
        """Archive what the build made, by the folder in which it lies, unless it is larger than all
        that may be kept. What is not kept is built again for each trial."""
        paths = [folder / name for folder, names in products.items() for name in names]
        if sum(path.lstat().st_size for path in paths) > self.limit:
            return

        def fill(home: Path) -> Mapping[str, object]:
            archives = [home / f"{number}.tar" for number in range(len(products))]
            for archive, (folder, names) in zip(archives, products.items(), strict=True):
                with tarfile.open(archive, "w") as tar:
                    for name in names:
                        tar.add(folder / name, name, recursive=False)
            return {"stamps": list(map(_stamp, archives))}

        try:
            self.cache.make(key, fill).close()
        except (MachineError, OSError):
            return  # no room: the next trial builds again
        shrink(self.caches, self.limit)

    def _bring(self, key: str, checkout: Checkout, suite: Path) -> bool:
        """Unpack what was kept. False where there is nothing, or not whole, or where the commit has
        a file of that name."""
        entry = self.cache.use(key)
        if entry is None:
            return False
        with entry:
            try:
                if _unpack(entry, checkout, suite):
                    return True
            except (OSError, LookupError, tarfile.TarError):
                entry.close()
                self.cache.drop(key)
        checkout.move_to(checkout.commit)
        return False


def _unpack(entry: Held, checkout: Checkout, suite: Path) -> bool:
    """Unpack the archives of an entry. Returns False where the commit has a file in the way; raises
    OSError, LookupError or TarError where they are damaged."""
    tracked, stamps = checkout.tracked(), entry.facts["stamps"]
    assert isinstance(stamps, list)
    for number, folder in enumerate((checkout.path, suite)):
        archive = entry.path / f"{number}.tar"
        if _stamp(archive) != stamps[number]:
            raise FileNotFoundError(archive)
        with tarfile.open(archive) as tar:
            if not all(
                _is_free(folder, name, tracked if not number else ()) for name in tar.getnames()
            ):
                return False
            # They are this machine's own files: no name in them is a stranger's.
            tar.extraction_filter = lambda member, _: member
            tar.extractall(folder)
    return True


def _is_free(folder: Path, name: str, tracked: Collection[str]) -> bool:
    """Return True if the commit has no such file, and no link on the way leads elsewhere."""
    inside = Path(os.path.realpath((folder / name).parent)).is_relative_to(os.path.realpath(folder))
    return inside and name not in tracked


def _names(top: Path, above: str = "") -> Iterator[str]:
    """Yield what lies in a folder by name, folders before what is in them; byte-code and a
    repository's own files are left out."""
    for entry in sorted(os.scandir(top / above), key=lambda entry: entry.name):
        if entry.name in (".git", "__pycache__") or entry.name.endswith(".pyc"):
            continue
        yield above + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _names(top, f"{above}{entry.name}/")


def _stamp(path: Path) -> list[int]:
    """Return size and time of an archive, by which damage shows."""
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]


def _hash(facts: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
