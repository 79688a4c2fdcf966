"""Decide when a trial need not run. One rule: a commit that differs in nothing that a stored trial
named re-uses its result; in doubt, no re-use.

Lives here: the footprint of a trial (the paths that its commands named, as the recorder wrote
them), whether two commits agree at them by the differences that git reports, and its rows in the
ledger.
The recorder is `system/path_recorder.py`; the import finder that gives it names instead of listings
is `child/import_finder.py`.

Paths in the user's own repository outside the checkout are judged, too: the work trees, met by an
editable install, an absolute path or a walk up the folders, and .git. No commit determines tracked
files there, so the footprint is unknown. Untracked and missing files belong to no commit: they
count as they are now, and a commit that has something at such a path counts as different. If an
untracked file changed while the trial ran, or another trial left it, trainings pass state to each
other through it: the footprint is unknown, too.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import os
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from celedger.base.errors import RepositoryError
from celedger.base.model import CLOCKED, Commit, Footprint, ReusableTrial, Task, Trial, TrialRecord
from celedger.ledger import Ledger
from celedger.repo import Repository, tree_files
from celedger.repo.checkouts import Checkout
from celedger.repo.plumbing import ask
from celedger.repo.tree_files import (
    ATTRIBUTES,
    FOLDER,
    NOTHING,
    SUBMODULE,
    Differences,
    TreeChange,
    TreeEntry,
    attributes_above,
)
from celedger.trial import journal, protocol


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
        from celedger.system import path_recorder  # only trials need its imports

        self.began = True
        try:
            parsed = path_recorder.parse(record.read_bytes())
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
        inside, outside = NamedPaths(unknown=self.unknown), NamedPaths(since=self.since)
        for name in ("opened", "looked"):
            for path in getattr(self, name):
                if path != top and not path.startswith(top + b"/"):
                    getattr(outside, name).add(path)
                elif path.startswith(top + b"/.git/"):
                    tells = path[len(top) + 6 :].partition(b"/")[0] in _TELLING
                    if name == "opened" or tells:  # pytest looks for an environment in each folder
                        why = "it reads .git, which differs from commit to commit"
                        inside.unknown = inside.unknown or why
                elif path != top + b"/.git":
                    getattr(inside, name).add(path[len(top) + 1 :])
        return inside, outside


class FootprintComparison:
    """One footprint, compared with trees.

    For opened paths everything counts: a file's mode and content, a folder's entries with their
    modes. For a path that was only looked for a file counts in the same way, a folder only by its
    existence. The folders on the way count too, and git's attributes in them, because they decide
    how files are written. Inputs of a build count wherever a pattern matches.
    """

    def __init__(self, differences: Differences, footprint: Footprint) -> None:
        self._differences, self._inputs = differences, footprint.inputs
        self._listed = frozenset(footprint.opened)
        paths = {*footprint.opened, *footprint.looked}
        attributes = attributes_above(paths)
        self._named = paths | attributes | {path.rpartition(b"/")[0] for path in attributes}
        self._sums: dict[str, int] = {}

    def sums(self, trees: Sequence[str]) -> dict[str, int]:
        """Return a number for each tree, equal if two trees agree. Raises RepositoryError.

        It is the sum of the hashes of all entries that count, less that of the first tree ever
        requested: a difference between two trees adds the new entries and subtracts the old ones.
        """
        chain = [*itertools.islice(self._sums, 1), *trees]
        self._sums |= dict.fromkeys(chain[:1], 0)
        steps = [pair for pair in itertools.pairwise(chain) if pair[1] not in self._sums]
        changes = self._differences.between(steps)
        inputs = self._differences.between(steps, self._inputs) if self._inputs else {}
        for one, other in steps:
            matched = {change.path for change in inputs.get((one, other), ())}
            self._sums[other] = self._sums[one] + sum(
                self._weight(change.path, change.new, matched)
                - self._weight(change.path, change.old, matched)
                for change in changes[one, other]
            )
        return {tree: self._sums[tree] for tree in trees}

    def touching(self, one: str, other: str) -> list[TreeChange]:
        """Return the differences between two trees that count, without the inputs of a build."""
        return [
            change
            for change in self._differences.between([(one, other)])[one, other]
            if self._weight(change.path, change.new) != self._weight(change.path, change.old)
        ]

    def _weight(self, path: bytes, entry: TreeEntry, matched: Collection[bytes] = ()) -> int:
        """Return the counting part of an entry as a hash of 256 bits, 0 for nothing."""
        folder, _, name = path.rpartition(b"/")
        if entry.mode == NOTHING:
            return 0
        if (
            path in matched
            or (path in self._named and entry.mode != FOLDER)
            # A pattern may match below a submodule, and attributes may be above a match.
            or (self._inputs and (entry.mode == SUBMODULE or name == ATTRIBUTES))
        ):
            counts = b"%s %s" % entry
        elif path in self._named or folder in self._listed:
            counts = entry.mode
        else:
            return 0
        return int.from_bytes(hashlib.sha256(b"%s\0%s" % (path, counts)).digest(), "big")


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


def outside_folders(repository: Repository) -> tuple[Path, ...]:
    """Return the folders that hold the user's own files: work trees and the common .git."""
    lines = ask(repository.worktree, "worktree", "list", "--porcelain").text.splitlines()
    linked = [
        Path(line.removeprefix("worktree ")) for line in lines if line.startswith("worktree ")
    ]
    repository_folders = (repository.root, repository.worktree, repository.common_dir)
    return tuple(
        dict.fromkeys((*repository_folders, *(folder for folder in linked if folder.is_dir())))
    )


