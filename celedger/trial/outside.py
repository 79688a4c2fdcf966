"""What a trial reads of the user's own repository, beside its checkout: the work tree, found by an
editable install's .pth, an absolute path or a walk up the folders, and .git. No commit answers for
that, so its closure is unknown.

Files that git does not track are no commit's: they are taken to be as they are now, and so is what
is not there. A commit that has something at such a place counts as one that differs. Where one of
them was changed while the trial ran, or was left by another trial, trainings hand something on to
the next by it: its closure is unknown, too.

A folder of tracked files that is listed, and a tracked file that is only looked at, tell of what
is checked out, too. Where that is the same as the trial's commit has there, and was all the time,
the trial saw what it would see with its commit checked out; that place of the tree then counts,
so that it stands for no commit with another listing or file. Else the closure is unknown.
"""

from __future__ import annotations

import math
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from celedger.errors import MachineError
from celedger.repo import Repository
from celedger.repo.closures import SUBMODULE, TREE, Objects
from celedger.repo.plumbing import ask
from celedger.system import environment, process
from celedger.system.gate import Permit

_COMPILED = re.compile(rb"(.*/)__pycache__/([^/]+?)\.[^/]*\.pyc", re.DOTALL)
# Of .git, what tells by its size or by being there.
_TELLING = (b"objects", b"refs", b"logs", b"index", b"packed-refs")
_LINK = b"120000"
_KINDS = {TREE: "folder", SUBMODULE: "folder", _LINK: "link", b"100644": "file", b"100755": "file"}
TICK = 0.02  # seconds by which a file's time may lag behind the clock: two ticks of 100 Hz
_ANSWER = 60.0  # seconds for a start of Python on a machine that swaps


@dataclass(frozen=True, slots=True)
class Outside:
    """`unknown`: why the closure is; `file`: that the user's work tree has and git tracks, which
    the trial opened; `paths`: of the tree, that count as if the trial had named them there."""

    unknown: str = ""
    file: str = ""
    paths: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Kept:
    """`folder`: where celedger keeps journals, logs and what trials wrote; `own`: what of it, or
    elsewhere, the trial itself was given."""

    folder: Path
    own: tuple[Path, ...]


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
    objects: Objects,
    commit: str,
    kept: Kept,
    python: str,
    permit: Permit,
    began: float = math.inf,
) -> Outside:
    """Of what a trial opened of the folders `beside`, and what it only looked at. `commit` is the
    tree that it ran at; `python` is its interpreter, with a permit to ask it; it `began` then (Unix
    seconds)."""
    git = _inside(repository.common_dir)
    state = _inside(repository.state_dir)
    others = _inside(repository.state_dir / "checkouts")
    own, trials = tuple(map(_inside, kept.own)), _inside(kept.folder)
    user = {*beside} - {repository.common_dir, kept.folder}
    places = {_inside(p): p for p in sorted(user, key=_depth)}
    # Where byte-code was there, Python opens no source.
    opened = {*opened, *(m[1] + m[2] + b".py" for p in opened if (m := _COMPILED.fullmatch(p)))}
    began -= TICK
    strayed: dict[str, str] = {}  # kind of reason: reason
    there: dict[bytes, set[bytes]] = {inside: set() for inside in places}
    for path in sorted({*opened, *looked}):
        at = path.rstrip(b"/") + b"/"
        if at.startswith(own) or (at.startswith(state) and not at.startswith(others)):
            continue
        if at.startswith(trials):
            if path in opened or not any(place.startswith(at) for place in own):
                what = os.fsdecode(at[len(trials) : -1]) or "the names in it"
                strayed.setdefault("trials", f"it reads what is kept of other trials: {what}")
            continue
        if at.startswith(git):
            name = at[len(git) : -1]
            if path in opened or name.partition(b"/")[0] in _TELLING:
                what = os.fsdecode(name) or "the names in it"
                strayed.setdefault("git", f"it reads the user's own .git: {what}")
            continue
        inside = next((inside for inside in places if at.startswith(inside)), None)
        if inside is not None:
            there[inside].add(path)
    file = ""
    paths: set[bytes] = set()
    for inside, found in there.items():
        if found <= {inside[:-1]} - opened:
            continue  # it is there
        names = {path[len(inside) :] for path in found}
        tree = _Tree(places[inside], names, objects, commit)
        for path in sorted(found):
            name = path[len(inside) :]
            lies = tree.find(name)
            said = os.fsdecode(name) or "the names in it"
            reason = f"it reads the user's own work tree: {said}"
            if path not in opened:
                searched = name in tree.folders and path in _search_path(python, permit)
                if not searched and not tree.looks_the_same(lies, began):
                    strayed.setdefault(
                        "looked", f"it looks at {said} of the user's own work tree, which differs"
                        " from the commit",
                    )  # fmt: skip
                if lies:
                    paths.add(lies)
            elif name in tree.folders:
                # Python lists what is on its path to see that a module is not there. What would
                # be there at another commit is what that commit has there.
                searched = path in _search_path(python, permit)
                if not searched and not tree.lists_the_same(name, began):
                    strayed.setdefault("folder", f"{reason}, not as the commit has it")
                paths.add(name)
            elif lies in tree.files:
                file = file or os.fsdecode(name)
                strayed.setdefault("file", reason)
            else:
                if tree.changed(name, began):  # by the trial itself, as by one that resumes
                    strayed.setdefault("changed", f"{reason}, which was changed meanwhile")
                paths.add(lies)
    for kind in ("file", "git", "trials", "folder", "looked", "changed"):
        if kind in strayed:
            return Outside(strayed[kind], file, frozenset(paths))
    return Outside("", file, frozenset(paths))


