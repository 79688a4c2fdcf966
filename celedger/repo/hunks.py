"""The lines that differ between two commits, hunk by hunk, without context."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from git import Diff, Repo

from celedger.repo.plumbing import scrubbed, seen_beside
from celedger.repo.repository import Repository

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

    def touches(self, path: str, first: int, last: int, *, side: str) -> bool:
        """Return True if it changes lines `first` to `last` of a file of side "a" (old) or "b"
        (new). A hunk that only takes lines out stands, on the other side, between two lines."""
        name, start, count = (
            (self.old, self.old_start, self.old_count) if side == "a"
            else (self.new, self.new_start, self.new_count)
        )  # fmt: skip
        if path != name:
            return False
        return start <= last and first <= start + max(count - 1, 1 if count == 0 else 0)


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
