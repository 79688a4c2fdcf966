"""The user's settings: in the repository's `celedger.toml` or `[tool.celedger]` of its
pyproject.toml, and in a file of the user's own, which no merge reaches.

A flag outweighs a `CELEDGER_*` variable, which outweighs the user's own file, which outweighs the
repository's. Only what is the user's own leads out of the repository. Knows where the ledger and
the suites lie; does not open them.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

from celedger.base.errors import UsageError, explained
from celedger.base.files import beside
from celedger.base.model import Bytes
from celedger.base.text import some

FILES = ("celedger.toml", "pyproject.toml")  # the first of them that speaks of celedger counts
SUITES = "suites"  # the folder of the suites, unless configured
_NAMED = 20  # names of a hint
_DEVICE = re.compile(r"auto|cpu|cuda:\d{1,3}")
_SIZES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}  # fmt: skip
_SIZE = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_SIZES)})")
_WORDS = {"1": True, "true": True, "yes": True, "on": True,
          "0": False, "false": False, "no": False, "off": False}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in force."""

    ledger: Path  # the SQLite file
    suites: Path  # the folder whose subfolders are suites
    suite: str | None = None  # the one meant when none is named
    device: str = "auto"  # auto, cpu or cuda:N
    bisect_on_regression: bool = False  # the worker bisects what it finds worse
    bisect_budget: int = 50  # trials that bisects of one job of the worker may run
    hook_suite: str | None = None  # what a merge runs; default: `suite`
    cache_limit: Bytes = 20 * 10**9  # kept builds and environments; one torch is 1 to 6 GB
    sandbox: bool = False  # trainings and builds write only where they are meant to
    notify: tuple[str, ...] = ()  # addresses of alerts, as apprise has them
    workers: int | None = None  # trials that run at once; None: one, or one a visible GPU
    max_reruns: int = 6  # extra trials of a job, over all metrics; 0: none
    report: Path | None = None  # the page that the worker writes anew after each job
    engine: str = "local"  # where trials run: here, or on the nodes of a cluster
    engine_address: str = ""  # of the cluster; "": the one that the engine finds by itself
    # What the repository's own file says, word by word, and that file.
    merged: Mapping[str, object] = field(default_factory=dict, compare=False)
    files: tuple[Path, ...] = field(default=(), compare=False)


def load(
    repo_root: Path, env: Mapping[str, str], *, worktree: Path | None = None, **flags: object
) -> Config:
    """Return the settings in force. Keywords are those of `Config`; None means not given.

    The repository's file is looked for in `worktree` (the work tree one is in), then in
    `repo_root`. A path in it is relative to the root for the ledger, which all work trees share,
    and to the file for the suites; in a flag or variable it is relative to the current folder.
    Raises UsageError.
    """
    roots = list(dict.fromkeys([worktree or repo_root, repo_root]))
    file, merged = next(filter(None, map(_in_file, roots)), (None, {}))
    home = file.parent if file else roots[0]
    suites = next((root / SUITES for root in roots if (root / SUITES).is_dir()), None)
    settings: dict[str, Any] = {
        "ledger": repo_root / "ledger.db",
        "suites": suites or roots[0] / SUITES,
    }
    for key, value in merged.items():
        where, base = f"{file}: {key}", repo_root if key == "ledger" else home
        settings[key] = _checked(key, value, where, base)
        if key in _STAYING:
            _check_inside(str(value), where, env)
    explicit: dict[str, Any] = {}
    for where, key, value in _own(repo_root, env):
        explicit[key] = _checked(key, value, where, _NOWHERE)
    for key in _TYPED:
        variable = f"CELEDGER_{key.upper()}"
        if env.get(variable):  # an empty variable is none
            explicit[key] = _checked(key, _from_text(key, env[variable]), variable, Path.cwd())
        if flags.get(key) is not None:
            explicit[key] = _checked(key, flags[key], "--" + key.replace("_", "-"), Path.cwd())
    unknown = set(flags) - set(_TYPED)
    if unknown:
        raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
    if "ledger" not in explicit:
        _check_links(settings["ledger"], [repo_root], env)
        _check_links(beside(settings["ledger"]), [repo_root], env)
    if "suites" not in explicit:
        _check_links(settings["suites"], roots, env)
    files = (file,) if file else ()
    return Config(**{**settings, **explicit}, merged=merged, files=files)


