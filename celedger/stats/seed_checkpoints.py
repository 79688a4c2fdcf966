"""What is kept of the histories of `seed_histories.py` from job to job.

Lives here: for each chain the likeliest histories some nodes ago, and the steps that were settled
before. It names by a digest what it rests on, so a stale one is never used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from celedger.stats import settled
from celedger.stats.course import Node, Step
from celedger.stats.seed_histories import Beam, SeedTable

EVERY = 10
"""Nodes from checkpoint to checkpoint, and the newest ones that none is behind."""
_FLOATS = ("base", "square", "share", "draws", "moves", "commits", "log_evidence")
_ARRAYS = ("mean", "covariance", "kinds", "drawn")


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The histories of the nodes up to one, and the steps before node `settled`."""

    beam: Beam
    steps: list[Step]
    settled: int


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Those of one metric, in its kept item."""

    kept: settled.Kept

    def get(
        self, table: SeedTable, places: Sequence[Node], content: tuple[object, ...]
    ) -> Checkpoint | None:
        """Return what was kept of a chain; None if that is stale, or if a later node has the bits
        of one before it.

        Args:
            places: The table's nodes.
            content: What it rests on beside the table.
        """
        name = _name(places)
        facts = self.kept.facts.get(name)
        if facts is None or facts["stop"] > len(table.nodes):
            return None
        stop = facts["stop"]
        is_current = facts["content"] == _content(table, places, content, stop)
        if not is_current or any(0 <= to < stop for to in table.returns[stop:]):
            return None
        arrays = self.kept.arrays
        base, square, share, draws, moves, commits, log_evidence = arrays[f"{name} numbers"]
        mean, covariance, kinds, drawn = (arrays[f"{name} {each}"] for each in _ARRAYS)
        path = np.array(facts["path"], dtype=np.int64)
        beam = Beam(
            base, square, mean, covariance, share, path, drawn, draws, moves, commits,
            log_evidence, kinds, facts["first"], list(map(tuple, facts["paths"])), stop,
        )  # fmt: skip
        return Checkpoint(beam, settled.restored(facts["steps"]), facts["settled"])

    def put(
        self,
        table: SeedTable,
        places: Sequence[Node],
        content: tuple[object, ...],
        checkpoint: Checkpoint,
    ) -> None:
        """Keep a checkpoint of a chain."""
        beam, name = checkpoint.beam, _name(places)
        if beam.stop < EVERY:
            return
        live, path = np.unique(beam.path, return_inverse=True)
        self.kept.facts[name] = {
            "stop": beam.stop,
            "content": _content(table, places, content, beam.stop),
            "first": beam.first,
            "settled": checkpoint.settled,
            "steps": settled.facts_of(checkpoint.steps),
            "paths": [beam.paths[each] for each in live.tolist()],
            "path": path.ravel().tolist(),
        }
        self.kept.arrays[f"{name} numbers"] = np.array([getattr(beam, x) for x in _FLOATS])
        for each in _ARRAYS:
            self.kept.arrays[f"{name} {each}"] = getattr(beam, each)


def _name(places: Sequence[Node]) -> str:
    return f"seeds {places[0].chain}"


def _content(
    table: SeedTable, places: Sequence[Node], content: tuple[object, ...], stop: int
) -> str:
    """Return the digest of what the histories of the nodes before one rest on."""
    numbers = (table.width, table.passing, table.centre, table.level, table.rounding)
    columns = (table.columns, table.values, table.counts)
    nodes = (table.nodes[:stop], table.returns[:stop], list(map(len, table.columns[:stop])))
    return settled.digest(
        *content, *numbers, *map(str, nodes), table.gaps[:stop], table.quiet[:stop],
        [(node.first, node.last) for node in places[:stop]],
        *(np.concatenate(column[:stop]) for column in columns),
    )  # fmt: skip
