"""The head of the nodes: sends orders, has their intake repeated on the ledger, and runs a trial
again elsewhere if its node is lost.

A thread for each order talks to its keeper; all else happens in the thread of the command, which
hears of everything through one queue. So the ledger has one writer.
"""

from __future__ import annotations

import hashlib
import queue
import socket
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Thread

from celedger.base import VERSION
from celedger.base.config import Config
from celedger.base.errors import CeledgerError, MachineError, RepositoryError
from celedger.base.model import OutcomeKind, Task, TrialRecord
from celedger.engines import order as orders
from celedger.engines.cluster import Cluster, KeeperOf, LostNode, OtherEnvironment
from celedger.engines.order import Note, Notes, Order
from celedger.engines.order_lines import Intake
from celedger.ledger import schema, store
from celedger.repo import Repository
from celedger.repo.plumbing import tell
from celedger.repo.repository import UNSHALLOW
from celedger.trial.engine import EpochReported, Event, Finished, Need, Ordered, Remark, Waiting
from celedger.trial.runner import Bench
from celedger.trial.workplace import RemoteBench, imported

GATHER = 0.1  # seconds in which what comes in joins one transaction
TRIES = 3  # nodes that a trial may lose
PATIENCE = 20.0  # seconds: in which interrupted trials may end, and without news
_PENDING = 256  # chunks that wait for the ledger; with more the nodes wait, and memory stays flat


@dataclass(eq=False)
class _OpenOrder:
    """A running remote trial. One that a dead head left has nobody to answer until its trial is
    needed."""

    note: Note
    intake: Intake
    answer: Ordered | None = None
    keeper: KeeperOf | None = None
    node: str = ""  # the cluster's name for it
    lost: int = 0  # nodes until now
    ends_early: bool = False  # as its node knows

    @property
    def order(self) -> Order:
        return self.note.order

    @property
    def is_ours(self) -> bool:
        """Return True if this command waits for it: for a trial, or for environments."""
        return self.answer is not None or self.order.commit is None


# A job, with bytes of its lines, what its thread raised, or None after its last line.
_News = tuple[_OpenOrder, bytes | Exception | None]


