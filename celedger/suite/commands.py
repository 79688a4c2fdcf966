"""Command templates: words with `{placeholders}`, checked when read and filled when run.

Knows the syntax only; a brace is written `{{` or `}}`. No shell is involved, ever.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path

from celedger.base.config import closest
from celedger.base.model import Task

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
                hint = closest(token[0], [f"{{{name}}}" for name in names])
                raise ValueError(f"has an unknown placeholder {token[0]!r}; {hint}")
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
