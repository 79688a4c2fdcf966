"""`celedger diff A..B`: two commits side by side. It compares trials of one definition in one
environment; if two commits share none, it shows both and judges nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from celedger.base.errors import TYPED, command
from celedger.base.model import Commit, Direction, Kind, Metric
from celedger.judge.incident import State
from celedger.judge.line import Line
from celedger.judge.measured import varies_by_session
from celedger.judge.two_commits import between, compare, knows_change, smallest_change
from celedger.judge.variants import APART
from celedger.ledger.read import Reader
from celedger.views import samples
from celedger.views.document import (
    NONE,
    Column,
    Document,
    clip,
    count,
    iso_date,
    pick,
    plain,
    relative,
    short,
    table,
    wrap,
)
from celedger.views.document import change as difference
from celedger.views.samples import Batch, Difference, Sample

_COLUMNS = (
    Column("metric"), Column("A"), Column("B"), Column("B - A", right=True),
    Column("", right=True), Column("", wrap=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MetricChange:
    """A metric's change. `judgement` is what `judge.two_commits` says, or empty if it cannot be
    judged; `incidents` are the ids of those that came between. `smallest` is the smallest change
    that these trials detect in four cases of five."""

    metric: Metric
    a: Sample
    b: Sample
    judgement: str = ""
    smallest: float = math.nan
    incidents: tuple[str, ...] = ()

    @property
    def delta(self) -> float:
        return self.b.mean - self.a.mean if self.a.n and self.b.n else math.nan

    @property
    def relative(self) -> float:
        """Return the change over |A|; NaN if A is zero."""
        return self.delta / abs(self.a.mean) if self.a.n and self.a.mean else math.nan

    def cells(self) -> tuple[str, ...]:
        delta = share = ""
        if math.isfinite(self.delta):
            digits = max((s.sd for s in (self.a, self.b) if math.isfinite(s.sd)), default=math.nan)
            delta = difference(self.delta, digits, unit=self.metric.unit, scale_of=self.b.mean)
            share = relative(self.delta, self.a.mean)
        judgement = self.judgement + "".join(f" ({name})" for name in self.incidents)
        if judgement == "within noise":
            judgement += f", detects {self.a.smallest_text(self.smallest)}"
        return (self.metric.name, self.a.text(), self.b.text(), delta, share, judgement)

    def json(self) -> dict[str, object]:
        return {
            "metric": self.metric.name,
            **pick(self.metric, "unit direction"),
            **pick(self, "a b delta relative"),
            "said": self.judgement,
            "smallest_change": self.smallest,
            "incidents": list(self.incidents),
        }


@dataclass(frozen=True, slots=True)
class TaskDiff:
    suite: str
    task: str
    a: Batch | None
    b: Batch | None
    changes: tuple[MetricChange, ...]
    same_recipe: bool = False
    failures: tuple[str, ...] = ()  # ids of those that came between A and B

    @property
    def environments(self) -> tuple[str, str] | None:
        """Return the environments of A and B; None for one without trials."""
        return (self.a.environment, self.b.environment) if self.a and self.b else None

    @property
    def same_environment(self) -> bool:
        return self.environments is not None and len(set(self.environments)) == 1

    @property
    def comparable(self) -> bool:
        return self.same_recipe and self.same_environment

    def lines(self, width: int) -> list[str]:
        ends = ", ".join(
            f"{end} {count(len(batch.records), 'trial')} {batch.status}" if batch else
            f"{end} no trials"
            for end, batch in (("A", self.a), ("B", self.b))
        )  # fmt: skip
        head = f"{self.suite}/{self.task}  {ends}"
        fails = [f"fails ({name})" for name in self.failures]
        lines = wrap("; ".join([head, *fails]), width, 4)
        if self.environments and not self.comparable:
            why = "the suite" if not self.same_recipe else "the environment"
            lines.append(f"  not comparable: {why} changed between them")
        rows = [change.cells() for change in self.changes]
        return lines + table(_COLUMNS, rows, width=width, indent=2).splitlines()

    def json(self) -> dict[str, object]:
        return {
            **pick(self, "suite task comparable same_recipe same_environment"),
            "outcomes": {
                "a": self.a.outcomes() if self.a else {},
                "b": self.b.outcomes() if self.b else {},
            },
            "metrics": self.changes,
        }


@dataclass(frozen=True, slots=True)
class Diff(Document):
    commits: tuple[Commit, Commit]
    tasks: tuple[TaskDiff, ...]
    environments: Mapping[tuple[str, str], Sequence[Difference]]  # by the pair that differs
    beside: str = ""  # the command that measures both in turns, where they were not

    @classmethod
    def of(
        cls,
        ledger: Reader,
        a: str,
        b: str,
        state: State,
        line: Line,
        *,
        across_files: bool = False,
        check: str = "",
    ) -> Diff:
        """Compare two commits, by their full hashes; `line` is the state's. With `across_files` a
        change of the suite's files is one of the code. `check` is the command that measures both
        side by side, if a bisect cannot. Raises CeledgerError if one end has no trials."""
        (old, of_a), (new, of_b) = samples.measured(ledger, a), samples.measured(ledger, b)
        recipes = {task.recipe: task.recipe for task in ledger.tasks()}
        if across_files:
            recipes = {task.recipe: task.without_files for task in ledger.tasks()}

        def judged(change: MetricChange, suite: str, task: str, is_beside: bool) -> MetricChange:
            metric, old, new = change.metric, change.a, change.b
            if metric.direction is Direction.INFO or not old.n or not new.n:
                return change
            noise = state.noise_of(suite, task, metric.name)
            if noise is not None and is_beside:  # in one session, or sessions do not matter
                noise = noise._replace(session=0.0)
            ends = (state, line, (suite, task, metric.name), a, b)
            came = between(*ends)
            judgement = compare(
                metric, noise, came, (old.mean, old.n), (new.mean, new.n),
                is_known=knows_change(*ends),
            )  # fmt: skip
            if judgement.startswith("seems") and not is_beside:
                judgement = APART
            return replace(
                change, judgement=judgement, smallest=smallest_change(noise, old.n, new.n),
                incidents=tuple(incident.id for incident in came),
            )  # fmt: skip

        tasks = tuple(
            replace(_task_diff(
                ledger, recipes, judged, key, [x for x in of_a if (x.suite, x.task) == key],
                [x for x in of_b if (x.suite, x.task) == key],
            ), failures=tuple(i.id for i in between(state, line, (*key, ""), a, b)))
            for key in sorted({(x.suite, x.task) for x in (*of_a, *of_b)})
        )  # fmt: skip
        pairs = sorted({t.environments for t in tasks if t.environments if not t.same_environment})
        changes = {p: samples.environment_changes(*map(ledger.environment, p)) for p in pairs}
        apart = next(
            ((task, c.metric.name) for task in tasks for c in task.changes if c.judgement == APART),
            None,
        )
        if apart and not check and 0 <= line.place(a) < line.place(b):
            ends = f"{a[:TYPED]}..{b[:TYPED]}"
            check = command(
                "bisect", ends, suite=apart[0].suite, task=apart[0].task, metric=apart[1]
            )
        return cls((old, new), tasks, changes, check if apart else "")

    def text(self, width: int = 100) -> str:
        lines = [
            clip(f"{letter} {short(c.sha)}  {iso_date(c.commit_time)}  {plain(c.subject)}", width)
            for letter, c in zip("AB", self.commits, strict=True)
        ]
        untold = dict(self.environments)
        for task in self.tasks:
            lines += ["", *task.lines(width)]
            changes = untold.pop(task.environments, []) if task.environments else []
            rows = [(key, plain(a or NONE), plain(b or NONE)) for key, a, b in changes]
            columns = (Column("environment"), Column("A", shrink=True), Column("B", shrink=True))
            lines += table(columns, rows, width=width, indent=2).splitlines()
        if self.beside:
            lines += ["", f"{self.beside} measures both in turns"]
        return "\n".join(lines)

    def json(self) -> dict[str, object]:
        a, b = self.commits
        return {
            "a": a.sha,
            "b": b.sha,
            "tasks": self.tasks,
            "environments": [
                {
                    "a": old,
                    "b": new,
                    "changed": [{"key": key, "a": x, "b": y} for key, x, y in changes],
                }
                for (old, new), changes in self.environments.items()
            ],
        }


def _task_diff(
    ledger: Reader,
    recipes: Mapping[str, str],
    judged: Callable[[MetricChange, str, str, bool], MetricChange],
    key: tuple[str, str],
    of_a: Sequence[Batch],
    of_b: Sequence[Batch],
) -> TaskDiff:
    """Compare the newest two comparable batches: of one definition and environment, else of one
    definition, else any. `recipes` has what must be equal of each recipe."""
    if not of_a or not of_b:
        return TaskDiff(*key, next(iter(of_a), None), next(iter(of_b), None), ())

    def agree(pair: tuple[Batch, Batch]) -> tuple[bool, bool]:
        a, b = pair
        same_recipe = recipes[a.recipe] == recipes[b.recipe]
        return same_recipe, same_recipe and a.environment == b.environment

    a, b = max(((a, b) for b in of_b for a in of_a), key=agree)
    same_recipe, _ = agree((a, b))
    diff = TaskDiff(*key, a, b, (), same_recipe)
    names = {m.name for side in (a, b) for m in side.metrics(ledger.metrics)}
    sessions = ledger.sessions(suite=key[0], task=key[1])
    beside = [in_turns(sessions, a, b, any_order=any_order) for any_order in (False, True)]
    changes = []
    for metric in samples.in_order(m for m in ledger.metrics(b.recipe) if m.name in names):
        sides = samples.pair(metric, a, b)
        both = sides
        if varies_by_session(metric):
            both = samples.pair(metric, *beside[metric.kind is Kind.MEMORY])
        is_beside = all(side.n for side in both)
        change = MetricChange(metric, *(both if is_beside else sides))
        changes.append(judged(change, *key, is_beside) if diff.comparable else change)
    return replace(diff, changes=tuple(changes))


def in_turns(sessions: Mapping[str, str], *sides: Batch, any_order: bool = False) -> list[Batch]:
    """Return what two batches have of sessions that ran them in turns, since a machine that became
    loaded between them makes the later one slow. Memory knows no load: for it, `any_order` takes
    every session of both. `sessions` has each trial's, by ulid."""
    times = [defaultdict[str, list[float]](list) for _ in sides]
    for side, of_session in zip(sides, times, strict=True):
        for record in side.records:
            of_session[sessions[record.trial.ulid]].append(record.trial.started)
    a, b = times
    shared = {
        s for s in a.keys() & b
        if any_order or (max(a[s]) > min(b[s]) and max(b[s]) > min(a[s]))
    }  # fmt: skip
    return [
        side._replace(records=tuple(r for r in side.records if sessions[r.trial.ulid] in shared))
        for side in sides
    ]
