"""Hold what a judge says at every job beside what is true.

A score is a number of cells; a cell is (hits, cases), summed over lives. Rates of false things have
commits or lives as cases. A listed incident is held against the regression that its set contains,
else against one at most `REACH` commits away; each against one, nearest first. Several changes
between the same measured commits are one step to everybody: regressions count as one for what is
listed, and all are left out of what is found and mended.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linear_sum_assignment

from lives.judges import Judge, Row
from lives.life import Life, Regression, Session

REACH = 3  # commits by which a set may miss the truth and still be about it
LISTED = ("open", "partly")
GONE = ("withdrawn", "joined")  # a false alarm; a part of a drift that is told as one
ISOLATED = 12  # commits on either side in which nothing else happens
OPEN_JOBS = 3  # hooks after which an open regression has to be listed
BANDS = {"1.5-2.5": 2.5, "2.5-4": 4.0, "4-6": 6.0, "6-10": math.inf}  # sizes in sd, and below what
REMAINING = 0.25  # of a regression that may be left when it is called good again


@dataclass
class Cell:
    hits: float = 0.0
    cases: float = 0.0
    squares: tuple[float, float, float] = (0.0, 0.0, 0.0)  # of hits, hits x cases, cases, by life

    def add(self, hits: float, cases: float) -> None:
        self.hits += hits
        self.cases += cases
        a, b, c = self.squares
        self.squares = a + hits * hits, b + hits * cases, c + cases * cases

    def merge(self, other: Cell) -> None:
        self.hits += other.hits
        self.cases += other.cases
        self.squares = tuple(a + b for a, b in zip(self.squares, other.squares, strict=True))  # type: ignore[assignment]

    @property
    def share(self) -> float:
        return self.hits / self.cases if self.cases else math.nan

    @property
    def error(self) -> float:
        """Return the standard error of the share: that between lives, at least that of a count."""
        if not self.cases:
            return math.nan
        p, (a, b, c) = self.share, self.squares
        between = math.sqrt(max(a - 2 * p * b + p * p * c, 0.0)) / self.cases
        if p > 1:
            return between
        q = (min(self.hits, self.cases) + 0.5) / (self.cases + 1)
        return max(between, math.sqrt(q * (1 - q) / (self.cases + 1)))


@dataclass
class Score:
    cells: dict[str, Cell] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, name: str, hits: float, cases: float = 1) -> None:
        self.cells.setdefault(name, Cell()).add(hits, cases)

    def merge(self, other: Score) -> None:
        for name, cell in other.cells.items():
            self.cells.setdefault(name, Cell()).merge(cell)
        self.faults += other.faults


@dataclass
class _Known:
    """What was said of one regression so far."""

    opened: int | None = None  # job
    ids: set[str] = field(default_factory=set)
    interval: bool | None = None
    is_drift: bool = False
    recovered: bool = False


class LifeScore:
    """Scores one life while it is judged."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.counts: dict[str, list[float]] = {}
        self.faults: list[str] = []
        self.known = {r: _Known() for r in life.regressions}
        self.accepted: set[Regression] = set()
        self.measured: set[int] = set()
        self.hooks = 0
        self.first_hook: dict[Regression, int] = {}
        self.states: dict[str, str] = {}
        self.about: dict[str, Counter[Regression | None]] = {}
        self.pairs: dict[str, Regression] = {}
        self.rows: list[Row] = []
        self.extra: list[tuple[int, int]] = []  # head and extra trials of each hook
        self.unlisted: dict[Regression, list[int]] = {}  # jobs in which it had to be listed

    def count(self, name: str, hits: float, cases: float = 1) -> None:
        total = self.counts.setdefault(name, [0.0, 0.0])
        total[0] += hits
        total[1] += cases

    def fault(self, kind: str, text: str, job: int) -> None:
        self.faults.append(f"{self.life.number} job {job}: {kind}: {text}")

    def job(self, session: Session, rows: list[Row]) -> None:
        """Hold one job's list beside the truth."""
        head, number = session.job.head, session.number
        self.measured |= {t.commit for t in session.trials}
        if session.job.kind == "hook":
            self.hooks += 1
            extra = len(session.trials) - self.life.seeds
            self.count("extra trials", extra)
            self.extra.append((head, extra))
        self.rows = rows
        self.pairs = self._matched(rows, head)
        for row in rows:
            if row.state in (*LISTED, "recovered") and row.id not in self.about:
                self.about[row.id] = Counter()
            if row.id in self.about:
                self.about[row.id][self.pairs.get(row.id)] += 1
        for row in rows:
            self._said(row, head, number)
            self.states[row.id] = row.state
        if session.job.kind == "hook":
            self._open_list(head, number)

    def _matched(self, rows: list[Row], head: int) -> dict[str, Regression]:
        truths = [r for r in self.life.regressions if r.commit <= head]
        listed = [row for row in rows if row.sizes]
        if not truths or not listed:
            return {}
        cost = np.zeros((len(listed), len(truths)))
        for a, row in enumerate(listed):
            for b, truth in enumerate(truths):
                gap = max(row.first - truth.last, truth.commit - row.last, 0)
                if gap <= REACH:
                    middle = abs(row.first + row.last - truth.commit - truth.last) / 2
                    shared = any(truth.sizes[m] > 0 for m in row.sizes)
                    gone = row.state in GONE
                    cost[a, b] = -1e6 + 1e5 * gone + 3e5 * (gap > 0) + 2e5 * (not shared) + middle
                    cost[a, b] -= 10 * (row.id in self.known[truth].ids)
        pairs = zip(*linear_sum_assignment(cost), strict=True)
        return {listed[a].id: truths[b] for a, b in pairs if cost[a, b] < 0}

    def _said(self, row: Row, head: int, job: int) -> None:
        truth, before = self.pairs.get(row.id), self.states.get(row.id)
        if truth is not None and row.state not in GONE:
            known = self.known[truth]
            known.ids.add(row.id)
            if known.opened is None and row.state in LISTED:
                known.opened = job
                known.interval = self._interval_holds(row, truth, head)
            overlaps = any(
                r.kind == "drift" and r.commit - REACH <= row.last and row.first <= r.last + REACH
                for r in self.life.regressions
            )
            known.is_drift |= row.kind == "drift" and not overlaps
        if row.state == "recovered" and before != "recovered":
            self._good_again(row, truth, head, job)

    def _interval_holds(self, row: Row, truth: Regression, head: int) -> bool | None:
        """Return None where something else happens nearby or the sizes are still to come."""
        if truth.commits > 1 or truth.kind == "short" or self._neighbours(truth):
            return None
        sd = self.life.noise.sd
        own = [m for m in row.sizes if truth.sizes[m] > 0]
        if not own:
            return None
        m = max(own, key=lambda m: truth.sizes[m])
        _, low, high = row.sizes[m]
        return low <= truth.sizes[m] * sd[m] <= high

    def _neighbours(self, truth: Regression) -> bool:
        places = [(r.commit, r.last) for r in self.life.regressions if r is not truth]
        places += [(p, p) for r in self.life.regressions for p, _ in r.mends]
        places += [(p, p) for p, _ in self.life.moves]
        return any(a - ISOLATED <= truth.commit <= b + ISOLATED for a, b in places)

    def _good_again(self, row: Row, truth: Regression | None, head: int, job: int) -> None:
        if truth is None:
            return
        group = self._group(truth)
        if any(r.left(head) <= REMAINING for r in group):
            for r in group:
                self.known[r].recovered = True
            return
        since = row.first
        fell = any(
            since <= place <= head
            for place in [
                *(p for r in self.life.regressions for p, _ in r.mends),
                *(p for p, _ in self.life.moves),
            ]
        )
        name = "wrong one good" if fell else "good, nothing mended"
        self.count(name, 1, 0)
        self.fault(name, f"{row.first}..{row.last} {row.sizes}, truth {truth.commit}", job)

    def _are_parted(self, one: int, other: int) -> bool:
        """Return True if a commit was measured that has the older change and not the newer."""
        return any(min(one, other) <= c < max(one, other) for c in self.measured)

    def _group(self, truth: Regression) -> list[Regression]:
        """Return the regressions that no measured commit parts from it."""
        return [r for r in self.life.regressions if not self._are_parted(r.commit, truth.commit)]

    def _is_alone(self, place: int) -> bool:
        """Return True if measured commits part a change from every other change."""
        others = [p for r in self.life.regressions for p in (r.commit, *(m for m, _ in r.mends))]
        others += [p for p, _ in self.life.moves]
        return not any(p != place and not self._are_parted(p, place) for p in others)

    def _open_list(self, head: int, job: int) -> None:
        listed = {self.pairs[r.id] for r in self.rows if r.state in LISTED and r.id in self.pairs}
        for truth in self.life.regressions:
            if truth.commit > head:
                continue
            self.first_hook.setdefault(truth, self.hooks)
            jobs = self.hooks - self.first_hook[truth]
            is_open = truth.left(head) * self._real_size(truth) >= 3 and truth not in self.accepted
            if truth.commits > 1:  # a drift is due once it is over
                is_open = is_open and head >= truth.last
            if is_open and jobs >= OPEN_JOBS and self._is_due(truth):
                right = any(r in listed for r in self._group(truth))
                self.count("open list right", right)
                if not right:
                    self.unlisted.setdefault(truth, []).append(job)

    def _is_due(self, truth: Regression) -> bool:
        """Return False where a mend or an improvement of its own gap hides it."""
        return len(self._group(truth)) > 1 or self._is_alone(truth.commit)

    def _real_size(self, truth: Regression) -> float:
        """Return its size in the sd of a trial at the level there."""
        below = float(self.life.rise(truth.commit - 1).max())
        noise = self.life.noise
        return truth.size / ((noise.growth(below) + noise.growth(below + truth.size)) / 2)

    def finish(self) -> Score:
        """Return the life's score."""
        life, last = self.life, self.life.jobs[-1].head
        for name in ("good, nothing mended", "wrong one good", "false incidents", "false drifts"):
            self.count(name, 0, life.commits if name.startswith("false") else 1)
        for truth, jobs in self.unlisted.items():
            text = f"{truth.commit} of {truth.size:.1f} sd in {len(jobs)} jobs to {jobs[-1]}"
            self.fault("not listed", text, jobs[0])
        self._false_ones()
        self._withdrawn()
        for truth in life.regressions:
            if truth.commit <= last and self._is_alone(truth.commit):
                self._found(truth, last)
                self._mends(truth)
        score = Score(faults=self.faults)
        for name, (hits, cases) in self.counts.items():
            score.add(name, hits, cases)
        return score

    def _false_ones(self) -> None:
        for id_, about in self.about.items():
            row = next((r for r in self.rows if r.id == id_), None)
            if any(truth is not None for truth in about):
                continue
            near = row is not None and any(
                r.commit - REACH <= row.last and row.first <= r.last + REACH
                for r in self.life.regressions
            )
            if not near:
                where = f"{row.first}..{row.last} {row.sizes}" if row else id_
                is_drift = row is not None and row.kind == "drift"
                self.count("false drifts" if is_drift else "false incidents", 1, 0)
                self.fault("false", where, len(self.life.jobs) - 1)

    def _withdrawn(self) -> None:
        """Count real incidents that ended as false alarms, none other standing in for them."""
        self.count("true ones withdrawn", 0, 1)
        for truth, known in self.known.items():
            states = {r.state for r in self.rows if r.id in known.ids}
            if known.opened is not None and states == {"withdrawn"}:
                group = self._group(truth)
                if any(r in group for r in self.pairs.values() if r is not truth):
                    continue
                self.count("true ones withdrawn", 1, 0)
                self.fault("withdrawn", f"{truth.commit} of {truth.size:.1f} sd", -1)

    def _found(self, truth: Regression, last: int) -> None:
        known = self.known[truth]
        hooks_seen = [h for h in self.life.heads() if h >= truth.last and truth.left(h) > REMAINING]
        if truth.kind == "drift":
            self._drift(truth)
            return
        size = self._real_size(truth)
        if truth.kind == "short":
            own = [r for r in self.rows if r.id in known.ids]
            if truth.size >= 6 and hooks_seen and truth.commit < last:
                self.count("short rises recovered", any(r.state == "recovered" for r in own))
            return
        if len(hooks_seen) < 2:
            return
        found = known.opened is not None
        band = next((name for name, below in BANDS.items() if size < below), None)
        if band is not None:
            self.count(f"found {band}", found)
        if truth.beside_environment and size >= 3:
            self.count("found with environment", found)
        if truth.on_top and size >= 4:
            self.count("found on top", found)
        if not found:
            if size >= 4:
                self.fault("never found", f"{truth.commit} of {size:.1f} sd", -1)
            return
        self.count("steps told as drift", known.is_drift)
        rows = [r for r in self.rows if self.pairs.get(r.id) is truth and r.state not in GONE]
        if rows:
            holds = any(r.first <= truth.commit <= r.last for r in rows)
            self.count("sets hold", holds)
            if not holds:
                self.fault("set misses", f"{truth.commit}: {rows[0].first}..{rows[0].last}", -1)
        if known.interval is not None:
            self.count("intervals hold", known.interval)

    def _drift(self, truth: Regression) -> None:
        if not any(h >= truth.last + 5 and truth.left(h) > REMAINING for h in self.life.heads()):
            return
        rows = [
            r
            for r in self.rows
            if r.state not in GONE and r.first <= truth.last and truth.commit <= r.last
        ]
        others = [
            o
            for o in self.life.regressions
            if o is not truth and truth.commit <= o.commit <= truth.last
        ]
        if others:
            return
        one = len(rows) == 1 and rows[0].kind == "drift"
        covers = one and rows[0].first <= truth.commit and rows[0].last >= truth.last
        self.count("drift told as one", covers)
        self.count("drift told as one, set aside", one)
        self.count("drift found", any(r.sizes for r in rows))
        if one:
            self.count(
                "drift: set over stretch", (rows[0].last - rows[0].first + 1) / truth.commits
            )

    def _mends(self, truth: Regression) -> None:
        known, mend = self.known[truth], truth.mended
        if known.opened is None or mend is None or truth.kind == "short":
            return
        if truth in self.accepted or sum(h >= mend for h in self.life.heads()) < 2:
            return
        if self.life.jobs[known.opened].head >= mend or not self._is_alone(mend):
            return
        before = max((c for c in self.measured if c < mend), default=0)
        others = any(  # what the same gap mends counts as open beside it
            o.left(before) > 0 and o not in self.accepted
            for o in self.life.regressions
            if o is not truth and o.commit <= mend
        )
        where = "in a stack" if others else "alone"
        if truth.commits > 1 or len(truth.mends) > 1:
            self.count("mends told of drifts and in parts", known.recovered)
            return
        self.count(f"mends told {where}", known.recovered)
        if self.life.names.get(mend) == truth.commit:
            self.count(f"named reverts told {where}", known.recovered)
        if not known.recovered:
            self.fault(
                "mend not told", f"{truth.commit} of {truth.size:.1f} sd at {mend}, {where}", -1
            )


def play(life: Life, judge: Judge) -> tuple[Score, LifeScore]:
    """Let a judge live a life; return what it scored."""
    score, seen, spent, hooks = LifeScore(life), {}, 0.0, 0
    due = {r: r.accepted for r in life.regressions if r.accepted is not None}
    judge.start(life)
    for number, job in enumerate(life.jobs):
        session = Session(life, number, seen)
        start = time.process_time()
        rows = judge.job(session)
        spent += time.process_time() - start
        score.job(session, rows)
        hooks += job.kind == "hook"
        for regression in list(due):
            waited = hooks - score.first_hook.get(regression, hooks)
            listed = [
                row.id
                for row in rows
                if row.state in LISTED and score.pairs.get(row.id) is regression
            ]
            if listed and waited >= due[regression]:
                judge.accept(regression.commit, listed[0])
                score.accepted.add(regression)
                del due[regression]
    result = score.finish()
    result.add("ms a job", 1000 * spent, len(life.jobs))
    return result, score


def total(scores: Iterable[Score]) -> Score:
    result = Score()
    for score in scores:
        result.merge(score)
    return result


def pooled(scores: Mapping[str, Score], kinds: Iterable[str]) -> Score:
    return total(scores[kind] for kind in kinds if kind in scores)
