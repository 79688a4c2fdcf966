"""Where the trials of a command run: on this machine, or on the nodes of a cluster. What only nodes
need is imported for them alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celedger.base.config import Config
from celedger.base.model import Task
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.suite import Suite
from celedger.trial import workplace
from celedger.trial.runner import Bench


def set_bench(
    repository: Repository,
    ledger: Ledger,
    config: Config,
    suite: Suite,
    tasks: Sequence[Task],
    *,
    together: bool = False,
    **options: Any,
) -> Bench:
    """Return a bench as `workplace.set_bench` does (see there for the `options`). Its trials run on
    the nodes of a cluster if the settings say so and they may run `together`."""
    if config.engine == "local" or not together:
        return workplace.set_bench(
            repository, ledger, config, suite, tasks, together=together, **options
        )
    from celedger.trial.engines.remote import set_bench as set_remote_bench

    return set_remote_bench(repository, ledger, config, suite, tasks, **options)
