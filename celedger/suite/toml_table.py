"""Reads one table of suite.toml strictly: every key known, every value of its type, every
placeholder of a command meant.

Knows where it is, so that each error names the file and the place. A reader returns the value of a
key, or raises ValueError with the end of a sentence that begins with the key. A command is words
with `{placeholders}`, checked when read and filled when run; a brace is written `{{` or `}}`. No
shell is involved, ever.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from celedger.base.config import closest, parse_size
from celedger.base.errors import SuiteError
from celedger.base.model import Floor, Task, is_summary

PLACEHOLDERS = ("python", "suite", "tree", "seed", "out")  # of a task's commands
BUILD_PLACEHOLDERS = ("python", "suite", "tree")  # a build serves all tasks and seeds
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def split(value: object) -> tuple[str, ...]:
    """Return a command as words: a string is split as a shell would, a list is taken as it is.
    Raises ValueError with what is wrong."""
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be split into words: {error}") from error
    elif isinstance(value, list) and all(isinstance(word, str) for word in value):
        words = value
    else:
        raise ValueError("is a string or a list of strings")
    if not words or not words[0]:
        raise ValueError("is empty")
    if any("\0" in word for word in words):
        raise ValueError("holds a NUL character")
    return tuple(words)


def build(value: object) -> tuple[tuple[str, ...], ...]:
    """Build commands as words: one, or a list of them. Raises ValueError with what is wrong."""
    lines = tuple(map(split, value if isinstance(value, list) else [value]))
    for words in lines:
        check(words, BUILD_PLACEHOLDERS)
    return lines


def check(words: Collection[str], names: Collection[str]) -> set[str]:
    """Return the placeholders used. Raises ValueError for an unknown one or a lone brace."""
    used = set()
    for word in words:
        for token in _TOKEN.finditer(word):
            name = token[1]
            if token[0] in ("{", "}"):
                raise ValueError(f"has a lone brace in {word!r}; write {{{{ or }}}} for a brace")
            if name is None:
                continue
            if name not in names:
                own = ", which `params` does not define" if "seed" in names else ""
                hint = closest(name, names)  # braces would make short names look alike
                raise ValueError(f"has an unknown placeholder {token[0]!r}{own}; {hint}")
            used.add(name)
    return used


def text(value: object) -> str:
    """Return a parameter as it stands on a command line: booleans as TOML writes them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def command_lines(
    task: Task, *, python: str, suite_dir: Path, tree: Path, seed: int | str, out: Path
) -> list[tuple[str, tuple[str, ...]]]:
    """Return the task's commands in order, each with its name, ready to run; the seed may be a mark
    that is filled in when one starts."""
    values = {name: text(value) for name, value in task.params.items()}
    values |= {
        "python": python, "suite": str(suite_dir), "tree": str(tree), "seed": str(seed),
        "out": str(out),
    }  # fmt: skip
    return [(command.name, _filled(command.template, values)) for command in task.commands]


def build_lines(task: Task, *, python: str, suite_dir: Path, tree: Path) -> list[tuple[str, ...]]:
    """Return the task's build commands in order, ready to run."""
    values = {"python": python, "suite": str(suite_dir), "tree": str(tree)}
    return [_filled(words, values) for words in task.build]


def _filled(words: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, ...]:
    def fill(token: re.Match[str]) -> str:
        return values[token[1]] if token[1] is not None else token[0][0]

    return tuple(_TOKEN.sub(fill, word) for word in words)


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_METRIC = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MOST_SEEDS = 10_000


class TomlTable:
    """A table at a place such as `suites/core/suite.toml: task 'mlp'`. `others` are the keys of the
    table `other`, into which a person may have meant to write. Raises SuiteError."""

    def __init__(
        self,
        where: str,
        values: object,
        keys: Collection[str],
        other: str = "",
        others: Collection[str] = (),
    ) -> None:
        self.where = where
        if not isinstance(values, dict):
            self.fail(f"is {shown(values)}, not a table")
        self.values: Mapping[str, object] = values
        for key in values:
            if key not in keys:
                hint = f"write it below {other}" if key in others else closest(key, keys)
                self.fail(f"has an unknown key {key!r}", hint)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def fail(self, problem: str, hint: str = "") -> NoReturn:
        raise SuiteError(f"{self.where} {problem}", hint)

    def raw(self, key: str, default: object = None) -> object:
        return self.values.get(key, default)

    def read(self, readers: Mapping[str, Callable[[object], Any]]) -> dict[str, Any]:
        """Return the values that are there, each as the reader of its key gives it."""
        values = {}
        for key, reader in readers.items():
            if key in self.values:
                try:
                    values[key] = reader(self.values[key])
                except ValueError as error:
                    self.fail(f"{key} {error}")
        return values


