"""The surroundings of the first difference of two trainings: everything that a rule of the table of
causes (celedger.diagnose.causes) can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from celedger.diagnose.difference import Front, TraceComparison, changed
from celedger.diagnose.distance import first_distance
from celedger.diagnose.finding import (
    CodePlace,
    code_of,
    function_place,
    named,
    places_of,
    share,
    site_of,
)
from celedger.diagnose.trace import Event, Module, Tensor, Trace

# Calls that seldom are the cause if other calls are new, too.
_VIEWS = {
    "detach", "view", "reshape", "flatten", "contiguous", "to", "clone", "unsqueeze", "__getitem__",
}  # fmt: skip
_AHEAD = 8  # draws that must agree after a new one
# The part of a step in which a difference lies, by the kind of its event.
_PARTS = {
    "enter": "forward", "leave": "forward", "grad": "backward", "missing": "backward",
    "pgrad": "gradients", "hyper": "settings", "init": "init", "loss": "loss", "report": "report",
    "buffer": "buffer",
}  # fmt: skip
_CALLERS = {"forward": "caller", "loss": "caller", "data": "training loop"}


class Scene:
    """The first difference of two traces, and its surroundings on both sides. `a` and `b` are the
    events; a missing gradient is None. `part` is the part of the step: init, data, forward, loss,
    backward, gradients, settings, buffer, update or report."""

    def __init__(self, c: TraceComparison, front: Front) -> None:
        self.c, self.front, self.pair = c, front, front.pair
        self.a: Any = front.pair.a
        self.b: Any = front.pair.b
        self.step = front.pair.step
        self.missing = front.kind == "missing"
        self.part = self._part()
        # For a forward pass: the path in a of the module at fault, and the number of its call.
        self.owner, self._owner_number = self._find_owner()
        # The module at fault on both sides; None for the training loop's own code.
        self.old: Module | None = None
        self.new: Module | None = None
        if self.owner is not None:
            self.old = c.a.modules.get(self.owner)
            self.new = c.b.modules.get(c.paths_in_b.get(self.owner, "no module"))
        self.calls = self._calls(c.a), self._calls(c.b)
        self.gone, self.fresh = _only_on_one_side(*self.calls)
        # On each side, the first call with a result that the other side never has.
        self.first_calls = self._first_calls()
        x, y = self.first_calls
        self.same_function = x is not None and y is not None and x.name == y.name
        self.call = y.call if y is not None else ""  # side b's, with its arguments

    def _part(self) -> str:
        a = self.a
        if self.front.kind != "enter" or a.raw.get("u") is not None or a.evaluation:
            return _PARTS.get(self.front.kind, "update")
        # A module's input from the training loop: a batch, or computed from other outputs.
        leaves = (e for e in self.c.a.of("leave") if e.step == a.step and not e.evaluation)
        if not any(e.order < a.order for e in leaves):
            return "data"
        pairs = zip(a.tensors, self.b.tensors, strict=False)
        computed = any(y.gradient for x, y in pairs if not x.same(y))
        return "loss" if self.labels and not computed else "forward"

    # --- the tensors

    @cached_property
    def first_tensors(self) -> tuple[Tensor, Tensor]:
        """Return the first tensors of the two events that differ."""
        pairs = list(zip(self.a.tensors, self.b.tensors, strict=False))
        return next(((x, y) for x, y in pairs if not x.same(y)), pairs[0])

    @property
    def x(self) -> Tensor:
        return self.first_tensors[0]

    @property
    def y(self) -> Tensor:
        return self.first_tensors[1]

    @cached_property
    def far(self) -> Any:
        """Return their distance; None if there is none to compare."""
        return first_distance(self.a.tensors, self.b.tensors) if self.a and self.b else None

    # --- the calls of torch's functions that lead to the first difference

    def _calls(self, trace: Trace) -> list[Event]:
        """Return a side's calls that are compared."""
        if self.part == "report":
            return [e for e in trace.of("call") if e.evaluation and e.path is None]
        if self.part in ("backward", "gradients"):
            return _calls_of_step(trace, self.step)
        if self.part in ("forward", "loss"):
            number, event = (0, self.a) if trace is self.c.a else (1, self.b)
            calls = self.c.calls(self.owner, self._owner_number, self.a)[number]
            return [e for e in calls if e.order < event.order]
        if self.part != "data":
            return []
        # The calls that make batches, outside of modules. Those for step 0 came before the trace
        # began; those for step 1 are like them.
        step = max(self.step, 1)
        enters = (e.order for e in trace.of("enter") if e.step == step and not e.evaluation)
        end = next(enters, len(trace.events))
        return [e for e in _calls_of_step(trace, step) if e.path is None and e.order < end]

    def _first_calls(self) -> tuple[Event | None, Event | None]:
        if self.part in ("backward", "gradients"):
            return None, None
        if self.part == "forward" and (pair := novel(*self._since_equal)) != (None, None):
            return pair
        return novel(*self.calls)

    @property
    def new_or_gone(self) -> str:
        """Return "`relu(_)` is new", for the calls that only one side makes; empty if there are
        none."""
        if not self.fresh and not self.gone:
            return ""
        return f"{telling(self.fresh or self.gone)} is {'new' if self.fresh else 'gone'}"

    @property
    def more(self) -> str:
        """Return the same as the end of a sentence."""
        return f"; {self.new_or_gone}" if self.new_or_gone else ""

    @cached_property
    def _since_equal(self) -> tuple[list[Event], list[Event]]:
        """Return the calls on both sides between the last equal tensors of a module and the
        difference."""
        a, b = self.a, self.b
        low = [-1, -1]
        for pair in self.c.pairs:
            x, y = pair.a, pair.b
            if (
                pair.one.kind in ("enter", "leave") and x and y and x.tensors
                and (x.step, x.evaluation) == (a.step, a.evaluation)
                and x.order < a.order and y.order < b.order and not self.c.differs(pair)
            ):  # fmt: skip
                low = [max(low[0], x.order), max(low[1], y.order)]

        def between(trace: Trace, start: int, end: Event) -> list[Event]:
            return [
                e for e in trace.of("call")
                if start < e.order < end.order
                and (e.step, e.evaluation) == (a.step, a.evaluation)
            ]  # fmt: skip

        return between(self.c.a, low[0], a), between(self.c.b, low[1], b)

    # --- the module at fault in a forward pass

    def _find_owner(self) -> tuple[str | None, int]:
        """Return the module at fault and the number of its call. `enter`: the input of a module
        differs, so its caller's own code between the calls of its children is at fault. `leave`:
        with equal input its output differs."""
        if self.part != "forward":
            return None, 0
        if self.front.kind != "enter":
            return self.a.path, self.a.number
        x, y = novel(*self._since_equal)
        if (source := y or x) is not None:
            # Code between two modules may belong to another module, called from outside of it.
            path = self.c.path(source) if source is y else source.path
            if path is None or path in self.c.a.modules:
                return path, source.number
        owner, at = self.a.raw.get("u"), (self.a.step, self.a.evaluation)
        calls = (
            e.number for e in self.c.a.of("enter")
            if e.path == owner and (e.step, e.evaluation) == at and e.order < self.a.order
        )  # fmt: skip
        return owner, max(calls, default=0)

    @property
    def place(self) -> str:
        return named(self.new.path if self.new is not None else self.owner)

    @property
    def settings(self) -> list[tuple[str, Any, Any]]:
        """Return the settings of the module at fault that differ: name, old, new."""
        if self.old is None or self.new is None:
            return []
        return changed(self.old.settings, self.new.settings)

    def only(self, *, added: bool) -> list[Module]:
        """Return the modules that only b has, or only a."""
        if added:
            return [self.c.b.modules[path] for path in self.c.alignment.added]
        return [self.c.a.modules[path] for path in self.c.alignment.removed]

    def module(self, path: str | None) -> Module | None:
        return self.c.b.modules.get(path or "")

    # --- the start of a training

    @cached_property
    def other_draw(self) -> tuple[Event | None, Event | None]:
        """Return the first calls, up to this step, that draw differently on the two sides: by the
        call, else by the generators' states after it. One is None if only the other side draws
        there."""
        sides = [
            [
                e for e in trace.of("draw", "call", "leave")
                if e.drew and (self.part == "init" or e.step <= self.step)
            ]
            for trace in (self.c.a, self.c.b)
        ]  # fmt: skip
        states = [[(e.call, e.raw["y"]) for e in side] for side in sides]
        unequal = (at for at, (x, y) in enumerate(zip(*states, strict=False)) if x != y)
        at = next(unequal, min(map(len, states)))
        draws_a, draws_b = sides[0][at:], sides[1][at:]
        calls = [[e.call for e in side] for side in (draws_a, draws_b)]
        # A call that differs is new, or gone, if the following calls agree.
        if draws_b and calls[1][1 : 1 + _AHEAD] == calls[0][:_AHEAD]:
            return None, draws_b[0]
        if draws_a and calls[0][1 : 1 + _AHEAD] == calls[1][:_AHEAD]:
            return draws_a[0], None
        return (draws_a[0] if draws_a else None), (draws_b[0] if draws_b else None)

    @property
    def drawn(self) -> str:
        """Return the call that draws there, and whether it is new; empty if there is none."""
        a, b = self.other_draw
        if a is not None and b is not None:
            return f"`{b.call}` where `{a.call}` was"
        if a is None and b is None:
            return ""
        return f"`{b.call}` is new" if b is not None else f"`{a.call}` is gone"  # type: ignore[union-attr]

    @property
    def same_draw(self) -> str:
        """Return the call that draws other numbers on both sides; empty if the calls differ."""
        a, b = self.other_draw
        return b.call if a is not None and b is not None and a.call == b.call else ""

    @property
    def drawing_places(self) -> list[CodePlace]:
        a, b = self.other_draw
        return self.both_places(a, b, "draws")

    @cached_property
    def labels(self) -> str:
        """Describe the change of the targets if they differ for equal inputs."""
        wrong = total = 0
        for one, other in zip(self.c.a.rows["target"], self.c.b.rows["target"], strict=False):
            if len(one) != len(other):
                return f"{len(other)} targets instead of {len(one)}"
            wrong += int((one != other).sum())
            total += len(one)
        return f"labels differ: {share(wrong / total)} of {total} targets" if wrong else ""

    @cached_property
    def gradient_path(self) -> str | None:
        """Return the path in b of the module whose output's gradient differs."""
        path = self.c.path(self.b) if self.a is None else self.a.path
        return self.c.path_in_b(path)

    # --- the code

    @cached_property
    def places(self) -> list[CodePlace]:
        """Return the lines that lead to the difference, the likeliest first."""
        places = self.both_places(*self.first_calls, "call")
        if self.part == "forward":
            places += self.both_codes(self.old, self.new)
        places += [p for e in self.fresh[:4] for p in places_of(self.c.b, "b", e, "new call")]
        gone = "call that is gone"
        places += [p for e in self.gone[:4] for p in places_of(self.c.a, "a", e, gone)]
        if self.part in _CALLERS:
            before = self.a if self.part != "loss" else None
            places += self.both_places(before, self.b, _CALLERS[self.part])
        if self.part in ("settings", "update"):
            places += [*self.stepping(self.c.b, "b"), *self.stepping(self.c.a, "a")]
        return places

    def both_places(self, a: Event | None, b: Event | None, what: str) -> list[CodePlace]:
        return [*places_of(self.c.b, "b", b, what), *places_of(self.c.a, "a", a, what)]

    def both_codes(self, old: Module | None, new: Module | None) -> list[CodePlace]:
        return [*code_of(self.c.b, "b", new), *code_of(self.c.a, "a", old)]

    def stepping(self, trace: Trace, side: str) -> list[CodePlace]:
        """Return where the optimiser is made, where it is stepped, and where its step is defined,
        by its newest settings."""
        events = [event for event in trace.of("hyper") if event.step <= self.step]
        if not events:
            return []
        event = events[-1]
        places = places_of(trace, side, event, "optimiser made")
        places += site_of(trace, side, event.raw.get("at", -1), "optimiser stepped")
        if event.raw.get("f") and not event.raw["c"].startswith("torch."):
            places.append(function_place(side, "step", event.raw["f"]))
        return places


