"""The line of commits that a judgement is about, and the place on it of each measured commit.

Lives here: the first parents of a revision, oldest first, and the places of commits that left the
line or never were on it. It must not know of trials or numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from celedger.base.model import Commit
from celedger.repo import Repository
from celedger.repo.tree_files import Differences

LONGEST = 100_000
"""Commits of a history that are read. A longer one begins there, as a shallow clone does."""
_SAMPLE = 40
"""The newest commits, of which is counted how often they overlap: a share to within .03."""
_AT_ONCE = 256
"""Neighbouring commits of which git is asked at once what they change."""
_PRIOR = (1.6, 20.0)
"""Pairs that overlap, and pairs, with which that share begins: .08, as simulated."""
_REVERT = re.compile(r'^Revert "(?P<subject>.*)"(?: \(#\d+\))?$')  # as GitHub squashes one
_READ, _MOST_REVERTS = 2_000, 10
"""The newest places whose messages are read for the hash of what they revert, and how many of these
are looked up: each one of a merged branch takes git some 20 processes."""


@dataclass(frozen=True, eq=False)
class Line:
    """Commits in an order, oldest first. A place is an index into them.

    Attributes:
        aliases: Places of commits that are not on the line, by hash: the line has their tree.
        is_whole: False where the history before the line's first commit is not known: the clone
            is shallow, or the range begins there.
    """

    repository: Repository = field(repr=False)
    commits: tuple[Commit, ...]
    aliases: Mapping[str, int]
    is_whole: bool

    @classmethod
    def of(
        cls,
        repository: Repository,
        revision: str,
        *,
        every: bool = False,
    ) -> Line:
        """Return the line of a revision: with `every` of all ancestors, a merged branch after the
        other, and not of first parents alone."""
        log = repository.log(revision, limit=LONGEST, first_parent=not every, by_branch=every)
        commits = tuple(reversed(log))
        is_whole = len(commits) < LONGEST and not repository.shallow_boundary()
        return cls(repository, commits, {}, is_whole)

    def with_others(self, measured: Iterable[Commit]) -> Line:
        """Return the line with measured commits off it, which count where it has their tree."""
        return replace(self, aliases=_aliases(self.commits, measured))

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Return the place of each commit that has one, by its hash."""
        return {**self.aliases, **{c.sha: place for place, c in enumerate(self.commits)}}

    def holding(self, sha: str) -> int | None:
        """Return the place of a commit, or of the first commit of the line that has it among its
        ancestors: the merge that brought it. None where there is none."""
        if sha in self.places:
            return self.places[sha]
        if sha not in self._merged:
            if not self.repository.has_any([sha]):
                self._merged[sha] = None  # another clone's, or removed since
                return None
            low, high = 0, len(self.commits)  # the answer lies in low..high; high: nowhere
            while low < high:
                middle = (low + high) // 2
                if self.repository.is_ancestor(sha, self.commits[middle].sha):
                    high = middle
                else:
                    low = middle + 1
            self._merged[sha] = low if low < len(self.commits) else None
        return self._merged[sha]

    def place(self, sha: str) -> int:
        """Return the place of a commit, of one of a merged branch that of the merge; else -1."""
        place = self.holding(sha) if sha else None
        return -1 if place is None else place

    def among(self, first: int, last: int) -> tuple[str, ...]:
        """Return the commits (hashes) of some places, each merge after those that it brought."""
        shas: list[str] = []
        for commit in self.commits[max(0, first) : last + 1]:
            if len(commit.parents) > 1:
                if commit.sha not in self._brought:
                    brought = self.repository.commits(f"{commit.parents[0]}..{commit.sha}")
                    self._brought[commit.sha] = [each.sha for each in brought[:-1]]
                shas += self._brought[commit.sha]
            shas.append(commit.sha)
        return tuple(shas)

    def remade(self, sha: str) -> int | None:
        """Return the place of the commit that makes the same change as one that is not on the line,
        or of the merge that brought it; None where there is none."""
        equal = self.repository.equal_patches(sha, self.tip.sha)
        return next((p for other in equal if (p := self.holding(other)) is not None), None)

    def is_another_change(self, sha: str) -> bool:
        """Return True if the line has the tree of a commit that is not its own, but got it from
        another one than the commit did: by a squashed branch, say."""
        place = self.aliases.get(sha)
        if place is None or sha in self.commits[place].parents:
            return False
        if not self.repository.has_any([sha]):
            return False
        parent = self.parent(sha)
        tree = self.repository.commit(parent).tree if parent else ""
        return tree != (self.commits[place - 1].tree if place else "")

    def has_lost(self, sha: str) -> bool:
        """Return True if neither the line nor any branch has a commit."""
        return self.holding(sha) is None and not self.repository.is_on_a_branch(sha)

    def parent(self, sha: str) -> str:
        """Return the first parent of a commit, "" where it has none."""
        place = self.places.get(sha)
        commit = self.commits[place] if place is not None else None
        if commit is None or commit.sha != sha:  # one of a merged branch that has the merge's place
            commit = self.repository.commit(sha)
        return commit.parents[0] if commit.parents else ""

    @property
    def tip(self) -> Commit:
        return self.commits[-1]

    def names(self, place: int) -> int | None:
        """Return the place of the commit that a commit says it reverts, -1 for a revert of
        something else, None for a commit that is no revert.

        `git revert` writes the hash; both commits may be of merged branches. Without it the newest
        commit before of the subject that it quotes is meant.
        """
        if place in self.reverts:
            return self.reverts[place]
        match = _REVERT.match(self.commits[place].subject)
        if match is None:
            return None
        subject = match["subject"]
        before = range(place - 1, -1, -1)
        return next((p for p in before if self.commits[p].subject == subject), -1)

    def touches(self, place: int, other: int) -> bool:
        """Return True if two commits change a file in common, each against its first parent."""
        return not self._files(place).keys().isdisjoint(self._files(other).keys())

    def inverses(self, culprits: Iterable[int]) -> dict[int, int]:
        """Return the commits that take back, file by file, all that one of the culprits (places)
        changed, each with the place of the newest such one. Of the newest commits alone."""
        newest = range(max(1, len(self.commits) - _AT_ONCE), len(self.commits))
        changed = {
            frozenset(files.items()): place
            for place in sorted(p for p in culprits if p in newest)
            if (files := self._files(place))
        }
        taken_back = {
            place: changed.get(
                frozenset((path, (new, old)) for path, (old, new) in self._files(place).items())
            )
            for place in newest if changed
        }  # fmt: skip
        return {p: c for p, c in taken_back.items() if c is not None and c < p}

    def foreign(self) -> float:
        """Return the share of pairs of the newest commits that change a file in common: how often
        commits overlap that have nothing to do with each other."""
        newest = range(max(1, len(self.commits) - _SAMPLE), len(self.commits))
        pairs = [(a, b) for a in newest for b in newest if a < b - 1]
        overlaps = sum(self.touches(b, a) for a, b in pairs)
        return (overlaps + _PRIOR[0]) / (len(pairs) + _PRIOR[1])

    def _files(self, place: int) -> Mapping[bytes, tuple[bytes, bytes]]:
        """Return the files that a commit changes, with their contents (hashes) before and after."""
        if place not in self._changed:
            begin = place // _AT_ONCE * _AT_ONCE
            around = range(max(1, begin), min(len(self.commits), begin + _AT_ONCE))
            pairs = {p: (self.commits[p - 1].tree, self.commits[p].tree) for p in around}
            found = self._differences.between(pairs.values(), ["**"])
            for p, pair in pairs.items():
                self._changed[p] = {c.path: (c.old.sha, c.new.sha) for c in found[pair]}
        return self._changed.get(place, {})

    @cached_property
    def _differences(self) -> Differences:
        return Differences(self.repository)

    @cached_property
    def reverts(self) -> Mapping[int, int]:
        """Return the place of what a commit reverts by its hash, by the place of that commit."""
        since = self.commits[max(0, len(self.commits) - _READ)].sha
        places: dict[int, int] = {}
        for sha, reverted in self.repository.reverts(since, self.tip.sha, _MOST_REVERTS):
            place, old = self.place(sha), self.place(reverted)
            if 0 <= old < place:
                places[place] = max(old, places.get(place, -1))
        return places

    @cached_property
    def _changed(self) -> dict[int, Mapping[bytes, tuple[bytes, bytes]]]:
        return {}

    @cached_property
    def _brought(self) -> dict[str, list[str]]:
        return {}

    @cached_property
    def _merged(self) -> dict[str, int | None]:
        return {}


def _aliases(line: Sequence[Commit], elsewhere: Iterable[Commit]) -> dict[str, int]:
    """Return the place of each commit off the line whose tree the line has: that of the merge that
    brought it where there is one, else the oldest. A rebased or amended commit keeps its results
    by this, and the tip of a branch counts for the merge that is equal to it."""
    by_tree: dict[str, list[int]] = {}
    for place, commit in enumerate(line):
        by_tree.setdefault(commit.tree, []).append(place)
    return {
        commit.sha: next((p for p in places if commit.sha in line[p].parents), places[0])
        for commit in elsewhere
        if (places := by_tree.get(commit.tree))
    }
