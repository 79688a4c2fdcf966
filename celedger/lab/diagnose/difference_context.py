"""The surroundings of the first difference of two trainings: everything that a rule of the table of
causes (celedger.lab.diagnose.causes) can read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from celedger.lab.diagnose.dataflow import UNWRITTEN, Origin, from_modules, origin, parting
from celedger.lab.diagnose.difference import Front, TraceComparison, changed
from celedger.lab.diagnose.finding import (
    CodePlace,
    code_of,
    function_place,
    named,
    places_of,
    share,
)
from celedger.lab.diagnose.tensor_distance import first_distance
from celedger.lab.diagnose.trace import Event, Module, Tensor, Trace

_Item = TypeVar("_Item")

# Calls that seldom are the cause if other calls are new, too.
_VIEWS = {
    "detach", "view", "reshape", "flatten", "contiguous", "to", "clone", "unsqueeze", "__getitem__",
}  # fmt: skip
CASTS = {"half", "float", "double", "bfloat16", "to", "type", "type_as"}
DETACHING = {"detach", "detach_", "data", "no_grad"}
_AHEAD = 8  # draws that must agree after a new one
# The part of a step in which a difference lies, by the kind of its event.
_PARTS = {
    "enter": "forward", "leave": "forward", "grad": "backward", "missing": "backward",
    "pgrad": "gradients", "hyper": "settings", "init": "init", "loss": "loss", "report": "report",
    "buffer": "buffer",
}  # fmt: skip
UNTRAINED_PASS = "a pass without gradients"
_CALLERS = {"forward": "caller", "loss": "caller", "data": "training loop"}


class DifferenceContext:
    """The first difference of two traces, and what surrounds it on both sides. `event_a` and
    `event_b` are the events; a gradient that does not arrive is None. `part` is the part of the
    step: init, data, forward, loss, backward, gradients, settings, buffer, update, late (a model
    was first used after training began) or report."""

    def __init__(self, c: TraceComparison, front: Front) -> None:
        self.comparison, self.front, self.pair = c, front, front.pair
        self.event_a: Any = front.pair.a
        self.event_b: Any = front.pair.b
        self.step = front.pair.step
        self.missing = front.kind == "missing"
        self.part = self._part()
        self.origins = self._origins()
        # The calls in which the two sides part: one is None where the other only leaves one out.
        self.parting = parting(*self.origins)
        # Of a forward pass, the path in a of the module at fault, and which call of it.
        self.owner, self._owner_number = self._find_owner()
        # The module at fault on both sides; None for the training loop's own code.
        self.old: Module | None = None
        self.new: Module | None = None
        if self.owner is not None:
            self.old = c.a.modules.get(self.owner)
            self.new = c.b.modules.get(c.paths_in_b.get(self.owner, "no module"))
        self.calls = self._calls(c.a), self._calls(c.b)
        told, seen = (
            [Counter(event.bare for event in calls(trace)) for trace in (c.a, c.b)]
            for calls in (self._whole_scope, self._scope)
        )
        # The calls that one side makes more often, wherever in the pass: no other is gone or new.
        self.extra = told[0] - seen[1], told[1] - seen[0]
        self.gone, self.fresh = (
            [event for event in side if extra[event.bare]]
            for side, extra in zip(_only_on_one_side(*self.calls), self.extra, strict=True)
        )
        novel_ones = [novel_calls(*sides) for sides in (self.calls, self.calls[::-1])]
        live = [
            [e for e in some if e.drew or e.order in first]
            for some, first in zip((self.gone, self.fresh), map(_sources, novel_ones), strict=True)
        ]
        if not any(live) and self.part in ("backward", "gradients"):  # equal values may be detached
            live = [
                [e for e in some if e.name in DETACHING or e.name not in _VIEWS]
                for some in (self.gone, self.fresh)
            ]
        self.gone, self.fresh = live
        # On each side, the first call with a result that the other side never has.
        self.first_calls = self._first_calls()
        x, y = self.first_calls
        self.same_function = x is not None and y is not None and x.name == y.name
        # With its arguments: side b's, unless it is one of a's that is gone.
        self.call = next((e.call for e in (*reversed(self.parting), y) if e is not None), "")

    def _part(self) -> str:
        a = self.event_a
        if self.front.kind == "init" and self.step:
            return "late"
        if self.front.kind != "enter" or a.raw.get("u") is not None:
            return _PARTS.get(self.front.kind, "update")
        # A module's input from the training loop: a batch, or computed from other outputs.
        made = from_modules(self.comparison.b, self.event_b)
        pairs = zip(a.tensors, self.event_b.tensors, strict=False)
        other = [y for x, y in pairs if not x.same(y)]
        given = self.event_b.tensors
        if not made or not any(t.gradient or t.hash in made for t in given):
            return "data"
        computed = any(y.gradient or y.hash in made for y in other)
        return "loss" if self.labels and not computed else "forward"

    # --- the tensors

    @cached_property
    def differing(self) -> list[int]:
        """Return the positions of the tensors of the two events that differ."""
        pairs = zip(self.event_a.tensors, self.event_b.tensors, strict=False)
        return [at for at, (x, y) in enumerate(pairs) if not x.same(y)]

    @property
    def input(self) -> str:
        """Return the module's input that differs first, by its name where it has several."""
        event = self.pair.one
        names = event.raw.get("of", ())
        several = len(names) > 1 and self.differing
        named_input = f"the input `{names[self.differing[0]]}`" if several else "the input"
        if not event.evaluation:
            return named_input
        return named_input + (" of an evaluation" if self.evaluates else f" of {UNTRAINED_PASS}")

    @cached_property
    def evaluates(self) -> bool:
        """Return True if the difference is in an evaluation. A pass without gradients that comes in
        most steps is part of the training, as that of a teacher."""
        steps = {e.step for e in self.comparison.b.of("loss")}
        passes = {e.step for e in self.comparison.b.of("enter", "unseen") if e.evaluation} & steps
        usual = len(steps) > 2 and 2 * len(passes) > len(steps)
        return bool(self.pair.one.evaluation) and not usual

    @property
    def tensor_a(self) -> Any:
        """Return the first tensor of the event that differs."""
        return self.event_a.tensors[next(iter(self.differing), 0)]

    @property
    def tensor_b(self) -> Any:
        return self.event_b.tensors[next(iter(self.differing), 0)]

    @cached_property
    def far(self) -> Any:
        """Return their distance; None if there is none to compare."""
        return (
            first_distance(self.event_a.tensors, self.event_b.tensors)
            if self.event_a and self.event_b
            else None
        )

    # --- the calls of torch's functions that lead to the first difference

    def _calls(self, trace: Trace) -> list[Event]:
        """Return a side's calls that are compared: up to the difference."""
        event = self.event_a if trace is self.comparison.a else self.event_b
        until_event = self.part in ("forward", "loss", "report")
        return [e for e in self._scope(trace) if not until_event or e.order < event.order]

    def _scope(self, trace: Trace) -> list[Event]:
        """Return a side's calls in the part of the step that differs."""
        if self.part == "report":
            event = self.event_a if trace is self.comparison.a else self.event_b
            # A printed report has no place in time: what trains may follow on it.
            step = event.step if "t" in event.raw else None
            calls = (e for e in trace.of("call") if e.evaluation or e.step == step)
            return [e for e in calls if e.path is None]
        if self.part in ("backward", "gradients"):
            of_step = (e for e in trace.of("call") if e.step == self.step and not e.evaluation)
            loop = self.part == "gradients" and self.every_gradient
            return [e for e in of_step if e.path is None or not loop]
        if self.part == "update":  # by a script without an optimiser of torch's
            passes = [e.order for e in trace.of("loss") if e.step == self.step]
            calls = (e for e in trace.of("call") if e.step == self.step and e.path is None)
            own = not any(trace.of("hyper"))
            return [e for e in calls if own and passes and e.order > passes[-1]]
        if self.part == "late":  # what wrote its weights is no module
            return [e for e in trace.of("call") if e.path is None and e.step <= self.step]
        if self.part in ("forward", "loss"):
            number = 0 if trace is self.comparison.a else 1
            return self.comparison.calls(self.owner, self._owner_number, self.event_a)[number]
        return self._data_calls(trace) if self.part == "data" else []

    def _whole_scope(self, trace: Trace) -> list[Event]:
        """Return the same without the last calls that are seen of an evaluation which goes on:
        what one side makes among them the other may make later."""
        ends: dict[int, int] = {}
        last = 0
        for event in trace.of("leave", "unseen") if self.part == "report" else ():
            if event.kind == "unseen":
                ends.setdefault(event.evaluation, last)
            last = event.order
        calls = self._scope(trace)
        return [e for e in calls if e.order <= ends.get(e.evaluation, len(trace.events))]

    def _data_calls(self, trace: Trace) -> list[Event]:
        # What makes batches, outside of modules. The calls for step 0 were made before the trace
        # began, those for step 1 are like them.
        evaluation = self.event_a.evaluation if self.part == "data" else 0
        step = self.step if evaluation else max(self.step, 1)
        at = (step, evaluation)
        enters = [e.order for e in trace.of("enter") if (e.step, e.evaluation) == at]
        event = self.event_a if trace is self.comparison.a else self.event_b
        late = self.part == "data" and event.step == step and event.order in enters
        end = event.order if late else next(iter(enters), len(trace.events))
        calls = (e for e in trace.of("call") if (e.step, e.evaluation) == at and e.order < end)
        return [e for e in calls if e.path is None]

    def _first_calls(self) -> tuple[Event | None, Event | None]:
        if self.part in ("backward", "gradients"):
            return None, None
        sources = self.origins[0].source, self.origins[1].source
        if all(self.parting):
            return self.parting
        return sources if any(sources) else novel(*self.calls)

    def _origins(self) -> tuple[Origin, Origin]:
        """Follow the difference back on both sides, where calls have computed it."""
        if self.part not in ("forward", "loss") or self.event_a is None or self.event_b is None:
            return Origin(), Origin()
        c = self.comparison
        return origin(c.a, c.b, self.event_a), origin(c.b, c.a, self.event_b)

    @property
    def new_or_gone(self) -> str:
        return new_or_gone(self.gone, self.fresh)

    @property
    def more(self) -> str:
        """Return the same as the end of a sentence."""
        return f"; {self.new_or_gone}" if self.new_or_gone else ""

    @property
    def computed(self) -> str:
        """Return what is computed in place of what, in the calls in which the two sides part; empty
        where both sides make these calls, or each is given what the other does not have."""
        if all(one.given for one in self.origins):
            return ""
        gone, new = (
            event if event is not None and extra[event.bare] else None
            for event, extra in zip(self.parting, self.extra, strict=True)
        )
        if gone is not None and new is not None:
            return replaced(gone, new)
        one = gone or new
        if one is not None and one.name not in _VIEWS:
            return replaced(gone, new)
        return new_or_gone([*self.gone, *filter(None, [gone])], [*self.fresh, *filter(None, [new])])

    @property
    def given_otherwise(self) -> str:
        """Return the function that both sides call, and whose operands part them."""
        return next((e.function for e in reversed(self.parting) if e is not None), "")

    # --- the module at fault in a forward pass

    def _find_owner(self) -> tuple[str | None, int]:
        """Return the module whose call parts the two sides, though the difference shows later.
        Where no such call is seen: of `enter`, what a module is given, its caller; else the module
        itself, which returns something else for the same."""
        if self.part != "forward":
            return None, 0
        old, new = self.parting
        if (source := new or old) is not None:
            path = self.comparison.path(source) if source is new else source.path
            if path is None or path in self.comparison.a.modules:
                return path, source.number
        if self.front.kind != "enter":
            return self.event_a.path, self.event_a.number
        owner, at = self.event_a.raw.get("u"), (self.event_a.step, self.event_a.evaluation)
        calls = (
            e.number for e in self.comparison.a.of("enter")
            if e.path == owner and (e.step, e.evaluation) == at and e.order < self.event_a.order
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
            return [self.comparison.b.modules[path] for path in self.comparison.alignment.added]
        return [self.comparison.a.modules[path] for path in self.comparison.alignment.removed]

    def module(self, path: str | None) -> Module | None:
        return self.comparison.b.modules.get(path or "")

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
            for trace in (self.comparison.a, self.comparison.b)
        ]  # fmt: skip
        states = [[(e.bare, e.raw["y"]) for e in side] for side in sides]
        unequal = (at for at, (x, y) in enumerate(zip(*states, strict=False)) if x != y)
        at = next(unequal, min(map(len, states)))
        draws_a, draws_b = sides[0][at:], sides[1][at:]
        calls = [[e.bare for e in side] for side in (draws_a, draws_b)]
        # A call that differs is new, or gone, if the following calls agree.
        if draws_b and calls[1][1 : 1 + _AHEAD] == calls[0][:_AHEAD]:
            return None, draws_b[0]
        if draws_a and calls[0][1 : 1 + _AHEAD] == calls[1][:_AHEAD]:
            return draws_a[0], None
        return (draws_a[0] if draws_a else None), (draws_b[0] if draws_b else None)

    @property
    def drawn(self) -> str:
        """Return the call that draws there, and whether it is new; empty if there is none."""
        return replaced(*self.other_draw)

    @property
    def same_draw(self) -> str:
        """Return the call that draws other numbers on both sides; empty if the calls differ."""
        a, b = self.other_draw
        return b.call if a is not None and b is not None and a.bare == b.bare else ""

    @property
    def drawing_places(self) -> list[CodePlace]:
        return self.both_places(*self.other_draw, "draws")

    @cached_property
    def labels(self) -> str:
        """Describe the change of the targets if they differ for equal inputs."""
        wrong = total = 0
        a, b = (trace.rows["target"] for trace in (self.comparison.a, self.comparison.b))
        for loss, passes in a.items():
            # Other losses, or more of one, are no other labels.
            if [len(rows) for rows in passes] != [len(rows) for rows in b.get(loss, ())]:
                return ""
            pairs = zip(passes, b[loss], strict=True)
            wrong += sum(int((one != other).sum()) for one, other in pairs)
            total += sum(len(rows) for rows in passes)
        wrong = 0 if self._targets_are_computed(a) else wrong
        return f"labels differ: {share(wrong / total)} of {total} targets" if wrong else ""

    def _targets_are_computed(self, losses: Iterable[tuple[str, int]]) -> bool:
        """Return True if the targets of this step that only b has come from modules, or may come
        from a pass that was not looked at, as of a target network."""
        names = {name for name, _ in losses}
        step = max(self.step, 1)  # what came before the trace began is like what comes before this
        calls = [
            [e for e in trace.of("call") if e.step == step and e.name in names]
            for trace in (self.comparison.a, self.comparison.b)
        ]
        old, new = ({mark for e in side for mark in e.raw["i"][1:2]} for side in calls)
        if any(e.step == step for e in self.comparison.b.of("unseen")):
            return True
        return bool(new - old) and new - old <= from_modules(self.comparison.b, calls[1][-1])

    @cached_property
    def gradient_path(self) -> str | None:
        """Return the path in b of the module whose output's gradient differs."""
        path = self.comparison.path(self.event_b) if self.event_a is None else self.event_a.path
        return self.comparison.path_in_b(path)

    @cached_property
    def labels_made(self) -> tuple[list[Event], list[Event]]:
        """Return the calls that make a batch on one side only: gone, and new."""
        return _only_on_one_side(*map(self._data_calls, (self.comparison.a, self.comparison.b)))

    @cached_property
    def every_gradient(self) -> bool:
        """True where all gradients differ, so that the training loop is at fault."""
        pairs = self.comparison.pairs_of("pgrad", step=self.step)
        return len(self.comparison.differing("pgrad", step=self.step)) == len(list(pairs))

    # --- the code

    @cached_property
    def places(self) -> list[CodePlace]:
        """Return the lines that lead here, the likeliest first."""
        places = self.both_places(*self.parting, "call")
        places += self.both_places(*self.first_calls, "call")
        if self.part == "forward":
            places += self.both_codes(self.old, self.new)
        places += self.places_of_calls(self.gone, self.fresh)
        if self.part in _CALLERS:
            before = self.event_a if self.part != "loss" else None
            places += self.both_places(before, self.event_b, _CALLERS[self.part])
        if self.part in ("settings", "update"):
            places += [*self.stepping(self.comparison.b), *self.stepping(self.comparison.a)]
        return places

    def both_places(
        self, a: Event | None, b: Event | None, what: str, key: str = "w"
    ) -> list[CodePlace]:
        return [
            *places_of(self.comparison.b, b, what, key),
            *places_of(self.comparison.a, a, what, key),
        ]

    def both_codes(self, old: Module | None, new: Module | None) -> list[CodePlace]:
        return [*code_of(self.comparison.b, new), *code_of(self.comparison.a, old)]

    def places_of_calls(self, gone: Sequence[Event], fresh: Sequence[Event]) -> list[CodePlace]:
        events = [(self.comparison.b, e, "new call") for e in fresh]
        events += [(self.comparison.a, e, "call that is gone") for e in gone]
        events.sort(key=lambda row: row[1].name in _VIEWS)
        return [place for row in events[:8] for place in places_of(*row)]

    def stepping(self, trace: Trace, *, by_loop: bool = False) -> list[CodePlace]:
        """Return where the optimiser is made, where it is stepped, and where its step is written,
        as it was last set up. `by_loop`: where the loop calls backward and steps it."""
        events = [event for event in trace.of("hyper") if event.step <= self.step]
        if not events:
            return []
        event = events[-1]
        stepped = places_of(trace, event, "optimiser stepped", "at")
        if by_loop:
            losses = [e for e in trace.of("loss") if e.step == self.step]
            backward = [p for e in losses[-1:] for p in places_of(trace, e, "backward")]
            return [*backward, *stepped]
        places = [*places_of(trace, event, "optimiser made"), *stepped]
        if event.raw.get("f") and not event.raw["c"].startswith("torch."):
            places.append(function_place(trace, "step", event.raw["f"]))
        return places


