"""The workers of this machine: threads with a bench each, which has its own checkout, fork servers,
connection to the ledger, and device.

The thread of the command hears of everything through one queue, so listeners, the reasons to end a
trial early, and whoever chooses the next trial need not know of threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from celedger.base.model import Kind, TrialRecord
from celedger.system import gpu
from celedger.system.gpu import Device
from celedger.trial import events
from celedger.trial.engine import Need, Ordered
from celedger.trial.runner import Bench


class Workers:
    """A pool of threads on this machine. Each of `benches` makes the bench of one of them, in its
    thread, with the listener it is given; that of the command's `bench` hears of all events."""

    def __init__(self, benches: Sequence[Callable[[events.Listener], Bench]], bench: Bench) -> None:
        self._bench = bench
        self._orders: SimpleQueue[Ordered | None] = SimpleQueue()
        # An event and its job; the ulid of a trial with new epochs; None where a job has ended.
        self._news: SimpleQueue[tuple[Ordered, events.Event | str | None]] = SimpleQueue()
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

    def _work(self, make: Callable[[events.Listener], Bench]) -> None:
        """Run jobs until there is a None. The bench is made for the first, which hears of it if
        that fails."""
        bench: Bench | None = None
        job: Ordered | None = None

        def listen(event: events.Event) -> None:
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
    `leaves_out` is asked before each starts.

    Workers take trials of different tasks or seeds at once: of the same one at two commits, the
    later may re-use the result of the earlier. Unless `speed_too`, tasks with a metric of speed
    that the suite judges run one by one.
    """
    engine = bench.engine
    speed_too |= engine.workers == 1
    together = [speed_too or not _judges_speed(bench, need) for need in needs]
    records: dict[int, TrialRecord] = {}
    waiting = deque(i for i, is_parallel in enumerate(together) if is_parallel)
    under_way: dict[Future[TrialRecord], int] = {}
    while waiting or under_way:
        while waiting and len(under_way) < engine.workers:
            busy = {(needs[i].task.name, needs[i].seed) for i in under_way.values()}
            free = (i for i in waiting if (needs[i].task.name, needs[i].seed) not in busy)
            number = next(free, waiting[0])
            waiting.remove(number)
            if not leaves_out(needs[number]):
                under_way[engine.submit(needs[number])] = number
        if under_way:
            engine.wait()
        for future in [f for f in under_way if f.done()]:
            records[under_way.pop(future)] = future.result()
    for number, need in enumerate(needs):
        if not together[number] and not leaves_out(need):
            records[number] = bench.run(need)
    return [records[number] for number in sorted(records)]


def _judges_speed(bench: Bench, need: Need) -> bool:
    judged = bench.suite.judged
    return any(
        metric.kind is Kind.SPEED and (need.task.name, metric.name) in judged
        for metric in need.task.metrics
    )


class Slot(NamedTuple):
    """The device of one worker, and the cores that its trials may use (() for all)."""

    device: Device
    cores: tuple[int, ...] = ()


def share_out(
    number_wanted: int | None,
    device: Device,
    cores: Sequence[int],
    threads: int,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Slot]:
    """Return a slot for each of the workers that are wanted, as far as the machine has devices: a
    GPU each, or on the CPU as many cores each, and at least one for each thread of a trial. None
    wants one worker on the CPU, and one a GPU where there are several. `tell` gets a line if there
    are fewer than wanted."""
    gpus = gpu.alike(device) if device.gpu is not None else []
    most = len(gpus) or max(len(cores) // threads, 1)
    number = min(number_wanted or len(gpus) or 1, most)
    if number_wanted and number_wanted > most:
        needs = "worker needs a GPU" if gpus else f"trial needs {threads} of {len(cores)} cores"
        tell(f"{most} of {number_wanted} workers: each {needs}")
    if gpus or number == 1:
        return [Slot(one) for one in gpus[:number] or [device]]
    share = len(cores) // number
    return [Slot(device, tuple(cores[i * share : (i + 1) * share])) for i in range(number)]


def start_workers(bench: Bench, slots: Sequence[Slot]) -> None:
    """Let the trials of a bench run on several workers at once, until the bench is closed. With one
    slot, they go on to run one by one."""

    def bench_in(slot: Slot) -> Callable[[events.Listener], Bench]:
        return lambda listen: Bench(bench.station.beside(slot.device, slot.cores, listen))

    if len(slots) > 1:
        bench.pool = Workers([bench_in(slot) for slot in slots], bench)
