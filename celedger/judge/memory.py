"""Read the state, from a cache if nothing changed, and record what is reported.

The caches of states and of histories are in the repository's private folder and may be deleted at
any time. Reading verbs record nothing: they show what would be recorded."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from celedger.base import VERSION, files
from celedger.base.errors import CeledgerError
from celedger.base.model import Commit, Task
from celedger.judge.incident import MetricStanding, Standing, State
from celedger.judge.line import Line
from celedger.ledger import Ledger, store, ulid
from celedger.repo import Repository, tree_files


class HistoryCache:
    """Items by name. One that cannot be read is absent, one that cannot be written is lost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str, /) -> bytes | None:
        with suppress(OSError):
            return self._file(name).read_bytes()
        return None

    def __setitem__(self, name: str, item: bytes, /) -> None:
        with suppress(OSError):
            files.replace(self._file(name), item)

    def _file(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:32]


RULES = 41
"""Version of the rules by which the state is derived: a cached one of another version is stale."""
LOCK = "state.lock"  # held while a state is recorded, in the folder of the ledger
_STATES = "state"  # folder of the cache, in the repository's folder of state
_MOST = 16
"""Files that are kept: the states of HEAD and of a few branches, and what is settled there."""


def tip_of(repository: Repository, commit: Commit | None = None) -> str:
    """Return the commit (a hash) whose line a judgement is about: HEAD's, during a `git bisect`
    that of the commit where it began; or `commit` where that line does not have it."""
    start = tree_files.start_of(repository)
    head = repository.resolve(start or "HEAD").sha
    if commit is None or commit.sha == head:
        return head
    line = repository.log(head, limit=RECENT, first_parent=True)
    if any(each.sha == commit.sha for each in line):
        return head
    return commit.sha


RECENT = 2000
"""First parents of HEAD among which an older commit is looked for before it is judged on a line of
its own."""


def line_of(repository: Repository, ledger: Ledger, tip: str, *, every: bool = False) -> Line:
    """Return the line of a commit (a hash), with the places of what was measured off it."""
    line = Line.of(repository, tip, every=every)
    others = set(ledger.commits_with_trials()) - line.places.keys()
    return line.with_others(c for c in ledger.commits() if c.sha in others) if others else line


def read(
    repository: Repository, ledger: Ledger, tip: str | None = None, *, every: bool = False
) -> State:
    """Return the state of a line [default: HEAD's] as it is now."""
    tip = tip or tip_of(repository)
    path = _file(repository, ledger, tip, every=every)
    known = _kept(path)
    if known is not None:
        return known[0]
    from celedger.judge.derivation import derive  # numpy: not where the cache has the answer
    from celedger.judge.state import state_of

    line = line_of(repository, ledger, tip, every=every)
    state = state_of(derive(ledger, line, cache=cache_of(repository)))
    _keep(path, state, is_said=False)
    return state


def record(
    repository: Repository,
    ledger: Ledger,
    tip: str,
    *,
    job: str,
    now: float,
) -> State:
    """Bring the state of a line up to date: derive it, and record what was not said yet. Where
    nothing came since the last time, nothing is to say.

    Args:
        job: What asks: `run`, `check`, `bisect`, `merge`, or the commit of the worker's job.
        now: Seconds since the epoch.
    """
    # Two that derive at once, `check` and the worker, would give one incident two names.
    with files.hold_lock(ledger.private / LOCK):
        known = _kept(_file(repository, ledger, tip))
        if known is not None and known[1]:
            return known[0]
        from random import SystemRandom

        from celedger.judge.derivation import derive
        from celedger.judge.state import state_and_sizes
        from celedger.judge.told import new_rows

        line = line_of(repository, ledger, tip)
        derivation = derive(ledger, line, cache=cache_of(repository))
        state, sizes = state_and_sizes(derivation)
        # Nothing new is known of these.
        moved = {each.id for each in derivation.rebased()} | derivation.moved_mends.keys()
        rows = new_rows(
            [each for each in state.incidents if each.id not in moved],
            ledger.said_last(), sizes,
            revision=tip, job=job, now=now, name=lambda: ulid.new(now, SystemRandom()),
        )  # fmt: skip
        if rows:
            ledger.record_said(rows)
        # Rows that were recorded are facts: the state may have another name in the cache now.
        _keep(_file(repository, ledger, tip), state, is_said=True)
        return state


def is_settled(
    repository: Repository, ledger: Ledger, tip: str, commit: str, tasks: Sequence[Task]
) -> bool:
    """Return True if nothing came since it was noted that no more trials are wanted for some tasks
    at a commit of the line of `tip` (both full hashes)."""
    return _settled_file(repository, ledger, tip, commit, tasks).exists()


