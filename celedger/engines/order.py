"""An order: everything that a node needs to know of one trial, as a value that travels as JSON. And
the lines that come back: the writes of the node's ledger, which the head repeats on its own."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

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
