"""Git objects outside of the user's repository: celedger's own, in a folder beside it, trees and
commits that no ref has; and the repository that is made from a bundle.

Objects are written here as loose files, by celedger and not by git: git would renew the
modification time of an equal object of the user's. Knows nothing of what the trees are for.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from celedger.base import files
from celedger.base.errors import RepositoryError, explained
from celedger.repo.plumbing import ask, tell
from celedger.repo.repository import Repository

FOLDER = "synthetic"  # in the repository's folder of state
_DAY = 86400.0  # seconds
KEPT = 30 * _DAY
"""Seconds for which an object is kept after it was last written: longer than an edit is worked on,
and than the two weeks after which git drops the unreachable commit that it was based on."""
TREE, FILE, PROGRAM, SUBMODULE = "40000", "100644", "100755", "160000"


class Entry(NamedTuple):
    """The entry of a tree at a name: mode and hash, as git writes them."""

    mode: str
    sha: str


class ObjectStore:
    """`repository` sees the objects of the store beside its own."""

    def __init__(self, repository: Repository) -> None:
        self.folder = repository.state_dir / FOLDER
        self.objects = self.folder / "objects"
        self.repository = replace(repository, objects=self.objects)
        # Git LFS looks for the content of a borrowed object here (lfs.storage).
        self.large_files = self.folder / "lfs"
        with explained(f"{self.folder} cannot be written", kind=RepositoryError):
            self.objects.mkdir(parents=True, exist_ok=True)

    def write(self, kind: str, content: bytes, example: str) -> str:
        """Write an object and return its hash, of the length of the hash `example`."""
        body = f"{kind} {len(content)}\0".encode() + content
        sha = hashlib.new("sha256" if len(example) == 64 else "sha1", body).hexdigest()
        path = self._path(sha)
        with explained(f"{path} cannot be written", kind=RepositoryError):
            if not self.renew(sha):
                files.replace(Path(path), zlib.compress(body, 1), 0o444)
        return sha

    def renew(self, sha: str) -> bool:
        """Count an object as just written; return False where the store has none of that hash."""
        try:
            os.utime(self._path(sha))
        except FileNotFoundError:
            return False
        return True

    def _path(self, sha: str) -> str:
        return f"{self.objects}/{sha[:2]}/{sha[2:]}"

    def changed(self, tree: str, changes: Mapping[bytes, Entry | None]) -> str:
        """Return the hash of a tree with other entries at some paths; None removes one. A file that
        stands where a path needs a folder gives way to it, and the reverse."""
        levels = self._read(tree, changes)
        return self._write(levels, b"", changes, tree) or self.write("tree", b"", tree)

    def _read(self, tree: str, paths: Iterable[bytes]) -> dict[bytes, dict[bytes, bytes]]:
        """Return the rows of the folders that hold these paths, by the folder's path."""
        folders: set[bytes] = set()
        for path in paths:
            while (path := path.rpartition(b"/")[0]) and path not in folders:
                folders.add(path)
        levels: dict[bytes, dict[bytes, bytes]] = {}
        todo = {b"": tree}
        while todo:
            contents = self._trees(todo.values())
            levels |= {path: contents[sha] for path, sha in todo.items()}
            todo = {
                path: row.partition(b"\0")[2].hex()
                for path in folders - levels.keys()
                for above, _, name in [path.rpartition(b"/")]
                if (row := levels.get(above, {}).get(name + b"/"))
            }
        return levels

    def _trees(self, shas: Iterable[str]) -> dict[str, dict[bytes, bytes]]:
        names = list(dict.fromkeys(shas))
        request = "".join(f"{sha}\n" for sha in names).encode()
        out = self.repository.tell("cat-file", "--batch", "--buffer", stdin=request).out
        trees, start = {}, 0
        for sha in names:
            end = out.index(b"\n", start)
            fields = out[start:end].split()
            if fields[1:2] != [b"tree"]:
                raise RepositoryError(f"git has no tree {sha[:12]}")
            start = end + 1
            trees[sha] = _rows(out[start : start + int(fields[2])], len(sha) // 2)
            start += int(fields[2]) + 1
        return trees

    def _write(
        self,
        levels: Mapping[bytes, Mapping[bytes, bytes]],
        folder: bytes,
        changes: Mapping[bytes, Entry | None],
        example: str,
    ) -> str:
        """Write a folder's tree, and return its hash; "" for an empty one, which git keeps none
        of. `changes` are relative to the folder."""
        rows = dict(levels.get(folder, {}))
        deeper: dict[bytes, dict[bytes, Entry | None]] = {}
        for path, entry in changes.items():
            name, slash, rest = path.partition(b"/")
            if slash:
                deeper.setdefault(name, {})[rest] = entry
            elif entry is None:
                rows.pop(name, None)
            else:
                rows.pop(name + b"/", None)
                rows[name] = _row(entry, name)
        for name, inside in deeper.items():
            if name in rows and not any(inside.values()):
                continue  # a file replaced the folder
            above = folder + b"/" + name if folder else name
            rows.pop(name, None)
            if sha := self._write(levels, above, inside, example):
                rows[name + b"/"] = _row(Entry(TREE, sha), name)
            else:
                rows.pop(name + b"/", None)
        if not rows:
            return ""
        return self.write("tree", b"".join(map(rows.__getitem__, sorted(rows))), example)

    def drop_old(self, now: float) -> None:
        """Delete what was last written more than KEPT seconds before `now`, once a day: thousands
        of objects take longer to look at than a working tree of 50,000 files."""
        swept = self.folder / "swept"
        with suppress(FileNotFoundError):
            if abs(now - swept.stat().st_mtime) < _DAY:
                return
        with explained(f"{swept} cannot be written", kind=RepositoryError):
            swept.touch()
            os.utime(swept, (now, now))
        for path in [*self.objects.glob("*/*"), *self.large_files.rglob("*")]:
            with suppress(OSError):
                if path.is_file() and path.stat().st_mtime < now - KEPT:
                    path.unlink()


def _rows(content: bytes, width: int) -> dict[bytes, bytes]:
    """Return the rows of a tree, which end with hashes of `width` bytes. Their keys are the names
    by which git sorts them: that of a folder ends with a slash."""
    found = re.findall(rb"((\d+) ([^\0]+)\0.{%d})" % width, content, re.DOTALL)
    folder = TREE.encode()
    return {name + b"/" if mode == folder else name: row for row, mode, name in found}


def _row(entry: Entry, name: bytes) -> bytes:
    return entry.mode.encode() + b" " + name + b"\0" + bytes.fromhex(entry.sha)


# --- the repository of a bundle


def clone_bundle(bundle: Path, path: Path) -> None:
    """Make a repository at `path` of all refs of a bundle, and check out its branch `main`."""
    with explained(f"{path} cannot be made", kind=RepositoryError):
        path.mkdir(parents=True, exist_ok=True)
    tell(path, "init", "--quiet", "--initial-branch=main", "--template=")
    tell(path, "fetch", "--quiet", "--update-head-ok", str(bundle), "refs/*:refs/*")
    tell(path, "-c", "core.hooksPath=/dev/null", "reset", "--quiet", "--hard", "main", "--")


def refs_below(path: Path, prefix: str) -> dict[str, str]:
    """Return the hash of each ref of a repository below a prefix, by the rest of its name."""
    shown = ask(path, "for-each-ref", "--format=%(objectname) %(refname)", prefix).text
    pairs = (line.split() for line in shown.splitlines())
    return {name.removeprefix(prefix): sha for sha, name in pairs}
