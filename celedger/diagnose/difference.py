"""The first difference of two traces that has an effect.

Events are paired by what they are (kind, aligned path, how many-th call), not by their place in
time, so that code may be reordered; modules by path, then by what they are and where they stand
among their like, so that renamed, added and removed ones leave the others in place. In the order of
time, the first pair that differs is the nearest to the cause: all that it was computed from was
equal. A difference that reaches no loss, gradient, weight or reported value has vanished, and the
search goes on behind it.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from celedger.diagnose.distance import EPSILON
from celedger.diagnose.trace import Event, Module, Pulse, Trace, number, same_tensors

_FORWARD = ("enter", "leave")
_AFTER = ("hyper", "pgrad", "state", "param", "buffer")
_PAIRED = ("init", *_FORWARD, "loss", "grad", *_AFTER, "report")


@dataclass(frozen=True, slots=True)
class Alignment:
    """`modules` and `tensors` (parameters and buffers) map paths of b to paths of a."""

    modules: Mapping[str, str]
    tensors: Mapping[str, str]
    added: tuple[str, ...]  # modules of b alone
    removed: tuple[str, ...]  # modules of a alone

    @property
    def renamed(self) -> tuple[tuple[str, str], ...]:
        """Old and new paths."""
        return tuple((old, new) for new, old in self.modules.items() if old != new)


def align(a: Trace, b: Trace) -> Alignment:
    modules = _modules(a.modules, b.modules)
    tensors: dict[str, str] = {}
    mine = _tensors(a)
    theirs = _tensors(b)
    taken: set[str] = set()
    for path in theirs:
        if path in mine:
            tensors[path] = path
            taken.add(path)
    for new, old in modules.items():
        here = [p for p in theirs if p not in tensors and _owner(p, b.modules) == new]
        there = [p for p in mine if p not in taken and _owner(p, a.modules) == old]
        for one, other in _by_order([theirs[p] for p in here], [mine[p] for p in there]):
            tensors[here[one]] = there[other]
            taken.add(there[other])
    return Alignment(
        modules, tensors,
        tuple(path for path in b.modules if path not in modules),
        tuple(path for path in a.modules if path not in set(modules.values())),
    )  # fmt: skip


def _modules(a: Mapping[str, Module], b: Mapping[str, Module]) -> dict[str, str]:
    found = {path: path for path in b if path in a and _like(a[path], b[path])}
    # Under a module whose path is gone, children keep their names: encoder.* and trunk.*.
    for strict in (True, False):
        used = set(found.values())
        left = [path for path in a if path not in used]
        right = [path for path in b if path not in found]
        pairs = _by_order(
            [_signature(b, path, strict=strict) for path in right],
            [_signature(a, path, strict=strict) for path in left],
        )
        found.update({right[one]: left[other] for one, other in pairs})
    used = set(found.values())
    # What is left at the same path has become something else: that is a finding, no absence.
    found.update({path: path for path in b if path not in found and path in a and path not in used})
    return {path: found[path] for path in b if path in found}


def _like(one: Module, other: Module) -> bool:
    """The same shapes, and where they are torch's the same class: users rename theirs."""
    kinds = one.kind == other.kind or not (one.of_torch or other.of_torch)
    return kinds and list(one.shapes.values()) == list(other.shapes.values())


def _signature(modules: Mapping[str, Module], path: str, *, strict: bool) -> object:
    """Class and shapes, of children too; at first the module's own name and place as well."""
    module = modules[path]
    kind = module.kind if module.of_torch else ""
    children = sum(1 for other in modules if path and other.startswith(f"{path}."))
    own = (kind, tuple(module.shapes.values()), children)
    return (*own, path.rpartition(".")[2]) if strict else own


def _by_order(right: Sequence[object], left: Sequence[object]) -> list[tuple[int, int]]:
    """Pairs of equal things in the longest common order."""
    blocks = difflib.SequenceMatcher(None, right, left, autojunk=False).get_matching_blocks()
    return [(one + i, other + i) for one, other, count in blocks for i in range(count)]


