"""The parts of a commit: its hunks, and files that cannot be parted (binary, new, gone, renamed, of
another mode); and commits that have only some of them. Knows nothing of trials."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from celedger.base.model import Commit
from celedger.base.text import plain
from celedger.repo.hunks import Hunk, hunks
from celedger.repo.object_store import FILE, PROGRAM, Entry, ObjectStore
from celedger.repo.repository import Repository
from celedger.repo.synthetic import differences, synthetic_commit

_SHORT = 10  # digits of a hash in the subject of a synthetic commit


@dataclass(frozen=True, slots=True)
class CommitPart:
    """A hunk of a file, or `entries` of the tree that only go together (None: no such file).
    `title` is `net.py:12` or a path; `lines` have their `-` or `+`."""

    title: str
    path: bytes
    hunk: Hunk | None = None
    entries: Mapping[bytes, Entry | None] = field(default_factory=dict)

    @property
    def lines(self) -> tuple[str, ...]:
        return self.hunk.lines if self.hunk else ()


class CommitParts:
    """The parts of a commit beside its first parent. Raises RepositoryError."""

    def __init__(self, repository: Repository, commit: Commit) -> None:
        self.store = ObjectStore(repository)
        self.commit = commit
        self.parent = repository.commit(commit.parents[0])
        self._texts: dict[bytes, tuple[Entry, list[bytes], list[bytes]]] = {}
        by_path: dict[str, list[Hunk]] = {}
        for hunk in hunks(repository, self.parent.sha, commit.sha):
            by_path.setdefault(hunk.new, []).append(hunk)
        self.parts: list[CommitPart] = []
        for old, new, before, after in differences(self.store, self.parent.sha, commit.sha):
            own = by_path.get(os.fsdecode(new), [])
            if old == new and before and after and self._can_be_parted(new, before, after, own):
                self.parts += [
                    CommitPart(plain(f"{hunk.new}:{hunk.new_start}"), new, hunk) for hunk in own
                ]
            else:
                entries = {new: after} if old == new else {old: None, new: after}
                self.parts.append(CommitPart(plain(os.fsdecode(new)), new, None, entries))

    def _can_be_parted(self, path: bytes, before: Entry, after: Entry, own: Sequence[Hunk]) -> bool:
        if before.mode != after.mode or after.mode not in (FILE, PROGRAM) or not own:
            return False
        texts = [self.store.repository.object(entry.sha) for entry in (before, after)]
        lines = [text.splitlines(keepends=True) for text in texts]
        self._texts[path] = (after, lines[0], lines[1])
        return b"".join(self._applied(path, own)) == texts[1]

    def _applied(self, path: bytes, own: Sequence[Hunk]) -> list[bytes]:
        """Return the lines of a file of the parent with these hunks."""
        _, before, after = self._texts[path]
        lines = list(before)
        for hunk in sorted(own, key=lambda hunk: -hunk.old_start):
            start = hunk.old_start - 1 if hunk.old_count else hunk.old_start
            first = hunk.new_start - 1 if hunk.new_count else hunk.new_start
            lines[start : start + hunk.old_count] = after[first : first + hunk.new_count]
        return lines

    def with_only(self, chosen: Collection[int]) -> Commit:
        """Return the parent with some of the parts, by their positions."""
        changes: dict[bytes, Entry | None] = {}
        by_path: dict[bytes, list[Hunk]] = {}
        for number in sorted(chosen):
            part = self.parts[number]
            changes |= part.entries
            if part.hunk is not None:
                by_path.setdefault(part.path, []).append(part.hunk)
        for path, own in by_path.items():
            example, *_ = self._texts[path]
            content = b"".join(self._applied(path, own))
            changes[path] = Entry(example.mode, self.store.write("blob", content, example.sha))
        tree = self.store.changed(self.parent.tree, changes) if changes else self.parent.tree
        numbers = ", ".join(str(number + 1) for number in sorted(chosen))
        title = f"{self.parent.sha[:_SHORT]} with part {numbers} of {self.commit.sha[:_SHORT]}"
        return synthetic_commit(self.store, tree, self.parent, title)
