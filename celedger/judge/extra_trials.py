"""Run extra trials: those that tell most about what is in doubt after a commit's own trials.

`check` and the worker share this code, with one budget a job for all metrics. `stats.next_trial`
decides which trial tells most; only metrics that the suite declares are considered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from celedger.base.model import Commit, Task, TrialRecord
from celedger.judge.derivation import Derivation, derive
from celedger.judge.failures import NOT_FINITE
from celedger.judge.line import Line
from celedger.judge.measured import Chain
from celedger.judge.memory import cache_of
from celedger.stats.course import MetricKey
from celedger.stats.next_trial import Job, Wanted, Why, anchor, next_trial
from celedger.trial.engine import Need
from celedger.trial.runner import Bench, next_seed

_MAY_PASS = ("crash", "missing", NOT_FINITE)
"""Kinds of failure that are tried again: a network or a full memory may be behind them."""
_WORDS = {
    Why.AGAIN: "repeating",
    Why.BESIDE: "control",
    Why.ANCHOR: "anchor across environments or suites:",
    Why.CONTROL: "control",
    Why.REPEAT: "to measure the noise, repeating",
    Why.CLOCK: "to time the re-used results,",
    Why.RISEN: "control",
}


@dataclass
class ExtraTrials:
    """The extra trials of one task. Make it before the commit's own trials run, because it notes
    what is in doubt then. `tell` gets a line a trial with the reason. `only_noise`: run no more
    than makes the noise known, and what failed and may pass. `ran` are the trials of this job;
    `is_settled` is True once no more are wanted."""

    bench: Bench
    line: Line
    commit: Commit
    task: Task
    tell: Callable[[str], None]
    only_noise: bool = False
    ran: list[TrialRecord] = field(default_factory=list)
    is_settled: bool = False
    _now: tuple[int, Derivation] | None = None

    def __post_init__(self) -> None:
        self._before = self._derive()

    def _derive(self) -> Derivation:
        """Derive the task, where anything came since it last was."""
        facts = self.bench.ledger.facts()
        if self._now is None or self._now[0] != facts:
            self._now = facts, derive(
                self.bench.ledger, self.line, suite=self.task.suite, task=self.task.name,
                cache=cache_of(self.line.repository),
            )  # fmt: skip
        return self._now[1]

    def clock(self) -> None:
        """Run the commit if re-used results leave its speed or memory unknown. Without re-use it
        would have run, so this trial is not counted as an extra one."""
        now = self._derive()
        head = now.line.places.get(self.commit.sha, -1)
        for key in self._declared(now):
            values = now.tasks[key[:2]].measured.get(key)
            reused = values is not None and values.has_sessions and (values.place == head).any()
            if reused and not now.histories[key].nodes_at(head):
                self.ran.append(self._run(now, Wanted(head, key, Why.CLOCK)))
                return

    def repeat_failed(self, most: int) -> int:
        """Repeat up to `most` of the seeds that failed, if the task begins to fail here: a failure
        that the same seed does not repeat is not the commit's. Repeat nothing if every seed fails,
        and no time-out. Return how many ran."""
        now, ledger = self._derive(), self.bench.ledger
        head = now.line.places.get(self.commit.sha, -1)
        metrics = [f.key[2] for f in now.failures if f.last == head and f.kind in _MAY_PASS]
        if not metrics:
            return 0
        own = ledger.trials(
            commit=self.commit.sha, suite=self.task.suite, task=self.task.name,
            recipe=self.task.recipe,
        )  # fmt: skip
        own = [r for r in own if r.outcome is not None and r.outcome.kind.final]
        crashed = {r.trial.ulid for r in own if not r.ok}
        infinite = {
            row.ulid
            for name in metrics if name
            for row in ledger.summaries(
                self.task.name, name, suite=self.task.suite, recipe=self.task.recipe
            )
            if row.commit == self.commit.sha and not math.isfinite(row.value)
        }  # fmt: skip
        if len(own) > 1 and len(own) in (len(crashed), len(infinite)):
            return 0
        tried = Counter(r.trial.seed for r in own)
        seeds = [
            r.trial.seed for r in own
            if r.trial.ulid in crashed | infinite and tried[r.trial.seed] == 1
        ]  # fmt: skip
        for number, seed in enumerate(seeds[:most]):
            again = f"repeating {self.task.name} at {self.commit.sha[:7]}, seed {seed}"
            self.tell(f"{again}: does it fail again?")
            need = Need(
                self.commit, self.task, seed, None, reuse=False, role=Why.AGAIN.value,
                asked=metrics[0],
            )  # fmt: skip
            record = self.bench.run(need)
            self.ran.append(record)
            if not record.ok:
                return number + 1
        return len(seeds[:most])

    def run(self, most: int) -> int:
        """Run what tells most, up to `most` trials; return how many ran."""
        asked = self._asked_before()
        own = len(self.ran)
        for number in range(most):
            now = self._derive()
            plan = self._plan(now, asked, own, most - number)
            wanted = None if plan is None else self._wanted(now, plan)
            if wanted is None:
                self.is_settled = True
                return number
            record = self._run(now, wanted)
            self.ran.append(record)
            for name in ("", wanted.incident) if wanted.why is Why.CONTROL else ():
                asked[name] += 1
            if record.outcome is None or not record.ok:
                return number + 1
        return most

    def _wanted(self, now: Derivation, plan: Job) -> Wanted | None:
        """Return the trial that tells most. If none is in doubt but the noise of a metric is
        unknown, return HEAD: a few repeats make it known for good."""
        histories = {key: now.histories[key] for key in self._declared(now)}
        own_task = now.tasks[self.task.suite, self.task.name]
        floors = {key: metric.floor_at for key, metric in own_task.metrics.items()}
        wanted = next_trial(histories, now.derived, plan, floors)
        if wanted is not None and (wanted.why is Why.REPEAT or not self.only_noise):
            return wanted
        for key, history in histories.items():
            if history.nodes and not history.knows_noise:
                return Wanted(plan.head, key, Why.REPEAT)
        return None

    def _plan(self, now: Derivation, asked: Mapping[str, int], own: int, left: int) -> Job | None:
        """Return the job as far as it went; None where no trial of the commit ended well: what
        fails has no level that more trials could tell."""
        own_task = now.tasks.get((self.task.suite, self.task.name))
        head = now.line.places.get(self.commit.sha)
        if own_task is None or head is None or head not in own_task.ended_well[1]:
            return None
        chain = self._chain(now, own_task.chains)
        before = self._before
        earlier = before.tasks.get((self.task.suite, self.task.name))
        places = set() if earlier is None else set(earlier.ended_well[1].tolist()) - {head}
        declared = self._declared(now)
        return Job(
            head=head,
            chain=chain,
            run=[now.line.places[r.trial.commit] for r in self.ran if r.ok],
            own=own,
            previous=max((place for place in places if place < head), default=None),
            earlier=len(places),
            left=left,
            anchor=anchor(
                {k: h for k, h in before.histories.items() if k in declared}, head, chain,
                before.derived.incidents,
            ),
            has_sessions=[
                k for k in declared
                if k in own_task.measured and own_task.measured[k].has_sessions
            ],
            asked=asked,
            newest=[(key, step) for key, step in before.derived.newest if key in declared],
        )  # fmt: skip

    def _chain(self, now: Derivation, chains: Sequence[Chain]) -> int:
        fingerprint = self.bench.place(self.commit.sha, self.task).environment.fingerprint
        stands = now.equal.get(fingerprint, fingerprint)
        wanted = Chain(stands, self.task.recipe)
        return chains.index(wanted) if wanted in chains else len(chains)

    def _declared(self, now: Derivation) -> list[MetricKey]:
        judged = self.bench.suite.judged
        return [key for key in now.histories if (key[1], key[2]) in judged]

    def _asked_before(self) -> Counter[str]:
        facts = self.bench.ledger.trial_facts(suite=self.task.suite, task=self.task.name)
        return Counter(
            each["asked"]
            for each in facts.values()
            if each.get("role") == Why.CONTROL.value and "asked" in each
        )

    def last(self) -> str:
        """Return the newest extra trial of the task (a ulid), "" where it had none."""
        facts = self.bench.ledger.trial_facts(suite=self.task.suite, task=self.task.name)
        return max((trial for trial, each in facts.items() if "asked" in each), default="")

    def _run(self, now: Derivation, wanted: Wanted) -> TrialRecord:
        task = self.task
        commit = now.line.commits[wanted.place]
        other = None if wanted.beside is None else now.line.commits[wanted.beside]
        question = ""
        if wanted.key is not None and wanted.why is Why.CLOCK:
            question = f": they have no {wanted.key[2]}"
        elif wanted.key is not None and wanted.why is not Why.REPEAT:
            question = f": is {wanted.key[2]} really worse?"
        beside = f", beside {other.sha[:7]}" if other is not None else ""
        self.tell(f"{_WORDS[wanted.why]} {task.name} at {commit.sha[:7]}{beside}{question}")
        need = Need(
            commit, task, self._seed(now, wanted, commit, other), None, reuse=False,
            role=wanted.why.value, asked=wanted.incident or (wanted.key[2] if wanted.key else ""),
        )  # fmt: skip
        return self.bench.run(need)

    def _seed(self, now: Derivation, wanted: Wanted, commit: Commit, other: Commit | None) -> int:
        """Return the seed to use: one that the commit beside it has and this one lacks; the first
        one again beside re-used results, of which the bits tell whether the code is the same, and
        where it is not known whether bits repeat; else a new one."""
        task, bench = self.task, self.bench
        key = wanted.key
        if wanted.seed is not None:
            return wanted.seed
        if wanted.why is Why.CLOCK or (wanted.why is Why.REPEAT and not self._has_repeat(now)):
            return task.seeds[0]
        if wanted.why is Why.AGAIN and key is not None and now.histories[key].by_seeds:
            nodes = now.histories[key].nodes_at(wanted.place)
            same = {p for node in nodes for p in range(node.first, node.last + 1)}
            return next_seed(bench, commit, task, [now.sha(place) for place in sorted(same)])
        if other is not None:
            # What sessions share is told by the trials of this one; all else by those of any.
            history = now.histories.get(key) if key is not None else None
            in_session = history is None or bool(history.noise.session)
            here, there = (self._seeds(c.sha, in_session=in_session) for c in (commit, other))
            lacking = [seed for seed in there if seed not in here]
            if lacking:
                return lacking[0]
            if in_session:
                return task.seeds[len(here) % len(task.seeds)]
        return next_seed(bench, commit, task)

    def _has_repeat(self, now: Derivation) -> bool:
        """Return True if some seed ran twice at one commit: whether bits repeat is known."""
        own = now.tasks[self.task.suite, self.task.name]
        seen = Counter(
            (place, chain, seed) for _, place, chain, seed, _ in own.ended_well.T.tolist()
        )
        return any(count > 1 for count in seen.values())

    def _seeds(self, sha: str, *, in_session: bool) -> list[int]:
        """Return the seeds of a commit's trials, of this session or of the ledger."""
        if in_session:
            return [r.trial.seed for r in self.ran if r.trial.commit == sha]
        records = self.bench.ledger.trials(
            commit=sha, suite=self.task.suite, task=self.task.name, recipe=self.task.recipe
        )
        return list(dict.fromkeys(r.trial.seed for r in records if r.ok))


def settle(extra: Sequence[ExtraTrials], ran: Sequence[TrialRecord], *, most: int) -> None:
    """Run what tells most, one trial after the other, until nothing is in doubt or `most` ran.
    `ran` are the trials of this job so far."""
    spent = 0
    for each in extra:
        each.ran += [r for r in ran if r.task == each.task.name and not r.derived]
        each.clock()
        spent += each.repeat_failed(most - spent)
    for each in sorted(extra, key=lambda each: each.last()):  # who waits longest comes first
        spent += each.run(most - spent)
