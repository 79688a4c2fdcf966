"""The point where two traces part: a tensor that only one side has is followed back along
the data flow to the call that first made one, of operands that both sides have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from celedger.lab.diagnose.trace import Event, Trace

UNWRITTEN = {"empty", "empty_like", "new_empty", "empty_strided"}  # whose results are any memory


class Origin(NamedTuple):
    """The origin of tensors that only one side has. `source`: the first call that makes one of
    operands that the other side has, too. `later`: what goes on from there. `calls`: all of the
    pass. `given`: it was given a tensor that no call has made, and the other side does not have."""

    source: Event | None = None
    later: Sequence[Event] = ()
    calls: Sequence[Event] = ()
    given: bool = False

    def like(self, call: Event) -> Event | None:
        """Return the like of a call of the other side among `later`: best with its arguments."""
        same = [e for e in self.later if (e.name, e.path) == (call.name, call.path)]
        return next((e for e in same if e.bare == call.bare), same[-1] if same else None)


def _counterpart(call: Event, mine: Origin, theirs: Origin) -> Event | None:
    """Return the call of the other side alone that has the function and the operands of a call of
    mine, and other arguments."""
    candidates = [
        [e for e in side.calls if _subject(e) == _subject(call)] for side in (mine, theirs)
    ]
    both = {e.bare for e in candidates[0]}
    return next((e for e in candidates[1] if e.bare not in both), None)


def _subject(call: Event) -> tuple[str, str | None, Sequence[str]]:
    return call.name, call.path, call.raw["i"]


def origin(mine: Trace, theirs: Trace, event: Event) -> Origin:
    """Follow the tensors of an event of a forward pass back. `theirs`: the other side's trace."""
    calls = [e for e in _pass(mine, event) if e.kind == "call" and e.order < event.order]
    produced = {mark for e in _pass(theirs, event) for mark in (*_made(e), *e.raw.get("i", ()))}
    # Others look at a tensor in another way, or at memory that is not written yet.
    working = [e for e in calls if not (_made(e) <= {*e.raw["i"]} or e.name in UNWRITTEN)]
    first = {mark: e.order for e in reversed(working) for mark in _made(e)}
    wanted = _made(event) - produced
    sources: list[Event] = []
    later: list[Event] = []
    given = False
    for call in reversed(working):  # what made an operand comes before
        if not _made(call) & wanted:
            continue
        wanted |= (operands := {mark for mark in call.raw["i"] if mark} - produced)
        follows = any(first.get(mark, call.order) < call.order for mark in operands)
        (later if follows else sources).append(call)
        given = bool(operands) if not follows else given
    return Origin(sources[-1] if sources else None, later, calls, given)


def parting(a: Origin, b: Origin) -> tuple[Event | None, Event | None]:
    """Return the call that is gone and the one that is new. Where the other side makes a like call
    on what came of its own source, either is None, or both are that call with other arguments."""
    gone, new = a.source, b.source
    if gone is not None and new is not None and gone.name == new.name:
        return gone, new
    if gone is not None and (other := _counterpart(gone, a, b)) is not None:
        return gone, other
    if new is not None and (old := _counterpart(new, b, a)) is not None:
        return old, new
    if gone is None or new is None:
        return gone, new
    if (old := a.like(new)) is not None:
        return (gone, None) if old.bare == new.bare else (old, new)
    if (other := b.like(gone)) is not None:
        return (None, new) if other.bare == gone.bare else (gone, other)
    return gone, new


def from_modules(trace: Trace, event: Event) -> set[str]:
    """Return the hashes of what modules returned in the step of an event up to it, and of what was
    computed from that."""
    derived: set[str] = set()
    for e in trace.events[: event.order]:
        of_call = e.kind == "call" and not derived.isdisjoint(e.raw["i"])
        if e.step == event.step and (e.kind == "leave" or of_call):
            derived |= _made(e)
    return derived


def _pass(trace: Trace, event: Event) -> Iterator[Event]:
    """Yield what is computed, and with what, in the pass of an event."""
    for e in trace.of("init", "param", "enter", "leave", "call"):
        if e.kind == "init" or (e.step, e.evaluation) == (event.step, event.evaluation):
            yield e


def _made(event: Event) -> set[str]:
    return {tensor.hash for tensor in event.tensors if tensor.hash}
