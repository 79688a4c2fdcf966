"""Judge the hunks of a change by the values that their lines compute: the options of a trace that
records them (celedger.lab.probes.line_values), and what two traces say. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from keyword import iskeyword
from typing import Any, NamedTuple

from celedger.lab.diagnose.code_change import CodeChange
from celedger.lab.diagnose.difference import Front, TraceComparison
from celedger.lab.diagnose.trace import Event, Trace
from celedger.repo.hunks import Hunk

_OPAQUE, _GRADIENT = 1, 2  # flags of values
_MOST_RANGES = 1000  # they travel in one variable of the environment
_HOLDERS = {"tensor", "array", "items"}  # kinds of values, of which one may hold another's
_VAGUE = {"", "none", "fields"}  # that say little about what they stand for
_INPUT = "<"  # begins the name of what a hunk reads
# Kinds of a first difference that equal values with a gradient do not acquit: `detach` keeps every
# value.
_BACKWARD = frozenset({"grad", "missing", "pgrad"})


class HunkValues(NamedTuple):
    """`equal`: the hunks of which all values that leave them are equal on both sides, up to the
    first difference of the traces. `later`: those that ran only after it, or were given other
    values before they made any. `first`: the one that is the first to make another value of equal
    ones."""

    equal: frozenset[Hunk] = frozenset()
    later: frozenset[Hunk] = frozenset()
    first: Hunk | None = None


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


def hunk_values(c: TraceComparison, front: Front, change: CodeChange) -> HunkValues:
    """Compare the values of each hunk, on both sides up to the first difference."""
    sides = [_by_hunk(c.a, front.pair.a), _by_hunk(c.b, front.pair.b)]
    unread = _OPAQUE | (_GRADIENT if front.kind in _BACKWARD else 0)
    equal, later, first = set(), set(), []
    for number, hunk in enumerate(change.hunks):
        before = [values.get(number, {}) for values, _ in sides]
        leaving = [
            _leaving(change, hunk, side, values) for side, values in zip("ab", before, strict=True)
        ]
        ran_later = not any(before) and any(number in after for _, after in sides)
        made, given = (_first_parting(before, inputs=inputs) for inputs in (False, True))
        if (
            leaving[0]
            and leaving[0].keys() == leaving[1].keys()
            and all(_are_equal(leaving[0][what], leaving[1][what], unread) for what in leaving[0])
        ):
            equal.add(hunk)
        elif ran_later or (given is not None and (made is None or given < made)):
            later.add(hunk)
        elif made is not None:
            first.append((made, number))
    return HunkValues(
        frozenset(equal), frozenset(later), change.hunks[min(first)[1]] if first else None
    )


_Values = Mapping[str, list[Event]]


def _by_hunk(trace: Trace, until: Event | None) -> tuple[Mapping[int, _Values], set[int]]:
    """Return the values up to an event by hunk and by what they are, and the hunks with later
    ones."""
    end = len(trace.events) if until is None else until.order + 1
    before: dict[int, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    after = set()
    for event in trace.of("value"):
        if event.order < end:
            before[event.raw["h"]][event.name].append(event)
        else:
            after.add(event.raw["h"])
    return before, after


def _leaving(change: CodeChange, hunk: Hunk, side: str, values: _Values) -> _Values:
    """Return the values that others may read: no inputs, and no results of a lambda where another
    value tells of them."""

    def leaves(what: str) -> bool:
        variable = what.isidentifier() and not iskeyword(what)
        return what[0] != _INPUT and (not variable or change.reads_elsewhere(hunk, side, what))

    leaving = {what: events for what, events in values.items() if leaves(what)}
    return {w: e for w, e in leaving.items() if w != "lambda"} or leaving


def _are_equal(a: Collection[Event], b: Collection[Event], unread: int) -> bool:
    """Return True if all values are equal bit by bit. `unread`: flags of those that prove
    nothing."""
    last = [[*events][-1].raw for events in (a, b)]
    same = all(last[0][key] == last[1][key] for key in ("m", "v", "s"))
    return same and not (last[0]["u"] | last[1]["u"]) & unread and _parted(a, b) is None


def _parted(a: Iterable[Event], b: Iterable[Event]) -> int | None:
    """Return the order on side b of the first values that differ."""
    before = {event.raw["m"]: event.raw for event in a}
    return next(
        (
            event.order for event in b
            if (old := before.get(event.raw["m"])) is not None and _differ(old, event.raw)
        ), None,
    )  # fmt: skip


def _differ(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return True for other values, unless they may be the same ones held otherwise, or are a
    message."""
    kinds = {raw["s"].split(" ")[0] for raw in (a, b)}
    held_otherwise = len(kinds) > 1 and (kinds <= _HOLDERS or not kinds.isdisjoint(_VAGUE))
    return a["v"] != b["v"] and not held_otherwise and not ("(" in a["q"] and "text" in kinds)


def _first_parting(sides: Sequence[_Values], *, inputs: bool) -> int | None:
    """Return when a hunk is first given, or first makes, another value on side b."""
    a, b = sides
    names = (what for what in a.keys() & b.keys() if (what[0] == _INPUT) == inputs)
    orders = [order for what in names if (order := _parted(a[what], b[what])) is not None]
    return min(orders, default=None)
