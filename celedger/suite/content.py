"""The content of a suite's folder: its content hash, and a copy of it that later edits cannot
reach.

Files only; knows nothing of what suite.toml says.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from celedger.base.config import leads_out
from celedger.base.errors import SuiteError, explained

FILE = "suite.toml"
# Files that no training sees: the tasks hold what matters of the first, the second is for people.
_UNSEEN = (FILE, "README.md")


def files(folder: Path) -> list[tuple[str, Path]]:
    """All files below a folder that trainings may read, by relative name, sorted: not dotfiles nor
    byte-code. Links are followed. Raises SuiteError for what is neither file nor folder."""
    check_links(folder, folder / FILE)
    every = _below(folder, "", (folder.resolve(),))
    return sorted((name, path) for name, path in every if name not in _UNSEEN)


def check_links(*paths: Path) -> None:
    """Raise SuiteError for a link that leads out of its repository."""
    for path in paths:
        if leads_out(path):
            raise SuiteError(f"{path} is a link that leads out of the repository", "remove it")


def _below(folder: Path, prefix: str, above: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    for path in folder.iterdir():
        name = f"{prefix}{path.name}"
        if path.name.startswith(".") or path.name == "__pycache__" or path.suffix == ".pyc":
            continue
        check_links(path)
        if path.is_dir():
            real = path.resolve()
            if real in above:
                raise SuiteError(f"{path} is a link to a folder it lies in")
            yield from _below(path, f"{name}/", (*above, real))
        elif path.is_file():
            yield name, path
        else:
            raise SuiteError(f"{path} is neither a file nor a folder", "remove it")


def digests(folder: Path) -> dict[str, str]:
    """Return what a training may read, by relative name: `x` for an executable file, else `-`, and
    the SHA-256 of its content (64 hex digits)."""
    by_name = {}
    with explained(f"{folder} cannot be read", kind=SuiteError):
        for name, path in files(folder):
            with explained(f"{path} cannot be read", kind=SuiteError), path.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            by_name[name] = ("x" if path.stat().st_mode & 0o100 else "-") + content
    return by_name


def content_hash(folder: Path) -> str:
    """64 hex digits over names, executable bits and contents of what a training may read."""
    return hash_of(digests(folder))


def hash_of(digests: Mapping[str, str]) -> str:
    """Return the content hash of a folder that holds these."""
    total = hashlib.sha256()
    for name, digest in digests.items():
        content = digest[:1].encode() + bytes.fromhex(digest[1:])
        total.update(name.encode(errors="surrogateescape") + b"\0" + content)
    return total.hexdigest()


def snapshot(folder: Path, digest: str, cache: Path) -> Path:
    """Return a copy of a suite's folder at `cache/<its content hash>`, made once; one that was
    changed since is made anew. No training runs in it. Raises SuiteError if the folder has other
    content than that of the hash."""
    home = cache / digest
    with explained(f"{folder} cannot be copied to {cache}", kind=SuiteError):
        if not _is_whole(home):
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".draft-", dir=cache) as draft:
                new = Path(draft, "new")
                new.mkdir()
                for name, path in files(folder):
                    (new / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, new / name)
                if content_hash(new) != digest:
                    raise SuiteError(
                        f"{folder} changed while it was read", "type the command again"
                    )
                if not _is_whole(home):  # else another was faster: its copy is in use already
                    with suppress(FileNotFoundError):
                        home.rename(Path(draft, "old"))
                    with suppress(OSError):
                        new.rename(home)
        os.utime(home)  # what is long unused may be cleared away
    return home


def _is_whole(home: Path) -> bool:
    """Return True if a copy has the content that its name promises."""
    return home.is_dir() and content_hash(home) == home.name
