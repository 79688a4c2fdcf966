"""The change points of the history as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence

from celedger.drift import Away, Course, Step
from celedger.views import export
from celedger.views.format import iso_date, measure, percent, plain, short
from celedger.views.tables import Column, table

_COLUMNS = (
    Column("metric"),
    Column("commit"),
    Column("date"),
    Column("change", right=True),
    Column("level"),
    Column("sure", right=True),
    Column("among", right=True),
    Column("subject", shrink=True),
)


def courses_text(found: Sequence[Course], *, width: int = 100) -> str:
    """What changed, task by task; then how much was looked at."""
    rows = [(c, s) for c in found for s in c.steps]
    rows.sort(key=lambda row: (row[0].suite, row[0].task, row[1].commit.commit_time))
    names = {c.environment for c in found}
    lines = []
    if rows:
        lines += [table(_COLUMNS, [_cells(c, s) for c, s in rows], width=width), ""]
    measured = len({commit.sha for c in found for commit in c.commits})
    metrics = len({(c.suite, c.task, c.metric.name) for c in found})
    verb = "changed" if rows else "nothing changed"
    lines.append(f"{len(rows) or ''} {verb} over {measured} commits, {metrics} metrics".strip())
    lines += [_away_line(c, c.away) for c in found if c.away is not None]
    if len(names) > 1:
        lines.append(f"{len(names)} environments, each looked at by itself")
    return "\n".join(lines)


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
        short(step.commit.sha),
        iso_date(step.commit.commit_time),
        f"{percent(share)} {way}" if share == share else way,
        " → ".join(levels),
        f"{min(step.probability, 0.999):.0%}",
        str(len(step.among)),
        plain(step.commit.subject),
    )


def courses_json(found: Sequence[Course]) -> dict[str, export.Json]:
    """Every course with its steps; hashes in full."""
    return export.document(
        courses=[
            {
                "suite": c.suite, "task": c.task, "metric": c.metric.name,
                "environment": c.environment, "commits": len(c.commits), "sd": c.sd,
                "exact": c.exact,
                "steps": [
                    {
                        "commit": s.commit.sha, "among": [x.sha for x in s.among],
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
