"""The archive of a ledger: a second ledger that `git clean` cannot reach and that the first can be
rebuilt from.

Lives here: the folder below `.git/celedger/ledgers/` that one repository keeps for one ledger, the
copy of facts into it, and `restore`. Facts follow in the order of their checksums, after the
transaction that completed them; a trial follows when it starts, too. A kill in between loses
nothing: the next writer adds what lacks. It must not know what a fact means, nor what a journal is:
who restores a ledger takes in the journals afterwards.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import marshal
import operator
import os
import shutil
import sqlite3
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celedger.base import files
from celedger.base.errors import LedgerDamaged, LedgerError
from celedger.base.text import plain
from celedger.ledger import checksums, opening, salvage, schema, validation
from celedger.ledger.checksums import COLUMNS, NAMES, PARTS, Union

_LONGEST = 200  # bytes of a folder's name
# The last row of the ledger's checksums whose fact is archived.
_WATERMARK = "CREATE TABLE IF NOT EXISTS archived (id INTEGER, fact TEXT, row INTEGER, value INT)"
_SEALED = "SELECT id, fact, row, value FROM checksums"


class Archive:
    """The archive that the repository with this root and folder of state keeps for a ledger."""

    def __init__(self, state: Path, root: Path, ledger: Path) -> None:
        name = os.path.relpath(ledger, root).replace("%", "%25").replace("/", "%2F")
        if len(os.fsencode(name)) > _LONGEST:
            name = f"{zlib.crc32(os.fsencode(name)):08x}"
        self._git = state.parent
        self.folder = state / "ledgers" / name
        self.journals = self.folder / "journals"
        self.path = self.folder / "archive.db"
        self._connection: sqlite3.Connection | None = None

    def reopened(self) -> Archive:
        """Return the same archive for another thread."""
        other = copy.copy(self)
        other._connection = None
        return other

    @property
    def size(self) -> int:
        """Return the bytes of it."""
        return opening.size(self.path)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def trials(self) -> int:
        """Return how many trials it has; 0 where it cannot be read."""
        if self.size:
            with (
                suppress(*checksums.ERRORS),
                closing(opening.readonly(self.path)) as connection,
            ):
                return int(connection.execute("SELECT count(*) FROM trials").fetchone()[0])
        return 0

    def trial_commits(self) -> list[tuple[str, str]]:
        """Return the ulid and commit of each trial that it has; none where it cannot be read."""
        sql = "SELECT ulid, sha FROM trials JOIN commits ON commits.id = trials.revision"
        with suppress(*checksums.ERRORS), closing(opening.readonly(self.path)) as connection:
            return connection.execute(sql).fetchall()
        return []

    def catch_up(self, ledger: sqlite3.Connection, started: Iterable[int] = ()) -> None:
        """Add the facts that the ledger completed since the last call, and trials (their ids) that
        have just started. Raises LedgerError where they cannot be written: the next call will."""
        started = list(started)
        newest = ledger.execute(f"{_SEALED} ORDER BY id DESC LIMIT 1").fetchone()
        if newest is None:
            return
        try:
            copy = self._opened(ledger)
            if newest == _watermark(copy) and not started:
                return
            with opening.writing(copy):
                self._add(ledger, copy, started)
                copy.execute("DELETE FROM archived")
                copy.execute("INSERT INTO archived VALUES (?, ?, ?, ?)", newest)
        except OSError as error:
            raise LedgerError(
                f"{self.folder} cannot be written ({error.strerror}), and the ledger could not be "
                "rebuilt without it",
                "free some room or correct its permissions; the next command adds what is missing",
            ) from error
        except checksums.ERRORS as error:
            raise opening.explain(error, self.path) from error

    def _add(
        self, ledger: sqlite3.Connection, copy: sqlite3.Connection, started: Iterable[int]
    ) -> None:
        last = _watermark(copy)
        same = ledger.execute(f"{_SEALED} WHERE id = ?", last[:1]).fetchone() == last
        union = Union(ledger, copy)
        for table, row in ledger.execute(
            "SELECT fact, row FROM checksums WHERE id > ? ORDER BY id", (last[0] if same else 0,)
        ).fetchall():
            union.carry(table, row)
        for key in started:
            union.carry("trials", key)

    def _opened(self, ledger: sqlite3.Connection) -> sqlite3.Connection:
        if self._connection is None:
            if not self.size:
                self.copy(ledger, anew=False)
            self._connection = opening.open_for_writing(self.path, create=False, check=False)
        return self._connection

    def copy(self, ledger: sqlite3.Connection, *, anew: bool = True) -> None:
        """Make it a copy of the whole ledger, `anew` where there is one. A kill leaves the former
        archive, or the new one."""
        self.close()
        if not self._git.is_dir():  # the repository was moved: nothing belongs where it was
            raise LedgerError(f"{self._git} is gone, and the ledger's archive with it")
        private_folder(self.folder)
        draft = self.folder / "draft"
        with opening.alone(self.path):
            if self.size and not anew:
                return  # another process was first
            draft.unlink(missing_ok=True)
            ledger.execute("VACUUM INTO ?", (draft.absolute().as_uri(),))
            with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.execute(_WATERMARK)
                connection.execute(f"INSERT INTO archived {_SEALED} ORDER BY id DESC LIMIT 1")
            opening.install(draft, self.path)


def _watermark(copy: sqlite3.Connection) -> tuple[int, ...]:
    """Return the last archived row of the ledger's checksums; (0,) where there is none."""
    row: tuple[int, ...] = copy.execute("SELECT * FROM archived").fetchone() or (0,)
    return row


