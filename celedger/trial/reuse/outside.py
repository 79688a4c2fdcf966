"""What a trial named of the user's own repository, beside its checkout: the work trees, found by an
editable install, an absolute path or a walk up the folders, and .git. No commit answers for that,
so the footprint is unknown.

Files that git does not track are no commit's: they are taken to be as they are now, and so is what
is not there. A commit that has something at such a path counts as one that differs. Where one of
them was changed while the trial ran, or was left by another trial, trainings hand something on to
the next by it: the footprint is unknown, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from celedger.repo import Repository
from celedger.repo.plumbing import ask
from celedger.trial.reuse.named import NamedPaths

# Of .git, what tells by its size or by being there.
_TELLING = (b"objects", b"refs", b"logs", b"index", b"packed-refs")
_READS = "it reads the user's own work tree: "
_COMPILED = re.compile(rb"(.*/)__pycache__/([^/]+?)\.[^/]*\.pyc", re.DOTALL)
TICK = 0.02  # seconds by which a file's time may lag behind the clock: two ticks of 100 Hz


@dataclass
class Outside:
    """`unknown`: why the footprint is; `file`: that the user's work tree has and git tracks, which
    the trial opened; `opened` and `looked`: paths of the tree that count as if the trial had named
    them there."""

    unknown: str = ""
    file: str = ""
    opened: set[bytes] = field(default_factory=set)
    looked: set[bytes] = field(default_factory=set)

    def doubt(self, reason: str, name: bytes) -> None:
        self.unknown = self.unknown or reason + (os.fsdecode(name) or "the names in it")


def folders(repository: Repository) -> tuple[Path, ...]:
    """Return those that hold what is the user's own: work trees and the common .git."""
    lines = ask(repository.worktree, "worktree", "list", "--porcelain").text.splitlines()
    linked = [
        Path(line.removeprefix("worktree ")) for line in lines if line.startswith("worktree ")
    ]
    own = (repository.root, repository.worktree, repository.common_dir)
    return tuple(dict.fromkeys((*own, *(folder for folder in linked if folder.is_dir()))))


def judge(
    repository: Repository,
    beside: Collection[Path],
    named: NamedPaths,
    commit: str,
    trials: Path,
    own: Iterable[Path],
) -> Outside:
    """Judge what a trial named of the folders `beside`. `commit` is the tree that it ran at;
    `trials` is where celedger keeps what trials wrote, `own` what it gave this one. Raises
    RepositoryError."""
    git, state = _inside(repository.common_dir), _inside(repository.state_dir)
    others, checkouts = _inside(trials), _inside(repository.state_dir / "checkouts")
    own_folders = tuple(map(_inside, own))
    work_trees = {_inside(p): p for p in beside if p not in (repository.common_dir, trials)}
    tracked: dict[bytes, _Tracked] = {}
    # Where byte-code was there, Python opens no source.
    sources = (_COMPILED.fullmatch(path) for path in named.opened)
    opened = named.opened | {match[1] + match[2] + b".py" for match in sources if match}
    outside = Outside()
    for path in sorted(opened | named.looked):
        at = path.rstrip(b"/") + b"/"
        if at.startswith(own_folders) or (at.startswith(state) and not at.startswith(checkouts)):
            continue
        if at.startswith(others):
            if path in opened or not any(folder.startswith(at) for folder in own_folders):
                outside.doubt("it reads what is kept of other trials: ", at[len(others) : -1])
        elif at.startswith(git):
            name = at[len(git) : -1]
            if path in opened or name.partition(b"/")[0] in _TELLING:
                outside.doubt("it reads the user's own .git: ", name)
        elif at.startswith(
            tuple(work_trees)
        ):  # the innermost: a linked work tree may lie in the main one
            top = max((top for top in work_trees if at.startswith(top)), key=len)
            if at != top or path in opened:  # else it is there
                if top not in tracked:
                    names = ask(work_trees[top], "ls-files", "-z").out.split(b"\0")[:-1]
                    tracked[top] = _Tracked([*repository.files(commit), *names])
                _judge_one(path, top, tracked[top], path in opened, named.since - TICK, outside)
    return outside


class _Tracked:
    """The files that a work tree or the trial's commit has, and the folders that hold one."""

    def __init__(self, names: Iterable[bytes]) -> None:
        self.files = frozenset(names)
        self.folders = {b""}
        for name in self.files:
            while (name := name.rpartition(b"/")[0]) not in self.folders:
                self.folders.add(name)


def _judge_one(
    path: bytes, top: bytes, tracked: _Tracked, opened: bool, since: float, outside: Outside
) -> None:
    """Judge one path of the work tree at `top`."""
    name = path[len(top) :]
    parts = name.split(b"/")
    starts = (b"/".join(parts[: end + 1]) for end in range(len(parts)))
    # The first part that is no folder of tracked files: a commit may have something there.
    part = next((start for start in starts if start not in tracked.folders), name)
    if part in tracked.files or (opened and part in tracked.folders):
        if opened and part in tracked.files:
            outside.file = outside.file or os.fsdecode(name)
        outside.doubt(_READS, name)
    elif opened and _changed(path, since):  # by the trial itself, as by one that resumes
        outside.doubt(f"{_READS}changed meanwhile: ", name)
    (outside.opened if opened and part == name else outside.looked).add(part)


def _changed(path: bytes, since: float) -> bool:
    try:
        return os.lstat(path).st_ctime >= since
    except OSError:
        return False


def _inside(folder: Path) -> bytes:
    return os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/"
