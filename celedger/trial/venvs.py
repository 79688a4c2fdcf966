"""Virtual environments made from a commit's own requirements: once for each content of those
files and interpreter, shared by all commits and commands that have them alike.

What is installed is part of a trial's environment, never of its code: so a package that lies in
the repository itself is refused here, it belongs on `pythonpath` or in `build`. A training that
installs something has its environment made anew for the next one.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from celedger.errors import MachineError
from celedger.model import Bytes, Environment, OutcomeKind, Task
from celedger.repo import Repository
from celedger.repo.checkouts import Checkout
from celedger.system import process
from celedger.system.cache import FACTS, Cache, Held, shrink
from celedger.system.gate import Request
from celedger.system.programs import find_program
from celedger.trial.ending import classify, explain, tail
from celedger.trial.starts import INSTALLING, Starts
from celedger.trial.surroundings import PLACES, SETTINGS, passed

TIMEOUT = 1800.0  # seconds for one step: torch is 3 GB and may come over a slow line
NO_ROOM = "No space left on device"
_LINK = "120000 "  # mode of a symbolic link
# Variables that would make another environment than the one asked for.
_DROPPED = ("UV_PYTHON", "UV_PROJECT")
# Lines of pip's "Requirements File Format" that name something beside the file.
_EDITABLE = re.compile(r"(?:-e|--editable)[ =]*(.+)")
_INCLUDE = re.compile(r"(?:-[rc]|--requirement|--constraint)[ =]*(\S+)")
_FIND = re.compile(r"(?:-f|--find-links)[ =]*(\S+)")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2")


@dataclass(frozen=True, slots=True)
class Installation:
    """Where a task runs: the interpreter and all that surrounds it. Without one (`kind` is not
    ok) `problem` says why in one line, and `log` is the output of what failed."""

    environment: Environment
    python: str
    kind: OutcomeKind = OutcomeKind.OK
    problem: str = ""
    log: str = ""


class Unmade(Exception):
    """There is no environment: `problem` says why in one line, `log` is the output of what
    failed."""

    def __init__(
        self, problem: str, kind: OutcomeKind = OutcomeKind.UNTESTABLE, log: str = ""
    ) -> None:
        super().__init__(problem)
        self.kind, self.problem, self.log = kind, problem, log


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirement files as they are at a commit: those to install, and the mode and blob of
    everything that they name."""

    install: tuple[str, ...]
    files: Mapping[str, str]

    def key(self, base: Installation) -> str:
        interpreter = [base.python, base.environment.details["python"]]
        text = json.dumps([interpreter, self.install, dict(self.files)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Venvs:
    """The virtual environments of one command; those it uses stay held until `close`."""

    repository: Repository
    cache: Cache
    caches: tuple[Cache, ...]
    limit: Bytes
    base_env: Mapping[str, str]
    describe: Callable[[str, Task], Environment]  # of an interpreter, for a task
    starts: Starts
    _requirements: dict[tuple[str, tuple[str, ...]], Requirements | Unmade] = field(
        default_factory=dict
    )
    _entries: dict[str, Held] = field(default_factory=dict)
    _described: dict[tuple[str, str], Environment] = field(default_factory=dict)
    _failed: dict[str, Unmade] = field(default_factory=dict)

    def close(self) -> None:
        for entry in self._entries.values():
            entry.close()
        self._entries.clear()

    def key(self, commit: str, task: Task, base: Installation) -> str:
        """Return what tells one environment from another: the files' content and the interpreter.
        "" where the commit's files cannot be used."""
        try:
            return self._files(commit, task).key(base)
        except Unmade:
            return ""

    def has(self, commit: str, task: Task, base: Installation) -> bool:
        """Return True if `place` would have nothing to install."""
        key = self.key(commit, task, base)
        return key == "" or key in self._failed or (self.cache.folder / key / FACTS).exists()

    def place(
        self, commit: str, task: Task, base: Installation, checkout: Callable[[], Checkout]
    ) -> Installation:
        """Return the environment of a task at a commit, made if it must be. `base` is that of the
        interpreter it is made with; the checkout is moved to the commit where files of it are
        needed. Raises MachineError where the machine, not the commit, is what fails."""
        key = commit
        try:
            files = self._files(commit, task)
            key = files.key(base)
            if key in self._failed:
                raise self._failed[key]
            if key not in self._entries:
                self._admit(key, files, task, base)
            python = str(python_of(self._entry(key, files, task, base, commit, checkout).path))
        except Unmade as unmade:
            if unmade.kind is OutcomeKind.UNTESTABLE:
                self._failed[key] = unmade
            return _without(base, unmade, key)
        if (key, task.name) not in self._described:
            self._described[key, task.name] = self.describe(python, task)
        return Installation(self._described[key, task.name], python)

    def _files(self, commit: str, task: Task) -> Requirements:
        """Return the requirement files of a commit. Raises Unmade."""
        name = (commit, task.venv)
        if name not in self._requirements:
            try:
                self._requirements[name] = requirements(self.repository, commit, task.venv)
            except Unmade as unmade:
                self._requirements[name] = unmade
        files = self._requirements[name]
        if isinstance(files, Unmade):
            raise files
        return files

    def _admit(self, key: str, files: Requirements, task: Task, base: Installation) -> None:
        """Ask whether an environment may be made from these files, also where it is there already.
        Raises NotAllowed."""
        home, env = self.cache.folder / key, install_variables(self.base_env)
        for request in install_requests(self.starts, task, base.python, home, env, files):
            self.starts.gate.admit(request)

    def _entry(
        self, key: str, files: Requirements, task: Task, base: Installation, commit: str,
        checkout: Callable[[], Checkout],
    ) -> Held:  # fmt: skip
        """Return the environment of a key, held and as it was made."""
        entry = self._entries.pop(key, None)
        while entry is None or _stamps(entry.path) != entry.facts.get("stamps"):
            if entry is not None:  # a training installed something
                entry.close()
                if not self.cache.drop(key):
                    raise MachineError(
                        f"a training changed {entry.path}, and another celedger is using it",
                        "wait for that one, then type the command again",
                    )
            entry = self.cache.make(
                key, lambda home: self._install(home, files, task, base, commit, checkout())
            )
            shrink(self.caches, self.limit)
        self._entries[key] = entry
        return entry

    def _install(
        self, home: Path, files: Requirements, task: Task, base: Installation, commit: str,
        checkout: Checkout,
    ) -> Mapping[str, object]:  # fmt: skip
        checkout.move_to(commit)
        source, log = home / "source", home / "log"
        source.mkdir()
        for name in files.files:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkout.path / name, source / name)
        env = install_variables(self.base_env)
        for step, line in enumerate(install_lines(home, base.python, files.install, env), 1):
            permit = self.starts.environment(task, step, base.python, home, files.files)
            end = process.run(line, cwd=source, env=env, log=log, permit=permit, timeout=TIMEOUT)
            kind, output = classify(end, log), tail(log)
            if NO_ROOM in output:
                raise MachineError(
                    f"the disk of {home.parent} is full", "`celedger doctor --prune` frees some"
                )
            if kind is not OutcomeKind.OK:
                if kind is not OutcomeKind.KILLED:
                    kind = OutcomeKind.UNTESTABLE
                names = ", ".join(files.install)
                raise Unmade(f"no environment from {names}: {explain(end, log)}", kind, output)
        return {"commit": commit, "files": list(files.install), "stamps": _stamps(home)}


def install_lines(
    home: Path, base: str, files: Sequence[str], env: Mapping[str, str]
) -> list[tuple[str, ...]]:
    """Return the commands that make an environment from requirement files: by uv where it is
    installed, else by venv and pip."""
    options = [word for name in files for word in ("-r", name)]
    python, venv = str(python_of(home)), str(home / "venv")
    own = str(Path(sys.executable).parent)  # of `celedger[uv]`
    uv = shutil.which("uv", path=os.pathsep.join([env.get("PATH", ""), own]))
    if uv is not None:
        return [
            (uv, "venv", "--no-project", "--no-config", "--python", base, venv),
            (uv, "pip", "install", *_settings(env), "--compile-bytecode", "--link-mode", "copy",
             "--python", python, *options),
        ]  # fmt: skip
    return [
        (base, "-m", "venv", venv),
        (python, "-m", "pip", "install", *options),
    ]


def install_requests(
    starts: Starts, task: Task, python: str, home: Path, env: Mapping[str, str], files: Requirements
) -> list[Request]:
    """Return a description of each step of making an environment at `home`."""
    requests = []
    for step, line in enumerate(install_lines(home, python, files.install, env), 1):
        program = find_program(line[0], home, env)[0] or ""
        permit = starts.environment(task, step, python, home, files.files)
        requests.append(permit.request(line, home / "source", env, program))
    return requests


def install_variables(base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an installation: those of a training, and the installers' own."""
    own = passed(base, (*SETTINGS, *PLACES, "PIP_*", "UV_*"))
    return {**{k: v for k, v in own.items() if not k.startswith(_DROPPED)}, **INSTALLING}


def _settings(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return options for uv, which else takes settings (`[tool.uv]` of pyproject.toml, uv.toml)
    from the folders above: an environment lies in the user's repository. Only the user's own file
    counts, for it may say which index this machine reaches; UV_CONFIG_FILE goes before it."""
    folder = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME", "/")) / ".config")
    own = Path(folder) / "uv" / "uv.toml"
    if own.is_file() and not env.get("UV_CONFIG_FILE"):
        return ("--config-file", str(own))
    return ("--no-config",)


def python_of(home: Path) -> Path:
    return home / "venv" / "bin" / "python"


def _stamps(home: Path) -> list[int]:
    """Return the times (ns) of the folders that change when something is installed."""
    return [path.stat().st_mtime_ns for path in sorted(home.glob("venv/lib/*/site-packages"))]


def _without(base: Installation, unmade: Unmade, key: str) -> Installation:
    """Return the environment under which a trial is kept that could not have its own: neither the
    base interpreter's, in which it never ran, nor that which it will have once this is mended."""
    details = {**base.environment.details, "venv": f"not made from {key[:12]}"}
    text = json.dumps([base.environment.fingerprint, details["venv"]])
    environment = Environment(hashlib.sha256(text.encode()).hexdigest(), details)
    return Installation(environment, base.python, unmade.kind, unmade.problem, unmade.log)


def requirements(repository: Repository, sha: str, patterns: Sequence[str]) -> Requirements:
    """Return the requirement files of a commit, and what they include. Raises Unmade where one
    names the repository's own code, or is a link: what that leads to is no part of the commit."""
    files = dict(repository.matching(sha, patterns))
    if not files:
        raise Unmade(f"the commit has no {' or '.join(patterns)}")
    install = tuple(files)
    pending = list(install)
    for name in pending:  # it grows
        _refuse_links(files)
        for kind, value in _named(repository.blob(sha, name).decode("utf-8", "replace"), name):
            # pip takes what a file includes from beside it, and a path from where it runs.
            path = _inside("" if kind == "local" else name, value)
            if path is None:
                raise Unmade(f"{name} names {value!r}, which is outside the commit's tree")
            matching = repository.matching(sha, [path])
            if kind == "local" and path not in matching:
                raise Unmade(
                    f"{name} names {value!r}: a package of the repository itself goes on "
                    "`pythonpath` or into `build`"
                )
            if kind == "find" and not matching:
                matching = repository.matching(sha, [_inside("", value) or path])
            if kind == "include" and path in matching and path not in pending:
                pending.append(path)
            files |= matching
    _refuse_links(files)
    return Requirements(install, files)


def _refuse_links(files: Mapping[str, str]) -> None:
    """Raise Unmade where one is a link: its target is nowhere read, nor shown."""
    link = next((name for name, entry in files.items() if entry.startswith(_LINK)), None)
    if link is not None:
        raise Unmade(f"{link} is a symbolic link: name the file itself")


def _named(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield what a requirement file names beside it: `include` for a file of requirements, `find`
    for a folder of archives, `local` for a package by its path. Raises Unmade for an editable
    one."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if editable := _EDITABLE.match(line):
            raise Unmade(
                f"{name} installs {editable[1]!r} in editable form: the repository's own code goes "
                "on `pythonpath`"
            )
        for kind, option in (("include", _INCLUDE), ("find", _FIND)):
            if (match := option.match(line)) and "://" not in match[1]:
                yield kind, match[1].strip("\"'")
        if not line.startswith("-") and (path := _local(line)):
            yield "local", path


def _local(line: str) -> str:
    """Return the path of `./wheels/x.whl`, `x @ file:./x.whl` or `.[extra]`; "" for a name or a
    URL."""
    text = line.partition(";")[0].strip()
    _, at, url = text.partition("@")
    text = url.strip() if at and ("/" in url or "file:" in url) else text.split(" ")[0]
    if text.startswith("file:"):
        return re.sub(r"^file:(//)?", "", text)
    if "://" in text or text.startswith("git+"):
        return ""
    text = re.sub(r"\[[^\]]*\]$", "", text)
    return text if text.startswith((".", "/")) or "/" in text or text.endswith(_ARCHIVES) else ""


def _inside(name: str, value: str) -> str | None:
    """Return a path that a file of the tree names, from the tree's root; None for one outside."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), value))
    return None if path.startswith(("/", "../")) or path == ".." else path
