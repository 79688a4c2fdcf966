"""The file in which a supervisor leaves what a command named (see reads.py), taken apart."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NOWHERE = "this system does not tell what is read"  # as reads.py has it


@dataclass(frozen=True, slots=True)
class Told:
    """`unknown`: why nothing is; `found`: of sources and the folders beside the tree, by the names
    that `Sources.found` and `Record.write` give it; `paths`: of the tree."""

    unknown: str = ""
    found: dict[str, Any] = field(default_factory=dict)
    paths: tuple[bytes, ...] = ()


def take(file: Path) -> Told:
    """What it tells; the file is removed."""
    try:
        text = file.read_bytes()
        file.unlink()
    except OSError:
        text = b""
    if not text.endswith(b"\0\0"):
        return Told("its record was lost")
    unknown, _, rest = text[:-2].partition(b"\n")
    if unknown:
        return Told(os.fsdecode(unknown))
    found, _, rest = rest.partition(b"\n")
    told = ast.literal_eval(found.decode())
    # Nothing between two separators is the tree itself; a command that names nothing at all has
    # named its current folder to start in.
    only_looked = not rest and told["folders"] and not told["named"]
    return Told("", told, () if only_looked else tuple(rest.split(b"\0")))
