"""What git tells of the files of trees: which paths differ between two (`git diff-tree`), and which
a filter (gitattributes(5)) writes otherwise than git keeps them. Filters are programs that may read
any file of the tree, or of the machine. Also: files of a commit written into a folder, and the
`git bisect` that is under way in the user's work tree. Knows nothing of trials."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from celedger.base.errors import RepositoryError
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


# --- files of a commit in a folder, and where a `git bisect` started


def start_of(repository: Repository) -> str:
    """Return the commit (a hash) at which the `git bisect` of this work tree started.

    "" where none is under way: a HEAD on a branch has left the bisect, or was never moved by it.
    """
    try:
        name = (repository.git_dir / "BISECT_START").read_text().strip()
    except OSError:
        return ""
    if repository.ask("symbolic-ref", "-q", "HEAD").status == 0:
        return ""
    # git writes down a branch by its short name, anything else by its hash.
    for revision in (f"refs/heads/{name}", name):
        if sha := repository.hash_of(revision):
            return sha
    return ""


def write_files(repository: Repository, commit: str, names: Sequence[str], folder: Path) -> None:
    """Write files and folders of the tree (`names`) below `folder`, as the work tree would have
    them at this commit: git takes changes and untracked files of the user's along.

    Raises RepositoryError where git cannot write them.
    """
    write_committed(repository, commit, names, folder)
    paths = _literal(names)
    changed = repository.tell("diff", "--name-only", "-z", "--no-renames", "HEAD", "--", *paths).out
    changed += repository.tell("ls-files", "-z", "--others", "--", *paths).out
    _link(repository.worktree, changed, folder)


def write_beside_ignored(
    repository: Repository, commit: str, names: Sequence[str], folder: Path
) -> bool:
    """Write files and folders of a commit below `folder`, with what git ignores of them in the work
    tree. Return False where the commit has nothing of them."""
    if not write_committed(repository, commit, names, folder):
        return False
    words = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--")
    _link(repository.worktree, repository.tell(*words, *_literal(names)).out, folder)
    return True


def write_committed(
    repository: Repository, commit: str, names: Sequence[str], folder: Path
) -> bool:
    """Write files and folders of a commit below `folder`. Return False where it has none."""
    tell = repository.tell
    env = {"GIT_INDEX_FILE": str(folder / ".index")}
    # The whole tree: attributes may lie anywhere above.
    tell(*ONE_INDEX, "read-tree", commit, env=env)
    written = b""
    while names:
        tracked = tell(*ONE_INDEX, "ls-files", "-z", "--", *_literal(names), env=env).out
        tell(
            *ONE_INDEX, f"--work-tree={folder}", "checkout-index", "-z", "--stdin", "--force",
            stdin=tracked, env=env,
        )  # fmt: skip
        written += tracked
        targets = _targets(commit, tracked, folder)
        names = [target for target in targets if not os.path.lexists(folder / target)]
        if not tracked:
            break  # links to what the commit has not
    return bool(written)


def _targets(commit: str, names: bytes, folder: Path) -> list[str]:
    """Return where the links among files below a folder lead. Raises RepositoryError for one that
    leads out of it."""
    root, targets = folder.resolve(), []
    for name in map(os.fsdecode, names.split(b"\0")[:-1]):
        link = folder / name
        if link.is_symlink():
            target = link.resolve()
            if not target.is_relative_to(root):
                raise RepositoryError(f"{name} of {commit[:10]} is a link that leads out of it")
            targets.append(str(target.relative_to(root)))
    return targets


def _literal(names: Sequence[str]) -> list[str]:
    return [f":(top,literal){name}" for name in names]


def _link(where: Path, names: bytes, folder: Path) -> None:
    """Lay links to files of the work tree below a folder, in place of what it has there."""
    for name in map(os.fsdecode, names.split(b"\0")[:-1]):
        target = folder / name
        with suppress(OSError):  # a folder at the start, or below a file of it: the commit's stays
            target.unlink(missing_ok=True)
            if os.path.lexists(where / name):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(where / name)
