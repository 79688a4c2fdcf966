"""The gate before every process that celedger starts. A command that a person types allows what it
starts; the worker starts only what was allowed before, on this machine, and waits with the rest.

A start is described by all that a merged file can have a say in: its words, folder and variables,
the program where git tracks it, and what its caller adds (the suite's files, its limits). What
differs from trial to trial, the paths of checkouts and the seed, stands there as a mark, such as
`\\0tree\\0`. No word, path or variable can hold a NUL, so no suite can write a mark, and a
description with the values of its marks is exactly what is started.

Descriptions that were allowed lie in `.git/celedger/allowed`, where no merge and no clone reaches.
Must not know what a suite or a trial is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from celedger.errors import CeledgerError, MachineError
from celedger.repo import Repository
from celedger.repo.plumbing import ask

_MARK = re.compile("\0([a-z]+)\0")
# Variables by which celedger speaks to its own child side, and the device: no suite sets them.
_OWN_VARIABLES = ("CELEDGER_", "CUDA_VISIBLE_DEVICES")
_LONGEST_TEXT = 1 << 18  # bytes of a file that is kept to show what changed in it
FILES = ("files", "requirements", "program")  # facts that name files by their content
_NAMED = 3  # changes that a message names


def mark(name: str) -> str:
    """Return the word that stands for a value which differs from start to start."""
    return f"\0{name}\0"


@dataclass(frozen=True)
class Request:
    """Something that a person may allow. `subject` says what it is, `facts` (JSON) all that counts
    of it."""

    subject: str
    facts: Mapping[str, object]

    @cached_property
    def digest(self) -> str:
        """The SHA-256 (64 hex digits) of subject and facts."""
        text = json.dumps([self.subject, self.facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def group(self) -> str:
        """What descriptions of the same subject have in common (16 hex digits)."""
        return hashlib.sha256(self.subject.encode(errors="surrogateescape")).hexdigest()[:16]


def settings_request(merged: Mapping[str, object]) -> Request:
    """Return what the repository's own file of settings asks for; nothing where it says nothing."""
    return Request("settings", {"settings": dict(merged)} if merged else {})


class NotAllowed(CeledgerError):
    """The worker would have to start or obey what nobody allowed on this machine: it waits."""

    def __init__(self, requests: Sequence[Request], cause: str, hint: str) -> None:
        super().__init__(cause, hint)
        self.requests = tuple(requests)


