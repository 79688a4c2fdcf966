"""What git tells of the files of trees: which paths differ between two (`git diff-tree`), and which
a filter (gitattributes(5)) writes otherwise than git keeps them. Filters are programs that may read
any file of the tree, or of the machine. Knows nothing of trials."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from celedger.repo.plumbing import GitAnswer
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


LFS = "lfs"
ATTRIBUTES = b".gitattributes"
LFS_CONFIG = ".lfsconfig"  # the one file of a tree that Git LFS reads
# Of the configuration, what git heeds when it writes files.
_WRITING = (
    r"^(filter\..*|lfs\.fetch(in|ex)clude|core\.(autocrlf|eol|symlinks|filemode|attributesfile))$"
)
# Whatever the user's own configuration says, the index that we make is one file.
ONE_INDEX = ("-c", "core.splitIndex=false", "-c", "core.fsmonitor=false")


def configured(repository: Repository) -> frozenset[str]:
    """Return the names of those that write files, by git's configuration: `smudge = cat` does
    not."""
    writing = set()
    for row in _settings(repository).decode(errors="surrogateescape").split("\0")[:-1]:
        key, _, value = row.partition("\n")
        if key.endswith((".smudge", ".process")) and value.strip() not in ("", "cat"):
            writing.add(key.removeprefix("filter.").rpartition(".")[0])
    return frozenset(writing)


def manner(repository: Repository) -> str:
    """Return a text of what decides, beside a tree, how git writes it: another text where that may
    differ."""
    replaced = repository.ask("for-each-ref", "refs/replace").out  # git-replace(1)
    fields = [_settings(repository), replaced]
    for path in repository.attribute_files():
        with suppress(OSError):
            fields.append(path.read_bytes())
    return hashlib.sha256(b"\0\0".join(fields)).hexdigest()[:32]


def _settings(repository: Repository) -> bytes:
    return repository.ask("config", "-z", "--get-regexp", _WRITING).out


def passing(tell: Callable[..., GitAnswer], names: Collection[str]) -> dict[str, str]:
    """Return the files of a work tree, in which `tell` runs git, that these write, each with the
    name of its filter."""
    if not names:
        return {}
    some = tell("ls-files", "-z", "--", ":(top)", ":(top,exclude,attr:!filter)").out
    if not some:
        return {}
    fields = tell("check-attr", "-z", "--stdin", "filter", stdin=some).out.split(b"\0")
    rows = zip(fields[:-1:3], map(os.fsdecode, fields[2::3]), strict=True)
    return {os.fsdecode(path): name for path, name in rows if name in names}


def attributes_above(paths: Iterable[bytes]) -> set[bytes]:
    """Return the files that may decide how git writes what is at these, there or not."""
    folders = {path.rpartition(b"/")[0] for path in paths}
    for folder in list(folders):
        while folder and (folder := folder.rpartition(b"/")[0]) not in folders:
            folders.add(folder)
    return {folder + b"/" + ATTRIBUTES if folder else ATTRIBUTES for folder in folders}
