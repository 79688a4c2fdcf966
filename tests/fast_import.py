"""Builds a repository from a list of commits, for tests and benchmarks: names and dates are
given, so equal lists make equal hashes. Knows nothing of what the commits contain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from celedger.base.errors import RepositoryError
from celedger.repo.plumbing import tell


@dataclass(frozen=True, slots=True)
class Blob:
    """A file's content with its git mode: 100644, 100755 (executable) or 120000 (a link)."""

    content: bytes
    mode: str = "100644"


@dataclass(frozen=True, slots=True)
class NewCommit:
    """A commit to be made. `files` are changes against its first parent (None deletes), for a
    merge too: what it takes over from its other parents must be listed. `parents` are keys of
    earlier commits; None is the one before. `tag` makes an annotated tag."""

    key: str
    message: str
    files: Mapping[str, str | bytes | Blob | None] = field(default_factory=dict)
    parents: tuple[str, ...] | None = None
    author: str = "A U Thor"
    email: str = "author@example.com"
    time: int = 1_700_000_000  # seconds since the epoch, UTC
    tag: str | None = None


def create(
    path: Path, commits: Iterable[NewCommit], *, object_format: str = "sha1", checkout: bool = True
) -> dict[str, str]:
    """Make a repository at `path` whose branch `main` ends in the last commit; returns the hash
    of each key. Raises RepositoryError where there is a repository."""
    if (path / ".git").exists():
        raise RepositoryError(f"{path} has a repository already")
    path.mkdir(parents=True, exist_ok=True)
    tell(
        path, "init", "--quiet", "--initial-branch=main", "--template=",
        f"--object-format={object_format}",
    )  # fmt: skip
    marks: dict[str, int] = {}
    stream = [b"feature done\n"]
    for commit in commits:
        parents = [*marks][-1:] if commit.parents is None else commit.parents
        stream += _written(commit, len(marks) + 1, [marks[key] for key in parents])
        marks[commit.key] = len(marks) + 1
    file = path / ".git" / "celedger-marks"
    tell(
        path, "fast-import", "--quiet", "--force", f"--export-marks={file.absolute()}",
        stdin=b"".join([*stream, b"done\n"]),
    )  # fmt: skip
    lines = dict(line.split() for line in file.read_text().splitlines())
    file.unlink()
    if checkout and marks:
        tell(path, "-c", "core.hooksPath=/dev/null", "reset", "--quiet", "--hard", "main", "--")
    return {key: lines[f":{mark}"] for key, mark in marks.items()}


def _written(commit: NewCommit, mark: int, parents: list[int]) -> Iterator[bytes]:
    """Yield a commit as `git fast-import` reads it."""
    person = f"{commit.author} <{commit.email}> {commit.time} +0000\n".encode()
    if not parents:  # or fast-import would go on from the branch's present tip
        yield b"reset refs/heads/main\n\n"
    yield b"commit refs/heads/main\nmark :%d\nauthor %scommitter %s" % (mark, person, person)
    yield _data(commit.message.encode())
    for i, parent in enumerate(parents):
        yield b"%s :%d\n" % (b"merge" if i else b"from", parent)
    # Deletions first: a folder may make room for a file of its name, and the other way.
    for name, value in sorted(commit.files.items(), key=lambda item: item[1] is not None):
        escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        quoted = b'"' + escaped.encode(errors="surrogateescape") + b'"\n'
        if value is None:
            yield b"D " + quoted
            continue
        content = value.encode() if isinstance(value, str) else value
        blob = content if isinstance(content, Blob) else Blob(content)
        yield b"M " + blob.mode.encode() + b" inline " + quoted + _data(blob.content)
    if commit.tag is not None:
        yield b"tag %s\nfrom :%d\ntagger %s" % (commit.tag.encode(), mark, person)
        yield _data(commit.tag.encode())


def _data(content: bytes) -> bytes:
    return b"data %d\n" % len(content) + content + b"\n"
