"""The head of the nodes: sends orders, has their intake repeated on the ledger, and runs a trial
again elsewhere if its node is lost.

A thread for each order talks to its keeper; all else happens in the thread of the command, which
hears of everything through one queue. So the ledger has one writer.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Thread

from celedger import __version__
from celedger.engines import order as orders
from celedger.engines.intake import Intake
from celedger.engines.notes import Note, Notes
from celedger.engines.order import Order
from celedger.engines.seam import Engine, KeeperOf, LostNode, OtherEnvironment
from celedger.errors import CeledgerError, MachineError
from celedger.ledger import schema
from celedger.ledger import ulid as ulids
from celedger.model import TrialRecord
from celedger.repo import Repository
from celedger.repo.transfer import pack
from celedger.trial import events
from celedger.trial.runner import Bench
from celedger.trial.workplace import Need, imported

GATHER = 0.1  # seconds in which what comes in joins one transaction
TRIES = 3  # nodes that a trial may lose
PATIENCE = 20.0  # seconds in which interrupted trials may end
_PENDING = 256  # chunks that wait for the ledger; with more the nodes wait, and memory stays flat


@dataclass(eq=False)
class _Job:
    """An order that is out. One that a dead head left has no future until its trial is needed."""

    note: Note
    intake: Intake
    future: Future[TrialRecord] | None = None
    until: events.Until | None = None
    keeper: KeeperOf | None = None
    node: str = ""  # the engine's name for it
    lost: int = 0  # nodes until now
    enough: str = ""  # why it ends early

    @property
    def order(self) -> Order:
        return self.note.order


# A job, with bytes of its lines, what its thread raised, or None after its last line.
_News = tuple[_Job, bytes | Exception | None]


class Head:
    """A pool whose workers are nodes: runs the trials of a bench."""

    def __init__(self, bench: Bench, engine: Engine, question: Order) -> None:
        self._bench, self._engine, self._ledger = bench, engine, bench.ledger
        self._question = question  # what all orders of this command have in common
        self._repository = bench.checkouts.repository
        self._suite = orders.packed(bench.suite_files)
        self._notes = Notes(self._repository, engine.name, engine.address, self._ledger.path)
        self._news: queue.Queue[_News] = queue.Queue(_PENDING)
        self._jobs: list[_Job] = []
        self._answered = False  # the ledger had a trial that was submitted
        self._avoided: set[str] = set()  # nodes with another environment
        for note in self._notes.left():
            self._start(_Job(note, Intake(note.order, self._ledger)), anew=False)

    @property
    def workers(self) -> int:
        return max(self._engine.workers - len(self._avoided), 1)

    def submit(self, need: Need, until: events.Until | None = None) -> Future[TrialRecord]:
        """Run a trial on the next free node."""
        future: Future[TrialRecord] = Future()
        stored = self._bench.stored(need.commit, need.task, need.seed, need.enough)
        job = next((job for job in self._jobs if self._serves(job, need)), None)
        if stored is not None:
            future.set_result(stored)
            self._answered = True
        elif job is not None:
            job.future, job.until = future, until
        else:
            order = self._order(need)
            job = _Job(self._notes.write(order), Intake(order, self._ledger), future, until)
            self._start(job)
        return future

    def wait(self) -> None:
        """Take in what comes, and report it, until a trial under way has ended."""
        while not self._answered and any(job.future is not None for job in self._jobs):
            if self._take(self._gathered()):
                return
        self._answered = False

    def end(self, future: Future[TrialRecord], reason: str) -> None:
        """End a trial early. Its epochs are kept."""
        for job in self._jobs:
            if job.future is future:
                self._end_early(job, reason)

    def close(self) -> None:
        """Interrupt what is under way for this command, and record it. What cannot be recorded now
        the next command takes in."""
        ours = [job for job in self._jobs if job.future is not None]
        for job in ours:
            job.lost = TRIES
            with suppress(MachineError):
                if job.keeper is None:
                    self._engine.release(job.order.ulid)
                else:
                    job.keeper.cancel()
        deadline = time.monotonic() + PATIENCE
        with suppress(CeledgerError, queue.Empty):
            while any(job in self._jobs for job in ours):
                self._take(self._gathered(deadline - time.monotonic()))
        for job in self._jobs:
            job.intake.close()
            job.note.held.close()
        self._engine.close()

    # --- on the way out, in the thread of the job

    def _order(self, need: Need) -> Order:
        task, environment = need.task, self._bench.environments[need.task.name]
        names = imported(self._ledger, task, environment.fingerprint) or ()
        return replace(
            self._question, ulid=ulids.new(self._bench.now(), self._bench.random),
            tip=need.commit.sha, tasks=(task,), commit=need.commit, seed=need.seed,
            environments={task.name: environment}, imported={task.name: tuple(sorted(names))},
        )  # fmt: skip

    def _serves(self, job: _Job, need: Need) -> bool:
        """Return True if an order that a dead head left runs the trial that is needed."""
        order, environment = job.order, self._bench.environments[need.task.name]
        same = order.commit == need.commit and order.seed == need.seed and job.future is None
        return (
            same
            and [task.recipe for task in order.tasks] == [need.task.recipe]
            and ((order.environments or {})[need.task.name].fingerprint == environment.fingerprint)
        )

    def _start(self, job: _Job, *, anew: bool = True) -> None:
        self._jobs.append(job)
        Thread(target=self._serve, args=(job, anew), daemon=True).start()

    def _serve(self, job: _Job, anew: bool) -> None:
        """Bring an order to a node, and its lines here."""
        ulid = job.order.ulid
        try:
            if anew:
                keeper = self._engine.hire(ulid, job.order.device, frozenset(self._avoided))
                job.node = keeper.node()
                send(keeper, job.order, self._repository, self._suite)
            else:
                keeper = self._engine.find(ulid)
            job.keeper = keeper
            offset, ended = 0, False
            while not ended:
                content, ended = keeper.read(offset)
                offset += len(content)
                if content:
                    self._news.put((job, content))
            self._news.put((job, None))
        except Exception as error:
            self._news.put((job, error))

    # --- on the way in, in the thread of the command

    def _gathered(self, patience: float | None = None) -> list[_News]:
        """Return what has come, and comes shortly after. Raises queue.Empty if nothing does."""
        if patience is not None and patience <= 0:
            raise queue.Empty
        news = [self._news.get(timeout=patience)]
        deadline = time.monotonic() + GATHER
        with suppress(queue.Empty):
            while len(news) < _PENDING and (left := deadline - time.monotonic()) > 0:
                news.append(self._news.get(timeout=left))
        return news

    def _take(self, news: Sequence[_News]) -> bool:
        """Add news to the ledger in one transaction, then report them. Return True if a trial that
        this command waits for has ended."""
        told: list[tuple[_Job, events.Event]] = []
        with self._ledger.transaction():
            for job, content in news:
                if isinstance(content, bytes):
                    told += [(job, event) for event in job.intake.take(content)]
        for job, event in told:
            self._bench.listen(event)
            if isinstance(event, events.EpochReported) and job.until and not job.enough:
                self._end_early(job, job.until(job.order.ulid))
        has_ended = False
        for job, content in news:
            if not isinstance(content, bytes):
                has_ended |= self._conclude(job, content)
        return has_ended

    def _end_early(self, job: _Job, reason: str) -> None:
        job.enough = reason
        if reason and job.keeper is not None:
            with suppress(MachineError):  # its thread will see that the node is lost
                job.keeper.end(reason)

    def _conclude(self, job: _Job, raised: Exception | None) -> bool:
        """Record how an order ended, and run it again if its node was lost. Return True if a trial
        that this command waits for has ended."""
        intake, error = job.intake, job.intake.error
        if error is None and not intake.has_outcome:
            error = raised or LostNode(self._last_words(job))
        intake.interrupt(self._bench.now(), str(error) or "stopped by hand")
        record = intake.record
        intake.close()
        self._jobs.remove(job)
        if job.keeper is not None:
            with suppress(MachineError):
                job.keeper.forget()
        self._engine.release(job.order.ulid)
        job.note.remove()
        if job.future is None or self._runs_again(job, error):
            return False
        if error is not None or record is None or record.outcome is None:
            job.future.set_exception(error or LostNode("a node reported no trial"))
        else:
            job.future.set_result(record)
            assert job.order.commit is not None
            seconds = record.outcome.ended - record.trial.started
            self._bench.listen(events.Finished(job.order.commit, record, seconds))
        return True

    def _runs_again(self, job: _Job, error: BaseException | None) -> bool:
        """Send the order of a lost trial, or of one that a node refused, to another node. Return
        True if there may be one."""
        order = job.order
        assert order.commit is not None
        if isinstance(error, OtherEnvironment):
            self._avoided.add(job.node)
        elif isinstance(error, LostNode) and job.lost < TRIES:
            job.lost += 1
        else:
            return False
        self._bench.listen(events.Elsewhere(order.commit, order.tasks[0], str(error)))
        order = replace(order, ulid=ulids.new(self._bench.now(), self._bench.random))
        note, intake = self._notes.write(order), Intake(order, self._ledger)
        self._start(_Job(note, intake, job.future, job.until, lost=job.lost))
        return True

    def _last_words(self, job: _Job) -> str:
        words = ""
        if job.keeper is not None:
            with suppress(MachineError):
                words = job.keeper.complaint()
        return f"{job.intake.host} was lost" + (f": {words}" if words else "")


def send(keeper: KeeperOf, order: Order, repository: Repository, suite: bytes) -> None:
    """Give an order to a keeper, with what its node lacks of the commit's history. Raises
    CeledgerError if the node has another celedger, or the history is not whole."""
    there = keeper.greet(order.repository)
    if (there.celedger, there.schema) != (__version__, schema.version()):
        raise MachineError(
            f"{there.host} has celedger {there.celedger} (schema {there.schema}), and this is "
            f"{__version__} (schema {schema.version()})",
            f"install one of both on all nodes: pip install celedger=={__version__}",
        )
    keeper.start({
        "order.json": orders.written(order).encode(), "suite.tar": suite,
        "pack": pack(repository, order.tip, there.commits),
    })  # fmt: skip
