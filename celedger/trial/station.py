"""Prepare a commit for its training: checkout, build and virtual environment. A `Station` is what
one worker has for that: checkout, device, fork servers, connection to the ledger; a `Setup` is what
all trials of one command share. Must not know how a trial is run and recorded.

The files that a suite's build commands add to a commit's tree are built once for equal inputs,
cached, and restored before each trial. The cache key is the files that the suite declares as
`inputs`, else the commit's tree. An entry has the files that the build added to the tree and to the
suite's copy, each as an archive, so that a trial cannot change it by writing into its own files.
Byte-code is not cached, nor a build that rewrites files of the commit.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from celedger.base import files
from celedger.base.config import Config
from celedger.base.errors import CannotJudge, MachineError, explained
from celedger.base.model import Bytes, Commit, Environment, OutcomeKind, Purpose, Task
from celedger.ledger import Ledger
from celedger.repo import Repository, tracked_in
from celedger.repo.checkouts import Checkout, Checkouts, delete
from celedger.repo.tree_files import attributes_above
from celedger.suite import Suite, build_lines, command_lines
from celedger.system import devices, process
from celedger.system.cache import FolderCache, Held, shrink
from celedger.system.devices import Device
from celedger.system.warm import Launchers
from celedger.trial.ending import absent_file, absent_module, classify, explain, tail
from celedger.trial.engine import (
    Building,
    Listener,
    Preparing,
    Remark,
    Signals,
    Waiting,
    ignore_events,
)
from celedger.trial.permission_requests import of_task
from celedger.trial.permissions import Gate
from celedger.trial.training_variables import comparable, variables
from celedger.trial.venvs import NO_ROOM, PINS, Installation, Venvs


@dataclass
class Builds:
    """The builds of one command. `limit` bounds the size of all `caches` together."""

    repository: Repository
    cache: FolderCache
    caches: tuple[FolderCache, ...]
    limit: Bytes
    _failed: dict[str, tuple[str, str]] = field(default_factory=dict)  # key: commit, reason

    def provide(
        self,
        commit: Commit,
        task: Task,
        checkout: Checkout,
        suite: Path,
        surroundings: Mapping[str, object],
        build: Callable[[], tuple[OutcomeKind, str]],
    ) -> tuple[OutcomeKind, str]:
        """Restore a cached build in a checkout that is at the commit, or call `build` there: return
        `ok`, or the outcome and the reason. `suite` is the suite's copy, `surroundings` are all
        inputs of a build besides the tree. This command does not retry a failed build."""
        inputs = self._inputs(commit, task)
        # A build may contain the path where it was made: each slot has its own.
        around = {**surroundings, "path": str(checkout.path), "written": checkout.manner}
        key = _hash({**around, "inputs": inputs or commit.tree})
        sha, reason = self._failed.get(key, ("", ""))
        if sha:
            alike = f" (so at {sha[:10]}, whose inputs are the same)" if sha != commit.sha else ""
            return OutcomeKind.UNTESTABLE, reason + alike
        if self._bring(key, checkout, suite):
            return OutcomeKind.OK, ""
        laid = set(_names(suite))
        kind, reason = build()
        if kind is OutcomeKind.OK:
            tracked = checkout.tracked()
            tracked |= {str(folder) for name in tracked for folder in Path(name).parents}
            products = {
                checkout.path: [n for n in _names(checkout.path) if n not in tracked],
                suite: [n for n in _names(suite) if n not in laid],
            }
            if not checkout.changed():  # a build that rewrote files of the commit is not cached
                self._keep(key, products)
        elif kind is not OutcomeKind.KILLED:
            self._failed[key] = commit.sha, reason
            kind = OutcomeKind.UNTESTABLE
        return kind, reason

    def _inputs(self, commit: Commit, task: Task) -> dict[str, str]:
        """Return the files that match the suite's globs, and the attributes that decide how git
        writes them, each with mode and blob. Empty if no file matches."""
        inputs = self.repository.matching(commit.sha, task.inputs)
        above = sorted(attributes_above(map(os.fsencode, inputs)))
        return inputs | self.repository.matching(commit.sha, map(os.fsdecode, above))

    def _keep(self, key: str, products: Mapping[Path, list[str]]) -> None:
        """Archive the build's files by the folder that holds them, unless they are larger than the
        whole cache. A build that is not cached runs again for each trial."""
        paths = [folder / name for folder, names in products.items() for name in names]
        if sum(path.lstat().st_size for path in paths) > self.limit:
            return

        def fill(home: Path) -> Mapping[str, object]:
            archives = [home / f"{number}.tar" for number in range(len(products))]
            for archive, (folder, names) in zip(archives, products.items(), strict=True):
                with tarfile.open(archive, "w") as tar:
                    for name in names:
                        tar.add(folder / name, name, recursive=False)
            return {}

        try:
            self.cache.make(key, fill).close()
        except (MachineError, OSError):
            return  # the disk is full: the next trial builds again
        shrink(self.caches, self.limit)

    def _bring(self, key: str, checkout: Checkout, suite: Path) -> bool:
        """Unpack a cached build. Return False if there is none, if it cannot be read, if the commit
        has a file of that name, or if a link on the way leads out of the folder."""
        entry = self.cache.use(key)
        if entry is None:
            return False
        with entry:
            try:
                if _unpack(entry.path, checkout, suite):
                    return True
            except (OSError, tarfile.TarError):
                entry.close()
                self.cache.drop(key)
        checkout.move_to(checkout.commit)
        return False


def _unpack(home: Path, checkout: Checkout, suite: Path) -> bool:
    """Unpack the archives of an entry. Return False if the commit has a file of that name, or a
    link on the way leads out of the folder. Raises OSError or TarError if one cannot be read."""
    tracked: Collection[str] = checkout.tracked()
    for number, folder in enumerate((checkout.path.resolve(), suite.resolve())):
        with tarfile.open(home / f"{number}.tar") as tar:
            for name in tar.getnames():
                if name in tracked or not (folder / name).parent.resolve().is_relative_to(folder):
                    return False
            # celedger made them on this machine; Python before 3.11.4 has no filters of its own.
            tar.extraction_filter = lambda member, _: member
            tar.extractall(folder)
        tracked = ()  # of the suite's copy nothing is
    return True


def _names(top: Path, above: str = "") -> Iterator[str]:
    """Yield the names in a folder, folders before their content, without byte-code and a
    repository's own files."""
    for entry in sorted(os.scandir(top / above), key=lambda entry: entry.name):
        if entry.name in (".git", "__pycache__") or entry.name.endswith(".pyc"):
            continue
        yield above + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _names(top, f"{above}{entry.name}/")


