"""`celedger watch`, as text and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap

from celedger.diagnose.watch import JudgedTraining, WatchpointFinding, WatchReport
from celedger.diagnose.watch_rules import TensorPlace
from celedger.diagnose.watched import FUNCTION, LossScale
from celedger.views.document import Json, document
from celedger.views.format import count, number, percent, plain, short

# float16's scale is worth a word where more than this would be lost without one: the rest is noise
# of the sample.
_WORTH = 0.01


def watch_text(report: WatchReport, *, width: int = 100) -> str:
    lines: list[str] = []
    for place, judged in enumerate(report.trainings, start=1):
        several = f", training {place} of {len(report.trainings)}" * (len(report.trainings) > 1)
        lines += [_head(report, judged) + several, ""]
        for finding in judged.findings:
            lines += [*_finding(finding, width), ""]
        lines += _halves(judged, width)
    if report.failed:
        lines += wrap(f"the run did not end well: {plain(report.failed)}", width)
    return "\n".join(lines).rstrip()


def _head(report: WatchReport, judged: JudgedTraining) -> str:
    training = judged.training
    said = count(len(judged.findings), "watchpoint") + " fired"
    if not judged.findings:
        said = "quiet until it failed" if report.failed else "all quiet"
    return (
        f"{report.task.suite}/{report.task.name} at {short(report.commit.sha)}, seed {report.seed}"
        f": {said}; {count(training.length, 'step')}, {len(training.steps)} looked at"
    )


def _finding(finding: WatchpointFinding, width: int) -> Iterator[str]:
    point, place = finding.watchpoint, finding.first
    sign = "<" if point.below and place.figure < finding.threshold else ">"
    if place.figure == finding.threshold:
        sign = "at"
    beyond = f"{point.measures} {number(place.figure, significant=3)}"
    if math.isfinite(finding.threshold):
        beyond += f", {sign} {number(finding.threshold, significant=3)}"
    yield f"{point.name}  step {place.step}, {module(place)}, {place.tensor}"
    yield from _indented(beyond + (f": {place.note}" if place.note else ""), width)
    if finding.more > 0:
        yield f"  and {count(finding.more, 'other place')}"
    yield from _indented(f"try: {point.advice}", width)


def module(place: TensorPlace) -> str:
    """A module's path as a person reads it."""
    return {"": "the model", FUNCTION: "outside the modules"}.get(place.module, plain(place.module))


def _halves(judged: JudgedTraining, width: int) -> list[str]:
    scale, half = judged.scale, judged.training.half
    if scale.recommended is None:
        return []
    if half == "bfloat16":
        lost = percent(scale.flushed_bfloat16, signed=False)
        return [*_indented(f"half precision: bfloat16, which makes {lost} of the gradients zero: "
                           "no loss scale needed", width, 0), ""]  # fmt: skip
    if half != "float16" and scale.flushed < _WORTH:
        return []
    return [*_indented(_advice(scale, used=half == "float16"), width, 0), ""]


def _advice(scale: LossScale, *, used: bool) -> str:
    best = scale.recommended or 1.0
    said = f"loss scale: 2^{round(math.log2(best))} = {best:.0f}" if used else (
        f"were it trained in float16: a loss scale of 2^{round(math.log2(best))} = {best:.0f}"
    )  # fmt: skip
    said += f", the largest power of two that keeps every gradient finite (largest seen {number(scale.largest_gradient, significant=3)})"  # noqa: E501
    if math.isnan(scale.flushed):
        said += "; every gradient seen was zero"
    else:
        said += f"; gradients made zero: {percent(scale.flushed, signed=False)} unscaled"
        if used and scale.in_use > 1:
            lost = percent(scale.flushed_in_use, signed=False)
            said += f", {lost} at {scale.in_use:.0f} as trained"
        said += f", {percent(scale.flushed_at_recommended, signed=False)} with it"
    if used:
        said += f". In the script: torch.amp.GradScaler(init_scale={best:.0f})"
    return said


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
        "steps": judged.training.length,
        "looked_at": [step.number for step in judged.training.steps],
        "half_precision": judged.training.half or None,
        "loss_scale": asdict(judged.scale),
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
