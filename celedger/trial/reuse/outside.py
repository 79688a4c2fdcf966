"""Judge the paths that a trial named in the user's own repository, outside its checkout: the work
trees, found by an editable install, an absolute path or a walk up the folders, and .git.

No commit determines tracked files there, so the footprint is unknown. Untracked and missing files
belong to no commit: they count as they are now, and a commit that has something at such a path
counts as different. If an untracked file changed while the trial ran, or another trial left it,
trainings pass state to each other through it: the footprint is unknown, too.
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

# Paths of .git whose size or existence is evidence.
_TELLING = (b"objects", b"refs", b"logs", b"index", b"packed-refs")
_READS = "it reads the user's own work tree: "
_COMPILED = re.compile(rb"(.*/)__pycache__/([^/]+?)\.[^/]*\.pyc", re.DOTALL)
TICK = 0.02  # seconds by which a file's time may lag behind the clock: two ticks of 100 Hz


@dataclass
class Outside:
    """The judgement. `unknown`: why the footprint is unknown; `file`: a tracked file of the user's
    work tree that the trial opened; `opened` and `looked`: paths that count as if the trial had
    named them in its own tree."""

    unknown: str = ""
    file: str = ""
    opened: set[bytes] = field(default_factory=set)
    looked: set[bytes] = field(default_factory=set)

    def doubt(self, reason: str, name: bytes) -> None:
        self.unknown = self.unknown or reason + (os.fsdecode(name) or "the names in it")


def folders(repository: Repository) -> tuple[Path, ...]:
    """Return the folders that hold the user's own files: work trees and the common .git."""
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
    """Judge the paths that a trial named in the folders `beside`. `commit` is the tree at which it
    ran; `trials` is the folder of trials' files, `own` the one of this trial. Raises
    RepositoryError."""
    git, state = _inside(repository.common_dir), _inside(repository.state_dir)
    others, checkouts = _inside(trials), _inside(repository.state_dir / "checkouts")
    own_folders = tuple(map(_inside, own))
    work_trees = {_inside(p): p for p in beside if p not in (repository.common_dir, trials)}
    tracked: dict[bytes, tuple[set[bytes], set[bytes]]] = {}
    # If there is byte-code, Python opens no source.
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
        elif tops := [top for top in work_trees if at.startswith(top)]:
            top = max(tops, key=len)  # a linked work tree may be inside the main one
            if top not in tracked:
                names = ask(work_trees[top], "ls-files", "-z").out.split(b"\0")[:-1]
                files = {*repository.files(commit), *names}
                above = {name[:end] for name in files for end in _slashes(name)}
                tracked[top] = files, {b"", *above}
            name = at[len(top) : -1]
            _judge_one(path, name, tracked[top], path in opened, named.since - TICK, outside)
    return outside


def _judge_one(
    path: bytes, name: bytes, tracked: tuple[set[bytes], set[bytes]], opened: bool, since: float,
    outside: Outside,
) -> None:  # fmt: skip
    """Judge one path of a work tree, relative to it. `tracked` are files, and the folders that hold
    one."""
    files, folders = tracked
    if name in files:
        outside.file = outside.file or (os.fsdecode(name) if opened else "")
        outside.doubt(_READS, name)
    elif opened and name in folders:
        outside.doubt(_READS, name)
    elif opened and _changed(path, since):  # by the trial itself, such as one that resumes
        outside.doubt(f"{_READS}changed meanwhile: ", name)
    if name:
        (outside.opened if opened else outside.looked).add(name)


def _slashes(name: bytes) -> list[int]:
    return [at for at, letter in enumerate(name) if letter == ord("/")]


def _changed(path: bytes, since: float) -> bool:
    try:
        return os.lstat(path).st_ctime >= since
    except OSError:
        return False


def _inside(folder: Path) -> bytes:
    return os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/"
