"""Rules of the table of causes (celedger.diagnose.causes) on what a step starts with: its
weights and its data."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from celedger.diagnose.difference import Pair
from celedger.diagnose.distance import distance, same_law, spread
from celedger.diagnose.finding import (
    CodePlace,
    call,
    code_of,
    figure,
    named,
    owner_of,
    places_of,
    share,
    some,
)
from celedger.diagnose.scene import RuleAnswer, Scene, code_on, only_on_one_side
from celedger.diagnose.trace import Event, Tensor, Trace

_FEW = 2  # elements: no distribution can be told from so few
_DRAWING = ("rand", "normal", "uniform", "multinomial", "bernoulli")
REORDERED = "random numbers are drawn in another order while the model is made"


# --- weights at the start ------------------------------------------------------------------------


def _other_weights(s: Scene) -> list[Pair]:
    return [p for p in s.c.pairs if p.one.kind == "init" and s.c.differs(p)]


def _is_redrawn(pair: Pair) -> bool:
    """Return True if a parameter has other values of the same distribution. A few values have
    none: they count as redrawn where the same call drew them."""
    assert pair.a is not None and pair.b is not None
    x, y = pair.a.tensors[0], pair.b.tensors[0]
    if pair.one.name != "parameter":
        return False
    writers = [str(event.raw.get("o", "")) for event in (pair.a, pair.b)]
    if x.size <= _FEW and (x.shape, x.dtype) == (y.shape, y.dtype) and writers[0] == writers[1]:
        return any(word in writers[0] for word in _DRAWING) or same_law(x, y)
    return same_law(x, y)


def wrong_weights(s: Scene) -> RuleAnswer | None:
    pairs = _other_weights(s)
    wrong = [pair for pair in pairs if not _is_redrawn(pair)]
    if not wrong:
        return None
    a, b = wrong[0].a, wrong[0].b
    assert a is not None and b is not None and b.path is not None
    path = owner_of(b.path)
    role = "buffer" if b.name == "buffer" else "initialisation of"
    sentence = f"{role} `{b.path}` differs{_distribution(a.tensors[0], b.tensors[0])}"
    if others := sorted({str(p.one.path) for p in wrong[1:]}):
        sentence += f", and that of {some(others)}"
    old, new = (f"{e.raw['o']}({e.literals})" if "o" in e.raw else "" for e in (a, b))
    if new and not old:
        sentence += f"; `{new}` writes it"
    if old and old != new:
        sentence += f"; `{old}` wrote it, now {f'`{new}`' if new else 'nothing'} does"
    places = [
        *places_of(s.c.b, "b", b, "initialised"), *places_of(s.c.a, "a", a, "initialised"),
        *_made(s.c.b, "b", b), *_made(s.c.a, "a", a), *code_of(s.c.b, "b", s.module(path)),
    ]  # fmt: skip
    rest = [str(p.one.path) for p in pairs if p not in wrong]
    facts = [f"drawn anew, with the same distribution: {some(rest)}"] if rest else []
    far = distance(a.tensors[0], b.tensors[0])
    return RuleAnswer(sentence, path, places, f"`{b.path}`", new, facts, far=far)


def _made(trace: Trace, side: str, event: Event) -> list[CodePlace]:
    frames = trace.frames(event.raw.get("v", -1))
    return [CodePlace(side, "made a parameter", frames)] if frames else []


def _distribution(x: Tensor, y: Tensor) -> str:
    if x.shape != y.shape:
        return f": shape {list(x.shape)} → {list(y.shape)}"
    if x.dtype != y.dtype:
        return f": {x.dtype} → {y.dtype}"
    far = distance(x, y)
    if far.ratio == far.ratio:
        return f": it is {figure(far.ratio)} times what it was"
    one, other = spread(x), spread(y)
    if one.deviation != other.deviation and max(one.deviation, other.deviation) > 0:
        moved = abs(other.mean - one.mean) > 0.1 * max(one.deviation, other.deviation)
        means = f", mean {figure(one.mean)} → {figure(other.mean)}" if moved else ""
        return f": standard deviation {figure(one.deviation)} → {figure(other.deviation)}{means}"
    if one.mean != other.mean:
        return f": mean {figure(one.mean)} → {figure(other.mean)}"
    return f" in {share(far.share)} of its elements"


def redrawn(s: Scene, sentence: str, **more: object) -> RuleAnswer:
    """Weights of the same distribution with other numbers: what draws before them is the cause."""
    a, b = s.other_draw
    pairs = _other_weights(s)
    first = pairs[0].one.path
    facts = [
        f"{len(pairs)} parameters have other numbers of the same distribution, first `{first}`"
    ]
    places = [*places_of(s.c.b, "b", b, "draws"), *places_of(s.c.a, "a", a, "draws")]
    module = owner_of(str(first))
    return replace(RuleAnswer(sentence, module, places, f"`{first}`", facts=facts), **more)  # type: ignore[arg-type]


def module_drawn(s: Scene, *, added: bool) -> RuleAnswer | None:
    modules = [module for module in only_on_one_side(s, added=added) if module.shapes]
    if not modules:
        return None
    module = modules[0]
    answer = redrawn(
        s, f"{named(module.path)} ({module.short}) was {'added' if added else 'removed'}; "
        f"{REORDERED} from there", module=module.path,
    )  # fmt: skip
    return replace(answer, places=[*code_on(s, module, added=added), *answer.places])


def drawn(s: Scene) -> str:
    a, b = s.other_draw
    if a is None or b is None:
        event, verb = (b, "new") if a is None else (a, "gone")
        assert event is not None
        return f"`{call(event)}` is {verb}"
    return f"`{call(b)}` where `{call(a)}` was"


# --- data ----------------------------------------------------------------------------------------


def other_batch(s: Scene) -> tuple[list[int], list[int]] | None:
    """The rows of the first batch that differs, sorted."""
    for x, y in zip(s.c.a.rows["input"], s.c.b.rows["input"], strict=False):
        if not np.array_equal(x, y):
            return np.sort(x).tolist(), np.sort(y).tolist()
    return None


def shared_rows(s: Scene) -> float:
    """The share of all rows that both sides have, counting repeats, of the shorter."""
    mine, theirs = (np.concatenate(trace.rows["input"]).tolist() for trace in (s.c.a, s.c.b))
    both = sum((Counter(mine) & Counter(theirs)).values())
    return both / max(1, min(len(mine), len(theirs)))


def data_order(s: Scene) -> RuleAnswer | None:
    if (rows := other_batch(s)) is None:
        return None
    if rows[0] == rows[1]:
        sentence = "the rows of a batch are in another order"
    elif shared_rows(s) > 0.99:
        sentence = "the data come in another order: the same rows, in other batches"
    else:
        return None
    if not _drew_before(s) or s.other_draw == (None, None):
        return RuleAnswer(sentence)
    a, b = s.other_draw
    places = [*places_of(s.c.b, "b", b, "draws"), *places_of(s.c.a, "a", a, "draws")]
    sentence += f", because random numbers are drawn in another order: {drawn(s)}"
    return RuleAnswer(sentence, places=places)


def _drew_before(s: Scene) -> bool:
    """Return True if the generators' states already differed when the step began."""
    traces = (s.c.a, s.c.b)
    if s.step == 0:
        marks = [next((dict(e.raw["x"]) for e in t.of("random")), None) for t in traces]
        return marks[0] != marks[1]
    before = [t.pulses[s.step - 1].random for t in traces if len(t.pulses) >= s.step]
    return len(before) == 2 and before[0] != before[1]


def scaled_input(s: Scene) -> str | None:
    x, y = s.x, s.y
    one, other = spread(x), spread(y)
    if not one.deviation or abs(float(np.corrcoef(x.values, y.values)[0, 1])) <= 0.99999:
        return None
    slope = other.deviation / one.deviation
    shift = other.mean - slope * one.mean
    return f"the input is scaled by {figure(slope)} and shifted by {figure(shift)}"
