"""Sides that are not commits: another device, precision, interpreter or parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from celedger.errors import UsageError
from celedger.model import Commit, Task


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two trainings that are compared."""

    name: str  # as a person would say it
    commit: Commit
    params: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = ""  # another interpreter
    autocast: str = ""


AUTOCASTS = {"fp32": None, "bf16": "bfloat16", "fp16": "float16"}


def variant(side: Side, task: Task, settings: Sequence[str]) -> Side:
    """The side with these `KEY=VALUE` applied. Raises UsageError for what is no setting."""
    for text in settings:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UsageError(f"{text!r} is no setting", "write KEY=VALUE")
        if key == "device":
            side = replace(side, environment={**side.environment, **_visible(value)})
        elif key == "autocast":
            if value not in AUTOCASTS:
                raise UsageError(f"no autocast {value!r}", f"there are {', '.join(AUTOCASTS)}")
            side = replace(side, autocast=value)
        elif key == "python":
            side = replace(side, python=value)
        elif key in task.params:
            side = replace(side, params={**side.params, key: _value(value)})
        else:
            known = ", ".join(["device", "autocast", "python", *task.params])
            raise UsageError(f"{task.name} has no setting {key!r}", f"it has {known}")
    if settings:
        side = replace(side, name=f"{side.name} with {' '.join(settings)}")
    return side


def _visible(device: str) -> dict[str, str]:
    """What makes a training see this device alone."""
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdigit():
        raise UsageError(f"no device {device!r}", "write cpu, cuda or cuda:N")
    return {"CUDA_VISIBLE_DEVICES": number or "0"}


def _value(text: str) -> object:
    """A number or truth value where it reads as one, as in the suite's file."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def inexact(a: Side, b: Side) -> bool:
    """Whether the two sides cannot be expected to agree bit by bit, whatever their code."""
    return (a.environment, a.python, a.autocast) != (b.environment, b.python, b.autocast)


def coarsest(a: Side, b: Side) -> str | None:
    """The type of an autocast on either side."""
    kinds = [kind for side in (a, b) if (kind := AUTOCASTS.get(side.autocast))]
    return "bfloat16" if "bfloat16" in kinds else kinds[0] if kinds else None
