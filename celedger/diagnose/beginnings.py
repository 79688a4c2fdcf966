"""Judges a difference in what a training begins with: its weights, or its data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from celedger.diagnose.difference import Comparison, Front, Pair
from celedger.diagnose.distance import distance, same_law, spread
from celedger.diagnose.finding import (
    VIEWS,
    Finding,
    Phase,
    Place,
    Sureness,
    call,
    calls_changed,
    code_of,
    figure,
    named,
    novel,
    places_of,
    share,
    some,
)
from celedger.diagnose.trace import Digests, Event, Tensor, Trace


def owner_of(path: str) -> str:
    """The module that holds a parameter or buffer."""
    head, dot, _ = path.rpartition(".")
    if dot:
        return head
    return path.partition(":")[0] + ":" if ":" in path else ""


def judge_init(c: Comparison, front: Front) -> Finding:
    """Weights of another law are a finding; weights of the same law with other numbers are drawn
    anew, and the finding is what draws before them."""
    pairs = [pair for pair in c.pairs if pair.one.kind == "init" and c.differs(pair)]
    wrong = [pair for pair in pairs if not _same_law(pair)]
    if not wrong:
        return _redrawn(c, front, pairs)
    pair = wrong[0]
    a, b = pair.a, pair.b
    assert a is not None and b is not None and b.path is not None
    x, y = a.tensors[0], b.tensors[0]
    far = distance(x, y)
    path = owner_of(b.path)
    module = c.b.modules.get(path)
    role = "buffer" if b.name == "buffer" else "initialisation of"
    others = sorted({str(p.one.path) for p in wrong[1:]})
    said = f"{role} `{b.path}` differs{_law(x, y)}"
    sure = Sureness.SURE
    how = f"; `{_made(b)}` writes it" if _made(b) and not _made(a) else ""
    if _made(a) and _made(a) != _made(b):
        how = f"; `{_made(a)}` wrote it, now {f'`{_made(b)}`' if _made(b) else 'nothing'} does"
    if others:
        said += f", and that of {some(others)}"
    places = [
        *places_of(c.b, "b", b, "initialised"), *places_of(c.a, "a", a, "initialised"),
        *_registered(c.b, "b", b), *_registered(c.a, "a", a), *code_of(c.b, "b", module),
    ]  # fmt: skip
    facts = [
        f"drawn anew, with the same law: {some([str(p.one.path) for p in pairs if p not in wrong])}"
    ]
    return Finding(
        Phase.INIT, 0, path, module.short if module else "", f"`{b.path}`", "initialisation",
        said + how, far, _made(b), tuple(facts if len(pairs) > len(wrong) else ()), tuple(places),
        sure,
    )  # fmt: skip


def _registered(trace: Trace, side: str, event: Event) -> list[Place]:
    frames = trace.frames(event.raw.get("v", -1))
    return [Place(side, "made a parameter", frames)] if frames else []


def _made(event: Event) -> str:
    return f"{event.raw['o']}({event.literals})" if "o" in event.raw else ""


def _same_law(pair: Pair) -> bool:
    assert pair.a is not None and pair.b is not None
    return pair.one.name == "parameter" and same_law(pair.a.tensors[0], pair.b.tensors[0])


def _law(x: Tensor, y: Tensor) -> str:
    if x.shape != y.shape:
        return f": shape {list(x.shape)} → {list(y.shape)}"
    if x.dtype != y.dtype:
        return f": {x.dtype} → {y.dtype}"
    far = distance(x, y)
    if far.ratio == far.ratio:
        return f": it is {figure(far.ratio)} times what it was"
    one, other = spread(x), spread(y)
    if one.deviation != other.deviation and max(one.deviation, other.deviation) > 0:
        said = f": standard deviation {figure(one.deviation)} → {figure(other.deviation)}"
        if abs(other.mean - one.mean) > 0.1 * max(one.deviation, other.deviation):
            said += f", mean {figure(one.mean)} → {figure(other.mean)}"
        return said
    if one.mean != other.mean:
        return f": mean {figure(one.mean)} → {figure(other.mean)}"
    return f" in {share(far.share)} of its elements"


def _redrawn(c: Comparison, front: Front, pairs: Sequence[Pair]) -> Finding:
    first = pairs[0].one
    assert first.path is not None
    path = owner_of(first.path)
    a, b = first_other_draw(c)
    structure = [c.b.modules[p] for p in c.alignment.added if c.b.modules[p].shapes]
    gone = [c.a.modules[p] for p in c.alignment.removed if c.a.modules[p].shapes]
    said = "random numbers are drawn in another order while the model is made"
    places = [*places_of(c.b, "b", b, "draws"), *places_of(c.a, "a", a, "draws")]
    sure, cause, operator = Sureness.LIKELY, "random", ""
    if structure or gone:
        module = (structure or gone)[0]
        verb = "added" if structure else "removed"
        said = f"{named(module.path)} ({module.short}) was {verb}; {said} from there"
        side, trace = ("b", c.b) if structure else ("a", c.a)
        places = [*code_of(trace, side, module), *places]
        sure, cause, path = Sureness.SURE, verb, module.path
    elif a is not None and b is not None and call(a) == call(b):
        said = (
            f"other random numbers from `{call(b)}` on: the seed, or what drew before it, differs"
        )
    elif b is not None or a is not None:
        said += ": " + _drawn(a, b)
        operator, sure = call(b or a or first), Sureness.SURE
    return Finding(
        Phase.INIT, 0, path, "", f"`{first.path}`", cause, said, None, operator,
        (f"{len(pairs)} parameters have other numbers of the same law, first `{first.path}`",),
        tuple(places), sure,
    )  # fmt: skip


def _drawn(a: Event | None, b: Event | None) -> str:
    if a is None and b is not None:
        return f"`{call(b)}` is new"
    if b is None and a is not None:
        return f"`{call(a)}` is gone"
    assert a is not None and b is not None
    return f"`{call(b)}` where `{call(a)}` was"


def draws(trace: Trace) -> Iterator[Event]:
    return (e for e in trace.of("draw", "call", "leave") if e.drew)


def first_other_draw(c: Comparison, upto: int | None = None) -> tuple[Event | None, Event | None]:
    """The first place where the two sides draw differently: by what is drawn, else by the state
    of the generators after it. `upto`: not beyond this step."""
    left = [e for e in draws(c.a) if upto is None or e.step <= upto]
    right = [e for e in draws(c.b) if upto is None or e.step <= upto]
    for number in range(max(len(left), len(right))):
        a = left[number] if number < len(left) else None
        b = right[number] if number < len(right) else None
        if a is None or b is None or (call(a), a.raw["y"]) != (call(b), b.raw["y"]):
            return _telling(left, right, number)
    return None, None


def _telling(
    left: Sequence[Event], right: Sequence[Event], number: int
) -> tuple[Event | None, Event | None]:
    """Which of two draws that differ is new, or gone: the one after which the rest is alike."""
    rest_a, rest_b = [call(e) for e in left[number:]], [call(e) for e in right[number:]]
    ahead = 8
    if rest_b[1 : 1 + ahead] == rest_a[:ahead] and rest_b:
        return None, right[number]
    if rest_a[1 : 1 + ahead] == rest_b[:ahead] and rest_a:
        return left[number], None
    return (left[number] if rest_a else None), (right[number] if rest_b else None)


# --- data


def judge_data(c: Comparison, front: Front) -> Finding:
    """The batch that reaches the model differs."""
    pair = front.pair
    a, b = pair.a, pair.b
    assert a is not None and b is not None
    x, y = a.tensors[0], b.tensors[0]
    for one, other in zip(a.tensors, b.tensors, strict=False):
        if not one.same(other):
            x, y = one, other
            break
    far = distance(x, y)
    cause, said = _batches(c, x, y)
    step = pair.step
    facts, places = [], []
    mine, theirs = _loading(c.a, step), _loading(c.b, step)
    p, q = novel(mine, theirs)
    gone, fresh = calls_changed(mine, theirs)
    if cause == "order" and _drew_before(c, step):
        before = first_other_draw(c, step)
        if before != (None, None):
            said += f", because random numbers are drawn in another order: {_drawn(*before)}"
            places += [
                *places_of(c.b, "b", before[1], "draws"),
                *places_of(c.a, "a", before[0], "draws"),
            ]
    elif cause == "data" and (gone or fresh):
        telling = next((e for e in fresh if e.name not in VIEWS), (fresh or gone)[0])
        said += f"; `{call(telling)}` is {'new' if fresh else 'gone'}"
    facts += [f"no longer called: {call(event)}" for event in gone[:3]]
    facts += [f"newly called: {call(event)}" for event in fresh[:3]]
    for events, side, trace in ((fresh, "b", c.b), (gone, "a", c.a)):
        for event in events[:4]:
            places += places_of(trace, side, event, "call")
    places += [*places_of(c.b, "b", q, "call"), *places_of(c.a, "a", p, "call")]
    places += [*places_of(c.b, "b", b, "training loop"), *places_of(c.a, "a", a, "training loop")]
    sure = Sureness.SURE if cause != "data" else Sureness.LIKELY
    return Finding(
        Phase.DATA, step, None, "", f"input of {named(b.path)}", cause, said, far,
        call(q) if q is not None else "", tuple(facts), tuple(places), sure,
    )  # fmt: skip


def _loading(trace: Trace, step: int) -> list[Event]:
    """Calls outside of modules that make batches. Those of step 0's were made before the trace
    began, those of step 1's are like them."""
    wanted = max(step, 1)
    found = []
    for event in trace.events:
        if event.step == wanted and not event.evaluation:
            if event.kind == "enter":
                break
            if event.kind == "call" and event.path is None:
                found.append(event)
    return found