class _Tree:
    """What lies at some paths of a work tree of the user: `files` and `folders` that git tracks
    there, or the trial's commit has."""

    def __init__(self, place: Path, names: Iterable[bytes], objects: Objects, commit: str) -> None:
        self._place, self._objects, self._commit = place, objects, commit
        above: set[bytes] = set()
        for name in names:
            while name and name not in above:
                above.add(name)
                name = name.rpartition(b"/")[0]
        self._committed = objects.at(commit, above)
        self._tracked = ask(place, "ls-files", "-z").out.split(b"\0")[:-1]  # in order
        self.folders, self.files = {b""}, set[bytes]()
        for name in above:
            mode = self._committed.get(name, (b"", ""))[0]
            if mode == TREE or self._tracks(name + b"/"):
                self.folders.add(name)
            if mode not in (b"", TREE) or self._tracks(name):
                self.files.add(name)

    def _tracks(self, name: bytes) -> bool:
        """Whether git does a file of this name, or, with a slash behind, one below."""
        at = bisect_left(self._tracked, name)
        found = self._tracked[at : at + 1]
        return bool(found) and (
            found[0] == name or (name[-1:] == b"/" and found[0].startswith(name))
        )

    def _at(self, name: bytes) -> Path:
        return self._place / os.fsdecode(name)

    def find(self, name: bytes) -> bytes:
        """The first part of a path that is no folder of tracked files; else all of it."""
        end = name.find(b"/")
        while end >= 0:
            if name[:end] not in self.folders:
                return name[:end]
            end = name.find(b"/", end + 1)
        return name

    def changed(self, name: bytes, began: float) -> bool:
        try:
            return self._at(name).lstat().st_ctime >= began
        except OSError:
            return False

    def looks_the_same(self, name: bytes, began: float) -> bool:
        """Whether looking at it tells what it would with the commit checked out: that a folder is
        there; of a file its kind, size and mode, of a link where it leads. Always of what is no
        matter of git's."""
        entry = self._committed.get(name)
        if not name or (name not in self.files and name not in self.folders):
            return True
        try:
            found = self._at(name).lstat()
        except OSError:
            return entry is None
        if entry is None:
            return False
        if entry[0] in (TREE, SUBMODULE):
            return stat.S_ISDIR(found.st_mode)
        ((mode, sha, size),) = self._objects.files(self._commit, [name]).values()
        if found.st_size != size or found.st_ctime >= began:
            return False
        if stat.S_ISLNK(found.st_mode):
            content = dict(self._objects.read([sha]))[sha]
            return mode == _LINK and os.fsencode(self._at(name).readlink()) == content
        return stat.S_ISREG(found.st_mode) and mode == (
            b"100755" if found.st_mode & stat.S_IXUSR else b"100644"
        )

    def lists_the_same(self, folder: bytes, began: float) -> bool:
        """Whether a folder has what it would have with the commit checked out, untracked files
        apart, and had it all the time. A commit with the same listing there then is one for which
        the trial would have listed the same, and to one with another it does not agree."""
        entry = self._committed.get(folder) if folder else (TREE, self._commit)
        if entry is None or entry[0] != TREE:
            return False
        committed = self._objects.listing(entry[1])
        try:
            if self._at(folder).stat().st_ctime >= began:
                return False
            with os.scandir(self._at(folder)) as entries:
                there = {os.fsencode(entry.name): _kind(entry) for entry in entries}
        except OSError:
            return False
        inside = folder + b"/" if folder else b""
        for name, (mode, _) in committed.items():
            if name not in there or there[name] != _KINDS.get(mode):
                return False
        return not any(
            self._tracks(inside + name) or self._tracks(inside + name + b"/")
            for name in there.keys() - committed.keys()
        )


def _kind(entry: os.DirEntry[str]) -> str:
    """As `listdir` and what a listing tells besides have it."""
    if entry.is_symlink():
        return "link"
    return "folder" if entry.is_dir(follow_symlinks=False) else "file"


_searched: dict[str, frozenset[bytes]] = {}  # by interpreter


def _search_path(python: str, permit: Permit) -> frozenset[bytes]:
    """The folders in which an interpreter looks for modules by itself."""
    if python not in _searched:
        _searched[python] = _ask_search_path(python, permit)
    return _searched[python]


def _ask_search_path(python: str, permit: Permit) -> frozenset[bytes]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    code = "import sys; print('\\n'.join(filter(None, sys.path)))"
    try:
        _, out, _ = process.capture(
            environment.question(python, 0), env=env, permit=environment.asking(permit, code),
            timeout=_ANSWER,
        )  # fmt: skip
    except MachineError:
        return frozenset()
    return frozenset(os.fsencode(os.path.realpath(line)) for line in out.splitlines() if line)


def _inside(folder: Path) -> bytes:
    return os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/"


def _depth(folder: Path) -> int:
    """The innermost first: a linked work tree may lie in the main one."""
    return -len(folder.parts)
