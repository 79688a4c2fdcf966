"""Read the `Trace` of a traced training (celedger.lab.probes.trace wrote it). Must not import
torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from celedger.base.model import EpochReport
from celedger.lab.diagnose.probe_records import events_in, rank_of, records

_LONGEST = 400  # characters of a call's arguments
_INDEXING = ("__getitem__", "__setitem__")
FORKED = " of fork "  # in the name of a child's value, before its number
Values = NDArray[np.float64]
Digests = NDArray[np.uint64]


class Frame(NamedTuple):
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """A recorded tensor. `values`: all elements, or a sample at indices that depend only on the
    size."""

    hash: str  # exact bits; empty for a tensor without elements of its own
    dtype: str
    shape: tuple[int, ...]
    gradient: bool  # whether it requires a gradient
    finite: bool
    values: Values = field(compare=False, repr=False)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape)) if self.shape else 1

    def same(self, other: Tensor) -> bool:
        """Return True if the bits, type and shape are equal."""
        return (self.hash, self.dtype, self.shape) == (other.hash, other.dtype, other.shape)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a training. `kind` is one of celedger.lab.probes.trace's; `path` is that of
    the module, parameter or buffer; `number` counts a module's calls in a step; `name` is an
    operator, a position in an output or a key of the optimiser's state; `evaluation` is 0 in
    training."""

    order: int
    kind: str
    step: int
    path: str | None
    number: int
    name: str
    evaluation: int
    tensors: tuple[Tensor, ...]
    site: int
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def drew(self) -> bool:
        """Return True if random numbers were drawn since the previous event."""
        return "y" in self.raw

    @property
    def function(self) -> str:
        """Return the name of a call's function as it is printed: indexing is `_[_]`."""
        return "_[_]" if self.name in _INDEXING else self.name

    @property
    def call(self) -> str:
        """Return a call with its arguments: `softmax(_, dim=1)`, `_[:, 0]`."""
        first, *others = self.raw.get("l", ()) or ("",)
        if self.name in _INDEXING and others:
            index = others[0][1:-1] if others[0].startswith("(") else others[0]
            return f"{first}[{index}]"[:_LONGEST] + "".join(f" = {one}" for one in others[1:])
        return f"{self.name}({self.arguments})"

    @property
    def bare(self) -> tuple[str, ...]:
        """Return a call without the names of its arguments, which need not be written."""
        values = (part.partition("=")[2] or part for part in self.raw.get("l", ()))
        return self.name, *values

    @property
    def arguments(self) -> str:
        return ", ".join(self.raw.get("l", ()))[:_LONGEST]


@dataclass(frozen=True, slots=True)
class Module:
    path: str
    kind: str  # qualified name of its class
    settings: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]  # of its own parameters
    code: tuple[str, int, int] | None  # file, first and last line of its forward
    created: int  # the site that constructed it

    @property
    def short(self) -> str:
        return self.kind.rpartition(".")[2]

    @property
    def of_torch(self) -> bool:
        return self.kind.startswith("torch.")


class Pulse(NamedTuple):
    """The record that every step has."""

    step: int
    losses: tuple[tuple[str, float], ...]  # hash and value, one a backward pass
    params: str
    random: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Trace:
    events: tuple[Event, ...]
    modules: Mapping[str, Module]
    pulses: tuple[Pulse, ...]
    sites: Mapping[int, tuple[Frame, ...]]
    # A digest of every row, by pass: of "input", by module and position in its inputs; of "target",
    # by the loss.
    rows: Mapping[str, Mapping[tuple[str, int], Sequence[Digests]]]
    ended: bool  # by itself; else it was killed or still running
    cut: bool  # ended by the probe, after the requested number of steps
    inside: Sequence[str]  # modules whose forward pass raised
    files: frozenset[str]  # Python files that were loaded
    rank: str = ""  # `rank 1 of 2` of a distributed training
    side: str = ""  # in a comparison: "a" or "b"

    def of(self, *kinds: str) -> Iterator[Event]:
        return (event for event in self.events if event.kind in kinds)

    def frames(self, site: int) -> tuple[Frame, ...]:
        return self.sites.get(site, ())

    def owner(self, path: str) -> str | None:
        """Return the module that holds a parameter or buffer; None of one that no module holds,
        whose path is an expression of the script (`params["w1"]`)."""
        owner = owner_of(path)
        return owner if owner in self.modules else None

    @property
    def steps(self) -> int:
        return len(self.pulses)


