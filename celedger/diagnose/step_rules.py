"""Rules of the table of causes (celedger.diagnose.causes) on what a step computes: its forward
pass, loss, gradients and update, and what is reported of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from celedger.diagnose.difference import Pair
from celedger.diagnose.distance import distance
from celedger.diagnose.finding import (
    FindingPhase,
    became,
    call,
    changed,
    code_of,
    named,
    owner_of,
    places_of,
    some,
)
from celedger.diagnose.scene import RuleAnswer, Scene, Where, code_on, only_on_one_side, telling
from celedger.diagnose.trace import Event, Trace

_CASTS = {"half", "float", "double", "bfloat16", "to", "type", "type_as"}


# --- forward pass --------------------------------------------------------------------------------


def other_mode(s: Scene) -> str | None:
    """The module at fault runs in another mode: the outermost module that does is named."""
    others = [
        (pair.a.path, pair.b)
        for pair in s.c.pairs
        if pair.one.kind == "enter" and pair.a and pair.b and pair.step == s.a.step
        and pair.a.evaluation == s.a.evaluation and pair.a.raw["tr"] != pair.b.raw["tr"]
    ]  # fmt: skip
    several = {path for path, _ in others}
    if s.owner not in several:
        return None
    outermost = others[0][1]
    state = "training" if outermost.raw["tr"] else "evaluation"
    during = "evaluation" if s.a.evaluation else "training"
    more = f" (and so do {len(several) - 1} others)" if len(several) > 1 else ""
    where = named(outermost.path or "")
    return f"{where}{more} runs in {state} mode during {during}, as it did not before"


def child(s: Scene, *, added: bool) -> RuleAnswer | None:
    """A module that only one side has, called from the one at fault before this."""
    trace, new = (s.c.b, s.modules[1]) if added else (s.c.a, None)
    parent = (new.path if new is not None else None) if added else s.owner
    called = {
        event.path for event in trace.of("enter")
        if event.raw["u"] == parent and event.step == s.a.step
        and event.evaluation == s.a.evaluation
    }  # fmt: skip
    children = [module for module in only_on_one_side(s, added=added) if module.path in called]
    if not children:
        return None
    module = children[0]
    sentence = f"{named(module.path)} ({module.short}) was {'added' if added else 'removed'}"
    if any(event.drew for event in trace.events if event.path == module.path):
        sentence += "; it draws random numbers, so later ones are drawn in another order"
    places = code_on(s, module, added=added)
    return RuleAnswer(sentence, module.path, places, kind=module.short)


def other_argument(s: Scene, *, number: bool | None = None) -> str | None:
    """The same function with other arguments. `number`: only where a number with a point differs,
    or only where none does."""
    x, y = s.first_calls
    if not s.same_function or x is None or y is None or x.literals == y.literals:
        return None
    if not (x.tensors and y.tensors) or number is (_floats(x.literals) == _floats(y.literals)):
        return None
    where = "the loss" if s.where is Where.LOSS else s.place
    return f"{where} calls `{call(y)}` instead of `{call(x)}`"


def computed_types(s: Scene) -> tuple[str, str] | None:
    """The types in which the first call with another result computes, where they differ."""
    x, y = s.first_calls
    if x is None or y is None or not (x.tensors and y.tensors):
        return None
    types = x.tensors[0].dtype, y.tensors[0].dtype
    return types if types[0] != types[1] and (x.name == y.name or y.name in _CASTS) else None


def draws_otherwise(s: Scene) -> bool:
    x, y = s.first_calls
    drew = x is not None and y is not None and x.drew and y.drew and x.tensors and y.tensors
    return bool(drew) and x.raw["z"] != y.raw["z"]  # type: ignore[union-attr]


def _floats(literals: str) -> list[str]:
    return re.findall(r"\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+", literals)


def other_calls(s: Scene) -> str | None:
    gone, fresh = s.gone, s.fresh
    if not gone and not fresh:
        return None
    if gone and fresh:
        said = f"`{call(telling(fresh))}` where `{call(telling(gone))}` was"
    else:
        said = s.new_or_gone
    return f"{s.place} computes something else: {said}"


# --- loss, gradients, update, report -------------------------------------------------------------


def _user(s: Scene) -> str | None:
    """The innermost module (in b's words) that was given the output of the place's module."""
    path = s.c.alignment.modules.get(s.gradient_path or "", s.gradient_path)
    events = [e for e in s.c.b.of("enter", "leave") if e.step == s.step and not e.evaluation]
    outs = [e for e in events if e.kind == "leave" and s.c.path(e) == path]
    marks = {t.hash for e in outs for t in e.tensors}
    users = [
        e.path for e in events
        if e.kind == "enter" and outs and e.order > outs[0].order
        and any(t.hash in marks for t in e.tensors)
    ]  # fmt: skip
    return users[-1] if users else None


def flagged_output(s: Scene) -> Event | None:
    """The first output of equal value that requires a gradient on one side alone (b's)."""
    for pair in s.c.pairs:
        if pair.one.kind == "leave" and pair.step == s.step and pair.a and pair.b:
            flags = zip(pair.a.tensors, pair.b.tensors, strict=False)
            if not pair.b.evaluation and any(x.gradient != y.gradient for x, y in flags):
                return pair.b
    return None


def _detaching(s: Scene) -> Event | None:
    names = ("detach", "detach_", "data", "no_grad")
    return next((e for e in s.fresh if e.name in names), None)


def gradient(s: Scene) -> RuleAnswer:
    """What becomes of a gradient in the backward pass, though all forward values agree."""
    module, detaching, places = s.gradient_path, _detaching(s), []
    sentence = f"the gradient that reaches {named(module)} differs, though all forward values agree"
    if s.missing:
        arrives = "no longer arrives" if s.pair.b is None else "arrives now"
        sentence = f"the gradient of {named(module)} {arrives}: detached"
    elif detaching is not None:
        sentence = f"a part of the gradient of {named(module)} is detached"
    elif (user := _user(s)) is not None:
        module = user
        sentence = f"the backward pass of {named(user)} gives another gradient for equal values"
    if detaching is not None:
        sentence += f" by `{call(detaching)}` in {named(detaching.path)}"
        places = places_of(s.c.b, "b", detaching, "call")
    elif (flagged := flagged_output(s)) is not None:
        module = flagged.path
        sentence += f"; the output of {named(module)} requires a gradient on one side only"
        places = code_of(s.c.b, "b", s.module(module))
        places += places_of(s.c.b, "b", flagged, "caller")
    else:
        sentence += s.more
    for path in dict.fromkeys((module, s.gradient_path)):
        places += code_of(s.c.b, "b", s.module(path))
    operator = call(detaching) if detaching is not None else ""
    return RuleAnswer(sentence, module, places, operator=operator)


def gradient_cut(s: Scene, *, on: str, seen: bool) -> RuleAnswer | None:
    """A gradient that arrives on one side only, or (seen) one that a call takes a part of."""
    cutting = _detaching(s) is not None or flagged_output(s) is not None
    arrives = s.missing and (s.pair.b is None) is (on == "b")
    part = on == "b" and not s.missing and _detaching(s) is not None
    holds = (arrives and cutting) or part if seen else arrives and not (s.gone or s.fresh)
    return gradient(s) if holds else None


def gradient_pairs(s: Scene) -> list[Pair]:
    """The parameters' gradients of this step that differ."""
    return [
        p for p in s.c.pairs if p.one.kind == "pgrad" and p.step == s.step and s.c.differs(p)
    ]  # fmt: skip


def optimiser_given(s: Scene, sentence: str, *, by_loop: bool = False) -> RuleAnswer:
    """The backward pass agrees as far as it was seen, and the gradients that the optimiser gets do
    not. `by_loop`: the training loop does it, to all of them."""
    module = "" if by_loop else owner_of(str(gradient_pairs(s)[0].one.path))
    places = [*code_of(s.c.b, "b", s.module(module)), *s.stepping(s.c.b, "b")]
    phase = FindingPhase.UPDATE if by_loop else None
    return RuleAnswer(sentence + s.more, module, places, phase=phase)


def not_cleared(s: Scene) -> bool:
    """b's gradients are a's and those of the step before together."""
    left = [
        max((int(e.raw.get("held", 0)) for e in t.of("loss") if e.step == s.step), default=0)
        for t in (s.c.a, s.c.b)
    ]
    last = {e.path: e for e in s.c.b.of("pgrad") if e.step == s.step - 1 and e.tensors}
    sums = []
    for pair in gradient_pairs(s):
        before = last.get(pair.b.path) if pair.b else None
        if before and pair.a and pair.b and pair.a.tensors and pair.b.tensors:
            now, was, old = (e.tensors[0].values for e in (pair.b, pair.a, before))
            room = 1e-4 * float(np.abs(now).max(initial=0.0)) + 1e-12
            sums.append(len(now) > 0 and np.allclose(now, was + old, rtol=1e-3, atol=room))
    return left[1] > left[0] or bool(sums and all(sums))


def gradient_factor(s: Scene) -> float | None:
    """The one factor between all gradients of both sides, if there is one."""
    every = [p for p in s.c.pairs if p.one.kind == "pgrad" and p.step == s.step and p.a and p.b]
    pairs = [(p.a.tensors, p.b.tensors) for p in gradient_pairs(s) if p.a and p.b]
    ratios = [distance(x[0], y[0]).ratio for x, y in pairs if x and y]
    if len(pairs) != len(every) or not ratios or not np.allclose(ratios, ratios[0], rtol=1e-3):
        return None
    return ratios[0]


def optimiser_settings(s: Scene, wanted: str) -> RuleAnswer | None:
    """A sentence on the optimiser's settings that differ, where they are of this kind."""
    c, step, number = s.c, s.step, s.b.path
    old = c.hyper(c.a)[step].get(number, {"class": "", "of": {}})
    new = c.hyper(c.b, aligned=True)[step].get(number, {"class": "", "of": {}})
    gone = [name for name in old["of"] if name not in new["of"]]
    fresh = [name for name in new["of"] if name not in old["of"]]
    changes = {
        name: found for name, now in new["of"].items()
        if name not in fresh and (found := changed(old["of"].get(name, {}), now))
    }  # fmt: skip
    if old["class"] != new["class"]:
        kinds = [one["class"].rpartition(".")[2] for one in (old, new)]
        cause, key = "optimiser", "optimiser"
        sentence = f"the optimiser is {kinds[1]} instead of {kinds[0]}"
    elif gone or not changes:
        cause, key = "parameters", "parameters"
        sentence = f"the optimiser is {'no longer ' if gone else ''}given {some(gone or fresh)}"
        sentence += "" if gone else " too"
    else:
        first = next(iter(changes.values()))
        key = first[0][0]
        cause = "schedule" if key == "lr" else "settings"
        same = [name for name, one in changes.items() if became(one) == became(first)]
        whose = "" if len(same) == len(new["of"]) else f" for {_group(s, same)}"
        sentence = f"optimiser settings differ at step {step}: {became(first)}{whose}"
        if key == "lr" and (shift := _rate_shift(s)):
            sentence = (
                f"the learning-rate schedule is off by a step ({shift}): at step {step} "
                f"{became(first)}{whose}"
            )
        sentence += f"; it is given {some(fresh)} too" if fresh else ""
    if cause != wanted:
        return None
    return RuleAnswer(sentence, "", tensor=key, kind=s.b.raw["c"].rpartition(".")[2])


def _rate_shift(s: Scene) -> str:
    """Whether b's learning rates are a's a step earlier or later."""
    rates = [_rates(trace) for trace in (s.c.a, s.c.b)]
    count = min(len(rates[0]), len(rates[1]))
    if count < 4 or len(set(rates[0])) < 3:
        return ""
    a, b = np.array(rates[0][:count]), np.array(rates[1][:count])
    for shift, x, y in (("early", a[1:], b[:-1]), ("late", a[:-1], b[1:])):
        # The first and last rates may be those of a warm-up's or a fall's end.
        if np.isclose(x, y, rtol=1e-6, atol=1e-12).mean() > 0.9:
            return f"one step {shift}"
    return ""


def _rates(trace: Trace) -> list[float]:
    """The learning rate of the first group of the first optimiser, by step."""
    rate, rates = 0.0, []
    changes = {
        e.step: float(e.raw["v"][0].get("lr", 0.0)) for e in trace.of("hyper") if e.path == "0"
    }
    for pulse in trace.pulses:
        rate = changes.get(pulse.step, rate)
        rates.append(rate)
    return rates


def _group(s: Scene, names: Sequence[str]) -> str:
    """What several parameters have in common, in a word where there is one."""
    kinds = {m.short for n in names if (m := s.module(owner_of(n))) is not None}
    if kinds and all("Norm" in kind for kind in kinds):
        return f"the norms' {len(names)} parameters"
    if all(name.endswith("bias") for name in names):
        return f"{len(names)} biases"
    return f"{len(names)} parameters ({some(names)})"


def buffer(s: Scene, *, by_settings: bool) -> RuleAnswer | None:
    path = owner_of(s.b.path or "")
    new = s.module(path)
    old = s.c.a.modules.get(s.c.alignment.modules.get(path, path))
    changes = changed(old.settings, new.settings) if old and new else []
    if bool(changes) is not by_settings:
        return None
    why = f": settings changed: {became(changes)}" if changes else ""
    places = [*code_of(s.c.b, "b", new), *code_of(s.c.a, "a", old)]
    return RuleAnswer(f"statistics {changed_names(s)} differ after equal forward passes{why}",
                  path, places)  # fmt: skip


def changed_names(s: Scene) -> str:
    return some([
        str(p.one.path) for p in s.c.pairs
        if p.one.kind == s.front.kind and p.step == s.step and s.c.differs(p)
    ])  # fmt: skip


def state_anew(s: Scene) -> bool:
    """Return True if a moving average of b is what one step from nothing gives, a multiple of the
    gradient, and a's is not."""
    gradients = {e.path: e.tensors for e in s.c.b.of("pgrad") if e.step == s.step}
    for pair in s.c.pairs:
        a, b = pair.a, pair.b
        if pair.one.kind != "state" or pair.step != s.step or a is None or b is None:
            continue
        gradient = gradients.get(b.path)
        if not gradient or not a.tensors or not b.tensors or b.tensors[0].size < 2:
            continue
        anew, kept = (distance(gradient[0], e.tensors[0]).ratio for e in (b, a))
        if anew == anew:
            return kept != kept
    return False


def report(s: Scene) -> RuleAnswer:
    changes = [
        change for change in changed(s.a.raw["v"], s.b.raw["v"])
        if s.c.metrics is None or change[0] in s.c.metrics
    ]  # fmt: skip
    sentence = f"the training agrees and the reported {became(changes[:3])} differs"
    calls = bool(s.gone or s.fresh)
    if calls:
        sentence += f": {s.new_or_gone} in the evaluation"
    phase = FindingPhase.EVALUATION if calls else None
    return RuleAnswer(sentence, tensor=changes[0][0] if changes else "", phase=phase)
