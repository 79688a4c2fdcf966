"""Find the stored results that a commit may re-use, and store the footprints of new trials."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from celedger.base.errors import RepositoryError
from celedger.base.model import CLOCKED, Commit, Footprint, ReusableTrial, Task, TrialRecord
from celedger.ledger import Ledger
from celedger.repo import Repository, filters
from celedger.repo.checkouts import Checkout
from celedger.repo.differences import Differences
from celedger.trial import journal, protocol
from celedger.trial.reuse.footprint import (
    FootprintComparison,
    NamedPaths,
    SyntaxTrees,
    judge_outside,
    outside_folders,
)

# Raise it whenever a footprint may lack a path that it should name: those of other rules are not
# used.
RULES = "10"

_WHOLE_TREE = ("**",)  # the inputs of a trial without a recorder
PACKAGE = b"//"  # before a distribution's name among a footprint's paths: no tree has such a path

Key = tuple[str, int]  # what surrounds a commit's tree, and the sum of its tree


class Reuse:
    """The results of one ledger, for the commits of one repository. `child` is celedger's own
    folder that trainings import. `variables` returns a fingerprint of the user's variables that a
    task gets, `installed` the virtual environment in which a task runs at a commit (by hash), ""
    for none."""

    def __init__(
        self,
        ledger: Ledger,
        repository: Repository,
        child: Path,
        variables: Callable[[Task], str],
        installed: Callable[[str, Task], str],
    ) -> None:
        self._ledger, self._repository, self._installed = ledger, repository, installed
        self._child, self._variables = child, variables
        self.beside = (*outside_folders(repository), ledger.private)
        self._differences = Differences(repository)
        self._syntax = SyntaxTrees(self._differences)
        self._agreements: dict[int, FootprintComparison] = {}  # by the number of the footprint

    def keep(
        self, commit: Commit, task: Task, ulid: str, named: NamedPaths, checkout: Checkout
    ) -> str:
        """Store the footprint of a trial that just ended in a checkout. Returns the tracked file of
        the user's work tree that it opened instead of the commit's, "" for none."""
        inside, outside = named.split(checkout.path)
        unknown, file = inside.unknown, ""
        inputs = task.inputs if task.build else ()
        try:
            matching = self._repository.matching(commit.sha, inputs)
            if task.build and not matching:
                unknown = unknown or "its build declares no inputs"
            path_functions = (journal.out_path, journal.log_path, journal.path)
            trial_paths = (
                *(path_of(self._ledger, ulid) for path_of in path_functions),
                self._child,
            )
            trials = self._ledger.private
            verdict = judge_outside(
                self._repository, self.beside, outside, commit.tree, trials, trial_paths
            )
            file, unknown = verdict.file, unknown or verdict.unknown
            inside.opened |= verdict.opened
            inside.looked |= verdict.looked
            paths = {*inside.opened, *inside.looked, *map(os.fsencode, matching)}
            names = {checkout.filtered.get(os.fsdecode(path), "") for path in paths} - {""}
            if filters.LFS in names:  # it reads one file of the tree
                inside.looked.add(filters.LFS_CONFIG.encode())
            if others := sorted(names - {filters.LFS}):
                unknown = unknown or f"its files pass through the filter {others[0]}"
            if checkout.manner != self._manner:
                unknown = unknown or "how git writes files was changed meanwhile"
            imported = {PACKAGE + os.fsencode(name) for name in named.packages}
            footprint = Footprint(
                tuple(sorted(inside.opened | imported)),
                tuple(sorted(inside.looked - inside.opened)),
                inputs if task.trace else _WHOLE_TREE,
            )
        except (RepositoryError, OSError, RuntimeError) as error:  # no disk space, no home folder
            unknown = unknown or str(error) or type(error).__name__
        if unknown:
            self._ledger.record_unknown_footprint(ulid, unknown)
        else:
            around = self._surroundings([commit], task)[commit.sha]
            self._ledger.record_footprint(ulid, footprint, around)
        return file

    @cached_property
    def _manner(self) -> str:
        return filters.manner(self._repository)

    def _surroundings(self, commits: Sequence[Commit], task: Task) -> dict[str, str]:
        """Return for each commit (by hash) what decides, besides its tree, which content a training
        reads: git may write one blob as different files, and an environment's fingerprint has
        neither the user's variables nor the content of packages, only their versions."""
        shared = self.shared(task)
        return {commit.sha: shared + self._installed(commit.sha, task) for commit in commits}

    def shared(self, task: Task) -> str:
        """Return that part of a task's surroundings that is the same at all commits."""
        return f"{RULES}:{self._manner}:{self._variables(task)}:"

    def agreeing(
        self, commits: Sequence[Commit], task: Task, environment: str, seed: int | None = None
    ) -> dict[str, list[ReusableTrial]]:
        """Return for each commit (by hash) the trials of this task and environment, at any commit,
        that named nothing in which the commit differs."""
        return self.compared(commits, task, environment, seed)[0]

    def compared(
        self, commits: Sequence[Commit], task: Task, environment: str, seed: int | None = None
    ) -> tuple[dict[str, list[ReusableTrial]], dict[int, Mapping[str, Key]]]:
        """Return `agreeing`, and for each footprint of these trials (by number) a key for each
        commit; commits with equal keys agree."""
        agreeing: dict[str, list[ReusableTrial]] = {commit.sha: [] for commit in commits}
        by_footprint: dict[int, list[ReusableTrial]] = {}
        trials = self._ledger.reusable_trials(
            recipe=task.recipe, environment=environment, seed=seed
        )
        trials = [trial for trial in trials if trial.surroundings.startswith(f"{RULES}:")]
        keys: dict[int, Mapping[str, Key]] = {}
        try:
            trees_asked = dict.fromkeys(commit.tree for commit in commits)
            # Newest first: trees that are close in history differ in little.
            elsewhere = dict.fromkeys(t.tree for t in reversed(trials) if t.tree not in trees_asked)
            present = self._differences.present(elsewhere)
            trees = [*trees_asked, *(tree for tree in elsewhere if tree in present)]
            for trial in trials:
                if trial.tree in trees_asked or trial.tree in present:
                    by_footprint.setdefault(trial.footprint, []).append(trial)
            around = self._surroundings(commits, task)
            for number, of_footprint in by_footprint.items():
                sums = self.agreement(number).sums(trees)
                keys[number] = {c.sha: (around[c.sha], sums[c.tree]) for c in commits}
                by_key: dict[Key, list[ReusableTrial]] = {}
                for trial in of_footprint:
                    by_key.setdefault((trial.surroundings, sums[trial.tree]), []).append(trial)
                for sha, key in keys[number].items():
                    agreeing[sha] += by_key.get(key, ())
        except RepositoryError:  # a clone that lacks objects: nothing is proved
            return {commit.sha: [] for commit in commits}, {}
        return agreeing, keys

    def alike(
        self, pairs: Iterable[tuple[Commit, Commit]], keys: Mapping[int, Mapping[str, Key]]
    ) -> set[tuple[str, str]]:
        """Return those of these pairs (by hashes) that differ only in Python sources with equal
        syntax trees. `keys` are those of `compared`."""
        around = next(iter(keys.values()))
        same = ((one, other) for one, other in pairs if around[one.sha][0] == around[other.sha][0])
        try:
            return self._syntax.alike(same, [self.agreement(number) for number in keys])
        except RepositoryError:  # a clone that lacks sources
            return set()

    def agreement(self, number: int) -> FootprintComparison:
        """Return the agreement of trees at a footprint, by its number in the ledger."""
        if number not in self._agreements:
            footprint = self._ledger.footprint(number)
            self._agreements[number] = FootprintComparison(self._differences, footprint)
        return self._agreements[number]

    def evidence(
        self, commit: Commit, task: Task, environment: str, seed: int, stored: Sequence[TrialRecord]
    ) -> ReusableTrial | None:
        """Return a trial whose result this commit may re-use, and for which none of the `stored`
        trials is derived yet. A failed trial is not re-used: it may succeed today (missing data, a
        package)."""
        used = {record.derived or record.trial.ulid for record in stored}
        for trial in self.agreeing([commit], task, environment, seed)[commit.sha]:
            fit = trial.whole and not trial.failed and trial.ulid not in used
            if fit and self._answers(task, trial.ulid):
                return trial
        return None

    def _answers(self, task: Task, ulid: str) -> bool:
        """Return True if a trial's summaries are those that the task requires now."""
        record = self._ledger.trial(ulid)
        summaries = protocol.summaries(task.metrics, self._ledger.series(ulid))
        return (
            record is not None
            and not protocol.missing(task, summaries)
            and all(repr(record.summaries.get(name)) == repr(v) for name, v in summaries.items())
        )


def measured(task: Task) -> list[str]:
    """Return the metrics without a value in a re-used result: speed, memory and telemetry of a
    trial vary."""
    telemetry = {m.name for m in protocol.TELEMETRY}
    return [m.name for m in task.metrics if m.kind in CLOCKED or m.name in telemetry]