class Head:
    """A pool whose workers are nodes: runs the trials of a bench."""

    def __init__(self, bench: Bench, cluster: Cluster, question: Order) -> None:
        """Take over what dead heads left. `question` has no commit, and is what all orders of this
        command have in common."""
        self._bench, self._cluster, self._ledger = bench, cluster, bench.ledger
        self._question = question
        self._repository = bench.repository
        self._suite = orders.packed(bench.setup.suite_files)
        self._notes = Notes(self._repository, cluster.name, cluster.address, self._ledger.path)
        self._news: queue.Queue[_News] = queue.Queue(_PENDING)
        self._jobs: list[_OpenOrder] = []
        self._answered = False  # the ledger had a trial that was submitted
        self._avoided: set[str] = set()  # nodes with another environment
        self._is_behind = False  # the ledger may lack lines that came
        for note in self._notes.left():
            self._start(_OpenOrder(note, Intake(note.order, self._ledger)), anew=False)

    @property
    def workers(self) -> int:
        return max(self._cluster.workers - len(self._avoided), 1)

    def describe(self) -> Intake:
        """Ask a node for the environments of the tasks. Raises CeledgerError."""
        for number in range(TRIES):
            ulid = self._bench.new_ulid()
            question = replace(self._question, ulid=ulid)
            job = _OpenOrder(self._notes.write(question), Intake(question, self._ledger))
            self._start(job)
            while job in self._jobs:
                self._next()
            error = job.intake.error
            if error is None:
                break
            if not isinstance(error, LostNode) or number == TRIES - 1:
                raise error
        return job.intake

    def submit(self, need: Need) -> Future[TrialRecord]:
        answer = Ordered(need)
        stored = None
        if need.reuse:
            stored = self._bench.stored(need)
        if stored is not None:
            answer.set_result(stored)
            self._answered = True
        elif job := next((job for job in self._jobs if self._serves(job, need)), None):
            job.answer = answer
            answer.set_running_or_notify_cancel()
        else:
            order = self._order(need)
            self._start(_OpenOrder(self._notes.write(order), Intake(order, self._ledger), answer))
        return answer

    def wait(self) -> None:
        while not self._answered and any(job.answer is not None for job in self._jobs):
            self._end_needless()
            if self._next():
                break
        self._answered = False

    def close(self) -> None:
        """Interrupt what is under way for this command, and record it. What cannot be recorded now
        the next command takes in."""
        deadline = time.monotonic() + PATIENCE
        with suppress(CeledgerError, queue.Empty):
            for job in [job for job in self._jobs if job.is_ours]:
                job.lost = TRIES
                self._interrupt(job)
            own_jobs = [job for job in self._jobs if job.is_ours]
            while any(job in self._jobs for job in own_jobs):
                self._take(self._gathered(deadline - time.monotonic()))
        for job in self._jobs:
            job.intake.close()
            job.note.lock.close()
        self._cluster.close()

    def _interrupt(self, job: _OpenOrder) -> None:
        """Interrupt a trial, and read its lines anew if the ledger may lack some."""
        with suppress(MachineError):
            if job.keeper is None:
                self._cluster.release(job.order.ulid)
            else:
                job.keeper.cancel()
        if self._is_behind:
            self._jobs.remove(job)
            job.intake.close()
            intake = Intake(job.order, self._ledger)
            self._start(_OpenOrder(job.note, intake, job.answer, lost=TRIES), anew=False)

    # --- on the way out, in the thread of the job

    def _order(self, need: Need) -> Order:
        task, environment = need.task, self._bench.environments[need.task.name]
        names = imported(self._ledger, task, environment.fingerprint) or ()
        return replace(
            self._question, ulid=self._bench.new_ulid(),
            tip=need.commit.sha, tasks=(task,), commit=need.commit, seed=need.seed,
            role=need.role, asked=need.asked,
            environments={task.name: environment}, imported={task.name: tuple(sorted(names))},
        )  # fmt: skip

    def _serves(self, job: _OpenOrder, need: Need) -> bool:
        """Return True if an order that a dead head left runs the trial that is needed."""
        order, environment = job.order, self._bench.environments[need.task.name]
        same = order.commit == need.commit and order.seed == need.seed and job.answer is None
        return (
            same
            and [task.recipe for task in order.tasks] == [need.task.recipe]
            and ((order.environments or {})[need.task.name].fingerprint == environment.fingerprint)
        )

    def _start(self, job: _OpenOrder, *, anew: bool = True) -> None:
        self._jobs.append(job)
        Thread(target=self._serve, args=(job, anew), daemon=True).start()

    def _serve(self, job: _OpenOrder, anew: bool) -> None:
        """Bring an order to a node, and its lines here."""
        ulid = job.order.ulid
        try:
            if anew:
                keeper = self._cluster.hire(ulid, job.order.device, frozenset(self._avoided))
                job.node = keeper.node()
                answer = job.answer
                begins = answer is None or answer.running()
                if answer is not None and not begins and not answer.set_running_or_notify_cancel():
                    raise LostNode("it is no longer wanted")
                send(keeper, job.order, self._repository, self._suite)
            else:
                keeper = self._cluster.find(ulid)
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

    def _next(self) -> bool:
        """Take in what comes next. Return True if a trial that this command waits for has ended."""
        self._is_behind = True  # until it is in the ledger, whatever is raised
        has_ended = False
        try:
            has_ended = self._take(self._gathered(PATIENCE))
        except queue.Empty:
            if any(job.keeper is None for job in self._jobs):
                self._bench.station.listen(Waiting("a node", "others on the cluster"))
        self._is_behind = False
        return has_ended

    def _gathered(self, patience: float) -> list[_News]:
        """Return what has come, and comes shortly after: until an order ends, since its node waits
        for the next one. Raises queue.Empty if nothing comes."""
        news = [self._news.get(timeout=max(patience, 0.0))]
        deadline = time.monotonic() + GATHER
        with suppress(queue.Empty):
            while len(news) < _PENDING and (left := deadline - time.monotonic()) > 0:
                if not isinstance(news[-1][1], bytes):
                    break
                news.append(self._news.get(timeout=left))
        return news

    def _take(self, news: Sequence[_News]) -> bool:
        """Add news to the ledger in one transaction, then report them. Return True if a trial that
        this command waits for has ended."""
        news = [(job, content) for job, content in news if job in self._jobs]
        occurred: list[tuple[_OpenOrder, Event]] = []
        with self._ledger.transaction():
            for job, content in news:
                if isinstance(content, bytes):
                    occurred += [(job, event) for event in job.intake.take(content)]
        for job, event in occurred:
            self._bench.station.listen(event)
            answer = job.answer
            if isinstance(event, EpochReported) and answer and answer.need.until:
                signals = answer.signals
                signals.reason = signals.reason or answer.need.until(job.order.ulid)
        has_ended = False
        for job, content in news:
            if not isinstance(content, bytes):
                has_ended |= self._conclude(job, content)
        return has_ended

    def _end_needless(self) -> None:
        """Tell the nodes whose trials have told enough."""
        for job in self._jobs:
            reason = job.answer.signals.reason if job.answer else ""
            if reason and job.keeper is not None and not job.ends_early:
                job.ends_early = True
                with suppress(MachineError):  # its thread sees that the node is lost
                    job.keeper.end(reason)

    def _conclude(self, job: _OpenOrder, raised: Exception | None) -> bool:
        """Record how an order ended, and run it again if its node was lost. Return True if a trial
        that this command waits for has ended."""
        intake = job.intake
        if intake.error is None and not intake.is_whole:
            intake.error = raised or LostNode(self._last_words(job))
        intake.interrupt(self._bench.setup.now(), str(intake.error) or "stopped by hand")
        record = intake.record
        error = intake.error
        outcome = record.outcome if record is not None else None
        if error is None and outcome is not None and outcome.kind is OutcomeKind.INTERRUPTED:
            error = LostNode(outcome.message)  # as a head recorded that died then
        intake.close()
        self._jobs.remove(job)
        if job.keeper is not None:
            with suppress(MachineError):
                job.keeper.forget()
        self._cluster.release(job.order.ulid)
        job.note.remove()
        answer = job.answer
        if answer is None or (not answer.cancelled() and self._runs_again(job, error)):
            return False
        if not answer.cancelled():
            if error is not None or record is None or record.outcome is None:
                answer.set_exception(error or LostNode("a node reported no trial"))
            else:
                answer.set_result(record)
                seconds = record.outcome.ended - record.trial.started
                self._bench.station.listen(Finished(answer.need.commit, record, seconds))
        return True

    def _runs_again(self, job: _OpenOrder, error: BaseException | None) -> bool:
        """Send the order of a lost trial, or of one that a node refused, to another node. Return
        True if there may be one."""
        order = job.order
        assert order.commit is not None
        if job.lost == TRIES or not isinstance(error, OtherEnvironment | LostNode):
            return False
        if isinstance(error, OtherEnvironment):
            self._avoided.add(job.node)
        else:
            job.lost += 1
        again = f"{order.tasks[0].name} {order.commit.sha[:10]} runs again on another node"
        self._bench.station.listen(Remark(f"{again}: {error}"))
        order = replace(order, ulid=self._bench.new_ulid())
        note, intake = self._notes.write(order), Intake(order, self._ledger)
        self._start(_OpenOrder(note, intake, job.answer, lost=job.lost))
        return True

    def _last_words(self, job: _OpenOrder) -> str:
        words = ""
        if job.keeper is not None:
            with suppress(MachineError):
                words = job.keeper.complaint()
        return f"{job.intake.host} was lost" + (f": {words}" if words else "")


