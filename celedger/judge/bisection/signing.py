"""Signatures of the commits of a bisect, made where one tells more a second than a training. What
signs is not here: an installed package has it (entry points `celedger.signers`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from celedger.base import plugins
from celedger.base.errors import CannotJudge
from celedger.base.model import Commit, Kind, Task
from celedger.judge.work import repeating
from celedger.ledger import Ledger
from celedger.repo import History
from celedger.stats.arrays import Floats
from celedger.stats.lineage import GOOD, Lineage
from celedger.stats.signed_prior import SignedRange, shows
from celedger.trial.runner import Bench
from celedger.trial.workplace import imported

_FIRST_PRICE = 5.0  # seconds of a signature, before one was made


class Signer(Protocol):
    """Signs the commits of one search of a task, so that they can be compared."""

    def stored(self, commit: Commit) -> dict[str, str]:
        """Return the digests that the ledger holds by tree, which compare with this commit's."""

    def sign(self, commit: Commit) -> str:
        """Return the digest of what the first steps compute at a commit, "" where it cannot be
        signed. Raises CannotJudge where no commit of the search can."""


def signer_of(bench: Bench, task: Task) -> Signer | None:
    """Return what signs the task; None where no package can, or where neither a trial nor a
    signature of the task shows that it uses torch."""
    signers = plugins.installed(plugins.SIGNERS)
    if not signers:
        return None
    names = imported(bench.ledger, task, bench.environments[task.name].fingerprint) or ()
    if "torch" not in names and not bench.ledger.signatures(suite=task.suite, task=task.name):
        return None
    repository = bench.repository
    here = () if bench.setup.gate.attended else (repository.root, repository.worktree)
    for plugin in signers.values():
        if not plugin.lies_in(*here):
            signer: Signer = plugin.load()(bench, task)
            return signer
    return None


class Signing:
    """The signatures of one range, and what they say of its candidates."""

    def __init__(
        self,
        signer: Signer,
        ledger: Ledger,
        history: History,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.signed = 0  # by this search
        self._tell = tell
        self.seconds = 0.0
        self._signer: Signer | None = signer
        self._history, self._lineage = history, Lineage(history.parents)
        self._shows = shows(*shown(ledger))
        stored = signer.stored(history.bad)
        self._closed: set[int] = set()
        self._digests = {
            position: stored[commit.tree]
            for position, commit in enumerate((history.good, *history.commits), GOOD)
            if commit.tree in stored
        }
        self._range: SignedRange | None = None

    def prior(self, weights: Sequence[float]) -> Floats:
        """(n,) what the signatures say of each candidate, beside its weight by footprints."""
        self._range = SignedRange(
            self._lineage, dict(self._digests), np.asarray(weights, dtype=np.float64), self._shows,
            frozenset(self._closed),
        )  # fmt: skip
        return self._range.prior() if self._digests else np.ones(len(self._lineage))

    def sign(self, probability: Floats, rate: float, build: float) -> bool:
        """Sign a commit if that tells more bits a second than `rate`. Return True if one was
        signed, or cannot be. `build`: seconds that a commit takes before it can be signed."""
        best = self._range.next(probability) if self._signer and self._range else None
        if best is None or best[1] / (self._price + build) <= rate:
            return False
        if not self.signed:
            self._tell("signing commits: what their first steps compute tells which to train")
        return self._sign(best[0])

    def sign_named(self, positions: tuple[int, ...]) -> None:
        """Sign a named commit and its parent: later searches learn from them how often a first bad
        commit shows."""
        for position in positions if self.signed else ():
            if position not in self._digests and position not in self._closed:
                self._sign(position)

    @property
    def _price(self) -> float:
        return self.seconds / self.signed if self.signed else _FIRST_PRICE

    def _sign(self, position: int) -> bool:
        if self._signer is None:
            return False
        began = time.monotonic()
        try:
            digest = self._signer.sign(self._history.at(position))
        except CannotJudge:
            self._signer = None  # and what was signed says nothing, either
            self._digests.clear()
            return True
        self.signed += 1
        self.seconds += time.monotonic() - began
        if digest:
            self._digests[position] = digest
        else:
            self._closed.add(position)
        return True


def shown(ledger: Ledger) -> tuple[int, int]:
    """Return how many first bad commits that were found computed other first steps than their
    parents, and how many the same: of all tasks."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in repeating(ledger.signatures()):
        rows.setdefault((row.suite, row.task, row.commit), {})[row.key] = row.numerics
    judged = {m.name for m in ledger.metrics() if m.kind in (Kind.QUALITY, Kind.COUNT)}
    pairs = {
        (bisect.suite, bisect.task, *bisect.report.get("compared", ()))  # type: ignore[misc]
        for bisect in (ledger.bisects() if rows else ())
        if bisect.status == "found" and bisect.metric in judged
    }
    changed = []
    for suite, task, *commits in pairs:
        before, after = (rows.get((suite, task, sha), {}) for sha in commits or ("", ""))
        if common := sorted(before.keys() & after.keys()):
            changed.append(before[common[0]] != after[common[0]])
    return changed.count(True), changed.count(False)
