"""When a trial need not run: another one, whose closure the commit's tree agrees with, has shown
how it ends.

A closure is what a trial named of its commit's tree, and what lay there. A training that finds
the same wherever it looks does the same, step by step; so where all agrees, it looks nowhere
else. In doubt a closure is unknown, and an unknown one agrees with nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from celedger.errors import RepositoryError
from celedger.ledger import Ledger
from celedger.model import Closure, Commit, Footprint, Kind, Task, TrialRecord
from celedger.repo import Repository, filters
from celedger.repo.checkouts import Checkout
from celedger.repo.closures import Contents, Objects
from celedger.system.gate import Permit
from celedger.trial import journal, outside, protocol

# What is stored before a content: which rules its footprint was recorded by. Raised whenever a
# footprint may lack what it should name; closures of other rules agree with nothing.
RULES = "9:"


@dataclass
class Observed:
    """What the commands of one trial named, together, by absolute paths. `unknown` says why that is
    not known."""

    opened: set[bytes] = field(default_factory=set)
    looked: set[bytes] = field(default_factory=set)
    unknown: str = ""
    began: bool = False
    since: float = field(default_factory=time.time)

    def take_in(self, record: Path) -> None:
        """Add what the supervisor wrote of one command, and remove its file."""
        from celedger.system import reads  # what it imports, a parent that starts nothing lacks

        self.began = True
        try:
            parsed = reads.parse(record.read_bytes())
            record.unlink()
        except OSError:
            parsed = None
        unknown, opened, looked = parsed or ("its record was lost", set(), set())
        self.unknown = self.unknown or unknown
        self.opened |= opened
        self.looked |= looked

    def split(self, tree: Path) -> tuple[set[bytes], Observed]:
        """Return the paths inside of the tree, relative to it, and all others."""
        top = os.fsencode(os.path.realpath(tree))
        inside = {p[len(top) + 1 :] for p in self.opened | self.looked if _lies_in(p, top)}
        unknown = self.unknown
        if any(path.startswith(b".git/") for path in inside):
            unknown = unknown or "it reads .git, which differs from commit to commit"
        return inside - {b".git"}, Observed(
            {p for p in self.opened if not _lies_in(p, top)},
            {p for p in self.looked if not _lies_in(p, top)},
            unknown, self.began, self.since,
        )  # fmt: skip


def _lies_in(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder + b"/")


class Closures:
    """The closures of one ledger, held against the trees of one repository. `child` is the folder
    of celedger's own that trainings import. `variables` tells the user's environment variables from
    others, `installed` the virtual environment in which a task runs at a commit (by hash), "" for
    none."""

    def __init__(
        self,
        ledger: Ledger,
        repository: Repository,
        child: Path,
        variables: str,
        installed: Callable[[str, Task], str],
    ) -> None:
        self._ledger, self._repository, self._installed = ledger, repository, installed
        self._child, self._variables = child, variables
        self.beside = (*outside.folders(repository), journal.own_folder(ledger))
        self._objects = Objects(repository)
        self._contents: dict[Footprint, Contents] = {}
        self._footprints: dict[int, Footprint] = {}
        self._filters: tuple[str, frozenset[str]] = ("", frozenset())  # as configured, for a tree

    def keep(
        self,
        commit: Commit,
        task: Task,
        ulid: str,
        observed: Observed,
        checkout: Checkout,
        python: str,
        permit: Permit,
    ) -> str:
        """Store the closure of a trial that just ended in a checkout, with an interpreter (and a
        permit to ask it). Returns the file that it took from the user's work tree instead, "" for
        none."""
        file = ""
        paths, beside = observed.split(checkout.path)
        unknown = beside.unknown
        if task.build and not (task.inputs and self._repository.matching(commit.sha, task.inputs)):
            unknown = unknown or "its build declares no inputs"
        try:
            if beside.opened or beside.looked:
                found = outside.judge(
                    self._repository, self.beside, beside.opened, beside.looked,
                    self._objects, commit.tree, self._kept(ulid), python, permit, observed.since,
                )  # fmt: skip
                file, unknown = found.file, unknown or found.unknown
                paths |= found.paths
            if not unknown:
                unknown = self._filtered(commit, task, paths)
            if not unknown:
                inputs = task.inputs if task.build else ()
                footprint = Footprint(tuple(sorted(paths)), inputs)
                content = self._of(footprint, [commit], task)[commit.sha]
                if checkout.manner != self._manner:
                    unknown = "how git writes files was changed meanwhile"
        except (RepositoryError, OSError, RuntimeError) as error:  # no room, no home
            unknown = unknown or str(error) or type(error).__name__
        if unknown:
            self._ledger.record_unknown_closure(ulid, unknown)
        else:
            self._ledger.record_closure(ulid, footprint, content)
        return file

    def _kept(self, ulid: str) -> outside.Kept:
        ledger = self._ledger
        places = (journal.out_path, journal.log_path, journal.path)
        own = (*(place(ledger, ulid) for place in places), self._child)
        return outside.Kept(journal.own_folder(ledger), own)

    def _filtered(self, commit: Commit, task: Task, paths: set[bytes]) -> str:
        """Why what git's filters wrote is not known, "" where it is: of Git LFS's, by the one file
        of the tree that it reads, which is added to the paths."""
        inputs = self._repository.matching(commit.sha, task.inputs if task.build else ())
        named = {*paths, *map(os.fsencode, inputs)}
        if self._filters[0] != commit.tree:  # each tree is written by the configuration of then
            self._filters = (commit.tree, filters.configured(self._repository))
        names = filters.applied(
            self._repository, self._objects, commit.tree, named, self._filters[1], self._attributes
        )
        if filters.LFS in names:
            paths.add(filters.LFS_CONFIG.encode())
        others = sorted(names - {filters.LFS})
        return f"its files pass through the filter {others[0]}" if others else ""

    @cached_property
    def _manner(self) -> str:
        return filters.manner(self._repository)

    @cached_property
    def _attributes(self) -> list[Path]:
        return self._repository.attribute_files()

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
        known: dict[int, list[Closure]] = {}
        for closure in self._ledger.closures(
            recipe=task.recipe, environment=environment, seed=seed
        ):
            if closure.content.startswith(RULES):
                known.setdefault(closure.footprint, []).append(closure)
        lying = []
        for number, closures in known.items():
            try:
                contents = self._of(self._footprint(number), commits, task)
            except RepositoryError:
                continue  # a clone that lacks objects: nothing is proven
            by_content: dict[str, list[Closure]] = {}
            for closure in closures:
                by_content.setdefault(closure.content, []).append(closure)
            lying.append(contents)
            for sha, content in contents.items():
                found[sha] += by_content.get(content, ())
        return found, lying

    def _footprint(self, number: int) -> Footprint:
        if number not in self._footprints:
            self._footprints[number] = self._ledger.footprint(number)
        return self._footprints[number]

    def evidence(
        self, commit: Commit, task: Task, environment: str, seed: int, held: Sequence[TrialRecord]
    ) -> Closure | None:
        """The closure of a trial that shows how this one would end, and that none of those `held`
        stands for already. What failed may end well today: data that was not there, a package."""
        used = {r.derived or r.trial.ulid for r in held}
        for agreeing in self.agreeing([commit], task, environment, seed)[commit.sha]:
            fit = agreeing.whole and not agreeing.failed and agreeing.ulid not in used
            if fit and self._tells(task, agreeing.ulid):
                return agreeing
        return None

    def _tells(self, task: Task, ulid: str) -> bool:
        """Whether a trial's summaries are what the task asks for by now."""
        record = self._ledger.trial(ulid)
        found = protocol.summaries(task.metrics, self._ledger.series(ulid))
        return (
            record is not None
            and not protocol.missing(task, found)
            and all(repr(record.summaries.get(name)) == repr(v) for name, v in found.items())
        )

    def content(self, commit: Commit, task: Task, number: int) -> str:
        """What a commit has at a footprint (by its number)."""
        return self._of(self._footprint(number), [commit], task)[commit.sha]

    def _of(self, footprint: Footprint, commits: Sequence[Commit], task: Task) -> Mapping[str, str]:
        """What each commit (by hash) has there. What does not lie in a tree comes first: one blob
        is different files where git is told to write it otherwise, and an environment's fingerprint
        has neither the user's variables nor what is in packages but their versions."""
        if footprint not in self._contents:
            self._contents[footprint] = Contents(self._objects, footprint)
        by_tree = self._contents[footprint].of(commit.tree for commit in commits)
        beside = {commit.sha: self._installed(commit.sha, task) for commit in commits}
        head = f"{RULES}{self._manner}:{self._variables}"
        return {
            commit.sha: f"{head}:{beside[commit.sha]}:{by_tree[commit.tree]}" for commit in commits
        }


def measured(task: Task) -> list[str]:
    """The metrics of which a derived trial has no value: it would take as long and need as much
    only on average."""
    telemetry = {m.name for m in protocol.TELEMETRY}
    clocked = (Kind.SPEED, Kind.MEMORY)
    return [m.name for m in task.metrics if m.kind in clocked or m.name in telemetry]
