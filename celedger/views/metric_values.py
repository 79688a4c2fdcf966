"""The trials of a metric along a line of commits, chain by chain, beside the levels that the state
has there: what the charts of the page and `plot drift` show. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from celedger.base.model import Metric, TrialRecord
from celedger.judge.derivation import Derivation
from celedger.judge.measured import Chain
from celedger.judge.values import TaskValues
from celedger.ledger.read import Reader
from celedger.stats.arrays import Floats, Ints
from celedger.stats.course import Node

_OTHERS = 2
"""What a seed adds is believed from its other commits as n / (n + 2): one of them tells little."""


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
        here = (first <= self.place) & (self.place < end)
        nodes = [node for node in self.nodes if node.last >= first and node.first < end]
        return replace(
            self, place=self.place[here], seed=self.seed[here], value=self.value[here], nodes=nodes
        )

    def levels(self) -> list[tuple[int, int, float]]:
        """Return first and last place and level of each node."""
        return [(node.first, node.last, self.sign * node.level) for node in self.nodes]

    def adjusted(self) -> Floats:
        """Return the values less what their seeds add to the level: a commit that was measured with
        other seeds than its neighbours lies no higher for it."""
        if not self.nodes:
            return self.value
        first, last, levels = map(np.array, zip(*self.levels(), strict=True))
        node = np.maximum(np.searchsorted(first, self.place, side="right") - 1, 0)
        rest = self.value - levels[node]
        known = np.isfinite(rest) & (first[node] <= self.place) & (self.place <= last[node])
        _, seed = np.unique(self.seed, return_inverse=True)
        rest = np.where(known, rest, 0.0)
        sums, sizes = np.bincount(seed, rest)[seed], np.bincount(seed, known)[seed]
        if self.is_exact:
            return np.asarray(self.value - sums / np.maximum(sizes, 1))
        others = np.where(known, sizes - 1, sizes)
        return np.asarray(self.value - (sums - rest) / (others + _OTHERS))

    def by_place(self) -> tuple[Ints, list[Floats], Floats]:
        """Return the places, the values at each, and the mean of those, adjusted for seeds."""
        places, starts = np.unique(self.place, return_index=True)
        sizes = np.diff(starts, append=self.place.size)
        if not places.size:
            return places, [], np.empty(0)
        return (
            places, np.split(self.value, starts[1:]),
            np.add.reduceat(self.adjusted(), starts) / sizes,
        )  # fmt: skip


class TaskOnLine:
    """A task's trials along the line of a derivation, of all its definitions."""

    def __init__(self, derivation: Derivation, suite: str, name: str) -> None:
        self.suite, self.name = suite, name
        self._derivation, self._ledger = derivation, derivation.ledger
        self.recipes = [t.recipe for t in self._ledger.tasks() if (t.suite, t.name) == self.title]
        self._places = derivation.line.places
        self._values = {r: TaskValues(self._ledger, r, self._places) for r in self.recipes}

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
        return self._of(sha for own in self._values.values() for sha in own.tried)

    def ran(self) -> list[int]:
        """Return the places with a trial that ended well."""
        return self._of(sha for own in self._values.values() for sha in own.ran)

    def failures(self) -> Mapping[int, Sequence[TrialRecord]]:
        """Return the trials that failed, by place."""
        failed: dict[int, list[TrialRecord]] = {}
        for recipe in self.recipes:
            for record in self._ledger.trials(recipe=recipe, failed_only=True):
                if (place := self._places.get(record.trial.commit)) is not None:
                    failed.setdefault(place, []).append(record)
        return failed

    def chains(self, metric: Metric) -> list[ChainValues]:
        """Return a metric's values, the chain that was used first before the others."""
        task = self._derivation.tasks.get(self.title)
        history = self._derivation.histories.get((*self.title, metric.name))
        numbers = {chain: number for number, chain in enumerate(task.chains)} if task else {}
        parts: dict[Chain, list[tuple[Ints, Ints, Floats]]] = {}
        trials: dict[Chain, int] = {}
        for recipe, values in self._values.items():
            for environment, own in values.by_environment(metric, reused=True).items():
                stands = self._derivation.equal.get(environment, environment)
                at = np.array([self._places[sha] for sha in own.commits], dtype=np.int64)
                place = np.repeat(at, own.grouped.sizes)
                seeds = own.grouped.seeds
                seeds = np.zeros_like(place) if seeds is None else seeds
                if place.size:
                    chain, columns = Chain(stands, recipe), (place, seeds, own.grouped.values)
                    parts.setdefault(chain, []).append(columns)
                    trials[chain] = trials.get(chain, 0) + len(values.coverage(own).trials)
        chains = []
        for chain, groups in parts.items():
            place, seed, value = map(np.concatenate, zip(*groups, strict=True))
            order = np.argsort(place, kind="stable")
            number = numbers.get(chain, len(numbers))
            nodes = [n for n in history.nodes if n.chain == number] if history else []
            chains.append(ChainValues(
                number, chain, place[order], seed[order], value[order], nodes,
                bool(history and history.noise.is_exact), metric.direction.sign or 1,
                trials[chain],
            ))  # fmt: skip
        return sorted(chains, key=lambda each: each.number)

    def _of(self, shas: Iterable[str]) -> list[int]:
        return sorted({self._places[s] for s in shas if s in self._places})
