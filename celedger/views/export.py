"""Strict JSON: what a program reads. Every answer carries a schema number, hashes are whole, and
numbers that JSON does not have are the strings `nan`, `inf` and `-inf`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from celedger.views.format import not_finite

SCHEMA = 1

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def strict(value: object) -> Json:
    """The value as JSON can hold it. Raises TypeError for what has no plain meaning there."""
    if isinstance(value, Enum):
        return strict(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else not_finite(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [strict(item) for item in items]
    raise TypeError(f"no JSON for {type(value).__name__}")


def document(**content: object) -> dict[str, Json]:
    """An answer: the schema number first, then the content, made strict."""
    return {"schema": SCHEMA, **{key: strict(item) for key, item in content.items()}}


def dumps(answer: Mapping[str, object]) -> str:
    """The text a `--json` prints. Raises ValueError should a non-finite number be left."""
    return json.dumps(answer, indent=2, allow_nan=False, ensure_ascii=False)