def _calls_of_step(trace: Trace, step: int) -> list[Event]:
    return [e for e in trace.of("call") if e.step == step and not e.evaluation]


def novel(a: Sequence[Event], b: Sequence[Event]) -> tuple[Event | None, Event | None]:
    """Return for each side the first call with a result that the other side never has."""

    def first(calls: Sequence[Event], other_calls: Sequence[Event]) -> Event | None:
        hashes = {tensor.hash for event in other_calls for tensor in event.tensors}
        fresh = (e for e in calls if any(tensor.hash not in hashes for tensor in e.tensors))
        return next(fresh, None)

    return first(a, b), first(b, a)


def _only_on_one_side(a: Sequence[Event], b: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """Return the calls that only one side makes, by function and arguments: only a, only b."""

    def unmatched(calls: Sequence[Event], other_calls: Sequence[Event]) -> list[Event]:
        spare = Counter(event.call for event in other_calls)
        extra = []
        for event in calls:
            spare[event.call] -= 1
            if spare[event.call] < 0:
                extra.append(event)
        return extra

    return unmatched(a, b), unmatched(b, a)


def telling(events: Sequence[Event]) -> str:
    """Name the call that matters most: a view of a tensor only if there is no other."""
    if not events:
        return "nothing"
    return f"`{next((e for e in events if e.name not in _VIEWS), events[0]).call}`"
