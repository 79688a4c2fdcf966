"""Name why two trainings first differ: one table of causes, each with the part of a step to which
it applies, how sure it is, and its rule. The first rule that holds names the cause and its
sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from celedger.lab.diagnose import start_rules as start
from celedger.lab.diagnose import step_rules as step
from celedger.lab.diagnose.difference import Front, TraceComparison
from celedger.lab.diagnose.difference_context import DifferenceContext
from celedger.lab.diagnose.finding import (
    ExplainFinding,
    FindingPhase,
    Sureness,
    became,
    figure,
    named,
    share,
)

SURE, LIKELY, UNSURE = Sureness.SURE, Sureness.LIKELY, Sureness.UNSURE
_PHASES = {
    "init": FindingPhase.INIT, "data": FindingPhase.DATA, "forward": FindingPhase.FORWARD,
    "loss": FindingPhase.LOSS, "backward": FindingPhase.BACKWARD,
    "gradients": FindingPhase.BACKWARD, "settings": FindingPhase.UPDATE,
    "buffer": FindingPhase.FORWARD, "update": FindingPhase.UPDATE, "late": FindingPhase.UPDATE,
    "report": FindingPhase.REPORT,
}  # fmt: skip


class Cause(NamedTuple):
    """One row of the table. `rule` returns a sentence, or fields of the finding that include the
    sentence, or a false value if it does not hold. `name` is the finding's `cause`, unless the
    fields name another."""

    name: str
    part: str  # of the step, as in DifferenceContext
    sureness: Sureness
    rule: Callable[[Any], Any]  # of a DifferenceContext


def judge(c: TraceComparison, front: Front) -> ExplainFinding:
    """Name the cause of the first difference, and describe it."""
    context = DifferenceContext(c, front)
    for cause in CAUSES:
        if cause.part == context.part and (answer := cause.rule(context)):
            fields = {"sentence": answer} if isinstance(answer, str) else answer
            return _finding(context, cause, fields)
    raise AssertionError(f"no cause for {context.part}")  # the last rule of each part always holds


def _finding(s: DifferenceContext, cause: Cause, answer: dict[str, Any]) -> ExplainFinding:
    phase = _PHASES[cause.part]
    if cause.part == "forward" and s.evaluates:
        phase = FindingPhase.EVALUATION
    module = answer.get("module", _module(s))
    about = s.comparison.b.modules.get(module) if module is not None else None
    fields: dict[str, Any] = {
        "cause": cause.name, "phase": phase, "module": module, "kind": about.short if about else "",
        "tensor": _tensor(s), "operator": s.call, "facts": _facts(s),
        "distance": s.far if cause.part != "init" else None,
    } | answer  # fmt: skip
    fields["places"] = (*answer.get("places", ()), *s.places)
    return ExplainFinding(step=s.step, sureness=cause.sureness, **fields)


def _module(s: DifferenceContext) -> str | None:
    if s.part == "forward":
        return s.new.path if s.new is not None else s.owner
    if s.part == "backward":
        return s.gradient_path
    if s.part in ("gradients", "init", "buffer", "late"):
        trace = s.comparison.b if s.event_b is not None else s.comparison.a
        return trace.owner(s.pair.one.path or "")
    return "" if s.part in ("settings", "update") else None


def _tensor(s: DifferenceContext) -> str:
    path = s.pair.one.path
    return {
        "forward": f"{'input' if s.front.kind == 'enter' else 'output'} of {named(path)}",
        "backward": f"gradient of the output of {named(s.gradient_path)}",
        "gradients": f"gradient of `{path}`", "loss": "loss",
        "data": f"{s.input.removeprefix('the ')} of {named(path)}",
        "init": f"`{path}`", "late": f"`{path}`", "buffer": f"buffer `{path}`",
    }.get(s.part, f"`{path}` {s.pair.one.name}".strip())  # fmt: skip


def _facts(s: DifferenceContext) -> list[str]:
    facts = []
    if s.part == "forward" and s.event_a.raw.get("ac") != s.event_b.raw.get("ac"):
        facts.append(
            f"autocast {s.event_a.raw.get('ac') or 'off'} → {s.event_b.raw.get('ac') or 'off'}"
        )
    for word, calls in (("no longer", s.gone), ("newly", s.fresh)) if s.part != "report" else ():
        different = [*dict.fromkeys(event.call for event in calls)]
        facts += [f"{word} called: {call}" for call in different[:4]]
    return facts


CAUSES = (
    Cause("tie", "init", SURE, start.other_tie),
    Cause("initialisation", "init", SURE, start.wrong_weights),
    Cause("added", "init", SURE, lambda s: start.module_drawn(s, added=True)),
    Cause("removed", "init", SURE, lambda s: start.module_drawn(s, added=False)),
    Cause("random", "init", LIKELY, lambda s: s.same_draw and start.redrawn(
        s, f"other random numbers from `{s.same_draw}` on: the seed, or what drew before it, "
        "differs")),
    Cause("random", "init", SURE, lambda s: s.drawn and start.redrawn(
        s, f"{start.REORDERED}: {s.drawn}", operator=(s.other_draw[1] or s.other_draw[0]).call)),
    Cause("random", "init", LIKELY, lambda s: start.redrawn(s, start.REORDERED)),

    Cause("inputs", "data", SURE, step.other_inputs),
    Cause("batch-size", "data", SURE, lambda s: s.tensor_a.shape[1:] == s.tensor_b.shape[1:]
        and s.tensor_a.shape[:1] != s.tensor_b.shape[:1]
        and f"the batch has {s.tensor_b.shape[0]} rows instead of {s.tensor_a.shape[0]}"),
    Cause("shape", "data", SURE, lambda s: s.tensor_a.shape != s.tensor_b.shape
        and f"{s.input} has shape {list(s.tensor_b.shape)} instead of {list(s.tensor_a.shape)}"),
    Cause("dtype", "data", SURE, lambda s: s.tensor_a.dtype != s.tensor_b.dtype
        and f"{s.input} is {s.tensor_b.dtype} instead of {s.tensor_a.dtype}"),
    Cause("order", "data", SURE, start.data_order),
    Cause("data", "data", LIKELY, start.other_rows),
    Cause("scale", "data", SURE, lambda s: s.far is not None and s.far.ratio == s.far.ratio
        and f"{s.input} is "
        + (f"{figure(s.far.ratio)} times what it was" if s.far.ratio else "zero")),
    Cause("scale", "data", SURE, start.scaled_input),
    Cause("data", "data", LIKELY, lambda s: f"{s.input} differs in "
        f"{share(s.far.share if s.far else 0.0)} of its elements"
        f"{start.other_numbers(s) or s.more}"),

    Cause("mode", "forward", SURE, step.other_mode),
    Cause("inputs", "forward", SURE, step.other_inputs),
    Cause("called", "forward", SURE, step.other_calls),
    Cause("class", "forward", SURE, lambda s: s.old and s.new and s.old.short != s.new.short
        and (s.old.of_torch or s.new.of_torch)
        and step.constructed(s, f"{s.place} is a {s.new.short} where it was a {s.old.short}")),
    Cause("settings", "forward", SURE, lambda s: s.settings and step.constructed(
        s, f"settings of {s.place} ({s.new.short}) changed: {became(s.settings)}")),
    Cause("added", "forward", SURE, lambda s: step.child(s, added=True)),
    Cause("removed", "forward", SURE, lambda s: step.child(s, added=False)),
    Cause("dtype", "forward", SURE, step.other_type),
    Cause("random", "forward", LIKELY, lambda s: step.draws_otherwise(s)
        and f"random numbers in {s.place} are drawn in another order"),
    Cause("value", "forward", SURE, lambda s: step.other_argument(s, number=True)),
    Cause("argument", "forward", SURE, lambda s: step.other_argument(s, number=False)),
    Cause("calls", "forward", SURE, lambda s: s.computed
        and f"{s.place} computes something else: {s.computed}"),
    Cause("weights", "forward", LIKELY, step.other_weights),
    Cause("operands", "forward", LIKELY, lambda s: s.same_function
        and s.first_calls[0].raw["i"] != s.first_calls[1].raw["i"]
        and f"`{s.first_calls[1].function}` in {s.place} is given {step.other_operands(s)}"),
    Cause("operands", "forward", LIKELY, lambda s: not s.same_function and s.given_otherwise
        and f"`{s.given_otherwise}` in {s.place} is given other operands"),
    Cause("result", "forward", UNSURE, lambda s: s.same_function
        and f"`{s.call}` in {s.place} gives another result for the same arguments"),
    Cause("not-cleared", "forward", SURE, step.not_cleared),
    Cause("given", "forward", LIKELY, lambda s: s.front.kind == "enter" and not any(s.first_calls)
        and {"sentence": f"{named(s.event_b.path)} is given another {s.input.removeprefix('the ')}",
             "places": s.both_places(s.event_a, s.event_b, "caller")}),
    Cause("code", "forward", LIKELY, lambda s: f"the code of {s.place} computes something else"),

    Cause("labels", "loss", SURE, step.labels),
    Cause("inputs", "loss", SURE, step.other_inputs),
    Cause("called", "loss", SURE, step.other_calls),
    Cause("argument", "loss", SURE, step.other_argument),
    Cause("loss", "loss", LIKELY, lambda s: s.same_function
        and s.first_calls[0].bare == s.first_calls[1].bare
        and f"`{s.first_calls[1].function}` in the loss is given other values"),
    Cause("calls", "loss", SURE, lambda s: s.computed
        and f"the loss computes something else: {s.computed}"),
    Cause("loss", "loss", LIKELY, lambda s: s.given_otherwise
        and f"`{s.given_otherwise}` in the loss is given other values"),
    Cause("loss", "loss", LIKELY, lambda s: "the loss of equal outputs differs"),

    Cause("loss", "backward", LIKELY, step.gradient_within),
    # A detached gradient is named before other new calls of the step.
    Cause("detached", "backward", SURE, lambda s: step.gradient_cut(s, on="b", explained=True)),
    Cause("attached", "backward", SURE, lambda s: step.gradient_cut(s, on="a", explained=True)),
    Cause("detached", "backward", LIKELY, lambda s: step.gradient_cut(s, on="b", explained=False)),
    Cause("attached", "backward", LIKELY, lambda s: step.gradient_cut(s, on="a", explained=False)),
    Cause("called", "backward", SURE, step.other_calls),
    Cause("gradient", "backward", LIKELY, lambda s: step.flagged_output(s) and step.gradient(s)),
    Cause("calls", "backward", SURE, lambda s: (s.gone or s.fresh) and step.gradient(s)),
    Cause("gradient", "backward", LIKELY, step.gradient),

    Cause("passes", "gradients", SURE, lambda s: step.passes(s)
        and step.optimiser_given(s, step.passes(s), by_loop=True)),
    Cause("called", "gradients", SURE, step.other_calls),
    Cause("frozen", "gradients", SURE, lambda s: not s.event_b.tensors
        and step.optimiser_given(s, f"{step.changed_names(s)} no longer get a gradient")),
    Cause("frozen", "gradients", SURE, lambda s: not s.event_a.tensors
        and step.optimiser_given(s, f"{step.changed_names(s)} get a gradient now")),
    Cause("not-cleared", "gradients", SURE, step.not_cleared),
    Cause("scaled", "gradients", SURE, lambda s: (factor := step.gradient_factor(s))
        and step.optimiser_given(
            s, f"{step.all_gradients(s)} {figure(factor)} times what they were: clipped or scaled",
            by_loop=True)),
    Cause("settings", "gradients", SURE, lambda s: not s.every_gradient and step.owner_settings(s)),
    Cause("loss", "gradients", LIKELY, step.gradient_within),
    Cause("gradient", "gradients", LIKELY, step.unexplained_gradient),

    Cause("settings", "settings", SURE, step.optimiser_settings),
    Cause("settings", "buffer", SURE, lambda s: step.buffer(s, by_settings=True)),
    Cause("buffer", "buffer", LIKELY, lambda s: step.buffer(s, by_settings=False)),
    Cause("optimiser", "update", LIKELY, lambda s: s.front.kind == "state" and step.state_anew(s)
        and f"the optimiser's state is lost before step {s.step}: `{s.event_b.name}` starts anew"),
    Cause("argument", "update", SURE, lambda s: step.other_argument(s)
        and f"the weights' own update: {step.other_argument(s)}"),
    Cause("calls", "update", SURE, lambda s: s.computed
        and f"the weights' own update computes something else: {s.computed}"),
    Cause("optimiser", "update", LIKELY, lambda s: "equal gradients and settings, and "
        * any(e.tensors for e in s.comparison.b.of("pgrad") if e.step == s.step)
        + (f"`{s.event_b.name}` of the optimiser" if s.front.kind == "state" else "the weights")
        + f" differ after the step, first for {step.changed_names(s)}"),

    Cause("argument", "late", SURE, lambda s: step.other_argument(s)
        and f"{step.changed_names(s)} differ when first used, in step {s.step}: "
            f"{step.other_argument(s)}"),
    Cause("weights", "late", LIKELY, lambda s:
        f"{step.changed_names(s)} differ when first used, in step {s.step}{s.more}"),

    Cause("metric", "report", SURE, lambda s: any(s.first_calls) and step.report(s)),
    Cause("metric", "report", LIKELY, step.report),
)  # fmt: skip
