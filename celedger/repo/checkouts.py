"""Private checkouts: work trees under `.git/celedger/checkouts/` in which trials run.

Each slot is a repository of its own that borrows the user's objects, so nothing the code under
test does with git can reach the user's refs, index or hooks. Knows nothing of builds and trials
but that they leave files behind; who holds which slot is for slots.py.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from celedger.errors import RepositoryError
from celedger.repo import filters
from celedger.repo.folders import Folders
from celedger.repo.leftovers import Key, delete, key_of, open_folders
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
# From slot/.git/objects to the user's: relative, so a repository that moves stays whole.
_ALTERNATES = "../../../../../objects\n"
_CLEAN = ("clean", "-ffdxq")  # -x: ignored files too; -ff: repositories inside too
_ORIGINAL = "celedger-config"  # the configuration as made here, under .git
_INDEX = "celedger-index"  # the index as it was when the tree was sealed, under .git
_CLOCK = "celedger-clock"  # touched, to read the file system's clock, under .git
_MANNER = "celedger-manner"  # how the tree was written (filters.py), under .git
# What git heeds when it writes the tree: where one of these is not as we left it, nothing that we
# remember of the tree is believed.
_HEEDED = (
    "HEAD", "config", "packed-refs", "refs", "shallow", "info", "info/attributes", "info/exclude",
    "info/grafts", "objects/info/alternates",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mark:
    """How git's own files in the slot looked; None for one that is not there."""

    heeded: tuple[Key | None, ...]
    index: Key | None


@dataclass(frozen=True, slots=True)
class Seal:
    """What a build made, by names relative to the tree. `changed` are the tracked files that it
    rewrote or deleted; `files`, everything it wrote, and how to see that it is still that."""

    mark: Mark
    at: Folders
    changed: frozenset[str]
    files: dict[str, Key]
    folders: tuple[str, ...]  # that are not the commit's, parents first

    def undo(self, tree: Path) -> bool:
        """Delete what was not there. False where something that was there is changed or gone.
        Tracked files that the build left alone are git's to restore."""
        gone = self.at.sweep()
        for name in self.at.known:
            (tree / name).mkdir(parents=True, exist_ok=True)
        if any(name == g or name.startswith(f"{g}/") for g in gone for name in self.changed):
            return False  # deleted by the build, back again
        try:
            return all(key_of(tree / name) == key for name, key in self.files.items())
        except (FileNotFoundError, NotADirectoryError):
            return False