def read(folder: Path) -> Trace:
    """Return the trace in a process's folder."""
    values = _array(folder / "values.bin", "<f8")
    digests = _array(folder / "rows.bin", "<u8")
    events: list[Event] = []
    modules: dict[str, Module] = {}
    pulses: list[Pulse] = []
    sites: dict[int, tuple[Frame, ...]] = {}
    rows: dict[str, dict[tuple[str, int], list[Digests]]] = {"input": {}, "target": {}}
    end: dict[str, Any] = {}
    for raw in records(folder):
        match raw["k"]:
            case "site":
                sites[raw["id"]] = tuple(Frame(*frame) for frame in raw["s"])
            case "module":
                shapes = {name: tuple(shape) for name, shape in raw["s"].items()}
                code = tuple(raw["f"]) or None
                module = Module(raw["p"], raw["c"], raw["a"], shapes, code, raw["w"])
                modules.setdefault(module.path, module)
            case "rows":
                of = rows[raw["r"]].setdefault((raw["p"], raw["q"]), [])
                of.append(digests[raw["o"] : raw["o"] + raw["m"]])
            case "end":
                end = raw
            case "pulse":
                losses = tuple((mark, number(value)) for mark, value in raw["loss"])
                pulses.append(Pulse(raw["t"], losses, raw["params"], raw["random"]))
            case "fork":  # of a child: its values, as if they were computed at once
                child = raw["into"].partition("-")[2].removesuffix(".jsonl")
                for one in events_in(folder.parent / raw["into"]):
                    one["q"] += f"{FORKED}{child}"
                    events.append(_event(len(events), one, values))
            case _:
                events.append(_event(len(events), raw, values))
    return Trace(
        tuple(events), modules, tuple(pulses), sites, rows, bool(end), end.get("cut", False),
        end.get("inside", ()), frozenset(end.get("files", ())), rank_of(folder),
    )  # fmt: skip


def with_printed(trace: Trace, reports: Iterable[EpochReport]) -> Trace:
    """Return the trace with reports that the training printed, as if it had called `log`."""
    events = list(trace.events)
    for report in reports:
        values = {k: v if math.isfinite(v) else str(v) for k, v in report.values.items()}
        raw = {"k": "report", "e": report.epoch, "v": values}
        events.append(Event(len(events), "report", trace.steps, None, 0, "", 0, (), -1, raw))
    return replace(trace, events=tuple(events))


def _array(path: Path, dtype: str) -> Any:
    return np.fromfile(path, dtype=dtype) if path.exists() else np.empty(0, dtype)


def _event(order: int, raw: Mapping[str, Any], values: Values) -> Event:
    described = raw.get("x", ())
    if isinstance(described, dict):  # a single tensor, or no tensor at all
        described = [described] if "d" in described else []
    evaluation = raw.get("e", 0) if raw["k"] != "report" else 0
    return Event(
        order, raw["k"], raw.get("t", 0), raw.get("p"), raw.get("n", 0),
        str(raw.get("q") or raw.get("r") or raw.get("o") or ""), evaluation,
        tuple(_tensor(one, values) for one in described), raw.get("w", -1), raw,
    )  # fmt: skip


def _tensor(raw: Mapping[str, Any], values: Values) -> Tensor:
    start = raw.get("o", 0)
    return Tensor(
        raw.get("h", ""), raw["d"], tuple(raw["s"]), raw["g"], raw.get("f", True),
        values[start : start + raw.get("k", 0)],
    )  # fmt: skip


def number(value: object) -> float:
    """Return a number, which JSON may hold as text."""
    return float("nan") if value is None else float(str(value))


def owner_of(path: str) -> str:
    """Return the module that holds a parameter or buffer."""
    head, dot, _ = path.rpartition(".")
    if dot:
        return head
    return path.partition(":")[0] + ":" if ":" in path else ""
