"""What lay where a trial looked, as one hash: footprints held against trees.

Equal hashes mean that everything a trial named (files with their modes, links, folders with their
listings, what was not there) is the same, so that it
cannot tell the two trees apart. Trees are read in bulk, a level of folders at a time, and what two
commits share is hashed once. Knows nothing of trials.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from celedger.errors import RepositoryError
from celedger.model import Footprint
from celedger.repo.plumbing import tell
from celedger.repo.repository import Repository

_ROW = 32  # trees in a row whose differences are asked for first
_BATCH = 1000  # trees read by one git command: bounds what is held of its answer
_ATTRIBUTES = b".gitattributes"  # decides how the files beside and below it are written
TREE, SUBMODULE = b"40000", b"160000"
_GLOB = re.compile(rb"[*?\[\\]")
# Git reads brackets and backslashes otherwise than `fnmatch`: these may match anything.
_OF_GIT = re.compile(rb"[\[\\]")

KEPT = 128 << 20
# A tree object is a row of these and nothing else.
_ROWS20 = re.compile(rb"([0-7]+) ([^\0]+)\0(.{20})", re.DOTALL)
_ROWS32 = re.compile(rb"([0-7]+) ([^\0]+)\0(.{32})", re.DOTALL)

Entry = tuple[bytes, str]  # mode, as in a tree object, and hash


@dataclass
class _Node:
    """A folder or file of a footprint. `named`: a trial named it, and not only what is below."""

    named: bool = False
    whole: bool = False  # all that is below counts
    globs: list[bytes] = field(default_factory=list)
    children: dict[bytes, _Node] = field(default_factory=dict)
    order: list[bytes] = field(default_factory=list)

    def at(self, path: bytes) -> _Node:
        node = self
        for part in path.split(b"/") if path else ():
            node = node.children.setdefault(part, _Node())
        return node


def _touches(node: _Node, path: bytes, listed: bool) -> bool:
    """Whether a change at a path can be met; `listed`: of a folder's listing, too, or whether it is
    there at all."""
    for part in path.split(b"/"):
        if node.whole or (listed and node.named):
            return True
        if any(fnmatchcase(part, glob) for glob in node.globs):
            return True
        child = node.children.get(part)
        if child is None:
            return False
        node = child
    return True


def attributes_above(paths: Iterable[bytes]) -> set[bytes]:
    """The files that may decide how git writes what is at these."""
    folders = {path.rpartition(b"/")[0] for path in paths}
    for folder in list(folders):
        while folder and (folder := folder.rpartition(b"/")[0]) not in folders:
            folders.add(folder)
    return {b"/".join((folder, _ATTRIBUTES)) if folder else _ATTRIBUTES for folder in folders}


def _plant(footprint: Footprint) -> _Node:
    root = _Node()
    for path in footprint.paths:
        root.at(path).named = True
        parts = path.split(b"/")
        for i in range(len(parts)):
            root.at(b"/".join((*parts[:i], _ATTRIBUTES))).named = True
    for pattern in footprint.inputs:
        node = root
        parts = pattern.encode(errors="surrogateescape").split(b"/")
        for part in filter(lambda p: p not in (b"", b"."), parts):
            node.at(_ATTRIBUTES).named = True
            if _GLOB.search(part):  # all that is below counts, too
                node.globs.append(b"*" if _OF_GIT.search(part) else part)
                break
            node = node.children.setdefault(part, _Node())
        else:
            node.whole = True
    return root


@dataclass(frozen=True, slots=True)
class _Found:
    """What a folder holds of a node's interest."""

    entries: dict[bytes, Entry]
    globbed: frozenset[bytes]  # names of entries that count with all that is below
    listing: bytes