def damage_of(path: Path) -> list[str]:
    """Return what is damaged in a ledger or an archive that may not open as one."""
    try:
        with closing(current(path)) as connection:
            return list(checksums.damage(connection))
    except checksums.ERRORS as error:
        return [plain(str(error))]


def current(path: Path) -> sqlite3.Connection:
    """Return a ledger of today's schema to read from: the file, or a copy in memory of an older
    one."""
    with closing(opening.readonly(path)) as connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != schema.APPLICATION_ID or version >= schema.version():
            return opening.readonly(path)
        (sound,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if sound != "ok":  # what is damaged must not get a checksum
            raise ValueError(sound)
        copy = sqlite3.connect(":memory:", isolation_level=None)
        connection.backup(copy)
        schema.migrate(copy)
        return copy


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of `restore`. `aside` is where a damaged ledger lies now, `lost` the names of
    facts that could not be read, `unsealed` how many came whose checksum could not."""

    trials: int
    aside: Path | None
    lost: tuple[str, ...]
    unsealed: int


def restore(path: Path, archive: Archive) -> Restored:
    """Make the ledger hold what it holds and what its archive does. A damaged one is put aside,
    and a new one in its place when it is complete: a kill leaves everything as it was, or the
    ledger gone, and the same command goes on. Raises LedgerError for a ledger that is neither
    sound nor damaged: read-only, or from a newer celedger."""
    archive.close()
    if opening.size(path):
        with suppress(LedgerDamaged), closing(_writable(path)) as ledger:
            before = _trials(ledger)
            lost, unsealed = _unite(ledger, archive.path)
            archive.copy(ledger)
            return Restored(_trials(ledger) - before, None, lost, unsealed)
    draft = files.beside(path) / "restored" / path.name
    with opening.alone(path):
        shutil.rmtree(draft.parent, ignore_errors=True)
        private_folder(draft.parent)
        with closing(_writable(draft)) as ledger:
            lost, unsealed = _unite(ledger, archive.path, path)
            trials = _trials(ledger)
            if not trials and (lost or (opening.size(path) and not archive.size)):
                raise LedgerError(
                    f"nothing can be restored: neither {path} nor {archive.folder} has a trial "
                    "that is sound",
                    f"keep a copy, then rescue what can be read: sqlite3 {path} .recover",
                )
        aside = _put_aside(path)
        opening.install(draft, path)
        shutil.rmtree(draft.parent, ignore_errors=True)
    with closing(_writable(path)) as ledger:
        archive.copy(ledger)
    return Restored(trials, aside, lost, unsealed)


def _writable(path: Path) -> sqlite3.Connection:
    try:
        ledger = opening.open_for_writing(path, create=True)
        if validation.left_out(ledger):  # it is rebuilt without them
            ledger.close()
            raise opening.damaged(path, "it has rows that celedger never writes")
        return ledger
    except checksums.ERRORS as error:
        raise opening.explain(error, path) from error


def _trials(ledger: sqlite3.Connection) -> int:
    return int(ledger.execute("SELECT count(*) FROM trials").fetchone()[0])


def _unite(ledger: sqlite3.Connection, *paths: Path) -> tuple[tuple[str, ...], int]:
    """Add every fact of these files that can be read: first those that are as they were written,
    then those whose checksum is lost. Return the names of what is lost, and how many of the latter
    came."""
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(_source(p))) for p in paths if opening.size(p)]
        with opening.writing(ledger):
            unions = [Union(source, ledger, checksums.checksums(source)) for source in sources]
            left_out = [union.add_all() for union in unions]
            if any(left_out):
                left_out = [union.add_all(unsealed=True) for union in unions]
            return _lost(unions, left_out), sum(union.unsealed for union in unions)


def _source(path: Path) -> sqlite3.Connection:
    """Return a ledger to read from: the file where it is sound, else what can be read of it."""
    try:
        connection = current(path)
    except checksums.ERRORS:
        return salvage.readable(path)
    with suppress(*checksums.ERRORS):
        if next(checksums.damage(connection), None) is None:
            return connection
    connection.close()
    return salvage.readable(path)


def _lost(
    unions: Sequence[Union], left_out: Sequence[Sequence[tuple[str, int]]]
) -> tuple[str, ...]:
    """Return the names of facts that the ledger has from no source. One without a name is lost if
    each source lacks one of its table: the archive follows the ledger."""
    names: dict[str, None] = {}
    nameless: list[Counter[str]] = []
    for union, rows in zip(unions, left_out, strict=True):
        nameless.append(Counter())
        for table, row in dict.fromkeys((*rows, *union.gaps())):
            if not union.holds(table, row):
                name = union.name(table, row)
                if name is None:
                    nameless[-1][table] += 1
                else:
                    names[name] = None
        for table, row in union.stood_in:
            names[f"row {row} of {table}: another one stands in for it"] = None
    common = functools.reduce(operator.and_, nameless) if nameless else Counter()
    return (*names, *(f"{count} of {table}" for table, count in common.items()))


def _put_aside(path: Path) -> Path | None:
    """Rename a damaged ledger; None where there is none."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    is_there = path.exists()
    for suffix in ("", "-wal"):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").replace(f"{aside}{suffix}")
    Path(f"{path}-shm").unlink(missing_ok=True)  # SQLite makes it anew
    return aside if is_there else None


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are not there, for their owner alone."""
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


# --- whether a ledger and its archive agree


class _Contents(Union):
    """The facts of one ledger, by a hash of what each contains, whatever keys its ledger gave them.
    Checksums cannot tell that a fact was changed by somebody who wrote its checksum anew, or taken
    away with it; a second ledger can."""

    def __init__(self, source: sqlite3.Connection) -> None:
        super().__init__(source, source)

    def carry(self, table: str, row: int) -> int:
        """Return the hash of what names a fact in every ledger: so a reference to it counts."""
        if (table, row) not in self._keys:
            name = self._name(table, row)
            self._keys[table, row] = self.content(table, row) if name is None else _hash(name)
        return self._keys[table, row]

    def content(self, table: str, row: int) -> int:
        """Return the hash of all that a fact holds."""
        queries = {table: f"SELECT {COLUMNS[table]} FROM {table} WHERE rowid = ?"}
        rows = [
            sorted(map(repr, self._rows(part, sql, row)[1]))
            for part, sql in (queries | PARTS.get(table, {})).items()
        ]
        if COLUMNS[table].startswith("id, "):
            rows[0] = [line.partition(", ")[2] for line in rows[0]]
        return _hash(rows)

    def by_name(self, equal: Collection[tuple[str, int]]) -> dict[object, tuple[int, str]]:
        """Return the hash of each complete fact, and its name for a person. Facts without a name
        have their hash for one. Those with a name that are `equal` are left out."""
        facts: dict[object, tuple[int, str]] = {}
        for table, row in checksums.facts(self._source, ()):
            # The archive may lack the epochs of a trial that has not ended, and parents that a
            # shallow clone did not know.
            is_named = len(NAMES.get(table, ())) == 1
            if self._is_complete(table, row) and not (is_named and (table, row) in equal):
                content = self.content(table, row)
                key = self._name(table, row) or (table, content)
                facts[key] = content, checksums.described(self._source, table, row)
        return facts

    def _name(self, table: str, row: int) -> tuple[object, ...] | None:
        names = NAMES.get(table, ())
        if len(names) != 1 or table == "closures":
            return None
        sql = f"SELECT {names[0]} FROM {table} WHERE rowid = ?"
        return (table, *self._source.execute(sql, (row,)).fetchone())


def _hash(value: Any) -> int:
    return int.from_bytes(hashlib.sha256(marshal.dumps(value, 2)).digest()[:8], "big")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Facts of an archive, by their names: those that the ledger has otherwise, and lacks."""

    otherwise: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)


def compare(ledger: Path, archive: Path) -> Comparison:
    """Compare what the archive holds with the ledger. Both must be sound."""
    with closing(current(ledger)) as one, closing(current(archive)) as other:
        # Equal keys and checksums: most facts of an archive, which follows its ledger.
        equal = {
            fact
            for fact, _ in checksums.checksums(one).items() & checksums.checksums(other).items()
        }
        in_ledger, in_archive = _Contents(one).by_name(equal), _Contents(other).by_name(equal)
    result = Comparison()
    for key, (digest, name) in in_archive.items():
        if key not in in_ledger:
            result.lacking.append(name)
        elif in_ledger[key][0] != digest:
            result.otherwise.append(name)
    return result