# --- readers


def string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"is {shown(value)}, not a string")
    if not value or "\0" in value:
        raise ValueError("is empty" if not value else "holds a NUL character")
    return value


def truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"is {shown(value)}, not true or false")
    return value


def strings(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError(f"is {shown(value)}, not a list of strings")
    return tuple(string(item) for item in value)


def reasons(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"is {shown(value)}, not a table of names and reasons")
    return {name: string(reason) for name, reason in value.items()}


def inside(value: object) -> tuple[str, ...]:
    """Relative paths or patterns that stay in the tree."""
    paths = strings(value)
    for path in paths:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"names {path!r}, which is outside the commit's tree")
    return paths


def integer(low: int, high: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"is {shown(value)}, not an integer")
        if not low <= value <= high:
            raise ValueError(f"is {value}, not from {low} to {high}")
        return value

    return read


def seconds(value: object) -> float:
    """`30`, `"90s"`, `"10m"`, `"1h30m"`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        total = float(value) if abs(value) < 1e300 else math.inf
    elif isinstance(value, str) and re.fullmatch(f"(?:{_DURATION.pattern})+", value):
        total = sum(float(n) * _SECONDS[unit] for n, unit in _DURATION.findall(value))
    else:
        raise ValueError(f'is {shown(value)}, not a duration such as 30, "90s" or "10m"')
    if not 0 < total <= 366 * _SECONDS["d"]:
        raise ValueError(f"is {shown(value)}, not a duration from 0 seconds to a year")
    return total


def seeds(value: object) -> tuple[int, ...]:
    """Return a list of seeds, or how many: 3 is 0, 1, 2."""
    if not isinstance(value, list):
        return tuple(range(integer(1, _MOST_SEEDS)(value)))
    if not value:
        raise ValueError("is empty")
    seed = integer(0, 2**32 - 1)  # what numpy and torch both take
    return tuple(dict.fromkeys(map(seed, value)))


def modules(value: object) -> tuple[str, ...]:
    """Dotted names of modules."""
    names = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str) or not all(map(str.isidentifier, name.split("."))):
            raise ValueError(f"has {name!r}, which is not a module name")
    return tuple(dict.fromkeys(names))


def size(value: object) -> int:
    """`4000000000`, `"4GB"`, `"512MiB"`."""
    total = parse_size(value)
    if total is None:
        raise ValueError(f'is {shown(value)}, not a size such as "4GB" or "512MiB"')
    return total


def one_of(kind: type[StrEnum]) -> Callable[[object], StrEnum]:
    def read(value: object) -> StrEnum:
        names = [str(option) for option in kind]
        if value not in names:
            raise ValueError(f"is {shown(value)}; {closest(str(value)[:60], names)}")
        return kind(str(value))

    return read


def floor(value: object) -> Floor:
    try:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return Floor.parse(value)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f'is {shown(value)}, not a number >= 0 or a percentage such as "0.5%"')


def summary(value: object) -> str:
    text = string(value)
    if not is_summary(text):
        rules = "last, best, worst, max, area, at-EPOCH, epochs-to-VALUE, mean-of-last-K or"
        raise ValueError(f"is {shown(value)}, not {rules} median-after-K")
    return text


def patterns(value: object) -> tuple[str, ...]:
    """Regular expressions with a named group for each metric, or for the epoch."""
    expressions = strings(value)
    names: list[str] = []
    for text in expressions:
        try:
            groups = re.compile(text).groupindex
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{shown(text)} is not a regular expression: {error}") from error
        if not groups:
            raise ValueError(f"{shown(text)} has no named group such as (?P<val_loss>\\S+)")
        names += groups
    unfit = next((name for name in names if not _METRIC.fullmatch(name)), None)
    if unfit is not None:
        raise ValueError(f"names {unfit!r}; a metric is up to 64 ASCII letters, digits and _")
    if set(names) == {"epoch"}:
        raise ValueError("names no metric, only the epoch")
    return expressions


def event_folder(value: object) -> str:
    """Return where event files will lie: below {out} or {tree}."""
    text = string(value)
    check((text,), ("out", "tree"))
    if not text.startswith(("{out}", "{tree}")) or ".." in text.split("/"):
        raise ValueError(f'is {shown(value)}, not a folder such as "{{out}}" or "{{tree}}/runs"')
    return text


def shown(value: object) -> str:
    """Return a value in an error, never longer than a line."""
    try:
        text = repr(value)
    except ValueError:
        text = "an integer of thousands of digits"
    return text if len(text) <= 60 else text[:59] + "…"
