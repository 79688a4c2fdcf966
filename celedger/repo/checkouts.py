"""Private checkouts: work trees under `.git/celedger/checkouts/` in which trials run.

Each slot is a repository of its own that borrows the user's objects, so nothing that the code under
test does with git can reach the user's refs, index or hooks. One process holds a slot, by a lock
that dies with it. Knows nothing of builds and trials but that they leave files behind.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path

from celedger.base import files
from celedger.base.errors import MachineError, RepositoryError, explained
from celedger.base.files import Lock, is_locked, try_flock
from celedger.repo import tree_files
from celedger.repo.plumbing import GitAnswer, ask, tell
from celedger.repo.repository import Repository
from celedger.repo.synthetic import FOLDER

# The user's configuration comes first, so that filters, line endings, remotes and promised objects
# are as in the user's clone; then what must not be: hooks, anything that leaves files out, and
# anything that runs in the background.
_CONFIG = """
[include]
	path = ../../../../config
[core]
	bare = false
	hooksPath = /dev/null
	sparseCheckout = false
	fsmonitor = false
	untrackedCache = false
	splitIndex = false
	trustctime = true
	checkStat = default
	ignoreStat = false
	logAllRefUpdates = false
[submodule]
	recurse = false
[gc]
	auto = 0
[maintenance]
	auto = false
[advice]
	detachedHead = false
"""
_SHA256 = "[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\tobjectFormat = sha256\n"
# From slot/.git/objects to the user's: relative, so a repository that moves stays whole.
_ALTERNATES = "../../../../../objects\n"
_STORE = f"../../../../{FOLDER}/objects\n"
_CLEAN = ("clean", "-ffdxq")  # -x: ignored files too; -ff: repositories inside too


class Checkout:
    """One slot, held until `close`. `commit` is the hash it is at, "" before the first `move_to`;
    `manner` tells how git writes its files (tree_files.py)."""

    def __init__(self, repository: Repository, path: Path, lock: Lock) -> None:
        self.path = path
        self.commit = ""
        self.manner = tree_files.manner(repository)
        self._repository = repository
        self._lock = lock
        self._git_dir = path / ".git"
        # Beside the slot, where a trial does not look: the index as git left it, and the commit.
        self._index, self._state = path.with_suffix(".index"), path.with_suffix(".at")
        self.filtered: dict[str, str] = {}  # files that a filter writes, with its name
        self._filters = tree_files.configured(repository)
        common = repository.common_dir
        self._refs = tell(
            common, "--git-dir", str(common), "for-each-ref",
            "--format=%(objectname) %(refname)", "refs/replace", "refs/tags",
        ).out  # fmt: skip

    def __enter__(self) -> Checkout:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the slot back. What lies in it stays, for the next holder to move on from."""
        self._lock.close()

    def move_to(self, sha: str) -> None:
        """Bring the tree to a commit, with nothing else in it: no file of another commit, of a
        build or of a trial. Raises RepositoryError, and UnknownRevision for a commit that is not
        there."""
        self.commit = ""
        try:
            self._switch(sha)
        except (OSError, RepositoryError):
            self._repository.commit(sha)  # if it is not there, that is the error
            with explained(f"the checkout {self.path} cannot be used", kind=RepositoryError):
                self._rebuild()
                self._switch(sha)
        self.commit = sha

    def tracked(self) -> set[str]:
        """Return the names of the commit's files, relative to the tree."""
        return set(self._names("ls-files", "-z"))

    def changed(self) -> set[str]:
        """Return the names of the commit's files that were written or deleted since the move."""
        return set(self._names("diff-files", "--name-only", "-z", "--ignore-submodules=all"))

    def _switch(self, sha: str) -> None:
        before = self._repair(sha)
        if before != sha and self._attributes_differ(before, sha):
            # Attributes decide how unchanged files are written too, and a checkout writes the
            # changed ones only.
            self._empty()
        self._delete_special()
        checkout = ("checkout", "--detach", "--force", "--quiet", sha)
        for last in (False, True):
            # Cleaned before, since git heeds a .gitattributes that a trial left; and after, for
            # what stood in the way of nothing.
            moves = (self._ask(*words) for words in (_CLEAN, checkout, _CLEAN))
            failure = next((move for move in moves if move.status != 0), None)
            if failure is None:
                break
            if last:
                raise RepositoryError(f"cannot check out {sha[:12]}: {failure.reason}")
            self._unlock()
            _open_folders(self.path)  # a trial may have left folders nothing can be deleted from
        self.filtered = tree_files.passing(self._tell, self._filters)
        # A filter may read any other file, and HEAD: now all that is there. Git LFS does not.
        again = [name for name, by in self.filtered.items() if by != tree_files.LFS]
        for name in again:
            delete(self.path / name)
        if again:
            self._tell(*checkout)
        if (self.path / ".gitmodules").exists():
            self._empty_submodules()
        shutil.copy2(self._git_dir / "index", self._index)
        files.write(self._state, f"{sha} {self.manner}")

    # --- git's own files in the slot

    def _repair(self, sha: str) -> str:
        """Make git's own files what they were before anything ran here. Return the commit (a hash)
        that the tree was last moved to; "" for an empty one."""
        if self.path.is_symlink() or self._git_dir.is_symlink():
            raise RepositoryError(f"{self.path} is a link")
        self._unlock()
        config = (_SHA256 if len(sha) == 64 else "") + _CONFIG
        alternates = _ALTERNATES + ("" if self._repository.objects is None else _STORE)
        for name, text in (
            ("config", config), ("HEAD", "ref: refs/heads/celedger\n"),
            ("objects/info/alternates", alternates), ("packed-refs", os.fsdecode(self._refs)),
        ):  # fmt: skip
            if (self._git_dir / name).is_symlink():
                delete(self._git_dir / name)
            files.write(self._git_dir / name, text)
        for name in ("refs", "info"):
            delete(self._git_dir / name)
            (self._git_dir / name).mkdir()
        for name in ("shallow", "info/grafts", "info/attributes"):
            delete(self._git_dir / name)
            with suppress(FileNotFoundError):
                shutil.copyfile(self._repository.common_dir / name, self._git_dir / name)
        try:
            before, manner = self._state.read_text().split()
            self._state.unlink()  # until the move is over
            if manner == self.manner:
                shutil.copy2(self._index, self._git_dir / "index")
                return before
        except (FileNotFoundError, ValueError):
            pass
        self._empty()
        return ""

    def _rebuild(self) -> None:
        """Make the slot from nothing. Nothing in it is anybody's."""
        delete(self.path)
        for name in ("objects/info", "refs"):
            (self._git_dir / name).mkdir(parents=True)
        self._state.unlink(missing_ok=True)

    def _unlock(self) -> None:
        """Locks in the slot are of processes that died: this one holds the slot."""
        for lock in self._git_dir.glob("*.lock"):
            lock.unlink(missing_ok=True)

    # --- the tree

    def _empty(self) -> None:
        """Delete the whole tree: the next checkout writes every file."""
        (self._git_dir / "index").unlink(missing_ok=True)
        for entry in self.path.iterdir():
            if entry != self._git_dir:
                delete(entry)

    def _delete_special(self) -> None:
        """Delete sockets, pipes and devices: `git clean` passes them over."""
        folders = [str(self.path)]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders += [entry.path] * (entry.path != str(self._git_dir))
                    elif not (entry.is_symlink() or entry.is_file()):
                        delete(Path(entry.path))

    def _attributes_differ(self, before: str, after: str) -> bool:
        if not before:
            return False  # nothing is there
        answer = self._ask(
            "diff-tree", "-r", "-z", "--name-only", before, after, "--",
            ":(glob)**/.gitattributes", tree_files.LFS_CONFIG,
        )  # fmt: skip
        return answer.status != 0 or bool(answer.out)

    def _empty_submodules(self) -> None:
        """`git clean` stays out of them; without this a trial's files there would survive."""
        for record in self._names("ls-files", "--stage", "-z"):
            if record.startswith("160000 "):
                folder = self.path / record.split("\t", 1)[1]
                delete(folder)
                folder.mkdir()

    def _ask(self, *words: str, stdin: bytes | None = None) -> GitAnswer:
        # Said explicitly: in a slot whose .git is broken git would look further up, and the next
        # repository above is the user's.
        of_slot = ("--git-dir", str(self._git_dir), "--work-tree", str(self.path))
        no_hooks = ("-c", "core.hooksPath=/dev/null")
        return ask(self.path, *of_slot, *no_hooks, *words, stdin=stdin, holding=self._lock.fd)

    def _tell(self, *words: str, stdin: bytes | None = None) -> GitAnswer:
        answer = self._ask(*words, stdin=stdin)
        if answer.status != 0:
            raise RepositoryError(f"git {words[0]} failed in {self.path}: {answer.reason}")
        return answer

    def _names(self, *words: str) -> list[str]:
        return [os.fsdecode(name) for name in self._tell(*words).out.split(b"\0")[:-1]]


