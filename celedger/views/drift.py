"""`celedger drift`: where in the history a metric changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from celedger.judge.drift.level_changes import Course, LevelStep
from celedger.views.document import Document, pick
from celedger.views.format import count, iso_date, measure, percent, plain, probability, short
from celedger.views.tables import Column, table, wrap

_TYPED = 12  # digits of a hash in a command: enough for a large repository
_COLUMNS = (
    Column("metric"), Column("seen at"), Column("date"), Column("change", right=True),
    Column("level"), Column("sure", right=True), Column("among", right=True),
    Column("subject", shrink=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CourseList(Document):
    courses: Sequence[Course]

    def text(self, width: int = 100) -> str:
        """Return the changes, task by task; the ranges to search; then how much was analysed."""
        courses = self.courses
        rows = [(c, s) for c in courses for s in c.steps]
        rows.sort(key=lambda row: (row[0].suite, row[0].task, row[1].seen_at.commit_time))
        lines = []
        if rows:
            lines += [table(_COLUMNS, [_cells(c, s) for c, s in rows], width=width), ""]
        lines += _ranges(rows, width)
        commits = count(len(frozenset().union(*(c.valued for c in courses))), "commit")
        trials = count(len(frozenset().union(*(c.trials for c in courses))), "trial")
        metrics = count(len({(c.suite, c.task, c.metric.name) for c in courses}), "metric")
        verb = f"{len(rows)} changed" if rows else "no change seen"
        lines.append(f"{verb} over {commits}, {trials}, {metrics}")
        for away in filter(None, map(_away_line, courses)):
            lines += wrap(away, width, 4)
        environments = len({c.environment for c in courses})
        if environments > 1:
            lines.append(f"{environments} environments, each looked at by itself")
        return "\n".join(lines)

    def json(self) -> dict[str, object]:
        return {
            "courses": [
                {
                    **pick(c, "suite task"),
                    "metric": c.metric.name,
                    "environment": c.environment,
                    "commits": len(c.valued),
                    "trials": len(c.trials),
                    **pick(c, "sd exact"),
                    "steps": [_step_json(c, step) for step in c.steps],
                    "away": c.away
                    and {
                        "pinned": c.away.pinned.sha,
                        **pick(c.away, "level effect low high better"),
                    },
                }
                for c in self.courses
            ]
        }


def _step_json(course: Course, step: LevelStep) -> dict[str, object]:
    return {
        "seen_at": step.seen_at.sha,
        "among": [commit.sha for commit in step.among],
        "not_measured": step.unmeasured,
        "start": step.start and step.start.sha,
        "end": step.end.sha,
        "between": step.between,
        "bisect": bisect_command(step, course.suite, course.task, [course.metric.name]) or None,
        **pick(step, "probability before after better"),
    }


def _ranges(rows: Sequence[tuple[Course, LevelStep]], width: int) -> list[str]:
    """Return between which commits each change lies that has no single commit, with the command
    that bisects there. A range of several metrics is printed once."""
    shared: dict[tuple[object, ...], list[tuple[Course, LevelStep]]] = defaultdict(list)
    for course, step in rows:
        if len(step.among) > 1:
            ends = step.start and step.start.sha, step.end.sha, step.among, step.unmeasured
            shared[course.suite, course.task, step.better, *ends].append((course, step))
    lines = []
    for (course, step), *others in shared.values():
        metrics = list(dict.fromkeys(c.metric.name for c, _ in [(course, step), *others]))
        title = f"{course.suite}/{course.task} {', '.join(metrics)}"
        lines += wrap(f"{title}: {range_text(step)}", width, 4)
        if command := bisect_command(step, course.suite, course.task, metrics):
            lines.append(f"  {command}")
        lines.append("")
    return lines


def range_text(step: LevelStep) -> str:
    """Return `between 3f2a9c1d and 9b9d7543, 6 commits, 5 not measured`."""
    commits = count(step.between, "commit")
    if len(step.among) < step.between:
        commits = f"{len(step.among)} of {commits}"
    where = f"up to {short(step.end.sha)}"
    if step.start is not None:
        where = f"between {short(step.start.sha)} and {short(step.end.sha)}"
    missing = f"{step.unmeasured} not measured" if step.unmeasured else "all measured"
    return f"{where}, {commits}, {missing}"


def bisect_command(step: LevelStep, suite: str, task: str, metrics: Sequence[str]) -> str:
    """Return the command that finds the commit; empty if there is no range to search."""
    if step.start is None:
        return ""
    words = [f"celedger bisect {step.start.sha[:_TYPED]}..{step.end.sha[:_TYPED]}"]
    words += [f"--suite {suite} --task {quote(task)}", *(f"--metric {name}" for name in metrics)]
    return " ".join(words + ["--find improved"] * step.better)


def _away_line(course: Course) -> str:
    """Return how far the metric has moved from its pinned commit; "" without a pin."""
    away = course.away
    if away is None:
        return ""
    effect, low, high = (
        percent(x / abs(away.level)) if away.level
        else measure(x, course.sd, unit=course.metric.unit)
        for x in (away.effect, away.low, away.high)
    )  # fmt: skip
    way = "better" if away.better else "worse"
    return (
        f"{course.suite}/{course.task} {course.metric.name}: by now {effect} ({way}) from the "
        f"pinned {short(away.pinned.sha)}, between {low} and {high}"
    )


def _cells(course: Course, step: LevelStep) -> tuple[str, ...]:
    levels = (measure(x, course.sd, unit=course.metric.unit) for x in (step.before, step.after))
    way = "better" if step.better else "worse"
    if step.before:
        way = f"{percent((step.after - step.before) / abs(step.before))} {way}"
    return (
        f"{course.suite}/{course.task} {course.metric.name}",
        short(step.seen_at.sha),
        iso_date(step.seen_at.commit_time),
        way,
        " → ".join(levels),
        probability(step.probability),
        str(len(step.among)),
        plain(step.seen_at.subject) if len(step.among) == 1 else "",
    )
