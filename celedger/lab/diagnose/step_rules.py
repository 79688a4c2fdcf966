"""Rules of the table of causes (celedger.lab.diagnose.causes) on what a step computes: its forward
pass, loss, gradients and update, and the reported values. A rule returns a sentence, or fields of
the finding."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from celedger.lab.diagnose.difference import changed
from celedger.lab.diagnose.difference_context import (
    CASTS,
    DETACHING,
    UNTRAINED_PASS,
    DifferenceContext,
    new_or_gone,
    novel,
    replaced,
    unmatched,
)
from celedger.lab.diagnose.finding import (
    CodePlace,
    FindingPhase,
    became,
    code_of,
    function_place,
    named,
    ordinal,
    places_of,
    places_of_site,
    some,
)
from celedger.lab.diagnose.tensor_distance import distance
from celedger.lab.diagnose.trace import Event, Module, owner_of

_LONG = 120  # characters of two calls that are shown whole
_NUMBER = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+")  # with a point or an exponent


# --- forward pass


def other_mode(s: DifferenceContext) -> dict[str, Any] | None:
    """Describe that the module at fault runs in another mode; the outermost that does is named."""
    others = [
        (a, b) for a, b in s.comparison.pairs_of("enter", step=s.step)
        if a.evaluation == s.event_a.evaluation and a.raw["tr"] != b.raw["tr"]
    ]  # fmt: skip
    several = {a.path for a, _ in others}
    if s.owner not in several:
        return None
    before, outermost = others[0]
    state = "training" if outermost.raw["tr"] else "evaluation"
    during = "evaluation" if s.evaluates else "training"
    more = f" with {len(several) - 1} of its modules" if len(several) > 1 else ""
    sentence = f"{named(outermost.path or '')}{more} now runs in {state} mode during {during}"
    return {"sentence": sentence, "places": s.both_places(before, outermost, "mode set", "m")}


def child(s: DifferenceContext, *, added: bool) -> dict[str, Any] | None:
    """Describe a module that only one side has, called from the module at fault before the
    difference."""
    trace = s.comparison.b if added else s.comparison.a
    parent = s.owner if not added else s.new.path if s.new is not None else None
    called = {
        e.path for e in trace.of("enter")
        if e.raw["u"] == parent and (e.step, e.evaluation) == (s.step, s.event_a.evaluation)
    }  # fmt: skip
    module = next((module for module in s.only(added=added) if module.path in called), None)
    if module is None:
        return None
    sentence = f"{named(module.path)} ({module.short}) was {'added' if added else 'removed'}"
    if any(event.drew for event in trace.events if event.path == module.path):
        sentence += "; it draws random numbers, so later ones are drawn in another order"
    places = s.both_codes(None, module) if added else s.both_codes(module, None)
    return {
        "sentence": sentence, "module": module.path, "places": places, "kind": module.short,
    }  # fmt: skip


def constructed(s: DifferenceContext, sentence: str) -> dict[str, Any]:
    """Describe what the module at fault is: where it is made counts before where it is called."""
    return {"sentence": sentence, "places": s.both_codes(s.old, s.new)}


def other_calls(s: DifferenceContext) -> dict[str, Any] | None:
    """Describe a module that both sides have and one calls in place of another, or more often."""
    if s.missing:
        return None
    c = s.comparison
    sides = [[e for e in t.of("enter") if e.step == s.step] for t in (c.a, c.b)]
    paths = [[e.path for e in sides[0]], [c.path(e) for e in sides[1]]]
    pairs = [[*zip(*side, strict=True)] for side in zip(sides, paths, strict=True)]
    less, more = (unmatched(x, y, itemgetter(1)) for x, y in (pairs, pairs[::-1]))
    shared = c.paths_in_b
    gone = next((e for e, path in less if path in shared and e.order < s.event_a.order), None)
    new = next((e for e, path in more if path in shared and e.order < s.event_b.order), None)
    replaces = gone and new and c.path_in_b(gone.raw["u"]) == new.raw["u"]
    if not replaces:  # an evaluation within the same step explains nothing of its training
        gone, new = (
            e if e is not None and e.evaluation == s.event_a.evaluation else None
            for e in (gone, new)
        )
    if (one := new or gone) is None:
        return None
    caller, path = (one.raw["u"], one.path) if new else map(c.path_in_b, (one.raw["u"], one.path))
    instead = f"where it called {named(c.path_in_b(gone.path))}" if gone and replaces else ""
    sentence = f"calls {named(path)} {instead or ('more often' if new else 'less often')}"
    caller_name = named(caller) if caller is not None else "the training loop"
    return {
        "sentence": f"{caller_name} {sentence}", "module": caller, "operator": "",
        "places": s.both_places(gone, new, "caller"),
    }  # fmt: skip


def other_argument(s: DifferenceContext, *, number: bool | None = None) -> str | None:
    """Describe a call of the same function with other arguments. `number`: require that a number
    with a point differs, or that none does."""
    x, y = s.first_calls
    if x is None or y is None or x.name != y.name or x.bare == y.bare:
        return None
    extra = [side[event.bare] > 0 for side, event in zip(s.extra, (x, y), strict=True)]
    # A call that the other side only leaves out has not become the next one.
    if extra != [True, True] and (x.raw["i"] != y.raw["i"] or any(extra)):
        return None
    other_number = _NUMBER.findall(x.call) != _NUMBER.findall(y.call)
    if not (x.tensors and y.tensors) or (number is not None and number is not other_number):
        return None
    return f"{'the loss' if s.part == 'loss' else s.place} calls {_other_call(x, y)}"


def _other_call(x: Event, y: Event) -> str:
    """Say how a call of the same function differs: by what was added or taken away, or where the
    calls are long, by what is another."""
    old, new = (event.raw.get("l", ()) for event in (x, y))
    gone = list((Counter(old) - Counter(new)).elements())
    added = list((Counter(new) - Counter(old)).elements())
    for one, other, word in ((gone, added, "without"), (added, gone, "now with")):
        if one and not other and "_" not in one:
            return f"`{y.function}` {word} {some(one)}"
    if len(x.call) + len(y.call) > _LONG:
        return f"`{y.function}` with {some(added)} instead of {some(gone)}"
    return f"`{y.call}` instead of `{x.call}`"


def other_operands(s: DifferenceContext) -> str:
    """Name the operand that differs in the calls of one function with equal arguments."""
    x, y = s.first_calls
    pairs = list(zip(x.raw["i"], y.raw["i"], strict=False))  # type: ignore[union-attr]
    differing = [at for at, (one, other) in enumerate(pairs) if one != other]
    tensors = [part for part in y.raw["l"] if part == "_" or part.endswith("=_")]  # type: ignore[union-attr]
    if len(differing) != 1 or len(tensors) != len(pairs):
        return "other operands"
    name = tensors[differing[0]].partition("=")[0]
    return f"another {ordinal(differing[0] + 1)} operand" if name == "_" else f"another `{name}`"


def other_weights(s: DifferenceContext) -> str | None:
    """Describe a module that computes something else of equal inputs in an evaluation, after a
    training that agrees."""
    c, at = s.comparison, (s.step, s.event_a.evaluation)
    given = (p for p in c.pairs if p.one.kind == "enter" and (p.step, p.one.evaluation) == at)
    pair = next((p for p in given if p.a and p.b and p.a.path == s.owner), None)
    agrees = c.parted is None or c.parted >= s.step
    x, y = s.first_calls
    if not (at[1] and agrees and s.same_function and s.new and s.new.shapes and x and y):
        return None
    if pair is None or c.differs(pair) or x.raw["i"] == y.raw["i"]:
        return None
    where = "the evaluation, though the training agrees" if s.evaluates else UNTRAINED_PASS
    return f"{s.place} has other weights or buffers in {where}"


def other_inputs(s: DifferenceContext) -> dict[str, Any] | None:
    """Describe that a module is given more or fewer tensors."""
    if s.front.kind != "enter" or len(s.event_a.tensors) == len(s.event_b.tensors):
        return None
    old, new = (e.raw.get("of", ()) for e in (s.event_a, s.event_b))
    gone, added = [n for n in old if n not in new], [n for n in new if n not in old]
    giver = s.place if s.part == "forward" else "the training loop"
    verbs = [f"no longer gives {some(gone)}"] if gone else []
    verbs += [f"now gives {some(added)}"] if added else []
    verbs = verbs or [f"gives {len(s.event_b.tensors)} tensors instead of {len(s.event_a.tensors)}"]
    sentence = f"{giver} {' and '.join(verbs)} to {named(s.event_b.path)}"
    return {"sentence": sentence, "places": s.both_places(s.event_a, s.event_b, "caller")}


def other_type(s: DifferenceContext) -> str | None:
    """Describe the first call with another result if it computes in another type."""
    x, y = s.first_calls
    if x is None or y is None or not (x.tensors and y.tensors):
        return None
    old, new = x.tensors[0].dtype, y.tensors[0].dtype
    if old == new or (x.name != y.name and y.name not in CASTS):
        return None
    return f"{s.place} computes `{y.name}` in {new} instead of {old}"


def labels(s: DifferenceContext) -> dict[str, Any] | None:
    """Other targets for the same inputs, and the calls that make them otherwise."""
    if not s.labels:
        return None
    gone, fresh = s.labels_made
    sentence = "; ".join(filter(None, [s.labels, new_or_gone(gone, fresh)]))
    return {"sentence": sentence, "places": s.places_of_calls(gone, fresh)}


def draws_otherwise(s: DifferenceContext) -> bool:
    x, y = s.first_calls
    if x is None or y is None or not (x.drew and y.drew and x.tensors and y.tensors):
        return False
    return bool(x.raw["z"] != y.raw["z"])


# --- backward pass


def gradient_within(s: DifferenceContext) -> dict[str, Any] | None:
    """Describe what the training loop computes otherwise before a gradient that no backward pass of
    a loss has made: one of which the loss is made, as a residual is, or a functional one."""
    losses = (e for e in s.comparison.b.of("loss") if e.step == s.step)
    if s.missing or any(e.order < s.event_b.order for e in losses):
        return None
    before = (
        [e for e in calls if e.path is None and e.order < at.order]
        for calls, at in zip(s.calls, (s.event_a, s.event_b), strict=True)
    )
    x, y = novel(*before)
    if x is None or y is None:
        return None
    within = s.part == "backward"
    code = "the loss" if within else "the training loop"
    sentence = f"{code} computes something else: {replaced(x, y)}"
    if x.bare == y.bare:
        sentence = f"`{y.function}` in {code} is given other values"
    elif x.name == y.name:
        sentence = f"{code} calls {_other_call(x, y)}"
    places = s.both_places(x, y, "call")
    phase = FindingPhase.LOSS if within else FindingPhase.UPDATE
    return {"sentence": sentence, "module": None, "phase": phase, "places": places}


def _user(s: DifferenceContext) -> str | None:
    """Return the innermost module (by its path in b) whose input is the output of the module at
    fault."""
    path = s.comparison.alignment.modules.get(s.gradient_path or "", s.gradient_path)
    events = [
        e for e in s.comparison.b.of("enter", "leave") if e.step == s.step and not e.evaluation
    ]
    outs = [e for e in events if e.kind == "leave" and s.comparison.path(e) == path]
    hashes = {t.hash for e in outs for t in e.tensors}
    users = [
        e.path for e in events
        if e.kind == "enter" and outs and e.order > outs[0].order
        and any(t.hash in hashes for t in e.tensors)
    ]  # fmt: skip
    return users[-1] if users else None


def flagged_output(s: DifferenceContext) -> Event | None:
    """Return the first output of equal value that requires a gradient on one side only (b's
    event)."""
    for a, b in s.comparison.pairs_of("leave", step=s.step):
        flags = zip(a.tensors, b.tensors, strict=False)
        if not b.evaluation and any(x.gradient != y.gradient for x, y in flags):
            return b
    return None


def _detaching(s: DifferenceContext) -> Event | None:
    return next((e for e in s.fresh if e.name in DETACHING), None)


def gradient(s: DifferenceContext) -> dict[str, Any]:
    """Describe the change of a gradient in the backward pass although all forward values agree."""
    module, detaching, places = s.gradient_path, _detaching(s), []
    sentence = f"the gradient that reaches {named(module)} differs, though all forward values agree"
    if s.missing:
        arrives = "no longer arrives" if s.event_b is None else "arrives now"
        sentence = f"the gradient of {named(module)} {arrives}: detached"
    elif detaching is not None:
        sentence = f"a part of the gradient of {named(module)} is detached"
    elif (user := _user(s)) is not None:
        module = user
        sentence = f"the backward pass of {named(user)} gives another gradient for equal values"
    if detaching is not None:
        sentence += f" by `{detaching.call}` in {named(detaching.path)}"
        places = places_of(s.comparison.b, detaching, "call")
    elif (flagged := flagged_output(s)) is not None:
        module = flagged.path
        sentence += f"; the output of {named(module)} requires a gradient on one side only"
        places = code_of(s.comparison.b, s.module(module))
    else:
        sentence += s.more
    for path in dict.fromkeys((module, s.gradient_path)):
        places += code_of(s.comparison.b, s.module(path))
    called = (e for e in s.comparison.b.of("enter") if (e.step, e.path) == (s.step, module))
    places += places_of(s.comparison.b, next(called, None), "caller")
    operator = detaching.call if detaching is not None else ""
    places = [*custom_backwards(s), *places]
    return {"sentence": sentence, "module": module, "places": places, "operator": operator}


def custom_backwards(s: DifferenceContext) -> list[CodePlace]:
    """Return the backward passes, written by hand, of the functions that a step calls."""
    return [
        function_place(trace, "backward", code)
        for trace in (s.comparison.b, s.comparison.a)
        for code in dict.fromkeys(
            tuple(e.raw["f"]) for e in trace.of("call") if "f" in e.raw and e.step == s.step
        )
    ]


def gradient_cut(s: DifferenceContext, *, on: str, explained: bool) -> dict[str, Any] | None:
    """Describe a gradient that arrives on one side only or (`explained`) is cut by a known call."""
    cutting = _detaching(s) is not None or flagged_output(s) is not None
    arrives = s.missing and (s.event_b is None) is (on == "b")
    part = on == "b" and not s.missing and _detaching(s) is not None
    holds = (arrives and cutting) or part if explained else arrives and not (s.gone or s.fresh)
    return gradient(s) if holds else None


# --- the optimiser's input


def optimiser_given(
    s: DifferenceContext, sentence: str, *, by_loop: bool = False
) -> dict[str, Any]:
    """Describe that the backward pass agrees as far as it was seen, and the gradients that the
    optimiser gets do not. `by_loop`: the training loop does it, to all of them."""
    module = "" if by_loop else s.comparison.b.owner(str(s.pair.one.path))
    places = [] if by_loop else custom_backwards(s)
    places += [] if by_loop else code_of(s.comparison.b, s.module(module))
    places += s.stepping(s.comparison.b, by_loop=by_loop)
    phase = FindingPhase.UPDATE if by_loop else FindingPhase.BACKWARD
    return {"sentence": sentence + s.more, "module": module, "places": places, "phase": phase}


def unexplained_gradient(s: DifferenceContext) -> dict[str, Any]:
    """Describe another gradient of which no call tells, beside what was seen to agree."""
    seen = any(s.comparison.pairs_of("grad", step=s.step))
    agrees = "the backward pass agrees" if seen else "all forward values agree"
    sentence = f"the gradient of {changed_names(s)} differs, though {agrees}"
    return optimiser_given(s, sentence, by_loop=s.every_gradient)


def passes(s: DifferenceContext) -> str:
    """Return how many backward passes a step adds up on either side; empty where they agree."""
    counts = [
        sum(e.step == s.step for e in trace.of("loss"))
        for trace in (s.comparison.a, s.comparison.b)
    ]
    old, new = counts
    plural = "es" if new != 1 else ""
    return f"a step adds up {new} backward pass{plural} instead of {old}" if old != new else ""


def not_cleared(s: DifferenceContext) -> dict[str, Any] | None:
    """Describe that b's gradients are the sums of a's and those of the step before, or that more
    passes of a step, as of a closure, do not begin with cleared ones."""
    uncleared = [
        sum(e.raw.get("held", 0) > 0 for e in t.of("loss")
            if e.step == s.step and e.order < at.order)
        for t, at in ((s.comparison.a, s.event_a), (s.comparison.b, s.event_b))
    ]  # fmt: skip
    last = {
        e.path: e.tensors[0]
        for e in s.comparison.b.of("pgrad")
        if e.step == s.step - 1 and e.tensors
    }
    sums = []
    for pair in s.comparison.differing("pgrad", step=s.step) if s.part == "gradients" else ():
        before = last.get(pair.b.path) if pair.b else None
        if before and pair.a and pair.b and pair.a.tensors and pair.b.tensors:
            was, now = pair.a.tensors[0].values, pair.b.tensors[0].values
            room = 1e-4 * float(np.abs(now).max(initial=0.0)) + 1e-12
            added = len(now) > 0 and np.allclose(now, was + before.values, rtol=1e-3, atol=room)
            sums.append(added)
    if uncleared[1] <= uncleared[0] and not (sums and all(sums)):
        return None
    between = "steps: those of the step before are added"
    if s.part == "forward":
        between = "the passes of a step: they add up"
    given = optimiser_given(s, f"gradients are not cleared between {between}", by_loop=True)
    return {**given, "places": [*_clearing(s), *given["places"]]}


def _clearing(s: DifferenceContext) -> list[CodePlace]:
    """Return where gradients are cleared in a step."""
    return [
        place for trace in (s.comparison.b, s.comparison.a)
        for event in trace.of("loss") if event.step == s.step
        for site in event.raw["z"]
        for place in places_of_site(trace, site, "gradients cleared")
    ]  # fmt: skip


def gradient_factor(s: DifferenceContext) -> float | None:
    """Return the one factor between all gradients of both sides, None if there is none."""
    ratios = [
        distance(a.tensors[0], b.tensors[0]).ratio
        for a, b in s.comparison.pairs_of("pgrad", step=s.step) if a.tensors and b.tensors
    ]  # fmt: skip
    if not s.every_gradient or not ratios or not np.allclose(ratios, ratios[0], rtol=1e-3):
        return None
    return ratios[0]


def _has_others(s: DifferenceContext) -> bool:
    """Return True if the training has several optimisers."""
    return len({event.path for event in s.comparison.b.of("hyper")}) > 1


def all_gradients(s: DifferenceContext) -> str:
    """Return the subject of a sentence on all gradients of a step's optimiser."""
    return f"the gradients of {changed_names(s)} are" if _has_others(s) else "all gradients are"


