"""Run trials: a trial that the ledger lacks is run, or re-uses the result of another. Also returns
the trials that are evidence on a commit, and the seed of the next one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from functools import cached_property
from typing import Self

from celedger.base.model import Commit, Environment, ReusableTrial, Task, Trial, TrialRecord
from celedger.ledger import ulid as ulids
from celedger.repo import Repository
from celedger.suite import Suite
from celedger.trial import events
from celedger.trial.attempt import Attempt
from celedger.trial.ending import answers
from celedger.trial.engine import Engine, Need
from celedger.trial.reuse import Reuse, measured
from celedger.trial.station import Station
from celedger.trial.training_variables import fingerprint
from celedger.trial.venvs import Installation


class Bench:
    """The trials of one command: a station that runs them one by one, and what the ledger has of
    them already. Use it as a context manager."""

    def __init__(self, station: Station) -> None:
        self.station, self.setup, self.ledger = station, station.setup, station.ledger
        self.pool: Engine | None = None  # runs several trials at once; None: they run one by one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool is not None:
            self.pool.close()
        self.station.__exit__(*error)

    @property
    def suite(self) -> Suite:
        return self.setup.suite

    @property
    def repository(self) -> Repository:
        return self.setup.repository

    @property
    def environments(self) -> Mapping[str, Environment]:
        """Return the current environment of each task, by its name."""
        return self.station.environments

    @cached_property
    def reuse(self) -> Reuse:
        setup = self.setup
        return Reuse(
            self.ledger, setup.repository, setup.child,
            lambda task: fingerprint(setup.base_env, task), self.station.installed,
        )  # fmt: skip

    def new_ulid(self) -> str:
        return ulids.new(self.setup.now(), self.setup.random)

    def place(self, commit: str, task: Task) -> Installation:
        """Return where a task runs at a commit (a hash)."""
        return self.station.place(commit, task)

    @property
    def engine(self) -> Engine:
        """Return what runs its trials: its workers, else this thread."""
        return self.pool or InTurn(self)

    def held(self, commit: str, task: Task, seed: int) -> list[TrialRecord]:
        """Return the ledger's trials of this commit and task: same definition, seed and
        environment, with an outcome that is evidence about the commit."""
        records = self.ledger.trials(
            commit=commit,
            recipe=task.recipe,
            environment=self.place(commit, task).environment.fingerprint,
            seed=seed,
        )
        return [r for r in records if answers(r, task)]

    def run(self, need: Need) -> TrialRecord:
        """Run one trial to its end in this thread, whatever the workers do, and return it as stored
        in the ledger.

        It re-uses the result of another commit's trial that would be equal, unless `reuse` is
        false. `until` is called with the trial's ulid whenever the ledger has new epochs of it. If
        it returns a reason, the training is ended: the outcome is `ok`, marked early-stopped,
        without summaries, so that it never counts as a complete trial. If the ledger already has
        `enough` such trials (another celedger may have run them while this one waited for the
        device), the newest of them is returned; None runs it in any case. Raises LedgerError if its
        rows cannot be written: the journal keeps the reports.
        """
        record = self.stored(need) if need.reuse else None
        if record is not None:
            return record
        return self._when_free(need)

    def _when_free(self, need: Need) -> TrialRecord:
        """Run a trial unless another celedger ran it while this one waited for the device."""
        with self.station.device_held():
            return self._newest(need) or self._run(need)

    def stored(self, need: Need) -> TrialRecord | None:
        """Return the newest of `enough` trials that make one more unnecessary, or a new one that
        re-uses the result of another commit's; None if it must run."""
        commit, task, seed = need.commit, need.task, need.seed
        if need.enough is None:
            return None
        records = self.held(commit.sha, task, seed)
        if len(records) >= need.enough:
            return records[-1]
        fingerprint = self.place(commit.sha, task).environment.fingerprint
        evidence = self.reuse.evidence(commit, task, fingerprint, seed, records)
        return None if evidence is None else self._reuse(need, evidence)

    def _newest(self, need: Need) -> TrialRecord | None:
        """Return the newest of the ledger's trials if there are `enough` of them."""
        if need.enough is None:
            return None
        stored = self.held(need.commit.sha, need.task, need.seed)
        return stored[-1] if len(stored) >= need.enough else None

    def _reuse(self, need: Need, evidence: ReusableTrial) -> TrialRecord:
        trial = self._begin(need)
        with self.ledger.transaction():
            # Another celedger may have added one in the meantime: writers wait for each other.
            if (stored := self._newest(need)) is not None:
                return stored
            self.ledger.reuse_trial(trial, evidence, measured(need.task))
        record = self.ledger.trial(trial.ulid)
        assert record is not None
        self.station.listen(events.Reused(need.commit, record))
        return record

    def _begin(self, need: Need) -> Trial:
        """Return the row of the new trial, with every row that it refers to."""
        setup, commit, task = self.setup, need.commit, need.task
        started = setup.now()
        environment = self.place(commit.sha, task).environment
        trial = Trial(
            ulid=need.ulid or ulids.new(started, setup.random),
            commit=commit.sha,
            recipe=task.recipe,
            environment=environment.fingerprint,
            seed=need.seed,
            why=setup.why,
            started=started,
            host=setup.host,
            device=self.station.device.key,
        )
        self.ledger.record_commits([commit])
        self.ledger.record_task(task)
        self.ledger.record_environment(environment)
        return trial

    def _run(self, need: Need) -> TrialRecord:
        trial = self._begin(need)
        attempt = Attempt(self.station, self.reuse, need, trial)
        try:
            attempt.begin()
            record = attempt.finish(attempt.execute())
        except BaseException as error:
            attempt.abandon(error)
            raise
        finally:
            attempt.close()  # last: an unlocked journal is taken for that of a dead runner
        assert record.outcome is not None
        self.station.listen(
            events.Finished(need.commit, record, record.outcome.ended - trial.started)
        )
        return record


