"""Virtual environments made from a commit's own requirements: once for each content of those
files and interpreter, shared by all commits and commands that have them alike.

What is installed is part of a trial's environment, never of its code: so a package that lies in
the repository itself is refused here, it belongs on `pythonpath` or in `build`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from celedger.errors import MachineError
from celedger.model import Bytes, Environment, OutcomeKind, Task
from celedger.repo import Repository
from celedger.repo.checkouts import Checkout
from celedger.repo.folders import Folders
from celedger.system import process
from celedger.system.cache import FACTS, Cache, Held, shrink
from celedger.system.gate import Request
from celedger.system.programs import find_program
from celedger.trial.ending import classify, explain, tail
from celedger.trial.starts import INSTALLING, Starts

TIMEOUT = 1800.0  # seconds for one step: torch is 3 GB and may come over a slow line
_NO_ROOM = "No space left on device"
_INCLUDES = ("-r", "--requirement", "-c", "--constraint")
_FINDS = ("-f", "--find-links")
_EDITABLE = ("-e", "--editable")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2")
LINK = "120000 "  # mode of a symbolic link
# Variables that would make another environment than the one asked for.
_DROPPED = ("PYTHON", "CELEDGER_", "VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON", "UV_PROJECT")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task runs: the interpreter and all that surrounds it. Without one (`kind` is not
    ok) `problem` says why in one line, and `log` is what was said."""

    environment: Environment
    python: str
    kind: OutcomeKind = OutcomeKind.OK
    problem: str = ""
    log: str = ""


class Unmade(Exception):
    """There is no environment: `problem` says why in one line, `log` is what was said."""

    def __init__(self, kind: OutcomeKind, problem: str, log: str = "") -> None:
        super().__init__(problem)
        self.kind, self.problem, self.log = kind, problem, log


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requirement files as they are at a commit: those to install, and the mode and blob of
    everything that they name."""

    install: tuple[str, ...]
    files: Mapping[str, str]


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
    stop: Callable[[], bool] | None = None
    _wanted: dict[tuple[str, tuple[str, ...]], Wanted | Unmade] = field(default_factory=dict)
    _made: dict[str, tuple[Held, Folders, dict[int, Environment]]] = field(default_factory=dict)
    _failed: dict[str, Unmade] = field(default_factory=dict)

    def close(self) -> None:
        for held, _, _ in self._made.values():
            held.close()
        self._made.clear()

    def key(self, commit: str, task: Task, base: Place) -> str:
        """What tells one environment from another: the files' content and the interpreter.
        "" where the commit's files cannot be used."""
        wanted = self._find(commit, task)
        return "" if isinstance(wanted, Unmade) else _key(wanted, base)

    def has(self, commit: str, task: Task, base: Place) -> bool:
        """Whether `place` would have nothing to install."""
        key = self.key(commit, task, base)
        return key == "" or key in self._failed or (self.cache.folder / key / FACTS).exists()

    def place(
        self, commit: str, task: Task, base: Place, checkout: Callable[[], Checkout]
    ) -> Place:
        """The environment of a task at a commit, made if it must be. `base` is that of the
        interpreter it is made with; the checkout is moved to the commit where files of it are
        needed. Raises MachineError where the machine, not the commit, is what fails."""
        wanted = self._find(commit, task)
        if isinstance(wanted, Unmade):
            return _without(base, wanted, commit)
        key = _key(wanted, base)
        if key in self._failed:
            return _without(base, self._failed[key], key)
        self._admit(key, wanted, task, base)
        try:
            held, known = self._hold(key, wanted, task, base, commit, checkout)
        except Unmade as unmade:
            if unmade.kind is OutcomeKind.UNTESTABLE:
                self._failed[key] = unmade
            return _without(base, unmade, key)
        python = str(python_of(held.path))
        if task.threads not in known:
            known[task.threads] = self.describe(python, task)
        return Place(known[task.threads], python)

    # --- what is wanted

    def _find(self, commit: str, task: Task) -> Wanted | Unmade:
        name = (commit, task.venv)
        if name not in self._wanted:
            try:
                self._wanted[name] = wanted(self.repository, commit, task.venv)
            except Unmade as unmade:
                self._wanted[name] = unmade
        return self._wanted[name]

    # --- what there is

    def _admit(self, key: str, wanted: Wanted, task: Task, base: Place) -> None:
        """Ask whether an environment may be made from these files, also where it is there already.
        Raises NotAllowed."""
        if key in self._made:
            return
        home, env = self.cache.folder / key, install_variables(self.base_env)
        for request in install_requests(self.starts, task, base.python, home, env, wanted):
            self.starts.gate.admit(request)

    def _hold(
        self, key: str, wanted: Wanted, task: Task, base: Place, commit: str,
        checkout: Callable[[], Checkout],
    ) -> tuple[Held, dict[int, Environment]]:  # fmt: skip
        """The environment of a key, held, and how it was described for each number of threads."""
        if key in self._made:
            held, folders, known = self._made[key]
            after = folders.again(_clock(held.path))
            if after.known == folders.known or _listing(held.path) == held.facts["listing"]:
                return held, known
            held.close()  # a training installed something
            del self._made[key]
        for _ in range(2):
            held = self.cache.make(
                key, lambda home: self._fill(home, wanted, task, base, commit, checkout()),
                stop=self.stop,
            )  # fmt: skip
            if _listing(held.path) == held.facts.get("listing"):
                break
            held.close()
            if not self.cache.drop(key):
                raise MachineError(
                    f"a training changed {held.path}, and another celedger is using it",
                    "wait for that one, then type the command again",
                )
        self._made[key] = (held, Folders.read(held.path / "venv", _clock(held.path)), {})
        shrink(self.caches, self.limit)
        return held, self._made[key][2]

    def _fill(
        self, home: Path, wanted: Wanted, task: Task, base: Place, commit: str, checkout: Checkout
    ) -> Mapping[str, object]:
        checkout.move_to(commit)
        source = home / "source"
        source.mkdir()
        for name in wanted.files:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkout.path / name, source / name)
        env = install_variables(self.base_env)
        log = home / "log"
        for step, line in enumerate(install_lines(home, base.python, wanted.install, env), 1):
            permit = self.starts.environment(task, step, base.python, home, wanted.files)
            end = process.run(
                line, cwd=source, env=env, log=log, permit=permit, timeout=TIMEOUT, stop=self.stop
            )
            if end.end is process.End.STOPPED:
                raise KeyboardInterrupt
            kind = classify(end, log)
            said = tail(log)
            if _NO_ROOM in said:
                raise MachineError(
                    f"the disk of {home.parent} is full", "`celedger doctor --prune` frees some"
                )
            if kind is not OutcomeKind.OK:
                killed = kind is OutcomeKind.KILLED
                names = ", ".join(wanted.install)
                raise Unmade(
                    kind if killed else OutcomeKind.UNTESTABLE,
                    f"no environment from {names}: {explain(end, log)}", said,
                )  # fmt: skip
        return {"commit": commit, "files": list(wanted.install), "listing": _listing(home)}


