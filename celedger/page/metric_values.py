"""The trials of a metric along a line of commits, chain by chain, beside the levels that the state
has there: what the charts of the page and `plot drift` show. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from celedger.base.model import SPOILT, Kind, Mark, Metric, OutcomeKind, TrialRecord
from celedger.judge.derivation import Derivation
from celedger.judge.measured import Chain
from celedger.ledger.arrays import TaskColumns
from celedger.ledger.read import Reader
from celedger.stats import Floats, Ints
from celedger.stats.course import MetricHistory, Node
from celedger.stats.mends import KEPT

_OTHERS = 2
"""What a seed adds is believed from n commits as n / (n + 2): one of them tells little."""
_ROUNDS = 4  # in which the means of commits and what seeds add are fitted in turns


@dataclass(frozen=True, slots=True, eq=False)
class ChainValues:
    """The values of one metric in one environment and definition, in its own unit.

    Attributes:
        number: Of the chain, in the order of first use.
        place, seed, value: Of each trial, by place. A value may be infinite or no number.
        nodes: The levels that the state has, oldest first; none of a metric that is not judged.
        is_exact: True where a seed repeats bit by bit.
        sign: -1 where the levels of `nodes` have the other sign.
        trials: How many gave a finite value of their own; re-used results are none.
    """

    number: int
    chain: Chain
    place: Ints
    seed: Ints
    value: Floats
    nodes: Sequence[Node]
    is_exact: bool
    sign: int
    trials: int

    def within(self, first: int, end: int) -> ChainValues:
        """Return what was measured from a place on, and before another; `trials` stays."""
        inside = (first <= self.place) & (self.place < end)
        nodes = [node for node in self.nodes if node.last >= first and node.first < end]
        return replace(
            self,
            place=self.place[inside],
            seed=self.seed[inside],
            value=self.value[inside],
            nodes=nodes,
        )

    def levels(self) -> list[tuple[int, int, float]]:
        """Return first and last place and level of each node."""
        return [(node.first, node.last, self.sign * node.level) for node in self.nodes]

    def adjusted(self) -> Floats:
        """Return the values less what their seeds add: a commit that was measured with other seeds
        than its neighbours lies no higher for it. Where bits repeat, a commit that shares no seed
        with another is taken to lie at its level."""
        rows = np.flatnonzero(np.isfinite(self.value))
        result = self.value.copy()
        if not self.nodes or not rows.size:
            return result
        places, row_index = np.unique(self.place[rows], return_inverse=True)
        seeds, seed, number = np.unique(self.seed[rows], return_inverse=True, return_counts=True)
        if rows.size == places.size * seeds.size and (number == places.size).all():
            return result  # all commits have the same seeds
        trials = np.bincount(row_index)
        share = number / (number + (0 if self.is_exact else _OTHERS))
        effect = np.zeros(seeds.size)
        for _ in range(_ROUNDS):
            mean = np.bincount(row_index, self.value[rows] - effect[seed]) / trials
            effect = share * _medians(self.value[rows] - mean[row_index], seed, number)
            effect -= np.average(effect, weights=number)
        result[rows] -= effect[seed]
        if self.is_exact:
            alone = np.bincount(row_index, number[seed] == 1) == trials
            result[rows] = np.where(alone[row_index], self._level(self.place[rows]), result[rows])
        return result

    def _level(self, places: Ints) -> Floats:
        """Return the level at each of some places."""
        first, _, levels = map(np.array, zip(*self.levels(), strict=True))
        node = np.maximum(np.searchsorted(first, places, side="right") - 1, 0)
        return np.asarray(levels[node])

    def by_place(self) -> tuple[Ints, list[Floats], Floats]:
        """Return the places, the values at each, and the mean of those, adjusted for seeds."""
        places, starts = np.unique(self.place, return_index=True)
        sizes = np.diff(starts, append=self.place.size)
        if not places.size:
            return places, [], np.empty(0)
        with np.errstate(invalid="ignore"):  # inf - inf
            means = np.add.reduceat(self.adjusted(), starts) / sizes
        return places, np.split(self.value, starts[1:]), means


def _nodes(history: MetricHistory, chain: int) -> list[Node]:
    """Return the nodes of a chain. Where bits repeat, steps are told by equal seeds, and the levels
    are those between the steps: the nodes' own are of values whose seeds are noise."""
    nodes = [node for node in history.nodes if node.chain == chain]
    steps = [s for s in history.steps if s.chain == chain and s.probability >= KEPT]
    if not history.noise.is_exact or not steps:
        return nodes
    ends = [step.likeliest for step in steps]
    levels = [steps[0].before, *(step.after for step in steps)]
    return [
        node._replace(level=levels[int(np.searchsorted(ends, node.first, side="right"))])
        for node in nodes
    ]


