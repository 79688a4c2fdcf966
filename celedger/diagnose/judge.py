"""Judges the first difference: what it is, in words. Differences of the loss and of what is
reported are judged here, the others by the modules of their phase."""

from __future__ import annotations

from celedger.diagnose.beginnings import judge_data, judge_init
from celedger.diagnose.difference import Comparison, Front
from celedger.diagnose.finding import (
    Finding,
    Phase,
    Sureness,
    became,
    call,
    calls_changed,
    changed,
    novel,
    places_of,
    share,
)
from celedger.diagnose.forward import first_distance, judge_forward
from celedger.diagnose.updates import judge_backward, judge_gradients, judge_update


def judge(c: Comparison, front: Front) -> Finding:
    """What the first difference is, in words."""

    event = front.pair.one
    if front.kind == "init":
        return judge_init(c, front)
    if front.kind == "enter" and event.raw.get("u") is None and not event.evaluation:
        return _root(c, front)
    if front.kind in ("enter", "leave"):
        return judge_forward(c, front)
    if front.kind == "loss":
        return judge_loss(c, front)
    if front.kind in ("grad", "missing"):
        return judge_backward(c, front)
    if front.kind == "pgrad":
        return judge_gradients(c, front)
    if front.kind == "report":
        return judge_report(c, front)
    return judge_update(c, front)


def _root(c: Comparison, front: Front) -> Finding:
    """What the training loop hands to a module: a batch, or what it made of other outputs."""
    a, b = front.pair.a, front.pair.b
    assert a is not None and b is not None
    earlier = any(
        e.step == a.step and e.order < a.order and not e.evaluation for e in c.a.of("leave")
    )
    if not earlier:
        return judge_data(c, front)
    others = [not x.same(y) for x, y in zip(a.tensors, b.tensors, strict=False)]
    computed = any(
        tensor.gradient for tensor, other in zip(b.tensors, others, strict=False) if other
    )
    if not computed and _targets(c):
        return judge_loss(c, front)
    return judge_forward(c, front)


def judge_loss(c: Comparison, front: Front) -> Finding:
    """The outputs of the model agree and the loss does not: its function, or the targets."""
    a, b = front.pair.a, front.pair.b
    assert a is not None and b is not None
    mine, theirs = c.calls(None, 0, a)
    mine = [e for e in mine if e.order < a.order]
    theirs = [e for e in theirs if e.order < b.order]
    x, y = novel(mine, theirs)
    gone, fresh = calls_changed(mine, theirs)
    found = first_distance(a, b)
    places = [
        *places_of(c.b, "b", y, "call"), *places_of(c.a, "a", x, "call"),
        *(p for e in fresh[:3] for p in places_of(c.b, "b", e, "new call")),
        *(p for e in gone[:3] for p in places_of(c.a, "a", e, "call that is gone")),
        *places_of(c.b, "b", b, "caller"),
    ]  # fmt: skip
    said, cause, sure = "the loss of equal outputs differs", "loss", Sureness.LIKELY
    if wrong := _targets(c):
        said, cause, sure = wrong, "labels", Sureness.SURE
    elif x is not None and y is not None and x.name == y.name and x.literals != y.literals:
        said, cause, sure = (
            f"the loss calls `{call(y)}` instead of `{call(x)}`",
            "argument",
            (Sureness.SURE),
        )
    elif x is not None and y is not None and x.name == y.name:
        said = f"`{y.name}` in the loss is given other values"
    elif gone or fresh:
        old, new = (f"`{call(e[0])}`" if e else "nothing" for e in (gone, fresh))
        said, cause, sure = (
            f"the loss computes {new} where it computed {old}",
            "calls",
            (Sureness.SURE),
        )
    return Finding(
        Phase.LOSS, front.pair.step, None, "", "loss", cause, said, found[1] if found else None,
        call(y) if y is not None else "",
        tuple(f"newly called: {call(e)}" for e in fresh[:3]), tuple(places), sure,
    )  # fmt: skip


def _targets(c: Comparison) -> str:
    """What became of the targets, where they differ for the same inputs."""
    mine, theirs = c.a.rows["target"], c.b.rows["target"]
    wrong = total = 0
    for one, other in zip(mine, theirs, strict=False):
        if len(one) != len(other):
            return f"{len(other)} targets instead of {len(one)}"
        wrong += int((one != other).sum())
        total += len(one)
    return f"labels differ: {share(wrong / total)} of {total} targets" if wrong else ""


def judge_report(c: Comparison, front: Front) -> Finding:
    """Everything that was looked at agrees, and the number reported does not."""
    a, b = front.pair.a, front.pair.b
    assert a is not None and b is not None
    old, new = a.raw["v"], b.raw["v"]
    changes = [(name, x, y) for name, x, y in changed(old, new)
               if c.metrics is None or name in c.metrics]  # fmt: skip
    mine = [e for e in c.a.of("call") if e.evaluation and e.path is None]
    theirs = [e for e in c.b.of("call") if e.evaluation and e.path is None]
    x, y = novel(mine, theirs)
    gone, fresh = calls_changed(mine, theirs)
    said = f"the training agrees and the reported {became(changes[:3])} differs"
    sure = Sureness.LIKELY
    if gone or fresh:
        said += f": `{call((fresh or gone)[0])}` is {'new' if fresh else 'gone'} in the evaluation"
        sure = Sureness.SURE
    places = [
        *places_of(c.b, "b", y, "call"), *places_of(c.a, "a", x, "call"),
        *(p for e in fresh[:3] for p in places_of(c.b, "b", e, "new call")),
        *(p for e in gone[:3] for p in places_of(c.a, "a", e, "call that is gone")),
    ]  # fmt: skip
    return Finding(
        Phase.EVALUATION if gone or fresh else Phase.REPORT, front.pair.step, None, "",
        changes[0][0] if changes else "", "metric", said, None,
        call(y) if y is not None else "", (), tuple(places), sure,
    )  # fmt: skip
