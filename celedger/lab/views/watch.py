"""`celedger watch`, as text and JSON."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import wrap

from celedger.lab.diagnose.watch import JudgedTraining, WatchpointFinding, WatchReport
from celedger.lab.diagnose.watch_records import FUNCTION, Watched
from celedger.lab.diagnose.watch_rules import TensorPlace
from celedger.views.document import Json, count, document, number, percent, pick, plain, short

_WORTH = 0.01  # the share of a layer's gradients below the smallest normal number that is mentioned
_ROWS = 10  # of the largest losses, and of skipped steps
_LAYERS = 3


def watch_text(report: WatchReport, *, width: int = 100) -> str:
    name = f"{report.task.suite}/{report.task.name} at {short(report.commit.sha)}"
    lines: list[str] = []
    for position, judged in enumerate(report.trainings, start=1):
        training = judged.training
        head = f"{name}, seed {report.seed}: {_result(report, judged)}; "
        head += f"{count(training.length, 'step')}, {len(training.steps)} sampled"
        if len(report.trainings) > 1:
            head += f", {training.rank or f'training {position} of {len(report.trainings)}'}"
        lines += [head, ""]
        for finding in judged.findings:
            lines += [*_finding(finding, width), ""]
        for text in (_scales(training), _subnormal(training)):
            lines += [*_indented(text, width, 0), ""] if text else []
        lines += _values(training, width)
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
        f"{one.watchpoint.name} at step {one.first.step} {place(one.first)}" for one in fired
    )


def _result(report: WatchReport, judged: JudgedTraining | None = None) -> str:
    if judged is not None and judged.findings:
        return f"{count(len(judged.findings), 'watchpoint')} fired"
    return "no watchpoint fired before it failed" if report.failed else "all quiet"


def _finding(finding: WatchpointFinding, width: int) -> Iterator[str]:
    point, tensor = finding.watchpoint, finding.first
    text = f"{point.measures}: {number(tensor.figure, significant=3)}"
    if math.isfinite(finding.threshold):
        word = "less" if point.below and tensor.figure < finding.threshold else "more"
        limit = number(finding.threshold, significant=3)
        text += f" ({word} than {limit})" if tensor.figure != finding.threshold else ""
    yield f"{point.name}  step {tensor.step}, {place(tensor)}: {tensor.tensor}"
    yield from _indented(text + (f"; {tensor.note}" if tensor.note else ""), width)
    if finding.more > 0:
        yield f"  and {count(finding.more, 'other place')}"
    yield from _indented(f"try: {tensor.advice or point.advice}", width)


def place(tensor: TensorPlace) -> str:
    """Return where a tensor is, as printed."""
    if tensor.module == FUNCTION:
        return "outside the modules"
    return f"in {plain(tensor.module) or 'the model'}"


def _scales(training: Watched) -> str:
    """Return how a gradient scaler's loss scale went, and the steps that it skipped."""
    if not training.scales:
        return ""
    scales = [scale for _, scale, _ in training.scales]
    skipped = [step for step, _, was in training.scales if was]
    some = ", ".join(map(str, skipped[:_ROWS])) + (", …" if skipped[_ROWS:] else "")
    text = f"loss scale: {scales[0]:.6g} at first, {scales[-1]:.6g} at the end; "
    return text + f"{count(len(skipped), 'step')} skipped" + (f": {some}" if some else "")


def subnormal(training: Watched) -> dict[str, list[tuple[int, float]]]:
    """Return by layer the steps looked at, with the share of its gradients that are not zero and
    below the smallest normal number of the type in which they were computed."""
    shares: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for step in training.steps:
        for row in step.rows:
            if row.kind == "parameter":
                shares[row.name].append((step.number, row.subnormal))
    return {name: rows for name, rows in shares.items() if any(share for _, share in rows)}


def _subnormal(training: Watched) -> str:
    worst = sorted(
        ((share, step, name) for name, rows in subnormal(training).items() for step, share in rows),
        reverse=True,
    )
    layers = list({name: (share, step) for share, step, name in reversed(worst)}.items())[::-1]
    named = [f"{percent(share)} of {name} at step {step}"
             for name, (share, step) in layers if share >= _WORTH]  # fmt: skip
    if not named:
        return ""
    half = training.half or "their type"
    more = f", and {count(len(named) - _LAYERS, 'other layer')}" if named[_LAYERS:] else ""
    return (
        f"gradients below the smallest normal number of {half}: {', '.join(named[:_LAYERS])}{more}"
    )


def _values(training: Watched, width: int) -> list[str]:
    """Return the values of the tensor that was asked for, a line for each step and part."""
    lines = []
    for one in training.values:
        shape = "×".join(map(str, one.shape)) or "1"
        lines.append(f"step {one.step} {one.part} ({one.dtype}, {shape})")
        numbers = " ".join(number(value, significant=5) for value in one.values)
        more = " …" if math.prod(one.shape) > len(one.values) else ""
        lines += _indented(numbers + more, width)
    return [*lines, ""] if lines else []


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


def _rows(names: str, rows: Sequence[Sequence[object]]) -> list[dict[str, object]]:
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


def _training_json(judged: JudgedTraining) -> dict[str, object]:
    return {
        "rank": judged.training.rank or None,
        "steps": judged.training.length,
        "looked_at": [step.number for step in judged.training.steps],
        "half_precision": judged.training.half or None,
        "loss_scale": _rows("step scale skipped", judged.training.scales),
        "subnormal_gradients": {
            name: {str(step): share for step, share in shares}
            for name, shares in subnormal(judged.training).items()
        },
        "tensor": [asdict(one) for one in judged.training.values],
        "samples": _rows("index loss step", judged.training.samples),
        "findings": [
            {
                "watchpoint": f.watchpoint.name,
                "module": None if f.first.module == FUNCTION else f.first.module,
                **pick(f.first, "step tensor figure note"),
                "threshold": f.threshold,
                "measures": f.watchpoint.measures,
                "other_places": f.more,
                "advice": f.first.advice or f.watchpoint.advice,
            }
            for f in judged.findings
        ],
    }
