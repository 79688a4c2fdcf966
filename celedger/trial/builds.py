"""What a suite's build commands make in a commit's tree: made once for equal inputs, kept, and
brought back.

A build is known by its content only where the suite declares `inputs`; else it runs for every
commit. What is kept is what the build added to the tree. It is copied in and out, never linked:
a trial that writes into what it was given cannot reach the kept copy.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from celedger.errors import MachineError
from celedger.model import Bytes, Commit, OutcomeKind, Task
from celedger.repo import Repository
from celedger.repo.checkouts import Checkout
from celedger.repo.filters import attributes_above
from celedger.suite import build_lines
from celedger.system import process
from celedger.system.cache import Cache, shrink
from celedger.trial.ending import classify, explain, tail
from celedger.trial.starts import Starts

# A failed build is not tried again for this long: a compiler that was missing may come back, and
# --force asks at once.
REMEMBERED = 24 * 3600.0  # seconds
# What compilers, linkers and build tools read of a person's environment.
_READ = (
    "PATH", "CC", "CXX", "CPP", "LD", "AR", "NVCC", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS",
    "MAKEFLAGS", "CPATH", "LIBRARY_PATH", "LD_LIBRARY_PATH", "PKG_CONFIG_PATH", "CUDA_HOME",
    "TORCH_CUDA_ARCH_LIST", "CMAKE_PREFIX_PATH", "CMAKE_ARGS",
)  # fmt: skip
_NO_ROOM = "No space left on device"


def build_key(
    task: Task,
    inputs: Mapping[str, str],
    *,
    written: object,
    python: str,
    environment: str,
    env: Mapping[str, str],
) -> str | None:
    """The hash (64 hex digits) of all that a build depends on; None where that is not known.

    `inputs` are the files that the suite's globs match at the commit, each with mode and blob
    (`Repository.matching`), `written` tells how git writes them, `python` the interpreter's path,
    `environment` the fingerprint, `env` the environment variables of the build.
    """
    if not task.build or not inputs:  # globs that match nothing are a mistake, not a content
        return None
    uses_suite = any("{suite}" in word for words in task.build for word in words)
    text = json.dumps(
        {
            "build": task.build,
            "suite": task.files if uses_suite else "",
            "python": python,
            "pythonpath": task.pythonpath,
            "threads": task.threads,
            "environment": environment,
            "variables": {name: env[name] for name in _READ if name in env},
            "inputs": dict(inputs),
            "written": written,
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Builds:
    """The builds of one command. `limit` bounds what all `caches` together take on the disk."""

    repository: Repository
    cache: Cache
    caches: tuple[Cache, ...]
    limit: Bytes
    starts: Starts
    _failed: dict[str, str] = field(default_factory=dict)

    def provide(
        self,
        commit: Commit,
        task: Task,
        checkout: Checkout,
        *,
        python: str,
        environment: str,
        suite_dir: Path,
        env: Mapping[str, str],
        log: Path,
        now: float,
        fresh: float = 0.0,
        building: Callable[[], None] = lambda: None,
        stop: Callable[[], bool] | None = None,
        writable: Sequence[Path] = (),
    ) -> tuple[OutcomeKind, str]:
        """Build, or bring back, in a checkout that is at the commit, and seal it: `ok`, or the
        outcome and the reason. Failures remembered from before `fresh` (seconds since the epoch)
        do not count. A build that somebody else killed says nothing about the commit."""
        inputs = self.repository.matching(commit.sha, task.inputs)
        above = sorted(attributes_above(map(os.fsencode, inputs)))
        attributes = self.repository.matching(commit.sha, map(os.fsdecode, above))
        content = build_key(
            task, inputs, written=(checkout.manner, attributes), python=python,
            environment=environment, env=env,
        )  # fmt: skip
        key = content and self._in_slot(content, checkout)
        # By its commit, where its content is not known; the interpreter stands for the rest.
        name = key or repr((commit.sha, task.build, python, task.pythonpath))
        reason = self._failed.get(name)
        if reason is None and key is not None:
            reason = self._remembered(key, max(fresh, now - REMEMBERED))
        if reason is not None:
            return OutcomeKind.UNTESTABLE, reason
        if key is not None and self._bring(key, checkout):
            checkout.seal()
            return OutcomeKind.OK, ""
        building()
        lines = build_lines(task, python=python, suite_dir=suite_dir, tree=checkout.path)
        for step, line in enumerate(lines, 1):
            permit = self.starts.build(task, step, python, checkout.path, suite_dir)
            end = process.run(
                line, cwd=checkout.path, env=env, log=log, permit=permit, writable=writable,
                timeout=task.timeout, silence=task.silence, stop=stop,
            )  # fmt: skip
            if end.end is process.End.STOPPED:
                raise KeyboardInterrupt
            kind = classify(end, log)
            if kind is OutcomeKind.OK:
                continue
            reason = f"build `{' '.join(line)}`: {explain(end, log)}"
            if kind is OutcomeKind.KILLED:
                return kind, reason
            if _NO_ROOM in tail(log):
                raise MachineError(f"no room on a disk for the {reason}", "free some room")
            self._failed[name] = reason
            # Time and memory are the machine's as well as the commit's.
            if key is not None and kind is OutcomeKind.FAILED:
                self._remember(key, commit, reason, now)
            return OutcomeKind.UNTESTABLE, reason
        checkout.seal()
        if key is not None:
            self._keep(key, commit, checkout, frozenset(inputs))
        return OutcomeKind.OK, ""

    def _in_slot(self, content: str, checkout: Checkout) -> str:
        """What a build makes may hold the path it was made at: each slot has its own."""
        return hashlib.sha256(f"{content} {checkout.path}".encode("utf-8", "surrogateescape")) \
            .hexdigest()  # fmt: skip

    # --- failures

    def _remembered(self, key: str, since: float) -> str | None:
        held = self.cache.use(key)
        if held is None:
            return None
        with held:
            failed, at = held.facts.get("failed"), held.facts.get("at")
            commit = held.facts.get("commit")
        if failed is None:
            return None
        if isinstance(at, (int, float)) and at >= since:
            self._failed[key] = f"{failed} (so at {str(commit)[:10]}, whose inputs are the same)"
            return self._failed[key]
        self.cache.drop(key)
        return None

    def _remember(self, key: str, commit: Commit, reason: str, at: float) -> None:
        facts = {"failed": reason, "at": at, "commit": commit.sha}
        try:
            self.cache.make(key, lambda _: facts).close()
        except (MachineError, OSError):
            return  # it will fail again, then

    # --- products

    def _keep(self, key: str, commit: Commit, checkout: Checkout, inputs: frozenset[str]) -> None:
        """Copy what the build made. Not where it rewrote files of the commit that are no inputs:
        another commit may have others; nor what is larger than all that may be kept."""
        made = checkout.made
        if made is None or not made.changed <= inputs or not made.changed <= set(made.files):
            return
        tree = checkout.path
        names = [name for name in made.files if not _compiled_from_tracked(name, checkout)]
        kinds = {stat.S_IFMT(made.files[name][0]) for name in names}
        if not kinds <= {stat.S_IFREG, stat.S_IFLNK}:
            return
        if sum(made.files[name][1] for name in names) > self.limit:
            return

        def fill(home: Path) -> Mapping[str, object]:
            files: dict[str, list[int]] = {}
            for name in names:
                target = home / "tree" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                copy(tree / name, target)
                files[name] = _look(target)
            folders = {n: stat.S_IMODE((tree / n).lstat().st_mode) for n in made.folders}
            changed = sorted(made.changed)
            return {"commit": commit.sha, "files": files, "folders": folders, "changed": changed}

        try:
            self.cache.make(key, fill).close()
        except (MachineError, OSError):
            return  # no room: the next commit builds again
        shrink(self.caches, self.limit)

    def _bring(self, key: str, checkout: Checkout) -> bool:
        """Copy what was kept into the tree. False where there is nothing, or not whole, or where
        the commit has a file of that name."""
        held = self.cache.use(key)
        if held is None:
            return False
        with held:
            files, folders = held.facts.get("files"), held.facts.get("folders")
            changed = held.facts.get("changed")
            known = isinstance(files, dict) and isinstance(folders, dict)
            if not known or not isinstance(changed, list):
                return False
            assert isinstance(files, dict) and isinstance(folders, dict)
            names = (*files, *folders)
            if any(checkout.tracks(n) and n not in changed for n in names):
                return False
            if not all(_lies_in(checkout.path / name, checkout.path) for name in names):
                return False
            try:
                for name in folders:
                    (checkout.path / name).mkdir(parents=True, exist_ok=True)
                for name, looked in files.items():
                    source, target = held.path / "tree" / name, checkout.path / name
                    if _look(source) != looked:
                        raise FileNotFoundError(name)
                    if name in changed:
                        target.unlink()
                    copy(source, target)
                for name, mode in reversed(folders.items()):
                    (checkout.path / name).chmod(mode)
                return True
            except OSError:
                pass
        self.cache.drop(key)
        checkout.move_to(checkout.commit)
        return False


def copy(source: Path, target: Path) -> None:
    """A file or link with its mode and times. Its blocks are shared where the file system can
    (copy_file_range makes a reflink there); writing to one never changes the other."""
    if source.is_symlink():
        target.symlink_to(source.readlink())
        return
    if hasattr(os, "copy_file_range"):
        with source.open("rb") as read, target.open("wb") as write:
            left = os.fstat(read.fileno()).st_size
            try:
                ends = (read.fileno(), write.fileno())
                while left > 0 and (done := os.copy_file_range(*ends, left)):
                    left -= done
            except OSError:  # across file systems, or one that cannot
                read.seek(0)
                write.seek(0)
                shutil.copyfileobj(read, write)
    else:
        shutil.copyfile(source, target)
    shutil.copystat(source, target)


def _lies_in(path: Path, tree: Path) -> bool:
    """Return True if no folder on the way to it is a link that leads out of the tree."""
    return Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(tree))


def _look(path: Path) -> list[int]:
    """Mode, size and time of a kept file, by which damage shows. A link's own times do not
    travel."""
    found = path.lstat()
    when = 0 if stat.S_ISLNK(found.st_mode) else found.st_mtime_ns
    return [found.st_mode, found.st_size, when]


def _compiled_from_tracked(name: str, checkout: Checkout) -> bool:
    """Whether this is byte-code of a source of the commit (PEP 3147). Python tells it by time and
    size of the source alone, so it must never meet another commit's."""
    path = PurePosixPath(name)
    if path.suffix != ".pyc":
        return False
    folder = path.parent.parent if path.parent.name == "__pycache__" else path.parent
    return checkout.tracks(str(folder / f"{path.name.partition('.')[0]}.py"))
