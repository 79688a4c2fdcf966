"""What the user decided once: `celedger.toml`, or `[tool.celedger]` in pyproject.toml.

A flag outweighs a `CELEDGER_*` variable, which outweighs the file. Knows where the ledger and the
suites lie; does not open them.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from celedger.errors import ConfigError
from celedger.model import Bytes, parse_size

FILES = ("celedger.toml", "pyproject.toml")  # the first of them that speaks of celedger counts
SUITES = "suites"  # the folder of the suites, unless configured
_DEVICE = re.compile(r"auto|cpu|cuda:\d{1,3}")
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Config:
    ledger: Path  # the SQLite file
    suites: Path  # the folder whose subfolders are suites
    suite: str | None = None  # the one meant when none is named
    device: str = "auto"  # auto, cpu or cuda:N
    bisect_on_regression: bool = False  # the worker bisects what it finds regressed
    hook_suite: str | None = None  # what a merge runs; default: `suite`
    cache_limit: Bytes = 20 * 10**9  # kept builds and environments; one torch is 1 to 6 GB


def load(
    repo_root: Path, env: Mapping[str, str], *, worktree: Path | None = None, **flags: object
) -> Config:
    """The settings in force. Keywords are those of `Config`; None means not given.

    The file is looked for in `worktree` (the work tree one is in), then in `repo_root`. A path in
    it is relative to the root for the ledger, which all work trees share, and to the file for the
    suites; in a flag or variable it is relative to the current folder. Raises ConfigError.
    """
    places = list(dict.fromkeys([worktree or repo_root, repo_root]))
    file, found = next(filter(None, map(_in_file, places)), (None, {}))
    home = file.parent if file else places[0]
    settings: dict[str, object] = {}
    for key, value in found.items():
        where = f"{file}: {key}"
        base = repo_root if key == "ledger" else home
        settings[key] = _checked(key, value, where, base)
    for key in _RULES:
        variable = f"CELEDGER_{key.upper()}"
        if env.get(variable):  # an empty variable is none
            settings[key] = _checked(key, _from_text(key, env[variable]), variable, Path.cwd())
        if flags.get(key) is not None:
            flag = "--" + key.replace("_", "-")
            settings[key] = _checked(key, flags[key], flag, Path.cwd())
    unknown = set(flags) - set(_RULES)
    if unknown:
        raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
    suites = next((place / SUITES for place in places if (place / SUITES).is_dir()), None)
    defaults = {"ledger": repo_root / "ledger.db", "suites": suites or places[0] / SUITES}
    return Config(**{**defaults, **settings})  # type: ignore[arg-type]  # checked by _RULES


def source(*folders: Path) -> Path | None:
    """The file that configures celedger in the first of the folders that has one."""
    return next((found[0] for found in map(_in_file, folders) if found), None)


def _in_file(folder: Path) -> tuple[Path, dict[str, object]] | None:
    """The file that configures celedger here, and what it says; None where there is none."""
    own, shared = (folder / name for name in FILES)
    if own.is_file():
        file, table = own, _read(own)
    elif shared.is_file() and _mentioned(shared):
        tool = _read(shared).get("tool", {})
        if not isinstance(tool, dict) or "celedger" not in tool:
            return None
        file, table = shared, tool["celedger"]
    else:
        return None
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: celedger is not a table", "write [tool.celedger]")
    for key in table:
        if key not in _RULES:
            close = difflib.get_close_matches(key, _RULES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(_RULES)}"
            raise ConfigError(f"{file}: unknown key {key!r}", hint)
    return file, table


def _mentioned(file: Path) -> bool:
    """Whether a pyproject.toml may be about us at all: one that is not may be as broken as it
    likes."""
    try:
        return b"celedger" in file.read_bytes()
    except OSError:
        return True  # reading it properly says what is wrong


def _read(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


# --- one rule a key: the checked value, or ValueError with what is wanted


def _path(value: object, base: Path) -> Path:
    if not isinstance(value, (str, Path)) or not str(value) or "\0" in str(value):
        raise ValueError("a path")
    return base / Path(value).expanduser()


def _name(value: object, base: Path) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("the name of a suite")
    return value


def _device(value: object, base: Path) -> str:
    if not isinstance(value, str) or not _DEVICE.fullmatch(value):
        raise ValueError("auto, cpu or cuda:N")
    return value


def _switch(value: object, base: Path) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _size(value: object, base: Path) -> Bytes:
    size = parse_size(value)
    if size is None:
        raise ValueError('a size such as "20GB"')
    return size


_RULES: dict[str, Callable[[object, Path], object]] = {
    "ledger": _path,
    "suites": _path,
    "suite": _name,
    "device": _device,
    "bisect_on_regression": _switch,
    "hook_suite": _name,
    "cache_limit": _size,
}
assert list(_RULES) == [field.name for field in fields(Config)]


def _from_text(key: str, text: str) -> object:
    if _RULES[key] is not _switch:
        return text
    known = {**dict.fromkeys(_YES, True), **dict.fromkeys(_NO, False)}
    return known.get(text.lower(), text)


def _checked(key: str, value: object, where: str, base: Path) -> object:
    try:
        return _RULES[key](value, base)
    except (ValueError, RuntimeError) as error:  # RuntimeError: a ~user that does not exist
        raise ConfigError(f"{where} must be {error}, not {value!r}") from error
