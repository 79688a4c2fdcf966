"""The stored part of a metric's history, from one job to the next.

Lives here: one item of bytes a metric. It holds the tables of noise, the lattice point of the
noise, and for each chain the forward message before the newest nodes with the steps before it; for
the chains of `seed_histories.py` the likeliest histories some nodes ago, and the steps that were
settled before. Each part has a digest of what it rests on, so a stale one is never used. Opens no
file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from celedger.stats import Floats
from celedger.stats.course import (
    CommitNodes,
    MetricHistory,
    MetricKey,
    Node,
    Step,
    StepKind,
    TrialNoise,
)
from celedger.stats.metric_passes import ChainResult
from celedger.stats.seed_histories import Beam, SeedTable
from celedger.stats.trial_noise import NoisePoint

VERSION = 24
"""Of the model and the format: an item of another one is not read."""
LAG = 120
"""The newest nodes that every job passes again: as many as the longest drift has commits."""
AT_ONCE = 24
"""Nodes are settled when so many more are passed."""
TAIL_NODES = 4
"""The newest nodes change most, and no table of theirs is kept."""
_SMALLEST_OUTLIERS = 0.005
_LARGEST_ERROR = 2.0


class Cache(Protocol):
    """Items of bytes by name, which may vanish at any time."""

    def get(self, name: str, /) -> bytes | None: ...

    def __setitem__(self, name: str, item: bytes, /) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """What is settled of one metric in one chain: its nodes before `first`.

    Attributes:
        content: The digest of what it rests on.
        message: Forward message of the last settled node: [rows, points].
        drifts: Those that end in the stretch.
    """

    first: int
    content: str
    message: Floats
    drifts: Sequence[Step]


@dataclass(slots=True)
class Kept:
    """One metric's item: `facts` are JSON; `tables` are of `trial_noise`, by digest."""

    facts: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    tables: dict[str, Floats] = field(default_factory=dict)


def encode(kept: Kept) -> bytes:
    """Return the item's bytes: a line of JSON, then the arrays one after another."""
    arrays = {**kept.arrays, **{f"table {key}": table for key, table in kept.tables.items()}}
    layout = [[name, str(a.dtype), list(a.shape)] for name, a in arrays.items()]
    head = json.dumps({"version": VERSION, "facts": kept.facts, "arrays": layout})
    return b"\n".join([head.encode(), b"".join(a.tobytes() for a in arrays.values())])


def decode(item: object) -> Kept:
    """Return what an item holds; nothing if it is not one of this version, or is damaged."""
    if not isinstance(item, bytes):
        return Kept()
    try:
        head, body = item.split(b"\n", 1)
        parsed = json.loads(head)
        if parsed["version"] != VERSION:
            return Kept()
        kept, at = Kept(facts=parsed["facts"]), 0
        for name, dtype, shape in parsed["arrays"]:
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(body, dtype, count, at).reshape(shape)
            at += array.nbytes
            if name.startswith("table "):
                kept.tables[name.removeprefix("table ")] = array
            else:
                kept.arrays[name] = array
    except (ValueError, KeyError, TypeError, AttributeError):
        return Kept()
    return kept


def item_name(key: MetricKey) -> str:
    return "history/" + "/".join(key)


def digest(*parts: object) -> str:
    """Return a name for the content of arrays, numbers and texts."""
    name = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode()
        name.update(len(data).to_bytes(8, "little") + data)
    return name.hexdigest()


def _are_apart(rate: float, other: float) -> bool:
    """Return True if one of two small rates is larger by more than a third and a thousandth: at
    rates of a hundredth a step of that size made twenty standard deviations an outlier's."""
    low, high = sorted((rate, other))
    return high > 4 / 3 * low + 1e-3


def on_lattice(new: NoisePoint, kept: Kept) -> NoisePoint:
    """Return the noise moved to a lattice, and remember it.

    While the point stays, so does every likelihood, and the settled message is valid.
    """
    old: dict[str, Any] = kept.facts.get("noise", {})

    def snapped(name: str, value: float, width: float) -> float:
        """Return the old value while the new one is within a step of it, else the nearest step."""
        was: float | None = old.get(name)
        is_near = was is not None and abs(value - was) <= width
        return was if is_near and was is not None else round(value / width) * width

    modes = tuple(old.get("modes", ()))
    is_old = len(modes) == len(new.modes)
    if not is_old or any(map(_are_apart, modes, new.modes)):
        modes = tuple(round(rate, 3) for rate in new.modes)
    outliers = old.get("outliers", 0.0)
    if _are_apart(outliers, new.outliers):
        outliers = max(_SMALLEST_OUTLIERS, round(new.outliers, 3))
    error = min(new.log_sd_error, _LARGEST_ERROR)
    point = NoisePoint(
        log_sd=snapped("log_sd", new.log_sd, 0.05),
        log_sd_error=snapped("log_sd_error", error, 0.05),
        outliers=outliers,
        modes=modes,
        log_ratio=None if new.log_ratio is None else snapped("log_ratio", new.log_ratio, 0.1),
        log_ratio_error=snapped("log_ratio_error", new.log_ratio_error, 0.1),
    )
    kept.facts["noise"] = asdict(point)
    return point


