"""An answer: one plain structure that is printed as text or as strict JSON.

JSON has a schema number and full hashes. A number that JSON cannot hold is `null`, and the
document's field `not_finite` has its position and value: `{"/tasks/0/metrics/1/delta": "nan"}`, by
JSON Pointer (RFC 6901). Any other `null` is a missing value. This module must not know the content
of answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

from celedger.views.format import not_finite

SCHEMA = 1

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Document:
    """The answer of a verb. A subclass is built once, from the ledger, and then printed. `SCHEMA`
    is the number of its JSON."""

    SCHEMA: ClassVar[int] = SCHEMA

    def text(self, width: int = 100) -> str:
        """Return the text for a person, in lines of `width` columns if they can be cut. It may have
        colours, which `format.colourless` removes."""
        raise NotImplementedError

    def json(self) -> Mapping[str, object]:
        """Return the fields for a program, without the schema number."""
        raise NotImplementedError


class Listing(Document):
    """An answer of rows alone: their fields for a program, and what prints them in so many
    columns."""

    def __init__(self, fields: Mapping[str, object], printed: Callable[[int], str]) -> None:
        self._fields, self._printed = fields, printed

    def text(self, width: int = 100) -> str:
        return self._printed(width)

    def json(self) -> Mapping[str, object]:
        return self._fields


def pick(record: object, names: str) -> dict[str, object]:
    """Return the named attributes of a record, in this order."""
    return {name: getattr(record, name) for name in names.split()}


def strict(value: object) -> Json:
    """Return the value as JSON can hold it, except for numbers that are not finite. Raises
    TypeError for a value without a JSON form.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if hasattr(value, "json"):
        return strict(value.json())
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return strict(asdict(value))
    raise TypeError(f"no JSON for {type(value).__name__}")


def document(**content: object) -> dict[str, Json]:
    """Return an answer: the schema number first, then the content, which may have another."""
    return {"schema": SCHEMA, **{key: strict(item) for key, item in content.items()}}


def dumps(answer: Mapping[str, Json]) -> str:
    """Return the text that `--json` prints."""
    return json.dumps(finite(answer), indent=2, allow_nan=False, ensure_ascii=False)


def finite(answer: Mapping[str, Json]) -> dict[str, Json]:
    """Return the answer as JSON can hold it: its numbers that are not finite in a field of their
    own."""
    lost: dict[str, Json] = {}
    content = {key: _finite(item, f"/{_pointer(key)}", lost) for key, item in answer.items()}
    return {**content, "not_finite": lost} if lost else content


def _finite(value: Json, pointer: str, lost: dict[str, Json]) -> Json:
    """Return the value with `null` for each number that is not finite, and add those to `lost`."""
    if isinstance(value, float) and not math.isfinite(value):
        lost[pointer] = not_finite(value)
        return None
    if isinstance(value, dict):
        return {k: _finite(v, f"{pointer}/{_pointer(k)}", lost) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v, f"{pointer}/{i}", lost) for i, v in enumerate(value)]
    return value


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
