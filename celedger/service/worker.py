"""The worker: turn the notes that hooks left into jobs, and run the queue, one job at a time.

Queue and lock belong to the ledger: one worker a ledger. The kernel releases the lock however the
worker dies. A hook's note becomes a job before its worker asks for the lock, and a worker that has
released the lock looks at the queue once more, so no merge is missed. Knows nothing of how hooks
are installed."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from celedger.base import files
from celedger.base.config import FILES, SUITES, Config
from celedger.base.errors import TYPED, CeledgerError, LedgerError, LedgerGone
from celedger.base.model import (
    Commit,
    JobState,
    OutcomeKind,
    Purpose,
    QueuedJob,
    Task,
    TrialRecord,
)
from celedger.base.text import some
from celedger.judge.incident import Incident, Standing, State, uses_torch
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.service import hooks
from celedger.service.allow import check_settings, queue_folder
from celedger.service.measure import Session, load_suite, measure, open_bench, record_state
from celedger.trial.engine import Listener, ignore_events
from celedger.trial.permissions import Gate, NotAllowed

if TYPE_CHECKING:
    from celedger.judge.bisection import Report
    from celedger.service.notify import Draw
    from celedger.trial.runner import Bench

KIND = "commit"
_SEE = "see `celedger status`"
_SIGNED = 32  # commits of one merge whose first steps are recorded at most
MAX_ATTEMPTS = 3  # a job that lost its worker this often is given up


def at_work(ledger: Path) -> bool:
    """Return True if a worker of this ledger lives."""
    with suppress(CeledgerError):
        return files.is_locked(_lock_path(ledger))
    return False


def interrupt(ledger: Path) -> list[str]:
    """Interrupt the worker of a ledger, if it runs a job on this machine. Return the commits
    (hashes) of its jobs, which it hands back to the queue."""
    if not (ledger.exists() and at_work(ledger)):
        return []
    with Ledger.open(ledger, readonly=True) as opened:
        running = opened.jobs(state=JobState.RUNNING)
    return [job.commit for job in running if _interrupt_owner(job)]


def cancel(ledger: Path, commit: str, now: float) -> list[JobState]:
    """End the jobs of a commit that wait or run, and interrupt the worker that runs one. Return the
    states that they were in."""
    with Ledger.open(ledger) as opened:
        jobs = [job for job in opened.jobs() if job.ended is None and job.commit == commit]
        for job in jobs:
            opened.queue.cancel(job.id, now)
    if at_work(ledger):
        for job in jobs:
            if job.state is JobState.RUNNING:
                _interrupt_owner(job)
    return [job.state for job in jobs]


def _interrupt_owner(job: QueuedJob) -> bool:
    """Interrupt the worker of a job as Ctrl-C does; return True if it runs on this machine."""
    host, _, number = job.owner.rpartition(" ")
    if host == socket.gethostname() and number.isdigit():
        with suppress(ProcessLookupError):
            os.kill(int(number), signal.SIGINT)
            return True
    return False


def detach() -> None:
    """Leave the terminal and whatever else the process inherited from git: take a session of its
    own, the default signals, and only the three standard files (not a lock of `flock 200`)."""
    with suppress(OSError):  # it is one already
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    for fd in [int(name) for name in os.listdir("/dev/fd")]:  # noqa: PTH208 -- names are wanted
        with suppress(OSError):
            # What Python opened itself is not inheritable (PEP 446); what we inherited is.
            if fd > 2 and os.get_inheritable(fd):
                os.close(fd)


@dataclass
class Worker:
    """Drains the queue. `configure` gives the settings of a work tree, `say` gets a line for the
    worker's own log, `listen` what happens to the trials. `attended`: a person typed it, so that
    what it starts is allowed by that."""

    repository: Repository
    ledger: Ledger
    configure: Callable[[Repository], Config]
    say: Callable[[str], None]
    listen: Listener = ignore_events
    attended: bool = False
    draw: Draw | None = None  # makes the pictures of alerts
    # Runs an installed verb, which keeps its answer, and returns that, "" where no package has the
    # verb; without it nothing is signed or explained, and no page is written.
    run_verb: Callable[[Repository, Config, Sequence[str]], str] | None = None
    owner: str = field(default_factory=lambda: f"{socket.gethostname()} {os.getpid()}")

    def drain(self) -> int | None:
        """Run every job there is and return their number; None when another worker is at it,
        which will run them. A job that is not allowed waits, until then or for another try."""
        jobs = 0
        self.ledger.queue.wake()
        while True:
            self.collect()
            handle = self._take_lock()
            if handle is None:
                return jobs or None
            with handle:
                self._release_dead()
                while (job := self.ledger.queue.claim(self.owner)) is not None:
                    self._work(job)
                    jobs += 1
                    self.collect()
            if not self.ledger.jobs(state=JobState.QUEUED):
                return jobs

    def collect(self) -> int:
        """Turn the hooks' notes into jobs: whatever each work tree's HEAD is by now. A note
        goes when its job is in the ledger."""
        entered = 0
        for note in sorted(queue_folder(self.repository).glob("*.moved")):
            try:
                worktree = os.fsdecode(note.read_bytes())
                self._enqueue(Path(worktree))
                entered += 1
            except FileNotFoundError:
                continue  # another worker was faster
            except LedgerError:
                raise
            except NotAllowed as error:
                self.say(f"a merge in {worktree!r} waits: {error}")
                continue
            except CeledgerError as error:
                self.say(f"a merge in {worktree!r} is ignored: {error}")
            note.unlink(missing_ok=True)
        return entered

    def _enqueue(self, worktree: Path) -> None:
        repository = Repository.open(worktree)
        head = repository.resolve("HEAD")
        try:
            settings = self.configure(repository)
            check_settings(Gate.of(repository, attended=self.attended), settings)
            suite = settings.hook_suite or settings.suite or ""
        except NotAllowed:
            raise
        except CeledgerError:
            suite = ""  # the job will fail with the sentence, where a person looks for it
        self.ledger.record_commits([head])
        # SQLite's text is UTF-8; a folder with another name is worked on from the main one.
        key = os.fsencode(repository.worktree).decode("utf-8", "replace")
        self.ledger.queue.enqueue(KIND, head.sha, suite, time.time(), key)

    def _take_lock(self) -> files.Lock | None:
        path = _lock_path(self.ledger.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(3):  # `at_work` holds it for a moment
            handle = files.try_flock(path)
            if handle is not None:
                return handle
            time.sleep(0.05)
        return None

    def _release_dead(self) -> None:
        """Hand back the jobs that still run: we hold the lock, so they lost their worker."""
        for job in self.ledger.jobs(state=JobState.RUNNING):
            state, words = JobState.QUEUED, "its worker died"
            if job.attempts >= MAX_ATTEMPTS:
                state, words = JobState.FAILED, f"given up: {words} {job.attempts} times"
                self.say(f"{job.commit[:10]}: {words}")
            self.ledger.queue.finish(job.id, job.owner, state, time.time(), words)

    def _work(self, job: QueuedJob) -> None:
        try:
            message, state = self._run(job), JobState.DONE
        except NotAllowed as error:
            message, state = self._changed_by(job) + str(error), JobState.WAITING
        except LedgerGone:
            raise  # the queue went with it
        except CeledgerError as error:
            message, state = str(error), JobState.FAILED
        except Exception as error:
            # The next job may well run, and this one would end so again.
            self.say(traceback.format_exc())
            message = f"internal error: {type(error).__name__}: {error}"
            state = JobState.FAILED
        except BaseException:
            self.ledger.queue.finish(job.id, self.owner, JobState.QUEUED, time.time(), "stopped")
            raise
        self.ledger.queue.finish(job.id, self.owner, state, time.time(), message)
        waits = "waits: " if state is JobState.WAITING else ""
        self.say(f"{job.commit[:10]}: {waits}{message}")
        if not self.attended:  # who typed it knows
            hooks.leave_line(self.repository, f"{job.commit[:10]}: {waits}{message} ({_SEE})")
        self._publish(job)

    def _changed_by(self, job: QueuedJob) -> str:
        """Return who changed settings or suites last, up to the commit of a job that waits."""
        paths = [f":(top){path}" for path in (FILES[0], SUITES)]
        commit = self.repository.last_touching(job.commit, paths)
        return f"{commit.author} in {commit.sha[:10]}: " if commit is not None else ""

    def _publish(self, job: QueuedJob) -> None:
        """Write the report anew where the user's configuration names its file. A page that cannot
        be written is a line in the log."""
        if self.run_verb is None:
            return
        try:
            repository = self._place(job)
            settings = self.configure(repository)
            if settings.report is not None:
                words = ["report", "--output", str(settings.report)]
                self.run_verb(repository, settings, words)
        except Exception as error:  # whatever is wrong with it, the work goes on
            self.say(f"the report was not written: {error}")

    def _place(self, job: QueuedJob) -> Repository:
        """Return the work tree that moved, or, when it is gone, the repository: it has the
        commit."""
        if job.key:
            with suppress(CeledgerError):
                return Repository.open(Path(job.key))
        return self.repository

    def _run(self, job: QueuedJob) -> str:
        repository = self._place(job)
        # Here, and not above: a merge during a trial starts a worker that leaves its job and
        # goes; the statistics would cost it, and the trial, a second of a core.
        from celedger.judge import memory
        from celedger.service.notify import announce
        from celedger.trial.workplace import lacking
        from celedger.views import incidents

        settings = self.configure(repository)
        commit = repository.commit(job.commit)
        gate = Gate.of(repository, attended=self.attended)
        session = Session(repository, settings, self.ledger, gate, self.say)
        run_verb = self.run_verb and partial(self.run_verb, repository, settings)
        with open_bench(
            session, "worker", suite=load_suite(session, job.suite or None), commit=commit.sha,
            why=Purpose.HOOK, listen=self.listen, together=True,
        ) as (bench, tasks):  # fmt: skip
            if run_verb is not None:
                self._sign(run_verb, bench, commit)
            state, ran = measure(
                session, bench, commit, tasks, lacking(bench, [commit], tasks), job=commit.sha,
                tip=commit.sha, most=settings.max_reruns, diagnose=run_verb, speed_too=False,
            )  # fmt: skip
            answers = [_unjudged(ran, state, {task.name for task in tasks})]
            try:
                if settings.bisect_on_regression:
                    for answer, after in self._search(session, bench, tasks, commit.sha, state):
                        answers.append(answer)
                        state = after
            finally:  # one alert tells what was opened and named, and none waits for the next job
                announce(session, state, self.draw)
            summary = incidents.summary(state, memory.commits_of(repository, state))
            return "; ".join(filter(None, [summary, *answers]))

    def _search(
        self, session: Session, bench: Bench, tasks: Sequence[Task], tip: str, state: State
    ) -> Iterator[tuple[str, State]]:
        """Bisect each incident of several commits that no bisect searched yet, those too that a
        bisect parted from another, within one budget of trials, and rehearse the revert of each
        commit that is named. Yield the answers, a line each, and the state after each."""
        left = budget = session.config.bisect_budget
        asked: set[object] = set()
        while incident := self._unsearched(state, asked):
            if left <= 0:
                yield f"bisect_budget of {budget} trials is spent", state
                return
            answer, report = _bisect(session, bench, tasks, incident, left, state)
            if report is not None:
                left -= report.trials
                self._explain(session, bench, report, incident)
            state = record_state(session, tip, tip)
            yield answer, state

    def _unsearched(self, state: State, asked: set[object]) -> Incident | None:
        """Return the first incident that a bisect can tell more of, was not `asked` for in this job
        and note that it is now; None where no one is left."""
        bisects = self.ledger.bisects()
        for incident in state.in_force:
            question = incident.known_good, incident.first_bad, *(m.key for m in incident.metrics)
            if (
                incident.is_searchable and incident.declared and question not in asked
                and not incident.was_searched(bisects)
            ):  # fmt: skip
                asked.add(question)
                return incident
        return None

    def _sign(self, run_verb: Callable[[Sequence[str]], str], bench: Bench, commit: Commit) -> None:
        """Record the first steps of the commits that came, up to this one, and say whether they
        compute the same. Takes seconds; what cannot be signed is trained all the same."""
        log = bench.repository.log(commit.sha, limit=_SIGNED + 1, first_parent=True)
        if len(log) < 2:
            return
        bases = {r.commit for r in self.ledger.signatures()}, self.ledger.commits_with_trials()
        base = next((c for known in bases for c in log[1:] if c.sha in known), log[1])
        ends = f"{base.sha[:TYPED]}..{commit.sha[:TYPED]}"
        words = ["same", ends, "--suite", bench.suite.folder.name, "--json"]
        try:
            answer = run_verb(words)
        except CeledgerError as error:
            self.say(f"{commit.sha[:10]} is not signed: {error}")
            return
        tasks: dict[str, list[str]] = {}
        for row in json.loads(answer)["tasks"] if answer else ():
            signed = [c for c in row["commits"] if c["bits"]]
            if len(signed) < 2 or signed[-1]["commit"] != commit.sha:
                continue
            # One merge brings many commits: the last one alone would hide what the others changed.
            changes = [
                c["bits"] + f" at {c['commit'][:10]}" * (c is not signed[-1])
                for c in signed[1:] if c["bits"] != "equal"
            ]  # fmt: skip
            tasks.setdefault(some(changes, 3) or "=", []).append(row["task"])
        if tasks:
            names = {b: f" ({', '.join(t)})" if len(tasks) > 1 else "" for b, t in tasks.items()}
            self.say(f"{commit.sha[:10]} bits: {'; '.join(b + names[b] for b in tasks)}")

    def _explain(self, session: Session, bench: Bench, report: Report, incident: Incident) -> None:
        """Let a diagnosis say why the named commit is worse than its parent. What it says is a
        finding of the commit; the incident stands without it."""
        if self.run_verb is None or not report.named or not report.culprits[0].parents:
            return
        if not uses_torch(self.ledger, bench.suite.name, report.task):
            return
        culprit = report.culprits[0]
        ends = f"{culprit.parents[0][:TYPED]}..{culprit.sha[:TYPED]}"
        verb, *options = incident.diagnosis(report.task)
        words = [verb, ends, report.task, *options, "--suite", bench.suite.folder.name]
        try:
            self.run_verb(session.repository, session.config, words)
        except CeledgerError as error:
            self.say(f"{culprit.sha[:10]} is not explained: {error}")


def _unjudged(ran: Iterable[TrialRecord], state: State, tasks: Set[str]) -> str:
    """Return which tasks of the suite could not be judged at the tip, and why."""
    missing = {
        standing.task: standing.note
        for standing in state.standings
        if standing.declared and standing.task in tasks and standing.standing is Standing.MISSING
    }
    for record in ran:
        if record.outcome is not None and record.outcome.kind is OutcomeKind.UNTESTABLE:
            missing[record.task] = record.outcome.message
    return "; ".join(f"{task} not judged: {note}" for task, note in missing.items())


def _bisect(
    session: Session,
    bench: Bench,
    tasks: Sequence[Task],
    incident: Incident,
    budget: int,
    state: State,
) -> tuple[str, Report | None]:
    """Search the first bad commit of an incident; the answer in a line, and the report."""
    from celedger.judge import bisection
    from celedger.judge.bisection.symptom import most_telling

    moved = most_telling(bench, incident.metrics, tasks)
    if not moved:
        return "", None
    (task, name), *others = moved
    try:
        history = session.repository.history(incident.known_good, incident.first_bad[-1])
        limits = bisection.Limits(budget=budget, sign=session.config.engine == "local")
        metrics = [name] if name else []
        answer = bisection.bisect_many(bench, history, [task], metrics, limits, others=others)
        report = bisection.proved(bench, answer, state).reports[0]
    except NotAllowed:
        raise
    except CeledgerError as error:
        return f"{task.name}: bisect: {error}", None
    if report.named:  # the incident says which commit; what is new is the proof
        proof = report.rehearsal
        return proof.sentence(report.metric) if proof and not proof.why else "", report
    return report.sentence(), report


def _lock_path(ledger: Path) -> Path:
    return files.beside(ledger) / "worker.lock"
