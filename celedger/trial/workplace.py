"""Make the bench on which a command runs its trials, from a repository, a configuration and the
name of a suite. The one place that imports all the packages below.

Trials run on this machine, or elsewhere by an engine. An engine is an entry point
`celedger.engines`: a function of a bench, the settings and the tasks that returns a `RemoteBench`.
It is imported only if the settings name it.
"""

from __future__ import annotations

import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from celedger import suite as suites
from celedger.base import plugins
from celedger.base.config import Config, closest
from celedger.base.errors import MachineError, UsageError
from celedger.base.model import Commit, Environment, Purpose, Task, TrialRecord
from celedger.ledger import Ledger
from celedger.repo import Repository, scrubbed
from celedger.repo.checkouts import Checkouts
from celedger.suite.loading import hash_of
from celedger.system import devices, environment, sandbox
from celedger.system.cache import CACHES, FolderCache
from celedger.trial import attempt, permission_requests, protocol
from celedger.trial.ending import failed_alike
from celedger.trial.engine import Listener, Need, ignore_events
from celedger.trial.permissions import Gate, settings_request
from celedger.trial.reuse import Reuse
from celedger.trial.runner import Bench, share_out, start_workers
from celedger.trial.station import Builds, Setup, Station
from celedger.trial.training_variables import child_copy, settings
from celedger.trial.venvs import Installation, Venvs


def suite_of(repository: Repository, settings: Config, name: str | None = None) -> suites.Suite:
    """Return the named suite, else the configured one. Raises SuiteError."""
    return suites.load(suites.find(name, settings, repository.root))


def choose_tasks(
    suite: suites.Suite, names: Collection[str], only: Collection[str] = ()
) -> tuple[Task, ...]:
    """Return the named tasks of a suite (all if none is named), with the runner's metrics added.
    The name of a grid stands for all its tasks. With `only`, their parts with these commands."""
    by_name = {task.name: task for task in suite.tasks}
    known = dict.fromkeys([*(name.partition("[")[0] for name in by_name), *by_name])
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"suite {suite.name!r} has no task {unknown[0]!r}", closest(unknown[0], known)
        )
    chosen = [
        task for name, task in by_name.items()
        if not names or name in names or name.partition("[")[0] in names
    ]  # fmt: skip
    tasks = tuple(protocol.with_telemetry(task) for task in chosen)
    if not only:
        return tasks
    commands = dict.fromkeys(command.name for task in tasks for command in task.commands)
    absent = [name for name in only if name not in commands]
    if absent:
        raise UsageError(f"no task has a command {absent[0]!r}", f"known: {', '.join(commands)}")
    return tuple(filter(None, (attempt.part(task, only) for task in tasks)))