def _medians(values: Floats, group: Ints, sizes: Ints) -> Floats:
    """Return the median of each group: one trial that diverged does not move it."""
    ordered = values[np.lexsort((values, group))]
    starts = np.cumsum(sizes) - sizes
    return np.asarray((ordered[starts + (sizes - 1) // 2] + ordered[starts + sizes // 2]) / 2)


class TaskOnLine:
    """A task's trials along the line of a derivation, of all its definitions."""

    def __init__(self, derivation: Derivation, suite: str, name: str) -> None:
        self.suite, self.name = suite, name
        self._derivation, self._ledger = derivation, derivation.ledger
        self.recipes = [t.recipe for t in self._ledger.tasks() if (t.suite, t.name) == self.title]
        self._places = derivation.line.places
        self._columns = {r: TaskColumns(self._ledger, r) for r in self.recipes}

    @property
    def title(self) -> tuple[str, str]:
        return self.suite, self.name

    @property
    def ledger(self) -> Reader:
        return self._ledger

    @property
    def recipe(self) -> str:
        """Return the newest definition."""
        return self.recipes[-1]

    def tried(self) -> list[int]:
        """Return the places with a trial that ended, however."""
        return self._of(sha for columns in self._columns.values() for sha in columns.commits)

    @cached_property
    def failures(self) -> Mapping[int, Sequence[TrialRecord]]:
        """Return the trials that failed, by place."""
        failed: dict[int, list[TrialRecord]] = {}
        for recipe in self.recipes:
            for record in self._ledger.trials(recipe=recipe, failed_only=True):
                if (position := self._places.get(record.trial.commit)) is not None:
                    failed.setdefault(position, []).append(record)
        return failed

    def crashed(self) -> list[int]:
        """Return the places at which a trial failed by itself."""
        return [place for place, kinds in self._failed() if any(kind.crashed for kind in kinds)]

    def untestable(self) -> list[int]:
        """Return the places at which no trial ran because the build failed."""
        ran = self._of(
            columns.commits[number]
            for columns in self._columns.values()
            for number in np.unique(columns.commit[columns.ok]).tolist()
        )
        unbuilt = {OutcomeKind.UNTESTABLE}
        return [p for p, kinds in self._failed() if kinds == unbuilt and p not in ran]

    def _failed(self) -> list[tuple[int, set[OutcomeKind]]]:
        """Return how the failed trials of each place ended, by place."""
        return [
            (place, {r.outcome.kind for r in self.failures[place] if r.outcome})
            for place in sorted(self.failures)
        ]

    def chains(self, metric: Metric) -> list[ChainValues]:
        """Return a metric's values, the chain that was used first before the others."""
        task = self._derivation.tasks.get(self.title)
        history = self._derivation.histories.get((*self.title, metric.name))
        numbers = {chain: number for number, chain in enumerate(task.chains)} if task else {}
        parts: dict[Chain, list[tuple[Ints, Ints, Floats]]] = {}
        trials: dict[Chain, int] = {}
        for recipe, columns in self._columns.items():
            for environment, shown, trials_of in self._shown(columns, metric):
                chain = Chain(self._derivation.equal.get(environment, environment), recipe)
                parts.setdefault(chain, []).append(shown)
                trials[chain] = trials.get(chain, 0) + trials_of
        chains = []
        for chain, groups in parts.items():
            positions, seed, value = map(np.concatenate, zip(*groups, strict=True))
            order = np.argsort(positions, kind="stable")
            number = numbers.get(chain, len(numbers))
            nodes = _nodes(history, number) if history is not None else []
            chains.append(ChainValues(
                number, chain, positions[order], seed[order], value[order], nodes,
                bool(history and history.noise.is_exact), metric.direction.sign or 1,
                trials[chain],
            ))  # fmt: skip
        return sorted(chains, key=lambda chain: chain.number)

    def _shown(
        self, columns: TaskColumns, metric: Metric
    ) -> Iterator[tuple[str, tuple[Ints, Ints, Floats], int]]:
        """Yield each environment that has values on the line, the one first used before the others:
        places, seeds and values; and how many trials measured a finite one. A commit that has
        re-used results alone has their values."""
        usable = columns.ok & ~columns.marked(Mark.EARLY_STOPPED)
        if metric.kind is Kind.SPEED:
            usable &= ~columns.marked(*SPOILT)
        rows, values = columns.values(metric)
        keep = usable[rows]
        rows, values = rows[keep], values[keep]
        line = np.array([self._places.get(sha, -1) for sha in columns.commits], dtype=np.int64)
        commit, ran = columns.commit[rows], ~columns.derived[rows]
        place = line[commit] if rows.size else rows
        for code in dict.fromkeys(columns.environment[rows].tolist()):
            inside = columns.environment[rows] == code
            own = inside & ran
            shown = inside & (place >= 0) & (ran | ~np.isin(commit, commit[own]))
            if shown.any():
                trials = int((own & (place >= 0) & np.isfinite(values)).sum())
                arrays = place[shown], columns.seed[rows][shown], values[shown]
                yield columns.environments[code], arrays, trials

    def _of(self, shas: Iterable[str]) -> list[int]:
        return sorted({self._places[s] for s in shas if s in self._places})
