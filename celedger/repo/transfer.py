"""Commits on their way to another machine: packed here, unpacked into a bare clone there, which
keeps a ref on each commit that it was sent; and the bundle that a repository is made from. Must
not know who carries the packs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from celedger.base.errors import RepositoryError
from celedger.repo.plumbing import ask, tell
from celedger.repo.repository import UNSHALLOW, Repository

_REFS = "refs/celedger/"


def pack(repository: Repository, sha: str, known_commits: Iterable[str]) -> bytes:
    """Return a commit (a hash) with its history, less that of the commits that are `there`
    already. Raises RepositoryError, also for a shallow clone, which lacks some of it."""
    if (repository.common_dir / "shallow").exists():
        raise RepositoryError("this clone is shallow, and a node needs whole history", UNSHALLOW)
    request = "".join(f"{other}\n" for other in known_commits).encode()
    checked = tell(repository.common_dir, "cat-file", "--batch-check", stdin=request).text
    shared = [line.split()[0] for line in checked.splitlines() if line.split()[1] == "commit"]
    revisions = "\n".join([sha, *(f"^{other}" for other in shared)]) + "\n"
    return tell(
        repository.common_dir, "pack-objects", "--revs", "--thin", "--stdout", "-q",
        stdin=revisions.encode(),
    ).out  # fmt: skip


def unpack(clone: Path, sha: str, content: bytes) -> Repository:
    """Add what `pack` returned for a commit (a hash) to a bare clone, made if there is none."""
    if not (clone / "HEAD").exists():
        clone.mkdir(parents=True, exist_ok=True)
        kind = "sha256" if len(sha) == 64 else "sha1"
        tell(clone, "init", "--quiet", "--bare", f"--object-format={kind}", str(clone))
    git = ("--git-dir", str(clone))
    tell(clone, *git, "index-pack", "--stdin", "--fix-thin", stdin=content)
    tell(clone, *git, "update-ref", _REFS + sha, sha)
    return Repository.open(clone)


def commits_in(clone: Path) -> list[str]:
    """Return the commits (hashes) that a clone was sent; none where there is no clone."""
    if not (clone / "HEAD").exists():
        return []
    answer = ask(clone, "--git-dir", str(clone), "for-each-ref", "--format=%(objectname)", _REFS)
    return answer.text.split()


def clone_bundle(bundle: Path, path: Path) -> None:
    """Make a repository at `path` of all refs of a bundle, and check out its branch `main`."""
    path.mkdir(parents=True, exist_ok=True)
    tell(path, "init", "--quiet", "--initial-branch=main", "--template=")
    tell(path, "fetch", "--quiet", "--update-head-ok", str(bundle), "refs/*:refs/*")
    tell(path, "-c", "core.hooksPath=/dev/null", "reset", "--quiet", "--hard", "main", "--")


def refs_below(path: Path, prefix: str) -> dict[str, str]:
    """Return the hash of each ref of a repository below a prefix, by the rest of its name."""
    shown = ask(path, "for-each-ref", "--format=%(objectname) %(refname)", prefix).text
    pairs = (line.split() for line in shown.splitlines())
    return {name.removeprefix(prefix): sha for sha, name in pairs}
