"""Builds a repository from a list of commits, for the demo and for tests: names and dates are
given, so equal lists make equal hashes. Knows nothing of what the commits contain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from celedger.errors import RepositoryError
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
    of each key. Raises RepositoryError where there is a repository, or a parent is unknown."""
    if (path / ".git").exists():
        raise RepositoryError(f"{path} has a repository already")
    path.mkdir(parents=True, exist_ok=True)
    tell(
        path, "init", "--quiet", "--initial-branch=main", "--template=",
        f"--object-format={object_format}",
    )  # fmt: skip
    marks: dict[str, int] = {}
    stream = bytearray(b"feature done\n")
    for commit in commits:
        _write(stream, commit, marks)
    tell(
        path, "fast-import", "--quiet", "--force", "--export-marks=.git/celedger-marks",
        stdin=bytes(stream) + b"done\n",
    )  # fmt: skip
    file = path / ".git" / "celedger-marks"
    lines = dict(line.split() for line in file.read_text().splitlines())
    file.unlink()
    if checkout and marks:
        tell(path, "-c", "core.hooksPath=/dev/null", "reset", "--quiet", "--hard", "main", "--")
    return {key: lines[f":{mark}"] for key, mark in marks.items()}


def _write(stream: bytearray, commit: NewCommit, marks: dict[str, int]) -> None:
    if commit.key in marks:
        raise RepositoryError(f"two commits have the key {commit.key!r}")
    parents = commit.parents
    if parents is None:
        parents = (next(reversed(marks)),) if marks else ()
    try:
        from_marks = [marks[key] for key in parents]
    except KeyError as error:
        raise RepositoryError(f"{commit.key!r} has an unknown parent {error}") from error
    marks[commit.key] = mark = len(marks) + 1
    person = f"{commit.author} <{commit.email}> {commit.time} +0000\n".encode()
    if not from_marks:  # or fast-import would go on from the branch's present tip
        stream += b"reset refs/heads/main\n\n"
    stream += b"commit refs/heads/main\nmark :%d\n" % mark
    stream += b"author " + person + b"committer " + person
    _data(stream, commit.message.encode())
    for i, parent in enumerate(from_marks):
        stream += b"%s :%d\n" % (b"merge" if i else b"from", parent)
    # Deletions first: a folder may make room for a file of its name, and the other way.
    for name, value in sorted(commit.files.items(), key=lambda item: item[1] is not None):
        quoted = _quoted(name)
        if value is None:
            stream += b"D " + quoted + b"\n"
            continue
        blob = value if isinstance(value, Blob) else Blob(_bytes(value))
        stream += b"M " + blob.mode.encode() + b" inline " + quoted + b"\n"
        _data(stream, blob.content)
    if commit.tag is not None:
        stream += b"tag %s\nfrom :%d\ntagger " % (commit.tag.encode(), mark) + person
        _data(stream, commit.tag.encode())


def _quoted(name: str) -> bytes:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return b'"' + escaped.encode(errors="surrogateescape") + b'"'


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _data(stream: bytearray, content: bytes) -> None:
    stream += b"data %d\n" % len(content) + content + b"\n"