def _drew_before(c: Comparison, step: int) -> bool:
    """Whether the generators' states already differed when the step began."""
    if step == 0:
        marks = [next((dict(e.raw["x"]) for e in t.of("random")), None) for t in (c.a, c.b)]
        return marks[0] != marks[1]
    before = [t.pulses[step - 1].random for t in (c.a, c.b) if len(t.pulses) >= step]
    return len(before) == 2 and before[0] != before[1]


def _batches(c: Comparison, x: Tensor, y: Tensor) -> tuple[str, str]:
    if x.shape[1:] == y.shape[1:] and x.shape[:1] != y.shape[:1]:
        return "batch-size", f"the batch has {y.shape[0]} rows instead of {x.shape[0]}"
    if x.shape != y.shape:
        return "shape", f"the input has shape {list(y.shape)} instead of {list(x.shape)}"
    if x.dtype != y.dtype:
        return "dtype", f"the input is {y.dtype} instead of {x.dtype}"
    mine, theirs = c.a.rows["input"], c.b.rows["input"]
    number = first_other(mine, theirs)
    if number is not None:
        if _multiset(mine[number]) == _multiset(theirs[number]):
            return "order", "the rows of a batch are in another order"
        shared = _shared(np.concatenate(mine), np.concatenate(theirs))
        if shared >= 0.5:
            if shared > 0.99:
                return "order", "the data come in another order: the same rows, in other batches"
            return "data", f"other rows are drawn: {share(shared)} of them are the same"
    far = distance(x, y)
    if far.ratio == far.ratio:
        return "scale", f"the input is {figure(far.ratio)} times what it was"
    one, other = spread(x), spread(y)
    if len(x.values) == x.size and np.array_equal(np.sort(x.values), np.sort(y.values)):
        return (
            "axes",
            "the input has the same values in other places: an axis is swapped or flipped",
        )
    if one.deviation and abs(float(np.corrcoef(x.values, y.values)[0, 1])) > 0.99999:
        slope = other.deviation / one.deviation
        shift = other.mean - slope * one.mean
        return "scale", f"the input is scaled by {figure(slope)} and shifted by {figure(shift)}"
    return "data", f"the input differs in {share(far.share)} of its elements"


def first_other(mine: Sequence[Digests], theirs: Sequence[Digests]) -> int | None:
    for number, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        if not np.array_equal(one, other):
            return number
    return None


def _multiset(rows: Digests) -> list[int]:
    return [int(row) for row in np.sort(rows)]


def _shared(mine: Digests, theirs: Digests) -> float:
    """The share of rows that both have, counting repeats, of the shorter."""
    names_a, counts_a = np.unique(mine, return_counts=True)
    names_b, counts_b = np.unique(theirs, return_counts=True)
    _, at_a, at_b = np.intersect1d(names_a, names_b, return_indices=True)
    both = int(np.minimum(counts_a[at_a], counts_b[at_b]).sum())
    return both / max(1, min(len(mine), len(theirs)))
