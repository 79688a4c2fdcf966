"""The lines of one order, repeated on the head's ledger. Everything may come twice: a head that
takes over an order reads its lines from the first."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from celedger.base import errors, files
from celedger.base.errors import CeledgerError
from celedger.base.model import Environment, Trial, TrialRecord
from celedger.engines import order as orders
from celedger.engines.cluster import LostNode, OtherEnvironment
from celedger.engines.order import Order
from celedger.ledger import Ledger, store, validation
from celedger.ledger.store import columns_of
from celedger.trial import journal
from celedger.trial.engine import Building, EpochReported, Event, Started

# What lines that no celedger wrote make of the code that reads them.
_ODD = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class Intake:
    """The lines of an order that came in; `error` is what its node raised."""

    def __init__(self, order: Order, ledger: Ledger) -> None:
        self.order = order
        self.host = "a node"
        self.environments: dict[str, Environment] = {}  # by task name, of the node
        self.around: dict[str, str] = {}  # what else surrounds the tasks there
        self.error: BaseException | None = None
        self._ledger = ledger
        self._rest = b""  # a line of which more will come
        self._journal: tuple[Path, files.Lock | None] | None = None

    @property
    def record(self) -> TrialRecord | None:
        """Return the trial, if it has begun."""
        return self._ledger.trial(self.order.ulid)

    @property
    def is_whole(self) -> bool:
        """Return True if all that was asked has come: the end of a trial, or environments."""
        record = self.record
        if self.order.commit is None:
            return bool(self.environments)
        return record is not None and record.outcome is not None

    def take(self, content: bytes) -> Iterator[Event]:
        """Add what came to the ledger, in the caller's transaction, and yield the events of it."""
        if self.error is not None:
            return
        *lines, self._rest = (self._rest + content).split(b"\n")
        try:
            facts_of_lines = map(json.loads, lines)
            for kind, group in groupby(facts_of_lines, lambda facts: facts.get("write")):
                if kind == "append_epochs":  # one write for many: it costs as much as one of them
                    yield from self._add_epochs(list(group))
                    continue
                for facts in group:
                    yield from self._take_one(facts)
        except _ODD as error:
            self.error = CeledgerError(f"{self.host} sent what no celedger writes: {error}")

    def _add_epochs(self, lines: list[dict[str, Any]]) -> Iterator[Event]:
        kind = orders.WRITES["append_epochs"][1]
        reports = [r for facts in lines for r in store.rebuilt(kind, facts["arguments"][1])]
        self._check("append_epochs", [self.order.ulid, reports])
        order = self.order
        if self._journal is not None and reports and order.commit is not None:
            self._ledger.append_epochs(order.ulid, reports)
            epoch = reports[-1].epoch
            yield EpochReported(order.commit, order.tasks[0], order.seed, epoch)

    def _take_one(self, facts: dict[str, Any]) -> Iterator[Event]:
        order = self.order
        match facts:
            case {"write": write, "arguments": arguments}:
                self._repeat(write, arguments)
            case {"event": "Building"} if order.commit is not None:
                yield Building(order.commit, order.tasks[0])
            case {"event": "Started"} if order.commit is not None:
                yield Started(order.commit, order.tasks[0], order.seed)
            case {"host": host, "environments": environments, "surroundings": around}:
                self.host, self.around = host, around
                self.environments = store.rebuilt(dict[str, Environment], environments)
            case {"log": text}:
                self._write_log(text)
            case {"error": _}:
                self.error = raised(facts)

    def _repeat(self, write: str, arguments: list[object]) -> None:
        """Repeat a write of the node's ledger, of this order's trial alone."""
        values = [
            store.rebuilt(kind, argument)
            for kind, argument in zip(orders.WRITES[write], arguments, strict=True)
        ]
        self._check(write, values)
        if write == "record_environment":
            self._ledger.record_environment(values[0])
        elif write == "start_trial":
            if values[0].ulid == self.order.ulid:
                self._begin(values[0])
        elif values[0] == self.order.ulid and self._journal is not None:
            getattr(self._ledger, write)(*values)

    def _check(self, write: str, values: Sequence[Any]) -> None:
        """Raise ValueError for a fact that no celedger writes, before any of it is written."""
        rows: list[tuple[str, Mapping[str, Any]]] = []
        match write, values:
            case "record_environment", [environment]:
                rows = [("environments", columns_of(environment))]
            case "start_trial", [trial]:
                rows = [("trials", columns_of(trial))]
                commit, (task,) = self.order.commit, self.order.tasks
                is_ordered = commit is not None and (trial.commit, trial.recipe) == (
                    commit.sha, task.recipe
                )  # fmt: skip
                if not is_ordered or self._ledger.environment(trial.environment) is None:
                    raise ValueError("a trial that nobody asked for")
            case "append_epochs", [_, reports]:
                for r in reports:
                    rows.append(("fingerprints", {"epoch": r.epoch, "value": r.fingerprint or ""}))
                    rows += [("metrics", {"name": name}) for name in (*r.values, *r.steps)]
                    rows += [("summaries", {"value": value}) for value in r.values.values()]
                    rows += [("steps", {"first": part.first}) for part in r.steps.values()]
            case "finish_trial", [_, outcome, summaries]:
                rows = [("outcomes", columns_of(outcome) | {"marks": " ".join(outcome.marks)})]
                rows += [("metrics", {"name": name}) for name in summaries]
                rows += [("summaries", {"value": value}) for value in summaries.values()]
        for table, row in rows:
            if why := validation.mismatch(table, row):
                raise ValueError(f"a row of {table}: {why}")

    def _begin(self, trial: Trial) -> None:
        commit, (task,) = self.order.commit, self.order.tasks
        assert commit is not None
        self._ledger.record_commits([commit])
        self._ledger.record_task(task, is_whole=True)
        # The journal stays empty: its lock shows that the trial has somebody who follows it.
        journal.remove(self._ledger, journal.path(self._ledger, trial.ulid))  # of a dead head
        path, channel, journal_lock = journal.create(self._ledger, trial)
        os.close(channel)
        self._journal = path, journal_lock

    def _write_log(self, text: str) -> None:
        """Keep the end of the trial's log where its outcome names it. A full disk costs the log."""
        path = journal.log_path(self._ledger, self.order.ulid)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, text, "replace")

    def interrupt(self, now: float, why: str) -> None:
        """Record that a trial which has begun and not ended will not end."""
        record = self.record
        if record is not None and not self.is_whole:
            journal.take_in(self._ledger, record, now, why)

    def close(self) -> None:
        if self._journal is not None:
            path, journal_lock = self._journal
            if self.is_whole:
                journal.remove(self._ledger, path)
            if journal_lock is not None:
                journal_lock.close()
            self._journal = None


def raised(facts: dict[str, str]) -> BaseException:
    """Return the exception that ended a node's program."""
    if facts["error"] == "KeyboardInterrupt":  # of the node: it is shut down
        return LostNode("its node ended it")
    kinds = {**vars(errors), "OtherEnvironment": OtherEnvironment}
    kind = kinds.get(facts["error"], CeledgerError)
    if not (isinstance(kind, type) and issubclass(kind, CeledgerError)):
        kind = CeledgerError
    return kind(facts["cause"], facts["hint"])
