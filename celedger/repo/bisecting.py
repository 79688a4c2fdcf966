"""A `git bisect` that is under way in the user's work tree: where it started, and what the work
tree held there. Reads git's state and writes nowhere but into the folder that it is given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from celedger.base.errors import RepositoryError
from celedger.repo.repository import Repository
from celedger.repo.tree_files import ONE_INDEX


def start_of(repository: Repository) -> str:
    """Return the commit (a hash) at which the `git bisect` of this work tree started.

    "" where none is under way: a HEAD on a branch has left the bisect, or was never moved by it.
    """
    try:
        name = (repository.git_dir / "BISECT_START").read_text().strip()
    except OSError:
        return ""
    if repository.ask("symbolic-ref", "-q", "HEAD").status == 0:
        return ""
    # git writes down a branch by its short name, anything else by its hash.
    for revision in (f"refs/heads/{name}", name):
        if sha := repository.hash_of(revision):
            return sha
    return ""


def write_files(repository: Repository, commit: str, names: Sequence[str], folder: Path) -> None:
    """Write files and folders of the tree (`names`) below `folder`, as the work tree would have
    them at this commit: git takes changes and untracked files of the user's along.

    Raises RepositoryError where git cannot write them.
    """
    write_committed(repository, commit, names, folder)
    paths = _literal(names)
    changed = repository.tell("diff", "--name-only", "-z", "--no-renames", "HEAD", "--", *paths).out
    changed += repository.tell("ls-files", "-z", "--others", "--", *paths).out
    _link(repository.worktree, changed, folder)


def write_beside_ignored(
    repository: Repository, commit: str, names: Sequence[str], folder: Path
) -> bool:
    """Write files and folders of a commit below `folder`, with what git ignores of them in the work
    tree. Return False where the commit has nothing of them."""
    if not write_committed(repository, commit, names, folder):
        return False
    words = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--")
    _link(repository.worktree, repository.tell(*words, *_literal(names)).out, folder)
    return True


def write_committed(
    repository: Repository, commit: str, names: Sequence[str], folder: Path
) -> bool:
    """Write files and folders of a commit below `folder`. Return False where it has none."""
    tell = repository.tell
    env = {"GIT_INDEX_FILE": str(folder / ".index")}
    # The whole tree: attributes may lie anywhere above.
    tell(*ONE_INDEX, "read-tree", commit, env=env)
    written = b""
    while names:
        tracked = tell(*ONE_INDEX, "ls-files", "-z", "--", *_literal(names), env=env).out
        tell(
            *ONE_INDEX, f"--work-tree={folder}", "checkout-index", "-z", "--stdin", "--force",
            stdin=tracked, env=env,
        )  # fmt: skip
        written += tracked
        targets = _targets(commit, tracked, folder)
        names = [target for target in targets if not os.path.lexists(folder / target)]
        if not tracked:
            break  # links to what the commit has not
    return bool(written)


def _targets(commit: str, names: bytes, folder: Path) -> list[str]:
    """Return where the links among files below a folder lead. Raises RepositoryError for one that
    leads out of it."""
    root, targets = folder.resolve(), []
    for name in map(os.fsdecode, names.split(b"\0")[:-1]):
        link = folder / name
        if link.is_symlink():
            target = link.resolve()
            if not target.is_relative_to(root):
                raise RepositoryError(f"{name} of {commit[:10]} is a link that leads out of it")
            targets.append(str(target.relative_to(root)))
    return targets


def _literal(names: Sequence[str]) -> list[str]:
    return [f":(top,literal){name}" for name in names]


def _link(where: Path, names: bytes, folder: Path) -> None:
    """Lay links to files of the work tree below a folder, in place of what it has there."""
    for name in map(os.fsdecode, names.split(b"\0")[:-1]):
        target = folder / name
        with suppress(OSError):  # a folder at the start, or below a file of it: the commit's stays
            target.unlink(missing_ok=True)
            if os.path.lexists(where / name):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(where / name)
