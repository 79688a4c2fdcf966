"""Judges a difference that arises between the loss and the next step: in the loss itself, in a
gradient, in the optimiser, or in what is reported."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from celedger.diagnose.beginnings import owner_of
from celedger.diagnose.difference import Comparison, Front, Pair
from celedger.diagnose.distance import distance
from celedger.diagnose.finding import (
    Finding,
    Phase,
    Place,
    Sureness,
    became,
    call,
    calls_changed,
    changed,
    code_of,
    figure,
    named,
    places_of,
    some,
)
from celedger.diagnose.forward import first_distance, flags_differ
from celedger.diagnose.trace import Event, Frame, Trace


def judge_backward(c: Comparison, front: Front) -> Finding:
    """All that was computed forward agrees. In backward order the first gradient that differs is
    that of an output; what used the output made it."""
    pair = front.pair
    event = pair.a or pair.b
    assert event is not None
    step = pair.step
    path = c.path(pair.b) if pair.b is not None and pair.a is None else event.path
    new = next((n for n, o in c.alignment.modules.items() if o == path), path)
    missing = front.kind == "missing"
    user = _user_of(c, path or "", step)
    flagged = flags_differ(c, step)
    gone, fresh = _all_calls_changed(c, step)
    places: list[Place] = []
    tensor = f"gradient of the output of {named(new)}"
    sure, cause = Sureness.LIKELY, "gradient"
    found = first_distance(pair.a, pair.b)
    detaching = [e for e in fresh if e.name in ("detach", "detach_", "data", "no_grad")]
    said = f"the gradient that reaches {named(new)} differs, though all forward values agree"
    module: str | None = new
    if missing:
        side, verb = ("b", "no longer arrives") if pair.b is None else ("a", "arrives now")
        said = f"the gradient of {named(new)} {verb}: detached"
        cause = "detached" if side == "b" else "attached"
        sure = Sureness.SURE if detaching or flagged else Sureness.LIKELY
    elif detaching:
        said, cause, sure = (
            f"a part of the gradient of {named(new)} is detached",
            "detached",
            (Sureness.SURE),
        )
    elif user is not None:
        module = user
        said = f"the backward pass of {named(user)} gives another gradient for equal values"
    if detaching:
        where = detaching[0]
        said += f" by `{call(where)}` in {named(where.path)}"
        places += places_of(c.b, "b", where, "call")
    elif flagged is not None:
        said += f"; the output of {named(flagged.path)} requires a gradient on one side only"
        places += code_of(c.b, "b", c.b.modules.get(flagged.path or ""))
        places += places_of(c.b, "b", flagged, "caller")
        module = flagged.path
    elif gone or fresh:
        cause, sure = "calls", Sureness.SURE
        said += f"; `{call((fresh or gone)[0])}` is {'new' if fresh else 'gone'}"
    places += [p for e in fresh[:3] for p in places_of(c.b, "b", e, "new call")]
    places += [p for e in gone[:3] for p in places_of(c.a, "a", e, "call that is gone")]
    for one in dict.fromkeys((module, new)):
        places += code_of(c.b, "b", c.b.modules.get(one or ""))
    kind = c.b.modules.get(module or "")
    facts = [f"no longer called: {call(e)}" for e in gone[:3]]
    facts += [f"newly called: {call(e)}" for e in fresh[:3]]
    return Finding(
        Phase.BACKWARD, step, module, kind.short if kind else "", tensor, cause, said,
        found[1] if found else None, call(detaching[0]) if detaching else "", tuple(facts),
        tuple(places), sure,
    )  # fmt: skip


def _user_of(c: Comparison, path: str, step: int) -> str | None:
    """The innermost module (in b's words) that was given this module's output."""
    outs = [e for e in c.b.of("leave") if c.path(e) == path and e.step == step and not e.evaluation]
    marks = {t.hash for e in outs for t in e.tensors}
    users = [
        e.path for e in c.b.of("enter")
        if e.step == step and outs and e.order > outs[0].order and not e.evaluation
        and any(t.hash in marks for t in e.tensors)
    ]  # fmt: skip
    return users[-1] if users else None


def _all_calls_changed(c: Comparison, step: int) -> tuple[list[Event], list[Event]]:
    """The calls of a whole training step that only one side makes."""

    def here(trace: Trace) -> list[Event]:
        return [e for e in trace.of("call") if e.step == step and not e.evaluation]

    return calls_changed(here(c.a), here(c.b))


def judge_gradients(c: Comparison, front: Front) -> Finding:
    """The backward pass agrees as far as it was seen, and the gradients that the optimiser gets do
    not: clipping, scaling, clearing, freezing."""
    step = front.pair.step
    pairs = [p for p in c.pairs if p.one.kind == "pgrad" and p.step == step and c.differs(p)]
    every = [p for p in c.pairs if p.one.kind == "pgrad" and p.step == step and p.a and p.b]
    names = [str(p.one.path) for p in pairs]
    a, b = front.pair.a, front.pair.b
    assert a is not None and b is not None
    found = first_distance(a, b)
    gone, fresh = _all_calls_changed(c, step)
    module = owner_of(names[0])
    cause, sure = "gradient", Sureness.LIKELY
    said = f"the gradient of {some(names)} differs, though the backward pass agrees"
    ratios = [distance(p.a.tensors[0], p.b.tensors[0]).ratio for p in pairs
              if p.a and p.b and p.a.tensors and p.b.tensors]  # fmt: skip
    if not b.tensors or not a.tensors:
        lost = "get no gradient any more" if not b.tensors else "get a gradient now"
        said, cause, sure = f"{some(names)} {lost}", "frozen", Sureness.SURE
    elif _held(c.b, step) > _held(c.a, step) or _kept(c, step, pairs):
        said = "gradients are not cleared between steps: those of the step before are added"
        cause, sure, module = "not-cleared", Sureness.SURE, ""
    elif len(pairs) == len(every) and ratios and np.allclose(ratios, ratios[0], rtol=1e-3):
        said = f"all gradients are {figure(ratios[0])} times what they were: clipped or scaled"
        cause, sure, module = "scaled", Sureness.SURE, ""
    if gone or fresh:
        said += f"; `{call((fresh or gone)[0])}` is {'new' if fresh else 'gone'}"
    places = [p for e in fresh[:3] for p in places_of(c.b, "b", e, "new call")]
    places += [p for e in gone[:3] for p in places_of(c.a, "a", e, "call that is gone")]
    places += code_of(c.b, "b", c.b.modules.get(module))
    places += stepping(c.b, "b", step)
    kind = c.b.modules.get(module)
    return Finding(
        Phase.BACKWARD if cause in ("frozen", "gradient") else Phase.UPDATE, step, module,
        kind.short if kind else "", f"gradient of `{names[0]}`", cause, said,
        found[1] if found else None, "", tuple(f"newly called: {call(e)}" for e in fresh[:3]),
        tuple(places), sure,
    )  # fmt: skip


def _held(trace: Trace, step: int) -> int:
    """How many parameters had a gradient before the backward pass."""
    return max((int(e.raw.get("held", 0)) for e in trace.of("loss") if e.step == step), default=0)


def _kept(c: Comparison, step: int, pairs: Sequence[Pair]) -> bool:
    """Whether b's gradient is a's and b's of the step before together."""
    before = {e.path: e for e in c.b.of("pgrad") if e.step == step - 1 and e.tensors}
    checked = 0
    for pair in pairs:
        last = before.get(pair.b.path) if pair.b else None
        if last is None or not pair.a or not pair.b or not pair.a.tensors or not pair.b.tensors:
            continue
        now, was, old = (e.tensors[0].values for e in (pair.b, pair.a, last))
        if not len(now) or not np.allclose(now, was + old, rtol=1e-3, atol=1e-4 * float(
            np.abs(now).max()) + 1e-12):  # fmt: skip
            return False
        checked += 1
    return checked > 0


def stepping(trace: Trace, side: str, step: int) -> list[Place]:
    """Where the optimiser is made, where it is stepped, and where its step is written."""
    found: list[Place] = []
    for event in trace.of("hyper"):
        if event.step > step:
            break
        found = places_of(trace, side, event, "optimiser made")
        if frames := trace.frames(event.raw.get("at", -1)):
            found.append(Place(side, "optimiser stepped", frames))
        code = event.raw.get("f")
        if code and not event.raw["c"].startswith("torch."):
            found.append(Place(side, "step", (Frame(code[0], code[1], f"step …{code[2]}"),)))
    return found


def judge_update(c: Comparison, front: Front) -> Finding:
    """Equal gradients, and other weights after the step, or other settings of the optimiser."""
    step, pair = front.pair.step, front.pair
    a, b = pair.a, pair.b
    assert a is not None and b is not None
    places = [*stepping(c.b, "b", step), *stepping(c.a, "a", step)]
    if front.kind == "hyper":
        said, cause, tensor = _settings(c, step, b.path)
        return Finding(
            Phase.UPDATE, step, "", b.raw["c"].rpartition(".")[2], tensor, cause, said, None, "",
            (), tuple(places), Sureness.SURE,
        )  # fmt: skip
    found = first_distance(a, b)
    module = owner_of(b.path or "")
    kind = c.b.modules.get(module)
    names = [str(p.one.path) for p in c.pairs if p.one.kind == front.kind and p.step == step
             and c.differs(p)]  # fmt: skip
    if front.kind == "buffer":
        old = c.a.modules.get(c.alignment.modules.get(module, module))
        changes = changed(old.settings, kind.settings) if old and kind else []
        why = f": settings changed: {became(changes)}" if changes else ""
        said = f"statistics {some(names)} differ after equal forward passes{why}"
        return Finding(
            Phase.FORWARD, step, module, kind.short if kind else "", f"buffer `{b.path}`",
            "settings" if changes else "buffer", said, found[1] if found else None, "", (),
            (*code_of(c.b, "b", kind), *code_of(c.a, "a", old)),
            Sureness.SURE if changes else Sureness.LIKELY,
        )  # fmt: skip
    what = f"`{b.name}` of the optimiser" if front.kind == "state" else "the weights"
    said = (
        f"equal gradients and settings, and {what} differ after the step, first for {some(names)}"
    )
    if front.kind == "state" and _fresh(c, step):
        said = f"the optimiser's state is lost before step {step}: `{b.name}` starts anew"
    return Finding(
        Phase.UPDATE, step, "", "", f"`{b.path}` {b.name}".strip(), "optimiser", said,
        found[1] if found else None, "", (), tuple(places), Sureness.LIKELY,
    )  # fmt: skip


def _fresh(c: Comparison, step: int) -> bool:
    """Whether a moving average of b is what one step from nothing gives, a multiple of the
    gradient, and a's is not."""
    gradients = {e.path: e.tensors for e in c.b.of("pgrad") if e.step == step}
    for pair in c.pairs:
        a, b = pair.a, pair.b
        if pair.one.kind != "state" or pair.step != step or a is None or b is None:
            continue
        gradient = gradients.get(b.path)
        if not gradient or not a.tensors or not b.tensors or b.tensors[0].size < 2:
            continue
        anew, kept = (distance(gradient[0], e.tensors[0]).ratio for e in (b, a))
        if anew == anew:
            return kept != kept
    return False


def _settings(c: Comparison, step: int, optimiser: str | None) -> tuple[str, str, str]:
    """A sentence on the settings that differ, a word for them, and the setting itself."""
    old = c.hyper(c.a)[step].get(optimiser, {"class": "", "of": {}})
    new = c.hyper(c.b, aligned=True)[step].get(optimiser, {"class": "", "of": {}})
    if old["class"] != new["class"]:
        kinds = [one["class"].rpartition(".")[2] for one in (old, new)]
        return f"the optimiser is {kinds[1]} instead of {kinds[0]}", "optimiser", "optimiser"
    gone = [name for name in old["of"] if name not in new["of"]]
    if gone:
        return f"the optimiser is no longer given {some(gone)}", "parameters", "parameters"
    fresh = [name for name in new["of"] if name not in old["of"]]
    by_change: dict[tuple[str, str], list[str]] = {}
    keys: dict[tuple[str, str], str] = {}
    for name, now in new["of"].items():
        changes = changed(old["of"].get(name, {}), now) if name not in fresh else []
        if changes:
            shown = (became(changes), ", ".join(key for key, _, _ in changes))
            by_change.setdefault(shown, []).append(name)
            keys[shown] = changes[0][0]
    if not by_change:
        return f"the optimiser is given {some(fresh)} too", "parameters", "parameters"
    (said, _), names = next(iter(by_change.items()))
    key = next(iter(keys.values()))
    total = len(new["of"])
    whose = "" if len(names) == total else f" for {_group(c, names)}"
    sentence = f"optimiser settings differ at step {step}: {said}{whose}"
    if key == "lr" and (shift := _shift(c)):
        sentence = f"the learning-rate schedule is off by a step ({shift}): at step {step} {said}"
    if fresh:
        sentence += f"; it is given {some(fresh)} too"
    return sentence, "settings" if key != "lr" else "schedule", key


def _group(c: Comparison, names: Sequence[str]) -> str:
    """What several parameters have in common, said in a word where there is one."""
    kinds = {m.short for n in names if (m := c.b.modules.get(owner_of(n))) is not None}
    if kinds and all("Norm" in kind for kind in kinds):
        return f"the norms' {len(names)} parameters"
    if all(name.endswith("bias") for name in names):
        return f"{len(names)} biases"
    return f"{len(names)} parameters ({some(names)})"


def _shift(c: Comparison) -> str:
    """Whether one side's learning rates are the other's a step earlier or later."""
    rates = [_rates(trace) for trace in (c.a, c.b)]
    count = min(len(rates[0]), len(rates[1]))
    if count < 4 or len(set(rates[0])) < 3:
        return ""
    a, b = np.array(rates[0][:count]), np.array(rates[1][:count])
    for said, x, y in (("early", a[1:], b[:-1]), ("late", a[:-1], b[1:])):
        # The first and last rates may be those of a warm-up's or a fall's end.
        if np.isclose(x, y, rtol=1e-6, atol=1e-12).mean() > 0.9:
            return f"one step {said}"
    return ""


def _rates(trace: Trace) -> list[float]:
    """The learning rate of the first group of the first optimiser, by step."""
    rate, changes = 0.0, {
        e.step: float(e.raw["v"][0].get("lr", 0.0)) for e in trace.of("hyper") if e.path == "0"
    }  # fmt: skip
    found = []
    for pulse in trace.pulses:
        rate = changes.get(pulse.step, rate)
        found.append(rate)
    return found
