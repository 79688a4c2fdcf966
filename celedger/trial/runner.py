"""Run the trials that the ledger lacks, or re-use the result of another; in turn, or by several
workers. Also return the trials that are evidence on a commit, and the seed of the next one.

The workers of this machine are threads with a bench each: its own checkout, fork servers,
connection to the ledger, and device. All events reach the thread of the command through one queue,
so listeners, the reasons to end a trial early, and the choice of the next trial need not know of
threads.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from queue import SimpleQueue
from threading import Thread
from typing import Self

from celedger.base.model import Commit, Environment, Kind, ReusableTrial, Task, Trial, TrialRecord
from celedger.ledger import ulid as ulids
from celedger.repo import Repository
from celedger.suite import Suite
from celedger.system import devices
from celedger.system.devices import Device
from celedger.trial.attempt import Attempt
from celedger.trial.ending import answers, failed_alike
from celedger.trial.engine import Engine, Event, Finished, Listener, Need, Ordered, Remark
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
        self.station.close()

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

    def held(self, commit: str, task: Task, seed: int | None = None) -> list[TrialRecord]:
        """Return the ledger's trials of this commit and task: same definition, seed (all without
        one) and environment, with an outcome that is evidence about the commit."""
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
        self.station.listen(Finished(need.commit, record, None))
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
        self.ledger.record_task(task, is_whole=True)
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
        self.station.listen(Finished(need.commit, record, record.outcome.ended - trial.started))
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
    tried = {r.trial.seed for r in records if r.is_final and not (whole and r.early_stopped)}.union(
        under_way
    )
    later = itertools.count(max(task.seeds) + 1)
    preferred = () if first is None else (first,)
    return next(s for s in itertools.chain(preferred, task.seeds, later) if s not in tried)


# --- several at once


class Workers:
    """A pool of threads on this machine. Each of `benches` makes the bench of one of them, in its
    thread, with the listener it is given; that of the command's `bench` hears of all events."""

    def __init__(self, benches: Sequence[Callable[[Listener], Bench]], bench: Bench) -> None:
        self._bench = bench
        self._orders: SimpleQueue[Ordered | None] = SimpleQueue()
        # An event and its job; the ulid of a trial with new epochs; None where a job has ended.
        self._news: SimpleQueue[tuple[Ordered, Event | str | None]] = SimpleQueue()
        self._jobs: set[Ordered] = set()
        self._threads = [
            Thread(target=self._work, args=(make,), name=f"worker {number}", daemon=True)
            for number, make in enumerate(benches)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def workers(self) -> int:
        return len(self._threads)

    def submit(self, need: Need) -> Future[TrialRecord]:
        job = Ordered(need)
        self._jobs.add(job)
        self._orders.put(job)
        return job

    def wait(self) -> None:
        while self._jobs:
            job, message = self._news.get()
            if message is None:
                self._jobs.discard(job)
                return
            if not isinstance(message, str):
                self._bench.station.listen(message)
            elif job.need.until is not None:
                job.signals.reason = job.signals.reason or job.need.until(message)

    def close(self) -> None:
        for job in self._jobs:
            job.signals.interrupted = True
            job.cancel()
        for _ in self._threads:
            self._orders.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, make: Callable[[Listener], Bench]) -> None:
        """Run jobs until there is a None. The bench is made for the first, which hears of it if
        that fails."""
        bench: Bench | None = None
        job: Ordered | None = None

        def listen(event: Event) -> None:
            assert job is not None
            self._news.put((job, event))

        try:
            while (job := self._orders.get()) is not None:
                if job.set_running_or_notify_cancel():
                    try:
                        bench = bench or make(listen)
                        job.set_result(self._run(bench, job))
                    except BaseException as error:  # raised again where the result is asked for
                        job.set_exception(error)
                self._news.put((job, None))
        finally:
            if bench is not None:
                with bench, bench.ledger:
                    pass

    def _run(self, bench: Bench, job: Ordered) -> TrialRecord:
        def until(ulid: str) -> str:
            self._news.put((job, ulid))
            return job.signals.reason

        bench.station.signals = job.signals
        need = job.need
        return bench.run(need._replace(until=need.until and until))