def install_lines(
    home: Path, base: str, files: Sequence[str], env: Mapping[str, str]
) -> list[tuple[str, ...]]:
    wanted = [word for name in files for word in ("-r", name)]
    python, venv = str(python_of(home)), str(home / "venv")
    uv = shutil.which("uv", path=env.get("PATH", ""))
    if uv is not None:
        return [
            (uv, "venv", "--no-project", "--no-config", "--python", base, venv),
            (uv, "pip", "install", *_settings(env), "--compile-bytecode", "--link-mode", "copy",
             "--python", python, *wanted),
        ]  # fmt: skip
    return [
        (base, "-m", "venv", venv),
        (python, "-m", "pip", "install", *wanted),
    ]


def install_requests(
    starts: Starts, task: Task, python: str, home: Path, env: Mapping[str, str], wanted: Wanted
) -> list[Request]:
    """Return a description of each step of making an environment at `home`."""
    requests = []
    for step, line in enumerate(install_lines(home, python, wanted.install, env), 1):
        program = find_program(line[0], home, env)[0] or ""
        permit = starts.environment(task, step, python, home, wanted.files)
        requests.append(permit.request(line, home / "source", env, program))
    return requests


def install_variables(base: Mapping[str, str]) -> dict[str, str]:
    return {**{k: v for k, v in base.items() if not k.startswith(_DROPPED)}, **INSTALLING}


def _settings(env: Mapping[str, str]) -> tuple[str, ...]:
    """Options for uv, which else takes settings (`[tool.uv]` of pyproject.toml, uv.toml) from the
    folders above: an environment lies in the user's repository. Only the user's own file counts,
    for it may say which index this machine reaches; UV_CONFIG_FILE goes before it."""
    folder = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME", "/")) / ".config")
    own = Path(folder) / "uv" / "uv.toml"
    if own.is_file() and not env.get("UV_CONFIG_FILE"):
        return ("--config-file", str(own))
    return ("--no-config",)


def python_of(home: Path) -> Path:
    return home / "venv" / "bin" / "python"


