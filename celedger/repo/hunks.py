"""The lines that differ between two commits, hunk by hunk, without context; the parts of a commit
(its hunks, and files that cannot be parted: binary, new, gone, renamed, of another mode); and
commits that have only some of them. Knows nothing of trials.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from git import Diff, Repo

from celedger.base.model import Commit
from celedger.base.text import plain
from celedger.repo.plumbing import scrubbed, seen_beside
from celedger.repo.repository import Repository
from celedger.repo.synthetic import (
    FILE,
    PROGRAM,
    Entry,
    ObjectStore,
    differences,
    synthetic_commit,
)

_HEADER = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)$")


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines `old_count` from `old_start` of `old` became `new_count` from `new_start` of `new`
    (paths in the tree, empty where the file is on one side only). `around` is the function or
    class that git names; `lines` have their `-` or `+`."""

    old: str
    new: str
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    around: str
    lines: tuple[str, ...]

    def path(self, side: str) -> str:
        """Return its file on side "a" (old) or "b" (new)."""
        return self.old if side == "a" else self.new

    def span(self, side: str) -> tuple[int, int]:
        """Return its first line and the number of its lines on a side."""
        if side == "a":
            return self.old_start, self.old_count
        return self.new_start, self.new_count


def hunks(repository: Repository, old: str, new: str) -> list[Hunk]:
    """Return what changed from one commit (a hash) to another, in text files."""
    with closing(Repo(repository.worktree)) as library:
        library.git.update_environment(**_environment(repository))
        changes = library.commit(old).diff(
            new, create_patch=True, unified=0, no_textconv=True, src_prefix="a/", dst_prefix="b/",
            no_relative=True,
        )  # fmt: skip
        return [hunk for change in changes for hunk in _of_file(change)]


def _environment(repository: Repository) -> dict[str, str]:
    """Return values for the variables of git that plumbing.py leaves out: GitPython hands on all
    that it inherits, and a hook inherits GIT_DIR."""
    own = {"GIT_DIR": repository.git_dir, "GIT_COMMON_DIR": repository.common_dir,
           "GIT_WORK_TREE": repository.worktree, "GIT_INDEX_FILE": repository.git_dir / "index",
           "GIT_OBJECT_DIRECTORY": repository.common_dir / "objects"}  # fmt: skip
    inherited = os.environ.keys() - scrubbed(os.environ).keys()
    beside = {} if repository.objects is None else seen_beside(repository.objects)
    return {**{name: str(own.get(name, "")) for name in inherited}, **beside, "LC_ALL": "C"}


def _of_file(change: Diff) -> Iterator[Hunk]:
    """Yield the hunks of one file."""
    old = (change.a_rawpath or b"").decode(errors="replace")
    new = (change.b_rawpath or b"").decode(errors="replace")
    head: re.Match[str] | None = None
    lines: list[str] = []
    remaining = [0, 0]
    patch = change.diff or b""  # none of a mode that changed
    assert isinstance(patch, bytes)
    for line in patch.decode(errors="replace").split("\n"):
        if head is not None and any(remaining) and line[:1] in ("-", "+"):
            remaining[line[0] == "+"] -= 1
            lines.append(line)
        elif match := _HEADER.match(line):
            head, lines = match, []
            remaining = [int(match[2] or 1), int(match[4] or 1)]
        if head is not None and not any(remaining):
            a, b, c, d = (int(number or 1) for number in head.groups()[:4])
            yield Hunk(old, new, a, b, c, d, head[5], tuple(lines))
            head = None


# --- the parts of a commit

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
