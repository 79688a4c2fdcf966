"""One trial: a checkout, a build, a process that is sampled, and rows in the ledger.

The order of steps is the promise: the journal exists and is locked before the trial is in the
ledger, the trial is in the ledger before its process starts, and its outcome is there before
the journal goes. A kill between any two of them leaves something the next command can finish.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random, SystemRandom
from types import TracebackType

from celedger.errors import CannotJudge, LedgerError, RepositoryError
from celedger.ledger import Ledger
from celedger.ledger import ulid as ulids
from celedger.model import (
    Commit,
    Environment,
    Mark,
    Outcome,
    OutcomeKind,
    Task,
    Trial,
    TrialRecord,
    Why,
)
from celedger.repo.checkouts import Checkout, Checkouts
from celedger.suite import Suite, command_lines
from celedger.system import lock, process
from celedger.system.gpu import Device
from celedger.system.telemetry import Sampler
from celedger.system.warm import Launchers
from celedger.trial import closure, events, journal, parts, protocol, sources
from celedger.trial.builds import Builds
from celedger.trial.ending import answers, classify, disk_is_full, explain, tail
from celedger.trial.surroundings import variables
from celedger.trial.venvs import Place, Venvs

_NOT_TAKEN = "celedger's journal did not take this report"  # what `celedger.child.log` raises
_CHANNEL = ("CELEDGER_FD", "CELEDGER_JOURNAL")  # a build must not report

# Seconds between two looks at a training: the usual ones, and where an epoch may end it.
TICK, WATCHING = 0.05, 0.01


@dataclass
class Bench:
    """Everything that stays the same over the trials of one command.

    Use it as a context manager: it holds one checkout from the first trial on, and gives it
    back at the end.
    """

    ledger: Ledger
    checkouts: Checkouts
    suite: Suite
    suite_copy: Path
    child: Path
    environments: Mapping[str, Environment]  # task name -> where it would run now
    interpreters: Mapping[str, str]  # task name -> path of its interpreter
    builds: Builds
    venvs: Venvs
    device: Device
    device_lock: lock.DeviceLock
    base_env: Mapping[str, str]
    host: str
    why: Why = Why.RUN
    listen: events.Listener = events.ignore
    now: Callable[[], float] = time.time
    random: Random = field(default_factory=SystemRandom)
    stop: Callable[[], bool] | None = None
    launchers: Launchers | None = None  # for warm starts; None: every trial starts cold
    _checkout: Checkout | None = None
    _built: tuple[str, object] | None = None
    _began: float = field(default_factory=time.time)
    _fresh: float = 0.0  # failures of builds remembered from before this time do not count
    _held_at: str = ""  # the commit whose requirements all trials are run with
    _bases: dict[str, Place] = field(default_factory=dict)
    _measuring: bool = False

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.launchers is not None:
            self.launchers.close()
        if self._checkout is not None:
            self._checkout.close()
            self._checkout = None
        self.venvs.close()

    def place(self, commit: str, task: Task) -> Place:
        """Where a task runs at a commit (a hash): in the suite's interpreter, or in an environment
        made from the requirements of that commit (of the held one, after `hold_environment`)."""
        base = self._base(task)
        if not task.venv:
            return base
        at = self._held_at or commit

        def checkout() -> Checkout:
            self._built = None
            self.listen(events.Installing(at, task))
            return self.checkout

        with ExitStack() as quiet:
            if not self._measuring and not self.venvs.has(at, task, base):
                # Making one would disturb whoever measures now.
                quiet.enter_context(self.device_held())
            return self.venvs.place(at, task, base, checkout)

    def environments_at(self, commit: str, tasks: Sequence[Task]) -> dict[str, Environment]:
        """Task name -> the environment in which it runs at this commit."""
        return {task.name: self.place(commit, task).environment for task in tasks}

    def hold_environment(self, commit: str, tasks: Sequence[Task], *, install: bool = True) -> None:
        """From now on run every commit with the requirements of this one, so that trials of
        different commits may be compared. Without `install` only where nothing must be installed
        for it. Raises CannotJudge where they cannot be."""
        for task in tasks:
            base = self._base(task)
            if not task.venv or not (install or self.venvs.has(commit, task, base)):
                continue
            place = self.place(commit, task)
            if place.kind is not OutcomeKind.OK:
                raise CannotJudge(
                    f"{task.name} has no environment at {commit[:10]}: {place.problem}",
                    "choose another end",
                )
            self._bases[task.name] = base
            self.environments = {**self.environments, task.name: place.environment}
        self._held_at = commit

    def requirements_differ(self, commit: str, other: str, tasks: Sequence[Task]) -> bool:
        """Whether two commits ask for different environments."""
        return any(
            self.venvs.key(commit, task, base) != self.venvs.key(other, task, base)
            for task in tasks
            if task.venv and (base := self._base(task))
        )

    def _base(self, task: Task) -> Place:
        """The suite's own interpreter, with which environments are made."""
        return self._bases.get(task.name) or Place(
            self.environments[task.name], self.interpreters[task.name]
        )

    def held(self, commit: str, task: Task, seed: int) -> list[TrialRecord]:
        """The trials of this question that the ledger already answers: same recipe, seed and
        environment, with an outcome that says something about the commit."""
        found = self.ledger.trials(
            commit=commit,
            recipe=task.recipe,
            environment=self.place(commit, task).environment.fingerprint,
            seed=seed,
        )
        return [r for r in found if answers(r, task)]

    @cached_property
    def closures(self) -> closure.Closures:
        return closure.Closures(self.ledger, self.checkouts.repository)

    def run(
        self,
        commit: Commit,
        task: Task,
        seed: int,
        *,
        enough: int | None = 1,
        derive: bool = True,
        until: events.Until | None = None,
    ) -> TrialRecord:
        """Run one trial to its end and return it as the ledger has it. One whose result another
        commit's trial proves is derived from that one instead, unless `derive` is false.

        `until` is told the trial's ulid whenever new epochs of it are in the ledger. Once it
        gives a reason the training is ended: the outcome is `ok`, marked early-stopped, and no
        summary is kept, so that nobody takes it for a whole one.

        Where the ledger already holds `enough` trials of this question (another celedger may
        have run them while this one waited for the device), the newest of them is returned;
        None runs it whatever is held. Raises LedgerError where its rows cannot be written: the
        journal keeps the reports.
        """
        self._fresh = self._began if enough is None else 0.0
        if enough is not None and derive:
            held = self.held(commit.sha, task, seed)
            if len(held) >= enough:
                return held[-1]
            fingerprint = self.place(commit.sha, task).environment.fingerprint
            evidence = self.closures.evidence(commit, task, fingerprint, seed, held)
            if evidence is not None:
                return self._derive(commit, task, seed, evidence)
        with self.device_held():
            held = self.held(commit.sha, task, seed) if enough is not None else []
            if enough is not None and len(held) >= enough:
                return held[-1]
            return self._run(commit, task, seed, until)

    @contextmanager
    def device_held(self) -> Iterator[None]:
        """The device, waited for and held for the body of a `with`."""

        def waits(holder: lock.Holder) -> None:
            self.listen(events.Waiting(self.device.name, _who(holder), holder.pid))

        with self.device_lock.hold(waits, stop=self.stop):
            self._measuring = True
            try:
                yield
            finally:
                self._measuring = False

    def _derive(self, commit: Commit, task: Task, seed: int, evidence: str) -> TrialRecord:
        trial = self._begin(commit, task, seed)
        self.ledger.derive_trial(trial, evidence, closure.measured(task))
        record = self.ledger.trial(trial.ulid)
        assert record is not None
        self.listen(events.Derived(commit, record))
        return record

    def _begin(self, commit: Commit, task: Task, seed: int) -> Trial:
        """The trial as it will stand in the ledger, and all that it refers to."""
        started = self.now()
        place = self.place(commit.sha, task)
        trial = Trial(
            ulid=ulids.new(started, self.random),
            commit=commit.sha,
            recipe=task.recipe,
            environment=place.environment.fingerprint,
            seed=seed,
            why=self.why,
            started=started,
            host=self.host,
            device=self.device.key,
        )
        self.ledger.record_commits([commit])
        self.ledger.record_task(task)
        self.ledger.record_environment(place.environment)
        return trial

    def _run(
        self, commit: Commit, task: Task, seed: int, until: events.Until | None
    ) -> TrialRecord:
        place = self.place(commit.sha, task)
        trial = self._begin(commit, task, seed)
        attempt = _Attempt(self, commit, task, trial, place, until)
        try:
            attempt.begin()
            record = attempt.finish(attempt.execute())
        except BaseException as error:
            attempt.abandon(error)
            raise
        finally:
            attempt.close()  # last: who finds the journal unlocked takes its runner for dead
        self.listen(events.Finished(commit, record, self.now() - trial.started))
        return record

    def prepare(
        self, commit: Commit, task: Task, place: Place, env: Mapping[str, str], log: Path
    ) -> tuple[OutcomeKind, str]:
        """Bring the checkout to the commit, built: `ok`, or the outcome and the reason."""
        checkout = self.checkout
        key = (commit.sha, (task.build, task.inputs, place.python, task.pythonpath))
        if self._built != key or not checkout.restore():
            self._built = None
            try:
                checkout.move_to(commit.sha)
            except RepositoryError as error:  # a filter that fails, an object that is missing
                if disk_is_full(self.ledger.folder):
                    raise
                return OutcomeKind.UNTESTABLE, str(error)
            if task.build:
                kind, reason = self.builds.provide(
                    commit, task, checkout, python=place.python,
                    environment=place.environment.fingerprint, suite_dir=self.suite_copy,
                    env=env, log=log, now=self.now(), fresh=self._fresh,
                    building=lambda: self.listen(events.Building(commit, task)), stop=self.stop,
                )  # fmt: skip
                if kind is not OutcomeKind.OK:
                    return kind, reason
            else:
                checkout.seal()
            self._built = key
        return OutcomeKind.OK, ""

    @property
    def checkout(self) -> Checkout:
        """The checkout of this command, taken at first use."""
        if self._checkout is None:
            self._checkout = self.checkouts.take()
        return self._checkout

    @property
    def tree(self) -> Path:
        return self.checkout.path


