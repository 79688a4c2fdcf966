"""An order: everything that a node needs to know of one trial, as a value that travels as JSON. And
the lines that come back: the writes of the node's ledger, which the head repeats on its own.

An order that is out has a file in `.git/celedger/remote/`, there before its trial can start and
until all of it is in the ledger. Its head holds a lock on it, so that the next command can tell the
order of a dead head from that of a living one."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from celedger.base import files
from celedger.base.errors import explained
from celedger.base.files import Lock, try_flock
from celedger.base.model import (
    Commit,
    Environment,
    EpochReport,
    Footprint,
    Outcome,
    Purpose,
    Task,
    Trial,
)
from celedger.ledger import store
from celedger.ledger.archive import private_folder
from celedger.repo import Repository
from celedger.trial import journal

# The writes of a ledger that a node reports, with the types of their arguments.
WRITES: Mapping[str, tuple[Any, ...]] = {
    "record_environment": (Environment,),
    "start_trial": (Trial,),
    "record_trial_facts": (str, Mapping[str, str]),
    "append_epochs": (str, tuple[EpochReport, ...]),
    "finish_trial": (str, Outcome, Mapping[str, float]),
    "record_footprint": (str, Footprint, str),
    "record_unknown_footprint": (str, str),
}


@dataclass(frozen=True, slots=True)
class Order:
    """One trial to run on a node; without a commit, only the environments of its tasks to describe.

    `environments` are those in which the head compares trials, and `imported` the distributions
    that count in them, both by task name: a node with another environment refuses the order.
    """

    ulid: str
    repository: str  # a name for the clone that a node keeps
    tip: str  # the commit (a hash) whose history the clone needs
    tasks: tuple[Task, ...]
    device: str
    sandbox: bool
    why: Purpose
    commit: Commit | None = None
    seed: int = 0
    environments: Mapping[str, Environment] | None = None
    imported: Mapping[str, tuple[str, ...]] | None = None
    role: str = "head"  # as of a `Need`
    asked: str = ""


def packed(folder: Path) -> bytes:
    """Return the files of a folder as an archive."""
    stream = BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, str(path.relative_to(folder)), recursive=False)
    return stream.getvalue()


def unpacked(content: bytes, folder: Path) -> None:
    """Write the files of an archive into a folder."""
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=BytesIO(content)) as tar:
        tar.extractall(folder, filter="data")


# --- the orders that are out


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
            files.write(draft, store.to_json(facts))
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
                    yield Note(path, store.rebuilt(Order, facts["order"]), note_lock)
                    continue
            note_lock.close()
