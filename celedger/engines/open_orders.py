"""The orders that are out: a file for each in `.git/celedger/remote/`, there before its trial can
start and until all of it is in the ledger. Its head holds a lock on it, so that the next command
can tell the order of a dead head from that of a living one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from celedger.base import files, serial
from celedger.base.errors import explained
from celedger.base.locks import Lock, try_flock
from celedger.engines.order import Order
from celedger.ledger.archive import private_folder
from celedger.repo import Repository
from celedger.trial import journal


@dataclass
class Note:
    """The note on an order, locked."""

    path: Path
    order: Order
    lock: Lock

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.lock.close()


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of a repository on the orders that an engine runs for a ledger."""

    repository: Repository
    engine: str
    address: str
    ledger: Path

    def write(self, order_out: Order) -> Note:
        """Note an order, before it goes out. Raises MachineError."""
        path = journal.remote_folder(self.repository) / f"{order_out.ulid}.json"
        facts = {
            "engine": self.engine, "address": self.address, "ledger": str(self.ledger),
            "order": order_out,
        }  # fmt: skip
        with explained(f"{path.parent} cannot be written", "free some room there"):
            private_folder(path.parent)
            draft = path.with_suffix(".new")
            files.write(draft, serial.written(facts))
            note_lock = try_flock(draft)
            assert note_lock is not None
            draft.replace(path)
        return Note(path, order_out, note_lock)

    def left(self) -> Iterator[Note]:
        """Yield the notes of dead heads on orders of this engine and ledger, locked."""
        engine_name = [self.engine, self.address, str(self.ledger)]
        for path in sorted(journal.remote_folder(self.repository).glob("*.json")):
            note_lock = try_flock(path)
            if note_lock is None:
                continue
            with suppress(OSError, ValueError, KeyError, TypeError):
                facts = json.loads(path.read_bytes())
                if [facts["engine"], facts["address"], facts["ledger"]] == engine_name:
                    yield Note(path, serial.rebuilt(Order, facts["order"]), note_lock)
                    continue
            note_lock.close()