def _tensors(trace: Trace) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for event in trace.of("init", "param", "buffer"):
        if event.path is not None and event.tensors:
            found.setdefault(event.path, event.tensors[0].shape)
    return found


def _owner(path: str, modules: Mapping[str, Module]) -> str:
    """The module that holds a parameter or buffer."""
    while path:
        prefix, dot, _ = path.rpartition(".")
        owner = prefix if dot else path.partition(":")[0] + ":" if ":" in path else ""
        if owner in modules or not owner:
            return owner
        path = owner
    return ""


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


@dataclass(frozen=True, slots=True)
class Front:
    """The first difference, and what has vanished before it."""

    pair: Pair
    kind: str  # of the event; "missing" for a gradient that does not arrive
    vanished: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Growth:
    """How the two trainings part: a relative difference by step. `diverged` is the first step at
    which the loss of b is not finite and that of a is; None where there is none."""

    steps: tuple[int, ...]
    loss: tuple[float, ...]  # |b - a| / |a|, of the mean over the step's passes
    weights: tuple[float, ...]  # of their L2 norm
    diverged: int | None = None


class TraceComparison:
    """Two traces side by side. `metrics`: the reported values that count, None for all."""

    def __init__(self, a: Trace, b: Trace, metrics: Collection[str] | None = None) -> None:
        self.a, self.b, self.metrics = a, b, metrics
        self.alignment: Alignment = align(a, b)

    def path(self, event: Event) -> str | None:
        """The path of an event of b as a knows it; with a plus what a does not have."""
        path = event.path
        if path is None or event.kind == "hyper":
            return path
        if event.kind in ("init", "pgrad", "state", "param", "buffer"):
            return self.alignment.tensors.get(path, f"+{path}")
        return self.alignment.modules.get(path, f"+{path}")

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """In the order of a's time; what only b has stands behind what it followed there."""
        left = dict(_keyed(self.a, lambda e: e.path))
        right = dict(_keyed(self.b, self.path))
        pairs = [Pair(event, right.get(key)) for key, event in left.items()]
        return tuple(pairs) + tuple(
            Pair(None, event) for key, event in right.items() if key not in left
        )

    def differs(self, pair: Pair) -> bool:
        a, b = pair.a, pair.b
        if a is None or b is None:
            return False
        if a.kind == "report":
            return _reported(a, self.metrics) != _reported(b, self.metrics)
        if a.kind == "hyper":
            return self.hyper(self.a)[a.step].get(a.path) != self.hyper(self.b, aligned=True)[
                b.step].get(b.path)  # fmt: skip
        if a.kind == "state" and a.raw.get("v") != b.raw.get("v"):
            return True
        return not same_tensors(a.tensors, b.tensors)

    def hyper(self, trace: Trace, *, aligned: bool = False) -> Mapping[int, Mapping[Any, Any]]:
        """By step at which any changed, by optimiser, the settings of each parameter."""
        known = self._hypers.get(id(trace))
        if known is None:
            known = {}
            now: dict[Any, Any] = {}
            for event in trace.of("hyper"):
                of = {
                    (self.alignment.tensors.get(name, name) if aligned else name): group
                    for names, group in zip(event.raw["of"], event.raw["v"], strict=True)
                    for name in names
                }
                now = {**now, event.path: {"class": event.raw["c"], "of": of}}
                known[event.step] = now
            self._hypers[id(trace)] = known
        return known

    @cached_property
    def _hypers(self) -> dict[int, dict[int, dict[Any, Any]]]:
        return {}

    # --- what is there to explain

    @cached_property
    def parted(self) -> int | None:
        """The first step whose loss, batch or weights differ, as the pulse of every step has it;
        None where the trainings agree as long as both last."""
        names_agree = not self._weights_renamed
        for x, y in zip(self.a.pulses, self.b.pulses, strict=False):
            weights = names_agree and x.params != y.params
            if weights or [mark for mark, _ in x.losses] != [mark for mark, _ in y.losses]:
                return x.step
        return None

    @cached_property
    def _weights_renamed(self) -> bool:
        """Whether the hash over all weights says nothing, since their order has changed."""
        first = [p for p in self.pairs if p.one.kind == "param" and p.a and p.b and p.step == 0]
        if not first or not self.a.pulses or not self.b.pulses:
            return False
        same = not any(self.differs(pair) for pair in first)
        return same and self.a.pulses[0].params != self.b.pulses[0].params

    @property
    def equal(self) -> bool:
        """The same training in all that can be seen of it from outside."""
        return (
            self.parted is None
            and len(self.a.pulses) == len(self.b.pulses)
            and not any(
                self.differs(pair) for pair in self.pairs if pair.one.kind in ("report", "param")
            )
        )

    def front(self) -> Front | None:
        """The first difference with an effect, None where there is none in the full steps."""
        vanished: list[Pair] = []
        pairs = sorted(
            (pair for pair in self.pairs if self.differs(pair) or self._lost(pair)),
            key=self._time,
        )
        for pair in pairs:
            if self._reaches(pair, pairs):
                kind = "missing" if self._lost(pair) else pair.one.kind
                return Front(pair, kind, tuple(vanished))
            vanished.append(pair)
        return None

    def _time(self, pair: Pair) -> tuple[int, int]:
        """By step, then by a's order; a gradient that never arrived counts when it should have."""
        event = pair.a or pair.b
        assert event is not None
        return (event.step, event.order)

    def _lost(self, pair: Pair) -> bool:
        """A gradient that only one side has, of a module that both call."""
        if (pair.a is None) == (pair.b is None) or pair.one.kind != "grad":
            return False
        there = self.b if pair.b is None else self.a
        path = pair.one.path
        if pair.b is None:
            names = {old: new for new, old in self.alignment.modules.items()}
            path = names.get(path or "")
        else:
            path = self.alignment.modules.get(path or "")
        return path is not None and any(
            event.path == path and event.step == pair.step and not event.evaluation
            for event in there.of("leave")
        )

    def _reaches(self, pair: Pair, differing: Sequence[Pair]) -> bool:
        event = pair.one
        later = self._later(event.kind, bool(event.evaluation))
        if later is None:
            return True
        shown = [p for p in differing if p.one.kind in later and p.step == event.step]
        if event.kind in _FORWARD:  # values never take a gradient away
            shown = [p for p in shown if p.a and p.b and p.a.tensors and p.b.tensors]
        return bool(shown) or (
            event.kind in ("init", "hyper", *_FORWARD) and self._shows_later(event)
        )

    def _shows_later(self, event: Event) -> bool:
        if event.evaluation:
            return any(self.differs(p) for p in self.pairs if p.one.kind == "report")
        if event.kind in _FORWARD:
            # Training without `backward` in sight, or a loss of which nothing is known.
            return event.step not in {p.step for p in self.pairs if p.one.kind == "loss"}
        return not self.equal

    @staticmethod
    def _later(kind: str, evaluation: bool) -> tuple[str, ...] | None:
        """The kinds of events by which a difference shows an effect in the same step; None
        where it is one itself."""
        if evaluation and kind in _FORWARD:
            return ("report",)
        return {
            "init": (), "enter": ("loss", "pgrad", "buffer"), "leave": ("loss", "pgrad", "buffer"),
            "grad": ("pgrad",), "hyper": ("param",),
            "pgrad": ("param", "state"),
        }.get(kind)  # fmt: skip

    def calls(self, path: str | None, number: int, like: Event) -> tuple[list[Event], list[Event]]:
        """The calls of torch's functions in one call of a module (by its path in a; None: outside
        all modules) on both sides, in its step."""
        names = {old: new for new, old in self.alignment.modules.items()}
        there = names.get(path, path) if path is not None else None

        def here(trace: Trace, wanted: str | None) -> list[Event]:
            return [
                event for event in trace.of("call")
                if event.path == wanted and event.step == like.step
                and event.evaluation == like.evaluation
                and (wanted is None or event.number == number)
            ]  # fmt: skip

        return here(self.a, path), here(self.b, there)

    def growth(self) -> Growth:
        steps, losses, weights = [], [], []
        diverged = None
        for x, y in zip(self.a.pulses, self.b.pulses, strict=False):
            if diverged is None and y.losses and _finite(x) and not _finite(y):
                diverged = x.step
            steps.append(x.step)
            losses.append(_relative(_mean(x), _mean(y)))
            weights.append(_relative(x.norm, y.norm))
        return Growth(tuple(steps), tuple(losses), tuple(weights), diverged)