def parse_size(value: object) -> Bytes | None:
    """`4000000000`, `"4GB"`, `"512MiB"`; None for what is no size from 1 byte to 1 EiB."""
    if isinstance(value, int) and not isinstance(value, bool):
        total: float = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        total = float(match[1]) * _SIZES[match[2]]
    else:
        return None
    return int(total) if 1 <= total <= 2**60 else None


def closest(name: str, names: Collection[str]) -> str:
    """Return a hint for a name that is none of those."""
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {some([*names], _NAMED)}"


def own_file(env: Mapping[str, str]) -> Path | None:
    """Return the user's own configuration, there or not; None where the variables name no home."""
    if env.get("XDG_CONFIG_HOME"):
        return Path(env["XDG_CONFIG_HOME"]) / "celedger" / "config.toml"
    return Path(env["HOME"]) / ".config" / "celedger" / "config.toml" if env.get("HOME") else None


def _own(repo_root: Path, env: Mapping[str, str]) -> list[tuple[str, str, object]]:
    """Return what the user's own file says for this repository: (where, key, value), the last
    counts."""
    file = own_file(env)
    with explained(f"{file} cannot be read", kind=UsageError):  # its folder may be closed to us
        if file is None or not file.is_file():
            return []
    table = read_toml(file)
    special = table.pop("repository", {})
    if not isinstance(special, dict) or not all(isinstance(t, dict) for t in special.values()):
        raise UsageError(f"{file}: repository is not a table of tables", _SPECIAL)
    tables = {f"{file}:": table}
    for path, settings in special.items():
        if Path(path).expanduser() == repo_root:
            tables[f'{file}: [repository."{path}"]'] = settings
    for where, settings in tables.items():
        _check_keys(where, settings, _OWN_RULES)
    return [(f"{where} {key}", key, table[key]) for where, table in tables.items() for key in table]


def source(*folders: Path) -> Path | None:
    """Return the file that configures celedger in the first of the folders that has one."""
    return next((file for file, _ in filter(None, map(_in_file, folders))), None)


def _in_file(folder: Path) -> tuple[Path, dict[str, object]] | None:
    """Return the file that configures celedger here, and what it says; None where there is none."""
    repository_file, shared = (folder / name for name in FILES)
    file = repository_file if repository_file.is_file() else shared
    if repository_file.is_dir():
        raise UsageError(f"{repository_file} is a folder", "it is the name of the settings' file")
    if leads_out(file):
        cause = f"{file} is a link that leads out of the repository"
        raise UsageError(cause, "put a file celedger.toml there")
    if not file.is_file() or (file is shared and b"celedger" not in file.read_bytes()):
        return None  # a pyproject.toml that is not about us may be as broken as it likes
    table: object = read_toml(file)
    if isinstance(table, dict) and file is shared:
        tool = table.get("tool")
        if not isinstance(tool, dict) or "celedger" not in tool:
            return None
        table = tool["celedger"]
    if not isinstance(table, dict):
        raise UsageError(f"{file}: celedger is not a table", "write [tool.celedger]")
    _check_keys(f"{file}:", table, _RULES)
    return file, table


def _check_keys(where: str, table: Mapping[str, object], rules: Mapping[str, object]) -> None:
    for key in table:
        if key not in rules:
            hint = closest(key, rules)
            if key in _OWN_RULES:
                hint = "it belongs in your own configuration, ~/.config/celedger/config.toml"
            raise UsageError(f"{where} unknown key {key!r}", hint)


def _check_inside(value: str, where: str, env: Mapping[str, str]) -> None:
    """Refuse a path in a merged file that leads out of the repository, or into git's own folder."""
    parts = PurePosixPath(value).parts
    outside = value.startswith(("/", "~")) or ".." in parts
    if outside or ".git" in map(str.lower, parts) or not value.isprintable():
        raise UsageError(f"{where} leads out of the repository: {value!r}", _instead(env))


def _check_links(path: Path, roots: Iterable[Path], env: Mapping[str, str]) -> None:
    """Refuse a link on the way from one of these folders to a path in it: a merge can lay one."""
    for root in roots:
        steps = [step for step in (path, *path.parents) if root in step.parents]
        link = next(filter(Path.is_symlink, steps), None)
        if link is not None:
            raise UsageError(f"{link} is a symbolic link", _instead(env))


