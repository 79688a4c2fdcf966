"""The values of a task that may be compared, grouped by commit.

A value counts when its trial ended well and as a whole, and was summarised by today's rule; one of
speed only when nothing disturbed the trial. One that a trial derived from another trial says what
its commit has, and is no further value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from celedger.base.model import SPOILT, Kind, Mark, Metric
from celedger.ledger.read import Reader
from celedger.ledger.trial_arrays import TaskColumns
from celedger.stats.arrays import Bools, Floats, Ints
from celedger.stats.grouped_values import Grouped, Layout


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """Which commits (hashes) and trials (ids) have a value of a metric in an environment.

    Attributes:
        trials: That measured a finite one themselves, at the commits in question.
        valued: Of the commits in question, those with a finite one, re-used results included.
        measured: All commits with a finite one of their own, or with a re-used result.
        reused: Commits that have re-used results alone; and the commits that they repeat.
    """

    trials: frozenset[int]
    valued: frozenset[str]
    measured: frozenset[str]
    reused: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class CommitValues:
    """The values of one metric in one environment: a group for each of `commits`, hashes, oldest
    first. `every` has all its trials, those of other commits and re-used ones included, and
    `finite` says which of these have a finite value."""

    commits: tuple[str, ...]
    grouped: Grouped
    every: Ints
    finite: Bools


_NO_TRIALS = np.empty(0, dtype=np.int64)
_NOTHING = CommitValues((), Grouped.of([], []), _NO_TRIALS, _NO_TRIALS > 0)


# How the values of certain trials in one environment are grouped: what sorts them, the commits, the
# groups, and the indices of all of them, those of other commits and re-used ones included.
_Arranged = tuple[Ints, tuple[str, ...], Layout, Ints]


class TaskValues:
    """The values of one recipe at the commits that `order` names, and as it places them. Trials
    are read once, the values of a metric when they are asked for. Trials that were recorded before
    the one with the id `first` are left out."""

    def __init__(
        self, ledger: Reader, recipe: str, order: Mapping[str, int], first: int = 0
    ) -> None:
        self._trials = trials = TaskColumns(ledger, recipe, first)
        self._place = np.array([order.get(sha, -1) for sha in trials.commits], dtype=np.int64)
        self._whole = trials.ok & ~trials.marked(Mark.EARLY_STOPPED)
        self._undisturbed = self._whole & ~trials.marked(*SPOILT)
        self._usable: dict[Metric, tuple[Ints, Floats]] = {}
        self._arranged: dict[tuple[bytes, bool], dict[str, _Arranged]] = {}
        self._coverages: dict[tuple[bytes, bytes], Coverage] = {}

    @property
    def tried(self) -> frozenset[str]:
        """Return the commits (hashes) with a trial that ended, however."""
        return frozenset(self._trials.commits)

    @property
    def ran(self) -> frozenset[str]:
        """Return the commits (hashes) with a trial that ended well."""
        trials = self._trials
        return frozenset(trials.commits[i] for i in np.unique(trials.commit[trials.ok]).tolist())

    def by_environment(self, metric: Metric, *, reused: bool = False) -> dict[str, CommitValues]:
        """Return the values by environment (fingerprint), the one first used before the others.
        One that has no value at the commits in question has no commits. With `reused`, a commit
        that has re-used results alone has their values."""
        if metric not in self._usable:
            rows, values = self._trials.values(metric)
            usable = (self._undisturbed if metric.kind is Kind.SPEED else self._whole)[rows]
            self._usable[metric] = rows[usable], values[usable]
        rows, values = self._usable[metric]
        key = rows.tobytes(), reused
        if key not in self._arranged:  # the metrics of a task have mostly values of the same trials
            self._arranged[key] = self._arrange(rows, reused)
        return {
            environment: CommitValues(
                commits, Grouped(values[order], layout), rows[every], np.isfinite(values[every])
            )
            for environment, (order, commits, layout, every) in self._arranged[key].items()
        }

    def of(self, metric: Metric, environment: str) -> CommitValues:
        """Return the values in one environment."""
        return self.by_environment(metric).get(environment, _NOTHING)

    def coverage(self, values: CommitValues) -> Coverage:
        """Return which commits and trials have these values."""
        key = values.every.tobytes(), values.finite.tobytes()
        if key not in self._coverages:  # the metrics of a task mostly share one
            self._coverages[key] = self._covered(values.every, values.finite)
        return self._coverages[key]

    def counts(self, environment: str) -> tuple[int, int, int]:
        """Return how many trials ran as a whole in an environment, at how many commits and with
        how many seeds."""
        trials = self._trials
        codes = [i for i, name in enumerate(trials.environments) if name == environment]
        ran = self._whole & ~trials.derived & np.isin(trials.environment, codes)
        return int(ran.sum()), np.unique(trials.commit[ran]).size, np.unique(trials.seed[ran]).size

    def _arrange(self, rows: Ints, reused: bool) -> dict[str, _Arranged]:
        trials, arranged = self._trials, {}
        environments = trials.environment[rows]
        for code in dict.fromkeys(environments.tolist()):
            every = np.flatnonzero(environments == code)
            ran = ~trials.derived[rows[every]]
            if reused:
                at = trials.commit[rows[every]]
                ran |= ~np.isin(at, at[ran])
            own = every[ran]
            place = self._place[trials.commit[rows[own]]]
            order = own[np.argsort(place, kind="stable")][(place < 0).sum() :]
            commit = trials.commit[rows[order]]
            starts = np.flatnonzero(np.diff(commit, prepend=-1))
            sizes = np.diff(starts, append=commit.size)
            commits = tuple(map(trials.commits.__getitem__, commit[starts].tolist()))
            layout = Layout(sizes, trials.seed[rows[order]])
            arranged[trials.environments[code]] = order, commits, layout, every
        return arranged

    def _covered(self, rows: Ints, finite: Bools) -> Coverage:
        trials = self._trials
        ids, commit, derived = trials.ids[rows], trials.commit[rows], trials.derived[rows]
        evidence = trials.evidence[rows]
        again = np.flatnonzero(
            derived & np.isin(evidence, ids) & ~np.isin(commit, commit[~derived])
        )
        sources = np.searchsorted(ids, evidence[again])
        names = trials.commits.__getitem__
        pairs = zip(commit[again].tolist(), commit[sources].tolist(), strict=True)
        reused = {names(repeated): names(source) for repeated, source in pairs}
        here = self._place[commit] >= 0
        measured = np.unique(commit[finite & ~derived]).tolist()
        return Coverage(
            frozenset(ids[finite & here & ~derived].tolist()),
            frozenset(map(names, np.unique(commit[finite & here]).tolist())),
            frozenset(map(names, measured)) | reused.keys(),
            reused,
        )
