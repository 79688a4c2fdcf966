"""Synthetic revisions: trees that are no commit of a branch, made so that they can be measured.

`.` is the working tree as a commit of all its files would have it; `REV-CULPRIT` is REV with the
commit CULPRIT reverted. Each is a commit without a ref in celedger's own object store, a folder
beside the user's repository, so that the user's index, refs, objects and files stay as they are.
Objects are written there as loose files, by celedger and not by git: git would renew the
modification time of an equal object of the user's. Knows nothing of trials.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import time
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from celedger.base import files
from celedger.base.errors import CannotJudge, RepositoryError, UnknownRevision, explained
from celedger.base.model import Commit
from celedger.base.text import plain
from celedger.repo.plumbing import seen_beside
from celedger.repo.repository import Repository
from celedger.repo.tree_files import ONE_INDEX

# --- the object store

FOLDER = "synthetic"  # in the repository's folder of state
_DAY = 86400.0  # seconds
KEPT = 30 * _DAY
"""Seconds for which an object is kept after it was last written: longer than an edit is worked on,
and than the two weeks after which git drops the unreachable commit that it was based on."""
TREE, FILE, PROGRAM, SUBMODULE = "40000", "100644", "100755", "160000"


class Entry(NamedTuple):
    """The entry of a tree at a name: mode and hash, as git writes them."""

    mode: str
    sha: str


class ObjectStore:
    """`repository` sees the objects of the store beside its own."""

    def __init__(self, repository: Repository) -> None:
        self.folder = repository.state_dir / FOLDER
        self.objects = self.folder / "objects"
        self.repository = replace(repository, objects=self.objects)
        # Git LFS looks for the content of a borrowed object here (lfs.storage).
        self.large_files = self.folder / "lfs"
        with explained(f"{self.folder} cannot be written", kind=RepositoryError):
            self.objects.mkdir(parents=True, exist_ok=True)

    def write(self, kind: str, content: bytes, example: str) -> str:
        """Write an object and return its hash, of the length of the hash `example`."""
        body = f"{kind} {len(content)}\0".encode() + content
        sha = hashlib.new("sha256" if len(example) == 64 else "sha1", body).hexdigest()
        path = self._path(sha)
        with explained(f"{path} cannot be written", kind=RepositoryError):
            if not self.renew(sha):
                files.replace(Path(path), zlib.compress(body, 1), 0o444)
        return sha

    def renew(self, sha: str) -> bool:
        """Count an object as just written; return False where the store has none of that hash."""
        try:
            os.utime(self._path(sha))
        except FileNotFoundError:
            return False
        return True

    def _path(self, sha: str) -> str:
        return f"{self.objects}/{sha[:2]}/{sha[2:]}"

    def changed(self, tree: str, changes: Mapping[bytes, Entry | None]) -> str:
        """Return the hash of a tree with other entries at some paths; None removes one. A file that
        stands where a path needs a folder gives way to it, and the reverse."""
        levels = self._read(tree, changes)
        return self._write(levels, b"", changes, tree) or self.write("tree", b"", tree)

    def _read(self, tree: str, paths: Iterable[bytes]) -> dict[bytes, dict[bytes, bytes]]:
        """Return the rows of the folders that hold these paths, by the folder's path."""
        folders: set[bytes] = set()
        for path in paths:
            while (path := path.rpartition(b"/")[0]) and path not in folders:
                folders.add(path)
        levels: dict[bytes, dict[bytes, bytes]] = {}
        todo = {b"": tree}
        while todo:
            contents = self._trees(todo.values())
            levels |= {path: contents[sha] for path, sha in todo.items()}
            todo = {
                path: row.partition(b"\0")[2].hex()
                for path in folders - levels.keys()
                for above, _, name in [path.rpartition(b"/")]
                if (row := levels.get(above, {}).get(name + b"/"))
            }
        return levels

    def _trees(self, shas: Iterable[str]) -> dict[str, dict[bytes, bytes]]:
        names = list(dict.fromkeys(shas))
        request = "".join(f"{sha}\n" for sha in names).encode()
        out = self.repository.tell("cat-file", "--batch", "--buffer", stdin=request).out
        trees, start = {}, 0
        for sha in names:
            end = out.index(b"\n", start)
            fields = out[start:end].split()
            if fields[1:2] != [b"tree"]:
                raise RepositoryError(f"git has no tree {sha[:12]}")
            start = end + 1
            trees[sha] = _tree_rows(out[start : start + int(fields[2])], len(sha) // 2)
            start += int(fields[2]) + 1
        return trees

    def _write(
        self,
        levels: Mapping[bytes, Mapping[bytes, bytes]],
        folder: bytes,
        changes: Mapping[bytes, Entry | None],
        example: str,
    ) -> str:
        """Write a folder's tree, and return its hash; "" for an empty one, which git keeps none
        of. `changes` are relative to the folder."""
        rows = dict(levels.get(folder, {}))
        deeper: dict[bytes, dict[bytes, Entry | None]] = {}
        for path, entry in changes.items():
            name, slash, rest = path.partition(b"/")
            if slash:
                deeper.setdefault(name, {})[rest] = entry
            elif entry is None:
                rows.pop(name, None)
            else:
                rows.pop(name + b"/", None)
                rows[name] = _row(entry, name)
        for name, inside in deeper.items():
            if name in rows and not any(inside.values()):
                continue  # a file replaced the folder
            above = folder + b"/" + name if folder else name
            rows.pop(name, None)
            if sha := self._write(levels, above, inside, example):
                rows[name + b"/"] = _row(Entry(TREE, sha), name)
            else:
                rows.pop(name + b"/", None)
        if not rows:
            return ""
        return self.write("tree", b"".join(map(rows.__getitem__, sorted(rows))), example)

    def drop_old(self, now: float) -> None:
        """Delete what was last written more than KEPT seconds before `now`, once a day: thousands
        of objects take longer to look at than a working tree of 50,000 files."""
        swept = self.folder / "swept"
        with suppress(FileNotFoundError):
            if abs(now - swept.stat().st_mtime) < _DAY:
                return
        with explained(f"{swept} cannot be written", kind=RepositoryError):
            swept.touch()
            os.utime(swept, (now, now))
        for path in [*self.objects.glob("*/*"), *self.large_files.rglob("*")]:
            with suppress(OSError):
                if path.is_file() and path.stat().st_mtime < now - KEPT:
                    path.unlink()


def _tree_rows(content: bytes, width: int) -> dict[bytes, bytes]:
    """Return the rows of a tree, which end with hashes of `width` bytes. Their keys are the names
    by which git sorts them: that of a folder ends with a slash."""
    found = re.findall(rb"((\d+) ([^\0]+)\0.{%d})" % width, content, re.DOTALL)
    folder = TREE.encode()
    return {name + b"/" if mode == folder else name: row for row, mode, name in found}


def _row(entry: Entry, name: bytes) -> bytes:
    return entry.mode.encode() + b" " + name + b"\0" + bytes.fromhex(entry.sha)


# --- synthetic revisions

WORKING_TREE = "."
INDEX = ":"  # what the next commit will have; in a hook, git's GIT_INDEX_FILE
LEDGER = "ledger.db"  # in the folder of the object store: the trials of synthetic revisions
LARGEST = 20 << 20
"""Bytes of the largest untracked file that is taken along: 40 times the largest source file of
CPython and torch. What is larger is data that nobody has ignored yet."""
_ATTEMPTS = 3  # at a working tree that changes while it is read
_SHORT = 10  # digits of a hash in the subject of a synthetic commit
_NOTHING = "000000"  # the mode of what is not there


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A synthetic revision. `commit` is `base` itself where both have the same tree; `title` says
    what it is, and `left_out` of each path of the working tree that was not taken along why not."""

    commit: Commit
    base: Commit
    title: str
    left_out: tuple[str, ...] = ()

    @property
    def is_changed(self) -> bool:
        return self.commit.tree != self.base.tree


class _Unstable(Exception):
    """A file changed between two readings."""


def find(repository: Repository, text: str) -> Synthetic | None:
    """Return the synthetic revision that a text names; None where git itself knows the text.

    Raises UnknownRevision for what is neither, CannotJudge for a commit that cannot be reverted
    cleanly, RepositoryError for a working tree that cannot be read.
    """
    if text in (WORKING_TREE, INDEX):  # which git has no revision for
        store = _swept(repository)
        return _working_tree(store) if text == WORKING_TREE else _index(store)
    try:
        repository.resolve(text)
        return None
    except UnknownRevision as error:
        revision, dash, culprit = text.rpartition("-")
        if not (revision and dash and culprit):
            raise
        store = _swept(repository)
        try:
            reverted = repository.resolve(culprit)
            inner = find(repository, revision)
        except UnknownRevision:
            raise error from None
        left_out = inner.left_out if inner else ()
        base = inner.commit if inner else repository.resolve(revision)
        return _reverted(store, base, reverted, left_out)


def _swept(repository: Repository) -> ObjectStore:
    store = ObjectStore(repository)
    store.drop_old(time.time())
    return store


# --- the working tree


def _working_tree(store: ObjectStore) -> Synthetic:
    repository = store.repository
    if repository.is_bare:
        raise RepositoryError(f"{repository.root} is a bare repository: it has no working tree")
    asked = ThreadPoolExecutor(1).submit(repository.resolve, "HEAD")  # while git reads the files
    reason = ""
    for _ in range(_ATTEMPTS):
        try:
            changes, left_out = _read(store)
        except _Unstable as error:
            reason = str(error)
            continue
        head = asked.result()
        tree = store.changed(head.tree, changes) if changes else head.tree
        title = f"working tree at {head.sha[:_SHORT]}"
        return Synthetic(synthetic_commit(store, tree, head, title), head, title, left_out)
    raise RepositoryError(
        f"the working tree changes while it is read: {reason}", "type the command again"
    )


def _index(store: ObjectStore) -> Synthetic:
    """Return the index as a commit. `git write-tree` would renew the times of the user's trees, and
    so would `git diff-index`, which unfolds a sparse index."""
    repository = store.repository
    head = repository.resolve("HEAD")
    index = repository.worktree / os.environ.get("GIT_INDEX_FILE", repository.git_dir / "index")
    env = {"GIT_INDEX_FILE": str(index)}
    words = ("diff", "--cached", *_RAW, "--no-renames", head.sha, "--")
    changes = {path: after for path, _, _, after in _rows(repository.tell(*words, env=env).out)}
    tree = store.changed(head.tree, changes) if changes else head.tree
    title = f"index at {head.sha[:_SHORT]}"
    return Synthetic(synthetic_commit(store, tree, head, title), head, title)


class _Status(NamedTuple):
    """The `git status` of a path whose working tree or index differs from HEAD.
    `mode` is that of the working tree, FILE for whatever is not tracked; `staged` is what the index
    has. The file has it too, unless it `is_edited`."""

    path: bytes
    mode: str
    staged: Entry | None
    is_edited: bool


def _read(store: ObjectStore) -> tuple[dict[bytes, Entry | None], tuple[str, ...]]:
    """Return what the working tree has otherwise than HEAD, by path, and what is left out. Raises
    _Unstable where a file changes meanwhile."""
    repository = store.repository
    changes: dict[bytes, Entry | None] = {}
    left_out, files = [], {}
    for status in _statuses(store):
        path, mode = status.path, status.mode
        if reason := _reason_to_leave_out(repository.worktree, status):
            left_out.append(f"{plain(os.fsdecode(path))}: {reason}")
        elif mode == _NOTHING:
            changes[path] = None
        elif status.is_edited:
            files[path] = status.staged
        else:
            changes[path] = status.staged
    return changes | _stored(store, files), tuple(sorted(left_out))


def _statuses(store: ObjectStore) -> list[_Status]:
    """Return what differs from HEAD: tracked paths first. Files that a sparse checkout skips are
    none of them. Git filters a file to compare it, and Git LFS keeps what it filters."""
    out = store.repository.tell(
        "-c", "core.fsmonitor=false", "-c", f"lfs.storage={store.large_files}",
        "status", "--porcelain=v2", "-z", "--untracked-files=all",
        "--ignore-submodules=none", "--no-renames",
    ).out  # fmt: skip
    statuses, unmerged = [], []
    for row in out.split(b"\0")[:-1]:
        if row.startswith(b"u "):
            unmerged.append(plain(os.fsdecode(row.split(b" ", 10)[10])))
        elif row.startswith(b"? "):
            path = row[2:]
            mode = SUBMODULE if path.endswith(b"/") else FILE
            statuses.append(_Status(path, mode, None, is_edited=True))
        elif row.startswith(b"1 "):
            fields = row.split(b" ", 8)
            letters, of_head, of_index, mode = (f.decode() for f in (fields[1], *fields[3:6]))
            if SUBMODULE in (of_head, of_index, mode):
                mode = SUBMODULE
            staged = None if of_index == _NOTHING else Entry(of_index, fields[7].decode())
            is_edited = letters[1] != "." and mode != _NOTHING
            statuses.append(_Status(fields[8], mode, staged, is_edited))
    if unmerged:
        raise RepositoryError(
            f"the index has conflicts: {', '.join(sorted(unmerged)[:3])}", "git status"
        )
    return statuses


def _reason_to_leave_out(worktree: Path, status: _Status) -> str:
    if status.mode == SUBMODULE:
        is_nested = status.path.endswith(b"/")
        return "a nested repository" if is_nested else "a changed submodule"
    path = f"{worktree}/{os.fsdecode(status.path)}"
    with suppress(OSError):
        info = os.lstat(path)
        if stat.S_ISLNK(info.st_mode) and _leads_out(worktree, Path(path)):
            return "a link that leads out"
        if status.staged is None and info.st_size > LARGEST:
            return f"an untracked file of {info.st_size >> 20} MiB"
    return ""


def _leads_out(worktree: Path, link: Path) -> bool:
    """Return True if a link leads to another place from another checkout of the tree."""
    target, root = link.readlink(), worktree.resolve()
    end = Path(os.path.realpath(link.parent / target))  # Path.resolve raises at a loop of links
    return target.is_absolute() or not end.is_relative_to(root) or (root / ".git") in end.parents


def _stored(store: ObjectStore, files: Mapping[bytes, Entry | None]) -> dict[bytes, Entry]:
    """Store files of the working tree as git would commit them. Return their entries by path.

    Each is hashed first, and again as it is stored: where the hashes differ it changed. What the
    store has is not stored again, nor what the user's repository has: git would renew the time of
    that object.

    Args:
        files: What the index has of each.
    """
    if not files:
        return {}
    hashed = _added(store, files, "--info-only")
    lacking = {entry.sha for entry in hashed.values() if not store.renew(entry.sha)}
    if not lacking:
        return hashed
    request = "".join(f"{sha}\n" for sha in lacking).encode()
    users = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": ""}
    rows = store.repository.tell("cat-file", "--batch-check", stdin=request, env=users).text
    absent = {row.split()[0] for row in rows.splitlines() if row.endswith(" missing")}
    new = {path: files[path] for path, entry in hashed.items() if entry.sha in absent}
    for path, entry in (_added(store, new) if new else {}).items():
        if entry != hashed[path]:
            raise _Unstable(plain(os.fsdecode(path)))
    return hashed


def _added(
    store: ObjectStore, files: Mapping[bytes, Entry | None], *options: str
) -> dict[bytes, Entry]:
    """Return the entries of files of the working tree by path, as `git add` makes them. It works on
    an index of these files alone, since how git writes line ends depends on what the index has."""
    repository = store.repository
    with tempfile.TemporaryDirectory(prefix=".index-", dir=store.folder) as folder:
        env = {
            "GIT_INDEX_FILE": str(Path(folder, "index")),
            "GIT_OBJECT_DIRECTORY": str(store.objects),
            **seen_beside(repository.common_dir / "objects"),
        }
        update = (*ONE_INDEX, "-c", f"lfs.storage={store.large_files}", "update-index", "-z")
        staged = (
            f"{entry.mode} {entry.sha}\t".encode() + path + b"\0"
            for path, entry in files.items() if entry
        )  # fmt: skip
        repository.tell(*update, "--index-info", stdin=b"".join(staged), env=env)
        names = b"".join(path + b"\0" for path in files)
        answer = repository.ask(
            *update, *options, "--add", "--replace", "--stdin", stdin=names, env=env
        )
        if answer.status != 0:
            is_gone = re.search("does not exist|No such file|short read", answer.error)
            kind: type[Exception] = _Unstable if is_gone else RepositoryError
            raise kind(f"git cannot read the working tree: {answer.reason}")
        rows = repository.tell(*ONE_INDEX, "ls-files", "--stage", "-z", env=env).out
    entries = {}
    for row in rows.split(b"\0")[:-1]:
        fields, path = row.split(b"\t", 1)
        mode, sha, _ = fields.decode().split()
        entries[path] = Entry(mode, sha)
    if entries.keys() != files.keys():
        raise _Unstable("a file became a folder")
    return entries


# --- a commit reverted


def _reverted(
    store: ObjectStore, base: Commit, culprit: Commit, left_out: tuple[str, ...]
) -> Synthetic:
    """Return a commit without the change that another one made to its first parent. Raises
    CannotJudge with the files where later commits changed the same lines."""
    parent = culprit.parents[0] if culprit.parents else store.write("tree", b"", base.sha)
    conflicts: list[bytes] = []
    changes: dict[bytes, Entry | None] = {}
    moved = {old: new for old, new, *_ in differences(store, culprit.sha, base.sha) if old != new}
    for old, new, before, after in differences(store, parent, culprit.sha):
        here = moved.get(new, new)
        back = here if old == new else old
        current = _entry(store, base.sha, here)
        if current == before and old == new:
            continue  # undone already
        if back != here:
            changes[here] = None
        is_in_the_way = back != here and (here != new or _entry(store, base.sha, back) is not None)
        if is_in_the_way:
            conflicts.append(here)
        elif current == after:
            changes[back] = before
        elif before and current and after and (merged := _merged(store, current, after, before)):
            changes[back] = merged
        else:
            conflicts.append(here)
    if conflicts:
        names = ", ".join(plain(os.fsdecode(path)) for path in sorted(conflicts))
        raise CannotJudge(
            f"{culprit.sha[:_SHORT]} cannot be reverted cleanly on {base.sha[:_SHORT]}: {names}"
        )
    tree = store.changed(base.tree, changes) if changes else base.tree
    title = f"{name_of(base)} without {culprit.sha[:_SHORT]}"
    return Synthetic(synthetic_commit(store, tree, base, title), base, title, left_out)


def is_synthetic(commit: Commit) -> bool:
    return commit.author == AUTHOR


def name_of(commit: Commit) -> str:
    """Return what a commit is called beside another: a synthetic one by what it is."""
    return commit.subject if is_synthetic(commit) else commit.sha[:_SHORT]


def differences(
    store: ObjectStore, old: str, new: str
) -> list[tuple[bytes, bytes, Entry | None, Entry | None]]:
    """Return what differs between two trees: the old and the new path, which are not equal for a
    renamed file, and the entries."""
    words = ("diff-tree", "-r", *_RAW, "--find-renames", old, new)
    return _rows(store.repository.tell(*words).out)


_RAW = ("-z", "--raw", "--no-abbrev", "--ignore-submodules=none")


def _rows(out: bytes) -> list[tuple[bytes, bytes, Entry | None, Entry | None]]:
    words, rows = iter(out.split(b"\0")[:-1]), []
    for word in words:
        before, after, *shas, letter = word[1:].decode().split()
        path = next(words)
        if letter == "U":
            problem = f"the index has conflicts: {plain(os.fsdecode(path))}"
            raise RepositoryError(problem, "git status")
        other = next(words) if letter.startswith("R") else path
        entries = [
            Entry(mode, sha) if mode != _NOTHING else None
            for mode, sha in zip((before, after), shas, strict=True)
        ]
        rows.append((path, other, entries[0], entries[1]))
    return rows


def _entry(store: ObjectStore, commit: str, path: bytes) -> Entry | None:
    """Return what a commit has at a path."""
    name = os.fsdecode(path)
    words = ("ls-tree", "-z", "--full-tree", commit, "--", f":(literal){name}")
    row = store.repository.tell(*words).out
    if not row:
        return None
    mode, _, sha = row.split(b"\t")[0].decode().split()
    return Entry(mode, sha)


def _merged(store: ObjectStore, current: Entry, base: Entry, reverted: Entry) -> Entry | None:
    """Return the three-way merge of files; None for a conflict."""
    modes = {current.mode, base.mode, reverted.mode}
    if not modes <= {FILE, PROGRAM}:
        return None  # links and submodules have no lines
    mode = reverted.mode if current.mode == base.mode else current.mode
    with tempfile.TemporaryDirectory(prefix="celedger-merge-") as folder:
        files = []
        for name, entry in (("ours", current), ("base", base), ("theirs", reverted)):
            files.append(str(Path(folder, name)))
            Path(files[-1]).write_bytes(store.repository.object(entry.sha))
        answer = store.repository.ask("merge-file", "-p", "-q", *files)
    if answer.status != 0:
        return None
    return Entry(mode, store.write("blob", answer.out, current.sha))


# --- the commit

AUTHOR = "celedger"


def synthetic_commit(store: ObjectStore, tree: str, parent: Commit, subject: str) -> Commit:
    """Return the commit of a tree; the parent itself, where that has this tree. Equal trees of one
    parent have equal hashes: the dates are the parent's."""
    if tree == parent.tree:
        return parent
    date = parent.commit_time
    person = f"{AUTHOR} <{AUTHOR}@localhost> {date} +0000"
    text = f"tree {tree}\nparent {parent.sha}\nauthor {person}\ncommitter {person}\n\n{subject}\n"
    sha = store.write("commit", text.encode(), parent.sha)
    return Commit(sha, tree, (parent.sha,), AUTHOR, date, date, subject)