def _key(wanted: Wanted, base: Place) -> str:
    interpreter = [base.python, base.environment.details["python"]]
    text = json.dumps([interpreter, wanted.install, dict(wanted.files)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _without(base: Place, unmade: Unmade, key: str) -> Place:
    """A trial that could not have its environment is kept under one of its own: neither the base
    interpreter's, in which it never ran, nor that which it will have once this is mended."""
    details = {**base.environment.details, "venv": f"not made from {key[:12]}"}
    text = json.dumps([base.environment.fingerprint, details["venv"]])
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    environment = Environment(fingerprint, details)
    return Place(environment, base.python, unmade.kind, unmade.problem, unmade.log)


def _listing(home: Path) -> str:
    """A hash over what is installed: names, sizes and times. Byte-code does not count."""
    total = hashlib.sha256()
    root = home / "venv"
    for above, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = Path(above, name)
            found = path.lstat()
            total.update(f"{path.relative_to(root)}\0{found.st_size} {found.st_mtime_ns}\0".encode(
                errors="surrogateescape"
            ))  # fmt: skip
    return total.hexdigest()


def _clock(home: Path) -> Callable[[], int]:
    def now() -> int:
        file = home / "clock"
        file.touch()
        return file.stat().st_ctime_ns

    return now


def wanted(repository: Repository, sha: str, patterns: Sequence[str]) -> Wanted:
    """Return the requirement files of a commit, and what they include. Raises Unmade where one
    names the repository's own code, or is a link: what that leads to is no part of the commit."""
    files = dict(repository.matching(sha, patterns))
    if not files:
        raise Unmade(OutcomeKind.UNTESTABLE, f"the commit has no {' or '.join(patterns)}")
    install = tuple(files)
    pending, seen = list(install), set(install)
    while pending:
        _refuse_links(files)
        name = pending.pop()
        text = repository.blob(sha, name).decode("utf-8", "replace")
        for kind, value in _lines(text, name):
            # pip takes what a file includes from beside it, and a path from where it runs.
            target = _beside("" if kind == "local" else name, value)
            if target is None:
                raise Unmade(
                    OutcomeKind.UNTESTABLE,
                    f"{name} names {value!r}, which is outside the commit's tree",
                )
            found = repository.matching(sha, [target])
            folder = target not in found
            if kind == "local" and folder:
                raise Unmade(
                    OutcomeKind.UNTESTABLE,
                    f"{name} names {value!r}: a package of the repository itself goes on "
                    "`pythonpath` or into `build`",
                )
            if kind == "find" and not found:
                found = repository.matching(sha, [_beside("", value) or target])
            files |= found
            if kind == "include" and target not in seen:
                seen.add(target)
                pending += [target] if found else []
    _refuse_links(files)
    return Wanted(install, files)


def _refuse_links(files: Mapping[str, str]) -> None:
    link = next((name for name, entry in files.items() if entry.startswith(LINK)), None)
    if link is not None:
        raise Unmade(OutcomeKind.UNTESTABLE, f"{link} is a symbolic link: name the file itself")


# --- requirement files (pip's "Requirements File Format")


def _lines(text: str, name: str) -> list[tuple[str, str]]:
    """What a requirement file names beside it: `include` for a file of requirements, `find` for a
    folder of archives, `local` for a package by its path. Raises Unmade for an editable one."""
    found = []
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.split()
        if not words:
            continue
        option, _, value = words[0].partition("=")
        value = value or (words[1] if len(words) > 1 else "")
        short = re.match(r"(-[rcfe])(.+)", words[0])
        if short is not None and not words[0].startswith("--"):
            option, value = short[1], short[2]
        if option in _EDITABLE:
            raise Unmade(
                OutcomeKind.UNTESTABLE,
                f"{name} installs {value!r} in editable form: the repository's own code goes on "
                "`pythonpath`",
            )
        if option in _INCLUDES and "://" not in value:
            found.append(("include", value))
        elif option in _FINDS and "://" not in value:
            found.append(("find", value))
        elif not option.startswith("-"):
            local = _local(line)
            found += [("local", local)] if local else []
    return found


def _local(line: str) -> str:
    """The path of `./wheels/x.whl`, `x @ file:./x.whl` or `.[extra]`; "" for a name or a URL."""
    text = line.partition(";")[0].strip()
    _, at, url = text.partition("@")
    text = url.strip() if at and ("/" in url or "file:" in url) else text.split(" ")[0]
    if text.startswith("file:"):
        return re.sub(r"^file:(//)?", "", text)
    if "://" in text or text.startswith("git+"):
        return ""
    text = re.sub(r"\[[^\]]*\]$", "", text)
    return text if text.startswith((".", "/")) or "/" in text or text.endswith(_ARCHIVES) else ""


def _beside(name: str, value: str) -> str | None:
    """A path in a requirement file, from the tree's root; None for one outside."""
    if value.startswith("/"):
        return None
    parts = list(PurePosixPath(name).parent.parts)
    for part in PurePosixPath(value).parts:
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts) or "."
