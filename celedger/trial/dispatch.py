"""Choose where the trials of a command run: on this machine, or elsewhere by an engine. That is an
entry point `celedger.engines`: a function that is given a bench, the settings and the tasks, and
returns a `RemoteBench`. It is imported only where the settings name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from celedger.base import plugins
from celedger.base.config import Config
from celedger.base.errors import MachineError, UsageError
from celedger.base.model import Environment, Task, TrialRecord
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.suite import Suite
from celedger.trial import workplace
from celedger.trial.engine import Need
from celedger.trial.permissions import Gate
from celedger.trial.reuse import Reuse
from celedger.trial.runner import Bench
from celedger.trial.station import Station


class RemoteBench(Bench):
    """A bench whose trials an engine (`pool`) runs elsewhere. Nothing is checked out, built or
    locked here. `around` names by task what surrounds it there, for the re-use of results."""

    def __init__(self, station: Station) -> None:
        super().__init__(station)
        self.around: Mapping[str, str] = {}

    def run_in(self, environments: Mapping[str, Environment]) -> None:
        """Compare trials in these environments, by task name: those of the other machine."""
        self.station.bases = {
            task.name: replace(
                self.station.bases[task.name],
                environment=workplace.settled(self.ledger, task, environments[task.name]),
            )
            for task in self.suite.tasks
            if task.name in environments
        }

    @cached_property
    def reuse(self) -> Reuse:
        return Reuse(
            self.ledger, self.repository, self.setup.child, lambda _: "", lambda *_: "", self.around
        )

    def _when_free(self, need: Need) -> TrialRecord:
        """Leave the device of this machine alone."""
        future = self.engine.submit(need._replace(enough=None))
        while not future.done():
            self.engine.wait()
        return future.result()


def chosen_bench(
    repository: Repository,
    ledger: Ledger,
    config: Config,
    suite: Suite,
    tasks: Sequence[Task],
    *,
    gate: Gate,
    together: bool = False,
    **options: Any,
) -> Bench:
    """Return a bench as `workplace.local_bench` does (see there for the `options`). The engine that
    the settings name runs its trials if they may run `together`. Raises CeledgerError."""
    if config.engine == "local" or not together:
        return workplace.local_bench(
            repository, ledger, config, suite, tasks, gate=gate, together=together, **options
        )
    engines = plugins.installed(plugins.ENGINES)
    if config.engine not in engines:
        names = ", ".join(["local", *engines])
        raise UsageError(f"there is no engine {config.engine!r}", f"there are {names}")
    engine = engines[config.engine]
    if not gate.attended and engine.lies_in(repository.root, repository.worktree):
        raise MachineError(
            f"the engine {engine.name} lies in this repository, and an unattended command loads "
            "nothing from there",
            "install it elsewhere, or type `celedger worker`",
        )
    for task in tasks:
        if task.venv or task.whole:
            lack = "the requirements of each commit" if task.venv else "the files of another trial"
            raise UsageError(f"{task.name} needs {lack}, which are here only", "--engine local")
    bench = workplace.local_bench(
        repository, ledger, config, suite, tasks, gate=gate,
        device_name="cpu",  # this machine needs none
        **options,
    )  # fmt: skip
    connect = engine.load()
    remote = connect(bench, config, tasks)
    assert isinstance(remote, Bench)
    return remote