def local_bench(
    repository: Repository,
    ledger: Ledger,
    config: Config,
    suite: suites.Suite,
    tasks: Sequence[Task],
    *,
    gate: Gate,
    why: Purpose = Purpose.RUN,
    label: str = "celedger",
    listen: Listener = ignore_events,
    commit: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
    together: bool = False,
    device_name: str | None = None,
) -> Bench:
    """Return a bench on which the given tasks can run, `together` on several workers if the
    settings ask for them.

    Nothing is checked out or locked before the first trial. Raises MachineError if an interpreter
    or device does not exist, NotAllowed if the gate does not allow these tasks to start (with the
    requirements of a `commit`). `tell` gets a line that names what is new since the last
    approval. `device_name`: instead of the settings' one.
    """
    _check_machine(repository, config, tasks)
    device, device_lock = _device(device_name or config.device, f"{label} in {repository.root}")
    interpreters = interpreters_of(repository, tasks)
    base = scrubbed(os.environ)
    starts = permission_requests.of_suite(repository, suite, tasks, interpreters, commit)
    gate.review(
        [settings_request(config.merged), *starts],
        texts=permission_requests.texts_of(repository, suite, starts),
        brought=lambda: repository.has_committed([suite.folder, *config.files]),
        tell=tell,
    )

    described = partial(_described, device, base)
    bases = {
        task.name: Installation(described(ledger, python, task, repository.root), python)
        for task in tasks
        for python in [interpreters[task.name]]
    }
    builds, venvs = caches = tuple(FolderCache(repository.state_dir / name) for name in CACHES)
    child = child_copy(repository.state_dir / "child")
    copy = suites.snapshot(suite.folder, hash_of(suite.files), repository.state_dir / "suites")
    setup = Setup(
        Checkouts(repository), config, suite, copy, child, gate,
        Builds(repository, builds, caches, config.cache_limit),
        Venvs(
            repository, venvs, caches, config.cache_limit, base, described,
            lambda task, python, files: gate.review([
                permission_requests.of_environment(repository, task, python, files.files)
            ]),
        ),
        base, socket.gethostname(), why,
    )  # fmt: skip
    bench = Bench(
        Station(setup, ledger, bases, device, device_lock, setup.launchers(), listen=listen)
    )
    if together:
        threads = max(task.threads for task in tasks)
        start_workers(bench, share_out(config.workers, device, environment.cores(), threads, tell))
    return bench


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
                environment=settled(self.ledger, task, environments[task.name]),
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
    suite: suites.Suite,
    tasks: Sequence[Task],
    *,
    gate: Gate,
    together: bool = False,
    **options: Any,
) -> Bench:
    """Return a bench as `local_bench` does (see there for the `options`). The engine that
    the settings name runs its trials if they may run `together`. Raises CeledgerError."""
    if config.engine == "local" or not together:
        return local_bench(
            repository, ledger, config, suite, tasks, gate=gate, together=together, **options
        )
    engines = plugins.installed(plugins.ENGINES)
    if config.engine not in engines:
        names = ", ".join(["local", *engines])
        raise UsageError(f"there is no engine {config.engine!r}", f"known: {names}")
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
    bench = local_bench(
        repository, ledger, config, suite, tasks, gate=gate,
        device_name="cpu",  # this machine needs none
        **options,
    )  # fmt: skip
    connect = engine.load()
    remote = connect(bench, config, tasks)
    assert isinstance(remote, Bench)
    return remote


def _described(
    device: devices.Device,
    base: Mapping[str, str],
    ledger: Ledger,
    python: str,
    task: Task,
    root: Path | None = None,
) -> Environment:
    """Return the environment of a task in an interpreter, as the ledger has it. Nothing of a
    virtual environment, which has no `root`, is the repository's own code: see venvs.py."""
    environment_now = environment.describe(
        python, device=device, threads=task.threads, repo_root=root or Path(python).parent,
        variables=settings(base, task),
    )  # fmt: skip
    return settled(ledger, task, environment_now)


def _device(name: str, label: str) -> tuple[devices.Device, devices.DeviceLock]:
    """Return the device of this name with its lock, whose waiters are told the `label`."""
    locks = devices.DeviceLock("cpu", folder=devices.default_folder(), label=label)
    device = devices.resolve(name, free=lambda uuid: locks.of(uuid).free())
    return device, locks.of(device.key)


def _check_machine(repository: Repository, config: Config, tasks: Sequence[Task]) -> None:
    """Raise MachineError if no trial can run on this machine."""
    if os.pathsep in str(repository.state_dir):
        raise MachineError(
            f"{repository.state_dir} has a {os.pathsep!r}, which PYTHONPATH cannot carry",
            "move the repository to a folder without one",
        )
    sandboxed = config.sandbox or any(task.sandbox for task in tasks)
    if sandboxed and sandbox.version() < sandbox.NEEDED:
        raise MachineError(
            f"`sandbox = true` needs Landlock of version {sandbox.NEEDED}, and this kernel has "
            f"{sandbox.version() or 'none'}",
            "take it out of your configuration or the suite",
        )


