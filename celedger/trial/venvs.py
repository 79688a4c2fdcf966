"""Make virtual environments from a commit's own requirements: one for each interpreter and content
of those files, shared by all commits and commands with equal ones. If a training installs
something, its environment is made again for the next one.

Of pip's "Requirements File Format" only options and paths of files are read here. Installed
packages are part of a trial's environment, never of its code. A package in the repository itself is
refused: it belongs on `pythonpath` or in `build`.

Also: lock files as exact pins (requirements, `pip freeze`, uv.lock), and which packages the files
of a commit want in another version than its training imported. That reads requirement files,
`pyproject.toml` and lock files, and judges only what it can parse.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from celedger.base.errors import MachineError, UsageError
from celedger.base.model import Bytes, Environment, OutcomeKind, Task
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.repo.checkouts import Checkout
from celedger.system import process
from celedger.system.cache import FACTS, FolderCache, Held, shrink
from celedger.trial.ending import classify, explain, tail
from celedger.trial.engine import Signals
from celedger.trial.training_variables import PLACES, SETTINGS, passed

_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*(?P<how>===?|@)\s*(?P<version>\S+)\s*(?P<marker>;.*)?"
)
_EXPORT = "name files with NAME==VERSION, such as `uv export` or `pip freeze` print"
_HASH = re.compile(r"\s--hash[= ]\S+")


def normal(name: str) -> str:
    """Return the name of a package as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str, file: str) -> dict[str, str]:
    """Return the line of each package of a lock file, by its name. Options of indexes and editable
    packages are left out: the first are the installer's, the second the code's own. Raises
    UsageError for a package without an exact version, or with two."""
    if file.endswith(".lock"):
        text = _of_uv(text, file)
    lines: dict[str, str] = {}
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = _HASH.sub("", re.sub(r"(^|\s)#.*", "", line)).strip()
        if not line or line.startswith(("-e", "--")):
            continue
        match = _PIN.fullmatch(line)
        if match is None or "*" in match["version"]:
            raise UsageError(
                f"{file} does not pin {line!r}",
                "name files with NAME==VERSION, such as `pip freeze`",
            )
        name = normal(match["name"])
        line = f"{name}{line[match.end('name') :]}"
        if lines.setdefault(name, line) != line:
            raise UsageError(f"{file} has {name} twice", "name a lock file for one platform")
    if not lines:
        raise UsageError(f"{file} pins no package", "name a lock file with NAME==VERSION")
    return lines


