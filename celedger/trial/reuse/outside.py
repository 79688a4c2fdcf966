"""What a trial named of the user's own repository, beside its checkout: the work trees, found by an
editable install, an absolute path or a walk up the folders, and .git. No commit answers for that,
so the footprint is unknown.

Files that git does not track are no commit's: they are taken to be as they are now, and so is what
is not there. A commit that has something at such a path counts as one that differs. Where one of
them was changed while the trial ran, or was left by another trial, trainings hand something on to
the next by it: the footprint is unknown, too.

A folder of tracked files that is listed, and a tracked file that is only looked at, must be as the
trial's commit has it, and must have been so all the time. Then the trial saw what it would see with
its commit checked out, and that path of the tree counts.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from celedger.repo import Repository
from celedger.repo.filters import ONE_INDEX
from celedger.repo.plumbing import ask, tell
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

    def doubt(self, reason: str, name: bytes = b"") -> None:
        self.unknown = self.unknown or reason + (os.fsdecode(name) or "the names in it")


def folders(repository: Repository) -> tuple[Path, ...]:
    """Return those that hold what is the user's own: work trees and the common .git."""
    said = ask(repository.worktree, "worktree", "list", "--porcelain").text.splitlines()
    linked = [Path(line.removeprefix("worktree ")) for line in said if line.startswith("worktree ")]
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
    kept, others = _inside(trials), _inside(repository.state_dir / "checkouts")
    given = tuple(map(_inside, own))
    places = {_inside(p): p for p in beside if p not in (repository.common_dir, trials)}
    trees: dict[bytes, _WorkTree] = {}
    # Where byte-code was there, Python opens no source.
    sources = (_COMPILED.fullmatch(path) for path in named.opened)
    opened = named.opened | {match[1] + match[2] + b".py" for match in sources if match}
    found = Outside()
    for path in sorted(opened | named.looked):
        at = path.rstrip(b"/") + b"/"
        if at.startswith(given) or (at.startswith(state) and not at.startswith(others)):
            continue
        if at.startswith(kept):
            if path in opened or not any(folder.startswith(at) for folder in given):
                found.doubt("it reads what is kept of other trials: ", at[len(kept) : -1])
        elif at.startswith(git):
            name = at[len(git) : -1]
            if path in opened or name.partition(b"/")[0] in _TELLING:
                found.doubt("it reads the user's own .git: ", name)
        else:  # the innermost: a linked work tree may lie in the main one
            top = max((top for top in places if at.startswith(top)), key=len)
            if at != top or path in opened:  # else it is there
                if top not in trees:
                    committed = repository.files(commit)
                    trees[top] = _WorkTree(places[top], commit, committed, named.since - TICK)
                trees[top].judge(path[len(top) :], path in opened, found)
    return found


class _WorkTree:
    """A work tree of the user, held against the commit of a trial."""

    def __init__(self, place: Path, commit: str, committed: list[bytes], since: float) -> None:
        self._place, self._commit, self._since = place, commit, since
        self._committed = committed
        self._tracked = sorted(ask(place, "ls-files", "-z").out.split(b"\0")[:-1])

    def judge(self, name: bytes, opened: bool, found: Outside) -> None:
        path = self._part(name)
        if self._is_file(path) or self._is_folder(path):
            if opened and self._is_file(path):
                found.file = found.file or os.fsdecode(name)
                found.doubt(_READS, name)
            elif self._differs(path, opened or self._is_file(path)):
                found.doubt(f"{_READS}not as the commit has it: ", name)
        elif opened and self._changed(name):  # by the trial itself, as by one that resumes
            found.doubt(f"{_READS}changed meanwhile: ", name)
        (found.opened if opened and path == name else found.looked).add(path)

    def _part(self, name: bytes) -> bytes:
        """Return the first part of a path that is no folder of tracked files; else all of it."""
        end = name.find(b"/")
        while end >= 0 and self._is_folder(name[:end]):
            end = name.find(b"/", end + 1)
        return name if end < 0 else name[:end]

    def _is_folder(self, name: bytes) -> bool:
        return not name or any(_starts(n, name + b"/") for n in (self._committed, self._tracked))

    def _is_file(self, name: bytes) -> bool:
        return any(_has(names, name) for names in (self._committed, self._tracked))

    def _changed(self, name: bytes) -> bool:
        try:
            return (self._place / os.fsdecode(name)).lstat().st_ctime >= self._since
        except OSError:
            return False

    def _differs(self, name: bytes, listed: bool) -> bool:
        """Return True if the commit may have something else there; of a folder that was not
        `listed`, if one of them has none."""
        if not listed:
            here = (self._place / os.fsdecode(name)).is_dir()
            return not (here and _starts(self._committed, name + b"/"))
        inside = name + b"/" if name else b""
        return self._changed(name) or any(
            path == name or path.startswith(inside) for path in self._differing
        )

    @cached_property
    def _differing(self) -> list[bytes]:
        """The tracked files that differ from the commit, or of which git does not say it."""
        out = tell(
            self._place, *ONE_INDEX, "-c", "diff.autoRefreshIndex=true", "diff", "--name-only",
            "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=dirty", self._commit, "--",
        ).out.split(b"\0")  # fmt: skip
        tagged = ask(self._place, "ls-files", "-z", "-v").out.split(b"\0")
        return [*out[:-1], *(row[2:] for row in tagged if row[:1] not in (b"", b"H"))]


def _starts(names: list[bytes], prefix: bytes) -> bool:
    """Return True if one of these sorted names begins so."""
    at = bisect_left(names, prefix)
    return at < len(names) and names[at].startswith(prefix)


def _has(names: list[bytes], name: bytes) -> bool:
    at = bisect_left(names, name)
    return at < len(names) and names[at] == name


def _inside(folder: Path) -> bytes:
    return os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/"
