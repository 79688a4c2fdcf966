"""Spare trainings of a range: find commits that cannot differ, and sign commits by their first
steps.

Before anything runs, footprints of stored trials are compared with the trees of the range. Commits
that cannot differ form a class: a class is one candidate, and any trial of it counts. A signature
is made where it tells more per second than a training. An installed package makes signatures (entry
point `celedger.signers`); this module does not know how."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from celedger.base import plugins
from celedger.base.errors import CannotJudge
from celedger.base.model import Commit, Kind, ReusableTrial, Task, TrialRecord
from celedger.judge.work import repeating
from celedger.ledger import Ledger
from celedger.repo import History
from celedger.stats import Floats
from celedger.stats.equal_bits import SignedRange, shows
from celedger.stats.lineage import GOOD, Lineage
from celedger.trial.runner import Bench

# Prior weight of a commit that is unlikely to be the first bad one, though no trial proves that it
# changes nothing. It touches nothing that any trial of the task was seen to read: then a commit
# since would have made the training read what it touches, and done no harm in doing so. Or it
# changes Python sources in nothing that a syntax tree shows: then the training would have to read
# comments, docstrings or lines. As many chances as one in fifty ordinary commits, so that a long
# row of documentation weighs as little as one of those.
UNLIKELY = 0.02


@dataclass(frozen=True, slots=True)
class Classes:
    """`place` maps each position to the one where its readings count: of its class the first, or
    the end it equals. `weights` are 0 for commits that cannot be the first bad one. `positions` are
    those of the range's commits, by hash; `agreeing` those of all commits that a stored trial
    proves something of, by ulid: of merged histories, several that no class joins."""

    place: tuple[int, ...]
    weights: tuple[float, ...]
    positions: dict[str, int]
    agreeing: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Return how many classes could have done it."""
        return sum(weight > 0 for weight in self.weights)

    def at(self, position: int) -> int:
        return position if position == GOOD else self.place[position]

    def position(self, record: TrialRecord) -> int:
        """Return where a trial counts: its commit, or the first one that agrees with it."""
        own = self.positions.get(record.trial.commit)
        return self.at(self.agreeing[record.trial.ulid][0] if own is None else own)

    def copies(self, record: TrialRecord) -> list[int]:
        """Return where else the result of a trial is known, without running it."""
        places = map(self.at, self.agreeing.get(record.trial.ulid, ()))
        return [place for place in dict.fromkeys(places) if place != self.position(record)]

    def stored(self, bench: Bench, task: Task) -> list[TrialRecord]:
        """Return the trials that the ledger already holds: of the range, and of commits elsewhere
        that cannot differ from one in it. What is derived is left to its evidence."""
        ledger, environment = bench.ledger, bench.environments[task.name].fingerprint
        trials = ledger.trials(
            commits=list(self.positions), recipe=task.recipe, environment=environment
        )
        here = {record.trial.ulid for record in trials}
        trials += filter(None, (ledger.trial(u) for u in self.agreeing if u not in here))
        ran = {
            (r.trial.ulid, at)
            for r in trials
            if not r.derived
            for at in (self.position(r), *self.copies(r))
        }
        return [r for r in trials if (r.derived, self.position(r)) not in ran]


def classify(bench: Bench, history: History, task: Task) -> Classes:
    """Return the classes of a range, as far as the ledger's trials of the task prove them.

    Raises CannotJudge where they prove that nothing in the range can have changed the task.
    """
    commits, good = history.commits, history.good
    positions = {c.sha: i for i, c in enumerate(commits)} | {good.sha: GOOD}
    outside = _outside(bench, history)
    wanted = {c.sha: c for c in (good, *outside.values(), *commits)}
    environment = bench.environments[task.name].fingerprint
    agreeing, keys = bench.reuse.compared(list(wanted.values()), task, environment)
    if not keys:
        return Classes(tuple(range(len(commits))), (1.0,) * len(commits), positions)
    met = {sha: {trial.ulid for trial in trials} for sha, trials in agreeing.items()}
    whole = {sha for sha, trials in agreeing.items() if any(trial.whole for trial in trials)}
    for record in _unproven(bench, task, environment, agreeing):
        met[record.trial.commit].add(record.trial.ulid)
    read = {sha: tuple(by_sha[sha] for by_sha in keys.values()) for sha in wanted}

    def same(one: str, other: str) -> bool:
        return one in whole and met[one] == met[other]

    above = {
        commit.sha: [commits[p] for p in history.parents[position]]
        or ([outside[position]] if position in outside else [])
        for position, commit in enumerate(commits)
    }
    alike = bench.reuse.alike(
        [(parent, commit) for commit in commits for parent in above[commit.sha]], keys
    )

    place: list[int] = []
    weights: list[float] = []
    for position, commit in enumerate(commits):
        inside = history.parents[position]
        parents = [parent.sha for parent in above[commit.sha]]
        at = position
        if len(inside) == 1 and same(commit.sha, parents[0]):
            at = place[inside[0]]
        elif not inside and same(commit.sha, good.sha):
            at = GOOD
        place.append(at)
        if at == GOOD or any(same(commit.sha, parent) for parent in parents):
            weights.append(0.0)
        elif any(
            read[commit.sha] == read[parent] or (parent, commit.sha) in alike for parent in parents
        ):
            weights.append(UNLIKELY)
        else:
            weights.append(1.0)
    if not any(weights) or same(commits[-1].sha, good.sha):
        raise CannotJudge(
            f"nothing that {task.name} reads differs between {good.sha[:10]} and "
            f"{commits[-1].sha[:10]}, so no commit of the range can have changed it",
            "choose other ends",
        )
    last = place[-1]
    place = [len(commits) - 1 if at == last else at for at in place]
    return Classes(tuple(place), tuple(weights), positions, _positions(agreeing, positions))


def _positions(
    agreeing: Mapping[str, Sequence[ReusableTrial]], positions: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return the positions of the commits that agree with each trial."""
    found: dict[str, tuple[int, ...]] = {}
    for sha, position in sorted(positions.items(), key=lambda item: item[1]):
        for trial in agreeing[sha]:
            found[trial.ulid] = (*found.get(trial.ulid, ()), position)
    return found


def _unproven(
    bench: Bench, task: Task, environment: str, agreeing: Mapping[str, Sequence[ReusableTrial]]
) -> Iterator[TrialRecord]:
    """Trials of these commits of which nobody can say what would have ended as they did: their
    commits are like no other."""
    proven = {trial.ulid for trials in agreeing.values() for trial in trials}
    for record in bench.ledger.trials(
        commits=agreeing, recipe=task.recipe, environment=environment
    ):
        if record.is_final and not record.derived and record.trial.ulid not in proven:
            yield record


def _outside(bench: Bench, history: History) -> dict[int, Commit]:
    """Return the first parents of the candidates that have none among the candidates."""
    repository = bench.repository
    parents = {}
    for position, commit in enumerate(history.commits):
        if not history.parents[position] and commit.parents:
            sha = commit.parents[0]
            parents[position] = history.good if sha == history.good.sha else repository.commit(sha)
    return parents


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
    names = bench.ledger.imported(suite=task.suite, task=task.name)
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
