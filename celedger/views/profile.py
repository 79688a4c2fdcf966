"""`celedger profile` of one commit or of two: phases, operators, stalls and advice, as text and as
JSON. Memory is in celedger/views/memory.py, pictures in celedger/views/profile_picture.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from celedger.diagnose.advice import Advice, module
from celedger.diagnose.profile import Profile
from celedger.diagnose.slower import SpeedComparison, SpeedRow, total
from celedger.diagnose.stalls import NEIGHBOURS, CodeLine, Stall
from celedger.model import Commit
from celedger.views.export import Json, document
from celedger.views.format import (
    PLUS_MINUS,
    change,
    clip,
    count,
    duration,
    measure,
    percent,
    plain,
    short,
)
from celedger.views.tables import Column, table

OPERATORS = 12  # rows of the text; JSON has all
LINES = 5
DIFFERENCES = 8  # of a table of two commits; the others go into one row
LEAST = 1e-10  # s; what is left of a sum of floats is no difference
MEANING = {
    "data": "waiting for data",
    "other": "between steps",
    "forward": "forward pass",
    "backward": "backward pass",
    "tail": "optimiser tail",
    "evaluation": "evaluation and reports",
}


@dataclass(frozen=True, slots=True)
class ProfileTarget:
    """What is profiled: a task at one commit, or at two."""

    task: str
    commits: tuple[Commit, ...]
    seed: int

    def titles(self, width: int) -> list[str]:
        """A commit a line; two as before and after."""
        names = ["  before  ", "  after   "] if len(self.commits) == 2 else [f"{self.task} at "]
        lines = zip(names, self.commits, strict=True)
        return [clip(f"{n}{short(c.sha)} {plain(c.subject)}", width) for n, c in lines]

    def fields(self) -> dict[str, object]:
        """As JSON has it."""
        names = ("before", "after") if len(self.commits) == 2 else ("commit",)
        shas = (commit.sha for commit in self.commits)
        return {"task": self.task, **dict(zip(names, shas, strict=True)), "seed": self.seed}


def columns(*heads: str) -> list[Column]:
    """Columns of a table; `>` before a head aligns numbers."""
    return [Column(h.removeprefix(">"), right=h[:1] == ">", shrink=h[:1] != ">") for h in heads]


def seconds(value: float, significant: int = 3) -> str:
    return measure(value, unit="s", significant=significant)


def profile_text(
    target: ProfileTarget, profile: Profile, advice: Sequence[Advice], *, width: int = 100
) -> str:
    parts = [
        _head(target, profile, width),
        _phases(profile, width),
        _operators(profile, width),
        _lines(profile, width),
        _stalls(profile),
        _processes(profile, width),
        "\n".join([f"  {a.rule}: {plain(a.figure)}\n    try: {a.suggestion}" for a in advice]),
    ]
    if advice:
        parts[-1] = f"advice\n{parts[-1]}"
    return "\n\n".join(filter(None, parts))


def profile_json(
    target: ProfileTarget, profile: Profile, advice: Sequence[Advice]
) -> dict[str, Json]:
    *phases, step = profile.phases
    settings = profile.settings
    return document(
        kind="profile",
        **target.fields(),
        environment={name: settings[name] for name in ("torch", "device", "threads")},
        steps={
            "count": profile.count,
            "timed": len(profile.steps.number),
            "number": profile.steps.number.tolist(),
            "seconds": profile.steps.own.tolist(),
            "wall_seconds": profile.steps.wall.tolist(),
        },
        delayed_share=profile.delayed if settings["exact"] else None,
        phases=[step, *phases],
        evaluation={
            "times": len(profile.evaluation), "seconds": sum(profile.evaluation),
            "share": profile.evaluation_share,
        },
        operators={
            "first_step": profile.window[0], "last_step": profile.window[1],
            "step_seconds": profile.window_seconds, "problem": profile.problem or None,
            "rows": [asdict(row) for row in profile.operators],
        },
        lines=[
            {"place": str(hot.line), "phase": hot.phase, "share": hot.share}
            for hot in profile.lines
        ],
        stalls={
            "found": [stall_json(stall) for stall in profile.stalls.caused],
            "unexplained": profile.stalls.unexplained,
            "machine": profile.stalls.machine,
        },
        processes=profile.processes,
        gpu_utilisation=profile.gpu.get("utilisation"),
        gpu_memory=profile.gpu.get("memory"),
        advice=[{"rule": a.rule, "figure": a.figure, "try": a.suggestion} for a in advice],
    )  # fmt: skip


def line_json(line: CodeLine | None) -> dict[str, object]:
    return line._asdict() if line else dict.fromkeys(CodeLine._fields)


def stall_json(stall: Stall) -> dict[str, object]:
    return {**asdict(stall), **line_json(stall.line)}


def stall_text(stall: Stall) -> str:
    """One sentence: how often, how long, in which phase, doing what."""
    often = count(len(stall.steps), "step")
    if stall.every is not None:
        sure = percent(stall.confidence, signed=False) if stall.confidence <= 0.999 else "> 99.9 %"
        often += f", every {stall.every} steps (confidence {sure})"
    if stall.collector:
        doing = "Python's garbage collector"
    elif stall.computing >= 0.7:
        doing = "computing"
    elif stall.computing <= 0.3:
        doing = "waiting, without a processor"
    else:
        doing = "computing and waiting"
    at = f" at {plain(str(stall.line))}" if stall.line else ""
    return (
        f"{often}: {duration(stall.seconds / len(stall.steps))} more each, "
        f"{percent(stall.share, signed=False)} of the time, in {MEANING[stall.phase]}; {doing}{at}"
        + ("" if at or stall.collector else "; line unknown")
    )


def _head(target: ProfileTarget, profile: Profile, width: int) -> str:
    settings, steps = profile.settings, f"{count(profile.count, 'step')}, "
    where = f"torch {settings['torch']}, {profile.device}, {count(settings['threads'], 'thread')}"
    lines = [
        *target.titles(width),
        f"seed {target.seed}, {where}; {steps}{len(profile.steps.number)} timed",
    ]
    if settings["exact"] and profile.delayed >= 0.005:
        share = percent(profile.delayed, signed=False)
        lines.append(f"other processes had the core for {share} of the time; it is left out below")
    return "\n".join(clip(line, width) for line in lines)


def _phases(profile: Profile, width: int) -> str:
    rows = [
        (
            {**MEANING, "step": "step"}[phase["name"]],
            *(seconds(phase[name]) for name in ("median", "p90", "p99")),
            percent(phase["share"], signed=False),
        )
        for phase in profile.phases
    ]
    heads = columns("phase of a step", ">median", ">p90", ">p99", ">share")
    text = table(heads, rows, width=width)
    if profile.evaluation:
        text += (
            f"\nevaluation and reports: {len(profile.evaluation)} ×, "
            f"{duration(sum(profile.evaluation) / len(profile.evaluation))} each, "
            f"{percent(profile.evaluation_share, signed=False)} of the training"
        )
    return text


def _operators(profile: Profile, width: int) -> str:
    if profile.problem:
        return f"operators unknown: {plain(profile.problem)}"
    ranked = profile.largest_operators()
    rows = [
        (
            plain(row.name),
            plain(module(row)),
            f"{row.calls:.3g}",
            seconds(row.device_seconds if profile.device == "cuda" else row.seconds),
            percent(share, signed=False),
            measure(row.memory, unit="B", significant=3) if abs(row.memory) >= 1 else "",
        )
        for row, share in ranked[:OPERATORS]
    ]
    if not rows:
        return ""
    first, last = profile.window
    head = (
        f"operators of steps {first} to {last} (not timed above), under torch.profiler: "
        f"self time, of {seconds(profile.window_seconds)} a step"
    )
    heads = columns("operator", "most of it in", ">calls", ">time", ">share", ">memory")
    rest = len(ranked) - len(rows)
    tail = f"\n… and {rest} more (--json has all)" if rest > 0 else ""
    return clip(head, width) + "\n" + table(heads, rows, width=width) + tail


def _lines(profile: Profile, width: int) -> str:
    rows = [
        (percent(hot.share, signed=False), hot.phase, plain(str(hot.line)))
        for hot in profile.lines[:LINES]
        if hot.share >= 0.01
    ]
    return table(columns(">share", "phase", "line of yours"), rows, width=width) if rows else ""


def _stalls(profile: Profile) -> str:
    if len(profile.steps.number) < 2 * NEIGHBOURS:
        return f"too few steps to tell stalls: {2 * NEIGHBOURS} timed ones are needed"
    stalls = profile.stalls
    lines = [f"stall: {stall_text(stall)}" for stall in stalls.caused] or ["no stalls"]
    if stalls.unexplained:
        slow = count(len(stalls.unexplained), "slow step")
        lines.append(f"{slow} with no cause of their own and no period: nothing is concluded")
    if stalls.machine:
        slow = count(len(stalls.machine), "slow step")
        lines.append(f"{slow} of the machine's: others had the core")
    return "\n".join(lines)


def _processes(profile: Profile, width: int) -> str:
    rows = [
        (p["name"], str(p["pid"]), f"{p['cores']:.2f}", measure(p["rss"], unit="B", significant=3))
        for p in profile.processes
    ]
    heads = columns("process", ">pid", ">cores", ">memory")
    text = table(heads, rows, width=width) if rows else ""
    if "utilisation" in profile.gpu:
        text += f"\nGPU busy {profile.gpu['utilisation']:.0f} % of the time"
    return text


def verdict(compared: SpeedComparison) -> str:
    whole, added = compared.whole, compared.added
    part = percent(whole.difference / whole.before)
    if compared.verdict == "same":
        return f"no difference beyond noise: a step takes {part}"
    if whole.beyond_noise:
        return f"{compared.verdict}: a step takes {part}"
    return (
        f"{compared.verdict}: operators added or removed make "
        f"{percent(added.difference / whole.before)} "
        f"of a step (the whole step's {part} is within its noise)"
    )


def slower_text(target: ProfileTarget, compared: SpeedComparison, *, width: int = 100) -> str:
    whole, runs = compared.whole, count(compared.runs, "run")
    noise = seconds(whole.noise, significant=2)
    figures = f"{_difference(whole)} {PLUS_MINUS} {noise} of {seconds(whole.before)}"
    head = [
        clip(f"{target.task}, seed {target.seed}, {runs} of each in turns", width),
        *target.titles(width),
        "",
        f"{verdict(compared)} ({figures})",
    ]
    head += [f"new stall: {stall_text(stall)}" for stall in compared.stalls]
    head += [
        f"new wait for the device: {wait.times:.3g} × .{wait.method}() a step at {wait.line}"
        for wait in compared.waits
    ]
    tables = (
        ("phase", "", compared.tables["phases"]),
        ("operator", "in", grouped(compared.tables["operators"])),
        ("function", "file", compared.tables["functions"]),
    )
    parts = [_difference_table(*part, whole, width) for part in tables]
    return "\n\n".join(["\n".join(head), *parts])


def slower_json(target: ProfileTarget, compared: SpeedComparison) -> dict[str, Json]:
    def cells(row: SpeedRow) -> dict[str, object]:
        return {**asdict(row), "difference": row.difference, "change": row.change or None}

    return document(
        kind="profile-difference",
        **target.fields(),
        runs=compared.runs,
        verdict=compared.verdict,
        whole=cells(compared.whole),
        added=cells(compared.added),
        **{name: [cells(row) for row in rows] for name, rows in compared.tables.items()},
        new_stalls=[stall_json(stall) for stall in compared.stalls],
        new_waits=[
            {"method": wait.method, "place": str(wait.line), "times": wait.times}
            for wait in compared.waits
        ],
    )


def largest(rows: Sequence[SpeedRow], most: int = DIFFERENCES) -> list[SpeedRow]:
    """The largest differences, those beyond noise and those of operators added or removed first;
    one row for the others, and the remainder: they still add up."""
    *ranked, remainder = rows
    ranked = [row for row in ranked if row.before or row.after]
    ranked.sort(key=lambda row: (not row.beyond_noise, not row.change, -abs(row.difference)))
    top, others = ranked[:most], ranked[most:]
    if others:
        both = total(f"{len(others)} others", others)
        top.append(SpeedRow(both.name, "", both.before, both.after, both.noise))
    return [*top, remainder]


def grouped(rows: Sequence[SpeedRow]) -> list[SpeedRow]:
    """The same operator in the same phase as one row, named by the module that differs most."""
    *ranked, remainder = rows
    parts: dict[tuple[str, str], list[SpeedRow]] = {}
    for row in ranked:
        parts.setdefault((row.name, row.where.partition(" ")[0]), []).append(row)
    sums = []
    for (name, _), members in parts.items():
        named = max(members, key=lambda row: (bool(row.change), abs(row.difference)))
        differing = sum(bool(row.change) for row in members)
        more = f" +{differing - 1}" if differing > 1 else ""
        sums.append(total(name, members, named.where + more))
    return [*sums, remainder]


def _difference_table(
    head: str, where: str, rows: Sequence[SpeedRow], whole: SpeedRow, width: int
) -> str:
    cells = [
        (
            plain(MEANING.get(row.name, row.name) if head == "phase" else row.name),
            plain(row.where),
            seconds(row.before),
            seconds(row.after),
            _difference(row),
            seconds(row.noise, significant=2),
            _remark(row),
        )
        for row in (*largest(rows), whole)
    ]
    heads = columns(head, where, ">before", ">after", ">difference", ">noise")
    return table([*heads, Column("")], cells, width=width)


def _difference(row: SpeedRow) -> str:
    if abs(row.difference) < LEAST:
        return "0 s"
    return change(row.difference, unit="s", like=row.difference)


def _remark(row: SpeedRow) -> str:
    words = []
    if row.change and row.calls is not None:
        before, after = (f"{value:.3g}" for value in row.calls)
        words.append(row.change if row.change != "calls" else f"{before} → {after} calls")
    if row.beyond_noise:
        words.append("slower" if row.difference > 0 else "faster")
    return ", ".join(words)