@dataclass
class Gate:
    """What was allowed in one repository. `attended`: a person typed the command, so that what it
    starts is allowed by that."""

    folder: Path
    attended: bool
    repository: Repository | None = None
    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))  # the user's own
    grown: bool = False  # something was allowed that was not before
    _allowed: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, repository: Repository, *, attended: bool) -> Gate:
        return cls(repository.state_dir / "allowed", attended, repository)

    def allows(self, request: Request) -> bool:
        """Return True if a person allowed it. What asks for nothing needs no word."""
        digest = request.digest
        if digest not in self._allowed and request.facts and not self._file(request).is_file():
            return False
        self._allowed.add(digest)
        return True

    def allow(self, request: Request) -> None:
        """Allow it from now on. Raises MachineError where that cannot be written down."""
        if self.allows(request):
            return
        text = json.dumps({"subject": request.subject, "facts": request.facts}, indent=1)
        self._write(self._file(request), text.encode())
        self._allowed.add(request.digest)
        self.grown = True

    def admit(self, request: Request) -> None:
        """Let one start pass, or raise NotAllowed."""
        if self.attended:
            self.allow(request)
        elif not self.allows(request):
            raise self.refusal([request])

    def review(
        self,
        requests: Iterable[Request],
        *,
        texts: Mapping[str, Path] | None = None,
        brought: Callable[[], bool] = lambda: False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Ask for all that is about to be started, before any of it is. Attended, it is allowed;
        where a merge `brought` it since something else was, one line is told first.

        Raises NotAllowed. `texts` are files by the hash under which the facts name them: a copy is
        kept, so that a change of them can be shown.
        """
        new = self.missing(requests)
        for digest, path in (texts or {}).items() if new else ():
            copy = self.folder / f"{digest}.text"
            with suppress(OSError):
                if not copy.exists() and path.stat().st_size <= _LONGEST_TEXT:
                    self._write(copy, path.read_bytes())
        if new and not self.attended:
            raise self.refusal(new)
        if new and not self.empty and brought():
            tell(f"new since it was last allowed: {self._summary(new)}")
        for request in new:
            self.allow(request)

    def missing(self, requests: Iterable[Request]) -> list[Request]:
        """Return those that nobody allowed, none twice."""
        new = {request.digest: request for request in requests if not self.allows(request)}
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
        """Return what was allowed, in that order."""
        files = [path for path in self.folder.glob(pattern) if path.is_file()]
        return _read(sorted(files, key=lambda path: path.stat().st_mtime_ns))

    def kept(self, digest: str) -> bytes | None:
        """Return the content of a file that was asked for, or None where it was not kept."""
        try:
            return (self.folder / f"{digest}.text").read_bytes()
        except OSError:
            return None

    def ask(self, whose: str, requests: Sequence[Request]) -> None:
        """Remember what somebody waits for, instead of what they waited for before."""
        name = hashlib.sha256(whose.encode(errors="surrogateescape")).hexdigest()[:16]
        path = self.folder / f"{name}.asked"
        if requests:
            rows = [{"subject": r.subject, "facts": r.facts} for r in requests]
            self._write(path, json.dumps(rows, indent=1).encode())
        else:
            path.unlink(missing_ok=True)

    def asked(self) -> list[Request]:
        """Return what anybody waits for."""
        return _read(sorted(self.folder.glob("*.asked")))

    def refusal(self, new: Sequence[Request]) -> NotAllowed:
        """Return the error that says what waits, and what to type."""
        cause = "nothing was allowed here yet" if self.empty else "new since it was last allowed"
        return NotAllowed(new, f"{cause}: {self._summary(new)}", self.hint)

    @property
    def hint(self) -> str:
        """Return what to type, in backquotes; from a linked work tree it must name that one."""
        here = self.repository
        linked = here is not None and here.worktree != here.root
        words = ["celedger", *(["-C", str(here.worktree)] if linked and here else []), "allow"]
        return f"see it: `{shlex.join(words)} --dry-run`; allow it: `{shlex.join(words)}`"

    def _summary(self, new: Sequence[Request]) -> str:
        """Name what differs from what was allowed before, in a few words."""
        names = list(dict.fromkeys(name for request in new for name in self._changes(request)))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return ", ".join(names[:_NAMED]) + more

    def _changes(self, request: Request) -> list[str]:
        """Files first: of these there are few, and they are what a person knows."""
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
            elif before != now:
                names[False].append(key)
        others = ", ".join(names[False])
        return [*names[True], *([f"{request.subject} ({others})"] if others else [])]

    def tracked(self, program: str) -> dict[str, str]:
        """Return what git tracks, in a work tree of the user's, of a program: itself, what it is a
        link to, and the files of the virtual environment that it belongs to. A merge can change
        these; each name comes with the hash of what it holds."""
        if self.repository is None or not program:
            return {}
        hashes: dict[str, str] = {}
        paths = {Path(program), Path(os.path.realpath(program))}
        for path in tuple(paths):
            if (path.parent.parent / "pyvenv.cfg").exists():
                paths.add(path.parent.parent)
            paths.update(folder for folder in path.parents if folder.is_symlink())
        for root in {self.repository.root, self.repository.worktree}:
            names = [
                str(path.relative_to(root))
                for path in paths
                if path.is_relative_to(root) and not path.is_relative_to(self.repository.common_dir)
            ]
            if names:
                out = ask(root, "ls-files", "-z", "--", *(f":(literal){n}" for n in names)).out
                for name in map(os.fsdecode, out.split(b"\0")[:-1]):
                    hashes[name] = _content(root / name)
        return hashes

    def _file(self, request: Request) -> Path:
        return self.folder / f"{request.group}-{request.digest}.json"

    def _write(self, path: Path, content: bytes) -> None:
        """Whole or not at all, and for nobody else to read."""
        draft = path.with_name(f".{os.getpid()}-{path.name}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                file.write(content)
            draft.replace(path)
        except OSError as error:
            raise MachineError(f"{path} cannot be written: {error.strerror}") from error


def _read(paths: Iterable[Path]) -> list[Request]:
    """Return the descriptions in files, one or a list in each; what cannot be read is left out."""
    requests = []
    for path in paths:
        with suppress(OSError, ValueError, KeyError):
            rows = json.loads(path.read_text())
            requests += [Request(row["subject"], row["facts"])
                         for row in (rows if isinstance(rows, list) else [rows])]  # fmt: skip
    return requests


@dataclass(frozen=True)
class Permit:
    """What it takes to start a process. Where one of `paths` appears, a mark stands in the
    description; `values` are those of marks in the words. `given` names variables that celedger
    sets; of the others those count which are not the user's own. `facts` join the description."""

    gate: Gate
    subject: str
    paths: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    given: Collection[str] = ()
    facts: Mapping[str, object] = field(default_factory=dict)

    def grant(
        self,
        argv: Sequence[str],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        program: str = "",
    ) -> tuple[str, ...]:
        """Return the words to start, their marks filled in. Raises NotAllowed."""
        self.gate.admit(self.request(argv, cwd, env, program))
        return self.filled(argv)

    def request(
        self,
        argv: Sequence[str],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        program: str = "",
    ) -> Request:
        """Return the description of a start."""
        own = self.gate.variables
        variables = {
            name: self._marked(value)
            for name, value in (own if env is None else env).items()
            if not name.startswith(_OWN_VARIABLES)
            and (name in self.given or own.get(name) != value)
        }
        facts: dict[str, object] = {
            "command": [self._marked(word) for word in argv],
            "folder": self._marked(str(cwd or "")),
            "variables": variables,
            **self.facts,
        }
        if tracked := self.gate.tracked(program):
            facts["program"] = tracked
        return Request(self.subject, facts)

    def filled(self, argv: Sequence[str]) -> tuple[str, ...]:
        values = {**self.paths, **self.values}
        return tuple(_MARK.sub(lambda match: values[match[1]], word) for word in argv)

    def _marked(self, text: str) -> str:
        for name, path in self._longest_first:
            text = text.replace(path, mark(name))
        return text

    @cached_property
    def _longest_first(self) -> list[tuple[str, str]]:
        named = [(name, path) for name, path in self.paths.items() if len(path) > 1]
        return sorted(named, key=lambda pair: -len(pair[1]))


def _content(path: Path) -> str:
    try:
        text = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return hashlib.sha256(text).hexdigest()
