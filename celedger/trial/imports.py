"""Which sources of a footprint count by their code and not by their text: those that a trial only
imported, where nothing is seen to look at them otherwise (looking.py). In doubt none."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from celedger.model import Footprint, Task
from celedger.repo.canonical import keys
from celedger.repo.closures import Objects, attributes_above
from celedger.system.sources import SOURCES
from celedger.trial import looking

_REGULAR = (b"100644", b"100755")
_SOURCES = tuple(map(os.fsdecode, SOURCES))
# Files outside of the tree, and bytes of them, that are searched: about two seconds of each trial.
# What reads more reads a corpus, and counts as what looks at everything.
_MANY, _MUCH = 2000, 2 << 20
_HEAD = 8000  # bytes in which a NUL tells data from text, as git has it
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_CODED = (b"PK\3\4", *_UTF16)  # an archive, from which Python imports
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".tar", ".db", ".sqlite", ".pkl")  # what may hold texts
_ARCHIVED = (".npz", ".pt", ".bin", ".ckpt", ".keras")  # archives of data


@dataclass
class Imports:
    """What `system/sources.py` told of the commands of one trial, together."""

    imported: dict[bytes, set[bytes]] = field(default_factory=dict)
    text: set[bytes] = field(default_factory=set)
    entered: set[bytes] = field(default_factory=set)
    reader: bytes = b""
    packages: set[bytes] = field(default_factory=set)
    foreign: set[bytes] = field(default_factory=set)
    data: set[bytes] = field(default_factory=set)

    def add(self, told: Mapping[str, Any]) -> None:
        for path, versions in told["imported"].items():
            self.imported.setdefault(path, set()).update(versions)
        for name in ("text", "entered", "packages", "foreign", "data"):
            getattr(self, name).update(told[name])
        self.reader = self.reader or told["reader"]

    def events(self) -> dict[bytes, list[tuple[str, int]]] | None:
        """Source -> qualified name and first line of what was entered of it; None where that
        cannot be told, as with a path that has a separator in it."""
        found: dict[bytes, list[tuple[str, int]]] = {}
        for row in self.entered:
            words = row.split(b"\x1f")
            if len(words) != 3 or not words[1].isdigit():
                return None
            path, line, name = words
            found.setdefault(path, []).append((os.fsdecode(name), int(line)))
        return found


def code_of(
    footprint: Footprint,
    imports: Imports,
    objects: Objects,
    tree: str,
    task: Task,
    suite: Path,
    ours: Sequence[Path],
    attributes: Sequence[Path] = (),
    made: Sequence[Path] = (),
) -> Footprint:
    """The footprint of a trial that ran at `tree` with a copy of its `suite`, with what counts by
    its code. `ours`: folders that no commit and no user writes; `attributes`:
    git's files of attributes outside of the tree; `made`: what a build wrote of the footprint,
    where it lies. Raises RepositoryError where an object is missing."""
    above = attributes_above(footprint.paths)
    named = {*footprint.paths, *imports.imported, *imports.text, *above}
    files = objects.files(tree, named)
    found = [
        path
        for path in sorted(imports.imported.keys() - imports.text)
        if path in files and files[path][0] in _REGULAR
    ]
    versions = {version for path in found for version in imports.imported[path]}
    pythons = {tuple(map(int, version.split(b".")))[:2] for version in versions}
    if len(pythons) != 1:
        return footprint
    if any(
        text is None or looking.rewritten(text) for text in looking.texts(attributes, may_lack=True)
    ):
        return footprint
    ((major, minor),) = pythons
    looks = _looks(footprint, imports, objects, files, task, suite, ours, made, (major, minor))
    if looks is None:
        return footprint
    docs, scopes = looks
    known = not scopes and not imports.reader and all(v.endswith(b".1") for v in versions)
    events = imports.events() if known else None
    sources = objects.read(files[path][1] for path in found) if events is not None else ()
    by_blob = dict(sources)
    code = []
    for path in found:
        entered = None
        if events is not None:
            entered = keys(by_blob[files[path][1]], events.get(path, ()))
        code.append((path, entered))
    return replace(footprint, code=tuple(code), docs=docs, python=(major, minor))


def lists_by_finders(
    paths: Collection[bytes],
    imports: Imports,
    objects: Objects,
    tree: str,
    task: Task,
    suite: Path,
    ours: Sequence[Path],
) -> bool:
    """Whether something that a trial read may take listings from Python's import system: one of
    these files of a tree, its suite, commands, what else is searched. Raises RepositoryError where
    an object is missing."""
    files = objects.files(tree, paths)
    outside = _outside(imports.foreign, suite, ours)
    if outside is None or not (imports.imported.keys() | imports.text) <= files.keys():
        return True
    small = dict.fromkeys(sha for _, sha, size in files.values() if size <= looking.MOST)
    texts = (*_given(task, suite, outside), *(text for _, text in objects.read(small)))
    return any(text is None or looking.at_finders(text) for text in texts)


def _given(task: Task, suite: Path, outside: Iterable[Path]) -> Iterable[bytes | None]:
    """The texts that no commit has: of the commands, what they name, the suite and what else."""
    words = list(_strings(task.definition()))
    yield "\n".join(words).encode(errors="surrogateescape")
    yield from looking.texts((*_scripts(words), *_files(suite), *outside))


def _apart(names: Iterable[bytes], suite: Path, ours: Sequence[Path]) -> list[Path]:
    """Those of these files outside of the tree that are neither the suite's nor our own."""
    folders = tuple(f"{folder}/" for folder in map(str, (suite, *ours)))
    return [Path(name) for name in map(os.fsdecode, names) if not name.startswith(folders)]


