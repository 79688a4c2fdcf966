"""`celedger profile REV TASK`: phases, operators, stalls and advice, as text and as JSON. Its
pictures are in celedger/views/profile_picture.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celedger.diagnose.advice import Advice, module
from celedger.diagnose.profile import MEANING, Operator, Profile, by_name
from celedger.diagnose.stalls import NEIGHBOURS, Stall
from celedger.model import Commit
from celedger.views.export import Json, document
from celedger.views.format import clip, count, duration, measure, percent, plain, short
from celedger.views.tables import Column, table

OPERATORS = 12  # rows of the text; JSON has all
LINES = 5
_TIME = ("median", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Header:
    """What was looked at."""

    task: str
    commit: Commit
    seed: int


def profile_text(
    header: Header, profile: Profile, advice: Sequence[Advice], *, width: int = 100
) -> str:
    parts = [
        _head(header, profile, width),
        _phases(profile, width),
        _operators(profile, width),
        _lines(profile, width),
        _stalls(profile, width),
        _machine(profile, width),
        _advice(advice, width),
    ]
    return "\n\n".join(filter(None, parts))


def profile_json(header: Header, profile: Profile, advice: Sequence[Advice]) -> dict[str, Json]:
    phases = [profile.step, *profile.phases]
    return document(
        kind="profile",
        task=header.task,
        commit=header.commit.sha,
        seed=header.seed,
        environment={
            "torch": profile.torch, "device": profile.device, "threads": profile.threads,
        },
        steps={
            "count": profile.count,
            "timed": len(profile.steps),
            "number": profile.steps.tolist(),
            "seconds": profile.own.tolist(),
            "wall_seconds": profile.wall.tolist(),
        },
        delayed_share=profile.delayed if profile.exact else None,
        phases=[
            {
                "name": phase.name, "median": phase.median, "p90": phase.p90, "p99": phase.p99,
                "share": phase.share,
            }
            for phase in phases
        ],
        evaluation={
            "times": profile.evaluations, "seconds": profile.evaluation,
            "share": profile.evaluation_share,
        },
        operators={
            "first_step": profile.window[0], "last_step": profile.window[1],
            "step_seconds": profile.window_seconds, "problem": profile.problem or None,
            "rows": [operator_json(row) for row in profile.operators],
        },
        lines=[
            {"place": str(line.place), "phase": line.phase, "share": line.share}
            for line in profile.lines
        ],
        stalls={
            "found": [stall_json(stall) for stall in profile.stalls.found],
            "unexplained": list(profile.stalls.unexplained),
            "machine": list(profile.stalls.machine),
        },
        processes=[
            {"pid": one.pid, "name": one.name, "cores": one.cores, "rss": one.rss}
            for one in profile.machine.processes
        ],
        gpu_utilisation=profile.machine.gpu_utilisation,
        gpu_memory=profile.machine.gpu_memory,
        advice=[{"rule": a.rule, "figure": a.figure, "try": a.try_} for a in advice],
    )  # fmt: skip


def operator_json(row: Operator) -> dict[str, object]:
    return {
        "name": row.name, "phase": row.phase, "module": row.module, "calls": row.calls,
        "seconds": row.seconds, "device_seconds": row.device, "memory": row.memory,
        "kernels": row.kernels,
    }  # fmt: skip


def stall_json(stall: Stall) -> dict[str, object]:
    return {
        "steps": list(stall.steps), "every": stall.every, "confidence": stall.confidence,
        "seconds": stall.excess, "share": stall.share, "phase": stall.phase,
        "file": stall.place and stall.place.file, "line": stall.place and stall.place.line,
        "function": stall.place and stall.place.function, "collector": stall.collector,
        "computing": stall.computing,
    }  # fmt: skip


def stall_text(stall: Stall) -> str:
    """One sentence: how often, how long, in which phase, doing what."""
    often = count(len(stall.steps), "step")
    if stall.every is not None:
        often += f", every {stall.every} steps (confidence {_confidence(stall.confidence)})"
    each = duration(stall.excess / len(stall.steps))
    text = f"{often}: {each} more each, {percent(stall.share, signed=False)} of the time"
    text += f", in {MEANING.get(stall.phase, stall.phase)}"
    if stall.collector:
        doing = "Python's garbage collector"
    elif stall.computing >= 0.7:
        doing = "computing"
    elif stall.computing <= 0.3:
        doing = "waiting, without a processor"
    else:
        doing = "computing and waiting"
    at = f" at {plain(str(stall.place))}" if stall.place else ""
    return f"{text}; {doing}{at}" + ("" if at or stall.collector else "; line unknown")


def _confidence(value: float) -> str:
    return "> 99.9 %" if value > 0.999 else percent(value, signed=False)


def _head(header: Header, profile: Profile, width: int) -> str:
    where = f"torch {profile.torch}, {profile.device}, {count(profile.threads, 'thread')}"
    steps = f"{count(profile.count, 'step')}, {len(profile.steps)} timed"
    lines = [
        f"{header.task} at {short(header.commit.sha)} {plain(header.commit.subject)}",
        f"seed {header.seed}, {where}; {steps}",
    ]
    if profile.exact and profile.delayed >= 0.005:
        share = percent(profile.delayed, signed=False)
        lines.append(f"other processes had the core for {share} of the time; it is left out below")
    return "\n".join(clip(line, width) for line in lines)


def _phases(profile: Profile, width: int) -> str:
    rows = [
        (
            MEANING.get(phase.name, "step"),
            *(measure(getattr(phase, name), unit="s", significant=3) for name in _TIME),
            percent(phase.share, signed=False),
        )
        for phase in (*profile.phases, profile.step)
    ]
    columns = [Column("phase of a step"), *(Column(head, right=True) for head in (*_TIME, "share"))]
    text = table(columns, rows, width=width)
    if profile.evaluations:
        text += (
            f"\nevaluation and reports: {profile.evaluations} ×, "
            f"{duration(profile.evaluation / profile.evaluations)} each, "
            f"{percent(profile.evaluation_share, signed=False)} of the training"
        )
    return text


def _operators(profile: Profile, width: int) -> str:
    if profile.problem:
        return f"operators unknown: {plain(profile.problem)}"
    device = profile.device == "cuda"
    ranked = sorted(
        by_name(profile.operators), key=lambda row: -(row.device if device else row.seconds)
    )
    total = sum(row.device for row in ranked) if device else profile.window_seconds
    rows = [
        (
            plain(row.name),
            plain(module(row)),
            f"{row.calls:.3g}",
            measure(row.device if device else row.seconds, unit="s", significant=3),
            percent((row.device if device else row.seconds) / total, signed=False),
            measure(row.memory, unit="B", significant=3) if abs(row.memory) >= 1 else "",
        )
        for row in ranked[:OPERATORS]
    ]
    if not rows:
        return ""
    first, last = profile.window
    head = (
        f"operators of steps {first} to {last} (not timed above), under torch.profiler: "
        f"self time, of {measure(profile.window_seconds, unit='s', significant=3)} a step"
    )
    columns = [
        Column("operator", shrink=True), Column("most of it in", shrink=True),
        Column("calls", right=True), Column("time", right=True), Column("share", right=True),
        Column("memory", right=True),
    ]  # fmt: skip
    rest = len(ranked) - len(rows)
    tail = f"\n… and {rest} more (--json has all)" if rest > 0 else ""
    return clip(head, width) + "\n" + table(columns, rows, width=width) + tail


def _lines(profile: Profile, width: int) -> str:
    rows = [
        (percent(line.share, signed=False), line.phase, plain(str(line.place)))
        for line in profile.lines[:LINES]
        if line.share >= 0.01
    ]
    if not rows:
        return ""
    columns = [Column("share", right=True), Column("phase"), Column("line of yours", shrink=True)]
    return table(columns, rows, width=width)


def _stalls(profile: Profile, width: int) -> str:
    stalls = profile.stalls
    lines = [f"stall: {stall_text(stall)}" for stall in stalls.found]
    if len(profile.steps) < 2 * NEIGHBOURS:
        return f"too few steps to tell stalls: {2 * NEIGHBOURS} timed ones are needed"
    if not lines:
        lines = ["no stalls"]
    if stalls.unexplained:
        lines.append(
            f"{count(len(stalls.unexplained), 'slow step')} with no cause of their own "
            "and no period: nothing is concluded"
        )
    if stalls.machine:
        lines.append(
            f"{count(len(stalls.machine), 'slow step')} of the machine's: others had the core"
        )
    return "\n".join(lines)


def _machine(profile: Profile, width: int) -> str:
    rows = [
        (one.name, str(one.pid), f"{one.cores:.2f}", measure(one.rss, unit="B", significant=3))
        for one in profile.machine.processes
    ]
    columns = [
        Column("process"), Column("pid", right=True), Column("cores", right=True),
        Column("memory", right=True),
    ]  # fmt: skip
    text = table(columns, rows, width=width) if rows else ""
    if profile.machine.gpu_utilisation is not None:
        text += f"\nGPU busy {profile.machine.gpu_utilisation:.0f} % of the time"
    return text


def _advice(advice: Sequence[Advice], width: int) -> str:
    if not advice:
        return ""
    lines = ["advice"]
    for one in advice:
        lines += [f"  {one.rule}: {plain(one.figure)}", f"    try: {one.try_}"]
    return "\n".join(lines)
