"""Private checkouts: work trees under `.git/celedger/checkouts/` in which trials run.

Each slot is a repository of its own that borrows the user's objects, so nothing the code under
test does with git can reach the user's refs, index or hooks. One process holds a slot at a time,
by a lock that dies with it. Knows nothing of builds and trials but that they leave files behind.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType

from celedger.errors import RepositoryError
from celedger.repo.leftovers import Seal, delete, open_folders
from celedger.repo.plumbing import Answer, ask, tell
from celedger.repo.repository import Repository

# Appended to what `git init` wrote. The user's configuration comes first, so that filters, line
# endings, remotes and promised objects are as in the user's clone; then what must not be: hooks,
# anything that leaves files out, and anything that runs in the background.
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
# From slot/.git/objects to the user's: relative, so a repository that moves stays whole.
_ALTERNATES = "../../../../../objects\n"
_CLEAN = ("clean", "-ffdxq")  # -x: ignored files too; -ff: repositories inside too
_ORIGINAL = "celedger-config"  # the configuration as made here, under .git


class Checkouts:
    """The slots of one repository; there are as many as were ever in use at once."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.folder = repository.state_dir / "checkouts"

    def take(self) -> Checkout:
        """A free slot, held until `close` (or the end of `with`, or of the process)."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, number = next(
                (handle, n)
                for n in count()
                if (handle := _try_lock(self.folder / f"{n}.lock")) is not None
            )
        except OSError as error:
            raise RepositoryError(
                f"cannot make a checkout in {self.folder}: {error.strerror}"
            ) from error
        checkout = Checkout(self.repository, self.folder / str(number), handle)
        try:
            checkout.prepare()
        except BaseException:
            checkout.close()
            raise
        return checkout


class Checkout:
    """One slot, held. `commit` is the hash it is at, "" before the first `move_to`."""

    def __init__(self, repository: Repository, path: Path, handle: int) -> None:
        self.path = path
        self.commit = ""
        self._repository = repository
        self._handle = handle
        self._git_dir = path / ".git"
        self._seal: Seal | None = None

    def __enter__(self) -> Checkout:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the slot back. What lies in it stays, for the next holder to move on from."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def prepare(self) -> None:
        """Make the slot sound and bring tags and the ends of a shallow history up to date."""
        try:
            self._refresh()
        except (OSError, RepositoryError):
            self._attempt(self._rebuild)

    def move_to(self, sha: str) -> None:
        """Bring the tree to a commit, with nothing else in it: no file of another commit, of a
        build or of a trial. Costs what changed. Raises RepositoryError, and UnknownRevision
        for a commit that is not there."""
        self.commit, self._seal = "", None
        try:
            self._switch(sha)
        except (OSError, RepositoryError):
            self._repository.commit(sha)  # if it is not there, that is the error
            self._attempt(self._rebuild)
            self._attempt(lambda: self._switch(sha))
        self.commit = sha

    def seal(self) -> None:
        """Remember what is there, after a build: `restore` brings this back."""
        self._attempt(self._remember)

    def restore(self) -> bool:
        """Undo what a trial did since the seal (without one: since the move): its files are
        deleted, tracked files are brought back. False where it changed or deleted what the
        build made, or moved HEAD: then move and build again."""
        if self._seal is None or self._head() != self.commit:
            return False
        seal = self._seal
        with suppress(OSError):
            changed = self._changed()
            if changed is not None and seal.undo(self.path):
                lost = [name for name in changed if name not in seal.changed]
                if lost:
                    self._tell(
                        "checkout-index", "--force", "-z", "--stdin",
                        stdin=b"".join(os.fsencode(name) + b"\0" for name in lost),
                    )  # fmt: skip
                return True
        return False

    # --- making

    def _refresh(self) -> None:
        self._unlock()
        original = (self._git_dir / _ORIGINAL).read_text()
        if (self._git_dir / "config").read_text() != original:
            (self._git_dir / "config").write_text(original)
        info = self._git_dir / "info"
        info.mkdir(exist_ok=True)
        common = self._repository.common_dir
        for name in ("shallow", "info/grafts", "info/attributes"):
            if (common / name).exists():
                shutil.copyfile(common / name, self._git_dir / name)
            else:
                (self._git_dir / name).unlink(missing_ok=True)
        refs = tell(
            common, "--git-dir", str(common), "for-each-ref",
            "--format=%(objectname) %(refname)", "refs/replace", "refs/tags",
        ).out  # fmt: skip
        delete(self._git_dir / "refs")
        (self._git_dir / "refs").mkdir()
        (self._git_dir / "packed-refs").write_bytes(refs)
        self._tell("rev-parse", "--git-dir")
        self.commit, self._seal = "", None

    def _rebuild(self) -> None:
        """The slot from nothing. Nothing in it is anybody's."""
        delete(self.path)
        self.path.mkdir(parents=True)
        common = self._repository.common_dir
        kind = tell(common, "--git-dir", str(common), "rev-parse", "--show-object-format").text
        tell(
            self.path, "init", "--quiet", "--template=", f"--object-format={kind}",
            "--initial-branch=celedger", str(self.path),
            env={"GIT_DEFAULT_REF_FORMAT": "files"},  # packed-refs is written by hand below
        )  # fmt: skip
        (self._git_dir / "objects" / "info" / "alternates").write_text(_ALTERNATES)
        config = self._git_dir / "config"
        config.write_text(config.read_text() + _CONFIG)
        shutil.copyfile(config, self._git_dir / _ORIGINAL)
        self._refresh()

    # --- moving

    def _switch(self, sha: str) -> None:
        self._unlock()
        before = self._head()
        if before != sha and self._attributes_differ(before, sha):
            # Attributes decide how unchanged files are written too, and a checkout writes the
            # changed ones only; and it would heed a file of attributes that is to go.
            (self._git_dir / "index").unlink(missing_ok=True)
            for entry in self.path.iterdir():
                if entry != self._git_dir:
                    delete(entry)
        for last in (False, True):
            # Cleaned before, since git heeds a .gitattributes that a trial left; and after, since
            # what a trial staged is no longer known to git then.
            for words in (_CLEAN, ("checkout", "--detach", "--force", "--quiet", sha), _CLEAN):
                moved = self._ask(*words)
                if moved.status != 0:
                    break
            else:
                break
            if last:
                raise RepositoryError(f"cannot check out {sha[:12]}: {moved.reason}")
            self._unlock()
            open_folders(self.path)  # a trial may have left folders nothing can be deleted from
        if (self.path / ".gitmodules").exists():
            self._empty_submodules()

    def _attributes_differ(self, before: str, after: str) -> bool:
        if not before:
            return True
        answer = self._ask(
            "diff-tree", "-r", "-z", "--name-only", before, after, "--", ":(glob)**/.gitattributes"
        )
        return answer.status != 0 or bool(answer.out)

    def _empty_submodules(self) -> None:
        """`git clean` stays out of them; without this a trial's files there would survive."""
        for record in self._tell("ls-files", "--stage", "-z").out.split(b"\0"):
            if record.startswith(b"160000 "):
                folder = self.path / os.fsdecode(record.split(b"\t", 1)[1])
                delete(folder)
                folder.mkdir()

    def _head(self) -> str:
        try:
            text = (self._git_dir / "HEAD").read_text(errors="replace").strip()
        except OSError:
            return ""
        return text if re.fullmatch("[0-9a-f]{40,64}", text) else ""

    def _unlock(self) -> None:
        """Locks in the slot are of processes that died: this one holds the slot."""
        for lock in self._git_dir.glob("*.lock"):
            lock.unlink(missing_ok=True)

    # --- sealing

    def _remember(self) -> None:
        changed = self._changed()
        if changed is None:
            # The build staged or committed something. What it made stays; nothing can be
            # brought back to it, so every trial after the first builds again.
            self._seal = None
            return
        tracked = (os.fsdecode(name) for name in self._tell("ls-files", "-z").out.split(b"\0")[:-1])
        self._seal = Seal.of(self.path, frozenset(tracked), frozenset(changed))

    def _changed(self) -> list[str] | None:
        """The tracked files that differ from the commit; None where the index does."""
        self._unlock()
        out = self._tell(
            "status", "--porcelain", "-z", "--untracked-files=no", "--no-renames",
            "--ignore-submodules=all",
        ).out  # fmt: skip
        records = [os.fsdecode(record) for record in out.split(b"\0")[:-1]]
        if any(record[0] != " " for record in records):
            return None
        return [record[3:] for record in records]

    # --- git, in the slot and nowhere else

    def _ask(self, *words: str, stdin: bytes | None = None) -> Answer:
        # Said explicitly: in a slot whose .git is broken git would look further up, and the next
        # repository above is the user's.
        here = ("--git-dir", str(self._git_dir), "--work-tree", str(self.path))
        no_hooks = ("-c", "core.hooksPath=/dev/null")
        return ask(self.path, *here, *no_hooks, *words, stdin=stdin, holding=self._handle)

    def _tell(self, *words: str, stdin: bytes | None = None) -> Answer:
        answer = self._ask(*words, stdin=stdin)
        if answer.status != 0:
            raise RepositoryError(f"git {words[0]} failed in {self.path}: {answer.reason}")
        return answer

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise RepositoryError(
                f"the checkout {self.path} cannot be used: {error.strerror}"
            ) from error


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock until it is closed; None where another one does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
