"""Rules of the table of causes (celedger.lab.diagnose.causes) on what a step starts with: its
weights and its data. A rule returns a sentence, or fields of the finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from celedger.lab.diagnose.difference import Pair
from celedger.lab.diagnose.difference_context import DifferenceContext
from celedger.lab.diagnose.finding import figure, named, places_of_site, share, some
from celedger.lab.diagnose.tensor_distance import distance, same_distribution, spread
from celedger.lab.diagnose.trace import Digests, Tensor

_FEW = 2  # elements: too few to compare distributions
_DRAWN_ANEW = 0.9  # of the elements: a draw keeps none, and other lines of code may set some
_DRAWING = ("rand", "normal", "uniform", "multinomial", "bernoulli")
REORDERED = "random numbers are drawn in another order while the model is made"


# --- weights


def _is_redrawn(pair: Pair) -> bool:
    """Return True if a parameter has other values of the same distribution: hardly one is kept.
    Too few values to compare distributions count as redrawn if the same call drew them."""
    assert pair.a is not None and pair.b is not None
    x, y = pair.a.tensors[0], pair.b.tensors[0]
    writers = [str(event.raw.get("o", "")) for event in (pair.a, pair.b)]
    few = x.size <= _FEW and (x.shape, x.dtype) == (y.shape, y.dtype) and writers[0] == writers[1]
    drawn = few and any(word in writers[0] for word in _DRAWING)
    anew = same_distribution(x, y) and distance(x, y).share > _DRAWN_ANEW
    return pair.one.name == "parameter" and (drawn or anew)


def other_tie(s: DifferenceContext) -> dict[str, Any] | None:
    """Describe a parameter or buffer that is the same as another on one side only."""
    ties = (
        (pair, tie) for pair in s.comparison.differing("init") if (tie := s.comparison.ties(pair))
    )
    pair, (old, new) = next(ties, (None, ("", "")))
    if pair is None or pair.a is None or pair.b is None:
        return None
    path = str(pair.b.path)
    verb = "is no longer" if old and not new else "is now"
    tied = "tied to" if pair.b.name == "parameter" else "in the memory of"
    sentence = f"`{path}` {verb} {tied} `{new or old}`" + (f", not `{old}`" if old and new else "")
    places = s.both_places(pair.a, pair.b, "made a parameter", "v")
    return {
        "sentence": sentence, "module": s.comparison.b.owner(path), "tensor": f"`{path}`",
        "places": places if new else places[::-1],
    }  # fmt: skip


def wrong_weights(s: DifferenceContext) -> dict[str, Any] | None:
    # What is tied to another tensor is that tensor.
    pairs = [p for p in s.comparison.differing("init", step=s.step) if "tied" not in p.one.raw]
    wrong = [pair for pair in pairs if not _is_redrawn(pair)]
    if not wrong:
        return None
    a, b = wrong[0].a, wrong[0].b
    assert a is not None and b is not None and b.path is not None
    module = s.comparison.b.owner(b.path)
    role = "buffer" if b.name == "buffer" else "initialisation of"
    sentence = f"{role} `{b.path}` differs{_shift(a.tensors[0], b.tensors[0])}"
    if others := sorted({str(p.one.path) for p in wrong} - {b.path}):
        sentence += f", and that of {some(others)}"
    old, new = (f"{e.raw['o']}({e.arguments})" if "o" in e.raw else "" for e in (a, b))
    if new and not old:
        sentence += f"; `{new}` writes it"
    if old and old != new:
        sentence += f"; `{old}` wrote it, now {f'`{new}`' if new else 'nothing'} does"
    places = s.both_places(a, b, "initialised")
    places += s.both_places(a, b, "computed", "c")
    places += s.both_places(a, b, "made a parameter", "v")
    rest = [str(p.one.path) for p in pairs if p not in wrong]
    created = owner.created if (owner := s.module(module)) is not None else -1
    return {
        "sentence": sentence, "module": module, "tensor": f"`{b.path}`", "operator": new,
        "places": [*places, *places_of_site(s.comparison.b, created, "constructed")],
        "facts": [f"drawn anew, with the same distribution: {some(rest)}"] if rest else [],
        "distance": distance(a.tensors[0], b.tensors[0]),
    }  # fmt: skip


def _shift(x: Tensor, y: Tensor) -> str:
    if x.shape != y.shape:
        return f": shape {list(x.shape)} → {list(y.shape)}"
    if x.dtype != y.dtype:
        return f": {x.dtype} → {y.dtype}"
    far = distance(x, y)
    if far.ratio == far.ratio:
        return f": it is {figure(far.ratio)} times what it was"
    one, other = spread(x), spread(y)
    means = f"mean {figure(one.mean)} → {figure(other.mean)}"
    widest = max(one.deviation, other.deviation)
    if far.share > _DRAWN_ANEW and one.deviation != other.deviation and widest > 0:
        moved = abs(other.mean - one.mean) > 0.1 * widest
        deviations = f"{figure(one.deviation)} → {figure(other.deviation)}"
        return f": standard deviation {deviations}" + (f", {means}" if moved else "")
    if far.share > _DRAWN_ANEW and one.mean != other.mean:
        return f": {means}"
    return f" in {share(far.share)} of its elements"


def redrawn(s: DifferenceContext, sentence: str, **more: object) -> dict[str, Any]:
    """Describe weights of the same distribution with other numbers: what draws before them is the
    cause."""
    pairs = s.comparison.differing("init", step=s.step)
    first = str(pairs[0].one.path)
    fact = f"{len(pairs)} parameters have other numbers of the same distribution, first `{first}`"
    return {
        "sentence": sentence, "module": s.comparison.b.owner(first), "tensor": f"`{first}`",
        "facts": [fact],
        "places": s.drawing_places, **more,
    }  # fmt: skip


def module_drawn(s: DifferenceContext, *, added: bool) -> dict[str, Any] | None:
    module = next((module for module in s.only(added=added) if module.shapes), None)
    if module is None:
        return None
    became = "added" if added else "removed"
    sentence = f"{named(module.path)} ({module.short}) was {became}; from there on {REORDERED}"
    codes = s.both_codes(None, module) if added else s.both_codes(module, None)
    places = [*codes, *s.drawing_places]
    return redrawn(s, sentence, module=module.path, places=places)


# --- data


def _passes(s: DifferenceContext, at: int) -> tuple[list[Digests], list[Digests]]:
    """Return the digests of the rows of an input of the module, by pass, on both sides."""
    a, b = s.comparison.a.rows["input"], s.comparison.b.rows["input"]
    return [*a.get((s.event_a.path, at), ())], [*b.get((s.event_b.path, at), ())]


def other_batches(s: DifferenceContext) -> list[tuple[list[int], list[int]]]:
    """Return the rows, sorted, of the first batch that differs of each input that does; none where
    another input, which is not the same in every pass, agrees."""
    batches = []
    for at in range(len(s.event_a.tensors)):
        a, b = _passes(s, at)
        pair = next(((x, y) for x, y in zip(a, b, strict=False) if not np.array_equal(x, y)), None)
        if pair is not None:
            batches.append((np.sort(pair[0]).tolist(), np.sort(pair[1]).tolist()))
        elif at in s.differing or _varies(a):
            return []
    return batches


def _varies(passes: Sequence[Digests]) -> bool:
    """Return True if an input is not the same in every pass; of one pass, in every row."""
    others = passes[1:] if len(passes) > 1 else [rows[::-1] for rows in passes]
    return any(not np.array_equal(passes[0], rows) for rows in others)


def shared_rows(s: DifferenceContext) -> float:
    """Return the share of rows, counting repeats, that both sides have, of the side with fewer
    rows: the least of the inputs that differ."""
    shares = []
    for at in s.differing:
        a, b = (np.concatenate(side).tolist() for side in _passes(s, at))
        both = sum((Counter(a) & Counter(b)).values())
        shares.append(both / max(1, min(len(a), len(b))))
    return min(shares)


def data_order(s: DifferenceContext) -> str | dict[str, Any] | None:
    if not (batches := other_batches(s)):
        return None
    if all(a == b for a, b in batches):
        sentence = "the rows of a batch are in another order"
    elif shared_rows(s) > 0.99:
        sides = [np.concatenate(side).tolist() for side in _passes(s, s.differing[0])]
        count = min(map(len, sides))
        old, new = (len({*rows[:count]}) for rows in sides)
        sentence = "the data come in another order: the same rows, in other batches"
        if abs(new - old) > 0.01 * count:
            sentence = f"of the first {count} rows {new} are different ones, where {old} were"
    else:
        return None
    if not _drew_before(s) or not s.drawn:
        return sentence
    sentence += f", because random numbers are drawn in another order: {s.drawn}"
    return {"sentence": sentence, "places": s.drawing_places}


def other_rows(s: DifferenceContext) -> str | None:
    if not other_batches(s) or (shared := shared_rows(s)) < 0.5:
        return None
    if s.far is not None and s.far.share <= 0.5:
        return None
    return f"other rows are drawn: {share(shared)} of them are the same{s.more}"


def other_numbers(s: DifferenceContext) -> str:
    """Return the end of a sentence on a call of both sides that draws other numbers: it is given no
    tensor, and returns another; empty if there is none."""
    x, y = s.first_calls
    draws = x is not None and y is not None and x.bare == y.bare and not any(x.raw["i"])
    return f"; `{s.call}` draws other numbers" if draws else ""


def _drew_before(s: DifferenceContext) -> bool:
    """Return True if the generators' states already differed when the step began."""
    traces = (s.comparison.a, s.comparison.b)
    if s.step == 0:
        one, other = (next((e.raw["x"] for e in t.of("random")), None) for t in traces)
        return bool(one != other)
    before = [t.pulses[s.step - 1].random for t in traces if len(t.pulses) >= s.step]
    return len(before) == 2 and before[0] != before[1]


def scaled_input(s: DifferenceContext) -> str | None:
    one, other = spread(s.tensor_a), spread(s.tensor_b)
    if not (one.deviation and other.deviation):
        return None
    correlation = float(np.corrcoef(s.tensor_a.values, s.tensor_b.values)[0, 1])
    if abs(correlation) <= 0.99999:
        return None
    slope = float(np.sign(correlation)) * other.deviation / one.deviation
    shift = other.mean - slope * one.mean
    return f"{s.input} is scaled by {figure(slope)} and shifted by {figure(shift)}"
