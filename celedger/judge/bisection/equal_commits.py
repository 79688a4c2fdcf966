"""Commits of a range that cannot differ, found before anything runs: by the footprints of stored
trials, held against the trees of the range. A class is one candidate, and trials anywhere in it,
or of any commit that agrees with it, count for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from celedger.base.errors import CannotJudge
from celedger.base.model import Commit, ReusableTrial, Task, TrialRecord
from celedger.repo import History
from celedger.stats.lineage import GOOD
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