def summed_table(
    count: int, compute: Callable[[int, int], Floats], name: Callable[[int, int], str], kept: Kept
) -> Floats:
    """Return the sum of the tables of all nodes, and keep those of stretches.

    Stretches have a power of two nodes and begin at a multiple of their length: a new commit
    leaves nearly all as they are. Two neighbours become one of twice the length.

    Args:
        count: Of nodes.
        compute: Return the table of the nodes [begin, end).
        name: Return the digest of their values.
    """
    old, kept.tables = kept.tables, {}

    def stretch(begin: int, size: int) -> Floats:
        half = size // 2
        key, left = name(begin, begin + size), name(begin, begin + half) if half else ""
        if key in old:
            return old[key]
        if left in old:
            return old[left] + stretch(begin + half, half)
        return compute(begin, begin + size)

    steady = max(0, count - TAIL_NODES)
    total, begin = compute(steady, count), 0
    for bit in reversed(range(steady.bit_length())):
        size = 1 << bit
        if steady & size:
            table = stretch(begin, size)
            kept.tables[name(begin, begin + size)] = table
            total = total + table
            begin += size
    return total


def first_unsettled(nodes: CommitNodes, steps: Sequence[Step], first: int) -> int:
    """Return the node from which on later jobs must pass, when this one passed from `first` on.

    It stays where it would cut a drift, or part a revert from the code to which it returns.
    """
    if len(nodes) - first < LAG + AT_ONCE:
        return first
    after = len(nodes) - LAG
    for step in steps:
        begin = int(np.searchsorted(nodes.first, step.first))
        if step.kind is StepKind.DRIFT and begin < after and step.last >= nodes.first[after]:
            after = begin
    while (parted := (nodes.returns[after:] >= 0) & (nodes.returns[after:] < after - 1)).any():
        after = int(nodes.returns[after:][parted].min())
    return max(first, after)


def keep(
    kept: Kept, chain: int, result: ChainResult, content: str, stretch: Stretch | None
) -> None:
    """Keep a chain's result, and what is settled of it.

    Args:
        content: The digest of what the result rests on.
        stretch: None if nothing is settled.
    """
    places = np.flatnonzero(result.moments[:, :, 0].any(1))
    name = f"chain {chain}"
    kept.facts[name] = {
        "content": content,
        "steps": facts_of(result.steps),
        "unit": result.unit,
        "origin": result.origin,
    }
    kept.arrays |= {
        f"{name} places": places,
        f"{name} moments": result.moments[places],
        f"{name} level": result.level,
        f"{name} variance": result.variance,
    }
    if stretch is None:
        kept.facts.pop(f"{name} stretch", None)
    else:
        kept.facts[f"{name} stretch"] = {
            "first": stretch.first,
            "content": stretch.content,
            "drifts": facts_of(stretch.drifts),
        }
        kept.arrays[f"{name} message"] = stretch.message


def keep_history(kept: Kept, content: str, history: MetricHistory) -> None:
    """Keep a metric's history, and the digest of what it rests on."""
    nodes, noise = history.nodes, history.noise
    kept.facts["history"] = {
        "content": content,
        "noise": asdict(noise),
        "steps": facts_of(history.steps),
        "by_seeds": history.by_seeds,
    }
    *ends, rows, level, error = zip(*nodes, strict=True) if nodes else ((),) * len(Node._fields)
    kept.arrays |= {
        "history nodes": np.array([*ends, list(map(len, rows))], int),
        "history rows": np.array([row for own in rows for row in own], int),
        "history levels": np.array([level, error], float),
    }


def history(kept: Kept, content: str) -> MetricHistory | None:
    """Return the history that was kept; None if it rests on other content."""
    facts = kept.facts.get("history")
    if facts is None or facts["content"] != content:
        return None
    *ends, sizes = kept.arrays["history nodes"].tolist()
    every = tuple(kept.arrays["history rows"].tolist())
    rows = [every[a:b] for a, b in pairwise([0, *accumulate(sizes)])]
    nodes = tuple(Node.of(*ends, rows, *kept.arrays["history levels"].tolist()))
    steps = tuple(restored(facts["steps"]))
    return MetricHistory(TrialNoise(**facts["noise"]), nodes, steps, facts["by_seeds"])


def facts_of(steps: Sequence[Step]) -> list[list[Any]]:
    return [list(step) for step in steps]


