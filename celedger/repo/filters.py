"""Filters (gitattributes(5)): programmes by which git writes files otherwise than it keeps them.
They may read any file of the tree, or of the machine."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from celedger.repo.plumbing import Answer, ask, tell
from celedger.repo.repository import Repository

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
    """The names of those that write files, by git's configuration: `smudge = cat` does not."""
    writing = set()
    for row in _settings(repository).decode(errors="surrogateescape").split("\0")[:-1]:
        key, _, value = row.partition("\n")
        if key.endswith((".smudge", ".process")) and value.strip() not in ("", "cat"):
            writing.add(key.removeprefix("filter.").rpartition(".")[0])
    return frozenset(writing)


def manner(repository: Repository) -> str:
    """What, beside a tree, decides how git writes it: another text where that may differ."""
    replaced = ask(repository.worktree, "for-each-ref", "refs/replace").out  # git-replace(1)
    fields = [_settings(repository), replaced]
    for path in repository.attribute_files():
        with suppress(OSError):
            fields.append(path.read_bytes())
    return hashlib.sha256(b"\0\0".join(fields)).hexdigest()[:32]


def _settings(repository: Repository) -> bytes:
    return ask(repository.worktree, "config", "-z", "--get-regexp", _WRITING).out


def passing(tell: Callable[..., Answer], names: Collection[str]) -> list[str]:
    """The files of a work tree, in which `tell` runs git, that these write."""
    if not names:
        return []
    some = tell("ls-files", "-z", "--", ":(top)", ":(top,exclude,attr:!filter)").out
    if not some:
        return []
    fields = tell("check-attr", "-z", "--stdin", "filter", stdin=some).out.split(b"\0")
    values = map(os.fsdecode, fields[2::3])
    return [
        os.fsdecode(path)
        for path, value in zip(fields[:-1:3], values, strict=True)
        if value in names
    ]


def applied(
    repository: Repository, tree: str, paths: Collection[bytes], names: frozenset[str]
) -> frozenset[str]:
    """Return those of these names by which git writes any of these files of a tree. Raises
    RepositoryError."""
    if not names:
        return names
    where = repository.worktree
    with tempfile.TemporaryDirectory() as folder:
        env = {"GIT_INDEX_FILE": f"{folder}/index"}
        tell(where, *ONE_INDEX, "read-tree", tree, env=env)
        fields = tell(
            where, *ONE_INDEX, "check-attr", "--cached", "-z", "--stdin", "filter", env=env,
            stdin=b"".join(path + b"\0" for path in paths if path),
        ).out  # fmt: skip
    return names & set(map(os.fsdecode, fields.split(b"\0")[2::3]))


def attributes_above(paths: Iterable[bytes]) -> set[bytes]:
    """Return the files that may decide how git writes what is at these, there or not."""
    folders = {path.rpartition(b"/")[0] for path in paths}
    for folder in list(folders):
        while folder and (folder := folder.rpartition(b"/")[0]) not in folders:
            folders.add(folder)
    return {folder + b"/" + ATTRIBUTES if folder else ATTRIBUTES for folder in folders}