def run_all(
    bench: Bench,
    needs: Sequence[Need],
    *,
    speed_too: bool = True,
    leaves_out: Callable[[Need], bool] = lambda _: False,
) -> list[TrialRecord]:
    """Run the trials and return them in their order: one by one, or on the workers of the bench.
    `leaves_out` is asked before each starts. Once a commit's trials of a task failed alike, those
    that are needed only otherwise (`Need.if_alike`) do not run.

    Workers take trials of different tasks or seeds at once: of the same one at two commits, the
    later may re-use the result of the earlier. Unless `speed_too`, tasks with a metric of speed
    that the suite judges run one by one.
    """
    engine = bench.engine
    speed_too |= engine.workers == 1
    together = [speed_too or not _judges_speed(bench, need) for need in needs]
    records: dict[int, TrialRecord] = {}
    alike: set[tuple[str, str]] = set()  # commits and recipes whose trials failed alike

    def skips(need: Need) -> bool:
        if need.if_alike or (need.commit.sha, need.task.recipe) not in alike:
            return leaves_out(need)
        where = f"{need.task.name} at {need.commit.sha[:10]}"
        text = f"{where} fails alike: its other seeds are not trained"
        bench.station.listen(Remark(text, (text,)))
        return True

    def note(number: int, record: TrialRecord) -> None:
        records[number], (commit, task) = record, needs[number][:2]
        fails = not (needs[number].if_alike or record.ok)
        if fails and failed_alike(bench.held(commit.sha, task)):
            alike.add((commit.sha, task.recipe))

    waiting = deque(i for i, is_parallel in enumerate(together) if is_parallel)
    under_way: dict[Future[TrialRecord], int] = {}
    while waiting or under_way:
        while waiting and len(under_way) < engine.workers:
            busy = {(needs[i].task.name, needs[i].seed) for i in under_way.values()}
            free = (i for i in waiting if (needs[i].task.name, needs[i].seed) not in busy)
            number = next(free, waiting[0])
            waiting.remove(number)
            if not skips(needs[number]):
                under_way[engine.submit(needs[number])] = number
        if under_way:
            engine.wait()
        for future in [f for f in under_way if f.done()]:
            note(under_way.pop(future), future.result())
    for number, need in enumerate(needs):
        if not together[number] and not skips(need):
            note(number, bench.run(need))
    return [records[number] for number in sorted(records)]


def _judges_speed(bench: Bench, need: Need) -> bool:
    judged = bench.suite.judged
    return any(
        metric.kind is Kind.SPEED and (need.task.name, metric.name) in judged
        for metric in need.task.metrics
    )


WorkerSlot = tuple[Device, tuple[int, ...]]
"""The device of one worker, and the cores that its trials may use (() for all)."""


def share_out(
    number_wanted: int | None,
    device: Device,
    cores: Sequence[int],
    threads: int,
    tell: Callable[[str], None] = lambda _: None,
) -> list[WorkerSlot]:
    """Return a slot for each of the workers that are wanted, as far as the machine has devices: a
    GPU each, or on the CPU as many cores each, and at least one for each thread of a trial. None
    wants one worker on the CPU, and one a GPU where there are several. `tell` gets a line if there
    are fewer than wanted."""
    gpus = devices.alike(device) if device.gpu is not None else []
    most = len(gpus) or max(len(cores) // threads, 1)
    number = min(number_wanted or len(gpus) or 1, most)
    if number_wanted and number_wanted > most:
        needs = "worker needs a GPU" if gpus else f"trial needs {threads} of {len(cores)} cores"
        tell(f"{most} of {number_wanted} workers: each {needs}")
    if gpus or number == 1:
        return [(one, ()) for one in gpus[:number] or [device]]
    share = len(cores) // number
    return [(device, tuple(cores[i * share : (i + 1) * share])) for i in range(number)]


def start_workers(bench: Bench, slots: Sequence[WorkerSlot]) -> None:
    """Let the trials of a bench run on several workers at once, until the bench is closed. With one
    slot, they go on to run one by one."""

    def bench_in(device: Device, cores: tuple[int, ...]) -> Callable[[Listener], Bench]:
        return lambda listen: Bench(bench.station.beside(device, cores, listen))

    if len(slots) > 1:
        bench.pool = Workers([bench_in(*slot) for slot in slots], bench)
