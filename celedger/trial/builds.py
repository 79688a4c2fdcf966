"""What a suite's build commands make in a commit's tree: made once for equal inputs, kept, and
brought back before each trial.

A build is known by the files that the suite declares as `inputs`, else by the commit's tree. What
is kept is what the build added to the tree or changed there. It is copied in and out, never linked:
a trial that writes into what it was given cannot reach the kept copy. Byte-code is not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from celedger.errors import MachineError
from celedger.model import Bytes, Commit, OutcomeKind, Task
from celedger.repo import Repository
from celedger.repo.checkouts import Checkout, delete
from celedger.repo.filters import attributes_above
from celedger.system.cache import Cache, shrink


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
        keys = [_hash({**around, "inputs": files}) for files in (inputs, commit.tree) if files]
        sha, reason = self._failed.get(keys[0], ("", ""))
        if sha:
            alike = f" (so at {sha[:10]}, whose inputs are the same)" if sha != commit.sha else ""
            return OutcomeKind.UNTESTABLE, reason + alike
        roots = _Roots(checkout.path, suite)
        if any(self._bring(key, checkout, roots) for key in keys):
            return OutcomeKind.OK, ""
        before = {name for name, _ in _walk(suite, "suite")}
        kind, reason = build()
        if kind is OutcomeKind.OK:
            # What rewrote files that are no inputs is this commit's alone.
            changed = checkout.changed()
            key = keys[0] if changed <= inputs.keys() else keys[-1]
            before.update(f"tree/{name}" for name in checkout.tracked() - changed)
            self._keep(key, commit, changed, replace(roots, known=frozenset(before)))
        elif kind is not OutcomeKind.KILLED:
            self._failed[keys[0]] = commit.sha, reason
            kind = OutcomeKind.UNTESTABLE
        return kind, reason

    def _inputs(self, commit: Commit, task: Task) -> dict[str, str]:
        """Return the files that the suite's globs match, and the attributes by which git writes
        them, each with mode and blob. Nothing where no file matches."""
        inputs = self.repository.matching(commit.sha, task.inputs)
        above = sorted(attributes_above(map(os.fsencode, inputs)))
        return inputs | self.repository.matching(commit.sha, map(os.fsdecode, above))

    def _keep(self, key: str, commit: Commit, changed: set[str], roots: _Roots) -> None:
        """Copy what the build made, unless it is larger than all that may be kept or holds what is
        neither file, link nor folder. What is not kept is built again for each trial."""
        folders, files = roots.products()
        states = [roots.path(name).lstat() for name in files]
        if not all(stat.S_ISREG(s.st_mode) or stat.S_ISLNK(s.st_mode) for s in states):
            return
        if sum(state.st_size for state in states) > self.limit:
            return

        def fill(home: Path) -> Mapping[str, object]:
            for name in files:
                (home / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(roots.path(name), home / name, follow_symlinks=False)
            return {
                "commit": commit.sha,
                "files": {name: _stamp(home / name) for name in files},
                "folders": {name: roots.path(name).lstat().st_mode & 0o777 for name in folders},
                "changed": sorted(changed),
            }

        try:
            self.cache.make(key, fill).close()
        except (MachineError, OSError):
            return  # no room: the next trial builds again
        shrink(self.caches, self.limit)

    def _bring(self, key: str, checkout: Checkout, roots: _Roots) -> bool:
        """Copy what was kept into the tree. False where there is nothing, or not whole, or where
        the commit has a file of that name."""
        entry = self.cache.use(key)
        if entry is None or "files" not in entry.facts:
            return False
        with entry:
            files, folders, changed = (entry.facts[n] for n in ("files", "folders", "changed"))
            assert isinstance(files, dict) and isinstance(folders, dict)
            assert isinstance(changed, list)
            tracked = {f"tree/{name}" for name in checkout.tracked() - {*changed}}
            if not all(roots.is_free(name, tracked) for name in (*files, *folders)):
                return False
            try:
                for name in changed:
                    delete(checkout.path / name)
                for name in folders:
                    roots.path(name).mkdir(parents=True, exist_ok=True)
                for name, stamp in files.items():
                    source = entry.path / name
                    if _stamp(source) != stamp:
                        raise FileNotFoundError(name)
                    shutil.copy2(source, roots.path(name), follow_symlinks=False)
                for name, mode in reversed(folders.items()):
                    roots.path(name).chmod(mode)
                return True
            except OSError:
                pass
        self.cache.drop(key)
        checkout.move_to(checkout.commit)
        return False


@dataclass(frozen=True)
class _Roots:
    """The folders in which a build may leave something: the `tree`, and the copy of the `suite`.
    Names of files begin with one of these words. `known` are the files that are no products."""

    tree: Path
    suite: Path
    known: frozenset[str] = frozenset()

    def path(self, name: str) -> Path:
        root, _, inside = name.partition("/")
        return (self.tree if root == "tree" else self.suite) / inside

    def products(self) -> tuple[list[str], list[str]]:
        """Return the names of new folders (parents first) and of new files."""
        tracked = {name[:end] for name in self.known for end in _slashes(name)}
        folders: list[str] = []
        files: list[str] = []
        for root in ("tree", "suite"):
            for name, is_folder in _walk(self.path(root), root):
                if name not in self.known and name not in tracked:
                    (folders if is_folder else files).append(name)
        return folders, files

    def is_free(self, name: str, tracked: Collection[str]) -> bool:
        """Return True if the commit has no such file, and no link on the way leads elsewhere."""
        root = os.path.realpath(self.path(name.partition("/")[0]))
        inside = Path(os.path.realpath(self.path(name).parent)).is_relative_to(root)
        return inside and name not in tracked


def _slashes(name: str) -> list[int]:
    return [position for position, letter in enumerate(name) if letter == "/"]


def _walk(top: Path, name: str) -> Iterator[tuple[str, bool]]:
    """Visit what lies in a folder by name, each with whether it is a folder, parents first;
    byte-code and a repository's own files are left out."""
    for entry in sorted(os.scandir(top), key=lambda entry: entry.name):
        if entry.name in (".git", "__pycache__") or entry.name.endswith(".pyc"):
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        yield f"{name}/{entry.name}", is_folder
        if is_folder:
            yield from _walk(Path(entry.path), f"{name}/{entry.name}")


def _stamp(path: Path) -> list[int]:
    """Return mode, size and time of a kept file, by which damage shows. A link's own times do not
    travel."""
    state = path.lstat()
    when = 0 if stat.S_ISLNK(state.st_mode) else state.st_mtime_ns
    return [state.st_mode, state.st_size, when]


def _hash(facts: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