class Checkouts:
    """The slots of one repository; there are as many as were ever in use at once."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.folder = repository.state_dir / "checkouts"

    def slots(self) -> list[tuple[Path, bool]]:
        """Return the slots there are, each with whether somebody holds it."""
        return [
            (path, _is_held(path.with_suffix(".lock")))
            for path in sorted(self.folder.glob("[0-9]*"))
            if path.suffix == "" and path.is_dir()
        ]

    def remove(self, path: Path) -> bool:
        """Delete a slot, unless somebody holds it: the next to take it makes it anew."""
        with suppress(OSError, MachineError):
            if (lock := try_flock(path.with_suffix(".lock"))) is not None:
                with lock:
                    delete(path)
                return True
        return False

    def take(self) -> Checkout:
        """Return a free slot, held until `close` (or the end of `with`, or of the process)."""
        with explained(f"cannot make a checkout in {self.folder}", kind=RepositoryError):
            self.folder.mkdir(parents=True, exist_ok=True)
        lock, number = next(
            (lock, n) for n in count() if (lock := try_flock(self.folder / f"{n}.lock")) is not None
        )
        try:
            return Checkout(self.repository, self.folder / str(number), lock)
        except BaseException:
            lock.close()
            raise


def _is_held(path: Path) -> bool:
    """Return True unless nobody holds the lock; on a disk that is read-only that is not known."""
    with suppress(MachineError):
        return is_locked(path)
    return True


def delete(path: Path) -> None:
    """Delete a file, a link (never what it points to) or a whole folder, if it is there."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path)
    except OSError:
        _open_folders(path)
        shutil.rmtree(path)


def _open_folders(path: Path) -> None:
    """Let the owner write in a folder and all folders below it, so that they can be deleted."""
    path.chmod(0o755)
    for above, folders, _ in os.walk(path):
        for name in folders:
            folder = Path(above) / name
            if not folder.is_symlink():
                folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IRWXU)
