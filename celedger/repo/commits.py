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
