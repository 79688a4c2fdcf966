"""Strict JSON: what a program reads. Every answer carries a schema number, and hashes are whole.

A number that JSON does not have is `null`, and the document's field `not_finite` says where and
which one: `{"/tasks/0/metrics/1/delta": "nan"}`, by JSON Pointer (RFC 6901). Any other `null` means
that there is nothing.
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
    """Return the value as JSON can hold it, numbers that are not finite aside.

    Raises TypeError for what has no plain meaning there.
    """
    if isinstance(value, Enum):
        return strict(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [strict(item) for item in items]
    raise TypeError(f"no JSON for {type(value).__name__}")


def document(**content: object) -> dict[str, Json]:
    """Return an answer: the schema number first, then the content."""
    return {"schema": SCHEMA, **{key: strict(item) for key, item in content.items()}}


def dumps(answer: Mapping[str, Json]) -> str:
    """Return the text that a `--json` prints."""
    lost: dict[str, Json] = {}
    finite = {key: _finite(item, f"/{_escaped(key)}", lost) for key, item in answer.items()}
    if lost:
        finite["not_finite"] = lost
    return json.dumps(finite, indent=2, allow_nan=False, ensure_ascii=False)


def _finite(value: Json, pointer: str, lost: dict[str, Json]) -> Json:
    """Return the value with `null` for each number that is not finite, and add those to `lost`."""
    if isinstance(value, float) and not math.isfinite(value):
        lost[pointer] = not_finite(value)
        return None
    if isinstance(value, dict):
        return {k: _finite(v, f"{pointer}/{_escaped(k)}", lost) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v, f"{pointer}/{i}", lost) for i, v in enumerate(value)]
    return value


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
