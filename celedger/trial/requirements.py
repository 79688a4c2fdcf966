"""Read the requirement files of a commit, and the paths of its tree that they name: the inputs of a
virtual environment. Of pip's "Requirements File Format" only options and paths of files are read
here.

Installed packages are part of a trial's environment, never of its code. A package in the repository
itself is refused: it belongs on `pythonpath` or in `build`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from celedger.model import OutcomeKind
from celedger.repo import Repository

_LINK = "120000 "  # mode of a symbolic link
_OPTION = re.compile(r"(-[rcfe]|--requirement|--constraint|--find-links|--editable)[ =]*(\S+)")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2")


class Unmade(Exception):
    """An environment cannot be made: `problem` is the reason in one line, `log` the output of the
    command that failed."""

    def __init__(
        self, problem: str, kind: OutcomeKind = OutcomeKind.UNTESTABLE, log: str = ""
    ) -> None:
        super().__init__(problem)
        self.kind, self.problem, self.log = kind, problem, log


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirement files at a commit: those to install, and the mode and blob of every file that
    they name."""

    install: tuple[str, ...]
    files: Mapping[str, str]


def requirements(repository: Repository, sha: str, patterns: Sequence[str]) -> Requirements:
    """Return the requirement files of a commit, and the files they include. Raises Unmade if one
    names the repository's own code, or is a link, because its target is no part of the commit."""
    files = dict(repository.matching(sha, patterns))
    if not files:
        raise Unmade(f"the commit has no {' or '.join(patterns)}")
    install = tuple(files)
    pending = list(install)
    for name in pending:  # the loop adds to it
        link = next((name for name, entry in files.items() if entry.startswith(_LINK)), None)
        if link is not None:
            raise Unmade(f"{link} is a symbolic link: name the file itself")
        for option, value in _named(repository.blob(sha, name).decode("utf-8", "replace")):
            # pip resolves an included file from beside the file, and a path from the working
            # directory.
            beside = posixpath.normpath(posixpath.join(posixpath.dirname(name), value))
            path = beside if option in ("r", "c") else posixpath.normpath(value)
            if path.startswith(("/", "..")):
                raise Unmade(f"{name} names {value!r}, which is outside the commit's tree")
            matching = repository.matching(sha, [path, beside] if option == "f" else [path])
            if option == "e" or (not option and path not in matching):
                kind = "in editable form: it" if option else "of the repository itself: it"
                raise Unmade(
                    f"{name} installs {value!r} {kind} goes on `pythonpath` or into `build`"
                )
            if option in ("r", "c") and path in matching and path not in pending:
                pending.append(path)
            files |= matching
    return Requirements(install, files)


def _named(text: str) -> Iterator[tuple[str, str]]:
    """Yield the files that a requirement file names: the letter of an option (`r`, `c`, `f`, `e`),
    or "" for a package by its path, with the path. URLs are left out."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if match := _OPTION.match(line):
            if "://" not in match[2]:
                yield match[1].lstrip("-")[0], match[2].strip("\"'")
        elif not line.startswith("-") and (path := _path(line)):
            yield "", path


def _path(line: str) -> str:
    """Return the path of `./wheels/x.whl`, `x @ file:./x.whl` or `.[extra]`; "" for a name or a
    URL."""
    text = line.partition(";")[0].strip()
    _, at, url = text.partition("@")
    text = url.strip() if at and ("/" in url or "file:" in url) else text.split(" ")[0]
    text = re.sub(r"^file:(//)?|\[[^\]]*\]$", "", text)
    if "://" in text or text.startswith("git+"):
        return ""
    return text if text.startswith(".") or "/" in text or text.endswith(_ARCHIVES) else ""
