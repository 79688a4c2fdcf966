"""Run trials: a trial that the ledger lacks is run, or re-uses the result of another. Also returns
the trials that are evidence on a commit, and the seed of the next one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from concurrent.futures import Future

from celedger.ledger import ulid as ulids
from celedger.model import Commit, ReusableTrial, Task, Trial, TrialRecord
from celedger.trial import events
from celedger.trial.attempt import Attempt
from celedger.trial.bench import Workbench
from celedger.trial.ending import answers
from celedger.trial.engine import Engine, Need
from celedger.trial.reuse import measured


class Bench(Workbench):
    """A workbench with the ledger's trials: `run` adds one."""

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

    def run(
        self,
        commit: Commit,
        task: Task,
        seed: int,
        *,
        enough: int | None = 1,
        reuse: bool = True,
        until: events.Until | None = None,
    ) -> TrialRecord:
        """Run one trial to its end and return it as stored in the ledger.

        It re-uses the result of another commit's trial that would be equal, unless `reuse` is
        false. `until` is called with the trial's ulid whenever the ledger has new epochs of it. If
        it returns a reason, the training is ended: the outcome is `ok`, marked early-stopped,
        without summaries, so that it never counts as a complete trial. If the ledger already has
        `enough` such trials (another celedger may have run them while this one waited for the
        device), the newest of them is returned; None runs it in any case. Raises LedgerError if its
        rows cannot be written: the journal keeps the reports.
        """
        record = self.stored(commit, task, seed, enough) if reuse else None
        if record is not None:
            return record
        with self.device_held():
            stored = self.held(commit.sha, task, seed) if enough is not None else []
            if enough is not None and len(stored) >= enough:
                return stored[-1]
            return self._run(commit, task, seed, until)

    def stored(
        self, commit: Commit, task: Task, seed: int, enough: int | None
    ) -> TrialRecord | None:
        """Return the newest of `enough` trials that make one more unnecessary, or a new one that
        re-uses the result of another commit's; None if it must run."""
        if enough is None:
            return None
        records = self.held(commit.sha, task, seed)
        if len(records) >= enough:
            return records[-1]
        fingerprint = self.place(commit.sha, task).environment.fingerprint
        evidence = self.reuse.evidence(commit, task, fingerprint, seed, records)
        if evidence is None:
            return None
        return self._reuse(commit, task, seed, evidence, enough)

    @property
    def engine(self) -> Engine:
        """Return what runs its trials: its workers, else this thread."""
        return self.pool or InTurn(self)

    def run_need(self, need: Need) -> TrialRecord:
        """Run a trial to its end in this thread, whatever the workers do."""
        return self.run(
            need.commit, need.task, need.seed, enough=need.enough, reuse=need.reuse,
            until=need.until,
        )  # fmt: skip

    def _reuse(
        self, commit: Commit, task: Task, seed: int, evidence: ReusableTrial, enough: int
    ) -> TrialRecord:
        trial = self._begin(commit, task, seed)
        with self.ledger.transaction():
            # Another celedger may have added one in the meantime: writers wait for each other.
            stored = self.held(commit.sha, task, seed)
            if len(stored) >= enough:
                return stored[-1]
            self.ledger.reuse_trial(trial, evidence, measured(task))
        record = self.ledger.trial(trial.ulid)
        assert record is not None
        self.listen(events.Reused(commit, record))
        return record

    def _begin(self, commit: Commit, task: Task, seed: int) -> Trial:
        """Return the row of the new trial, with every row that it refers to."""
        started = self.now()
        installation = self.place(commit.sha, task)
        trial = Trial(
            ulid=self.ulid or ulids.new(started, self.random),
            commit=commit.sha,
            recipe=task.recipe,
            environment=installation.environment.fingerprint,
            seed=seed,
            why=self.why,
            started=started,
            host=self.host,
            device=self.device.key,
        )
        self.ledger.record_commits([commit])
        self.ledger.record_task(task)
        self.ledger.record_environment(installation.environment)
        return trial

    def _run(
        self, commit: Commit, task: Task, seed: int, until: events.Until | None
    ) -> TrialRecord:
        installation = self.place(commit.sha, task)
        trial = self._begin(commit, task, seed)
        attempt = Attempt(self, commit, task, trial, installation, until)
        try:
            attempt.begin()
            record = attempt.finish(attempt.execute())
        except BaseException as error:
            attempt.abandon(error)
            raise
        finally:
            attempt.close()  # last: an unlocked journal is taken for that of a dead runner
        assert record.outcome is not None
        self.listen(events.Finished(commit, record, record.outcome.ended - trial.started))
        return record


class InTurn:
    """An engine of one worker: `submit` runs the trial to its end, in this thread."""

    workers = 1

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def submit(self, need: Need) -> Future[TrialRecord]:
        future: Future[TrialRecord] = Future()
        try:
            future.set_result(self._bench.run_need(need))
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
    own = bench.ledger.trials(commit=commit.sha, recipe=task.recipe, environment=environment)
    agreeing = bench.reuse.agreeing([commit], task, environment)[commit.sha]
    own_ulids = {r.trial.ulid for r in own} | {""}
    others = [bench.ledger.trial(t.ulid) for t in agreeing if t.ulid not in own_ulids]
    trials = [*own, *(r for r in others if r is not None)]
    ran = {r.trial.ulid for r in trials if not r.derived}
    return sorted((r for r in trials if r.derived not in ran), key=lambda r: r.trial.started)


def next_seed(
    bench: Bench,
    commit: Commit,
    task: Task,
    like: Iterable[str] = (),
    *,
    whole: bool = True,
    under_way: Collection[int] = (),
) -> int:
    """Return the first seed, of the task's own and then upward, without a trial at this commit.

    Equal seeds at different commits pair their noise. A seed with a trial at a commit known to
    compute the same (`like`, hashes) adds no evidence. An early-stopped trial counts, unless
    `whole` requires a complete one. Trials of the seeds `under_way` run there now.
    """
    environment = bench.place(commit.sha, task).environment.fingerprint
    records = trials_of(bench, commit, task, environment) + bench.ledger.trials(
        commits=list(like), recipe=task.recipe, environment=environment
    )
    tried = {
        r.trial.seed
        for r in records
        if r.outcome is not None and r.outcome.kind.final and not (whole and r.early_stopped)
    }.union(under_way)
    later = itertools.count(max(task.seeds) + 1)
    return next(s for s in itertools.chain(task.seeds, later) if s not in tried)
