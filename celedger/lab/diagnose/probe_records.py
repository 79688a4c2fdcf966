"""Read what probes wrote of the trainings that they observed, a process a folder. A verb that
compares digests imports no more than this: NumPy takes longer than all that such a verb does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

EVENTS = "events.jsonl"  # as celedger.lab.probes.observe names it


def processes(out: Path) -> list[Path]:
    """Return the folders of all processes that trained and wrote a record, by start or rank."""
    folders = [p for p in out.iterdir() if p.name.isdigit() and (p / EVENTS).exists()]
    return sorted(folders, key=lambda p: int(p.name))


def records(folder: Path, *kinds: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a process, of some kinds or all. Skips a half-written last line, which a
    kill leaves."""
    for event in events_in(folder / EVENTS):
        if not kinds or event["k"] in kinds:
            yield event


def events_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file, up to the first line that is no JSON."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            return


def rank_of(folder: Path) -> str:
    """Return `rank 1 of 2`; empty if the process did not train with others."""
    event = next(records(folder, "rank"), None)
    return f"rank {event['rank']} of {event['world']}" if event is not None else ""


def printed_name(file: str, roots: Mapping[str, str]) -> str:
    """Return a file's name relative to the tree's root, or under the suite's name."""
    for prefix, name in roots.items():
        if file.startswith(prefix.rstrip("/") + "/"):
            rest = file[len(prefix.rstrip("/")) + 1 :]
            return f"{name}/{rest}" if name else rest
    return file
