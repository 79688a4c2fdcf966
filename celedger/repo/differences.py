"""Which paths differ between trees, as `git diff-tree` tells. Knows nothing of trials."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from celedger.repo.repository import Repository

FOLDER, SUBMODULE, NOTHING = b"040000", b"160000", b"000000"

Pair = tuple[str, str]


class TreeEntry(NamedTuple):
    """The entry of a tree at a path."""

    mode: bytes  # NOTHING where it has none
    sha: bytes


class TreeChange(NamedTuple):
    path: bytes
    old: TreeEntry
    new: TreeEntry


class Differences:
    """The differences between trees of one repository; git is asked once for each pair."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._changes: dict[tuple[tuple[str, ...], Pair], list[TreeChange]] = {}

    def between(
        self, pairs: Iterable[Pair], patterns: Sequence[str] = ()
    ) -> dict[Pair, list[TreeChange]]:
        """Return for each pair of trees what differs: files, links and submodules, and the folders
        that hold one. With glob `patterns` only what these match, folders left out. Raises
        RepositoryError."""
        pairs, key = list(dict.fromkeys(pairs)), tuple(patterns)
        missing = [pair for pair in pairs if (key, pair) not in self._changes]
        if missing:
            out = self._repository.tell(
                "diff-tree", "--stdin", "-r", "-z", "--raw",
                *(() if patterns else ("-t",)), "--no-renames", "--no-abbrev",
                "--ignore-submodules=none", "--", *(f":(top,glob){p}" for p in patterns),
                stdin="".join(f"{one} {other}\n" for one, other in missing).encode(),
            ).out  # fmt: skip
            self._changes |= {(key, pair): [] for pair in missing}
            changes: list[TreeChange] = []
            words = iter(out.split(b"\0"))
            for word in words:
                *heads, row = word.split(b"\n")
                for head in heads:
                    one, other = head.decode().split()
                    changes = self._changes[key, (one, other)]
                if row:
                    old, new, before, after, _ = row[1:].split()
                    changes.append(
                        TreeChange(next(words), TreeEntry(old, before), TreeEntry(new, after))
                    )
        return {pair: self._changes[key, pair] for pair in pairs}

    def present(self, trees: Collection[str]) -> set[str]:
        """Return those of these trees that the repository has."""
        if not trees:
            return set()
        out = self._repository.tell(
            "cat-file", "--batch-check=%(objectname) %(objecttype)",
            stdin="".join(f"{tree}\n" for tree in trees).encode(),
        ).text  # fmt: skip
        return {line.split()[0] for line in out.splitlines() if line.endswith(" tree")}

    def texts(self, blobs: Iterable[bytes], most: int) -> dict[bytes, bytes]:
        """Return the contents of these blobs: of the first that are at most `most` bytes together,
        those that are there."""
        tell, names = self._repository.tell, list(blobs)
        if not names:
            return {}
        rows = tell(
            "cat-file", "--batch-check=%(objectsize)", stdin=b"\n".join((*names, b""))
        ).out.splitlines()
        sizes = [int(row) if row.isdigit() else most + 1 for row in rows]
        few = [
            name for name, total in zip(names, itertools.accumulate(sizes), strict=True)
            if total <= most
        ]  # fmt: skip
        out = tell("cat-file", "--batch", "--buffer", stdin=b"\n".join((*few, b""))).out
        texts, start = {}, 0
        while start < len(out):
            end = out.index(b"\n", start)
            name, _, size = out[start:end].split()
            start = end + 1 + int(size) + 1
            texts[name] = out[end + 1 : start - 1]
        return texts
