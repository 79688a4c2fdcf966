"""`celedger check`: the verdicts on one commit. The metrics that the suite declares come first,
then telemetry, then the commands to run if the trials are too few. `celedger baseline show`: pins
and accepted changes, with their authors."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from shlex import quote

from celedger.base.errors import command
from celedger.base.model import BaselineRecord, Commit, Metric, Verdict, VerdictKind
from celedger.judge.drift.judge import Judged
from celedger.judge.drift.recorded_verdicts import counted
from celedger.ledger.read import Reader
from celedger.stats.verdict import NO_BASELINE, WITHOUT_FLOOR, Judgement
from celedger.views.document import Document, pick
from celedger.views.format import (
    Scale,
    change,
    count,
    iso_date,
    measure,
    number,
    percent,
    plain,
    short,
)  # fmt: skip
from celedger.views.samples import Sample
from celedger.views.tables import Column, table

_ORDER = (
    VerdictKind.FAILED, VerdictKind.MISSING, VerdictKind.NOT_FINITE, VerdictKind.REGRESSED,
    VerdictKind.UNDECIDED, VerdictKind.ENVIRONMENT_CHANGED, VerdictKind.TOO_NOISY,
    VerdictKind.IMPROVED, VerdictKind.SAME,
)  # fmt: skip
_COLUMNS = (
    Column("task"), Column("metric"), Column("verdict"), Column("change", right=True),
    Column("", wrap=True),
)  # fmt: skip
_BASELINE_COLUMNS = (
    Column("act"), Column("commit"), Column("of"), Column("date"),
    Column("who", shrink=True), Column("why", wrap=True),
)  # fmt: skip
_TELEMETRY = "telemetry, which the suite does not declare: never decides the exit status"
Rows = Sequence[tuple[Verdict, tuple[str, ...]]]
_TYPED = 100  # trials that a person may be asked to run; more need another remedy


@dataclass(frozen=True, slots=True)
class VerdictList(Document):
    """`declared` are the (task, metric) that the suite names and judges."""

    ledger: Reader
    commit: Commit
    judged: Judged
    declared: Collection[tuple[str, str]]
    explained: bool = False

    def text(self, width: int = 100) -> str:
        """Return the worst first, one row a task × metric; with `explained`, the evidence."""
        head = f"{short(self.commit.sha)} {plain(self.commit.subject)}"
        if not self.judged.verdicts:
            return f"{head}\nnothing was judged"
        own, telemetry = self.rows()
        lines = [head]
        for title, rows in (("", own), (_TELEMETRY, telemetry)):
            if rows:
                text = table(_COLUMNS, [cells for _, cells in rows], width=width)
                lines += ["", *filter(None, [title]), text]
        lines += self._more_trials([v for v, _ in own if v.kind is VerdictKind.TOO_NOISY])
        lines += self._unjudged_baseline([v for v, _ in own if v.note == NO_BASELINE])
        if self.explained:
            lines += [line for v in self.judged.verdicts for line in _evidence(self.ledger, v)]
        return "\n".join(lines)

    def json(self) -> dict[str, object]:
        own, _ = counted(self.judged.verdicts, self.declared)
        return {
            "commit": self.commit.sha,
            "verdicts": [
                {
                    **pick(v, "suite task metric"),
                    "verdict": v.kind,
                    "counts": v in own,
                    **pick(v, "level value effect low high p_value"),
                    "smallest_change": answer.smallest,
                    "wanted_change": answer.wanted,
                    "trials_needed": answer.trials,
                    "trials_needed_each": answer.each,
                    **pick(v, "trials baseline rule note"),
                }
                for v in self.judged.verdicts
                for answer in [self._answer(v) or Judgement(VerdictKind.SAME)]
            ],
        }

    def rows(self) -> tuple[Rows, Rows]:
        """Return the verdicts that count, and those on telemetry: the worst first, with cells."""
        own, telemetry = (
            sorted(each, key=lambda v: (_ORDER.index(v.kind), v.task, v.metric))
            for each in counted(self.judged.verdicts, self.declared)
        )
        return [(v, self._cells(v)) for v in own], [(v, self._cells(v)) for v in telemetry]

    def _answer(self, verdict: Verdict) -> Judgement | None:
        return self.judged.answers.get((verdict.task, verdict.metric))

    def _cells(self, verdict: Verdict) -> tuple[str, ...]:
        metric = _declared(self.ledger, verdict)
        moved = ""
        if math.isfinite(verdict.effect) and verdict.level:
            moved = percent(verdict.effect / abs(verdict.level))
        elif math.isfinite(verdict.effect):
            moved = change(verdict.effect, unit=metric.unit, like=verdict.value)
        sensitivity = _sensitivity(verdict, metric, self._answer(verdict))
        note = plain(verdict.note).removeprefix(f"{verdict.kind.value}: ")
        parts = [_levels(verdict, metric), note, sensitivity]
        remarks = "; ".join(filter(None, parts))
        name = verdict.metric or "(whole task)"
        return (verdict.task, name, verdict.kind.value, moved, remarks)

    def _unjudged_baseline(self, verdicts: Sequence[Verdict]) -> list[str]:
        """Return the command that judges the parent commit, if it has trials of tasks without a
        baseline and they were never judged."""
        words: list[str] = []
        for verdict in verdicts:
            recipe, environment = verdict.recipe, verdict.environment
            kinds = self.ledger.verdict_kinds(
                suite=verdict.suite, task=verdict.task, recipe=recipe, environment=environment
            )
            for parent in {*self.commit.parents[:1]} - {sha for sha, _ in kinds}:
                trials = self.ledger.trials(commit=parent, recipe=recipe, environment=environment)
                if any(r.ok and not (r.early_stopped or r.derived) for r in trials):
                    words += ["--task", verdict.task] if verdict.task not in words else []
        if not words:
            return []
        run = command("run", self.commit.parents[0][:12], *words, suite=verdicts[0].suite)
        title = "the parent commit has trials that were never judged, which are no baseline:"
        return ["", title, f"  {run} judges them"]

    def _more_trials(self, noisy: Sequence[Verdict]) -> list[str]:
        """Return the commands to type if metrics of the suite are too noisy, and other remedies."""
        if not noisy:
            return []
        seeds_of: dict[str, int] = {}
        calm: dict[str, None] = {}
        for verdict in noisy:
            answer = self.judged.answers[verdict.task, verdict.metric]
            trials = answer.trials or answer.each
            if trials is None or trials > _TYPED:
                calm[f"  celedger show {quote(verdict.task)}"] = None
                continue
            last = self.ledger.trial(verdict.baseline[-1]) if answer.trials is None else None
            for commit in (verdict.commit, *([last.trial.commit] if last else [])):
                words = f"{quote(verdict.task)} --suite {verdict.suite} --commit {commit[:12]}"
                seeds_of[words] = max(seeds_of.get(words, 0), trials)
        metrics = count(len(noisy), "metric")
        lines = ["", f"{metrics} of the suite too noisy to tell: undecided unless --lenient"]
        lines += ["more trials:"] if seeds_of else []
        lines += [f"  celedger noise {w} --seeds {n} --repeats 1" for w, n in seeds_of.items()]
        lines += ["calm the task, or set floors that its trials can tell:"] if calm else []
        return [*lines, *calm]


def _levels(verdict: Verdict, metric: Metric) -> str:
    """Return `0.3798 → 0.6230 nats (+57.0 % … +70.9 %)` for a change; else empty."""
    if verdict.kind not in (VerdictKind.REGRESSED, VerdictKind.IMPROVED):
        return ""
    digits = (verdict.high - verdict.low) / 4  # two standard errors to each side
    levels = [measure(x, digits, unit=metric.unit) for x in (verdict.level, verdict.value)]
    text = " → ".join(levels)
    if verdict.level and verdict.low < verdict.high:
        low, high = (percent(x / abs(verdict.level)) for x in (verdict.low, verdict.high))
        text += f" (95 %: {low} … {high})"
    return text


def _sensitivity(verdict: Verdict, metric: Metric, answer: Judgement | None) -> str:
    """Return what these trials could detect, and how many it takes to detect the floor."""
    if answer is None:
        return ""
    sample = Sample(metric, (verdict.level,))
    smallest = sample.smallest_text(answer.smallest)
    if verdict.kind is VerdictKind.SAME and math.isfinite(answer.smallest) and not verdict.note:
        return f"a change of {smallest} would have been seen"
    more = "more than trials: its commits differ by more than their repeats"
    if answer.trials is not None:
        trials = max(1, answer.trials - len(verdict.trials))
        more = f"about {trials:,} more {'trial' if trials == 1 else 'trials'}"
    elif answer.each is not None:
        more = f"about {answer.each:,} trials of this commit and as many of its baseline"
    if verdict.kind is VerdictKind.UNDECIDED and (answer.trials or answer.each):
        return f"to tell {sample.smallest_text(answer.wanted)} takes {more}"
    if verdict.kind is VerdictKind.TOO_NOISY:
        amount, floor = metric.floor.amount, f"its floor of {metric.floor}"
        if not metric.floor.relative:
            text = change(amount, unit=metric.unit, like=amount, signed=False)
            floor = f"its floor of {text}"
        if not amount:
            floor = f"{percent(WITHOUT_FLOOR, signed=False)} (it has no floor)"
        return f"cannot tell less than {smallest}; {floor} takes {more}"
    return ""


def _evidence(ledger: Reader, verdict: Verdict) -> list[str]:
    """Return the reason of a verdict: the trials judged, the baseline, the rule, the evidence."""
    lines = [f"\n{verdict.task} {verdict.metric or '(whole task)'}: {verdict.kind}"]
    if verdict.note:
        lines.append(f"  because   {plain(verdict.note)}")
    if verdict.rule:
        p_value = f", p = {verdict.p_value:.2g}" if math.isfinite(verdict.p_value) else ""
        lines.append(f"  rule      {verdict.rule}{p_value} (docs/statistics.md)")
    for name, ulids in (("trials", verdict.trials), ("baseline", verdict.baseline)):
        if ulids:
            lines.append(f"  {name:<9} {_values(ledger, ulids, _declared(ledger, verdict))}")
    return lines


def _declared(ledger: Reader, verdict: Verdict) -> Metric:
    """Return the metric as its task declares it."""
    declared = (m for m in ledger.metrics(verdict.recipe) if m.name == verdict.metric)
    return next(declared, Metric(verdict.metric or "any"))


def _values(ledger: Reader, ulids: Sequence[str], metric: Metric) -> str:
    """Return the values, commit by commit: `3f2a9c1d 0.41 0.42 (seeds 0 1)`."""
    by_commit: dict[str, list[tuple[int, float]]] = {}
    for record in filter(None, map(ledger.trial, ulids)):
        value = record.summaries.get(metric.name, math.nan)
        by_commit.setdefault(record.trial.commit, []).append((record.trial.seed, value))
    parts = []
    for sha, pairs in by_commit.items():
        seeds, values = zip(*sorted(pairs), strict=True)
        scale = Scale.of(metric.unit, max(map(abs, values)))
        numbers = " ".join(number(scale.show(value), significant=6) for value in values)
        numbers += f" {scale.unit}" * bool(scale.unit)
        parts.append(f"{short(sha)} {numbers} (seeds {' '.join(map(str, seeds))})")
    return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class BaselineList(Document):
    """Pins and accepted changes, the oldest first."""

    records: Sequence[BaselineRecord]

    def text(self, width: int = 100) -> str:
        if not self.records:
            return "no baseline is pinned, no change accepted: commits are held to their ancestors"
        rows = [
            (
                r.act.value, short(r.commit),
                "/".join(filter(None, (r.suite, r.task, r.metric.lstrip("*")))),
                iso_date(r.at), plain(r.who), plain(r.why),
            )
            for r in self.records
        ]  # fmt: skip
        return table(_BASELINE_COLUMNS, rows, width=width)

    def json(self) -> dict[str, object]:
        names = "act commit suite task metric who why at"
        return {"baselines": [{"id": r.ulid, **pick(r, names)} for r in self.records]}
