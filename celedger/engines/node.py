"""The program of a node: `python -m celedger.engines.node FOLDER` runs the order in a folder
as an ordinary trial, with a ledger of its own there, and writes what happens to a file, line by
line."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from celedger.base import files
from celedger.base.config import Config
from celedger.base.errors import CeledgerError
from celedger.base.model import Environment, EpochReport, Footprint, Outcome, Task, Trial
from celedger.base.text import some
from celedger.engines import node_keeper, order
from celedger.engines.cluster import OtherEnvironment
from celedger.engines.order import Order
from celedger.ledger import Ledger, opening, store
from celedger.suite import Suite
from celedger.suite.loading import digests
from celedger.trial import journal
from celedger.trial.ending import tail
from celedger.trial.engine import Building, Event, Need, Signals, Started
from celedger.trial.permissions import Gate
from celedger.trial.workplace import alike, facts, local_bench


class LineFile:
    """The lines that a node writes for its head. One that was written survives the program."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __call__(self, **facts: object) -> None:
        os.write(self._file, store.to_json(facts).encode() + b"\n")


class NodeLedger(Ledger):
    """The ledger of a node. It reports each write that the head has to repeat."""

    lines: LineFile

    def _report(self, write: str, *arguments: object) -> None:
        self.lines(write=write, arguments=arguments)

    def start_trial(self, trial: Trial) -> None:
        super().start_trial(trial)
        self._report("start_trial", trial)

    def record_trial_facts(self, ulid: str, facts: Mapping[str, str]) -> None:
        super().record_trial_facts(ulid, facts)
        self._report("record_trial_facts", ulid, facts)

    def append_epochs(self, ulid: str, reports: Iterable[EpochReport]) -> tuple[str, ...]:
        reports = tuple(reports)
        repeated = super().append_epochs(ulid, reports)
        self._report("append_epochs", ulid, reports)
        return repeated

    def finish_trial(self, ulid: str, outcome: Outcome, summaries: Mapping[str, float]) -> bool:
        ended = super().finish_trial(ulid, outcome, summaries)
        self.lines(log=tail(journal.log_path(self, ulid)))
        self._report("finish_trial", ulid, outcome, summaries)
        return ended

    def record_environment(self, environment: Environment) -> None:
        super().record_environment(environment)
        self._report("record_environment", environment)

    def record_footprint(self, ulid: str, footprint: Footprint, surroundings: str) -> None:
        super().record_footprint(ulid, footprint, surroundings)
        self._report("record_footprint", ulid, footprint, surroundings)

    def record_unknown_footprint(self, ulid: str, why: str) -> None:
        super().record_unknown_footprint(ulid, why)
        self._report("record_unknown_footprint", ulid, why)


class HeadSignals(Signals):
    """The messages of the head to the trial, by a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def check(self) -> None:
        with suppress(FileNotFoundError):
            self.reason = self.reason or self._file.read_text()


def execute(folder: Path, lines: LineFile) -> None:
    """Run the order in a folder. Raises CeledgerError."""
    received: Order = store.from_json(Order, (folder / "order.json").read_bytes())
    pack = folder / "pack"
    clone = node_keeper.clone(received.repository)
    repository = node_keeper.unpack(clone, received.tip, pack.read_bytes())
    pack.unlink()
    suite_folder = folder / "suites" / received.tasks[0].suite
    order.unpacked((folder / "suite.tar").read_bytes(), suite_folder)
    suite = Suite(
        received.tasks[0].suite, suite_folder, received.tasks, files=digests(suite_folder)
    )
    path = folder / node_keeper.LEDGER
    config = Config(path, folder / "suites", device=received.device, sandbox=received.sandbox)

    def listen(event: Event) -> None:
        if isinstance(event, Building | Started):
            lines(event=type(event).__name__)

    with NodeLedger.open(path, create=True) as ledger:
        ledger.lines = lines
        with local_bench(
            repository, ledger, config, suite, received.tasks, why=received.why, listen=listen,
            gate=Gate(folder / "allowed", attended=True), label="a celedger engine",
        ) as bench:  # fmt: skip
            environments = {task.name: bench.environments[task.name] for task in received.tasks}
            around = {task.name: bench.reuse.shared(task) for task in received.tasks}
            lines(host=socket.gethostname(), environments=environments, surroundings=around)
            if received.commit is None:
                return
            (task,) = received.tasks
            station = bench.station
            agreed = _agreed(received, task, environments[task.name])
            station.bases = {task.name: replace(station.bases[task.name], environment=agreed)}
            station.signals = HeadSignals(folder / node_keeper.STOP)
            commit = repository.commit(received.commit.sha)
            bench.run(Need(
                commit, task, received.seed, None,
                role=received.role, asked=received.asked, ulid=received.ulid,
            ))  # fmt: skip


def _agreed(received: Order, task: Task, local: Environment) -> Environment:
    """Return the environment in which the head compares trials of a task. Raises OtherEnvironment
    if the one `here` differs in something that counts."""
    expected = (received.environments or {}).get(task.name, local)
    imported = (received.imported or {}).get(task.name, ())
    if expected.fingerprint == local.fingerprint or (
        imported and alike(expected, local, {*imported})
    ):
        return expected
    raise OtherEnvironment(
        f"the environment of {socket.gethostname()} is another one: {_difference(local, expected)}"
    )


def _difference(local: Environment, expected: Environment) -> str:
    """Name up to three things in which two environments differ."""
    local_facts, expected_facts = facts(local), facts(expected)
    keys = sorted(
        key
        for key in {*local_facts, *expected_facts}
        if local_facts.get(key) != expected_facts.get(key)
    )
    words = [
        f"{key} {local_facts.get(key, 'missing')}, not {expected_facts.get(key, 'any')}"
        for key in keys
    ]
    return some(words, 3, "; ")


def main() -> None:
    """Run the order. What celedger can explain is a line for the head; else the log has it."""
    files.make_private()
    opening.import_sqlite_utils()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    folder = Path(sys.argv[1])
    lines = LineFile(folder / node_keeper.LINES)
    try:
        execute(folder, lines)
    except CeledgerError as error:
        lines(error=type(error).__name__, cause=error.cause, hint=error.hint)
    except KeyboardInterrupt:
        lines(error="KeyboardInterrupt", cause="stopped by hand", hint="")


if __name__ == "__main__":
    main()
    # All is written and closed, and the head waits: tearing down the modules would take 0.1 s.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
