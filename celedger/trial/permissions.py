"""Permissions of a person on this machine. A command that a person types allows what it starts; the
worker starts only what was allowed before, and waits with the rest.

A request describes all that a merged file can have a say in: the settings, what a task asks for,
the files of its suite, the programs that git tracks (trial/permission_requests.py). Those that were
allowed lie in `.git/celedger/allowed`, where no merge and no clone reaches. Must not know what a
suite or a trial is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from celedger.base import files
from celedger.base.errors import CeledgerError, explained
from celedger.base.text import some
from celedger.repo import Repository

LONGEST_TEXT = 1 << 18  # bytes of a file that is shown, and kept to show what changed in it
FILES = ("files", "requirements", "program")  # facts that name files by their content
_NAMED = 3  # changes that a message names
_NEW = "new since it was last allowed"


@dataclass(frozen=True)
class Request:
    """Something that a person may allow. `subject` says what it is, `facts` (JSON) all that counts
    of it."""

    subject: str
    facts: Mapping[str, object]

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 (64 hex digits) of subject and facts."""
        text = json.dumps([self.subject, self.facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def group(self) -> str:
        """Return what requests of the same subject have in common (16 hex digits)."""
        return hashlib.sha256(self.subject.encode(errors="surrogateescape")).hexdigest()[:16]


def settings_request(merged: Mapping[str, object]) -> Request:
    """Return what the repository's own file of settings asks for; nothing where it says nothing."""
    return Request("settings", {"settings": dict(merged)} if merged else {})


def content_of(path: Path, digest: str) -> bytes | None:
    """Return the content of a file, or where a link points, if that is what has this digest and is
    no longer than LONGEST_TEXT."""
    contents = []
    with suppress(OSError):
        if path.is_symlink():
            contents.append(os.fsencode(path.readlink()))
        if path.stat().st_size <= LONGEST_TEXT:
            contents.append(path.read_bytes())
    same = (c for c in contents if hashlib.sha256(c).hexdigest() == digest[-64:])
    return next(same, None)


class NotAllowed(CeledgerError):
    """The worker would start or obey something that is not approved on this machine: it waits."""


@dataclass
class Gate:
    """The permissions in one repository. `attended`: a person typed the command, so that what it
    starts is allowed by that."""

    folder: Path
    attended: bool
    repository: Repository | None = None
    grown: bool = False  # something was allowed that was not before
    _allowed: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, repository: Repository, *, attended: bool) -> Gate:
        return cls(repository.state_dir / "allowed", attended, repository)

    def review(
        self,
        requests: Iterable[Request],
        *,
        texts: Mapping[str, Path] | None = None,
        brought: Callable[[], bool] = lambda: False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Ask for what is about to be started. Attended, it is allowed; where a merge `brought` it
        since something else was, one line is told first.

        Raises NotAllowed. `texts` are files by the hash under which the facts name them: a copy is
        kept, so that a change of them can be shown.
        """
        new = self.missing(requests)
        for digest, path in (texts or {}).items() if new else ():
            copy = self.folder / f"{digest}.text"
            if not copy.exists() and (content := content_of(path, digest)) is not None:
                self._write(copy, content)
        if new and not self.attended:
            cause = "nothing was allowed here yet" if self.empty else _NEW
            raise NotAllowed(f"{cause}: {self._summary(new)}", self.hint)
        if new and not self.empty and brought():
            tell(f"{_NEW}: {self._summary(new)}")
        for request in new:
            text = json.dumps({"subject": request.subject, "facts": request.facts}, indent=1)
            self._write(self._file(request), text.encode())
            self._allowed.add(request.digest)
            self.grown = True

    def missing(self, requests: Iterable[Request]) -> list[Request]:
        """Return the requests that are not approved, without duplicates. An empty one needs no
        approval."""
        new: dict[str, Request] = {}
        for request in requests:
            is_allowed = request.digest in self._allowed or self._file(request).is_file()
            if is_allowed or not request.facts:
                self._allowed.add(request.digest)
            else:
                new[request.digest] = request
        return list(new.values())

    @property
    def empty(self) -> bool:
        """Return True if nothing was ever allowed here."""
        return next(self.folder.glob("*.json"), None) is None

    def latest(self, request: Request) -> Request | None:
        """Return what was last allowed of the same subject."""
        return next(reversed(self._history(f"{request.group}-*.json")), None)

    def last(self, fact: str) -> dict[str, str]:
        """Return a fact that is a mapping, joined over all that was allowed: the last counts."""
        values = (request.facts.get(fact) for request in self._history("*.json"))
        return {k: v for value in values if isinstance(value, dict) for k, v in value.items()}

    def _history(self, pattern: str) -> list[Request]:
        """Return what was allowed, in that order; what cannot be read is left out."""
        paths = [path for path in self.folder.glob(pattern) if path.is_file()]
        requests = []
        for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
            with suppress(OSError, ValueError, KeyError):
                row = json.loads(path.read_text())
                requests.append(Request(row["subject"], row["facts"]))
        return requests

    def kept(self, digest: str) -> bytes | None:
        """Return the content of a file that was asked for, or None where it was not kept."""
        try:
            return (self.folder / f"{digest}.text").read_bytes()
        except OSError:
            return None

    def short_hash(self, requests: Iterable[Request]) -> str:
        """Return 12 hex digits that stand for exactly these requests. Their key is this machine's
        own, so that nobody can search for a merge with the same digits as another. Raises
        MachineError where the key cannot be stored."""
        import hmac

        path = self.folder / "key"
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            key = os.urandom(32)
            self._write(path, key)
        digests = ",".join(sorted(request.digest for request in requests))
        return hmac.new(key, digests.encode(), "sha256").hexdigest()[:12]

    @property
    def hint(self) -> str:
        """Return what to type, in backquotes; from a linked work tree it must name that one."""
        repository = self.repository
        linked = repository is not None and repository.worktree != repository.root
        words = [
            "celedger",
            *(["-C", str(repository.worktree)] if linked and repository else []),
            "allow",
        ]
        typed = shlex.join(words)
        terminal = f"allow it: `{typed}`, or `{typed} HASH` without a terminal"
        return f"see it: `{typed} --dry-run`; {terminal}"

    def _summary(self, new: Sequence[Request]) -> str:
        """Name what differs from what was allowed before, in a few words."""
        names = list(dict.fromkeys(name for request in new for name in self._changes(request)))
        return some(names, _NAMED)

    def _changes(self, request: Request) -> list[str]:
        """Name what differs from what was last allowed of its subject: files first, which a person
        knows."""
        old = self.latest(request)
        if old is None and "settings" not in request.facts:
            return [request.subject]
        names: dict[bool, list[str]] = {True: [], False: []}  # of files, of others
        facts = old.facts if old is not None else {}
        for key in sorted({*request.facts, *facts}):
            before, now = facts.get(key, {}), request.facts.get(key, {})
            if isinstance(before, dict) and isinstance(now, dict):
                both = {**before, **now}
                names[key in FILES] += [n for n in both if before.get(n) != now.get(n)]
        others = ", ".join(names[False])
        return [*names[True], *([f"{request.subject} ({others})"] if others else [])]

    def _file(self, request: Request) -> Path:
        return self.folder / f"{request.group}-{request.digest}.json"

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file that nobody else can read."""
        with explained(f"{path} cannot be written"):
            files.replace(path, content)
