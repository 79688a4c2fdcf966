"""A `git bisect` that is under way in the user's work tree: where it started, and what the work
tree held there. Reads git's state and writes nowhere but into the folder that it is given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from celedger.base.errors import RepositoryError
from celedger.repo.filters import ONE_INDEX
from celedger.repo.repository import Repository


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
        commit = repository.ask("rev-parse", "--verify", "-q", f"{revision}^{{commit}}")
        if commit.status == 0:
            return commit.text
    return ""


def lay(repository: Repository, commit: str, names: Sequence[str], folder: Path) -> None:
    """Write files and folders of the tree (`names`) below `folder`, as the work tree would have
    them at this commit: git takes changes and untracked files of the user's along.

    Raises RepositoryError where git cannot write them.
    """
    where, tell = repository.worktree, repository.tell
    paths = [f":(top,literal){name}" for name in names]
    env = {"GIT_INDEX_FILE": str(folder / ".index")}
    # The whole tree: attributes may lie anywhere above.
    tell(*ONE_INDEX, "read-tree", commit, env=env)
    tracked = tell(*ONE_INDEX, "ls-files", "-z", "--", *paths, env=env).out
    tell(
        *ONE_INDEX, f"--work-tree={folder}", "checkout-index", "-z", "--stdin", "--force",
        stdin=tracked, env=env,
    )  # fmt: skip
    for name in map(os.fsdecode, tracked.split(b"\0")[:-1]):
        link = folder / name
        if link.is_symlink() and not link.resolve().is_relative_to(folder.resolve()):
            raise RepositoryError(f"{name} of {commit[:10]} is a link that leads out of it")
    own = tell("diff", "--name-only", "-z", "--no-renames", "HEAD", "--", *paths).out
    own += tell("ls-files", "-z", "--others", "--", *paths).out
    for name in map(os.fsdecode, own.split(b"\0")[:-1]):
        target = folder / name
        with suppress(OSError):  # a folder at the start, or below a file of it: the commit's stays
            target.unlink(missing_ok=True)
            if os.path.lexists(where / name):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(where / name)
