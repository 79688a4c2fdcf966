"""What a trial reads of the user's own repository, beside its checkout: the work tree, found by an
editable install's .pth, an absolute path or a walk up the folders, and .git. No commit answers for
that, so its closure is unknown.

Files that git does not track are no commit's: they are taken to be as they are now, and so is what
is not there. A commit that has something at such a place counts as one that differs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from celedger.errors import MachineError
from celedger.repo import Repository
from celedger.repo.plumbing import ask
from celedger.system import process
from celedger.system.sources import COMPILED

# Of .git, what tells by its size or by being there.
_TELLING = (b"objects", b"refs", b"logs", b"index", b"packed-refs")
_ANSWER = 60.0  # seconds for a start of Python on a machine that swaps


@dataclass(frozen=True, slots=True)
class Outside:
    """`unknown`: why the closure is; `file`: that the user's work tree has and git tracks, which
    the trial opened; `paths`: of the tree, that count as if the trial had named them there."""

    unknown: str = ""
    file: str = ""
    paths: frozenset[bytes] = frozenset()


def folders(repository: Repository) -> tuple[Path, ...]:
    """Those that hold what is the user's own: work trees and the common .git."""
    said = ask(repository.worktree, "worktree", "list", "--porcelain").text.splitlines()
    linked = [Path(line.removeprefix("worktree ")) for line in said if line.startswith("worktree ")]
    own = (repository.root, repository.worktree, repository.common_dir)
    return tuple(dict.fromkeys((*own, *(place for place in linked if place.is_dir()))))


def judge(
    repository: Repository,
    beside: Collection[Path],
    opened: Collection[bytes],
    looked: Collection[bytes],
    committed: Iterable[bytes],
    ours: Iterable[Path],
    python: str,
) -> Outside:
    """Of what a trial opened of the folders `beside`, and what it only looked at. `committed` are
    the files of its commit, `ours` folders of celedger's own; `python` is its interpreter."""
    git = _inside(repository.common_dir)
    state = _inside(repository.state_dir)
    others = _inside(repository.state_dir / "checkouts")
    own = tuple(map(_inside, ours))
    places = sorted({*beside} - {repository.common_dir}, key=_depth)
    # Where byte-code was there, Python opens no source.
    opened = {*opened, *(m[1] + m[2] + b".py" for p in opened if (m := COMPILED.fullmatch(p)))}
    trees: list[_Tree] = []
    strayed: dict[str, str] = {}  # kind of reason: reason
    file = ""
    paths: set[bytes] = set()
    for path in sorted({*opened, *looked}):
        at = path + b"/"
        if at.startswith(own) or (at.startswith(state) and not at.startswith(others)):
            continue
        if at.startswith(git):
            name = at[len(git) : -1]
            if path in opened or name.partition(b"/")[0] in _TELLING:
                inside = os.fsdecode(name) or "the names in it"
                strayed.setdefault("git", f"it reads the user's own .git: {inside}")
            continue
        trees = trees or [_Tree(repository, place, committed) for place in places]
        tree = next(tree for tree in trees if at.startswith(tree.inside))
        name = at[len(tree.inside) : -1]
        found = tree.find(name)
        reason = f"it reads the user's own work tree: {os.fsdecode(name) or 'the names in it'}"
        if path not in opened:
            if found:
                paths.add(found)
        elif name in tree.folders:
            # Python lists what is on its path to see that a module is not there. What would be
            # there at another commit is what that commit has there.
            if os.fsdecode(path) in _search_path(python):
                paths.add(name)
            else:
                strayed.setdefault("folder", reason)
        elif found in tree.files:
            file = file or os.fsdecode(name)
            strayed.setdefault("file", reason)
        else:
            paths.add(found)
    unknown = strayed.get("file") or strayed.get("git") or strayed.get("folder") or ""
    return Outside(unknown, file, frozenset(paths))


class _Tree:
    """A work tree of the user: what git tracks there, or the trial's commit has."""

    def __init__(self, repository: Repository, place: Path, committed: Iterable[bytes]) -> None:
        self.inside = _inside(place)
        tracked = ask(place, "ls-files", "-z").out.split(b"\0")[:-1]
        self.files = {*committed, *tracked}
        self.folders = {b""}
        for name in self.files:
            while (name := name.rpartition(b"/")[0]) and name not in self.folders:
                self.folders.add(name)

    def find(self, name: bytes) -> bytes:
        """The first part of a path that is no folder of tracked files; else all of it."""
        parts = name.split(b"/")
        for i in range(1, len(parts)):
            if (above := b"/".join(parts[:i])) not in self.folders:
                return above
        return name


@lru_cache
def _search_path(python: str) -> frozenset[str]:
    """The folders in which an interpreter looks for modules by itself."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    code = "import sys; print('\\n'.join(sys.path[1:]))"
    try:
        _, out, _ = process.capture([python, "-c", code], cwd=Path("/"), env=env, timeout=_ANSWER)
    except MachineError:
        return frozenset()
    return frozenset(os.path.realpath(line) for line in out.splitlines() if line)


def _inside(folder: Path) -> bytes:
    return os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/"


def _depth(folder: Path) -> int:
    """The innermost first: a linked work tree may lie in the main one."""
    return -len(folder.parts)
