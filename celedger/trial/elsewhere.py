"""The trials that run on other machines: a file for each in `.git/celedger/remote/`, named by the
trial's ULID. Its engine writes it before the trial can start, and removes it when all of the trial
is in the ledger. While the command that sent it lives, it holds a lock on the file."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from celedger.base.errors import MachineError
from celedger.repo import Repository
from celedger.system.device_lock import is_held


class RemoteTrial(NamedTuple):
    """A trial elsewhere, for a person: on which `engine`, with its address, and whether the command
    that sent it lives."""

    commit: str
    task: str
    seed: int
    engine: str
    attended: bool


def folder(repository: Repository) -> Path:
    return repository.state_dir / "remote"


def ulids(repository: Repository) -> list[str]:
    """Return the trials that run elsewhere."""
    return [path.stem for path in folder(repository).glob("*.json")]


def trials(repository: Repository) -> list[RemoteTrial]:
    """Return the same with what their files say: `engine`, `address` and `order`."""
    remote_trials = []
    for path in sorted(folder(repository).glob("*.json")):
        with suppress(OSError, ValueError, LookupError, TypeError, MachineError):
            facts = json.loads(path.read_bytes())
            order, engine = facts["order"], f"{facts['engine']} {facts['address']}".strip()
            if order["commit"] is not None:
                remote_trials.append(RemoteTrial(
                    str(order["commit"]["sha"]), str(order["tasks"][0]["name"]),
                    int(order["seed"]), engine, is_held(path),
                ))  # fmt: skip
    return remote_trials