def send(keeper: KeeperOf, order: Order, repository: Repository, suite: bytes) -> None:
    """Give an order to a keeper, with what its node lacks of the commit's history. Raises
    CeledgerError if the node has another celedger, or the history is not whole."""
    node = keeper.greet(order.repository)
    if (node.celedger, node.schema) != (VERSION, schema.version()):
        raise MachineError(
            f"{node.host} has celedger {node.celedger} (schema {node.schema}), and this is "
            f"{VERSION} (schema {schema.version()})",
            "install one of both on all nodes",
        )
    keeper.start({
        "order.json": store.to_json(order).encode(), "suite.tar": suite,
        "pack": _pack(repository, order.tip, node.commits),
    })  # fmt: skip


def _pack(repository: Repository, sha: str, known_commits: Iterable[str]) -> bytes:
    """Return a commit (a hash) with its history, less that of the commits that a node has. Raises
    RepositoryError, also for a shallow clone, which lacks some of it."""
    if (repository.common_dir / "shallow").exists():
        raise RepositoryError("this clone is shallow, and a node needs whole history", UNSHALLOW)
    request = "".join(f"{other}\n" for other in known_commits).encode()
    checked = tell(repository.common_dir, "cat-file", "--batch-check", stdin=request).text
    shared = [line.split()[0] for line in checked.splitlines() if line.split()[1] == "commit"]
    revisions = "\n".join([sha, *(f"^{other}" for other in shared)]) + "\n"
    return tell(
        repository.common_dir, "pack-objects", "--revs", "--thin", "--stdout", "-q",
        stdin=revisions.encode(),
    ).out  # fmt: skip


def send_out(bench: Bench, config: Config, tasks: Sequence[Task], cluster: Cluster) -> RemoteBench:
    """Return a bench like another, whose trials run on the nodes of a cluster. One of them is asked
    first in which environment they will. Raises CeledgerError."""
    setup, repository = bench.setup, bench.repository
    name = f"{socket.gethostname()}:{repository.common_dir}"
    question = Order(
        ulid=bench.new_ulid(),
        repository=hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16],
        tip=repository.resolve("HEAD").sha, tasks=tuple(tasks),
        device=cluster.device(config.device), sandbox=setup.config.sandbox, why=setup.why,
    )  # fmt: skip
    remote = RemoteBench(bench.station)
    remote.pool = head = Head(remote, cluster, question)
    try:
        node = head.describe()
    except BaseException:
        head.close()
        raise
    remote.around = node.around
    remote.run_in(node.environments)
    return remote