def _hash(facts: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Setup:
    """The values that all trials of one command share, whichever worker runs them."""

    checkouts: Checkouts
    config: Config
    suite: Suite
    suite_files: Path  # the suite's snapshot
    child: Path
    gate: Gate
    builds: Builds
    venvs: Venvs
    base_env: Mapping[str, str]
    host: str
    why: Purpose = Purpose.RUN
    now: Callable[[], float] = time.time
    random: Random = field(default_factory=SystemRandom)

    @property
    def repository(self) -> Repository:
        return self.checkouts.repository

    def launchers(self) -> Launchers:
        """Return fork servers for one worker."""
        script = self.child / "celedger" / "child" / "launcher.py"
        return Launchers(script, self.repository.root)


@dataclass
class Pin:
    """The commit with whose requirements all commits run, and the environments of tasks then, by
    name. Workers share it."""

    commit: str = ""
    environments: dict[str, Environment] = field(default_factory=dict)


@dataclass
class Station:
    """One worker's place. Use it as a context manager: it holds one checkout from the first trial
    on, and releases it at the end."""

    setup: Setup
    ledger: Ledger
    bases: Mapping[str, Installation]  # task name -> the suite's own interpreter
    device: Device
    device_lock: devices.DeviceLock
    launchers: Launchers  # for warm starts
    cores: tuple[int, ...] = ()  # of the CPU that its trials may use; () for all
    listen: Listener = ignore_events
    pin: Pin = field(default_factory=Pin)
    signals: Signals = field(default_factory=Signals)  # for the trial under way
    held_venvs: dict[str, Held] = field(default_factory=dict)  # locked until the end
    _checkout: Checkout | None = None
    _measuring: bool = False
    _cold: set[str] = field(default_factory=set)  # reasons already reported

    def close(self) -> None:
        self.launchers.close()
        if self._checkout is not None:
            self._checkout.close()
            self._checkout = None
        for venv in self.held_venvs.values():
            venv.close()
        self.held_venvs.clear()

    def beside(self, device: Device, cores: tuple[int, ...], listen: Listener) -> Station:
        """Return the place of another worker, for the thread that calls this."""
        return Station(
            self.setup, self.ledger.reopened(), self.bases, device,
            self.device_lock.of(device.key, cores), self.setup.launchers(), cores, listen, self.pin,
        )  # fmt: skip

    def changed(self, **changes: Any) -> Station:
        """Return this place with some fields changed; both share the checkout."""
        return replace(self, _checkout=self.checkout, **changes)

    def on(self, device: Device) -> Station:
        """Return this place with another device, and the lock of that one."""
        return self.changed(device=device, device_lock=self.device_lock.of(device.key))

    @property
    def environments(self) -> Mapping[str, Environment]:
        """Return the current environment of each task, by its name."""
        environments = {name: base.environment for name, base in self.bases.items()}
        return environments | self.pin.environments

    def place(self, commit: str, task: Task) -> Installation:
        """Return where a task runs at a commit (a hash): in the suite's interpreter, or in an
        environment made from the commit's requirements (after `hold_environment`, from those of one
        commit)."""
        base = self.bases[task.name]
        if not task.venv:
            return base
        return self.setup.venvs.place(self.pin.commit or commit, task, base, self)

    @contextmanager
    def installing(self, commit: str, task: Task) -> Iterator[Checkout]:
        """Yield the checkout for an installation, which would disturb a running measurement."""
        with self.device_held():
            what = f"installing the requirements of {commit[:10]} for {task.name}"
            self.listen(Preparing(what))
            yield self.checkout

    def hold_environment(self, commit: str, tasks: Sequence[Task], *, install: bool = True) -> None:
        """Run every commit from now on with the requirements of this one, so that trials of
        different commits are comparable. With `install` false, only if nothing needs to be
        installed. Raises CannotJudge if they cannot be installed."""
        venvs = self.setup.venvs
        for task in tasks:
            base = self.bases[task.name]
            if not task.venv or not (install or venvs.has(commit, task, base)):
                continue
            installation = venvs.place(self.pin.commit or commit, task, base, self)
            if installation.kind is not OutcomeKind.OK:
                raise CannotJudge(
                    f"{task.name} has no environment at {commit[:10]}: {installation.problem}",
                    "choose another end",
                )
            self.pin.environments[task.name] = installation.environment
        if not any(task.venv == (PINS,) for task in tasks):  # else they are what is compared
            self.pin.commit = commit

    def requirements_differ(self, commit: str, other: str, tasks: Sequence[Task]) -> bool:
        """Return True if two commits require different environments."""
        venvs = self.setup.venvs
        return any(
            venvs.key(commit, task, self.bases[task.name])
            != venvs.key(other, task, self.bases[task.name])
            for task in tasks
            if task.venv
        )

    def installed(self, commit: str, task: Task) -> str:
        """Return the key of the virtual environment of a task at a commit, "" for none."""
        if not task.venv:
            return ""
        return self.setup.venvs.key(self.pin.commit or commit, task, self.bases[task.name])

    @contextmanager
    def device_held(self) -> Iterator[None]:
        """Wait for the device, and hold it for the body of a `with`; may be nested."""
        if self._measuring:
            yield
            return

        def waits(holder: devices.Holder) -> None:
            self.listen(Waiting(self.device.name, str(holder)))

        with self.device_lock.hold(waits, check=self.signals.check):
            self._measuring = True
            try:
                yield
            finally:
                self._measuring = False

    def prepare(
        self, commit: Commit, task: Task, env: Mapping[str, str], log: Path
    ) -> tuple[OutcomeKind, str]:
        """Bring the checkout to the commit and build it: return `ok`, or the outcome and the
        reason. Raises NotAllowed; raises RepositoryError if git cannot write the commit (a failing
        filter, a missing object), which is a fault of this clone and no outcome of the commit.
        """
        if not self.setup.gate.attended:  # a merge may have changed a program of the work tree
            python = self.bases[task.name].python
            self.setup.gate.review([of_task(self.setup.repository, self.setup.suite, task, python)])
        installation = self.place(commit.sha, task)
        if installation.kind is not OutcomeKind.OK:
            files.write(log, installation.log, "replace")
            return installation.kind, installation.problem
        self._restore_suite()
        self.checkout.move_to(commit.sha)
        if not task.build:
            return OutcomeKind.OK, ""
        around = {
            "build": task.build,
            "suite": task.files if any("{suite}" in w for line in task.build for w in line) else "",
            "python": installation.python,
            "environment": installation.environment.fingerprint,
            "variables": comparable(env),
        }
        return self.setup.builds.provide(
            commit, task, self.checkout, self.suite_copy, around,
            lambda: self._build(commit, task, env, log),
        )  # fmt: skip

    def _build(
        self, commit: Commit, task: Task, env: Mapping[str, str], log: Path
    ) -> tuple[OutcomeKind, str]:
        """Run the build commands in the checkout: return `ok`, or how one ended and the reason."""
        self.listen(Building(commit, task))
        python = self.place(commit.sha, task).python
        for line in build_lines(task, python=python, suite_dir=self.suite_copy, tree=self.tree):
            end = process.run(
                line, cwd=self.tree, env=env, log=log, writable=self.writable(task, log),
                timeout=task.timeout, silence=task.silence, cores=self.cores,
                on_tick=lambda _: self.signals.check(),
            )  # fmt: skip
            kind = classify(end, log)
            if kind is OutcomeKind.OK:
                continue
            reason = f"build `{' '.join(line)}`: {explain(end, log)}"
            if kind is not OutcomeKind.KILLED and NO_ROOM in tail(log):
                raise MachineError(f"no room on a disk for the {reason}", "free some room")
            return kind, reason
        return OutcomeKind.OK, ""

    def variables(self, task: Task, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a training, with `extra` variables of celedger's own."""
        return variables(
            self.setup.base_env, task, tree=self.tree, child=self.setup.child,
            visible_devices=self.device.visible, extra=extra,
        )  # fmt: skip

    def lines(
        self, task: Task, installation: Installation, seed: int, out: Path
    ) -> list[tuple[str, tuple[str, ...]]]:
        """Return the commands of a task by name."""
        return command_lines(
            task, python=installation.python, suite_dir=self.suite_copy, tree=self.tree,
            seed=seed, out=out,
        )  # fmt: skip

    def run_command(
        self,
        task: Task,
        argv: tuple[str, ...],
        out: Path,
        writable: Sequence[Path] = (),
        **options: Any,
    ) -> process.Exit:
        """Run one command of a task in the checkout (`options`: those of `process.run`)."""
        return process.run(
            argv, cwd=self.tree / task.cwd, writable=self.writable(task, out, *writable),
            cores=self.cores, silence=task.silence, memory=task.memory, **options,
        )  # fmt: skip

    def lacks(self, commit: Commit, task: Task, reason: str) -> str:
        """Return which module the interpreter lacks, if a command ended for that `reason`; "" if
        the failure may be the commit's. A module that any commit of the repository has, or had,
        belongs to the code; so does one that is missing in the commit's own requirements.
        """
        name = absent_module(reason)
        uses_own_requirements = task.venv and self.pin.commit in ("", commit.sha)
        if not name or uses_own_requirements or self.setup.repository.has_module(name, commit.sha):
            return ""
        if task.venv:
            sha = self.pin.commit[:10]
            return f"the requirements of {sha}, with which all run, bring no {name}"
        python = self.bases[task.name].python
        return f"this interpreter has no {name}: set `python =` in suite.toml (now {python})"

    def why(self, task: Task, end: process.Exit, log: Path) -> str:
        """Return why a command failed, and what a checkout lacks that the user's work tree has."""
        reason = explain(end, log)
        if self.is_untracked(reason):
            reason += "; a trial sees only files that git tracks (docs/how-to.md, Set it up)"
        if (self.tree / ".gitmodules").exists() and not task.build:
            reason += "; submodules are empty in a trial's checkout: fill them by a `build`"
        return reason

    def is_untracked(self, reason: str) -> bool:
        """Return True if a command ended for the lack of a file that lies in the user's work tree
        and that git does not track."""
        name, repository = absent_file(reason), self.setup.repository
        path = repository.root / name
        # Unlike `path.exists`, False for a folder that may not be searched.
        return bool(name) and os.access(path, os.F_OK) and not tracked_in(repository.root, [name])

    def writable(self, task: Task, *others: Path) -> tuple[Path, ...]:
        """Return where a task in the sandbox may write besides its checkout; () without a
        sandbox."""
        return (self.tree, *others) if self.setup.config.sandbox or task.sandbox else ()

    def forker(
        self, task: Task, python: str, argv: Sequence[str], env: Mapping[str, str]
    ) -> process.Fork | None:
        """Return what starts a training warm. If the suite preloads modules and this training
        starts cold nevertheless, report the reason to the listener, once."""
        if not task.preload:
            return None
        importing = Preparing(f"importing {', '.join(task.preload)} once for all trainings")
        fork = self.launchers.forker(
            argv, self.tree / task.cwd, python, task.preload, env, partial(self.listen, importing)
        )
        if not isinstance(fork, str):
            return fork
        if fork not in self._cold:
            self._cold.add(fork)
            self.listen(Remark(f"{task.name} starts cold: {fork}"))
        return None

    @property
    def checkout(self) -> Checkout:
        """Return the checkout of this command, taken at first use."""
        if self._checkout is None:
            self._checkout = self.setup.checkouts.take()
        return self._checkout

    @property
    def tree(self) -> Path:
        return self.checkout.path

    @property
    def suite_copy(self) -> Path:
        """Return the copy of the suite that is `{suite}` in the trainings: one for each slot."""
        return self.setup.suite_files.with_name(self.tree.name)

    def _restore_suite(self) -> None:
        """Restore the suite's copy from its snapshot: a training may have written beside its
        script, and the next one must not see that."""
        with explained(f"{self.suite_copy} cannot be written"):
            delete(self.suite_copy)
            shutil.copytree(self.setup.suite_files, self.suite_copy)