def novel(a: Sequence[Event], b: Sequence[Event]) -> tuple[Event | None, Event | None]:
    """Return for each side the first of its novel calls."""
    return next(iter(novel_calls(a, b)), None), next(iter(novel_calls(b, a)), None)


def novel_calls(calls: Sequence[Event], other_calls: Sequence[Event]) -> list[Event]:
    """Return the calls with a result that the other side never has, and that does not end in
    results which it has, too; if all do, those that go on to another such result."""
    results = {_result(tensor) for event in other_calls for tensor in event.tensors}
    readers: dict[str, list[Event]] = defaultdict(list)
    fresh: dict[int, Event] = {}
    live: dict[int, Event] = {}
    near: dict[int, Event] = {}
    for event in reversed([event for event in calls if event.name not in UNWRITTEN]):
        reading = [e.order for tensor in event.tensors for e in readers[tensor.hash]]
        if any(_result(tensor) not in results for tensor in event.tensors):
            fresh[event.order] = event
            for kept, among in ((live, live), (near, fresh)):
                if not reading or any(order in among for order in reading):
                    kept[event.order] = event
        for mark in filter(None, event.raw["i"]):
            readers[mark].append(event)
    return [*reversed((live or near).values())]


def _sources(novel: Sequence[Event]) -> set[int]:
    """Return the orders of the novel calls that are given no result of another, views apart, nor
    look up a row of the data."""
    results = {
        tensor.hash for event in novel if event.name not in _VIEWS
        for tensor in event.tensors if tensor.hash not in event.raw["i"]  # as of a `squeeze`
    }  # fmt: skip
    return {
        event.order for event in novel
        if results.isdisjoint(event.raw["i"])
        and not (event.name == "__getitem__" and "".join(event.raw["l"][1:]).isdigit())
    }  # fmt: skip


