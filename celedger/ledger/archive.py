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
import operator
import os
import shutil
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import NamedTuple

from celedger.base import files
from celedger.base.errors import LedgerDamaged, LedgerError
from celedger.base.text import plain
from celedger.ledger import checksums, opening, schema
from celedger.ledger.checksums import Union

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


class Restored(NamedTuple):
    """The result of `restore`. `aside` is where a damaged ledger lies now, `lost` the names of
    facts that could not be read."""

    trials: int
    aside: Path | None
    lost: tuple[str, ...]


def restore(path: Path, archive: Archive) -> Restored:
    """Make the ledger hold what it holds and what its archive does. A damaged one is put aside,
    and a new one in its place when it is complete: a kill leaves everything as it was, or the
    ledger gone, and the same command goes on. Raises LedgerError for a ledger that is neither
    sound nor damaged: read-only, or from a newer celedger."""
    archive.close()
    if opening.size(path):
        with suppress(LedgerDamaged), closing(_writable(path)) as ledger:
            before = _trials(ledger)
            lost = _unite(ledger, archive.path)
            archive.copy(ledger)
            return Restored(_trials(ledger) - before, None, lost)
    draft = files.beside(path) / "restored" / path.name
    with opening.alone(path):
        shutil.rmtree(draft.parent, ignore_errors=True)
        private_folder(draft.parent)
        with closing(_writable(draft)) as ledger:
            lost = _unite(ledger, archive.path, path)
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
    return Restored(trials, aside, lost)


def _writable(path: Path) -> sqlite3.Connection:
    try:
        return opening.open_for_writing(path, create=True)
    except checksums.ERRORS as error:
        raise opening.explain(error, path) from error


def _trials(ledger: sqlite3.Connection) -> int:
    return int(ledger.execute("SELECT count(*) FROM trials").fetchone()[0])


def _unite(ledger: sqlite3.Connection, *paths: Path) -> tuple[str, ...]:
    """Add every fact of these files that SQLite can read and that is as it was written. Return the
    names of what is lost."""
    with ExitStack() as stack:
        sources = []
        for path in filter(opening.size, paths):
            with suppress(*checksums.ERRORS):  # of one without its schema nothing can be read
                source = stack.enter_context(closing(current(path)))
                sources.append((source, checksums.checksums(source)))
        if not sources:
            return tuple(f"what {path} held" for path in paths if opening.size(path))
        with opening.writing(ledger):
            unions = [Union(source, ledger, written) for source, written in sources]
            left_out = [union.add_all() for union in unions]
            return _lost(unions, left_out)


def _lost(
    unions: Sequence[Union], left_out: Sequence[Sequence[tuple[str, int]]]
) -> tuple[str, ...]:
    """Return the names of facts that the ledger has from no source. One without a name is lost if
    each source lacks one of its table: the archive follows the ledger."""
    names: dict[str, None] = {}
    nameless: list[Counter[str]] = []
    for union, rows in zip(unions, left_out, strict=True):
        nameless.append(Counter())
        for table, row in rows:
            if not union.holds(table, row):
                name = union.name(table, row)
                if name is None:
                    nameless[-1][table] += 1
                else:
                    names[name] = None
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