def optimiser_settings(s: DifferenceContext) -> dict[str, Any]:
    """Describe the change of the optimiser's settings; its cause is one of four."""
    number, nothing = s.event_b.path, {"class": "", "of": {}}
    old, new = (side[s.step].get(number, nothing) for side in s.comparison.settings)
    others = _has_others(s)
    the_optimiser = f"the optimiser of {some([*new['of']])}" if others else "the optimiser"
    gone = [name for name in old["of"] if name not in new["of"]]
    fresh = [name for name in new["of"] if name not in old["of"]]
    changes = {
        name: change for name, now in new["of"].items()
        if name not in fresh and (change := changed(old["of"].get(name, {}), now))
    }  # fmt: skip
    if old["class"] != new["class"]:
        kinds = [one["class"].rpartition(".")[2] for one in (old, new)]
        cause = key = "optimiser"
        sentence = f"{the_optimiser} is {kinds[1]} instead of {kinds[0]}"
    elif gone or not changes:
        cause = key = "parameters"
        sentence = f"{the_optimiser} is {'no longer ' if gone else ''}given {some(gone or fresh)}"
        sentence += "" if gone else " too"
    else:
        first = next(iter(changes.values()))
        key = first[0][0]
        cause = "schedule" if key == "lr" else "settings"
        same = [name for name, one in changes.items() if became(one) == became(first)]
        every = len(same) == len(new["of"]) and not others
        whose = "" if every else f" for {_group(s, same)}"
        sentence = f"optimiser settings differ at step {s.step}: {became(first)}{whose}"
        sentence += f"; it is given {some(fresh)} too" if fresh else ""
    kind = s.event_b.raw["c"].rpartition(".")[2]
    return {"sentence": sentence, "cause": cause, "module": "", "tensor": key, "kind": kind}