def interpreters_of(repository: Repository, tasks: Sequence[Task]) -> dict[str, str]:
    """Return the path of each task's interpreter, by the task's name. Raises MachineError."""
    path = os.environ.get("PATH", "")
    return {
        task.name: environment.resolve_interpreter(task.python, path, repository.root)
        for task in tasks
    }


def lacking(
    bench: Bench,
    commits: Sequence[Commit],
    tasks: Sequence[Task],
    *,
    seeds: Sequence[int] = (),
    repeat: int = 1,
    force: bool = False,
) -> list[Need]:
    """Return the trials to run so that the ledger holds `repeat` trials of every commit, task and
    seed. With `force`, `repeat` more than it holds. Seeds default to the task's own, of which no
    more are lacking where a commit failed alike. Stored trials get the summaries of other series
    that were declared since.
    """
    for task in tasks:
        _complete(bench.ledger, task)
    asked, needs = bool(seeds) or force, []
    for commit in commits:
        for task in tasks:
            records = bench.held(commit.sha, task)
            if not asked and failed_alike(records):
                continue
            by_seed = Counter(record.trial.seed for record in records)
            needs += [
                Need(commit, task, seed, None if force else number, if_alike=asked)
                for seed in seeds or task.seeds
                for number in range(1 if force else by_seed[seed] + 1, repeat + 1)
            ]
    return needs


def _complete(ledger: Ledger, task: Task) -> None:
    names = {metric.name for metric in task.metrics if metric.series != metric.name}
    if names:
        ledger.complete_trials(
            task, names, lambda ulid: protocol.summaries(task.metrics, ledger.series(ulid))
        )


def ends_first(commits: Sequence[Commit]) -> list[Commit]:
    """Return the commits with both ends first, then the middles of what lies between: however early
    a run ends, its commits are spread over the range."""
    last = len(commits) - 1
    order, gaps = dict.fromkeys([last, 0]), deque([(0, last)])
    while gaps:
        low, high = gaps.popleft()
        if high - low > 1:
            middle = (low + high) // 2
            order[middle] = None
            gaps += [(low, middle), (middle, high)]
    return [commits[place] for place in order]


def in_shares(
    needs: Sequence[Need],
    costs: Mapping[str, float],
    shares: Mapping[str, float],
    free: Collection[tuple[str, str]] = (),
) -> list[Need]:
    """Return the trials in an order in which each task gets its share of the time from the start,
    a commit at a time: however early a run ends, no task is always the one that is left out.

    Args:
        costs: Seconds of a trial, by the recipe of its task.
        shares: By the name of the task, relative to one another; 1 for the others.
        free: Recipes and commits (by hash) whose trials take no time.
    """
    blocks: dict[str, deque[list[Need]]] = {}
    for recipe, block in groupby(needs, lambda need: need.task.recipe):
        blocks.setdefault(recipe, deque())
        for _, trials in groupby(block, lambda need: need.commit.sha):
            blocks[recipe].append([*trials])
    spent = dict.fromkeys(blocks, 0.0)
    ordered: list[Need] = []
    while blocks:
        recipe = min(blocks, key=spent.__getitem__)
        first = blocks[recipe].popleft()
        if (recipe, first[0].commit.sha) not in free:
            spent[recipe] += costs[recipe] * len(first) / shares.get(first[0].task.name, 1.0)
        ordered += first
        if not blocks[recipe]:
            del blocks[recipe]
    return ordered


