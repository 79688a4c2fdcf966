"""Commits as git tells them, and the candidates between a good and a bad one as a graph.

Parses what `git log` prints; asks nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from celedger.base.model import Commit
from celedger.base.text import plain

# One record a commit, ended by NUL (`-z`), its fields by newlines: git lets neither a NUL into a
# commit nor a newline into a name, and %s has none.
LOG = (
    "log", "-z", "--format=tformat:%H%n%T%n%P%n%at%n%ct%n%an%n%s", "--encoding=UTF-8",
    "--no-show-signature", "--no-notes", "--no-decorate", "--no-color", "--no-patch",
)  # fmt: skip


def parse(out: bytes) -> list[Commit]:
    """Return the commits in the output of `git log` with the options `LOG`."""
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
    """Return the graph over commits given parents first. With `first_parent`, only that parent
    counts."""
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


def main_line(commits: Sequence[Commit]) -> list[Commit]:
    """Return the last commit and its first ancestors, of commits given parents first."""
    by_sha = {commit.sha: commit for commit in commits}
    line, sha = [], commits[-1].sha
    while sha in by_sha:
        line.append(by_sha[sha])
        sha = next(iter(by_sha[sha].parents), "")
    return line[::-1]


class Ancestry:
    """The commits of a history, for questions about who descends from whom.

    Parents that are not among the commits are ignored.
    """

    def __init__(self, commits: Sequence[Commit]) -> None:
        self._commits = {commit.sha: commit for commit in commits}
        self._between: dict[tuple[str, str], tuple[Commit, ...]] = {}

    def descends(self, descendant: str, ancestor: str) -> bool:
        """Return True if a commit (a hash) is reachable from another."""
        return not self.between(descendant, ancestor)

    def between(self, old: str, new: str) -> tuple[Commit, ...]:
        """Return the commits reachable from `new` and not from `old`, in the history's order."""
        if self._commits[new].parents == (old,):
            return (self._commits[new],)
        if (old, new) not in self._between:
            reached = self._reached(new, self._reached(old, set()))
            self._between[old, new] = tuple(c for c in self._commits.values() if c.sha in reached)
        return self._between[old, new]

    def _reached(self, sha: str, hidden: set[str]) -> set[str]:
        """Return the commits reachable from one, without passing those that are hidden."""
        reached: set[str] = set()
        pending = [sha]
        while pending:
            sha = pending.pop()
            if sha in self._commits and sha not in hidden and sha not in reached:
                reached.add(sha)
                pending += self._commits[sha].parents
        return reached