def _group(s: DifferenceContext, names: Sequence[str]) -> str:
    """Describe several parameters by their common property, else by name."""
    kinds = {m.short for n in names if (m := s.module(owner_of(n))) is not None}
    if kinds and all("Norm" in kind for kind in kinds):
        return f"the norms' {len(names)} parameters"
    if all(name.endswith("bias") for name in names):
        return f"{len(names)} biases"
    return f"{len(names)} parameters ({some(names)})"


def _owner_settings(
    s: DifferenceContext,
) -> tuple[str, Module | None, Module | None, list[tuple[str, Any, Any]]]:
    """Return the module that owns the tensor that differs (its path, and itself on both sides), and
    its settings that do."""
    path = owner_of(s.pair.one.path or "")
    new = s.module(path)
    old = s.comparison.a.modules.get(s.comparison.alignment.modules.get(path, path))
    return path, old, new, changed(old.settings, new.settings) if old and new else []


def owner_settings(s: DifferenceContext) -> dict[str, Any] | None:
    """Describe other settings of the module whose parameters get another gradient."""
    path, old, new, changes = _owner_settings(s)
    if not changes or new is None:
        return None
    sentence = f"settings of {named(path)} ({new.short}) changed: {became(changes)}"
    return {"sentence": sentence, "module": path, "places": s.both_codes(old, new)}


