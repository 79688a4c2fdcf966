"""A bench whose trials run on nodes, for whatever runs trials one by one or on a pool."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from celedger.base.config import Config
from celedger.base.errors import UsageError
from celedger.base.model import Task, TrialRecord
from celedger.ledger import Ledger
from celedger.ledger import ulid as ulids
from celedger.repo import Repository
from celedger.suite import Suite
from celedger.trial import workplace
from celedger.trial.engine import Need
from celedger.trial.engines.cluster import Cluster
from celedger.trial.engines.head import Head
from celedger.trial.engines.order import Order
from celedger.trial.engines.ray import Ray
from celedger.trial.engines.slurm import Slurm
from celedger.trial.reuse import Reuse
from celedger.trial.runner import Bench


class NodeReuse(Reuse):
    """The results that may be re-used where what surrounds a task is that of a node."""

    around: Mapping[str, str]  # by task name

    def shared(self, task: Task) -> str:
        return self.around[task.name]


class RemoteBench(Bench):
    """A bench whose trials run on nodes. Nothing is checked out, built or locked here."""

    around: Mapping[str, str]

    @cached_property
    def reuse(self) -> Reuse:
        here = self.checkouts.repository
        reuse = NodeReuse(self.ledger, here, self.child, lambda _: "", lambda *_: "")
        reuse.around = self.around
        return reuse

    @contextmanager
    def device_held(self) -> Iterator[None]:
        """Leave the device of this machine alone."""
        yield

    def _run(self, need: Need) -> TrialRecord:
        future = self.engine.submit(need._replace(enough=None))
        while not future.done():
            self.engine.wait()
        return future.result()


def set_bench(
    repository: Repository,
    ledger: Ledger,
    config: Config,
    suite: Suite,
    tasks: Sequence[Task],
    **options: Any,
) -> RemoteBench:
    """Return a bench whose trials run on the nodes of the cluster that the settings name. See
    `workplace.set_bench` for the `options`. Raises CeledgerError if there is no such cluster."""
    here = replace(config, device="cpu")  # this machine needs none
    bench = workplace.set_bench(repository, ledger, here, suite, tasks, **options)
    for task in tasks:
        if task.venv or task.whole:
            what = "the requirements of each commit" if task.venv else "the files of another trial"
            raise UsageError(f"{task.name} needs {what}, which are here only", "--engine local")
    if config.engine == "slurm":
        return send_out(bench, config, tasks, Slurm(config.engine_address, config.workers))
    return send_out(bench, config, tasks, Ray(config.engine_address))


def send_out(bench: Bench, config: Config, tasks: Sequence[Task], cluster: Cluster) -> RemoteBench:
    """Return a bench like another, whose trials run on the nodes of a cluster. One of them is asked
    first in which environment they will. Raises CeledgerError."""
    repository = bench.checkouts.repository
    name = f"{socket.gethostname()}:{repository.common_dir}"
    question = Order(
        ulid=ulids.new(bench.now(), bench.random),
        repository=hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16],
        tip=repository.resolve("HEAD").sha, tasks=tuple(tasks),
        device=cluster.device(config.device), sandbox=bench.sandbox, why=bench.why,
    )  # fmt: skip
    remote = RemoteBench(**{f.name: getattr(bench, f.name) for f in fields(bench) if f.init})
    remote.pool = head = Head(remote, cluster, question)
    try:
        node = head.describe()
    except BaseException:
        head.close()
        raise
    remote.around = node.around
    remote.environments = {
        task.name: workplace.settled(bench.ledger, task, node.environments[task.name])
        for task in tasks
    }
    return remote
