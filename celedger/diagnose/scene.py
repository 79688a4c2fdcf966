"""What is known at the place where two trainings first differ: what a rule of the table of causes
(celedger.diagnose.causes) can ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from celedger.diagnose.difference import Front, TraceComparison
from celedger.diagnose.distance import Distance, distance
from celedger.diagnose.finding import (
    VIEWS,
    CodePlace,
    FindingPhase,
    call,
    calls_changed,
    changed,
    code_of,
    named,
    novel,
    places_of,
    share,
)
from celedger.diagnose.trace import Event, Frame, Module, Tensor, Trace


class Where(StrEnum):
    """The part of a step in which the first difference lies."""

    INIT = "init"
    DATA = "data"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    GRADIENTS = "gradients"
    SETTINGS = "settings"
    BUFFER = "buffer"
    UPDATE = "update"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class RuleAnswer:
    """What a rule that holds says. `module`: its path in b, None for the place's own; `places`
    stand before those of the scene."""

    sentence: str
    module: str | None = None
    places: Sequence[CodePlace] = ()
    tensor: str = ""
    operator: str = ""
    facts: Sequence[str] = ()
    phase: FindingPhase | None = None
    kind: str = ""  # the module's class, where the module is not in b
    far: Distance | None = None  # of weights at the start


class Scene:
    """The first difference of two traces, and what surrounds it on both sides."""

    def __init__(self, c: TraceComparison, front: Front) -> None:
        self.c, self.front = c, front
        self.pair = front.pair
        self.step = front.pair.step
        self.missing = front.kind == "missing"
        self.where = self._where()
        self.owner: str | None = None  # of the forward pass: the path in a of the module at fault
        self._owner_number = 0
        if self.where is Where.FORWARD:
            self._find_owner()

    @property
    def a(self) -> Event:
        assert self.pair.a is not None
        return self.pair.a

    @property
    def b(self) -> Event:
        assert self.pair.b is not None
        return self.pair.b

    def _where(self) -> Where:
        event = self.pair.one
        kind = self.front.kind
        if kind == "enter" and event.raw.get("u") is None and not event.evaluation:
            return self._at_root()
        known = {
            "enter": Where.FORWARD, "leave": Where.FORWARD, "grad": Where.BACKWARD,
            "missing": Where.BACKWARD, "pgrad": Where.GRADIENTS, "hyper": Where.SETTINGS,
            "init": Where.INIT, "loss": Where.LOSS, "report": Where.REPORT, "buffer": Where.BUFFER,
        }  # fmt: skip
        return known.get(kind, Where.UPDATE)

    def _at_root(self) -> Where:
        """What the training loop hands to a module: a batch, or what it made of other outputs."""
        a, b = self.a, self.b
        leaves = (e for e in self.c.a.of("leave") if e.step == a.step and not e.evaluation)
        if not any(e.order < a.order for e in leaves):
            return Where.DATA
        pairs = zip(a.tensors, b.tensors, strict=False)
        if not any(y.gradient for x, y in pairs if not x.same(y)) and self.labels:
            return Where.LOSS
        return Where.FORWARD

    # --- the tensors

    @cached_property
    def first_tensors(self) -> tuple[Tensor, Tensor] | None:
        """The first tensors of the two events that differ."""
        if self.pair.a is None or self.pair.b is None:
            return None
        pairs = list(zip(self.a.tensors, self.b.tensors, strict=False))
        return next(((x, y) for x, y in pairs if not x.same(y)), None)

    @property
    def x(self) -> Tensor:
        return self.first_tensors[0] if self.first_tensors else self.a.tensors[0]

    @property
    def y(self) -> Tensor:
        return self.first_tensors[1] if self.first_tensors else self.b.tensors[0]

    @cached_property
    def far(self) -> Distance | None:
        return distance(*self.first_tensors) if self.first_tensors else None

    # --- the calls of torch's functions that lead to the place

    @cached_property
    def calls(self) -> tuple[list[Event], list[Event]]:
        """The calls of both sides that are compared."""
        if self.where is Where.DATA:
            return self._loading(self.c.a), self._loading(self.c.b)
        if self.where is Where.REPORT:
            mine, theirs = (
                [e for e in trace.of("call") if e.evaluation and e.path is None]
                for trace in (self.c.a, self.c.b)
            )
            return mine, theirs
        if self.where in (Where.BACKWARD, Where.GRADIENTS):
            mine, theirs = (
                [e for e in trace.of("call") if e.step == self.step and not e.evaluation]
                for trace in (self.c.a, self.c.b)
            )
            return mine, theirs
        if self.where in (Where.FORWARD, Where.LOSS):
            mine, theirs = self.c.calls(self.owner, self._owner_number, self.a)
            return _before(mine, self.a), _before(theirs, self.b)
        return [], []

    @cached_property
    def first_calls(self) -> tuple[Event | None, Event | None]:
        """The first call of either side with a result that the other side never has."""
        if self.where is Where.FORWARD and (pair := novel(*self._since_equal)) != (None, None):
            return pair
        if self.where in (Where.BACKWARD, Where.GRADIENTS):
            return None, None
        return novel(*self.calls)

    @property
    def function(self) -> str:
        """The name of side b's first call with another result."""
        return self.first_calls[1].name if self.first_calls[1] else ""

    @property
    def call(self) -> str:
        """That call, with its arguments."""
        return call(self.first_calls[1]) if self.first_calls[1] else ""

    @property
    def same_function(self) -> bool:
        x, y = self.first_calls
        return x is not None and y is not None and x.name == y.name

    @property
    def same_operands(self) -> bool:
        x, y = self.first_calls
        return x is not None and y is not None and bool(x.raw["i"] == y.raw["i"])

    @cached_property
    def _changed_calls(self) -> tuple[list[Event], list[Event]]:
        return calls_changed(*self.calls)

    @property
    def gone(self) -> list[Event]:
        return self._changed_calls[0]

    @property
    def fresh(self) -> list[Event]:
        return self._changed_calls[1]

    @property
    def new_or_gone(self) -> str:
        """`relu(_)` is new: of the calls that only one side makes; empty where none is."""
        if not (events := self.fresh or self.gone):
            return ""
        return f"{named_call(events)} is {'new' if self.fresh else 'gone'}"

    @property
    def more(self) -> str:
        """The same, to go on with after a sentence."""
        return f"; {self.new_or_gone}" if self.new_or_gone else ""

    @cached_property
    def _since_equal(self) -> tuple[list[Event], list[Event]]:
        """The calls on both sides between the last tensors of a module that agree and here."""
        a, b = self.a, self.b
        low = [-1, -1]
        for pair in self.c.pairs:
            if (
                pair.one.kind in ("enter", "leave") and pair.a and pair.b and pair.a.tensors
                and pair.a.step == a.step and pair.a.evaluation == a.evaluation
                and pair.a.order < a.order and pair.b.order < b.order and not self.c.differs(pair)
            ):  # fmt: skip
                low = [max(low[0], pair.a.order), max(low[1], pair.b.order)]
        return tuple(  # type: ignore[return-value]
            [
                e for e in trace.of("call")
                if start < e.order < end.order and e.step == a.step
                and e.evaluation == a.evaluation
            ]
            for trace, start, end in ((self.c.a, low[0], a), (self.c.b, low[1], b))
        )  # fmt: skip

    def _loading(self, trace: Trace) -> list[Event]:
        """Calls outside of modules that make batches. Those of step 0's were made before the trace
        began, those of step 1's are like them."""
        calls = []
        for event in trace.events:
            if event.step == max(self.step, 1) and not event.evaluation:
                if event.kind == "enter":
                    break
                if event.kind == "call" and event.path is None:
                    calls.append(event)
        return calls

    # --- the module at fault in a forward pass

    def _find_owner(self) -> None:
        """`enter`: what a module is given differs, so its caller's own code is at fault, between
        the calls of its children. `leave`: given the same, it returns something else."""
        if self.pair.one.kind != "enter":
            self.owner, self._owner_number = self.a.path, self.a.number
            return
        self.owner = self.a.raw.get("u")
        for other in self.c.a.of("enter"):
            if other.order >= self.a.order:
                break
            if (other.path, other.step, other.evaluation) == (
                self.owner, self.a.step, self.a.evaluation
            ):  # fmt: skip
                self._owner_number = other.number
        x, y = novel(*self._since_equal)
        if (source := y or x) is not None:
            # What lies between two modules may be another's code, called from outside of it.
            path = self.c.path(source) if source is y else source.path
            if path is None or path in self.c.a.modules:
                self.owner, self._owner_number = path, source.number

    @cached_property
    def modules(self) -> tuple[Module | None, Module | None]:
        """The module at fault on both sides; None of the training loop's own code."""
        if self.owner is None:
            return None, None
        new = next((n for n, o in self.c.alignment.modules.items() if o == self.owner), None)
        return self.c.a.modules.get(self.owner), self.c.b.modules[new] if new is not None else None

    @property
    def old(self) -> Module | None:
        return self.modules[0]

    @property
    def new(self) -> Module | None:
        return self.modules[1]

    @property
    def place(self) -> str:
        return named(self.new.path if self.new is not None else self.owner)

    @property
    def settings(self) -> list[tuple[str, Any, Any]]:
        """Settings of the module at fault that differ: name, old, new."""
        both = self.old is not None and self.new is not None
        return changed(self.old.settings, self.new.settings) if both else []  # type: ignore

    # --- what a training begins with

    @cached_property
    def other_draw(self) -> tuple[Event | None, Event | None]:
        """The first place, up to this step, where the two sides draw differently: by what is
        drawn, else by the state of the generators after it; one is None where only the other
        side draws there."""
        upto = None if self.where is Where.INIT else self.step
        left, right = (
            [e for e in draws(trace) if upto is None or e.step <= upto]
            for trace in (self.c.a, self.c.b)
        )
        for number in range(max(len(left), len(right))):
            a = left[number] if number < len(left) else None
            b = right[number] if number < len(right) else None
            if a is None or b is None or (call(a), a.raw["y"]) != (call(b), b.raw["y"]):
                return _which_is_new(left[number:], right[number:])
        return None, None

    @property
    def drawing(self) -> str:
        """The call that draws there, side b's where it has one."""
        event = self.other_draw[1] or self.other_draw[0]
        return call(event) if event is not None else ""

    @property
    def same_draw(self) -> str:
        """The call that draws other numbers on both sides; empty where other calls draw."""
        a, b = self.other_draw
        return call(b) if a is not None and b is not None and call(a) == call(b) else ""

    @cached_property
    def labels(self) -> str:
        """What became of the targets, where they differ for the same inputs."""
        wrong = total = 0
        for one, other in zip(self.c.a.rows["target"], self.c.b.rows["target"], strict=False):
            if len(one) != len(other):
                return f"{len(other)} targets instead of {len(one)}"
            wrong += int((one != other).sum())
            total += len(one)
        return f"labels differ: {share(wrong / total)} of {total} targets" if wrong else ""

    @cached_property
    def gradient_path(self) -> str | None:
        """The path in b of the module whose output's gradient differs."""
        event = self.pair.a or self.pair.b
        assert event is not None
        path = self.c.path(event) if self.pair.a is None else event.path
        return next((n for n, o in self.c.alignment.modules.items() if o == path), path)

    # --- the code

    @cached_property
    def places(self) -> list[CodePlace]:
        """The lines that lead here, the likeliest first."""
        c, where = self.c, self.where
        x, y = self.first_calls
        places = [*places_of(c.b, "b", y, "call"), *places_of(c.a, "a", x, "call")]
        if where is Where.FORWARD:
            old, new = self.modules
            places += [*code_of(c.b, "b", new), *code_of(c.a, "a", old)]
        places += [p for e in self.fresh[:4] for p in places_of(c.b, "b", e, "new call")]
        places += [p for e in self.gone[:4] for p in places_of(c.a, "a", e, "call that is gone")]
        callers = {Where.FORWARD: "caller", Where.LOSS: "caller", Where.DATA: "training loop"}
        if where in callers:
            places += places_of(c.b, "b", self.pair.b, callers[where])
        if where in (Where.FORWARD, Where.DATA):
            places += places_of(c.a, "a", self.pair.a, callers[where])
        if where in (Where.SETTINGS, Where.UPDATE):
            places += [*self.stepping(c.b, "b"), *self.stepping(c.a, "a")]
        return places

    def stepping(self, trace: Trace, side: str) -> list[CodePlace]:
        """Where the optimiser is made, where it is stepped, and where its step is written."""
        places: list[CodePlace] = []
        for event in trace.of("hyper"):
            if event.step > self.step:
                break
            places = places_of(trace, side, event, "optimiser made")
            if frames := trace.frames(event.raw.get("at", -1)):
                places.append(CodePlace(side, "optimiser stepped", frames))
            code = event.raw.get("f")
            if code and not event.raw["c"].startswith("torch."):
                frame = Frame(code[0], code[1], f"step …{code[2]}")
                places.append(CodePlace(side, "step", (frame,)))
        return places

    def module(self, path: str | None) -> Module | None:
        return self.c.b.modules.get(path or "")


