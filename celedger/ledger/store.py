"""The base of reading and writing: the connection, its transactions, its errors, and how the nouns
of `model.py` become columns, or JSON for what travels to other machines, and either nouns.

Lives here: one function that begins transactions (immediately, so that a writer waits instead of
being told "locked"), one that gives a fact its checksum and hands it to the archive, and one that
turns SQLite's errors into sentences. It must not know what a table or a noun means.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache, lru_cache, partial
from pathlib import Path
from types import UnionType
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from celedger.base import files
from celedger.base.errors import LedgerError, LedgerGone
from celedger.base.model import Mark
from celedger.base.text import escaped, without_sequences
from celedger.ledger import checksums, opening
from celedger.ledger.archive import Archive

# Facts that are nothing without another one, and are archived with it.
_PRELIMINARY = frozenset({"commits", "metrics", "tasks", "definitions", "environments"})
Noun = TypeVar("Noun")


class Store:
    """An open ledger file. For one thread of one process."""

    def __init__(self, path: Path, connection: sqlite3.Connection, archive: Archive | None) -> None:
        self.path = path
        self.folder, self.private = path.parent, files.beside(path)
        self.archive = archive
        self._connection = connection
        self._inode = _inode(path)
        self._metric_ids: dict[str, int] = {}
        self._trial_ids: dict[str, int] = {}
        self._completed = False  # facts that the archive must have now
        self._started: list[int] = []  # trials that it must have, too

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        create: bool = False,
        readonly: bool = False,
        archive: Archive | None = None,
    ) -> Self:
        """Open the ledger at `path`. `create` makes one where there is none (or an empty file).
        What is completed goes to the `archive` as well. Raises LedgerError: absent, foreign,
        damaged, from a newer celedger, not writable; LedgerGone where the archive shows that there
        was one."""
        path = Path(path).absolute()
        if os.path.isdir(path):  # noqa: PTH112 (never raises); below it would be tracked or missing
            raise LedgerError(f"{path} is a folder, not a ledger", opening.ELSEWHERE)
        if archive is not None:
            must_be_there(path, archive)
        folders = [archive.folder] if archive is not None else []
        opening.refuse_planted(path, *folders, may_be_tracked=readonly and archive is None)
        try:
            if readonly:
                return cls(path, opening.open_for_reading(path), archive)
            store = cls(path, opening.open_for_writing(path, create=create), archive)
        except checksums.ERRORS as error:
            raise opening.explain(error, path) from error
        try:
            store._archive()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    @contextlib.contextmanager
    def from_elsewhere(cls, path: Path) -> Iterator[Self]:
        """Open a ledger that anybody can have made, for reading. Nothing is written to its folder.
        Raises LedgerError, also for a row that celedger never writes."""
        path = Path(path).absolute()
        try:
            connection = opening.open_from_elsewhere(path)
        except checksums.ERRORS as error:
            raise opening.explain(error, path) from error
        with contextlib.closing(connection):
            yield cls(path, connection, None)

    def reopened(self) -> Self:
        """Open the same ledger once more, for another thread."""
        archive = self.archive.reopened() if self.archive is not None else None
        return type(self).open(self.path, archive=archive)

    def close(self) -> None:
        """Close the connection. The last one to close folds the -wal into the file."""
        is_ours = opening.is_stamped(self.path)
        with contextlib.suppress(sqlite3.Error):  # a full disk: the -wal stays and is read later
            is_ours |= self._connection.total_changes > 0
            self._connection.close()
        if is_ours and not self._vanished():
            opening.stamp(self.path)
        if self.archive is not None:
            self.archive.close()

    def damage(self) -> list[str]:
        """Return what is damaged: every page and row is read."""
        return list(checksums.damage(self._connection))

    def lacks_trials(self) -> bool:
        """Return True if the archive has trials that the ledger has not."""
        ((trials,),) = self._rows("SELECT count(*) FROM trials")
        return self.archive is not None and self.archive.trials() > trials

    def lost_commits(self) -> set[str]:
        """Return the commits of the trials that the archive has and the ledger has not."""
        if self.archive is None or not self.lacks_trials():
            return set()
        stored = {ulid for (ulid,) in self._rows("SELECT ulid FROM trials")}
        return {sha for ulid, sha in self.archive.trial_commits() if ulid not in stored}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all or nothing of what is written inside. Within another one it is a part of that
        one: when it fails, the whole must (a savepoint for each part was measured to cost a sixth
        of recording)."""
        connection = self._connection
        nested = connection.in_transaction
        try:
            if nested:
                yield connection
                return
            try:
                with opening.writing(connection):
                    yield connection
            except BaseException:
                self._metric_ids.clear()  # rows made inside are gone, and so are their ids
                self._trial_ids.clear()
                self._completed, self._started = False, []
                raise
            if self._completed or self._started:
                self._archive()
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def _seal(self, table: str, row: int) -> None:
        """Give a fact its checksum, in the transaction that completes it."""
        checksums.seal(self._connection, table, row)
        self._completed |= table not in _PRELIMINARY

    def _archive(self) -> None:
        """Bring the archive up to the ledger. Raises LedgerGone where the file went meanwhile."""
        started, self._completed, self._started = self._started, False, []
        try:
            if self.archive is not None:
                self.archive.catch_up(self._connection, started)
        finally:
            if self._vanished():
                raise self._gone()

    def _vanished(self) -> bool:
        """Return True if the path no longer leads to this file: deleted, renamed, replaced."""
        return _inode(self.path) != self._inode

    def _gone(self) -> LedgerGone:
        return LedgerGone(
            f"{self.path} disappeared during a write: it was deleted, moved or replaced, "
            "or its disk is gone",
            "`celedger doctor --restore` brings back what was measured"
            if self.archive is not None else "nothing more can be recorded",
        )  # fmt: skip

    def _explained(self, error: Exception) -> LedgerError:
        return self._gone() if self._vanished() else opening.explain(error, self.path)

    def _rows(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def _nouns(self, noun: type[Noun], sql: str, values: Sequence[object] = ()) -> list[Noun]:
        """Return each row as a noun whose fields its columns are, in their order."""
        return [decoded(noun, row) for row in self._rows(sql, values)]


def must_be_there(path: Path, archive: Archive) -> None:
    """Raise LedgerGone where there is no ledger and the archive shows that there was one."""
    # Asked twice: another process may make it meanwhile.
    if not opening.size(path) and archive.size and not opening.size(path):
        raise LedgerGone(
            f"{path} is missing or empty; {archive.folder} has {archive.trials()} of its trials",
            "`celedger doctor --restore` rebuilds it; to begin a new one, delete that folder",
        )


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


# --- nouns as rows


def columns_of(noun: Any) -> dict[str, Any]:
    """Return the fields of a noun as the ledger stores them."""
    return {name: encoded(getattr(noun, name)) for name in hints(noun.__class__)}


def encoded(value: Any) -> Any:
    """Return a value as SQLite stores it: NaN is NULL, a container is JSON, an enum its word."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (tuple, Mapping)):
        return to_json(value, compact=True)
    return number(value) if isinstance(value, float) else value


def decoded(noun: Callable[..., Noun], row: Sequence[Any]) -> Noun:
    """Return a noun from the columns that `columns_of` gave for its fields."""
    readers = _readers(noun)
    return noun(*[read(value) if read else value for read, value in zip(readers, row, strict=True)])


@cache
def _readers(noun: Callable[..., Any]) -> tuple[Callable[[Any], Any] | None, ...]:
    """Return how the column of each field is read; None where it is the field's value."""
    return tuple(map(_reader, hints(noun).values()))


def _reader(kind: Any) -> Callable[[Any], Any] | None:
    if isinstance(kind, type) and issubclass(kind, (StrEnum, bool)):
        return kind
    origin = get_origin(kind)
    is_container = isinstance(origin, type) and issubclass(origin, (tuple, Mapping))
    return partial(from_json, kind) if is_container and kind not in _READERS else _READERS.get(kind)


def number(value: Any) -> float | None:
    """Return a number as the ledger stores it: NaN is NULL; an integer beyond all floats is
    infinity."""
    if type(value) is not float:
        try:
            value = float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value if value == value else None


def from_null(value: float | None) -> float:
    """Return a number that the ledger has: NULL is NaN."""
    return math.nan if value is None else value


def marks_of(words: str) -> tuple[Mark, ...]:
    """Return the marks that a ledger has in one column. Raises LedgerError for an unknown one."""
    try:
        return tuple(Mark(word) for word in words.split())
    except ValueError as error:
        raise LedgerError(
            f"the ledger marks a trial in a way this celedger does not know ({error})",
            "install a newer celedger",
        ) from error


@lru_cache(maxsize=64)
def _words(text: str) -> tuple[str, ...]:  # the metrics of a task are judged from the same trials
    return tuple(json.loads(text))


_READERS: dict[Any, Callable[[Any], Any]] = {
    float: from_null,
    tuple[str, ...]: _words,
    tuple[Mark, ...]: marks_of,
}


def _text(text: str) -> str:
    """Return a text without what a reader's terminal would obey, and without lone surrogates (git's
    way to hand over bytes that are no UTF-8): SQLite refuses them. A byte that came that way shows
    as U+FFFD."""
    text = escaped(without_sequences(text))
    if text.isascii():
        return text
    # Surrogates that all stand for bytes (PEP 383).
    are_bytes = all("\udc80" <= c <= "\udcff" for c in text if "\ud800" <= c <= "\udfff")
    raw = text.encode("utf-8", "surrogateescape" if are_bytes else "replace")
    return raw.decode("utf-8", "replace")


# --- series per step, in the layout that docs/ledger.md publishes: successive values of one epoch
# as IEEE 754 numbers, little-endian, without a header

_CODES = {4: "f", 8: "d"}  # bytes a value -> what `array` calls it


def pack(values: Sequence[float]) -> tuple[int, bytes]:
    """Return (bytes a value, blob). In single precision where that loses nothing, as what torch
    computes in float32 is; in double otherwise. Lossless, NaN and infinities included."""
    for width, code in _CODES.items():
        packed = array(code, values)  # beyond float32: infinity
        if width == 8 or all(a == b or a != a for a, b in zip(packed, values, strict=True)):
            break
    if sys.byteorder == "big":
        packed.byteswap()
    return width, packed.tobytes()


def unpack(width: int, series: bytes) -> tuple[float, ...]:
    """Return the values of a blob."""
    return struct.unpack(f"<{len(series) // width}{_CODES[width]}", series)


hints = cache(get_type_hints)  # evaluates the text of annotations


def to_json(noun: Any, *, compact: bool = False) -> str:
    """Return a noun as JSON, which `from_json` understands; `compact` sorts its keys, too."""
    separators = (",", ":") if compact else None
    return json.dumps(noun, default=_plain, sort_keys=compact, separators=separators)


def _plain(noun: Any) -> object:
    if is_dataclass(noun) and not isinstance(noun, type):
        return {name: getattr(noun, name) for name in noun.__dataclass_fields__}
    if isinstance(noun, bytes):
        return os.fsdecode(noun)
    return dict(noun) if isinstance(noun, Mapping) else str(noun)


def from_json(kind: Any, text: str | bytes) -> Any:
    """Return the noun of a type that was written as JSON."""
    return rebuilt(kind, json.loads(text))


def rebuilt(kind: Any, value: Any) -> Any:
    """Return a noun of a type from what JSON has of it."""
    build = _builder(kind)
    return value if value is None or build is None else build(value)


@cache
def _builder(kind: Any) -> Callable[[Any], Any] | None:
    """Return what makes a noun of a type from JSON, None where that is the noun."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is None and isinstance(kind, type) and issubclass(kind, tuple):
        fields = tuple(hints(kind).values())  # of a named tuple: JSON has it as a list

        def build(values: object) -> Any:
            if not isinstance(values, list):
                raise TypeError(f"{values!r} is no {kind.__name__}")
            return kind(*map(rebuilt, fields, values))

        return build
    if is_dataclass(kind) and isinstance(kind, type):
        types = hints(kind)
        return lambda value: kind(**{name: rebuilt(types[name], x) for name, x in value.items()})
    if origin is UnionType:
        return _builder(arguments[0])
    if origin is tuple:
        return lambda value: tuple(rebuilt(arguments[0], item) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return lambda value: {key: rebuilt(arguments[1], item) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind
    return os.fsencode if kind is bytes else None
