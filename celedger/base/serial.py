"""Write nouns as JSON and read them back by their types: for columns of the ledger that hold more
than one value, and for what travels to other machines. Must not know what a noun means.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

hints = cache(get_type_hints)  # evaluates the text of annotations


def written(noun: Any, *, compact: bool = False) -> str:
    """Return a noun as JSON, which `read` understands; `compact` sorts its keys, too."""
    separators = (",", ":") if compact else None
    return json.dumps(noun, default=_plain, sort_keys=compact, separators=separators)


def _plain(noun: Any) -> object:
    if is_dataclass(noun) and not isinstance(noun, type):
        return {name: getattr(noun, name) for name in noun.__dataclass_fields__}
    if isinstance(noun, bytes):
        return os.fsdecode(noun)
    return dict(noun) if isinstance(noun, Mapping) else str(noun)


def read(kind: Any, text: str | bytes) -> Any:
    """Return the noun of a type that was written as JSON."""
    return rebuilt(kind, json.loads(text))


def rebuilt(kind: Any, value: Any) -> Any:
    """Return a noun of a type from what JSON has of it."""
    build = _builder(kind)
    return value if value is None or build is None else build(value)


@cache
def _builder(kind: Any) -> Callable[[Any], Any] | None:
    """Return what makes a noun of a type from JSON, None where that is the noun."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        types = hints(kind)
        return lambda value: kind(**{name: rebuilt(types[name], x) for name, x in value.items()})
    if origin is UnionType:
        return _builder(arguments[0])
    if origin is tuple:
        return lambda value: tuple(rebuilt(arguments[0], item) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return lambda value: {key: rebuilt(arguments[1], item) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind
    return os.fsencode if kind is bytes else None
