"""Read the paths that the commands of one trial named, as the recorder wrote them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class NamedPaths:
    """Absolute paths that a trial named. `unknown` is the reason if they are not known; `since` is
    when the trial began, in Unix seconds. `packages` are the distributions that it imported."""

    opened: set[bytes] = field(default_factory=set)
    looked: set[bytes] = field(default_factory=set)
    packages: frozenset[str] = frozenset()
    unknown: str = ""
    began: bool = False
    since: float = field(default_factory=time.time)

    def take_in(self, record: Path) -> None:
        """Add the supervisor's record of one command, and remove its file."""
        from celedger.system import reads  # only trials need its imports

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

    def modules(self, folders: Iterable[str]) -> set[str]:
        """Return the top-level modules that were opened in folders of packages."""
        tops = tuple(os.fsencode(os.path.realpath(folder)) + b"/" for folder in folders)
        inside = (path[len(top) :] for path in self.opened for top in tops if path.startswith(top))
        names = (os.fsdecode(name).split("/")[0] for name in inside)
        return {n.partition(".")[0] for n in names if not n.endswith((".dist-info", ".egg-info"))}

    def split(self, tree: Path) -> tuple[NamedPaths, NamedPaths]:
        """Return the paths in the tree, relative to it, and all others."""
        top = os.fsencode(os.path.realpath(tree))
        inside, beside = NamedPaths(unknown=self.unknown), NamedPaths(since=self.since)
        for name in ("opened", "looked"):
            for path in getattr(self, name):
                if path != top and not path.startswith(top + b"/"):
                    getattr(beside, name).add(path)
                elif path.startswith(top + b"/.git/"):
                    inside.unknown = inside.unknown or (
                        "it reads .git, which differs from commit to commit"
                    )
                elif path != top + b"/.git":
                    getattr(inside, name).add(path[len(top) + 1 :])
        return inside, beside
