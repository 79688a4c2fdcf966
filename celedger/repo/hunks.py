"""The lines that differ between two commits, hunk by hunk, without context."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from git.diff import decode_path

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
    out = repository.tell(
        "diff", "--unified=0", "--no-color", "--no-ext-diff", "--find-renames",
        "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--no-relative", old, new, "--",
    ).out.decode(errors="replace")  # fmt: skip
    changes: list[Hunk] = []
    names = ["", ""]
    lines: list[str] = []
    remaining = [0, 0]
    for line in out.split("\n"):
        if any(remaining) and line[:1] in ("-", "+"):
            remaining[line[0] == "+"] -= 1
            lines.append(line)
            if not any(remaining):
                changes[-1] = replace(changes[-1], lines=tuple(lines))
        elif match := _HEADER.match(line):
            a, b, c, d = (int(number or 1) for number in match.groups()[:4])
            lines, remaining = [], [b, d]
            changes.append(Hunk(names[0], names[1], a, b, c, d, match[5], ()))
        elif line.startswith(("--- ", "+++ ")):
            name = decode_path(line[4:].rstrip("\t").encode())  # None for /dev/null
            names[line[0] == "+"] = (name or b"").decode(errors="replace")
    return changes
