"""An order: everything that a node needs to know of one trial, as a value that travels as JSON. And
the lines that come back: the writes of the node's ledger, which the head repeats on its own."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from functools import cache
from io import BytesIO
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from celedger.base.model import (
    Commit,
    Environment,
    EpochReport,
    Footprint,
    Outcome,
    Task,
    Trial,
    Why,
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
    why: Why
    commit: Commit | None = None
    seed: int = 0
    environments: Mapping[str, Environment] | None = None
    imported: Mapping[str, tuple[str, ...]] | None = None
    role: str = "head"  # as of a `Need`
    asked: str = ""


def written(noun: Any) -> str:
    """Return a noun as JSON, which `read` understands."""
    return json.dumps(noun, default=_plain)


def _plain(noun: Any) -> object:
    if is_dataclass(noun) and not isinstance(noun, type):
        return asdict(noun)
    if isinstance(noun, bytes):
        return os.fsdecode(noun)
    return dict(noun)  # any other mapping


def read(kind: Any, text: str | bytes) -> Any:
    """Return the noun of a type that was written as JSON."""
    return rebuilt(kind, json.loads(text))


def rebuilt(kind: Any, value: Any) -> Any:
    """Return a noun of a type from what JSON has of it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if is_dataclass(kind):
        assert isinstance(kind, type)
        hints = _hints(kind)
        return kind(**{name: rebuilt(hints[name], item) for name, item in value.items()})
    if origin is UnionType:
        return rebuilt(arguments[0], value)
    if origin is tuple:
        return tuple(rebuilt(arguments[0], each) for each in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: rebuilt(arguments[1], each) for key, each in value.items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value)
    return os.fsencode(value) if kind is bytes else value


_hints = cache(get_type_hints)  # evaluates the text of annotations


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