def judge_outside(
    repository: Repository,
    outside_folders: Collection[Path],
    named: NamedPaths,
    commit: str,
    trials: Path,
    trial_paths: Iterable[Path],
) -> Outside:
    """Judge the paths that a trial named in the `outside_folders`. `commit` is the tree at which it
    ran; `trials` is the folder of trials' files, `trial_paths` are those of this one. Raises
    RepositoryError."""
    git, state = _inside(repository.common_dir), _inside(repository.state_dir)
    others, checkouts = _inside(trials), _inside(repository.state_dir / "checkouts")
    own_folders = tuple(map(_inside, trial_paths))
    work_trees = {
        _inside(p): p for p in outside_folders if p not in (repository.common_dir, trials)
    }
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
                above = {n[:at] for n in files for at, c in enumerate(n) if c == ord("/")}
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


def _changed(path: bytes, since: float) -> bool:
    try:
        return os.lstat(path).st_ctime >= since
    except OSError:
        return False


def _inside(folder: Path) -> bytes:
    return os.fsencode(os.path.realpath(folder)).rstrip(b"/") + b"/"


# --- changes of Python sources without effect: comments, docstrings, format. A commit with only
# such changes is an unlikely first bad one. A wrong hint costs a trial.


_MOST = 4 << 20  # bytes of sources that are parsed for one range: two seconds

_Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _digest(source: bytes) -> bytes:
    """Return a hash of the syntax tree without docstrings, or of the source if it has no syntax
    tree."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, _Scope) and ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
        source = ast.dump(tree).encode(errors="surrogatepass")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return hashlib.sha256(source).digest()


# --- results that may be re-used

# Raise it whenever a footprint may lack a path that it should name: those of other rules are not
# used.
RULES = "10"

_WHOLE_TREE = ("**",)  # the inputs of a trial without a recorder
Key = tuple[str, int]  # what surrounds a commit's tree, and the sum of its tree


class Reuse:
    """The results of one ledger, for the commits of one repository. `child` is celedger's own
    folder that trainings import. `variables` returns a fingerprint of the user's variables that a
    task gets, `installed` the virtual environment in which a task runs at a commit (by hash), ""
    for none. `around` is, by task name, what surrounds the tasks on another machine, where they
    run there."""

    def __init__(
        self,
        ledger: Ledger,
        repository: Repository,
        child: Path,
        variables: Callable[[Task], str],
        installed: Callable[[str, Task], str],
        around: Mapping[str, str] | None = None,
    ) -> None:
        self._ledger, self._repository, self._installed = ledger, repository, installed
        self._child, self._variables, self._around = child, variables, around
        self.beside = (*outside_folders(repository), ledger.private)
        self._differences = Differences(repository)
        self._digests: dict[bytes, bytes] = {}  # of syntax trees, by blob
        self._agreements: dict[int, FootprintComparison] = {}  # by the number of the footprint

    def keep(
        self, commit: Commit, task: Task, trial: Trial, named: NamedPaths, checkout: Checkout
    ) -> str:
        """Store the footprint of a trial that just ended in a checkout. Returns the tracked file of
        the user's work tree that it opened instead of the commit's, "" for none."""
        inside, outside = named.split(checkout.path)
        unknown, file = inside.unknown, ""
        inputs = task.inputs if task.build else ()
        try:
            matching = self._repository.matching(commit.sha, inputs)
            if task.build and not matching:
                unknown = unknown or "its build declares no inputs"
            trial_paths = (
                journal.out_path(self._ledger, task.name, trial),
                journal.log_path(self._ledger, trial.ulid),
                journal.path(self._ledger, trial.ulid),
                self._child,
            )
            trials = self._ledger.private
            verdict = judge_outside(
                self._repository, self.beside, outside, commit.tree, trials, trial_paths
            )
            file, unknown = verdict.file, unknown or verdict.unknown
            inside.opened |= verdict.opened
            inside.looked |= verdict.looked
            paths = {*inside.opened, *inside.looked, *map(os.fsencode, matching)}
            names = {checkout.filtered.get(os.fsdecode(path), "") for path in paths} - {""}
            if tree_files.LFS in names:  # it reads one file of the tree
                inside.looked.add(tree_files.LFS_CONFIG.encode())
            if others := sorted(names - {tree_files.LFS}):
                unknown = unknown or f"its files pass through the filter {others[0]}"
            if checkout.manner != self._manner:
                unknown = unknown or "how git writes files was changed meanwhile"
            imported = {Footprint.package(name) for name in named.packages}
            footprint = Footprint(
                tuple(sorted(inside.opened | imported)),
                tuple(sorted(inside.looked - inside.opened)),
                inputs if task.trace else _WHOLE_TREE,
            )
        except (RepositoryError, OSError, RuntimeError) as error:  # no disk space, no home folder
            unknown = unknown or str(error) or type(error).__name__
        if unknown:
            self._ledger.record_unknown_footprint(trial.ulid, unknown)
        else:
            around = self._surroundings([commit], task)[commit.sha]
            self._ledger.record_footprint(trial.ulid, footprint, around)
        return file

    @cached_property
    def _manner(self) -> str:
        return tree_files.manner(self._repository)

    def _surroundings(self, commits: Sequence[Commit], task: Task) -> dict[str, str]:
        """Return for each commit (by hash) what decides, besides its tree, which content a training
        reads: git may write one blob as different files, and an environment's fingerprint has
        neither the user's variables nor the content of packages, only their versions."""
        shared = self.shared(task)
        return {commit.sha: shared + self._installed(commit.sha, task) for commit in commits}

    def shared(self, task: Task) -> str:
        """Return that part of a task's surroundings that is the same at all commits."""
        if self._around is not None:
            return self._around.get(task.name, "")
        return f"{RULES}:{self._manner}:{self._variables(task)}:"

    def agreeing(
        self, commits: Sequence[Commit], task: Task, environment: str, seed: int | None = None
    ) -> dict[str, list[ReusableTrial]]:
        """Return for each commit (by hash) the trials of this task and environment, at any commit,
        that named nothing in which the commit differs."""
        return self.compared(commits, task, environment, seed)[0]

    def compared(
        self, commits: Sequence[Commit], task: Task, environment: str, seed: int | None = None
    ) -> tuple[dict[str, list[ReusableTrial]], dict[int, Mapping[str, Key]]]:
        """Return `agreeing`, and for each footprint of these trials (by number) a key for each
        commit; commits with equal keys agree."""
        agreeing: dict[str, list[ReusableTrial]] = {commit.sha: [] for commit in commits}
        by_footprint: dict[int, list[ReusableTrial]] = {}
        trials = self._ledger.reusable_trials(
            recipe=task.recipe, environment=environment, seed=seed
        )
        trials = [trial for trial in trials if trial.surroundings.startswith(f"{RULES}:")]
        keys: dict[int, Mapping[str, Key]] = {}
        try:
            trees_asked = dict.fromkeys(commit.tree for commit in commits)
            # Newest first: trees that are close in history differ in little.
            elsewhere = dict.fromkeys(t.tree for t in reversed(trials) if t.tree not in trees_asked)
            present = self._differences.present(elsewhere)
            trees = [*trees_asked, *(tree for tree in elsewhere if tree in present)]
            for trial in trials:
                if trial.tree in trees_asked or trial.tree in present:
                    by_footprint.setdefault(trial.footprint, []).append(trial)
            around = self._surroundings(commits, task)
            for number, of_footprint in by_footprint.items():
                sums = self.agreement(number).sums(trees)
                keys[number] = {c.sha: (around[c.sha], sums[c.tree]) for c in commits}
                by_key: dict[Key, list[ReusableTrial]] = {}
                for trial in of_footprint:
                    by_key.setdefault((trial.surroundings, sums[trial.tree]), []).append(trial)
                for sha, key in keys[number].items():
                    agreeing[sha] += by_key.get(key, ())
        except RepositoryError:  # a clone that lacks objects: nothing is proved
            return {commit.sha: [] for commit in commits}, {}
        return agreeing, keys

    def alike(
        self, pairs: Iterable[tuple[Commit, Commit]], keys: Mapping[int, Mapping[str, Key]]
    ) -> set[tuple[str, str]]:
        """Return those of these pairs (by hashes) that differ only in Python sources with equal
        syntax trees. `keys` are those of `compared`."""
        around = next(iter(keys.values()))
        same = ((one, other) for one, other in pairs if around[one.sha][0] == around[other.sha][0])
        try:
            return self._alike_in_syntax([*same], [self.agreement(number) for number in keys])
        except RepositoryError:  # a clone that lacks sources
            return set()

    def _alike_in_syntax(
        self, pairs: Sequence[tuple[Commit, Commit]], agreements: Sequence[FootprintComparison]
    ) -> set[tuple[str, str]]:
        """Return those of these pairs whose differences that count, by any of the agreements, are
        only in Python sources with equal syntax trees. Raises RepositoryError."""
        sources: dict[tuple[str, str], set[tuple[bytes, bytes]]] = {}
        self._differences.between((one.tree, other.tree) for one, other in pairs)  # all in one call
        for one, other in pairs:
            changes = {
                c for agreement in agreements for c in agreement.touching(one.tree, other.tree)
            }
            if changes and all(
                change.path.endswith(b".py") and change.old.mode == change.new.mode
                for change in changes
            ):
                sources[one.sha, other.sha] = {(c.old.sha, c.new.sha) for c in changes}
        blobs = dict.fromkeys(
            blob for rows in sources.values() for row in rows for blob in row
            if blob not in self._digests
        )  # fmt: skip
        texts = self._differences.texts(blobs, _MOST)
        self._digests |= {blob: _digest(text) for blob, text in texts.items()}
        digests = self._digests
        return {
            both
            for both, rows in sources.items()
            if all(old in digests and digests[old] == digests.get(new) for old, new in rows)
        }

    def agreement(self, number: int) -> FootprintComparison:
        """Return the agreement of trees at a footprint, by its number in the ledger."""
        if number not in self._agreements:
            footprint = self._ledger.footprint(number)
            self._agreements[number] = FootprintComparison(self._differences, footprint)
        return self._agreements[number]

    def evidence(
        self, commit: Commit, task: Task, environment: str, seed: int, stored: Sequence[TrialRecord]
    ) -> ReusableTrial | None:
        """Return a trial whose result this commit may re-use, and for which none of the `stored`
        trials is derived yet. A failed trial is not re-used: it may succeed today (missing data, a
        package)."""
        used = {record.derived or record.trial.ulid for record in stored}
        for trial in self.agreeing([commit], task, environment, seed)[commit.sha]:
            fit = trial.whole and not trial.failed and trial.ulid not in used
            if fit and self._answers(task, trial.ulid):
                return trial
        return None

    def _answers(self, task: Task, ulid: str) -> bool:
        """Return True if a trial's summaries are those that the task requires now."""
        record = self._ledger.trial(ulid)
        summaries = protocol.summaries(task.metrics, self._ledger.series(ulid))
        return (
            record is not None
            and not protocol.missing(task, summaries)
            and all(repr(record.summaries.get(name)) == repr(v) for name, v in summaries.items())
        )


def measured(task: Task) -> list[str]:
    """Return the metrics without a value in a re-used result: speed, memory and telemetry of a
    trial vary."""
    return [
        m.name for m in task.metrics
        if m.kind in CLOCKED or m.name in protocol.TELEMETRY_NAMES
    ]  # fmt: skip
