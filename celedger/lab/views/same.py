"""`celedger same`, as text and JSON: is an edit numerically what it was made from?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from celedger.base.model import STEP_COUNTS
from celedger.lab.diagnose.same import LoggedCommit, Sameness, TaskSameness
from celedger.lab.diagnose.signature import Difference
from celedger.views.document import Json, count, document, plain, short


def same_text(title: str, answers: Sequence[TaskSameness]) -> str:
    lines = [title]
    for answer in answers:
        lines += [f"{answer.task}: {line}" for line in _lines(answer)]
    groups: dict[str, list[str]] = {}
    for answer in answers:
        if answer.kind in (Sameness.SAME, Sameness.ROUNDING):
            groups.setdefault(", ".join(answer.left_out), []).append(answer.task)
    for text, tasks in groups.items():
        names = "" if len(groups) == 1 else f" ({', '.join(tasks)})"
        lines.append(f"not compared{names}: {text}")
    return "\n".join(map(plain, lines))


def _lines(answer: TaskSameness) -> Iterator[str]:
    took = f"({answer.seconds:.1f} s)"
    difference = answer.difference
    if answer.kind is Sameness.SAME and not answer.steps:
        yield answer.message
    elif answer.kind is Sameness.SAME:
        work = "work equal" if not answer.work else f"work a step: {_work(answer)}"
        yield f"same bits in {count(answer.steps, 'step')}; {work} {took}"
    elif difference is None:
        yield answer.message
    else:
        yield f"{_sentence(answer, difference)} {took}"
        if answer.work and answer.kind is not Sameness.UNREPEATABLE:
            yield f"work a step: {_work(answer)}"


def _sentence(answer: TaskSameness, difference: Difference) -> str:
    step = f"step {difference.step}" if difference.step else "the report on"
    if answer.kind is Sameness.UNREPEATABLE:
        where = f"({step}, {difference.name})" if difference.step else f"({difference.name})"
        unseeded = ", until the training sets its seed" * (difference.part == "init")
        return f"does not repeat its own bits {where}: no answer{unseeded}"
    rank = f" of {difference.rank}" if difference.rank else ""
    if answer.kind is Sameness.ROUNDING:
        at = f"from step {difference.step}{rank}, first in" if difference.step else "in"
        return f"other roundings {at} {difference.name} (largest difference {difference.size:.1g})"
    if not difference.step:
        text = f"equal steps, but {difference.name} differs"
    else:
        text = f"different from step {difference.step}{rank}: {difference.name}"
    if difference.values is not None and difference.values[0] != difference.values[1]:
        word = "loss " if difference.step else ""
        text += f" ({word}{difference.values[0]:.6g} → {difference.values[1]:.6g})"
    if answer.place:
        text += f"; first module that differs: {answer.place}"
    if difference.precision and difference.size < 0.1:
        text += f"; {difference.precision} rounds as coarsely as that"
    return text


def _work(answer: TaskSameness) -> str:
    """Return `433 → 3,032 operators, 160 → 3,954 of your lines`."""
    return ", ".join(f"{a:,.0f} → {b:,.0f} {STEP_COUNTS[name]}" for name, a, b in answer.work)


_LOGGED = ("operators", "lines", "allocated")  # counts of a line of the log


def log_line(row: LoggedCommit) -> str:
    """Return `1a2b3c4d5e  bits: new (the loss, step 1, 3e-2)  operators 233 (+20)  lines 56`."""
    if row.problem:
        return f"{short(row.commit.sha)}  {plain(row.problem)}"
    bits = "bits: ="
    if (difference := row.difference) is not None:
        kind = "rounding" if difference.is_rounding else "new"
        size = f", {difference.size:.0e}" if math.isfinite(difference.size) else ""
        step = f", step {difference.step}" if difference.step else ""
        bits = f"bits: {kind} ({difference.name}{step}{size})"
    counts = [
        f"{name} {row.work[name]:,.0f}"
        + (f" ({row.changes[name]:+,.0f})" if name in row.changes else "")
        for name in _LOGGED if name in row.work
    ]  # fmt: skip
    return "  ".join([short(row.commit.sha), bits, *counts])


def log_json(rows: Mapping[str, Sequence[LoggedCommit]]) -> Mapping[str, Json]:
    """Return the document of a log, by task."""
    return document(tasks=[
        {"task": task, "commits": [
            {
                "commit": row.commit.sha, "problem": row.problem or None, "work": row.work,
                "bits": None if row.problem else "equal" if row.difference is None
                else "rounding" if row.difference.is_rounding else "new",
                "part": row.difference.part if row.difference else None,
                "step": (row.difference.step or None) if row.difference else None,
                "size": row.difference.size if row.difference else None,
            }
            for row in of_task
        ]}
        for task, of_task in rows.items()
    ])  # fmt: skip


def same_json(against: str, revision: str, answers: Sequence[TaskSameness]) -> Mapping[str, Json]:
    """Return the document. Commits are full hashes; `revision` is that of a synthetic commit."""
    rows = []
    for answer in answers:
        difference = answer.difference
        rows.append({
            "task": answer.task, "verdict": answer.kind.value, "steps": answer.steps,
            "difference": None if difference is None else {
                "step": difference.step or None, "part": difference.part,
                "sentence": _sentence(answer, difference), "size": difference.size,
                "values": list(difference.values) if difference.values else None,
                "module": difference.module[0] if difference.module else None,
                "place": answer.place or None,
            },
            "message": answer.message or None,
            "work": {name: {"before": a, "after": b} for name, a, b in answer.work},
            "not_looked_at": list(answer.left_out), "seconds": answer.seconds,
        })  # fmt: skip
    return document(commit=against, revision=revision, tasks=rows)
