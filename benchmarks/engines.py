"""How fast the head of 64 nodes takes in what they report, and how much memory that takes.

The nodes are threads that hand out lines at a steady rate; the head, its ledger and the intake are
real. Run: `.venv/bin/python benchmarks/engines.py [NODES [EPOCHS_A_SECOND [SECONDS]]]`.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from celedger import suite
from celedger.base import VERSION
from celedger.base.config import Config
from celedger.base.model import EpochReport, Outcome, OutcomeKind, Trial
from celedger.ledger import Ledger, schema
from celedger.repo import Repository
from celedger.trial import workplace
from celedger.trial.engine import Need
from celedger.trial.engines import order as orders
from celedger.trial.engines.node_keeper import Greeting
from celedger.trial.engines.order import Order
from celedger.trial.engines.remote import send_out
from celedger.trial.permissions import Gate

SUITE = """\
[suite]
name = "steady"
[metrics.loss]
direction = "lower"
[[task]]
name = "steady"
command = "true"
"""


class SteadyKeeper:
    """A keeper whose trial reports an epoch every 1/`rate` seconds, `epochs` in all."""

    def __init__(self, rate: float, epochs: int) -> None:
        self.rate, self.epochs = rate, epochs
        self.text = b""
        self.sent = 0
        self.began = 0.0

    def node(self) -> str:
        return "steady"

    def greet(self, repository: str) -> Greeting:
        return Greeting("steady", VERSION, schema.version(), [])

    def start(self, files: Mapping[str, bytes]) -> None:
        self.order: Order = orders.read(Order, files["order.json"])
        self.began = time.monotonic()
        if self.order.commit is None:
            names = {task.name: bench.environments[task.name] for task in self.order.tasks}
            around = dict.fromkeys(names, "")
            self.line(host="steady", environments=names, surroundings=around)
            return
        (task,) = self.order.tasks
        assert self.order.environments
        environment = self.order.environments[task.name]
        trial = Trial(
            self.order.ulid, self.order.commit.sha, task.recipe, environment.fingerprint,
            self.order.seed, self.order.why, time.time(), "steady",
        )  # fmt: skip
        self.line(write="record_environment", arguments=[environment])
        self.line(write="start_trial", arguments=[trial])

    def line(self, **facts: object) -> None:
        self.text += orders.written(facts).encode() + b"\n"

    def read(self, offset: int) -> tuple[bytes, bool]:
        if offset == len(self.text) and (self.order.commit is None or self.sent > self.epochs):
            return b"", True
        if self.order.commit is not None and offset == len(self.text):
            time.sleep(0.05)
            due = min(int((time.monotonic() - self.began) * self.rate), self.epochs)
            for epoch in range(self.sent, due):
                report = EpochReport(epoch, {"loss": 1 / (epoch + 1)})
                self.line(write="append_epochs", arguments=[self.order.ulid, [report]])
            self.sent = max(self.sent, due)
            if self.sent == self.epochs:
                outcome = Outcome(OutcomeKind.OK, time.time())
                self.line(write="finish_trial", arguments=[self.order.ulid, outcome, {}])
                self.sent += 1
        return self.text[offset:], False

    def complaint(self) -> str:
        return ""

    def end(self, reason: str) -> None: ...
    def cancel(self) -> None: ...
    def forget(self) -> None: ...


class SteadyCluster:
    name, address = "ray", "steady"

    def __init__(self, workers: int, rate: float, epochs: int) -> None:
        self.workers, self.rate, self.epochs = workers, rate, epochs

    def device(self, wish: str) -> str:
        return "cpu"

    def hire(self, ulid: str, device: str, avoid: Collection[str]) -> SteadyKeeper:
        return SteadyKeeper(self.rate, self.epochs)

    find = None

    def release(self, ulid: str) -> None: ...
    def close(self) -> None: ...


def git(root: Path, *words: str) -> None:
    name = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *name, *words], cwd=root, check=True, capture_output=True)


def resident() -> float:
    """Return the resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


given = sys.argv[1:]
nodes, rate, seconds = map(float, [*given, *("64", "100", "10")[len(given) :]])
with tempfile.TemporaryDirectory() as folder:
    root = Path(folder)
    git(root, "init", "-q")
    (root / "suites/steady").mkdir(parents=True)
    (root / "suites/steady/suite.toml").write_text(SUITE)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    repository = Repository.open(root)
    config = Config(root / "ledger.db", root / "suites")
    steady = suite.load(root / "suites/steady")
    tasks = workplace.choose_tasks(steady, ())
    cluster = SteadyCluster(int(nodes), rate, int(rate * seconds))
    with (
        Ledger.open(config.ledger, create=True) as ledger,
        workplace.set_bench(
            repository, ledger, config, steady, tasks, gate=Gate.of(repository, attended=True)
        ) as bench,
        send_out(bench, config, tasks, cluster) as remote,  # type: ignore[arg-type]
    ):
        commit = repository.resolve("HEAD")
        began, before = time.monotonic(), resident()
        answers = [
            remote.engine.submit(Need(commit, tasks[0], seed, None)) for seed in range(int(nodes))
        ]
        largest = before
        while not all(answer.done() for answer in answers):
            remote.engine.wait()
            largest = max(largest, resident())
        took = time.monotonic() - began
        stored = sum(len(ledger.series(r.trial.ulid)["loss"]) for r in ledger.trials())
        expected = int(nodes) * cluster.epochs
        print(f"{nodes:.0f} nodes, {nodes * rate:.0f} epochs a second for {seconds:.0f} s")
        print(f"{stored} of {expected} epochs in the ledger after {took:.1f} s")
        print(
            f"memory of the head {before:.0f} MB before, {largest:.0f} MB at most (nodes included)"
        )
