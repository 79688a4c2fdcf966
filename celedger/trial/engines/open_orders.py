"""The orders that are out: a file for each in `.git/celedger/remote/`, there before its trial can
start and until all of it is in the ledger. Its head holds a lock on it, so that the next command
can tell the order of a dead head from that of a living one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from celedger.base import files
from celedger.base.errors import MachineError, explained
from celedger.ledger.archive import private_folder
from celedger.repo import Repository
from celedger.system.device_lock import Lock, is_held, try_flock
from celedger.trial.engines import order
from celedger.trial.engines.order import Order


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
        path = folder(self.repository) / f"{order_out.ulid}.json"
        facts = {
            "engine": self.engine, "address": self.address, "ledger": str(self.ledger),
            "order": order_out,
        }  # fmt: skip
        with explained(f"{path.parent} cannot be written", "free some room there"):
            private_folder(path.parent)
            draft = path.with_suffix(".new")
            files.write(draft, order.written(facts))
            note_lock = try_flock(draft)
            assert note_lock is not None
            draft.replace(path)
        return Note(path, order_out, note_lock)

    def left(self) -> Iterator[Note]:
        """Yield the notes of dead heads on orders of this engine and ledger, locked."""
        ours = [self.engine, self.address, str(self.ledger)]
        for path in sorted(folder(self.repository).glob("*.json")):
            note_lock = try_flock(path)
            if note_lock is None:
                continue
            with suppress(OSError, ValueError, KeyError, TypeError):
                facts = json.loads(path.read_bytes())
                if [facts["engine"], facts["address"], facts["ledger"]] == ours:
                    yield Note(path, order.rebuilt(Order, facts["order"]), note_lock)
                    continue
            note_lock.close()


def folder(repository: Repository) -> Path:
    return repository.state_dir / "remote"


def ulids(repository: Repository) -> list[str]:
    """Return the trials whose orders are out."""
    return [path.stem for path in folder(repository).glob("*.json")]


@dataclass(frozen=True, slots=True)
class Out:
    """An order that is out, for a person: on which engine, and whether its head lives."""

    order: Order
    engine: str  # and its address
    attended: bool


def out(repository: Repository) -> list[Out]:
    """Return the orders that are out."""
    orders = []
    for path in sorted(folder(repository).glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, MachineError):
            facts = json.loads(path.read_bytes())
            engine = f"{facts['engine']} {facts['address']}".strip()
            orders.append(Out(order.rebuilt(Order, facts["order"]), engine, is_held(path)))
    return orders