def re_used(bench: Bench, needs: Sequence[Need]) -> set[tuple[str, str]]:
    """Return the recipes and commits (by hash) that change no path that a stored trial of the task
    named, against what was measured or comes before them: they will re-use a result."""
    commits: dict[str, dict[str, Commit]] = {}
    for need in needs:
        if need.reuse and need.enough is not None:
            commits.setdefault(need.task.recipe, {})[need.commit.sha] = need.commit
    free = set()
    for task in {need.task.recipe: need.task for need in needs}.values():
        own = commits.get(task.recipe, {})
        environment = bench.environments[task.name].fingerprint
        agreeing, keys = bench.reuse.compared([*own.values()], task, environment)
        before = set()
        for sha in own:
            agrees = tuple(by_sha[sha] for by_sha in keys.values())
            if agreeing[sha] or (agrees and agrees in before):
                free.add((task.recipe, sha))
            before.add(agrees)
    return free


def in_turns(
    bench: Bench, commit: Commit, tasks: Sequence[Task], *, seeds: int, repeats: int
) -> list[Need]:
    """Return the trials to run so that the ledger holds one of each task with `seeds` seeds, its
    own first, and `repeats` of the first of them. Tasks run in turns, so that a slow change of the
    machine's speed affects all alike."""
    needs = []
    rounds = [(position, 1) for position in range(seeds)]
    rounds += [(0, number) for number in range(2, repeats + 1)]
    for position, number in rounds:
        for task in tasks:
            seed = [*task.seeds, *range(max(task.seeds) + 1, max(task.seeds) + seeds + 1)][position]
            if len(bench.held(commit.sha, task, seed)) < number:
                needs.append(Need(commit, task, seed, number))
    return needs


def settled(ledger: Ledger, task: Task, current: Environment) -> Environment:
    """Return the environment under which the ledger stores a trial of a task that would run in the
    `current` one.

    Packages that none of its trials imported do not count; all do where that is not known. It is
    the newest environment of the task that differs from `current` in no package that counts, else
    `current` itself, which names them.
    """
    ran_in = ledger.environments_of(task.recipe)
    if current.fingerprint in ran_in:
        return current
    counting: set[str] = set()
    for fingerprint in ran_in:
        environment, names = ledger.environment(fingerprint), imported(ledger, task, fingerprint)
        counting |= names or set()
        if environment is not None and alike(environment, current, names):
            return environment
    if not counting:
        return current
    uncounted = current.details.get("beside")
    uncounted = {
        **(uncounted if isinstance(uncounted, Mapping) else {}),
        "imported": sorted(counting),
    }
    return current._replace(details={**current.details, "beside": uncounted})


def alike(one: Environment, other: Environment, names: Collection[str] | None) -> bool:
    """Return True if two environments differ at most in packages that are none of these. None
    means all packages."""
    facts_of_one, facts_of_other = facts(one, names), facts(other, names)
    unknown = {k for k in _SINCE_LATER if k not in one.details or k not in other.details}
    return all(
        facts_of_one.get(k) == facts_of_other.get(k)
        for k in (facts_of_one.keys() | facts_of_other.keys()) - unknown
    )


# What an older celedger recorded as a part of the environment that is none, and what it did not
# record: neither makes another environment of the one that it saw.
_ONCE_COUNTED = ("device_uuid",)
_SINCE_LATER = ("gpu_settings",)


def facts(environment: Environment, names: Collection[str] | None = None) -> dict[str, object]:
    """Return what makes an environment another one, with the versions of its packages: all, or
    those of these names."""
    relevant = {
        k: v
        for k, v in environment.details.items()
        if k not in ("packages", "beside", *_ONCE_COUNTED)
    }
    packages = environment.details.get("packages")
    versions = packages if isinstance(packages, Mapping) else {}
    return {**(versions if names is None else {n: versions.get(n) for n in names}), **relevant}


def imported(ledger: Ledger, task: Task, fingerprint: str) -> set[str] | None:
    """Return the distributions that the trials of a task in an environment imported; None if that
    is not known for all of them."""
    trials = ledger.reusable_trials(recipe=task.recipe, environment=fingerprint)
    names: set[str] = set()
    for number in {trial.footprint for trial in trials}:
        if not (names_of_trial := ledger.footprint(number).packages):
            return None
        names |= names_of_trial
    return names or None
