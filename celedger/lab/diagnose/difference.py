"""Find the first difference of two traces that has an effect.

Events are paired by kind, aligned path and call number, not by time, so that code may be reordered.
Modules are paired by path, then by class, shapes and order, so that renamed, added and removed ones
leave the pairing of the others unchanged. The first pair in time that differs is the nearest to the
cause, because everything it was computed from was equal. A difference that reaches no loss,
gradient, weight or reported value has vanished, and the search continues after it.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from celedger.lab.diagnose.tensor_distance import EPSILON, relative_error
from celedger.lab.diagnose.trace import Event, Module, Pulse, Trace, number

_FORWARD = ("enter", "leave")
_PAIRED = (
    "init", *_FORWARD, "loss", "grad", "hyper", "pgrad", "state", "param", "buffer", "report",
)  # fmt: skip
# The kinds of events in which a difference has an effect in the same step. A kind that is not here
# is an effect itself.
_EFFECTS: Mapping[str, tuple[str, ...]] = {
    "init": (), "enter": ("loss", "pgrad", "buffer"), "leave": ("loss", "pgrad", "buffer"),
    "grad": ("pgrad",), "hyper": ("param",), "pgrad": ("param", "state"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Alignment:
    """Two traces' modules and tensors, paired. `modules` and `tensors` (parameters and buffers) map
    paths of b to paths of a."""

    modules: Mapping[str, str]
    tensors: Mapping[str, str]
    added: tuple[str, ...]  # modules that only b has
    removed: tuple[str, ...]  # modules that only a has


def align(a: Trace, b: Trace) -> Alignment:
    modules = _align_modules(a.modules, b.modules)
    left, right = _shapes(a), _shapes(b)
    tensors = {path: path for path in right if path in left}
    for owner in dict.fromkeys(b.owner(path) for path in right if path not in left):
        old = modules.get(owner, "not in a") if owner is not None else None
        here = [p for p in right if p not in tensors and b.owner(p) == owner]
        there = [p for p in left if p not in right and a.owner(p) == old]
        for one, other in _by_order([right[p] for p in here], [left[p] for p in there]):
            tensors[here[one]] = there[other]
    added = tuple(path for path in b.modules if path not in modules)
    removed = tuple(path for path in a.modules if path not in set(modules.values()))
    return Alignment(modules, tensors, added, removed)


def _align_modules(a: Mapping[str, Module], b: Mapping[str, Module]) -> dict[str, str]:
    aligned = {path: path for path in b if path in a and _similar(a[path], b[path])}
    # When a module was renamed, its children keep their names: encoder.* and trunk.*.
    for strict in (True, False):
        unpaired_a = [path for path in a if path not in set(aligned.values())]
        unpaired_b = [path for path in b if path not in aligned]
        pairs = _by_order(
            [_signature(b, path, strict=strict) for path in unpaired_b],
            [_signature(a, path, strict=strict) for path in unpaired_a],
        )
        aligned.update({unpaired_b[one]: unpaired_a[other] for one, other in pairs})
    # An unpaired module at the same path in both was replaced: that is a finding, not an absence.
    unpaired_a = [path for path in a if path not in set(aligned.values())]
    aligned |= {path: path for path in unpaired_a if path in b and path not in aligned}
    return {path: aligned[path] for path in b if path in aligned}


def _similar(one: Module, other: Module) -> bool:
    """Return True if the shapes are equal, and the class too if torch defines it: users rename
    theirs."""
    kinds = one.kind == other.kind or not (one.of_torch or other.of_torch)
    return kinds and list(one.shapes.values()) == list(other.shapes.values())


def _signature(modules: Mapping[str, Module], path: str, *, strict: bool) -> object:
    """Return class and shapes, with the number of descendants; if `strict`, also the module's own
    name."""
    module = modules[path]
    kind = module.kind if module.of_torch else ""
    children = sum(1 for other in modules if path and other.startswith(f"{path}."))
    signature = (kind, tuple(module.shapes.values()), children)
    return (*signature, path.rpartition(".")[2]) if strict else signature


def _by_order(b: Sequence[object], a: Sequence[object]) -> list[tuple[int, int]]:
    """Pair equal items in the longest common order."""
    blocks = difflib.SequenceMatcher(None, b, a, autojunk=False).get_matching_blocks()
    return [(one + i, other + i) for one, other, count in blocks for i in range(count)]


def _shapes(trace: Trace) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for event in trace.of("init", "param", "buffer"):
        if event.path is not None and event.tensors:
            shapes.setdefault(event.path, event.tensors[0].shape)
    return shapes


@dataclass(frozen=True, slots=True)
class Pair:
    """The same event on both sides; one may be missing."""

    a: Event | None
    b: Event | None

    @property
    def one(self) -> Event:
        event = self.b or self.a
        assert event is not None
        return event

    @property
    def step(self) -> int:
        return self.one.step


class Front(NamedTuple):
    """The first difference with an effect, and the differences before it that vanished."""

    pair: Pair
    kind: str  # of the event; "missing" for a gradient that does not arrive
    vanished: Sequence[Pair]


class Growth(NamedTuple):
    """The relative difference of two trainings by step. `diverged` is the first step at which the
    loss of b is not finite and that of a is; None if there is none."""

    steps: tuple[int, ...]
    loss: tuple[float, ...]  # |b - a| / |a|, of the mean over the step's passes
    diverged: int | None = None


class TraceComparison:
    """Two traces and their differences. `metrics`: the reported values that count, None for all."""

    def __init__(self, a: Trace, b: Trace, metrics: Collection[str] | None = None) -> None:
        self.a, self.b, self.metrics = replace(a, side="a"), replace(b, side="b"), metrics
        self.alignment: Alignment = align(a, b)
        self.paths_in_b = {old: new for new, old in self.alignment.modules.items()}

    def path(self, event: Event) -> str | None:
        """Return the path in a of an event of b; `+` and b's path if a has no such module."""
        path = event.path
        if path is None or event.kind == "hyper":
            return path
        if event.kind in ("init", "pgrad", "state", "param", "buffer"):
            return self.alignment.tensors.get(path, f"+{path}")
        return self.alignment.modules.get(path, f"+{path}")

    def path_in_b(self, path: str | None) -> str | None:
        """Return the path in b of a module of a; a's own path if b has none."""
        return self.paths_in_b.get(path or "", path) if path is not None else None

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Return the pairs in the order of a's time, then the events that only b has."""
        events_a = dict(keyed(self.a))
        events_b = dict(keyed(self.b, self.path))
        pairs = [Pair(event, events_b.get(key)) for key, event in events_a.items()]
        only_b = (event for key, event in events_b.items() if key not in events_a)
        return (*pairs, *(Pair(None, event) for event in only_b))

    def pairs_of(self, *kinds: str, step: int | None = None) -> Iterator[tuple[Event, Event]]:
        """Yield the pairs of some kinds that both sides have."""
        for pair in self.pairs:
            if pair.a and pair.b and pair.one.kind in kinds and step in (None, pair.step):
                yield pair.a, pair.b

    def differs(self, pair: Pair) -> bool:
        a, b = pair.a, pair.b
        if a is None or b is None:
            return False
        if a.kind == "report":
            return bool(self.reported(a, b))
        if a.kind == "hyper":
            before, after = self.settings
            return before[a.step].get(a.path) != after[b.step].get(b.path)
        if self.ties(pair):
            return True
        if a.kind == "state" and a.raw.get("v") != b.raw.get("v"):
            return True
        return len(a.tensors) != len(b.tensors) or any(
            not x.same(y) for x, y in zip(a.tensors, b.tensors, strict=True)
        )

    def ties(self, pair: Pair) -> tuple[str, str] | None:
        """Return the parameters that one is tied to on both sides (empty: to none), as each names
        it; None where that agrees."""
        if pair.a is None or pair.b is None or pair.a.kind != "init":
            return None
        old, new = (str(event.raw.get("tied", "")) for event in (pair.a, pair.b))
        return (old, new) if self.alignment.tensors.get(new, new) != old else None

    def differing(self, *kinds: str, step: int | None = None) -> list[Pair]:
        return [
            pair for pair in self.pairs
            if pair.one.kind in kinds and step in (None, pair.step) and self.differs(pair)
        ]  # fmt: skip

    def reported(self, a: Event, b: Event) -> list[tuple[str, Any, Any]]:
        """Return the reported values that differ and count: name, old, new."""
        return [
            (name, old, new) for name, old, new in changed(a.raw["v"], b.raw["v"])
            if (self.metrics is None or name in self.metrics) and str(old) != str(new)
        ]  # fmt: skip

    @cached_property
    def settings(self) -> tuple[Mapping[int, Mapping[Any, Any]], Mapping[int, Mapping[Any, Any]]]:
        """Return for a and for b, by step at which a setting changed, by optimiser, the settings of
        each parameter (by its path in a)."""

        def read(trace: Trace, names: Mapping[str, str]) -> dict[int, dict[Any, Any]]:
            steps: dict[int, dict[Any, Any]] = {}
            now: dict[Any, Any] = {}
            for event in trace.of("hyper"):
                groups = zip(event.raw["of"], event.raw["v"], strict=True)
                of = {names.get(n, n): group for members, group in groups for n in members}
                now = {**now, event.path: {"class": event.raw["c"], "of": of}}
                steps[event.step] = now
            return steps

        return read(self.a, {}), read(self.b, self.alignment.tensors)

    # --- what is there to explain

    @cached_property
    def parted(self) -> int | None:
        """Return the first step whose loss or weights differ, by the pulses of every step; None if
        the trainings agree for as long as both run."""
        for x, y in zip(self.a.pulses, self.b.pulses, strict=False):
            weights = x.params != y.params and not self._renamed
            if weights or [mark for mark, _ in x.losses] != [mark for mark, _ in y.losses]:
                return x.step
        return None

    @cached_property
    def _renamed(self) -> bool:
        """Return True if only the order of the weights changed, so that the hash over all of them
        is no evidence."""
        first = list(self.pairs_of("param", step=0))
        same = first and not self.differing("param", step=0)
        return bool(same) and self.a.pulses[0].params != self.b.pulses[0].params

    @property
    def equal(self) -> bool:
        """Return True if pulses, reports and weights of the two trainings agree."""
        return (
            self.parted is None
            and len(self.a.pulses) == len(self.b.pulses)
            and not self.differing("report", "param")
        )

    def front(self) -> Front | None:
        """Return the first difference with an effect; None if the fully recorded steps have
        none."""
        vanished: list[Pair] = []
        pairs = [pair for pair in self.pairs if self.differs(pair) or self._lost(pair)]
        for pair in sorted(pairs, key=_time):
            if self._has_effect(pair, pairs):
                return Front(pair, "missing" if self._lost(pair) else pair.one.kind, vanished)
            vanished.append(pair)
        return None

    def _lost(self, pair: Pair) -> bool:
        """Return True for a gradient that only one side has, of a module that both call."""
        if (pair.a is None) == (pair.b is None) or pair.one.kind != "grad":
            return False
        trace, path = self.a, self.alignment.modules.get(pair.one.path or "")
        if pair.b is None:
            trace, path = self.b, self.paths_in_b.get(pair.one.path or "")
        return path is not None and any(
            (event.path, event.number, event.step) == (path, pair.one.number, pair.step)
            and not event.evaluation
            for event in trace.of("leave")
        )

    def _has_effect(self, pair: Pair, differing: Sequence[Pair]) -> bool:
        event = pair.one
        later = event.kind == "init" and event.step  # of a model that evaluates, an average
        if later or (event.kind in _FORWARD and event.evaluation):
            # A script that reports nothing may use what it evaluates for anything.
            return bool(self.differing("report")) or not any(self.a.of("report"))
        if event.kind not in _EFFECTS:
            return True
        effects = [
            p for p in differing if p.one.kind in _EFFECTS[event.kind] and p.step == event.step
        ]
        if event.kind in _FORWARD:  # a change of values never removes a gradient
            effects = [p for p in effects if p.a and p.b and p.a.tensors and p.b.tensors]
            # No `backward` was recorded, or it ran on an unknown loss.
            unseen = not any(p.one.kind == "loss" and p.step == event.step for p in self.pairs)
            return bool(effects) or unseen
        return bool(effects) or (event.kind in ("init", "hyper") and not self.equal)

    def calls(self, path: str | None, number: int, at: Event) -> tuple[list[Event], list[Event]]:
        """Return the calls of torch's functions in one call of a module (by its path in a; None:
        outside all modules) on both sides, in a step."""

        def here(trace: Trace, module_path: str | None) -> list[Event]:
            return [
                event for event in trace.of("call")
                if event.path == module_path and event.step == at.step
                and event.evaluation == at.evaluation
                and (module_path is None or event.number == number)
            ]  # fmt: skip

        return here(self.a, path), here(self.b, self.path_in_b(path))

    def growth(self) -> Growth:
        pulses = list(zip(self.a.pulses, self.b.pulses, strict=False))
        diverged = (x.step for x, y in pulses if y.losses and _finite(x) and not _finite(y))
        losses = tuple(_relative(_mean(x), _mean(y)) for x, y in pulses)
        return Growth(tuple(x.step for x, _ in pulses), losses, next(diverged, None))


