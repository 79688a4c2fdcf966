"""When a trial need not run: another one, whose closure the commit's tree agrees with, has shown
how it ends.

A closure is what a trial named of its commit's tree, and what lay there. A training that finds
the same wherever it looks does the same, step by step; so where all agrees, it looks nowhere
else. In doubt a closure is unknown, and an unknown one agrees with nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from celedger.errors import RepositoryError
from celedger.ledger import Ledger
from celedger.model import Closure, Commit, Footprint, Kind, Task, TrialRecord
from celedger.repo import Repository
from celedger.repo.closures import Contents, Objects
from celedger.trial import protocol


@dataclass
class Observed:
    """What the commands of one trial named, together. `unknown` says why that is not known."""

    paths: set[bytes] = field(default_factory=set)
    unknown: str = ""
    began: bool = False

    def take_in(self, record: Path) -> None:
        """Add what the supervisor wrote of one command, and remove its file."""
        self.began = True
        try:
            first, _, rest = record.read_bytes().partition(b"\n")
            record.unlink()
        except OSError:
            first, rest = b"its record was lost", b""
        self.unknown = self.unknown or os.fsdecode(first)
        # Nothing between two separators is the tree itself; a trial that names nothing at all
        # has named its current folder to start in.
        self.paths.update(rest.split(b"\0"))


class Closures:
    """The closures of one ledger, held against the trees of one repository."""

    def __init__(self, ledger: Ledger, repository: Repository) -> None:
        self._ledger, self._repository = ledger, repository
        self._objects = Objects(repository)
        self._contents: dict[Footprint, Contents] = {}
        self._footprints: dict[int, Footprint] = {}

    def keep(self, commit: Commit, task: Task, ulid: str, observed: Observed) -> None:
        """Store the closure of a trial that just ended."""
        unknown = observed.unknown
        if task.build and not (task.inputs and self._repository.matching(commit.sha, task.inputs)):
            unknown = unknown or "its build declares no inputs"
        if not unknown:
            footprint = Footprint(
                tuple(sorted(observed.paths)), inputs=task.inputs if task.build else ()
            )
            try:
                content = self._of(footprint, [commit])[commit.sha]
            except RepositoryError as error:
                unknown = str(error)
            else:
                self._ledger.record_closure(ulid, footprint, content)
                return
        self._ledger.record_unknown_closure(ulid, unknown)

    def agreeing(
        self, commits: Sequence[Commit], task: Task, environment: str, seed: int | None = None
    ) -> dict[str, list[Closure]]:
        """For each commit (by hash) the closures that its tree agrees with: of trials of this
        task and environment, at whatever commit they ran."""
        return self.compared(commits, task, environment, seed)[0]

    def compared(
        self, commits: Sequence[Commit], task: Task, environment: str, seed: int | None = None
    ) -> tuple[dict[str, list[Closure]], list[Mapping[str, str]]]:
        """`agreeing`, and for each footprint of these trials what each commit has there."""
        found: dict[str, list[Closure]] = {commit.sha: [] for commit in commits}
        known: dict[int, dict[str, list[Closure]]] = {}
        for closure in self._ledger.closures(
            recipe=task.recipe, environment=environment, seed=seed
        ):
            by_content = known.setdefault(closure.footprint, {})
            by_content.setdefault(closure.content, []).append(closure)
        lying = []
        for number, by_content in known.items():
            if number not in self._footprints:
                self._footprints[number] = self._ledger.footprint(number)
            try:
                contents = self._of(self._footprints[number], commits)
            except RepositoryError:
                continue  # a clone that lacks objects: nothing is proven
            lying.append(contents)
            for sha, content in contents.items():
                found[sha] += by_content.get(content, ())
        return found, lying

    def evidence(
        self, commit: Commit, task: Task, environment: str, seed: int, held: Sequence[TrialRecord]
    ) -> str | None:
        """The ulid of a trial that shows how this one would end, and that none of those `held`
        stands for already."""
        used = {r.derived or r.trial.ulid for r in held}
        agreeing = self.agreeing([commit], task, environment, seed)[commit.sha]
        return next((c.ulid for c in agreeing if c.whole and c.ulid not in used), None)

    def _of(self, footprint: Footprint, commits: Sequence[Commit]) -> Mapping[str, str]:
        if footprint not in self._contents:
            self._contents[footprint] = Contents(self._objects, footprint)
        by_tree = self._contents[footprint].of(commit.tree for commit in commits)
        return {commit.sha: by_tree[commit.tree] for commit in commits}


def measured(task: Task) -> list[str]:
    """The metrics of which a derived trial has no value: it would take as long and need as much
    only on average."""
    telemetry = {m.name for m in protocol.TELEMETRY}
    clocked = (Kind.SPEED, Kind.MEMORY)
    return [m.name for m in task.metrics if m.kind in clocked or m.name in telemetry]
