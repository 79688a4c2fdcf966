"""The one memory: what is worse on a line, since which commit, and whether it is over.

Derived anew from trials, bisects and people's acts whenever they change (docs/statistics.md).
Stored are only rows of what was said, on which identity and hysteresis rest, and a cache that may
be deleted at any time. Every view prints rows of this state; none judges.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from celedger.base.model import BaselineAct
from celedger.judge import incident_list, standings
from celedger.judge.derivation import Derivation
from celedger.judge.incident import (
    Doubt,
    LevelChange,
    MetricNoise,
    PinnedDistance,
    State,
    interval,
)
from celedger.judge.incident_list import ListedIncidents
from celedger.stats.course import MetricHistory, MetricKey, Node
from celedger.stats.slow_drift import level_at
from celedger.trial.protocol import TELEMETRY


def state_of(
    derivation: Derivation, at: str | None = None, *, listed: ListedIncidents | None = None
) -> State:
    """Return the state; with `at`, how the metrics stand at that commit instead of the tip.
    `listed` is the list of its incidents, where that is built already."""
    place = len(derivation.line.commits) - 1 if at is None else derivation.place(at)
    listed = listed or incident_list.build(derivation)
    measured = {p for task in derivation.tasks.values() for p in task.ended_well[1].tolist()}
    everywhere = set(derivation.ledger.commits_with_trials())
    return State(
        tip=derivation.line.tip.sha,
        incidents=listed.incidents,
        changes=tuple(_changes(derivation)),
        doubts=tuple(_doubts(derivation)),
        pinned=tuple(_pinned(derivation)),
        standings=tuple(standings.at(derivation, place, listed.incidents)),
        noise=tuple(_noise(derivation)),
        gone=listed.gone,
        signed=tuple(derivation.signed.commits()),
        metrics=len(derivation.histories),
        commits=len(measured),
        trials=sum(task.ended_well.shape[1] for task in derivation.tasks.values()),
        aside=len(everywhere - derivation.line.places.keys()),
        environments=len({c.environment for t in derivation.tasks.values() for c in t.chains}),
    )


def _changes(derivation: Derivation) -> Iterable[LevelChange]:
    """Yield improvements, and the offset of each change of environment or definition."""
    for key, step in derivation.derived.changes:
        metric, sign = derivation.metric(key), derivation.metric(key).direction.sign
        low, high = interval(sign, step.size, step.error)
        yield LevelChange(
            "improvement", *key, sign * step.before, sign * step.after, low, high, metric.unit,
            step.probability, derivation.among(step.first, step.last),
            derivation.sha(step.likeliest),
            better=step.size < 0, known=derivation.sha(step.known) if step.known >= 0 else "",
        )  # fmt: skip
    for key, history in derivation.histories.items():
        yield from _offsets(derivation, key, history)


def _offsets(
    derivation: Derivation, key: MetricKey, history: MetricHistory
) -> Iterable[LevelChange]:
    task, metric = derivation.tasks[key[:2]], derivation.metric(key)
    by_chain: dict[int, list[int]] = {}
    for index, node in enumerate(history.nodes):
        by_chain.setdefault(node.chain, []).append(index)
    numbers = sorted(by_chain)
    for old, new in pairwise(numbers):
        shared = _newest_of_both(history.nodes, by_chain[old], by_chain[new])
        if shared is None:
            continue
        place, one, other = shared
        sign = metric.direction.sign
        size, error = sign * (other.level - one.level), (one.error**2 + other.error**2) ** 0.5
        chains = task.chains[old], task.chains[new]
        same = chains[0].environment == chains[1].environment
        yield LevelChange(
            "definition" if same else "environment", *key, sign * one.level,
            sign * other.level, *interval(1, size, error), metric.unit, 1.0,
            (derivation.sha(place),), derivation.sha(place), better=size * sign < 0,
            environments=(chains[0].environment, chains[1].environment),
        )  # fmt: skip


def _noise(derivation: Derivation) -> Iterable[MetricNoise]:
    for key, history in derivation.histories.items():
        noise = history.noise
        declared = derivation.metric(key) not in TELEMETRY
        yield MetricNoise(*key, noise.sd, noise.freedom, noise.is_exact, noise.session, declared)


def _doubts(derivation: Derivation) -> Iterable[Doubt]:
    for key, step in derivation.derived.suspected:
        metric, sign = derivation.metric(key), derivation.metric(key).direction.sign
        yield Doubt(
            *key, derivation.among(step.first, step.last), derivation.sha(step.likeliest),
            step.probability, sign * step.size, metric.unit, sign * step.before,
        )  # fmt: skip


def _pinned(derivation: Derivation) -> Iterable[PinnedDistance]:
    """Yield how far each metric lies from its newest pin by now, in the same chain."""
    pins = [act for act in derivation.acts if act.act is BaselineAct.PIN]
    for key, history in derivation.histories.items():
        metric = derivation.metric(key)
        places = [
            derivation.place(pin.commit)
            for pin in pins
            if pin.suite == key[0] and pin.covers(key[1], key[2])
        ]
        pin = next((p for p in reversed(places) if p >= 0), -1)
        if pin < 0 or not history.nodes:
            continue
        newest = max(history.nodes, key=lambda node: (node.chain, node.last))
        at = next((n for n in history.nodes_at(pin) if n.chain == newest.chain), newest)
        if at is newest:
            continue
        sign = metric.direction.sign
        (before, before_error), (now, now_error) = (level_at(history, n) for n in (at, newest))
        size = now - before
        low, high = interval(sign, size, math.hypot(before_error, now_error))
        level = sign * before
        clear = low * high > 0 and abs(size) >= metric.floor.at(level)
        yield PinnedDistance(
            *key, derivation.sha(pin), level, sign * size, low, high, metric.unit, size < 0, clear
        )


def _newest_of_both(
    nodes: Sequence[Node], old: Sequence[int], new: Sequence[int]
) -> tuple[int, Node, Node] | None:
    """Return the newest place that nodes of two chains share, and these nodes."""
    firsts, lasts = [nodes[a].first for a in old], [nodes[a].last for a in old]
    for b in reversed(new):
        at = bisect_left(lasts, nodes[b].first)
        if at < bisect_right(firsts, nodes[b].last):
            return nodes[b].last, nodes[old[at]], nodes[b]
    return None
