"""Drives the pure functions of the product: histories, incidents, the next trial. No ledger, no
git: what `judge/state.py` does with rows is done here with arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from types import ModuleType
from typing import Any

import numpy as np

from celedger.base.model import IncidentState
from celedger.stats import history, incidents, mends, next_trial, trial_noise
from celedger.stats.commit_evidence import CommitEvidence
from celedger.stats.course import (
    Acts,
    Measurements,
    MetricHistory,
    MetricKey,
    StepIncident,
    StepKind,
    ToldIncident,
)
from celedger.stats.next_trial import Job, Wanted, Why
from celedger.stats.sessions import contrasts
from lives.judges import Row
from lives.life import Life, Session, Trial

MOST_EXTRA = 6
"""Extra trials a job, anchors and controls among them."""
SWITCHES: dict[str, list[tuple[ModuleType, str, object]]] = {
    "repeats": [(trial_noise, "LEARNS_FROM_REPEATS", False)],
    "sessions": [(trial_noise, "HAS_SESSION_EFFECT", False)],
    "recovered": [
        (mends, "MORE_GONE_THAN_LEFT", -1e9),
        (mends, "GONE", 0.0),
        (mends, "GONE_UNNAMED", 0.0),
        (mends, "CLOSED", mends.OPEN),
    ],
}
"""What `--without` sets in the product; anchors and re-runs are left out here."""


class PureJudge:
    """Judges by `history.trace`, `incidents.derive` and `next_trial`."""

    def __init__(self, without: tuple[str, ...] = ()) -> None:
        self._without = frozenset(without)

    def start(self, life: Life) -> None:
        self._life = life
        self._grows = bool(getattr(life.noise, "grows", False))
        self._keys = [("core", "task", f"m{m}") for m in range(life.metrics)]
        self._trials: list[Trial] = []
        self._bits: dict[bytes, int] = {}
        self._told: dict[str, ToldIncident] = {}
        self._accepted: set[str] = set()
        self._cache: dict[str, Any] = {}
        self._heads: list[int] = []
        self._chains: list[int] = []  # environments in the order of first use
        self._controls: Counter[str] = Counter()
        self._histories: dict[MetricKey, MetricHistory] = {}
        self._derived = incidents.derive({}, [], floors={})
        self._evidence = CommitEvidence(life.names, life.touched)

    def accept(self, commit: int, incident: str) -> None:
        self._accepted.add(incident)

    def job(self, session: Session) -> list[Row]:
        if session.environment not in self._chains:
            self._chains.append(session.environment)
        with _switched_off(self._without):
            if session.job.kind == "bisect":
                for commit in session.job.commits:
                    self._trials += session.run(commit, self._life.seeds)
                self._derive()
            else:
                self._hook(session)
        return self._tell()

    def _hook(self, session: Session) -> None:
        head, chain = session.job.head, self._chains.index(session.environment)
        anchor = (
            None if "anchors" in self._without else next_trial.anchor(self._histories, head, chain)
        )
        job = Job(
            head=head, chain=chain, run=[], own=self._life.seeds,
            previous=self._heads[-1] if self._heads else None,
            earlier=len(self._heads),
            left=MOST_EXTRA, anchor=anchor,
            has_sessions=self._keys if self._life.speed else (), newest=self._derived.newest,
        )  # fmt: skip
        self._trials += session.run(head, self._life.seeds)
        self._controls[""] = 0
        while True:
            self._derive()
            places = [t.commit for t in session.trials]
            extra = len(places) - job.own
            now = replace(job, run=places, left=job.left - extra, asked=dict(self._controls))
            wanted = next_trial.next_trial(self._histories, self._derived, now)
            if wanted is None or self._is_without(wanted):
                break
            self._run(session, wanted)
        self._heads.append(head)

    def _is_without(self, wanted: Wanted) -> bool:
        doubts = (Why.AGAIN, Why.BESIDE, Why.RISEN, Why.CONTROL)
        return "reruns" in self._without and wanted.why in doubts and wanted.key is not None

    def _run(self, session: Session, wanted: Wanted) -> None:
        seed = self._seed(session, wanted)
        if seed is None:
            self._trials += session.run(wanted.place)
        else:
            self._trials.append(session.run_seed(wanted.place, seed))
        if wanted.why is Why.CONTROL and wanted.incident:
            self._controls[wanted.incident] += 1
            self._controls[""] += 1

    def _seed(self, session: Session, wanted: Wanted) -> int | None:
        """Return the seed to run, None for one that the commit has not seen."""
        if wanted.seed is not None:
            return wanted.seed
        history = self._histories[wanted.key] if wanted.key is not None else None
        if history is not None and history.by_seeds and wanted.why is Why.AGAIN:
            nodes = history.nodes_at(wanted.place)
            same = {self._trials[row].seed for node in nodes for row in node.rows}
            return next(seed for seed in count() if seed not in same)
        own = {t.seed for t in self._trials if t.commit == wanted.place}
        here = [t.seed for t in session.trials if t.commit == wanted.beside]
        return next((seed for seed in here if seed not in own), None)

    def _derive(self) -> None:
        measured = self._measurements()
        drifts = {
            key: [
                (t.first, t.last)
                for t in self._told.values()
                if t.kind is StepKind.DRIFT and t.states.get(key) not in (None, "withdrawn")
            ]
            for key in self._keys
        }
        self._histories = history.trace(measured, told_drifts=drifts, cache=self._cache)
        found = [
            c for key in self._keys for c in contrasts(key, measured[key], self._histories[key])
        ]
        self._derived = incidents.derive(
            self._histories, list(self._told.values()), floors={},
            acts=Acts(accepted_ids=frozenset(self._accepted)), evidence=self._evidence,
            contrasts=found,
        )  # fmt: skip

    def _measurements(self) -> dict[MetricKey, Measurements]:
        own = self._trials
        values = np.array([t.values for t in own])
        columns = {
            "place": np.array([t.commit for t in own]),
            "chain": np.array([self._chains.index(t.environment) for t in own]),
            "session": np.array([t.session for t in own]),
            "rank": np.array([t.rank for t in own]),
            "seed": np.array([t.seed for t in own]),
            "own": np.ones(len(own), bool),
            "bits": np.array([self._bits_of(t) for t in own]),
        }
        return {
            key: Measurements(
                value=values[:, m], has_sessions=self._life.speed, grows=self._grows, **columns
            )
            for m, key in enumerate(self._keys)
        }

    def _bits_of(self, trial: Trial) -> int:
        """Return equal numbers for equal bits. A rounded value says nothing of the bits."""
        if self._life.speed or getattr(self._life.noise, "kind", "") == "integer":
            return -1
        return self._bits.setdefault(trial.values.tobytes(), len(self._bits))

    def _tell(self) -> list[Row]:
        rows = []
        for incident in self._derived.incidents:
            id_ = incident.id or f"{len(self._told):08x}"
            self._told[id_] = _told(id_, incident, self._told.get(id_))
            state = "joined" if incident.joined else str(incident.state)
            sizes = {
                self._keys.index(key): (
                    s.step.size, s.step.size - 1.96 * s.step.error,
                    s.step.size + 1.96 * s.step.error,
                )
                for key, s in incident.shares.items()
            }  # fmt: skip
            kind = "drift" if incident.kind is StepKind.DRIFT else "metric"
            rows.append(Row(id_, kind, state, incident.first, incident.last, sizes))
        return rows


@contextmanager
def _switched_off(parts: frozenset[str]) -> Iterator[None]:
    chosen = [switch for part in parts for switch in SWITCHES.get(part, [])]
    before = [getattr(module, name) for module, name, _ in chosen]
    for module, name, value in chosen:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(chosen, before, strict=True):
            setattr(module, name, value)


def _told(id_: str, incident: StepIncident, before: ToldIncident | None) -> ToldIncident:
    sizes = {k: (s.step.size, s.step.error) for k, s in incident.shares.items()}
    if incident.state is IncidentState.WITHDRAWN and before is not None:
        sizes = dict(before.sizes)
    return ToldIncident(
        id_, incident.first, incident.last, incident.state,
        {k: s.state for k, s in incident.shares.items()}, incident.kind, incident.was_sure, sizes,
    )  # fmt: skip