def restored(stored: Sequence[Sequence[Any]]) -> list[Step]:
    return [
        Step._make((*row, StepKind(kind), tuple(posterior), returns, (tuple(old), tuple(new))))
        for *row, kind, posterior, returns, (old, new) in stored
    ]


def result(kept: Kept, chain: int) -> ChainResult:
    """Return the result that was kept of a chain."""
    name = f"chain {chain}"
    facts = kept.facts[name]
    level = kept.arrays[f"{name} level"]
    moments = np.zeros((len(level), 2, 6))
    moments[kept.arrays[f"{name} places"]] = kept.arrays[f"{name} moments"]
    variance = kept.arrays[f"{name} variance"]
    return ChainResult(
        moments, level, variance, facts["unit"], facts["origin"], restored(facts["steps"])
    )


def is_current(kept: Kept, chain: int, content: str) -> bool:
    """Return True if the result that was kept of a chain rests on the content of this digest."""
    facts = kept.facts.get(f"chain {chain}")
    return facts is not None and facts["content"] == content


def stretch(kept: Kept, chain: int, content: Callable[[int], str]) -> Stretch | None:
    """Return the stretch that was settled of a chain, None if there is none or it is stale.

    Args:
        content: Return the digest of what a stretch before the given node rests on now.
    """
    name = f"chain {chain}"
    facts = kept.facts.get(f"{name} stretch")
    if facts is None or content(facts["first"]) != facts["content"]:
        return None
    return Stretch(
        facts["first"],
        facts["content"],
        kept.arrays[f"{name} message"],
        restored(facts["drifts"]),
    )


# --- the histories of chains whose seeds repeat

EVERY = 10
"""Nodes from checkpoint to checkpoint, and the newest ones that only the newest is among: trials
that are run again there leave the one before them."""
_ARRAYS = (
    "base", "square", "mean", "covariance", "path", "drawn", "draws", "moves", "commits",
    "log_evidence", "kinds",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The histories of the nodes up to one, and the steps before node `settled`."""

    beam: Beam
    steps: list[Step]
    settled: int


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Those of one metric, in its kept item."""

    kept: Kept
    label: str = "seeds"

    @property
    def newest(self) -> Checkpoints:
        """Return those of the node before the newest."""
        return Checkpoints(self.kept, "newest seeds")

    def get(
        self, table: SeedTable, places: Sequence[Node], content: tuple[object, ...]
    ) -> Checkpoint | None:
        """Return what was kept of a chain; None if that is stale, or if a later node has the bits
        of one before it.

        Args:
            places: The table's nodes.
            content: What it rests on beside the table.
        """
        name = self._name(places)
        facts = self.kept.facts.get(name)
        if facts is None or facts["stop"] > len(table.nodes):
            return None
        stop = facts["stop"]
        is_current = facts["content"] == _content(table, places, content, stop)
        if not is_current or any(0 <= to < stop for to in table.returns[stop:]):
            return None
        arrays: dict[str, Any] = {each: self.kept.arrays[f"{name} {each}"] for each in _ARRAYS}
        paths = list(map(tuple, facts["paths"]))
        beam = Beam(**arrays, first=facts["first"], paths=paths, resumed=stop)
        return Checkpoint(beam, restored(facts["steps"]), facts["settled"])

    def put(
        self,
        table: SeedTable,
        places: Sequence[Node],
        content: tuple[object, ...],
        checkpoint: Checkpoint,
    ) -> None:
        """Keep a checkpoint of a chain."""
        beam, name = checkpoint.beam, self._name(places)
        if beam.stop < EVERY:
            return
        live, path = np.unique(beam.path, return_inverse=True)
        self.kept.facts[name] = {
            "stop": beam.stop,
            "content": _content(table, places, content, beam.stop),
            "first": beam.first,
            "settled": checkpoint.settled,
            "steps": facts_of(checkpoint.steps),
            "paths": [beam.paths[each] for each in live.tolist()],
        }
        named = replace(beam, path=path.ravel())
        self.kept.arrays |= {f"{name} {each}": getattr(named, each) for each in _ARRAYS}

    def _name(self, places: Sequence[Node]) -> str:
        return f"{self.label} {places[0].chain}"


def _content(
    table: SeedTable, places: Sequence[Node], content: tuple[object, ...], stop: int
) -> str:
    """Return the digest of what the histories of the nodes before one rest on."""
    numbers = table.width, table.passing, table.centre, table.level, table.rounding, table.share
    columns = (table.columns, table.values, table.counts)
    nodes = (table.nodes[:stop], table.returns[:stop], list(map(len, table.columns[:stop])))
    return digest(
        *content, *numbers, *map(str, nodes), table.gaps[:stop], table.quiet[:stop],
        [(node.first, node.last) for node in places[:stop]],
        *(np.concatenate(column[:stop]) for column in columns),
    )  # fmt: skip
