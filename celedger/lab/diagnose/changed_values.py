"""Judge the hunks of a change by the values that their lines compute: the options of a trace that
records them (celedger.lab.probes.line_values), and what two traces say. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from keyword import iskeyword
from typing import Any

from celedger.lab.diagnose.code_change import CodeChange
from celedger.lab.diagnose.difference import Front, TraceComparison
from celedger.lab.diagnose.trace import FORKED, Event, Trace
from celedger.repo.hunks import Hunk

_OPAQUE, _GRADIENT, _TEXT = 1, 2, 4  # flags of values
_MOST_RANGES = 1000  # they travel in one variable of the environment
_HOLDERS = {"tensor", "array", "items"}  # kinds of values, of which one may hold another's
_VAGUE = {"", "none", "fields"}  # that say little about what they stand for
_DRAWN = "random state"  # the name of what a hunk makes of it
_RETURN = "return "  # begins the name of what a function returns
_INPUT = "<"  # begins the name of what a hunk reads
# Kinds of a first difference that equal values with a gradient do not acquit: `detach` keeps every
# value.
_BACKWARD = frozenset({"grad", "missing", "pgrad"})


_Values = Mapping[str, list[Event]]


class Verdict(IntEnum):
    """What the values of a hunk say of it, by how likely it is the cause."""

    FIRST = 0  # it is the first to make another value of equal ones, or runs at the difference
    UNKNOWN = 1
    RENAMED = 2  # unknown, and nothing in it but other names
    LATER = 3  # it ran after the difference or on one side, or was given other values before
    EQUAL = 4  # all values that leave it are equal on both sides, up to the difference


def recorded_values(change: CodeChange, side: str) -> dict[str, Any]:
    """Return the options of a trace that records the values of the changed lines of one side; none
    where at most one hunk can be the cause."""
    if sum(not change.same(hunk) for hunk in change.hunks) < 2:
        return {}
    changed: dict[str, list[list[int]]] = defaultdict(list)
    names = {}
    for number, hunk in enumerate(change.hunks):
        path = hunk.path(side)
        if path.endswith(".py") and (ranges := change.statements(hunk, side)):
            changed[path] += [[number, *one] for one in ranges]
            names[number] = sorted(change.variables(hunk, side))
    many = sum(map(len, changed.values())) > _MOST_RANGES
    return {} if many else {"early": "line_values", "changed": changed, "names": names}


def unsteady_values(one: Trace, other: Trace) -> set[tuple[int, str]]:
    """Return the values, by hunk and name, that two runs of one side make otherwise: a clock's, the
    name of a temporary folder."""
    before, after = (_by_hunk(trace, None)[0] for trace in (one, other))
    return {
        (number, what)
        for number in before.keys() & after.keys()
        for what in before[number].keys() & after[number].keys()
        if _parted(before[number][what], after[number][what]) is not None
    }


def hunk_values(
    c: TraceComparison, front: Front, change: CodeChange, unsteady: Collection[tuple[int, str]] = ()
) -> dict[Hunk, Verdict]:
    """Compare the values of each hunk, on both sides up to the first difference of the traces.
    `unsteady`: those that tell nothing."""
    a, b, one = front.pair.a, front.pair.b, front.pair.one
    ends = ((c.a, a or _without(c.a, c.b, one)), (c.b, b or _without(c.b, c.a, one)))
    sides = [_by_hunk(trace, event, unsteady) for trace, event in ends]
    unread = _OPAQUE | (_GRADIENT if front.kind in _BACKWARD else 0)
    verdicts, makers, sharers = {}, [], []
    for number, hunk in enumerate(change.hunks):
        before = _with_equal_names(*(values.get(number, {}) for values, _ in sides))
        leaving = [
            _leaving(change, hunk, side, values) for side, values in zip("ab", before, strict=True)
        ]
        ran = [number in values or number in after for values, after in sides]
        ran_later = not any(before) and any(ran)
        # What runs on one side alone, though both have it, is kept from running elsewhere.
        one_sided = len({*ran}) > 1 and all(change.waits_for_a_call(hunk, side) for side in "ab")
        # As is what runs more often on one, equal as far as both ran.
        one_sided |= 0 < min(runs := [*map(_runs, before)]) < max(runs) and change.is_plain(hunk)
        given = min(_partings(before, inputs=True), default=None)
        partings = _partings(leaving if all(leaving) else before, inputs=False)
        if change.renames(hunk):  # the texts of a value may be such names
            before = leaving = [
                {k: e for k, e in values.items() if not any(one.raw["u"] & _TEXT for one in e)}
                for values in before
            ]
            partings = _partings(before, inputs=False)
        draws = [values[_DRAWN] for values in before if _DRAWN in values]
        if len(draws) == 1 and all(before):
            firsts = draws if _DRAWN in before[1] else before[1].values()
            partings.append((min(events[0].order for events in firsts), False))
        # First weights are read when the first module is called; what runs then made none of them.
        running = front.kind != "init" and all(
            _is_running(trace, at, values.get(number, {}), after.get(number))
            for (trace, at), (values, after) in zip(ends, sides, strict=True)
        )
        # In another block it runs more or less often, and is given other values by that alone.
        moved = change.redirects(hunk) and min(runs) < max(runs)
        given = None if moved else given
        if (running or moved) and not partings:
            partings.append((len(c.b.events), False))
        if (
            leaving[0]
            and not running
            and leaving[0].keys() == leaving[1].keys()
            and all(_are_equal(leaving[0][what], leaving[1][what], unread) for what in leaving[0])
        ):
            verdicts[hunk] = Verdict.EQUAL
        elif (
            ran_later
            or (one_sided and not partings)
            or (given and given < min(partings, default=(math.inf, False)))
        ):
            verdicts[hunk] = Verdict.LATER
        elif made := [at for at, only_shared in partings if not only_shared]:
            event = c.b.events[min(made)] if min(made) < len(c.b.events) else None
            if event is None or not _is_moved(event, sides[0][0]):
                makers.append((event is not None and event.raw["u"] & _OPAQUE, min(made), number))
        elif partings:
            sharers.append((0, min(partings)[0], number))
    # What is kept of a training changes with it where it only shares memory.
    after_training = front.kind == "report" or front.pair.one.evaluation
    if first := makers or (sharers if after_training else []):
        verdicts[change.hunks[min(first)[-1]]] = Verdict.FIRST
    return verdicts


def _with_equal_names(a: _Values, b: _Values) -> list[_Values]:
    """Return both with one name for what the only function returns, which may have been renamed."""
    old, new = ([what for what in values if what.startswith(_RETURN)] for values in (a, b))
    if len(old) == len(new) == 1:
        b = {old[0] if what == new[0] else what: events for what, events in b.items()}
    return [a, b]


def _without(trace: Trace, other: Trace, event: Event) -> Event | None:
    """Return the backward pass on the side without a gradient that arrives on the other."""
    here, there = ([e for e in one.of("loss") if e.step == event.step] for one in (trace, other))
    passes = sum(loss.order < event.order for loss in there)
    return here[passes - 1] if 0 < passes <= len(here) else None


def _runs(values: _Values) -> int:
    """Return how often a hunk has made its values."""
    made = (
        event.raw["m"] for what, events in values.items() if what[0] != _INPUT for event in events
    )
    return max(made, default=0)


def _is_moved(made: Event, others: Mapping[int, _Values]) -> bool:
    """Return True if another hunk gives the variable this value on the other side."""
    return any(
        event.raw["d"] == made.raw["d"]
        for number, values in others.items() if number != made.raw["h"]
        for event in values.get(made.name, ())
    )  # fmt: skip


def _by_hunk(
    trace: Trace, until: Event | None, unsteady: Collection[tuple[int, str]] = ()
) -> tuple[Mapping[int, _Values], Mapping[int, Event]]:
    """Return the values up to an event by hunk and by what they are, and the next of each hunk."""
    end = len(trace.events) if until is None else until.order + 1
    before: dict[int, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    after: dict[int, Event] = {}
    for event in trace.of("value"):
        if (event.raw["h"], event.name) in unsteady:
            continue
        if event.order < end:
            before[event.raw["h"]][event.name].append(event)
        else:
            after.setdefault(event.raw["h"], event)
    return before, after


def _is_running(
    trace: Trace, until: Event | None, values: _Values, following: Event | None
) -> bool:
    """Return True if a hunk has read what it needs, called no module since, and not yet made its
    values."""
    read = max((e.order for events in values.values() for e in events), default=None)
    if read is None or until is None or following is None:
        return False
    begun = trace.events[read].name[0] == _INPUT != following.name[0]
    modules = (e.order for e in trace.of("enter", "leave"))
    return begun and not any(read < order < until.order for order in modules)


def _leaving(change: CodeChange, hunk: Hunk, side: str, values: _Values) -> _Values:
    """Return the values that others may read: no inputs, and no results of a lambda where another
    value tells of them."""

    def leaves(what: str) -> bool:
        name = what.partition(FORKED)[0]
        variable = name.isidentifier() and not iskeyword(name)
        return what[0] != _INPUT and (not variable or change.reads_elsewhere(hunk, side, name))

    leaving = {what: events for what, events in values.items() if leaves(what)}
    return {w: e for w, e in leaving.items() if not w.startswith("lambda")} or leaving


def _are_equal(a: Collection[Event], b: Collection[Event], unread: int) -> bool:
    """Return True if all values are equal bit by bit. `unread`: flags of those that prove
    nothing."""
    last = [[*events][-1].raw for events in (a, b)]
    same = all(last[0][key] == last[1][key] for key in ("m", "v", "s"))
    return same and not (last[0]["u"] | last[1]["u"]) & unread and _parted(a, b) is None


def _parted(a: Iterable[Event], b: Iterable[Event]) -> tuple[int, bool] | None:
    """Return the order on side b of the first values that differ, else of the first that share
    memory on one side only, and whether it is the latter."""
    before = {event.raw["m"]: event.raw for event in a}
    pairs = [(before[event.raw["m"]], event) for event in b if event.raw["m"] in before]
    values = (event.order for old, event in pairs if _differ(old, event.raw))
    if (order := next(values, None)) is not None:
        return order, False
    memory = (e.order for old, e in pairs if ("shared" in old["s"]) != ("shared" in e.raw["s"]))
    return (order, True) if (order := next(memory, None)) is not None else None


def _differ(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return True for other values, unless they may be the same ones held otherwise, or are a
    message."""
    if "z" in a and a["z"] == b.get("z"):  # containers that were filled to be equal
        return False
    kinds = {raw["s"].split(" ")[0] for raw in (a, b)}
    held_otherwise = len(kinds) > 1 and (kinds <= _HOLDERS or not kinds.isdisjoint(_VAGUE))
    return a["v"] != b["v"] and not held_otherwise and not ("(" in a["q"] and "text" in kinds)


def _draw_alike(what: str, a: Sequence[Event], b: Sequence[Event]) -> bool:
    """Return True for random numbers that are drawn at once on one side, in parts on the other."""
    one, other = ([event.raw["d"] for event in events] for events in (a, b))
    within = one[-1] == other[-1] and ({*one} <= {*other} or {*other} <= {*one})
    return within and what in (_DRAWN, "<random")


def _partings(sides: Sequence[_Values], *, inputs: bool) -> list[tuple[int, bool]]:
    """Return what `_parted` does of the values that a hunk is given, or makes."""
    a, b = sides
    names = (
        what for what in a.keys() & b.keys()
        if (what[0] == _INPUT) == inputs and not _draw_alike(what, a[what], b[what])
    )  # fmt: skip
    return [*filter(None, (_parted(a[what], b[what]) for what in names))]