def leads_out(path: Path) -> bool:
    """Return True for a link that leads out of the work tree it lies in, or into git's own folder:
    a merge can lay one. Outside of any repository a link may lead anywhere."""
    if not path.is_symlink():
        return False
    home = next((p for p in path.absolute().parents if (p / ".git").exists()), None)
    if home is None:
        return False
    target = Path(os.path.realpath(path))  # of a loop too
    inside = target.is_relative_to(home.resolve())
    return not inside or target.is_relative_to((home / ".git").resolve())


def _instead(env: Mapping[str, str]) -> str:
    return f"one outside belongs in your own configuration, {own_file(env) or 'none here'}"


def read_toml(file: Path, kind: type[UsageError] = UsageError) -> dict[str, object]:
    """Return what a TOML file says. Raises an error of a kind where it cannot be read."""
    import tomllib  # many repositories have no such file

    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))  # Windows marks a file so
    except OSError as error:
        raise kind(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise kind(f"{file} is not UTF-8") from error
    except (ValueError, RecursionError) as error:  # a bad date or a huge integer is a ValueError
        raise kind(f"{file} is not TOML: {error}") from error


# --- one rule a key: the checked value, or ValueError with what is wanted


def _path(value: object, base: Path) -> Path:
    if not isinstance(value, (str, Path)) or not str(value) or "\0" in str(value):
        raise ValueError("a path")
    path = Path(value).expanduser()
    if base == _NOWHERE and not path.is_absolute():
        raise ValueError("an absolute path")
    return base / path


def _rule(fits: Callable[[Any], object], expected: str) -> Callable[[object, Path], Any]:
    """Return a rule for a value that is taken as it is."""

    def check(value: object, _: Path) -> object:
        if not fits(value):
            raise ValueError(expected)
        return value

    return check


_name = _rule(lambda value: isinstance(value, str) and value, "the name of a suite")
_device = _rule(lambda value: _DEVICE.fullmatch(str(value)), "auto, cpu or cuda:N")
_switch = _rule(lambda value: isinstance(value, bool), "true or false")
_engine = _rule(lambda value: isinstance(value, str) and value, "the name of an engine")
_count = _rule(lambda value: type(value) is int and value >= 0, "a number of trials, 0 or more")
_workers = _rule(lambda value: type(value) is int and value > 0, "a number of trials, at least 1")
_address = _rule(lambda value: isinstance(value, str), "an address such as HOST:PORT, or a folder")


def _addresses(value: object, _: Path) -> tuple[str, ...]:
    addresses = [value] if isinstance(value, str) else value
    if not isinstance(addresses, list) or not all(
        isinstance(a, str) and "://" in a for a in addresses
    ):
        raise ValueError('a list of addresses such as "mailtos://user:password@example.org"')
    return tuple(addresses)


def _size(value: object, _: Path) -> Bytes:
    size = parse_size(value)
    if size is None:
        raise ValueError('a size such as "20GB"')
    return size


_NOWHERE = Path("/nowhere")  # paths in the user's own file are absolute
_SPECIAL = 'write [repository."/path/of/one"]'
_STAYING = ("ledger", "suites", "suite", "hook_suite")
_RULES: dict[str, Callable[[object, Path], object]] = {
    "ledger": _path,
    "suites": _path,
    "suite": _name,
    "device": _device,
    "bisect_on_regression": _switch,
    "bisect_budget": _count,
    "hook_suite": _name,
    "cache_limit": _size,
}
_OWN_RULES = {
    **_RULES,
    "sandbox": _switch,
    "notify": _addresses,
    "workers": _workers,
    "max_reruns": _count,
    "report": _path,
    "engine": _engine,
    "engine_address": _address,
}
_TYPED = (*_RULES, "workers", "engine", "engine_address")  # by a flag or a variable, too
assert [*_OWN_RULES, "merged", "files"] == [field.name for field in fields(Config)]


def _from_text(key: str, text: str) -> object:
    if _OWN_RULES[key] in (_count, _workers) and text.isdecimal():
        return int(text)
    return _WORDS.get(text.lower(), text) if _OWN_RULES[key] is _switch else text


def _checked(key: str, value: object, where: str, base: Path) -> object:
    try:
        return _OWN_RULES[key](value, base)
    except (ValueError, RuntimeError) as error:  # RuntimeError: a ~user that does not exist
        raise UsageError(f"{where} must be {error}, not {value!r}") from error