class Contents:
    """The contents of one footprint in many trees."""

    def __init__(self, objects: Objects, footprint: Footprint) -> None:
        self._objects = objects
        self._root = objects.shared(_plant(footprint))
        text = b"\0".join((*footprint.paths, b""))
        self._name = hashlib.sha256(text + repr(footprint.inputs).encode()).digest()
        self._found: dict[tuple[int, str], _Found] = {}
        self._hashes = objects.hashes
        self._as: dict[str, str] = {}  # trees, and one that has the same here

    def of(self, trees: Iterable[str]) -> dict[str, str]:
        """The hash (64 hex digits) for each tree, given by its own. Raises RepositoryError where
        an object is missing."""
        trees = list(dict.fromkeys(trees))
        new = [t for t in trees if (id(self._root), t) not in self._hashes and t not in self._as]
        for before, tree, changes in self._objects.steps(new):
            if not any(_touches(self._root, path, listed) for path, listed in changes):
                self._as[tree] = self._as.get(before, before)
        like = {tree: self._as.get(tree, tree) for tree in trees}
        known = self._hashes
        fresh = [t for t in dict.fromkeys(like.values()) if (id(self._root), t) not in known]
        for start in range(0, len(fresh), _BATCH):
            part = fresh[start : start + _BATCH]
            self._read(part)
            for tree in part:
                self._hash(self._root, tree)
            self._found.clear()
        total = {t: hashlib.sha256(self._name + known[id(self._root), t]) for t in like.values()}
        return {tree: total[other].hexdigest() for tree, other in like.items()}

    def _read(self, trees: Sequence[str]) -> None:
        """Take in all folders that the hashes of `trees` will ask for."""
        level = {(id(self._root), tree): (self._root, tree) for tree in trees}
        while level:
            by_tree: dict[str, list[_Node]] = {}
            for node, tree in level.values():
                by_tree.setdefault(tree, []).append(node)
            level = {}
            for tree, content in self._objects.read(by_tree):
                rows = _entries(content, len(tree) // 2)
                for node in by_tree[tree]:
                    self._found[id(node), tree] = found = _look(node, rows)
                    for name, (mode, sha) in found.entries.items():
                        child = node.children.get(name)
                        if child is None or name in found.globbed:
                            continue
                        key = (id(child), sha)
                        known = key in self._hashes or key in self._found
                        if mode == TREE and not child.whole and not known:
                            level[key] = (child, sha)

    def _hash(self, node: _Node, tree: str) -> bytes:
        key = (id(node), tree)
        if key not in self._hashes:
            found = self._found[key]
            total = hashlib.sha256(found.listing)
            if len(node.order) != len(node.children):
                node.order = sorted(node.children)
            for name in sorted({*node.order, *found.globbed}) if found.globbed else node.order:
                child = None if name in found.globbed else node.children.get(name)
                value = self._value(child, found.entries.get(name))
                total.update(b"%d %d " % (len(name), len(value)) + name + value)
            self._hashes[key] = total.digest()
        return self._hashes[key]

    def _value(self, node: _Node | None, entry: Entry | None) -> bytes:
        if entry is None:
            return b"-"
        mode, sha = entry
        if node is not None and not node.whole and mode == TREE:
            return b"tree" + self._hash(node, sha)
        return mode + b" " + bytes.fromhex(sha)


class Objects:
    """Objects of one repository, read in bulk and kept for the next footprint up to KEPT bytes."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._kept: dict[str, bytes] = {}
        self._size = 0
        self._steps: dict[tuple[str, str], list[tuple[bytes, bool]]] = {}
        # What footprints have in common is hashed once: equal parts of them are one node.
        self.hashes: dict[tuple[int, str], bytes] = {}
        self._nodes: dict[tuple[object, ...], _Node] = {}

    def shared(self, node: _Node) -> _Node:
        """The one node that stands for all equal to this."""
        node.children = {name: self.shared(child) for name, child in node.children.items()}
        below = tuple(sorted((name, id(child)) for name, child in node.children.items()))
        own = (node.named, node.whole, *node.globs)
        return self._nodes.setdefault((own, below), node)

    def steps(self, trees: Sequence[str]) -> Iterator[tuple[str, str, list[tuple[bytes, bool]]]]:
        """Of trees in a row, each with the one before it and the paths in which they differ, and
        whether a folder's listing may, too: not where a file only has another content. Nothing
        for a few trees: their differences cost more than they spare."""
        pairs = list(itertools.pairwise(trees)) if len(trees) >= _ROW else []
        missing = [pair for pair in pairs if pair not in self._steps]
        for start in range(0, len(missing), _BATCH):
            part = missing[start : start + _BATCH]
            out = tell(
                self._repository.worktree, "diff-tree", "--stdin", "-r", "-z", "--raw",
                "--no-renames", "--no-abbrev", "--ignore-submodules=none",
                stdin="".join(f"{one} {other}\n" for one, other in part).encode(),
            ).out  # fmt: skip
            self._steps |= {pair: [] for pair in part}
            at = self._steps[part[0]]
            words = iter(out.split(b"\0"))
            for word in words:
                *heads, row = word.split(b"\n")
                for head in heads:
                    one, other = head.decode().split()
                    at = self._steps[one, other]
                if row:
                    old, new, _, _, _ = row[1:].split()
                    at.append((next(words), old != new))
        for pair in pairs:
            yield (*pair, self._steps[pair])

    def at(self, tree: str, paths: Iterable[bytes]) -> dict[bytes, Entry]:
        """What a tree has at those of these paths at which it has something: only the folders on
        their way are read. Raises RepositoryError where one is missing."""
        found: dict[bytes, Entry] = {}
        level: dict[tuple[str, int], list[bytes]] = {(tree, 0): [path for path in paths if path]}
        while level:
            listings = self._listings(sha for sha, _ in level)
            deeper: dict[tuple[str, int], list[bytes]] = {}
            for (sha, start), below in level.items():
                listing = listings[sha]
                for path in below:
                    end = path.find(b"/", start)
                    entry = listing.get(path[start:] if end < 0 else path[start:end])
                    if entry is not None and end < 0:
                        found[path] = entry
                    elif entry is not None and entry[0] == TREE:
                        deeper.setdefault((entry[1], end + 1), []).append(path)
            level = deeper
        return found

    def listing(self, tree: str) -> dict[bytes, Entry]:
        """Name -> what a tree has of this name."""
        return self._listings([tree])[tree]

    def _listings(self, trees: Iterable[str]) -> dict[str, dict[bytes, Entry]]:
        return {
            tree: {name: (mode, sha.hex()) for mode, name, sha in _entries(rows, len(tree) // 2)}
            for tree, rows in self.read(dict.fromkeys(trees))
        }

    def files(self, tree: str, paths: Iterable[bytes]) -> dict[bytes, tuple[bytes, str, int]]:
        """Path -> mode, hash and size of the files and links among these that lie in a tree."""
        found = {
            path: entry
            for path, entry in self.at(tree, paths).items()
            if entry[0] not in (TREE, SUBMODULE)
        }
        blobs = dict.fromkeys(sha for _, sha in found.values())
        out = tell(
            self._repository.worktree, "cat-file", "--batch-check=%(objectsize)",
            stdin="".join(f"{sha}\n" for sha in blobs).encode(),
        ).out if blobs else b""  # fmt: skip
        sizes = dict(zip(blobs, out.splitlines(), strict=True))
        missing = [sha for sha, size in sizes.items() if not size.isdigit()]
        if missing:
            raise self._lacks(missing[0])
        return {path: (mode, sha, int(sizes[sha])) for path, (mode, sha) in found.items()}

    def _lacks(self, name: str) -> RepositoryError:
        return RepositoryError(f"{self._repository.root} lacks the object {name}", "git fsck")

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Each name once, with its content. Raises RepositoryError where one is missing."""
        missing = []
        for name in names:
            if name in self._kept:
                yield name, self._kept[name]
            else:
                missing.append(name)
        for start in range(0, len(missing), _BATCH):
            asked = missing[start : start + _BATCH]
            out = tell(
                self._repository.worktree, "cat-file", "--batch", "--buffer",
                stdin="".join(f"{name}\n" for name in asked).encode(),
            ).out  # fmt: skip
            at = 0
            for name in asked:
                end = out.index(b"\n", at)
                words = out[at:end].split()
                if len(words) != 3:
                    raise self._lacks(name)
                at = end + 1 + int(words[2]) + 1
                content = out[end + 1 : at - 1]
                if self._size < KEPT:
                    self._kept[name] = content
                    self._size += len(content)
                yield name, content


def _entries(content: bytes, size: int) -> list[tuple[bytes, bytes, bytes]]:
    """(mode, name, raw hash) of a tree object with hashes of `size` bytes."""
    return (_ROWS20 if size == 20 else _ROWS32).findall(content)


def _look(node: _Node, rows: Sequence[tuple[bytes, bytes, bytes]]) -> _Found:
    children = node.children
    entries = {name: (mode, sha.hex()) for mode, name, sha in rows if name in children}
    globbed = {
        name: (mode, sha.hex())
        for mode, name, sha in rows
        if any(fnmatchcase(name, glob) for glob in node.globs)
    }
    entries |= globbed
    listing = b""
    if node.named:
        listing = hashlib.sha256(b"\0".join([b"%s %s" % row[:2] for row in rows])).digest()
    return _Found(entries, frozenset(globbed), listing)
