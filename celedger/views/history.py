"""The change points of the history as text and JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from shlex import quote

from celedger.drift.history import Away, Course, Step
from celedger.views import export
from celedger.views.format import count, iso_date, measure, percent, plain, probability, short
from celedger.views.tables import Column, table

_TYPED = 12  # digits of a hash in a command: enough for a large repository
_COLUMNS = (
    Column("metric"),
    Column("seen at"),
    Column("date"),
    Column("change", right=True),
    Column("level"),
    Column("sure", right=True),
    Column("among", right=True),
    Column("subject", shrink=True),
)


def courses_text(found: Sequence[Course], *, width: int = 100) -> str:
    """What changed, task by task; the ranges to search; then how much was looked at."""
    rows = [(c, s) for c in found for s in c.steps]
    rows.sort(key=lambda row: (row[0].suite, row[0].task, row[1].seen_at.commit_time))
    names = {c.environment for c in found}
    lines = []
    if rows:
        lines += [table(_COLUMNS, [_cells(c, s) for c, s in rows], width=width), ""]
    lines += _ranges(rows)
    commits = count(len(frozenset().union(*(c.valued for c in found))), "commit")
    trials = count(len(frozenset().union(*(c.trials for c in found))), "trial")
    metrics = count(len({(c.suite, c.task, c.metric.name) for c in found}), "metric")
    verb = f"{len(rows)} changed" if rows else "nothing changed"
    lines.append(f"{verb} over {commits}, {trials}, {metrics}")
    lines += [_away_line(c, c.away) for c in found if c.away is not None]
    if len(names) > 1:
        lines.append(f"{len(names)} environments, each looked at by itself")
    return "\n".join(lines)


def _ranges(rows: Sequence[tuple[Course, Step]]) -> list[str]:
    """Say between which commits each change lies that no single commit stands for, with the
    command that searches there. A range that several metrics share is said once."""
    shared: dict[tuple[object, ...], list[tuple[Course, Step]]] = defaultdict(list)
    for course, step in rows:
        if len(step.among) > 1:
            ends = step.start and step.start.sha, step.end.sha, step.among, step.unmeasured
            shared[course.suite, course.task, step.better, *ends].append((course, step))
    lines = []
    for (suite, task, *_), same in shared.items():
        metrics = list(dict.fromkeys(course.metric.name for course, _ in same))
        lines.append(f"{suite}/{task} {', '.join(metrics)}: {range_text(same[0][1])}")
        if command := bisect_command(same[0][1], str(suite), str(task), metrics):
            lines.append(f"  {command}")
        lines.append("")
    return lines


def range_text(step: Step) -> str:
    """`between 3f2a9c1d and 9b9d7543, 6 commits, 5 not measured`."""
    commits = count(step.between, "commit")
    if len(step.among) < step.between:
        commits = f"{len(step.among)} of {commits}"
    where = f"up to {short(step.end.sha)}"
    if step.start is not None:
        where = f"between {short(step.start.sha)} and {short(step.end.sha)}"
    missing = f"{step.unmeasured} not measured" if step.unmeasured else "all measured"
    return f"{where}, {commits}, {missing}"


def bisect_command(step: Step, suite: str, task: str, metrics: Sequence[str]) -> str:
    """Return what to type to find the commit; empty where there is no range to search."""
    if step.start is None:
        return ""
    words = [f"celedger bisect {step.start.sha[:_TYPED]}..{step.end.sha[:_TYPED]}"]
    words += [f"--suite {suite} --task {quote(task)}", *(f"--metric {name}" for name in metrics)]
    return " ".join(words + ["--find improved"] * step.better)


def _away_line(course: Course, away: Away) -> str:
    share = [x / abs(away.level) if away.level else float("nan") for x in
             (away.effect, away.low, away.high)]  # fmt: skip
    sizes = [percent(x) for x in share]
    if any(x != x for x in share):
        sizes = [
            measure(x, course.sd, unit=course.metric.unit)
            for x in (away.effect, away.low, away.high)
        ]
    way = "better" if away.better else "worse"
    return (
        f"{course.suite}/{course.task} {course.metric.name}: by now {sizes[0]} ({way}) from the "
        f"pinned {short(away.pinned.sha)}, between {sizes[1]} and {sizes[2]}"
    )


def _cells(course: Course, step: Step) -> tuple[str, ...]:
    unit = course.metric.unit
    levels = (measure(level, course.sd, unit=unit) for level in (step.before, step.after))
    share = (step.after - step.before) / abs(step.before) if step.before else float("nan")
    way = "better" if step.better else "worse"
    return (
        f"{course.suite}/{course.task} {course.metric.name}",
        short(step.seen_at.sha),
        iso_date(step.seen_at.commit_time),
        f"{percent(share)} {way}" if share == share else way,
        " → ".join(levels),
        probability(step.probability),
        str(len(step.among)),
        plain(step.seen_at.subject) if len(step.among) == 1 else "",
    )


def courses_json(found: Sequence[Course]) -> dict[str, export.Json]:
    """Every course with its steps; hashes in full."""
    return export.document(
        courses=[
            {
                "suite": c.suite, "task": c.task, "metric": c.metric.name,
                "environment": c.environment, "commits": len(c.valued), "trials": len(c.trials),
                "sd": c.sd, "exact": c.exact,
                "steps": [
                    {
                        "seen_at": s.seen_at.sha, "among": [x.sha for x in s.among],
                        "not_measured": s.unmeasured, "start": s.start and s.start.sha,
                        "end": s.end.sha, "between": s.between,
                        "bisect": bisect_command(s, c.suite, c.task, [c.metric.name]) or None,
                        "probability": s.probability, "before": s.before, "after": s.after,
                        "better": s.better,
                    }
                    for s in c.steps
                ],
                "away": c.away and {
                    "pinned": c.away.pinned.sha, "level": c.away.level, "effect": c.away.effect,
                    "low": c.away.low, "high": c.away.high, "better": c.away.better,
                },
            }
            for c in found
        ],
    )  # fmt: skip
