"""A git repository as celedger sees it: where it lies, what its revisions mean, what is between.

Read only, but for `exclude`, which writes `.git/info/exclude`, the one place git keeps for that.
Knows nothing of checkouts.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from celedger.base.errors import RepositoryError, UnknownRevision, UsageError, command
from celedger.base.model import Commit
from celedger.base.text import plain
from celedger.repo.plumbing import GitAnswer, ask, seen_beside, tell

UNSHALLOW = "git fetch --unshallow"
_HASH = re.compile("[0-9a-f]{40,64}")
# The tree without entries, which git knows without storing it, by the length of its hashes.
_EMPTY_TREE = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}


@dataclass(frozen=True, slots=True)
class Repository:
    """`root` is the main work tree's root, or where a bare repository lies; `worktree` the root of
    the work tree we are in (the main one when inside `.git`, the bare repository itself), and
    `git_dir` where git keeps what is that work tree's own: HEAD, the index, a bisect. `objects` is
    a folder of git objects that are seen beside the repository's own (synthetic.py)."""

    root: Path
    worktree: Path
    common_dir: Path
    git_dir: Path
    objects: Path | None = None
    _commits: dict[str, Commit] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: Path) -> Repository:
        """Return the repository around a folder: a subfolder, a linked work tree, a submodule or a
        bare repository will do. Raises RepositoryError where there is none."""
        path = path.absolute()
        if not path.is_dir():
            raise RepositoryError(f"{path} is not a folder")
        # git echoes a word that it does not know: names of folders may hold newlines.
        words = ("--git-common-dir", "---", "--absolute-git-dir", "---", "--show-toplevel")
        answer = ask(path, "rev-parse", "--path-format=absolute", *words)
        parts = (part.removesuffix(b"\n") for part in answer.out.split(b"\n---\n"))
        folders = [Path(os.fsdecode(part)).resolve() for part in parts]
        if len(folders) < 3:
            raise _not_open(path, answer.error, answer.reason)
        common_dir, git_dir, top = folders
        worktree = top if answer.status == 0 else None  # a bare repository has none
        if worktree is not None and git_dir == common_dir:
            return cls(worktree, worktree, common_dir, git_dir)
        root = _main_worktree(common_dir)
        main_tree = root if (root / ".git").exists() else common_dir
        return cls(root, worktree or main_tree, common_dir, git_dir)

    @property
    def state_dir(self) -> Path:
        return self.common_dir / "celedger"

    def ask(
        self, *words: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> GitAnswer:
        """Run `git WORDS` in the work tree and return what it said, failed or not."""
        with self._times_of_shared_indexes():
            return ask(self.worktree, *words, stdin=stdin, env={**self._beside(), **(env or {})})

    def tell(
        self, *words: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> GitAnswer:
        """Like `ask`, but a failure is a RepositoryError with git's own sentence."""
        with self._times_of_shared_indexes():
            return tell(self.worktree, *words, stdin=stdin, env={**self._beside(), **(env or {})})

    @contextmanager
    def _times_of_shared_indexes(self) -> Iterator[None]:
        """Give the shared files of a split index back the times that git renews as it reads."""
        times = [(path, path.stat()) for path in self.git_dir.glob("sharedindex.*")]
        yield
        for path, was in times:
            with suppress(OSError):
                os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))

    def _beside(self) -> dict[str, str]:
        return {} if self.objects is None else seen_beside(self.objects)

    # --- revisions

    def resolve(self, revision: str) -> Commit:
        """Return the commit a revision names. Raises UnknownRevision (with what was perhaps meant),
        and RepositoryError in a repository without commits."""
        if revision in self._commits:
            return self._commits[revision]
        # For git, too, HEAD and a whole hash mean themselves, whatever tags are called so.
        sha = revision if revision == "HEAD" or _HASH.fullmatch(revision) else self._named(revision)
        if sha in self._commits:
            return self._commits[sha]
        shown = self.ask(*LOG, "--max-count=1", sha, "--")
        if shown.status != 0:
            raise self._unknown(revision, shown.error)
        if not shown.out:
            raise UnknownRevision(f"{revision!r} names an object that is not a commit")
        return self._parsed(shown.out)[0]

    def _parsed(self, out: bytes) -> list[Commit]:
        """Return the commits that git listed, of which each is asked for once."""
        commits = parse(out)
        # The oldest of a shallow clone may get parents by a fetch.
        self._commits.update((commit.sha, commit) for commit in commits if commit.parents)
        return commits

    def _named(self, revision: str) -> str:
        """Return the hash that a name of a commit stands for. Raises as `resolve` does."""
        # The suffix lets a short hash mean the one commit among objects; after ":/text" it would
        # be part of the text.
        spec = revision if revision.startswith(":") else f"{revision}^{{commit}}"
        answer = self.ask("rev-parse", "--verify", "--end-of-options", spec)
        if answer.status != 0 or not _HASH.fullmatch(answer.text):
            raise self._unknown(revision, answer.error)
        unclear = re.findall("refname '(.+)' is ambiguous", answer.error)
        if any(name != "HEAD" and not _HASH.fullmatch(name) for name in unclear):
            raise UnknownRevision(
                f"{revision!r} is ambiguous", f"write heads/{revision} or tags/{revision}"
            )
        return answer.text

    def hash_of(self, revision: str) -> str:
        """Return the hash of the commit that a revision names, "" where it names none."""
        if not revision:
            return ""
        spec = f"{revision}^{{commit}}"
        answer = self.ask("rev-parse", "--verify", "--quiet", "--end-of-options", spec)
        return answer.text if answer.status == 0 else ""

    def commit(self, sha: str) -> Commit:
        """Return the commit with this hash."""
        return self.resolve(sha)

    def log(
        self,
        revision: str = "HEAD",
        limit: int = 20,
        *,
        first_parent: bool = False,
        by_branch: bool = False,
    ) -> list[Commit]:
        """Return the newest commits reachable from a revision, newest first; `by_branch`: those of
        a merged branch beside one another, whatever their dates."""
        sha = self.resolve(revision).sha
        options = [*(["--first-parent"] * first_parent), *(["--topo-order"] * by_branch)]
        return self._parsed(self.tell(*LOG, *options, f"--max-count={limit}", sha, "--").out)

    def known(self, shas: Iterable[str]) -> list[Commit]:
        """Return those of these commits (full hashes) that the repository has."""
        shas = list(shas)
        known = [self._commits[sha] for sha in shas if sha in self._commits]
        names = "".join(f"{sha}\n" for sha in shas if sha not in self._commits).encode()
        words = ("--no-walk=unsorted", "--ignore-missing", "--stdin")
        return known + (self._parsed(self.tell(*LOG, *words, stdin=names).out) if names else [])

    def commits_before(self, moment: float) -> list[Commit]:
        """Return the newest commit of HEAD's line of first parents by that moment (seconds since
        the epoch), as a list of one; empty before the first."""
        words = ("--first-parent", "--max-count=1", f"--before={int(moment)}", "HEAD", "--")
        return parse(self.tell(*LOG, *words).out)

    def last_touching(self, sha: str, paths: Sequence[str]) -> Commit | None:
        """Return the newest commit up to this one (a hash) that changed a file of these paths."""
        words = ("--max-count=1", sha, "--", *paths)
        return next(iter(parse(self.tell(*LOG, *words).out)), None)

    def reverts(self, since: str, tip: str, most: int) -> list[tuple[str, str]]:
        """Return the newest commits (hashes) after one and up to another, those of merged branches
        included, that say by its hash which commit they revert, with that hash."""
        words = (f"--max-count={most}", "--grep=^This reverts commit", "--format=tformat:%H%n%B")
        out = self.tell("log", "-z", *words, *_PLAIN, f"{since}..{tip}", "--").out
        messages = [text.decode(errors="replace").partition("\n") for text in out.split(b"\0")]
        return [(sha, match[1]) for sha, _, body in messages if (match := _REVERTS.search(body))]

    def commits(self, spec: str, *, first_parent: bool = False) -> list[Commit]:
        """`REV`, or `A..B`: the commits reachable from B and not from A, oldest first and parents
        before children. An end left out is HEAD. Raises UsageError when there are none."""
        if ".." not in spec or spec.startswith(":"):
            return [self.resolve(spec)]
        good, bad = self.ends(spec)
        if good.sha == bad.sha:
            raise UsageError(f"both ends of {spec} are the same commit, {_short(good)}")
        commits = self._between(good, bad, first_parent)
        if not commits:
            raise UsageError(
                f"the range {spec} has no commits: {_short(bad)} is an ancestor of {_short(good)}",
                f"did you mean {spec.split('..')[1]}..{spec.split('..')[0]}?",
            )
        return commits

    def ends(self, spec: str) -> tuple[Commit, Commit]:
        """Return the two commits of `A..B`; one that is left out is HEAD. Raises UsageError where
        the text is not of this form."""
        start, dots, right = spec.partition("..")
        if right.startswith("."):
            raise UsageError(f"{spec} has three dots", f"write {start}..{right.lstrip('.')}")
        if not dots or ".." in right:
            raise UsageError(f"{spec} is not a range", "write A..B")
        return self.resolve(start or "HEAD"), self.resolve(right or "HEAD")

    def history(self, good: str, bad: str, first_parent: bool = False) -> History:
        """Return the range from GOOD to BAD; with `first_parent`, only that parent counts.

        Raises UsageError if the ends are equal or GOOD is not an ancestor of BAD, RepositoryError
        if a shallow clone ends before GOOD is reached.
        """
        old, new = self.resolve(good), self.resolve(bad)
        if old.sha == new.sha:
            raise UsageError(f"{good} and {bad} are the same commit, {_short(old)}")
        if not self.is_ancestor(old.sha, new.sha):
            raise self._unrelated(good, bad, old, new)
        commits = tuple(self._between(old, new, first_parent))
        index = {commit.sha: i for i, commit in enumerate(commits)}
        parents = (c.parents[:1] if first_parent else c.parents for c in commits)
        inside = (tuple(index[sha] for sha in own if sha in index) for own in parents)
        return History(old, commits, tuple(inside))

    def is_ancestor(self, ancestor: str, descendant: str) -> bool:
        """Return True if one commit (a hash) is an ancestor of the other, or the same."""
        answer = self.ask("merge-base", "--is-ancestor", ancestor, descendant)
        if answer.status > 1:
            raise RepositoryError(f"git merge-base failed: {answer.reason}")
        return answer.status == 0

    def has_in_history(self, commits: Iterable[str]) -> bool:
        """Return True if HEAD is one of these commits (hashes) or descends from one. Those that
        this clone lacks are passed over."""
        words = ("rev-list", "--ignore-missing", "--stdin")
        request = "".join(f"{sha}\n" for sha in commits)
        present = self.ask(*words, "--no-walk", stdin=request.encode()).text.split()
        if not present:
            return False
        apart = self.ask(*words, stdin="\n".join([*present, "^HEAD\n"]).encode())
        return apart.status != 0 or not {*present} <= {*apart.text.split()}

    def is_on_a_branch(self, sha: str) -> bool:
        """Return True if a branch, a tag or another ref has a commit (a hash) in its history."""
        return bool(self.ask("for-each-ref", "--count=1", f"--contains={sha}").text)

    def equal_patches(self, sha: str, tip: str) -> list[str]:
        """Return the commits in the history of `tip` that change what a commit (a hash) changes
        which is not there: into these a rebase turned it."""
        words = ("--cherry-mark", "--right-only", "--no-merges", f"{sha}...{tip}", f"^{sha}^@")
        lines = self.ask("rev-list", *words).text.split()
        return [line.removeprefix("=") for line in lines if line.startswith("=")]

    def _between(self, good: Commit, bad: Commit, first_parent: bool = False) -> list[Commit]:
        mode = ["--first-parent"] if first_parent else []
        order = ["--topo-order", "--reverse", *mode]
        commits = parse(self.tell(*LOG, *order, bad.sha, f"^{good.sha}", "--").out)
        cut = self.shallow_boundary()
        if any(commit.sha in cut for commit in commits):
            raise RepositoryError(
                f"this clone is shallow: its history ends between {_short(good)} and {_short(bad)}",
                UNSHALLOW,
            )
        return commits

    # --- what changed

    def matching(self, sha: str, patterns: Iterable[str]) -> dict[str, str]:
        """Return the files of a commit (a full hash) that glob patterns match, each with its mode
        and blob: `{"setup.py": "100644 1f3a…"}`. `*` stays in its folder, `**` does not, and a
        folder stands for all that is in it. A submodule counts by the commit it is at."""
        unique = list(dict.fromkeys(patterns))
        if not unique:
            return {}
        # What is in a submodule no tree of this repository has: the submodule stands for it.
        above = {"/".join(p.split("/")[:i]) for p in unique for i in range(1, p.count("/") + 1)}
        inside = self._listed(sha, above - {"", "."})
        links = {name: entry for name, entry in inside.items() if entry.startswith("160000 ")}
        return links | self._listed(sha, unique)

    def _listed(self, sha: str, patterns: Collection[str]) -> dict[str, str]:
        if not patterns:
            return {}
        out = self.tell(
            "diff-tree", "-r", "-z", "--no-renames", "--ignore-submodules=none",
            _EMPTY_TREE[len(sha)], sha, "--", *(f":(top,glob){p}" for p in sorted(patterns)),
        ).out  # fmt: skip
        parts = out.split(b"\0")[:-1]
        entries = {}
        for fields, name in zip(parts[::2], parts[1::2], strict=True):
            _, mode, _, blob, _ = fields.decode().split()
            entries[os.fsdecode(name)] = f"{mode} {blob}"
        return entries

    def files(self, tree: str) -> list[bytes]:
        """Return the paths of all files of a tree, sorted. Raises RepositoryError."""
        words = ("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree)
        return sorted(self.tell(*words).out.split(b"\0")[:-1])

    @property
    def is_bare(self) -> bool:
        return self.worktree == self.common_dir

    def worktree_files(self) -> list[str]:
        """Return the paths of the files of the work tree that git does not ignore. Raises
        RepositoryError in a bare repository, which has none."""
        if self.is_bare:
            cause = f"{self.worktree} is a bare repository: it has no files"
            raise RepositoryError(cause, "type it in a clone")
        words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--full-name")
        return os.fsdecode(self.tell(*words, ":/").out).split("\0")[:-1]

    def has_module(self, name: str, sha: str) -> bool:
        """Return True if a commit (a hash), or one of any branch or tag, has or had a source of a
        Python module of this name, in whatever folder."""
        sources = (f":(top,glob)**/{name}.py*", f":(top,glob)**/{name}/**/*.py*")
        return bool(self.tell(
            "log", "--format=%H", "--max-count=1", "--full-history",
            sha, "--branches", "--remotes", "--tags", "--", *sources,
        ).out)  # fmt: skip

    def blob(self, sha: str, name: str) -> bytes:
        """Return the content of a file of a commit, as git stores it. Raises RepositoryError."""
        return self.object(f"{sha}:{name}")

    def object(self, blob: str) -> bytes:
        """Return the content of a blob by its hash. Raises RepositoryError."""
        return self.tell("cat-file", "blob", blob).out

    def attribute_files(self) -> list[Path]:
        """Return where git finds attributes outside of a tree (gitattributes(5)), there or not."""
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        files = [
            self.common_dir / "info" / "attributes", home / "git" / "attributes",
            Path("/etc/gitattributes"),
        ]  # fmt: skip
        for words in (("config", "--type=path", "--get-all", "core.attributesFile"),
                      ("var", "GIT_ATTR_SYSTEM")):  # fmt: skip
            lines = self.ask(*words).text.splitlines()
            files += [self.worktree / line for line in lines]
        return files

    def is_dirty(self, *apart: Path) -> bool:
        """Return True if tracked files differ from HEAD, apart from those of some folders: what a
        person sees is not what HEAD is. Never in a bare repository."""
        folders = [f":(exclude,{name[2:]}" for name in _pathspecs(apart, self.worktree)]
        answer = self.ask("status", "--porcelain", "-z", "-uno", "--", ":/", *folders)
        if answer.status != 0 and "must be run in a work tree" not in answer.error:
            raise RepositoryError(f"git status failed in {self.worktree}: {answer.reason}")
        return bool(answer.out)

    def has_committed(self, paths: Iterable[Path]) -> bool:
        """Return True if git tracks something of these, all of it as HEAD has it: a merge may have
        brought it, and nobody is editing it. Files elsewhere were written from a commit."""
        names = _pathspecs(paths, self.worktree)
        if not names:
            return True
        if not self.ask("ls-files", "-z", "--", *names).out:
            return False
        return self.ask("diff", "--quiet", "HEAD", "--", *names).status == 0

    def has_any(self, shas: Iterable[str]) -> bool:
        """Return True if the repository has one of these commits (full hashes)."""
        names = "".join(f"{sha}\n" for sha in shas).encode()
        lines = ask(self.root, "cat-file", "--batch-check", stdin=names).out.splitlines()
        return any(line.split()[1:2] == [b"commit"] for line in lines)

    # --- the repository's own files

    def exclude(self, patterns: Iterable[str]) -> list[str]:
        """Add patterns to `.git/info/exclude`, where they are not yet. Returns those added."""
        file = self.common_dir / "info" / "exclude"
        text = file.read_text(errors="surrogateescape") if file.exists() else ""
        added = [p for p in dict.fromkeys(patterns) if p not in text.splitlines()]
        if added:
            file.parent.mkdir(parents=True, exist_ok=True)
            glue = "" if not text or text.endswith("\n") else "\n"
            with file.open("a", errors="surrogateescape") as stream:
                stream.write(glue + "".join(f"{pattern}\n" for pattern in added))
        return added

    def hooks_dir(self) -> Path:
        """Git's own folder for this repository's hooks, whatever `core.hooksPath` says."""
        return self.common_dir / "hooks"

    def configured_hooks_path(self) -> Path | None:
        """`core.hooksPath`, absolute, or None where it is not set. A relative one is relative to
        the folder hooks run in: the root of the work tree."""
        answer = self.ask("config", "--type=path", "--get", "core.hooksPath")
        return self.worktree / answer.path if answer.status == 0 and answer.text else None

    def tags(self) -> dict[str, list[str]]:
        """Return the names of the tags of each commit (a hash) that has some."""
        fields = "%(objectname) %(*objectname) %(refname:strip=2)"
        tags: dict[str, list[str]] = {}
        for line in self.tell("for-each-ref", f"--format={fields}", "refs/tags").text.splitlines():
            tag, commit, name = line.split(" ", 2)
            tags.setdefault(commit or tag, []).append(plain(name))
        return tags

    def remote_url(self) -> str:
        """Return the address of `origin`, or of the first remote; "" where there is none."""
        answer = self.ask("config", "--get-regexp", r"^remote\..*\.url$")
        remotes = dict(line.split(" ", 1) for line in answer.text.splitlines() if " " in line)
        return remotes.get("remote.origin.url") or next(iter(remotes.values()), "")

    def user(self) -> str:
        """Return the name of the committer by git's configuration, else the login."""
        import getpass  # at no other time

        name = self.ask("config", "--get", "user.name").text.strip()
        return name or getpass.getuser()

    def shallow_boundary(self) -> frozenset[str]:
        try:
            return frozenset((self.common_dir / "shallow").read_text().split())
        except FileNotFoundError:
            return frozenset()

    # --- errors

    def _unknown(self, revision: str, error: str) -> UsageError | RepositoryError:
        is_of_head = revision == "." or revision.startswith("HEAD")
        if self.ask("rev-parse", "--verify", "HEAD").status != 0 and (
            is_of_head or not self._refs()
        ):
            where = f"the branch of {self.root}" if self._refs() else self.root
            return RepositoryError(f"{where} has no commits yet", "git commit")
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", revision)
        if "expected commit type" in error or (":" in revision and self.ask(*words).status == 0):
            return UnknownRevision(f"{revision!r} names an object that is not a commit")
        if "ambiguous" in error:
            return UnknownRevision(f"{revision!r} is ambiguous", "give more digits")
        base, _, culprit = revision.rpartition("-")
        if revision == "." or ((base == "." or self.hash_of(base)) and self.hash_of(culprit)):
            return UnknownRevision(
                f"{revision!r} is not a commit: it has no history, and no noise of its own",
                "run, check, show, diff, table and plot curves take it",
            )
        if revision != revision.strip():
            return UnknownRevision(f"{revision!r} has a blank at an end", "a range is A..B")
        if ".." in revision and not revision.startswith(":"):
            return UnknownRevision(f"{revision!r} is a range: one commit is wanted here")
        if os.path.isfile(self.worktree / revision):  # noqa: PTH113 (of any text, never raises)
            hint = f"git log --oneline -- {shlex.quote(revision)}"
            return UnknownRevision(f"{revision!r} is a file, not a commit", hint)
        import difflib  # which no command needs that finds its revision

        close = difflib.get_close_matches(re.split(r"[~^@:]", revision)[0], self._refs(), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "git log --oneline --all"
        if not close and self.shallow_boundary():
            hint = f"this clone is shallow; {UNSHALLOW}"
        if re.fullmatch("[0-9a-f]{8}", revision):
            hint = f"an incident is shown by {command('status', revision)}"
        return UnknownRevision(f"unknown revision {revision!r}", hint)

    def _refs(self) -> list[str]:
        return self.tell("for-each-ref", "--format=%(refname:short)").text.splitlines()

    def _unrelated(
        self, good: str, bad: str, old: Commit, new: Commit
    ) -> UsageError | RepositoryError:
        if self.shallow_boundary():
            return RepositoryError(
                f"this clone is shallow: it does not show that {good} is an ancestor of {bad}",
                UNSHALLOW,
            )
        base = self.ask("merge-base", old.sha, new.sha).text
        if base == new.sha:
            cause, hint = "it is a descendant", f"did you mean {bad}..{good}?"
        elif base:
            cause, hint = f"they part at {base[:12]}", f"{base[:12]}..{bad}"
        else:
            cause, hint = "they have no common history", ""
        return UsageError(f"{good} is not an ancestor of {bad}: {cause}", hint)


def tracked_in(folder: Path, names: Iterable[str]) -> list[str]:
    """Return which of these names in a folder, and of what lies below them, are tracked by the
    repository that it lies in; none where there is no repository, or no git."""
    try:
        words = ("ls-files", "-z", "--", *(f":(literal){name}" for name in names))
        out = ask(folder, *words).out
    except RepositoryError:
        return []
    return [os.fsdecode(name) for name in out.split(b"\0")[:-1]]


def _pathspecs(paths: Iterable[Path], root: Path) -> list[str]:
    inside = (path.relative_to(root) for path in paths if path.is_relative_to(root))
    return [f":(top,literal){path}" for path in inside]


def spread(commits: Sequence[Commit], steps: int) -> list[Commit]:
    """`steps` commits evenly over the sequence, both ends kept. Raises UsageError below 1."""
    if steps < 1:
        raise UsageError(f"--steps is a number from 1, not {steps}")
    if steps >= len(commits):
        return list(commits)
    if steps == 1:
        return [commits[-1]]
    last = len(commits) - 1
    return [commits[round(i * last / (steps - 1))] for i in range(steps)]


def _short(commit: Commit) -> str:
    subject = commit.subject if len(commit.subject) <= 50 else commit.subject[:49] + "…"
    return f"{commit.sha[:12]} ({subject})"


def _main_worktree(common_dir: Path) -> Path:
    """Return where the main work tree is, seen from a linked one; for a bare repository the folder
    itself, or its parent when it hides in one (`project/.bare` beside its work trees)."""
    setting = ask(common_dir, "--git-dir", str(common_dir), "config", "--get", "core.worktree")
    if setting.status == 0 and setting.text:
        return (common_dir / setting.path).resolve()
    return common_dir.parent if common_dir.name.startswith(".") else common_dir


def _not_open(path: Path, error: str, reason: str) -> RepositoryError:
    if "dubious ownership" in error:
        return RepositoryError(
            f"git does not trust {path}: it belongs to another user",
            f"git config --global --add safe.directory {shlex.quote(str(path))}",
        )
    if "not a git repository" in error:
        for folder in (path, *path.parents):
            if os.path.lexists(folder / ".git"):
                cause = f"{folder / '.git'} is damaged, or what it names was moved: {reason}"
                return RepositoryError(cause, "for a linked work tree: git worktree repair")
        return RepositoryError(f"{path} is not in a git repository", "git init")
    return RepositoryError(f"git cannot open {path}: {reason}")


# --- commits as git tells them, and the candidates between a good and a bad one as a graph


_REVERTS = re.compile(r"^This reverts commit ([0-9a-f]{40,64})", re.MULTILINE)
# One record a commit, ended by NUL (`-z`), its fields by newlines: git lets neither a NUL into a
# commit nor a newline into a name, and %s has none.
_PLAIN = (
    "--encoding=UTF-8", "--no-show-signature", "--no-notes", "--no-decorate", "--no-color",
    "--no-patch",
)  # fmt: skip
LOG = ("log", "-z", "--format=tformat:%H%n%T%n%P%n%at%n%ct%n%an%n%s", *_PLAIN)


def parse(out: bytes) -> list[Commit]:
    """Return the commits in the output of `git log` with the options `LOG`."""
    commits = []
    for record in out.split(b"\0")[:-1]:
        sha, tree, parents, written, committed, author, subject = record.decode(
            errors="replace"
        ).split("\n", 6)
        commits.append(
            Commit(
                sha=sha,
                tree=tree,
                parents=tuple(parents.split()),
                author=plain(author),
                author_time=int(written or 0),
                commit_time=int(committed or 0),
                subject=plain(subject),
            )
        )
    return commits


class History(NamedTuple):
    """The range that a bisect searches: its good end, and the candidates for the first bad commit,
    parents before children, the bad end last. `parents[i]` are indices into `commits`, all smaller
    than i; a parent outside the candidates (good, by assumption) is left out."""

    good: Commit
    commits: tuple[Commit, ...]
    parents: tuple[tuple[int, ...], ...]

    @property
    def bad(self) -> Commit:
        return self.commits[-1]

    def at(self, position: int) -> Commit:
        """Return the commit at a position; the good end is at -1."""
        return self.commits[position] if position >= 0 else self.good


def main_line(commits: Sequence[Commit]) -> list[Commit]:
    """Return the last commit and its first ancestors, of commits given parents first."""
    by_sha = {commit.sha: commit for commit in commits}
    line, sha = [], commits[-1].sha
    while sha in by_sha:
        line.append(by_sha[sha])
        sha = next(iter(by_sha[sha].parents), "")
    return line[::-1]