class InTurn:
    """An engine of one worker: `submit` runs the trial to its end, in this thread."""

    workers = 1

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def submit(self, need: Need) -> Future[TrialRecord]:
        future: Future[TrialRecord] = Future()
        try:
            future.set_result(self._bench.run(need))
        except Exception as error:  # raised again where the result is asked for
            future.set_exception(error)
        return future

    def wait(self) -> None:
        """Return: what was submitted has ended."""

    def close(self) -> None:
        """Do nothing: nothing is under way."""


def trials_of(bench: Bench, commit: Commit, task: Task, environment: str) -> list[TrialRecord]:
    """Return the trials that are evidence on a commit in an environment (by fingerprint), oldest
    first: its own, and those at commits that agree in all that the training named. A derived trial
    counts as its evidence."""
    records = bench.ledger.trials(commit=commit.sha, recipe=task.recipe, environment=environment)
    agreeing = bench.reuse.agreeing([commit], task, environment)[commit.sha]
    own_ulids = {r.trial.ulid for r in records} | {""}
    others = [bench.ledger.trial(t.ulid) for t in agreeing if t.ulid not in own_ulids]
    trials = [*records, *(r for r in others if r is not None)]
    ran = {r.trial.ulid for r in trials if not r.derived}
    return sorted((r for r in trials if r.derived not in ran), key=lambda r: r.trial.started)


def next_seed(
    bench: Bench,
    commit: Commit,
    task: Task,
    equal_commits: Iterable[str] = (),
    *,
    whole: bool = True,
    under_way: Collection[int] = (),
    first: int | None = None,
) -> int:
    """Return the first seed without a trial at this commit: `first`, the task's own, then upward.

    Equal seeds at different commits pair their noise. A seed with a trial at a commit known to
    compute the same (`equal_commits`, hashes) adds no evidence. An early-stopped trial counts,
    unless `whole` requires a complete one. Trials of the seeds `under_way` run there now.
    """
    environment = bench.place(commit.sha, task).environment.fingerprint
    records = trials_of(bench, commit, task, environment) + bench.ledger.trials(
        commits=list(equal_commits), recipe=task.recipe, environment=environment
    )
    tried = {
        r.trial.seed
        for r in records
        if r.outcome is not None and r.outcome.kind.final and not (whole and r.early_stopped)
    }.union(under_way)
    later = itertools.count(max(task.seeds) + 1)
    preferred = () if first is None else (first,)
    return next(s for s in itertools.chain(preferred, task.seeds, later) if s not in tried)
