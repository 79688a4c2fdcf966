"""Why two trainings first differ: one table of causes, each with the part of a step where it is
asked, how sure it is, and its rule. The first rule that holds names the cause and its sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from celedger.diagnose import start_rules as start
from celedger.diagnose import step_rules as step
from celedger.diagnose.difference import Front, TraceComparison
from celedger.diagnose.distance import distance
from celedger.diagnose.finding import (
    ExplainFinding,
    FindingPhase,
    Sureness,
    became,
    call,
    figure,
    named,
    owner_of,
    share,
)
from celedger.diagnose.scene import RuleAnswer, Scene, Where, named_call

_PHASES = {
    Where.INIT: FindingPhase.INIT, Where.DATA: FindingPhase.DATA,
    Where.FORWARD: FindingPhase.FORWARD, Where.LOSS: FindingPhase.LOSS,
    Where.BACKWARD: FindingPhase.BACKWARD, Where.GRADIENTS: FindingPhase.BACKWARD,
    Where.SETTINGS: FindingPhase.UPDATE, Where.BUFFER: FindingPhase.FORWARD,
    Where.UPDATE: FindingPhase.UPDATE, Where.REPORT: FindingPhase.REPORT,
}  # fmt: skip

Rule = Callable[[Scene], Any]  # an Answer or its sentence; what is false where it does not hold


@dataclass(frozen=True, slots=True)
class Cause:
    name: str
    where: Where
    sureness: Sureness
    rule: Rule


def judge(c: TraceComparison, front: Front) -> ExplainFinding:
    """What the first difference is, in words."""
    scene = Scene(c, front)
    for cause in CAUSES:
        if cause.where is scene.where and (answer := cause.rule(scene)):
            said = RuleAnswer(answer) if isinstance(answer, str) else answer
            return _finding(scene, cause, said)
    raise AssertionError(f"no cause for {scene.where}")  # each place ends with a rule that holds


def _finding(s: Scene, cause: Cause, answer: RuleAnswer) -> ExplainFinding:
    event = s.pair.b or s.pair.a
    assert event is not None
    module = answer.module if answer.module is not None else _module(s)
    about = s.c.b.modules.get(module) if module is not None else None
    facts = answer.facts or _facts(s)
    return ExplainFinding(
        answer.phase or (FindingPhase.EVALUATION if s.where is Where.FORWARD and event.evaluation
                         else _PHASES[s.where]),
        s.step, module, answer.kind or (about.short if about else ""),
        answer.tensor or _tensor(s), cause.name, answer.sentence,
        answer.far if s.where is Where.INIT else s.far,
        answer.operator or s.call, tuple(facts),
        (*answer.places, *s.places), cause.sureness,
        event.evaluation if s.where is Where.FORWARD else 0,
    )  # fmt: skip


def _module(s: Scene) -> str | None:
    if s.where is Where.FORWARD:
        new = s.modules[1]
        return new.path if new is not None else s.owner
    if s.where is Where.BACKWARD:
        return s.gradient_path
    if s.where is Where.GRADIENTS:
        return owner_of(str(step.gradient_pairs(s)[0].one.path))
    if s.where in (Where.INIT, Where.BUFFER):
        return owner_of(s.pair.one.path or "")
    return "" if s.where in (Where.SETTINGS, Where.UPDATE) else None


def _tensor(s: Scene) -> str:
    if s.where is Where.FORWARD:
        what = "input" if s.front.kind == "enter" else "output"
        return f"{what} of {named(s.b.path)}"
    if s.where is Where.BACKWARD:
        return f"gradient of the output of {named(s.gradient_path)}"
    if s.where is Where.GRADIENTS:
        return f"gradient of `{step.gradient_pairs(s)[0].one.path}`"
    return {
        Where.DATA: f"input of {named(s.pair.one.path)}", Where.LOSS: "loss",
        Where.INIT: f"`{s.pair.one.path}`", Where.BUFFER: f"buffer `{s.pair.one.path}`",
    }.get(s.where, f"`{s.pair.one.path}` {s.pair.one.name}".strip())  # fmt: skip


def _facts(s: Scene) -> list[str]:
    facts = []
    if s.where is Where.FORWARD and s.a.raw.get("ac") != s.b.raw.get("ac"):
        facts.append(f"autocast {s.a.raw.get('ac') or 'off'} → {s.b.raw.get('ac') or 'off'}")
    if s.where is not Where.REPORT:
        facts += [f"no longer called: {call(event)}" for event in s.gone[:4]]
        facts += [f"newly called: {call(event)}" for event in s.fresh[:4]]
    return facts


SURE, LIKELY, UNSURE = Sureness.SURE, Sureness.LIKELY, Sureness.UNSURE

CAUSES = (
    Cause("initialisation", Where.INIT, SURE, start.wrong_weights),
    Cause("added", Where.INIT, SURE, lambda s: start.module_drawn(s, added=True)),
    Cause("removed", Where.INIT, SURE, lambda s: start.module_drawn(s, added=False)),
    Cause("random", Where.INIT, LIKELY, lambda s: s.same_draw and start.redrawn(
        s, f"other random numbers from `{s.same_draw}` on: the seed, or what drew before it, "
        "differs")),
    Cause("random", Where.INIT, SURE, lambda s: s.drawing and start.redrawn(
        s, f"{start.REORDERED}: {start.drawn(s)}", operator=s.drawing)),
    Cause("random", Where.INIT, LIKELY, lambda s: start.redrawn(s, start.REORDERED)),

    Cause("batch-size", Where.DATA, SURE, lambda s: s.x.shape[1:] == s.y.shape[1:]
          and s.x.shape[:1] != s.y.shape[:1]
          and f"the batch has {s.y.shape[0]} rows instead of {s.x.shape[0]}"),
    Cause("shape", Where.DATA, SURE, lambda s: s.x.shape != s.y.shape
          and f"the input has shape {list(s.y.shape)} instead of {list(s.x.shape)}"),
    Cause("dtype", Where.DATA, SURE, lambda s: s.x.dtype != s.y.dtype
          and f"the input is {s.y.dtype} instead of {s.x.dtype}"),
    Cause("order", Where.DATA, SURE, start.data_order),
    Cause("data", Where.DATA, LIKELY, lambda s: start.other_batch(s) and start.shared_rows(s) >= 0.5
          and f"other rows are drawn: {share(start.shared_rows(s))} of them are the same"
          + s.more),
    Cause("scale", Where.DATA, SURE, lambda s: s.far is not None and s.far.ratio == s.far.ratio
          and f"the input is {figure(s.far.ratio)} times what it was"),
    Cause("axes", Where.DATA, SURE, lambda s: len(s.x.values) == s.x.size
          and np.array_equal(np.sort(s.x.values), np.sort(s.y.values))
          and "the input has the same values in other places: an axis is swapped or flipped"),
    Cause("scale", Where.DATA, SURE, start.scaled_input),
    Cause("data", Where.DATA, LIKELY, lambda s: "the input differs in "
          f"{share(distance(s.x, s.y).share)} of its elements{s.more}"),

    Cause("mode", Where.FORWARD, SURE, step.other_mode),
    Cause("class", Where.FORWARD, SURE, lambda s: s.old and s.new and s.old.short != s.new.short
          and (s.old.of_torch or s.new.of_torch)
          and f"{s.place} is a {s.new.short} where it was a {s.old.short}"),
    Cause("settings", Where.FORWARD, SURE, lambda s: s.new and s.settings
          and f"settings of {s.place} ({s.new.short}) changed: {became(s.settings)}"),
    Cause("added", Where.FORWARD, SURE, lambda s: step.child(s, added=True)),
    Cause("removed", Where.FORWARD, SURE, lambda s: step.child(s, added=False)),
    Cause("dtype", Where.FORWARD, SURE, lambda s: (types := step.computed_types(s))
          and f"{s.place} computes `{s.function}` in {types[1]} instead of {types[0]}"),
    Cause("random", Where.FORWARD, LIKELY, lambda s: step.draws_otherwise(s)
          and f"random numbers in {s.place} are drawn in another order"),
    Cause("value", Where.FORWARD, SURE, lambda s: step.other_argument(s, number=True)),
    Cause("argument", Where.FORWARD, SURE, lambda s: step.other_argument(s, number=False)),
    Cause("calls", Where.FORWARD, SURE, step.other_calls),
    Cause("operands", Where.FORWARD, LIKELY, lambda s: s.same_function and not s.same_operands
          and f"`{s.function}` in {s.place} is given other operands"),
    Cause("result", Where.FORWARD, UNSURE, lambda s: s.same_function
          and f"`{s.call}` in {s.place} gives another result for the same "
          "arguments"),
    Cause("code", Where.FORWARD, LIKELY,
          lambda s: f"the code of {s.place} computes something else"),

    Cause("labels", Where.LOSS, SURE, lambda s: s.labels),
    Cause("argument", Where.LOSS, SURE, step.other_argument),
    Cause("loss", Where.LOSS, LIKELY, lambda s: s.same_function
          and f"`{s.function}` in the loss is given other values"),
    Cause("calls", Where.LOSS, SURE, lambda s: (s.gone or s.fresh)
          and f"the loss computes {named_call(s.fresh)} where it computed {named_call(s.gone)}"),
    Cause("loss", Where.LOSS, LIKELY, lambda s: "the loss of equal outputs differs"),

    # What cuts a gradient off is named before what else is new in the step.
    Cause("detached", Where.BACKWARD, SURE, lambda s: step.gradient_cut(s, on="b", seen=True)),
    Cause("attached", Where.BACKWARD, SURE, lambda s: step.gradient_cut(s, on="a", seen=True)),
    Cause("detached", Where.BACKWARD, LIKELY, lambda s: step.gradient_cut(s, on="b", seen=False)),
    Cause("attached", Where.BACKWARD, LIKELY, lambda s: step.gradient_cut(s, on="a", seen=False)),
    Cause("gradient", Where.BACKWARD, LIKELY,
          lambda s: step.flagged_output(s) and step.gradient(s)),
    Cause("calls", Where.BACKWARD, SURE, lambda s: (s.gone or s.fresh) and step.gradient(s)),
    Cause("gradient", Where.BACKWARD, LIKELY, step.gradient),

    Cause("frozen", Where.GRADIENTS, SURE, lambda s: not s.b.tensors
          and step.optimiser_given(s, f"{step.changed_names(s)} get no gradient any more")),
    Cause("frozen", Where.GRADIENTS, SURE, lambda s: not s.a.tensors
          and step.optimiser_given(s, f"{step.changed_names(s)} get a gradient now")),
    Cause("not-cleared", Where.GRADIENTS, SURE, lambda s: step.not_cleared(s)
          and step.optimiser_given(s, "gradients are not cleared between steps: those of the step "
                                   "before are added", by_loop=True)),
    Cause("scaled", Where.GRADIENTS, SURE, lambda s: step.gradient_factor(s)
          and step.optimiser_given(s, f"all gradients are {figure(step.gradient_factor(s) or 0.0)}"
                                   " times what they were: clipped or scaled", by_loop=True)),
    Cause("gradient", Where.GRADIENTS, LIKELY, lambda s: step.optimiser_given(
        s, f"the gradient of {step.changed_names(s)} differs, though the backward pass agrees")),

    Cause("optimiser", Where.SETTINGS, SURE, lambda s: step.optimiser_settings(s, "optimiser")),
    Cause("parameters", Where.SETTINGS, SURE, lambda s: step.optimiser_settings(s, "parameters")),
    Cause("schedule", Where.SETTINGS, SURE, lambda s: step.optimiser_settings(s, "schedule")),
    Cause("settings", Where.SETTINGS, SURE, lambda s: step.optimiser_settings(s, "settings")),
    Cause("settings", Where.BUFFER, SURE, lambda s: step.buffer(s, by_settings=True)),
    Cause("buffer", Where.BUFFER, LIKELY, lambda s: step.buffer(s, by_settings=False)),
    Cause("optimiser", Where.UPDATE, LIKELY, lambda s: s.front.kind == "state"
          and step.state_anew(s)
          and f"the optimiser's state is lost before step {s.step}: `{s.b.name}` starts anew"),
    Cause("optimiser", Where.UPDATE, LIKELY, lambda s: "equal gradients and settings, and "
          + (f"`{s.b.name}` of the optimiser" if s.front.kind == "state" else "the weights")
          + f" differ after the step, first for {step.changed_names(s)}"),

    Cause("metric", Where.REPORT, SURE, lambda s: (s.gone or s.fresh) and step.report(s)),
    Cause("metric", Where.REPORT, LIKELY, step.report),
)  # fmt: skip