# --- results of a step


def buffer(s: DifferenceContext, *, by_settings: bool) -> dict[str, Any] | None:
    path, old, new, changes = _owner_settings(s)
    if bool(changes) is not by_settings:
        return None
    sentence = f"buffers differ after equal forward passes: {changed_names(s)}"
    sentence += f"; settings changed: {became(changes)}" if changes else ""
    places = s.both_codes(old, new)
    if not changes:  # what writes them is in between
        places = [place for place in places if place.what == "forward"] or places
    return {"sentence": sentence, "module": path, "places": places}


def changed_names(s: DifferenceContext) -> str:
    pairs = s.comparison.differing(s.front.kind, step=s.step)
    return some([str(pair.one.path) for pair in pairs])


def state_anew(s: DifferenceContext) -> bool:
    """Return True if a moving average of b is a multiple of the gradient, as after one step from
    zero, and a's is not."""
    gradients = {e.path: e.tensors for e in s.comparison.b.of("pgrad") if e.step == s.step}
    for a, b in s.comparison.pairs_of("state", step=s.step):
        gradient = gradients.get(b.path)
        if not gradient or not a.tensors or not b.tensors or b.tensors[0].size < 2:
            continue
        old, new = (distance(gradient[0], e.tensors[0]).ratio for e in (a, b))
        if new == new:
            return old != old
    return False


def report(s: DifferenceContext) -> dict[str, Any]:
    changes = s.comparison.reported(s.event_a, s.event_b)
    sentence = f"the training agrees and the reported {became(changes[:3])} differs"
    phase = FindingPhase.REPORT
    old, new = s.first_calls
    if old is not None or new is not None:
        phase = FindingPhase.EVALUATION
        same = old is not None and new is not None and old.bare == new.bare
        what = f"`{old.call}` has another result" if same and old else s.new_or_gone
        sentence += f": {what} in the evaluation" if what else ""
    return {"sentence": sentence, "tensor": changes[0][0], "phase": phase}