def _result(tensor: Tensor) -> tuple[object, ...]:
    return tensor.hash, tensor.shape, tensor.dtype


def _only_on_one_side(a: Sequence[Event], b: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """Return the calls that only one side makes: only a, only b. One of the same operands with the
    same result is the same, however it is written; of the others one with the same arguments is."""
    for key in (_computation, lambda event: event.bare):
        a, b = unmatched(a, b, key), unmatched(b, a, key)
    return list(a), list(b)


def unmatched(
    items: Iterable[_Item], others: Iterable[_Item], key: Callable[[_Item], object]
) -> list[_Item]:
    """Return the items beyond as many of a key as the others are."""
    spare, extra = Counter(map(key, others)), []
    for item in items:
        spare[key(item)] -= 1
        if spare[key(item)] < 0:
            extra.append(item)
    return extra


def _computation(event: Event) -> tuple[object, ...]:
    name, operands = event.name, event.raw["i"]
    if name in CASTS:  # however they name the type
        name, operands = "to", operands[:1]
    if not all(event.raw["i"]):  # of operands that were not read
        return (id(event),)
    # Of equal operands and results, `x.square()` has the backward pass of `x ** 2`.
    return event.raw.get("b", name), *operands, *map(_result, event.tensors)


def telling(events: Sequence[Event]) -> Event | None:
    """Return the call that matters most: a view of a tensor only if there is no other."""
    return next((e for e in events if e.name not in _VIEWS), events[0] if events else None)


def replaced(gone: Event | None, new: Event | None) -> str:
    """Return "`relu(_)` where `gelu(_)` was", "`relu(_)` is new" or "… is gone"; empty for
    neither."""
    if new is not None:
        return f"`{new.call}` " + (f"where `{gone.call}` was" if gone is not None else "is new")
    return f"`{gone.call}` is gone" if gone is not None else ""


def new_or_gone(gone: Sequence[Event], fresh: Sequence[Event]) -> str:
    """Name the call of each side alone that matters most, or both where they have one name; empty
    if there are none."""
    old, new = telling(gone), telling(fresh)
    if old is not None and new is not None and (old.name in _VIEWS) != (new.name in _VIEWS):
        old, new = (None, new) if old.name in _VIEWS else (old, None)
    if old is not None and new is not None and old.name == new.name:
        return replaced(old, new)
    return " and ".join(filter(None, [replaced(None, new), replaced(old, None)]))