def keyed(
    trace: Trace, path: Callable[[Event], str | None] = lambda e: e.path
) -> Iterator[tuple[Hashable, Event]]:
    """Yield the events that are paired, each with what it is."""
    counts: Counter[Hashable] = Counter()
    for event in trace.of(*_PAIRED):
        key = (event.kind, event.step, event.evaluation, path(event), event.number, event.name)
        counts[key] += 1
        yield (*key, counts[key]), event


def _time(pair: Pair) -> tuple[int, bool, int]:
    """By step, then by a's order; a gradient that never arrived counts when it should have, and
    what a step starts with at its start: parameters without a module are only met at its end."""
    event = pair.a or pair.one
    return event.step, event.kind != "init", event.order


def changed(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the entries that differ: name, old, new; None for a missing one."""
    return [
        (name, a.get(name), b.get(name))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    ]


def _finite(pulse: Pulse) -> bool:
    """Return True if there are losses and all are finite."""
    return bool(pulse.losses) and all(math.isfinite(value) for _, value in pulse.losses)


def _mean(pulse: Pulse) -> float:
    values = [value for _, value in pulse.losses]
    return sum(values) / len(values) if values else number(None)


def _relative(x: float, y: float) -> float:
    if x == y:
        return 0.0
    return abs(y - x) / abs(x) if x else float("inf")


class Layer(NamedTuple):
    """The relative error ‖b - a‖ / ‖a‖ of a module's output and of the gradient that comes back to
    it, in training or in the evaluation that differs first; 0 where they are equal, NaN where there
    is none. `rounding` is the unit of its type."""

    path: str
    kind: str
    step: int
    forward: float
    backward: float
    rounding: float


def depth(c: TraceComparison, first: int = 0) -> tuple[Layer, ...]:
    """Return the layers of the first full step, from `first` on, in which one differs. What
    differed before a finding had no effect."""
    places = ((pair.step, pair.one.evaluation) for pair in c.differing("leave", "grad"))
    step, evaluation = min((place for place in places if place[0] >= first), default=(-1, 0))
    back: dict[tuple[str | None, int], float] = {}
    for a, b in c.pairs_of("grad", step=step):
        back.setdefault((a.path, a.number), relative_error(a.tensors, b.tensors))
    layers = []
    for pair in c.pairs:
        event = pair.a
        if event is None or (event.kind, event.step, event.evaluation) != (
            "leave", step, evaluation,
        ):  # fmt: skip
            continue
        module = c.a.modules.get(event.path or "")
        layers.append(Layer(
            event.path or "", module.short if module else "", step,
            relative_error(event.tensors, pair.b.tensors) if pair.b else math.nan,
            back.get((event.path, event.number), math.nan),
            EPSILON.get(event.tensors[0].dtype, 0.0) if event.tensors else 0.0,
        ))  # fmt: skip
    return tuple(layers)


class StoredTensor(NamedTuple):
    """The relative error of a parameter, buffer or entry of an optimiser's state."""

    name: str
    step: int
    error: float


def stored(c: TraceComparison, first: int = 0) -> tuple[StoredTensor, ...]:
    """Return the stored tensors that differ in the first step, from `first` on, with any."""
    pairs = [pair for pair in c.differing("init", "param", "buffer", "state")
             if pair.step >= first and pair.a and pair.b and pair.a.tensors]  # fmt: skip
    step = min((pair.step for pair in pairs), default=-1)
    rows = {}
    for pair in pairs:
        if pair.step == step and pair.a and pair.b:
            key = f" {pair.one.name}" if pair.one.kind == "state" else ""
            rows[f"{pair.one.path}{key}"] = relative_error(pair.a.tensors, pair.b.tensors)
    return tuple(StoredTensor(name, step, error) for name, error in rows.items() if error > 0)