class _Flooded(Exception):
    """A training reports without end."""


class _Attempt:
    """The one trial that is under way: its journal, its log, its process."""

    def __init__(
        self,
        bench: Bench,
        commit: Commit,
        task: Task,
        trial: Trial,
        place: Place,
        until: events.Until | None,
    ) -> None:
        self.bench, self.commit, self.task, self.trial = bench, commit, task, trial
        self.place, self.until = place, until
        self.enough = ""  # why no more epochs are needed, once `until` said so
        ledger = bench.ledger
        self.journal_path = journal.folder(ledger) / f"{trial.ulid}.jsonl"
        self.log = journal.log_path(ledger, trial.ulid)
        self.out = journal.out_path(ledger, trial.ulid)
        self.journal = journal.Journal(self.journal_path, ledger, trial.ulid)
        self.totals: dict[str, float] = {}
        self.starts: set[bool] = set()  # of its commands: warm, cold
        self.observed = closure.Observed()
        self.reads = self.journal_path.with_suffix(".reads")
        self.sampler = Sampler(bench.device.gpu)
        self.channel = -1
        self.lock: lock.Lock | None = None

    def begin(self) -> None:
        try:
            for folder in (self.journal_path.parent, self.log.parent, self.out):
                folder.mkdir(parents=True, exist_ok=True)
            parts.inherit(self.bench.ledger, self.task, self.trial, self.out)
            # Locked before it has its name: nobody may take a new journal for a dead one's.
            draft = self.journal_path.with_suffix(".new")
            self.channel = os.open(
                draft, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
            )
            self.lock = lock.try_flock(draft)
            draft.rename(self.journal_path)
        except OSError as error:
            raise LedgerError(
                f"cannot write beside the ledger in {self.journal_path.parent}: {error.strerror}",
                "free some room there or move the ledger with --ledger",
            ) from error
        self.bench.ledger.start_trial(self.trial)

    def execute(self) -> Outcome:
        bench, task = self.bench, self.task
        extra = {
            "CELEDGER_TRIAL": self.trial.ulid,
            "CELEDGER_SEED": str(self.trial.seed),
            "CELEDGER_FD": str(self.channel),
            "CELEDGER_JOURNAL": str(self.journal_path),
            **({"CELEDGER_STEPS": "1"} if task.steps else {}),
        }
        env = variables(
            bench.base_env, task, tree=bench.tree, child=bench.child,
            visible_devices=bench.device.visible, extra=extra,
        )  # fmt: skip
        if self.place.kind is not OutcomeKind.OK:
            self.log.write_text(self.place.log, errors="replace")
            return self._outcome(self.place.kind, self.place.problem, None)
        build_env = {k: v for k, v in env.items() if k not in _CHANNEL}
        ready, reason = bench.prepare(self.commit, task, self.place, build_env, self.log)
        if ready is not OutcomeKind.OK:
            return self._outcome(ready, reason, None)
        bench.listen(events.Started(self.commit, task, self.trial.seed))
        lines = command_lines(
            task, python=self.place.python, suite_dir=bench.suite_copy,
            tree=bench.tree, seed=self.trial.seed, out=self.out,
        )  # fmt: skip
        self.journal.sources = sources.of(
            task.definition(), log=self.log, out=self.out, tree=bench.tree
        )
        spent = 0.0
        for name, argv in lines:
            try:
                end = self._command(argv, env, task.timeout - spent)
            except _Flooded as flood:
                self._follow(patient=True)
                return self._outcome(OutcomeKind.FAILED, str(flood), None)
            if end.end is process.End.STOPPED:
                return self._outcome(OutcomeKind.OK, self.enough, None, Mark.EARLY_STOPPED)
            spent += end.wall
            self._spent(spent, warm=end.warm)
            kind = classify(end, self.log)
            if kind is not OutcomeKind.OK:
                reason = explain(end, self.log)
                if len(lines) > 1:
                    late = end.end is process.End.TIMEOUT
                    limit = f"the commands together ran longer than {task.timeout:g} s"
                    reason = f"{name}: {limit if late else reason}"
                return self._outcome(kind, reason, end.returncode)
        found = protocol.summaries(task.metrics, bench.ledger.series(self.trial.ulid))
        absent = protocol.missing(task, found)
        if absent:
            return self._outcome(
                OutcomeKind.MISSING, f"ended without reporting {', '.join(absent)}", 0
            )
        return self._outcome(OutcomeKind.OK, "", 0)

    def _spent(self, seconds: float, *, warm: bool) -> None:
        """What the commands took together. Where some started warm and others cold, it can be
        compared with nothing."""
        self.starts.add(warm)
        for name in ("duration", "warm_duration"):
            self.totals.pop(name, None)
        if len(self.starts) == 1:
            self.totals["warm_duration" if warm else "duration"] = seconds

    def _command(self, argv: tuple[str, ...], env: Mapping[str, str], left: float) -> process.Exit:
        bench = self.bench
        fork = None
        if bench.launchers is not None:
            fork = bench.launchers.forker(
                argv, self.place.python, self.task.preload, env, bench.stop
            )
        by_hand = bench.stop or (lambda: False)

        def tick(running: process.Running) -> None:
            self.sampler.sample(running.usage)
            # A piece at a time: who reports faster than a disk takes it in may not keep us from
            # looking at the clock.
            self._follow(patient=False)
            self._must_end()

        end = process.run(
            argv, cwd=bench.tree, env=env, log=self.log, pass_fds=(self.channel,),
            reads=(bench.tree, self.reads), timeout=max(left, 0.0),
            silence=self.task.silence, memory=self.task.memory,
            on_tick=tick, tick=TICK if self.until is None else WATCHING,
            activity=lambda: self.journal.size,
            stop=lambda: bool(self.enough) or by_hand(), fork=fork,
        )  # fmt: skip
        self.observed.take_in(self.reads)
        if end.end is process.End.STOPPED and not self.enough:
            raise KeyboardInterrupt
        self._must_end()
        self._follow(patient=True)
        # A peak between two samples is in the kernel's figure; that of several processes at
        # once is in the samples alone.
        peak = max(self.totals.get("peak_rss", 0.0), float(end.max_rss))
        self.totals |= self.sampler.totals()
        self.totals["peak_rss"] = max(self.totals.get("peak_rss", 0.0), peak)
        return end

    def _must_end(self) -> None:
        if self.journal.size > journal.LIMIT:
            raise _Flooded(f"reported more than {journal.LIMIT >> 20} MiB")

    def _follow(self, *, patient: bool) -> None:
        def seen(epoch: int) -> None:
            self.bench.listen(events.Epoch(epoch))
            if self.until is not None and not self.enough:
                self.enough = self.until(self.trial.ulid)

        self.journal.follow(self.sampler.take, seen, patient=patient)

    def _outcome(
        self, kind: OutcomeKind, message: str, returncode: int | None, *marks: Mark
    ) -> Outcome:
        ledger = self.bench.ledger
        return Outcome(
            kind=kind,
            ended=self.bench.now(),
            message=message,
            returncode=returncode,
            log=os.path.relpath(self.log, ledger.folder) if self.log.exists() else "",
            marks=tuple(sorted(self.sampler.marks() | self.journal.marks | {*marks})),
        )

    def finish(self, outcome: Outcome) -> TrialRecord:
        """Write outcome and summaries, then let the journal go."""
        ledger, ulid = self.bench.ledger, self.trial.ulid
        failed = outcome.kind in (
            OutcomeKind.FAILED, OutcomeKind.MISSING, OutcomeKind.UNTESTABLE
        )  # fmt: skip
        if failed and (disk_is_full(ledger.folder) or _NOT_TAKEN in tail(self.log)):
            raise LedgerError(
                f"the disk of {ledger.folder} is full; the trial stopped and is not held "
                "against the commit",
                "free some room, then run the same command again",
            )
        found: dict[str, float] = {}
        if Mark.EARLY_STOPPED not in outcome.marks:
            found = protocol.summaries(self.task.metrics, ledger.series(ulid)) | self.totals
        ledger.finish_trial(ulid, outcome, found)
        if self.observed.began and Mark.EARLY_STOPPED not in outcome.marks:
            self.bench.closures.keep(self.commit, self.task, ulid, self.observed)
        self.journal_path.unlink(missing_ok=True)
        if self.out.is_dir() and not any(self.out.iterdir()):
            self.out.rmdir()
        record = ledger.trial(ulid)
        assert record is not None
        return record

    def abandon(self, error: BaseException) -> None:
        """The trial will not end: say so, unless the ledger itself is what failed. Then the
        journal stays, and the next command takes it in."""
        if isinstance(error, LedgerError) or self.channel < 0:
            return
        try:
            # Afresh: the interrupt may have come between reading a report and recording it.
            read = [source.afresh() for source in self.journal.sources]
            self.journal = journal.Journal(self.journal_path, self.bench.ledger, self.trial.ulid)
            self.journal.sources = read
            self.journal.follow()
            why = "stopped by hand" if isinstance(error, KeyboardInterrupt) else str(error)
            self.finish(self._outcome(OutcomeKind.INTERRUPTED, why, None))
        except (LedgerError, OSError):
            return

    def close(self) -> None:
        if self.channel >= 0:
            os.close(self.channel)
            self.channel = -1
        if self.lock is not None:
            self.lock.close()
            self.lock = None


def _who(holder: lock.Holder) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(holder.since))
    return f"{holder.label} (process {holder.pid}, since {since})"
