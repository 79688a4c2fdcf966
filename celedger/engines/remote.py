"""Send the trials of a bench to the nodes of a cluster."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence

from celedger.base.config import Config
from celedger.base.model import Task
from celedger.engines.cluster import Cluster
from celedger.engines.head import Head
from celedger.engines.order import Order
from celedger.trial.dispatch import RemoteBench
from celedger.trial.runner import Bench


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