def note_settled(
    repository: Repository, ledger: Ledger, tip: str, commit: str, tasks: Sequence[Task]
) -> None:
    _write(_settled_file(repository, ledger, tip, commit, tasks), {})


def _settled_file(
    repository: Repository, ledger: Ledger, tip: str, commit: str, tasks: Sequence[Task]
) -> Path:
    return _file(repository, ledger, repr((tip, commit, *(task.recipe for task in tasks))))


def standings_at(
    repository: Repository,
    ledger: Ledger,
    state: State,
    commit: str,
    tasks: Sequence[Task],
    judged: Collection[tuple[str, str]],
) -> tuple[MetricStanding, ...]:
    """Return how the metrics of some tasks stand at a commit (a hash) of the line of a state.
    `judged`: task and metric that the suite declares now; telemetry too may be among them."""
    names = {(task.suite, task.name) for task in tasks}
    standings = state.standings
    if commit != state.tip:
        path = _file(repository, ledger, f"{state.tip} at {commit}")
        known = _kept(path)
        if known is None:
            from celedger.judge import standings as standing  # numpy, as above
            from celedger.judge.derivation import derive

            line = line_of(repository, ledger, state.tip)
            derivation = derive(ledger, line, cache=cache_of(repository))
            place = derivation.place(commit)
            standings = tuple(standing.at(derivation, place, state.incidents))
            _keep(path, state._replace(standings=standings), is_said=False)
        else:
            standings = known[0].standings
    own = [
        each._replace(declared=not each.metric or (each.task, each.metric) in judged)
        for each in standings
        if (each.suite, each.task) in names
    ]
    return tuple(_explained(ledger, commit, tasks, own))


def _explained(
    ledger: Ledger, commit: str, tasks: Sequence[Task], standings: Sequence[MetricStanding]
) -> Iterator[MetricStanding]:
    """Yield standings with the reason why a task was not measured, where its last trial has one."""
    known = {(each.suite, each.task) for each in standings}
    reasons: dict[tuple[str, str], str] = {}
    for task in tasks:
        trials = ledger.trials(commit=commit, suite=task.suite, task=task.name, recipe=task.recipe)
        ended = [r for r in trials if r.outcome is not None]
        if ended and not ended[-1].ok and ended[-1].outcome is not None:
            reasons[task.suite, task.name] = ended[-1].outcome.message
    for each in standings:
        reason = reasons.get((each.suite, each.task), "")
        is_missing = each.standing is Standing.MISSING
        yield each._replace(note=reason) if reason and is_missing else each
    for (suite, task_name), reason in reasons.items():
        if (suite, task_name) not in known:
            yield MetricStanding(suite, task_name, "", Standing.MISSING, True, note=reason)


def _file(repository: Repository, ledger: Ledger, asked: str, *, every: bool = False) -> Path:
    """Return the file of the cache for what is asked, a line's tip or what may be settled: its name
    is a hash of all that the answer is derived from."""
    cut = sorted(repository.shallow_boundary())  # a fetch makes the line longer
    text = f"{VERSION} {RULES} {ledger.path.resolve()} {ledger.facts()} {asked} {every} {cut}"
    name = hashlib.sha256(os.fsencode(text)).hexdigest()[:32]
    return repository.state_dir / _STATES / f"{name}.json"


def commits_of(repository: Repository, state: State) -> dict[str, Commit]:
    """Return by hash the commits that the incidents of a state name, as far as they are here."""
    named = {
        sha for i in state.incidents
        for sha in (*i.first_bad, i.likeliest, i.closed_at, i.seen_at) if sha
    }  # fmt: skip
    return {commit.sha: commit for commit in repository.known(named)}


def cache_of(repository: Repository) -> HistoryCache:
    """Return the cache of settled stretches."""
    return HistoryCache(repository.state_dir / "histories")


def _kept(path: Path) -> tuple[State, bool] | None:
    """Return a state of the cache, and whether all of it was said."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        kept = json.loads(path.read_bytes())
        return store.rebuilt(State, kept["state"]), bool(kept["said"])
    return None


def _keep(path: Path, state: State, *, is_said: bool) -> None:
    _write(path, {"said": is_said, "state": state})


def _write(path: Path, content: Mapping[str, object]) -> None:
    """Write a file of the cache, where that can be written, and remove the oldest."""
    with suppress(OSError, CeledgerError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, store.to_json(content).encode())
        kept = sorted(path.parent.glob("*.json"), key=lambda p: p.stat().st_mtime)
        for old in kept[:-_MOST]:
            old.unlink(missing_ok=True)
