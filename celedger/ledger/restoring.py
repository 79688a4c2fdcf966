"""Rebuilding a ledger that is gone or damaged, from its archive and from what of it is sound.

Lives here: `restore`. It must not know where an archive lies, nor what a journal is: who calls it
takes in the journals afterwards.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from celedger.errors import LedgerDamaged, LedgerError
from celedger.ledger import Ledger, checking, opening, ulid
from celedger.ledger.archive import Archive, private, private_folder
from celedger.ledger.facts import TABLES, Carrier, Document, checksum
from celedger.ledger.store import is_there


@dataclass(frozen=True, slots=True)
class Restored:
    """What `restore` did. `aside` is where a damaged ledger lies now; `lost` how many stretches of
    the archive could not be read and how many facts refer to what is nowhere."""

    trials: int
    aside: Path | None
    lost: int


def restore(path: Path, archive: Archive) -> Restored:
    """Make the ledger hold what it holds and what its archive does. A damaged one is put aside,
    and a new one in its place when it is complete: a kill leaves everything as it was, or the
    ledger gone, and the same command goes on. Raises LedgerError for a ledger that is neither
    sound nor damaged: read-only, or from a newer celedger."""
    lost = 0

    def count() -> None:
        nonlocal lost
        lost += 1

    home = path.parent
    try:
        if is_there(path):
            with Ledger.open(path, archive=archive) as ledger:
                trials, left_out = ledger.add_documents(_logged(archive.documents(count), home))
                archive.write_anew(ledger._connection, home)
            return Restored(trials, None, lost + left_out)
    except LedgerDamaged:
        lost = 0
    draft = home / ".celedger" / "restored" / path.name
    with opening.alone(path):
        shutil.rmtree(draft.parent, ignore_errors=True)
        private_folder(draft.parent)
        with Ledger.open(draft, create=True) as ledger:
            trials, left_out = ledger.add_documents(_logged(archive.documents(count), home))
            saved, _ = ledger.add_documents(_sound(path))
            if left_out:  # what it refers to may have been saved
                again, left_out = ledger.add_documents(archive.documents())
                saved += again
            if not trials + saved and (lost or (is_there(path) and not archive.holds())):
                raise LedgerError(
                    f"nothing can be restored: neither {path} nor {archive.folder} has a trial "
                    "that is sound",
                    f"keep a copy, then rescue what can be read: sqlite3 {path} .recover",
                )
            archive.write_anew(ledger._connection, home)
        aside = _put_aside(path)
        opening.install(draft, path)
        shutil.rmtree(draft.parent, ignore_errors=True)
    return Restored(trials + saved, aside, lost + left_out)


def _logged(documents: Iterator[Document], home: Path) -> Iterator[Document]:
    """Yield the documents, and write the ends of logs that they carry where the logs are gone."""
    for document in documents:
        if "log" in document:
            columns, row = document["trials"][:2]
            name = row[columns.index("ulid")]
            log = home / ".celedger" / "logs" / f"{name}.log"
            if ulid.is_valid(name) and not log.exists():
                private_folder(log.parent)
                with open(log, "w", opener=private) as file:
                    file.write(f"[the end of a log that is gone]\n{document['log'][1][0]}")
        yield document


def _sound(path: Path) -> Iterator[Document]:
    """Yield the facts of a damaged ledger that are as they were written."""
    with suppress(*checking.ERRORS), closing(checking.readonly(path)) as connection:
        carrier = Carrier(connection)
        facts = connection.execute("SELECT fact, row, value FROM checksums ORDER BY id")
        for table, row, value in facts.fetchall():
            with suppress(LookupError, *checking.ERRORS):
                if table in TABLES and checksum(connection, table, row) == value:
                    yield carrier.document(table, row)


def _put_aside(path: Path) -> Path | None:
    """Rename a damaged ledger; None where there is none."""
    if not path.exists():
        return None
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for suffix in ("", "-wal"):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").replace(f"{aside}{suffix}")
    Path(f"{path}-shm").unlink(missing_ok=True)  # SQLite makes it anew
    return aside
