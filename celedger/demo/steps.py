"""The steps of `steps.toml` as dataclasses: what may happen to the demo's library. It must not
know how a history is made of them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Kind = Literal["quality", "speed", "memory", "crash"]
KINDS: tuple[Kind, ...] = ("quality", "speed", "memory", "crash")


@dataclass(frozen=True, slots=True)
class Plant:
    """What a planted step makes worse. `metric` is empty for a crash."""

    kind: Kind
    task: str
    metric: str
    truth: str


@dataclass(frozen=True, slots=True)
class Step:
    """A change to the library. Its name is the flag that the templates ask for."""

    name: str
    subjects: tuple[str, ...]
    kind: str  # how it presents itself: feat, refactor, perf, docs, test, build
    area: str
    body: str = ""
    needs: frozenset[str] = frozenset()
    excludes: frozenset[str] = frozenset()
    when: float = 0.5  # about where in the history: 0 the beginning, 1 the end
    repairs: tuple[str, ...] = ()  # not empty: it does not import, and the next commit repairs it
    plant: Plant | None = None

    @property
    def repaired(self) -> str:
        """The flag of the commit that repairs it."""
        return f"{self.name}_fixed"


@cache
def steps() -> Mapping[str, Step]:
    """All steps by name."""
    table = _table()
    plants = {
        name: Plant(kind, **entry)
        for kind in KINDS
        for name, entry in table["planted"][kind].items()
    }
    excludes: dict[str, set[str]] = {}
    for name, others in table["excludes"].items():
        for other in others:
            excludes.setdefault(name, set()).add(other)
            excludes.setdefault(other, set()).add(name)
    return {
        name: Step(
            name, tuple(subjects), kind, area,
            body=table["bodies"].get(name, ""),
            needs=frozenset(table["needs"].get(name, ())),
            excludes=frozenset(excludes.get(name, ())),
            when=table["when"].get(name, 0.5),
            repairs=tuple(table["repairs"].get(name, ())),
            plant=plants.get(name),
        )
        for kind, areas in table["subjects"].items()
        for area, entries in areas.items()
        for name, subjects in entries.items()
    }  # fmt: skip


@cache
def branches() -> Mapping[str, tuple[str, ...]]:
    """Side branches by name: their steps in order."""
    return {name: tuple(names) for name, names in _table()["branches"].items()}


def _table() -> dict:  # type: ignore[type-arg]
    return tomllib.loads(Path(__file__).with_name("steps.toml").read_text(encoding="utf-8"))