def _keyed(trace: Trace, path: Callable[[Event], str | None]) -> Iterator[tuple[Hashable, Event]]:
    seen: Counter[Hashable] = Counter()
    for event in trace.of(*_PAIRED):
        key = (event.kind, event.step, event.evaluation, path(event), event.number, event.name)
        seen[key] += 1
        yield (*key, seen[key]), event


def _reported(event: Event, metrics: Collection[str] | None) -> dict[str, str]:
    return {
        name: str(value)
        for name, value in event.raw["v"].items()
        if metrics is None or name in metrics
    }


def _finite(pulse: Pulse) -> bool:
    """Return True if a loss was seen and all are finite."""
    return bool(pulse.losses) and all(math.isfinite(value) for _, value in pulse.losses)


def _mean(pulse: Pulse) -> float:
    values = [value for _, value in pulse.losses]
    return sum(values) / len(values) if values else number(None)


def _relative(x: float, y: float) -> float:
    if x == y:
        return 0.0
    return abs(y - x) / abs(x) if x else float("inf")


@dataclass(frozen=True, slots=True)
class Layer:
    """Relative error ‖b - a‖ / ‖a‖ of what a module returned and of the gradient that came back
    to it; 0 where they are equal, NaN where there is none. `rounding` is the unit of its type."""

    path: str
    kind: str
    step: int
    forward: float
    backward: float
    rounding: float


