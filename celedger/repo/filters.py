"""Filters (gitattributes(5)): programmes by which git writes files otherwise than it keeps them.
They may read any file of the tree, or of the machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from celedger.repo.plumbing import GitAnswer
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