def _outside(names: Iterable[bytes], suite: Path, ours: Sequence[Path]) -> list[Path] | None:
    """Of files outside of the tree those that may say what is done; None where nobody searches so
    many, or so much."""
    found = _apart(names, suite, ours)
    if len(found) > _MANY:
        return None
    found = [path for path in found if not is_data(path)]
    much = sum(path.stat().st_size for path in found if path.is_file()) > _MUCH
    return None if much else found


def _looks(
    footprint: Footprint,
    imports: Imports,
    objects: Objects,
    files: Mapping[bytes, tuple[bytes, str, int]],
    task: Task,
    suite: Path,
    ours: Sequence[Path],
    made: Sequence[Path],
    python: tuple[int, int],
) -> tuple[bool, bool] | None:
    """Whether docstrings are looked at, and names from within other functions; None where code
    itself is."""
    docs, scopes, executes = not looking.copying(imports.packages), False, False
    data = _apart(imports.data, suite, ours)
    outside = _outside(imports.foreign, suite, ours)
    if outside is None:
        return None
    if not (imports.imported.keys() | imports.text) <= files.keys():
        return None  # a source that the commit does not have, such as a build's: nobody searches it
    for text in (*_given(task, suite, outside), *looking.texts(made)):
        if text is None or looking.at_code(text, python):
            return None
        docs = docs or looking.at_docs(text, pinned=True)
        scopes = scopes or _at_scopes(text)
        executes = executes or looking.executes(text)
    read = [path for path in footprint.paths if path in files]
    if any(files[path][2] > looking.MOST for path in read):
        return None
    attributes = [path for path in attributes_above(footprint.paths) if path in files]
    for _, text in objects.read(dict.fromkeys(files[path][1] for path in attributes)):
        if looking.rewritten(text):
            return None
    for _, text in objects.read(dict.fromkeys(files[path][1] for path in read)):
        if _at_code(text, python):
            return None
        docs = docs or _at_docs(text)
        scopes = scopes or _at_scopes(text)
        executes = executes or looking.executes(text)
    for text in _of_data(data) if executes else ():
        if text is None or looking.at_code(text, python):
            return None
        docs = docs or looking.at_docs(text, pinned=True)
        scopes = scopes or _at_scopes(text)
    return docs, scopes


def _strings(value: object) -> Iterable[str]:
    """All that are in it, as they are."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _strings(part)
    else:
        yield str(value)


def _scripts(words: Iterable[str]) -> Iterable[Path]:
    """The files that a command's words name outside of the tree, programmes of machine code left
    out."""
    for word in sorted({part for text in words for part in re.split(r"[\s'\"=;&|<>()]+", text)}):
        path = Path(word)
        try:
            if path.is_absolute() and path.is_file():
                with path.open("rb") as file:
                    if file.read(4) != b"\x7fELF":
                        yield path
        except (OSError, ValueError):
            continue


def is_data(path: Path) -> bool:
    """Whether nobody takes a file outside of the tree for code. One that is gone held what the
    trial, which is searched, has put there."""
    if path.name.endswith(_SOURCES):
        return False
    try:
        if not path.is_file():
            return True
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    if head.startswith(_CODED):
        return path.suffix in _ARCHIVED
    return b"\0" in head or path.stat().st_size > looking.MOST


def _of_data(paths: Sequence[Path]) -> Iterable[bytes | None]:
    """The texts among files of data, as `looking.texts` has them."""
    if len(paths) > _MANY:
        return [None]
    told = [path for path in paths if path.suffix in _PACKED or not _is_binary(path)]
    if any(path.suffix in _PACKED for path in told):
        return [None]
    try:
        return [None] if sum(path.stat().st_size for path in told) > _MUCH else looking.texts(told)
    except OSError:  # what it said is gone
        return [None]


def _is_binary(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    return b"\0" in head and not head.startswith(_UTF16)


def _files(folder: Path) -> Iterable[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


_at_code = lru_cache(4096)(looking.at_code)
_at_scopes = lru_cache(4096)(looking.at_scopes)
_at_docs = lru_cache(4096)(lambda text: looking.at_docs(text, pinned=False))