def _of_uv(text: str, file: str) -> str:
    """Return uv.lock as requirements, optional ones and groups too. A package that is needed only
    where a marker holds has the markers of those who need it: the installer evaluates them."""
    try:
        packages: list[dict[str, Any]] = tomllib.loads(text)["package"]
        own = {p["name"] for p in packages if {*p["source"]} & {"editable", "virtual", "directory"}}
        markers: dict[str, set[str]] = {}  # "" where it is needed anyway
        for package in packages:
            markers.setdefault(package["name"], set()).update([""] * (package["name"] in own))
        for _ in packages:
            for package in packages:
                groups = {**package.get("optional-dependencies", {}),
                          **package.get("dev-dependencies", {})}  # fmt: skip
                for need in sum(groups.values(), package.get("dependencies", [])):
                    above = markers[package["name"]]
                    markers[need["name"]] |= (
                        {need["marker"]} if above and "marker" in need else above
                    )
        lines = []
        for package in packages:
            name, among = package["name"], markers[package["name"]]
            if name in own or not among:
                continue
            if "registry" not in package["source"]:
                raise UsageError(f"{file} has {name} from elsewhere than an index", _EXPORT)
            where = "" if "" in among else f" ; {' or '.join(f'({m})' for m in sorted(among))}"
            lines.append(f"{name}=={package['version']}{where}")
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{file} is not a uv lock file", _EXPORT) from None
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A package that two lock files have otherwise. "" is none."""

    name: str
    old: str
    new: str

    def title(self) -> str:
        """Return `numpy 1.26.4 → 2.0.0`."""
        ends = [_version(line) or "none" for line in (self.old, self.new)]
        return f"{self.name} {' → '.join(ends)}"


def _version(line: str) -> str:
    match = _PIN.fullmatch(line) if line else None
    return match["version"] if match else ""


def upgrades(
    old: Mapping[str, str], new: Mapping[str, str], needs: Mapping[str, Sequence[str]]
) -> list[Upgrade]:
    """Return what differs, dependencies before what needs them, then by name; what is removed
    last. `needs` are the packages that each one depends on."""
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    kept = [name for name in changed if name in new]
    order = [*_dependencies_first(kept, needs), *(n for n in changed if n not in new)]
    return [Upgrade(name, old.get(name, ""), new.get(name, "")) for name in order]


def _dependencies_first(names: Iterable[str], needs: Mapping[str, Sequence[str]]) -> list[str]:
    order: dict[str, None] = {}

    def add(name: str, above: frozenset[str]) -> None:
        if name not in order and name not in above:  # packages may need each other
            for other in sorted(needs.get(name, ())):
                add(other, above | {name})
            order[name] = None

    for name in names:
        add(name, frozenset())
    wanted = {*names}
    return [name for name in order if name in wanted]


def prefixes(old: Mapping[str, str], changes: Sequence[Upgrade]) -> Iterator[str]:
    """Yield the text of a lock file with none of the changes, with the first, the first two …"""
    lines = dict(old)
    yield _text(lines)
    for change in changes:
        lines.pop(change.name, None)
        if change.new:
            lines[change.name] = change.new
        yield _text(lines)


def _text(lines: Mapping[str, str]) -> str:
    return "".join(f"{lines[name]}\n" for name in sorted(lines))


TIMEOUT = 1800.0  # seconds for one step: torch is 3 GB and may come over a slow line
PINS = ".celedger-pins.txt"
"""A file that names every package of an environment. A search among upgrades puts it into a tree:
it is installed as it is, without what its packages ask for, and must fit together."""
NO_ROOM = "No space left on device"
# Variables that would make another environment than the requested one.
_DROPPED = ("UV_PYTHON", "UV_PROJECT")


@dataclass(frozen=True, slots=True)
class Installation:
    """The place where a task runs: the interpreter and its environment. If it could not be made
    (`kind` is not ok), `problem` is the reason in one line, and `log` the output of the command
    that failed."""

    environment: Environment
    python: str
    kind: OutcomeKind = OutcomeKind.OK
    problem: str = ""
    log: str = ""


class Site(Protocol):
    """The worker that needs an environment. Those in use stay locked in `held_venvs`."""

    ledger: Ledger
    signals: Signals
    held_venvs: dict[str, Held]

    def installing(self, commit: str, task: Task) -> AbstractContextManager[Checkout]:
        """Yield the checkout during an installation."""


@dataclass
class Venvs:
    """Makes the virtual environments of one command. `describe` returns the environment of an
    interpreter for a task, as a ledger has it; `review` raises NotAllowed if the interpreter at
    this path may not make one from these files."""

    repository: Repository
    cache: FolderCache
    caches: tuple[FolderCache, ...]
    limit: Bytes
    base_env: Mapping[str, str]
    describe: Callable[[Ledger, str, Task], Environment]
    review: Callable[[Task, str, Requirements], None]
    _requirements: dict[tuple[str, tuple[str, ...]], Requirements | Unmade] = field(
        default_factory=dict
    )
    _described: dict[tuple[str, str], Environment] = field(default_factory=dict)
    _failed: dict[str, Unmade] = field(default_factory=dict)

    def key(self, commit: str, task: Task, base: Installation) -> str:
        """Return the key of an environment: the files' content and the interpreter. "" if the
        commit's files cannot be used."""
        files = self._files(commit, task)
        if isinstance(files, Unmade):
            return ""
        interpreter = [base.python, base.environment.details["python"]]
        text = json.dumps([interpreter, files.install, dict(files.files)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def has(self, commit: str, task: Task, base: Installation) -> bool:
        """Return True if `place` would install nothing."""
        key = self.key(commit, task, base)
        return key == "" or key in self._failed or (self.cache.folder / key / FACTS).exists()

    def place(self, commit: str, task: Task, base: Installation, site: Site) -> Installation:
        """Return the environment of a task at a commit, made if it must be. `base` is that of the
        interpreter it is made with. Raises MachineError if the failure is the machine's and not the
        commit's."""
        files, key = self._files(commit, task), self.key(commit, task, base)
        try:
            if isinstance(files, Unmade):
                raise files
            if key in self._failed:
                raise self._failed[key]
            if key not in site.held_venvs:
                self.review(task, base.python, files)

            def install(home: Path) -> Mapping[str, object]:
                with site.installing(commit, task) as source:
                    source.move_to(commit)
                    return self._install(home, files, base.python, source.path, site.signals)

            python = str(python_of(self._entry(key, install, site.held_venvs).path))
        except Unmade as unmade:
            if unmade.kind is OutcomeKind.UNTESTABLE:
                self._failed[key] = unmade
            installation = _without(base, unmade, key or commit)
            return _searched(base, installation) if task.venv == (PINS,) else installation
        if task.venv == (PINS,):
            return _searched(base, Installation(base.environment, python))
        if (key, task.name) not in self._described:
            self._described[key, task.name] = self.describe(site.ledger, python, task)
        return Installation(self._described[key, task.name], python)

    def _files(self, commit: str, task: Task) -> Requirements | Unmade:
        """Return the requirement files of a commit, or the reason why they cannot be used."""
        name = (commit, task.venv)
        if name not in self._requirements:
            try:
                self._requirements[name] = requirements(self.repository, commit, task.venv)
            except Unmade as unmade:
                self._requirements[name] = unmade
        return self._requirements[name]

    def _entry(
        self, key: str, install: Callable[[Path], Mapping[str, object]], locked: dict[str, Held]
    ) -> Held:
        """Return the environment of a key, locked and unchanged since it was made."""
        entry = locked.pop(key, None)
        while entry is None or _stamps(entry.path) != entry.facts.get("stamps"):
            if entry is not None:  # a training installed something
                entry.close()
                if not self.cache.drop(key):
                    raise MachineError(
                        f"a training changed {entry.path}, and another celedger is using it",
                        "wait for that one, then type the command again",
                    )
            entry = self.cache.make(key, install)
            shrink(self.caches, self.limit)
        locked[key] = entry
        return entry

    def _install(
        self, home: Path, files: Requirements, python: str, tree: Path, signals: Signals
    ) -> Mapping[str, object]:
        source, log = home / "source", home / "log"
        source.mkdir()
        for name in files.files:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tree / name, source / name)
        env = install_variables(self.base_env)
        exact = files.install == (PINS,)
        for line in install_lines(home, python, files.install, env, exact=exact):
            end = process.run(
                line,
                cwd=source,
                env=env,
                log=log,
                timeout=TIMEOUT,
                on_tick=lambda _: signals.check(),
            )
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
        return {"stamps": _stamps(home)}


def install_lines(
    home: Path, base: str, files: Sequence[str], env: Mapping[str, str], *, exact: bool = False
) -> list[tuple[str, ...]]:
    """Return the commands that make an environment from requirement files: by uv if it is
    installed, else by venv and pip. An `exact` one gets nothing else, and is checked."""
    options = [word for name in files for word in ("-r", name)] + ["--no-deps"] * exact
    python, venv = str(python_of(home)), str(home / "venv")
    our_scripts = str(Path(sys.executable).parent)  # of `celedger[uv]`
    uv = shutil.which("uv", path=os.pathsep.join([env.get("PATH", ""), our_scripts]))
    if uv is not None:
        return [
            (uv, "venv", "--no-project", "--no-config", "--python", base, venv),
            (uv, "pip", "install", *_settings(env), "--compile-bytecode", "--link-mode", "copy",
             "--python", python, *options),
            *[(uv, "pip", "check", "--no-config", "--python", python)] * exact,
        ]  # fmt: skip
    return [
        (base, "-m", "venv", venv),
        (python, "-m", "pip", "install", *options),
        *[(python, "-m", "pip", "check")] * exact,
    ]


def install_variables(base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an installation: those of a training, and the installers' own."""
    passed_on = passed(base, (*SETTINGS, *PLACES, "PIP_*", "UV_*"))
    passed_on = {name: value for name, value in passed_on.items() if not name.startswith(_DROPPED)}
    return {**passed_on, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def _settings(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return options for uv that disable settings (`[tool.uv]` of pyproject.toml, uv.toml) in the
    folders above, because an environment is inside the user's repository. Only the user's own file
    counts, since it may name the index that this machine can reach; UV_CONFIG_FILE has priority."""
    folder = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME", "/")) / ".config")
    users_file = Path(folder) / "uv" / "uv.toml"
    if users_file.is_file() and not env.get("UV_CONFIG_FILE"):
        return ("--config-file", str(users_file))
    return ("--no-config",)


def python_of(home: Path) -> Path:
    return home / "venv" / "bin" / "python"


def _stamps(home: Path) -> list[int]:
    """Return the times (ns) of the folders that an installation changes."""
    return [path.stat().st_mtime_ns for path in sorted(home.glob("venv/lib/*/site-packages"))]


def _without(base: Installation, unmade: Unmade, key: str) -> Installation:
    """Return the environment of a trial whose own could not be made: neither the base
    interpreter's, in which it never ran, nor the one it will have after a repair."""
    details = {**base.environment.details, "venv": f"not made from {key[:12]}"}
    text = json.dumps([base.environment.fingerprint, details["venv"]])
    environment = Environment(hashlib.sha256(text.encode()).hexdigest(), details)
    return Installation(environment, base.python, unmade.kind, unmade.problem, unmade.log)


def _searched(base: Installation, installation: Installation) -> Installation:
    """Return an installation whose packages are what a search compares: they are the code of its
    trials, and part of no environment."""
    details = {k: v for k, v in base.environment.details.items() if k not in ("packages", "beside")}
    details["venv"] = PINS
    text = json.dumps([base.environment.fingerprint, PINS])
    environment = Environment(hashlib.sha256(text.encode()).hexdigest(), details)
    return replace(installation, environment=environment)


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
            relative = posixpath.normpath(posixpath.join(posixpath.dirname(name), value))
            path = relative if option in ("r", "c") else posixpath.normpath(value)
            if path.startswith(("/", "..")):
                raise Unmade(f"{name} names {value!r}, which is outside the commit's tree")
            matching = repository.matching(sha, [path, relative] if option == "f" else [path])
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


# --- packages that a commit wants in another version

_FILES = ("requirements*.txt", "requirements/*.txt", "constraints*.txt", "pyproject.toml",
          "uv.lock", "poetry.lock")  # fmt: skip
_REST = re.compile(r"\s(?:#|--).*|\s*\\$")  # of a line: a comment, options, a line that goes on


def unmet(
    repository: Repository, sha: str, installed: Mapping[str, str], imported: Collection[str]
) -> list[str]:
    """Return what a commit (a full hash) wants of these imported distributions and has not got,
    each as "torch ==2.13.0, trained with 2.12.0". Raises RepositoryError."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    versions = {normal(name): installed[name] for name in imported if name in installed}
    wanted: dict[str, str] = {}
    for file in repository.matching(sha, _FILES):
        text = repository.blob(sha, file).decode("utf-8", "replace")
        for line in _requirements(file, text):
            with suppress(ValueError):  # of options, paths and versions of no order
                need = Requirement(line)
                version = versions.get(normal(need.name))
                if version is None or need.marker is not None:
                    continue
                if not need.specifier.contains(Version(version), prereleases=True):
                    text = f"{need.name} {need.specifier}, trained with {version}"
                    wanted.setdefault(need.name, text)
    return list(wanted.values())


def _requirements(file: str, text: str) -> Iterator[str]:
    """Yield the requirements of a file, each as PEP 508 has it, among lines that are none."""
    if file.endswith(".txt"):
        yield from (_REST.sub("", line) for line in text.splitlines())
        return
    with suppress(tomllib.TOMLDecodeError, AttributeError, TypeError):
        document = tomllib.loads(text)
        yield from document.get("project", {}).get("dependencies", [])
        if file.endswith(".lock"):
            yield from (f"{p['name']}=={p['version']}" for p in document.get("package", ())
                        if "version" in p)  # fmt: skip