class Checkout:
    """One slot, held. `commit` is the hash it is at, "" before the first `move_to`."""

    def __init__(self, repository: Repository, path: Path, handle: int) -> None:
        self.path = path
        self.commit = ""
        self.manner = ""  # how git writes its files (filters.py)
        self._repository = repository
        self._handle = handle
        self._git_dir = path / ".git"
        self._clean: tuple[Folders, Mark] | None = None  # the tree of `commit` and nothing else
        self._seal: Seal | None = None
        self._fresh = False  # nothing ran in it since git's own files were made right
        self._filters: frozenset[str] = frozenset()  # that may write files from what others say

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
            if not self._step(sha):
                self._switch(sha)
        except (OSError, RepositoryError):
            self._repository.commit(sha)  # if it is not there, that is the error
            self._attempt(self._rebuild)
            self._attempt(lambda: self._switch(sha))
        self.commit = sha

    def seal(self) -> None:
        """Remember what is there, after a build: `restore` brings this back."""
        self._attempt(self._remember)

    @property
    def made(self) -> Seal | None:
        """What lies in the sealed tree beside the commit's; None where it is not known."""
        return self._seal

    def tracks(self, name: str) -> bool:
        """Whether the commit has a file or folder of this relative name."""
        return self._clean is not None and self._clean[0].holds(name)

    def restore(self) -> bool:
        """Undo what a trial did since the seal: its files are deleted, tracked files are brought
        back. False where it changed or deleted what the build made, or moved HEAD: then move
        and build again."""
        seal = self._seal
        if seal is None:
            return False
        with suppress(OSError, RepositoryError):
            self._unlock()
            mark = self._mark()
            if mark.heeded != seal.mark.heeded:
                return False
            if mark.index != seal.mark.index:
                # A plain `git diff` writes it too. What was staged is a reason to build again,
                # what was not is put back as it was, with no flag that hides a file.
                if self._changed() is None:
                    return False
                shutil.copy2(self._git_dir / _INDEX, self._git_dir / "index")
            if not seal.undo(self.path):
                return False
            lost = sorted(self._modified() - seal.changed)
            if lost:
                self._tell(
                    "checkout-index", "--force", "-u", "-z", "--stdin",
                    stdin=b"".join(os.fsencode(name) + b"\0" for name in lost),
                )  # fmt: skip
            self._keep_index()
            mark = self._mark()
            # What was sealed stays the measure: nothing that came since is taken for it.
            self._seal = Seal(mark, seal.at, seal.changed, seal.files, seal.folders)
            if self._clean is not None:
                self._clean = (self._clean[0], mark)
            return True
        return False

    # --- making

    def _refresh(self) -> None:
        self._unlock()
        original = (self._git_dir / _ORIGINAL).read_text()
        if not original.endswith(_CONFIG):
            raise RepositoryError(f"{self.path} was made by an earlier celedger")
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
        written, self.manner = self._git_dir / _MANNER, filters.manner(self._repository)
        if _content(written) != self.manner.encode():
            self._empty()  # git would leave what is the same commit's as it is
            written.write_text(self.manner)
        self._filters = filters.configured(self._repository) - {filters.LFS}
        self.commit, self._seal, self._clean, self._fresh = "", None, None, True

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

    def _step(self, sha: str) -> bool:
        """Move as a plain `git checkout` does, where everything git heeds is as we left it and
        what a trial left can be told from the commit's own. False: move thoroughly."""
        clean, self._clean = self._clean, None
        try:
            self._unlock()
            if clean is None or clean[1] != self._mark():
                return False
            clean[0].sweep()
            lfs = _content(self.path / filters.LFS_CONFIG)
            if self._ask(*filters.off(self._filters), *_checkout(sha)).status != 0:
                return False
            after = clean[0].again(self._clock)
            if (
                after.attributes != clean[0].attributes
                or _content(self.path / filters.LFS_CONFIG) != lfs
            ):
                self._empty()
                return False
            if self._filters and self._filtered(sha).status != 0:
                return False
            if self._filters:
                after = after.again(self._clock)
        except OSError:
            return False
        self._clean = (after, self._mark())
        return True

    def _switch(self, sha: str) -> None:
        """Move, whatever lies in the slot."""
        if not self._fresh:
            self._refresh()
        self._fresh = False
        before = self._head()
        if before != sha and self._attributes_differ(before, sha):
            # Attributes decide how unchanged files are written too, and a checkout writes the
            # changed ones only; and it would heed a file of attributes that is to go.
            self._empty()
        for last in (False, True):
            # Cleaned before, since git heeds a .gitattributes that a trial left; and after, since
            # what a trial staged is no longer known to git then.
            for words in (_CLEAN, (*filters.off(self._filters), *_checkout(sha)), _CLEAN):
                moved = self._ask(*words)
                if moved.status != 0:
                    break
            else:
                moved = self._filtered(sha)
                if moved.status == 0:
                    break
            if last:
                raise RepositoryError(f"cannot check out {sha[:12]}: {moved.reason}")
            self._unlock()
            open_folders(self.path)  # a trial may have left folders nothing can be deleted from
        if (self.path / ".gitmodules").exists():
            self._empty_submodules()
        self._clean = (Folders.read(self.path, self._clock), self._mark())

    def _filtered(self, sha: str) -> Answer:
        """Write what passes through filters, changed or not: they may read any other file, and
        HEAD, and now all that is there. So what they write is the commit's, wherever we come
        from. Git LFS, which reads one file of the tree, is not among them."""
        passing = filters.passing(self._tell, self._filters)
        for name in passing:
            delete(self.path / name)
        return self._ask(*_checkout(sha)) if passing else Answer(0, b"", "")

    def _empty(self) -> None:
        """Nothing left of the tree: the next checkout writes every file."""
        (self._git_dir / "index").unlink(missing_ok=True)
        for entry in self.path.iterdir():
            if entry != self._git_dir:
                delete(entry)

    def _attributes_differ(self, before: str, after: str) -> bool:
        if not before:
            return True
        answer = self._ask(
            "diff-tree", "-r", "-z", "--name-only", before, after, "--",
            ":(glob)**/.gitattributes", filters.LFS_CONFIG,
        )  # fmt: skip
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

    def _mark(self) -> Mark:
        return Mark(tuple(map(self._mark_of, _HEEDED)), self._mark_of("index"))

    def _mark_of(self, name: str) -> Key | None:
        try:
            return key_of(self._git_dir / name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _clock(self) -> int:
        file = self._git_dir / _CLOCK
        file.touch()
        return file.stat().st_ctime_ns

    # --- sealing

    def _remember(self) -> None:
        clean = self._clean
        self._seal = None
        self._unlock()
        mark = self._mark()
        if clean is None or mark.heeded != clean[1].heeded:
            return
        if mark.index != clean[1].index and self._changed() is None:
            # The build staged or committed something. What it made stays; nothing can be
            # brought back to it, so every trial after the first builds again.
            return
        changed = frozenset(self._modified())
        at = clean[0].again(self._clock)
        folders, new = at.since(clean[0])
        written = [*new, *(name for name in changed if at.holds(name))]
        files = {name: key_of(self.path / name) for name in written}
        self._keep_index()
        self._clean = (clean[0], mark)
        self._seal = Seal(mark, at, changed, files, tuple(folders))

    def _keep_index(self) -> None:
        shutil.copy2(self._git_dir / "index", self._git_dir / _INDEX)

    def _modified(self) -> set[str]:
        """The tracked files that were written, or deleted, since git wrote them."""
        out = self._tell("diff-files", "--name-only", "-z", "--ignore-submodules=all").out
        return {os.fsdecode(name) for name in out.split(b"\0")[:-1]}

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


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _checkout(sha: str) -> tuple[str, ...]:
    return ("checkout", "--detach", "--force", "--quiet", sha)
