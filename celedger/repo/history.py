"""Commits as git tells them, and the candidates between a good and a bad one as a graph.

Parses what `git log` prints; asks nothing itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from celedger.model import Commit
from celedger.text import plain

# One record a commit, ended by NUL (`-z`), its fields by newlines: git lets neither a NUL into a
# commit nor a newline into a name, and %s has none.
LOG = (
    "log", "-z", "--format=tformat:%H%n%T%n%P%n%at%n%ct%n%an%n%s", "--encoding=UTF-8",
    "--no-show-signature", "--no-notes", "--no-decorate", "--no-color", "--no-patch",
)  # fmt: skip


def parse(out: bytes) -> list[Commit]:
    """The commits in the output of `git log` with the options `LOG`."""
    commits = []
    for record in out.split(b"\0")[:-1]:
        sha, tree, parents, written, committed, author, subject = record.decode(
            errors="replace"
        ).split("\n", 6)
        commits.append(
            Commit(
                sha=sha,
                tree=tree,
                parents=tuple(parents.split()),
                author=plain(author),
                author_time=int(written or 0),
                commit_time=int(committed or 0),
                subject=plain(subject),
            )
        )
    return commits


@dataclass(frozen=True, slots=True)
class History:
    """The candidates for the first bad commit, parents before children; the good end is not
    among them, the bad end is the last. `parents[i]` are indices into `commits`, all smaller
    than i; a parent outside the candidates (good, by assumption) is left out."""

    commits: tuple[Commit, ...]
    parents: tuple[tuple[int, ...], ...]


def history(commits: Iterable[Commit], *, first_parent: bool = False) -> History:
    """The graph over commits given parents first. With `first_parent`, only that parent counts."""
    commits = tuple(commits)
    index = {commit.sha: i for i, commit in enumerate(commits)}
    return History(
        commits,
        tuple(
            tuple(
                index[parent]
                for parent in (commit.parents[:1] if first_parent else commit.parents)
                if parent in index
            )
            for commit in commits
        ),
    )


class Ancestry:
    """The commits of a history, for questions about who descends from whom.

    Parents that are not among the commits are ignored.
    """

    def __init__(self, commits: Sequence[Commit]) -> None:
        self._commits = {commit.sha: commit for commit in commits}
        self._place = {sha: i for i, sha in enumerate(self._commits)}
        self._ranks = self._ranked()
        self._between: dict[tuple[str, str], tuple[Commit, ...]] = {}

    def descends(self, descendant: str, ancestor: str) -> bool:
        """Return True if a commit (a hash) is reachable from another."""
        return not self.between(descendant, ancestor)

    def between(self, old: str, new: str) -> tuple[Commit, ...]:
        """Return the commits reachable from `new` and not from `old`, in the history's order."""
        key = (old, new)
        if self._commits[new].parents == (old,):
            return (self._commits[new],)
        if key not in self._between:
            shas = sorted(self._walk(old, new), key=self._place.__getitem__)
            self._between[key] = tuple(self._commits[sha] for sha in shas)
        return self._between[key]

    def _walk(self, old: str, new: str) -> list[str]:
        """Visit children before their parents, and stop when only ancestors of `old` are left."""
        hidden, queued = {old}, {old, new}
        heap = [(-self._ranks[sha], sha) for sha in queued]
        heapq.heapify(heap)
        open_commits, reached = len(queued - hidden), []
        while open_commits:
            _, sha = heapq.heappop(heap)
            if sha not in hidden:
                open_commits -= 1
                reached.append(sha)
            for parent in self._known_parents(sha):
                if parent not in queued:
                    queued.add(parent)
                    heapq.heappush(heap, (-self._ranks[parent], parent))
                    open_commits += 1
                if sha in hidden and parent not in hidden:
                    hidden.add(parent)
                    open_commits -= 1
        return reached

    def _known_parents(self, sha: str) -> list[str]:
        return [parent for parent in self._commits[sha].parents if parent in self._commits]

    def _ranked(self) -> dict[str, int]:
        """Return a rank for each commit that is larger than those of its parents."""
        ranks: dict[str, int] = {}
        pending = list(self._commits)[::-1]
        while pending:
            parents = self._known_parents(pending[-1])
            waiting = [parent for parent in parents if parent not in ranks]
            pending += waiting
            if not waiting:
                sha = pending.pop()
                ranks[sha] = 1 + max((ranks[parent] for parent in parents), default=0)
        return ranks