def depth(c: TraceComparison) -> tuple[Layer, ...]:
    """The layers of the first full step in which anything differs."""
    steps = [p.step for p in c.pairs if p.one.kind in ("leave", "grad") and c.differs(p)]
    if not steps:
        return ()
    step = min(steps)
    back: dict[tuple[str | None, int], float] = {}
    for pair in c.pairs:
        if pair.one.kind == "grad" and pair.step == step and pair.a is not None:
            back.setdefault((pair.a.path, pair.a.number), relative_error(pair))
    layers = []
    for pair in c.pairs:
        event = pair.a
        if event is None or pair.one.kind != "leave" or pair.step != step or event.evaluation:
            continue
        module = c.a.modules.get(event.path or "")
        eps = EPSILON.get(event.tensors[0].dtype, 0.0) if event.tensors else 0.0
        layers.append(Layer(
            event.path or "", module.short if module else "", step, relative_error(pair),
            back.get((event.path, event.number), math.nan), eps,
        ))  # fmt: skip
    return tuple(layers)


def relative_error(pair: Pair) -> float:
    """Of the tensors of both, taken together."""
    if pair.a is None or pair.b is None:
        return math.nan
    above = below = 0.0
    for x, y in zip(pair.a.tensors, pair.b.tensors, strict=False):
        if x.same(y):
            below += float(np.nansum(x.values**2))
            continue
        if len(x.values) != len(y.values) or x.size != y.size:
            return math.nan
        with np.errstate(invalid="ignore", over="ignore"):
            gap = y.values - x.values
        if not np.isfinite(gap).all():
            return math.inf
        above += float(gap @ gap)
        below += float(x.values @ x.values)
    return math.sqrt(above / below) if below else (math.inf if above else 0.0)