def first_distance(a: Event, b: Event) -> Distance | None:
    """Between the first tensors of two events that differ."""
    pairs = zip(a.tensors, b.tensors, strict=False)
    return next((distance(x, y) for x, y in pairs if not x.same(y)), None)


def telling(events: Sequence[Event]) -> Event:
    """The call that matters most: seldom one that only looks at a tensor in another way."""
    return next((event for event in events if event.name not in VIEWS), events[0])


def named_call(events: Sequence[Event]) -> str:
    """The call that matters most, in backticks."""
    return f"`{call(telling(events))}`" if events else "nothing"


def draws(trace: Trace) -> Iterator[Event]:
    return (e for e in trace.of("draw", "call", "leave") if e.drew)


def _before(calls: Sequence[Event], event: Event) -> list[Event]:
    return [one for one in calls if one.order < event.order]


def _which_is_new(
    left: Sequence[Event], right: Sequence[Event], ahead: int = 8
) -> tuple[Event | None, Event | None]:
    """Which of two draws that differ is new, or gone: the one after which the rest is alike."""
    rest_a, rest_b = [call(e) for e in left], [call(e) for e in right]
    if rest_b and rest_b[1 : 1 + ahead] == rest_a[:ahead]:
        return None, right[0]
    if rest_a and rest_a[1 : 1 + ahead] == rest_b[:ahead]:
        return left[0], None
    return (left[0] if rest_a else None), (right[0] if rest_b else None)


def first_operator(c: TraceComparison, front: Front) -> str:
    """Of the front's step, up to the front; empty where none was seen."""
    a, b = front.pair.a, front.pair.b
    if a is None or b is None:
        return ""

    def before(trace: Trace, end: Event) -> list[Event]:
        return [
            e for e in trace.of("operator")
            if e.step == end.step and e.evaluation == end.evaluation and e.order < end.order
        ]  # fmt: skip

    x, y = novel(before(c.a, a), before(c.b, b))
    found = y or x
    if found is None:
        return ""
    place = "in the backward pass" if front.kind in ("grad", "pgrad") else f"in {named(found.path)}"
    return f"{call(found)} {place}"


def only_on_one_side(s: Scene, *, added: bool) -> list[Module]:
    if added:
        return [s.c.b.modules[path] for path in s.c.alignment.added]
    return [s.c.a.modules[path] for path in s.c.alignment.removed]


def code_on(s: Scene, module: Module, *, added: bool) -> list[CodePlace]:
    return code_of(s.c.b, "b", module) if added else code_of(s.c.a, "a", module)
