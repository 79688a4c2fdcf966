"""`celedger watch`, as text and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap

from celedger.lab.diagnose.watch import JudgedTraining, WatchpointFinding, WatchReport
from celedger.lab.diagnose.watch_records import FUNCTION, LossScale
from celedger.lab.diagnose.watch_rules import TensorPlace
from celedger.views.document import Json, document
from celedger.views.format import count, number, percent, plain, short

# A loss scale for float16 is mentioned if more than this would underflow without one: the rest is
# noise of the sample.
_WORTH = 0.01
_ROWS = 10  # of the largest losses


def watch_text(report: WatchReport, *, width: int = 100) -> str:
    name = f"{report.task.suite}/{report.task.name} at {short(report.commit.sha)}"
    lines: list[str] = []
    for position, judged in enumerate(report.trainings, start=1):
        training = judged.training
        head = f"{name}, seed {report.seed}: {_result(report, judged)}; "
        head += f"{count(training.length, 'step')}, {len(training.steps)} looked at"
        if len(report.trainings) > 1:
            head += f", {training.rank or f'training {position} of {len(report.trainings)}'}"
        lines += [head, ""]
        for finding in judged.findings:
            lines += [*_finding(finding, width), ""]
        lines += _halves(judged, width)
        if worst := training.samples[:_ROWS]:
            rows = (f"{index} ({number(loss, significant=3)})" for index, loss, _ in worst)
            lines += [*_indented(f"rows with the largest loss: {', '.join(rows)}", width, 0), ""]
    if report.failed:
        lines += wrap(f"the run did not end well: {plain(report.failed)}", width)
    return "\n".join(lines).rstrip()


def watch_headline(report: WatchReport) -> str:
    """Return which watchpoints fired, and where each fired first."""
    fired = [one for judged in report.trainings for one in judged.findings]
    if not fired:
        return _result(report, *report.trainings[:1])
    return ", ".join(
        f"{one.watchpoint.name} at step {one.first.step} in {module(one.first)}" for one in fired
    )


def _result(report: WatchReport, judged: JudgedTraining | None = None) -> str:
    if judged is not None and judged.findings:
        return f"{count(len(judged.findings), 'watchpoint')} fired"
    return "quiet until it failed" if report.failed else "all quiet"


def _finding(finding: WatchpointFinding, width: int) -> Iterator[str]:
    point, tensor = finding.watchpoint, finding.first
    sign = "<" if point.below and tensor.figure < finding.threshold else ">"
    if tensor.figure == finding.threshold:
        sign = "at"
    beyond = f"{point.measures} {number(tensor.figure, significant=3)}"
    if math.isfinite(finding.threshold):
        beyond += f", {sign} {number(finding.threshold, significant=3)}"
    yield f"{point.name}  step {tensor.step}, {module(tensor)}, {tensor.tensor}"
    yield from _indented(beyond + (f": {tensor.note}" if tensor.note else ""), width)
    if finding.more > 0:
        yield f"  and {count(finding.more, 'other place')}"
    yield from _indented(f"try: {point.advice}", width)


def module(tensor: TensorPlace) -> str:
    """Return a module's path as printed."""
    return {"": "the model", FUNCTION: "outside the modules"}.get(
        tensor.module, plain(tensor.module)
    )


def _halves(judged: JudgedTraining, width: int) -> list[str]:
    """Return the loss scale that half precision needs, if it is or would be worth mentioning."""
    scale, half = judged.scale, judged.training.half
    if scale.recommended is None:
        return []
    if half == "bfloat16":
        text = "half precision: bfloat16, which makes "
        text += f"{percent(scale.flushed_bfloat16)} of the gradients zero: no loss scale needed"
    elif half == "float16" or not scale.flushed < _WORTH:
        text = _scale_advice(scale, scale.recommended, used=half == "float16")
    else:
        return []
    return [*_indented(text, width, 0), ""]


def _scale_advice(scale: LossScale, best: float, *, used: bool) -> str:
    text = "loss scale: " if used else "were it trained in float16: a loss scale of "
    text += f"2^{round(math.log2(best))} = {best:.0f}, the largest power of two that keeps every "
    text += f"gradient finite (largest seen {number(scale.largest_gradient, significant=3)})"
    if math.isnan(scale.flushed):
        text += "; every gradient seen was zero"
    else:
        text += f"; gradients made zero: {percent(scale.flushed)} unscaled"
        if used and scale.in_use > 1:
            text += f", {percent(scale.flushed_in_use)} at {scale.in_use:.0f} as trained"
        text += f", {percent(scale.flushed_at_recommended)} with it"
    if used:
        text += f". In the script: torch.amp.GradScaler(init_scale={best:.0f})"
    return text


def _indented(text: str, width: int, indent: int = 2) -> list[str]:
    blank = " " * indent
    return wrap(text, width, initial_indent=blank, subsequent_indent=blank + "  ",
                break_long_words=False)  # fmt: skip


def watch_json(report: WatchReport) -> dict[str, Json]:
    return document(
        suite=report.task.suite,
        task=report.task.name,
        commit=report.commit.sha,
        seed=report.seed,
        failed=report.failed or None,
        trainings=[_training_json(judged) for judged in report.trainings],
    )


def _training_json(judged: JudgedTraining) -> dict[str, object]:
    return {
        "rank": judged.training.rank or None,
        "steps": judged.training.length,
        "looked_at": [step.number for step in judged.training.steps],
        "half_precision": judged.training.half or None,
        "loss_scale": asdict(judged.scale),
        "samples": [
            {"index": index, "loss": loss, "step": step}
            for index, loss, step in judged.training.samples
        ],
        "findings": [
            {
                "watchpoint": f.watchpoint.name,
                "step": f.first.step,
                "module": None if f.first.module == FUNCTION else f.first.module,
                "tensor": f.first.tensor,
                "figure": f.first.figure,
                "threshold": f.threshold,
                "measures": f.watchpoint.measures,
                "note": f.first.note,
                "other_places": f.more,
                "advice": f.watchpoint.advice,
            }
            for f in judged.findings
        ],
    }
