"""Writes docs/schemas/VERB.json from what the verbs print: `make docs`. The golden transcripts and
the answers that the lab's tests keep are the owners of that; tests compare the schemas with them,
and with other answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "schemas"
LAB = ROOT / "tests" / "lab" / "golden" / "answers"
_COMMAND = re.compile(r"[a-z]+\$ (?:[A-Z_]+=\S+ )*celedger (.*)")
# Objects whose keys are names: of parameters, metrics, outcomes, environments.
_MAPS = frozenset(
    (
        "parameters",
        "best",
        "close",
        "values",
        "outcomes",
        "summaries",
        "not_finite",
        "causes",
        "params",
        "shares",
    )
)


def samples() -> dict[str, list[Any]]:
    """Return the JSON answers that are kept, by verb."""
    found: dict[str, list[Any]] = {}
    for path in sorted((ROOT / "tests" / "golden").glob("*.txt")):
        for block in path.read_text(encoding="utf-8").split("\n\n"):
            command, *lines = block.splitlines()
            typed = _COMMAND.fullmatch(command)
            if typed is None or "--json" not in typed[1].split():
                continue
            text = "\n".join(line[2:] for line in lines if line.startswith("  "))
            if text:
                found.setdefault(verb_of(typed[1].split()), []).append(json.loads(text))
    for path in sorted(LAB.glob("*.json")):
        answer = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(path.name.partition(".")[0], []).append(answer)
    return found


def verb_of(words: Sequence[str]) -> str:
    """Return `log`, or `baseline show`."""
    verb = words[0]
    return f"{verb}-{words[1]}" if verb == "baseline" else verb


def schema(verb: str, answers: Sequence[Any]) -> dict[str, Any]:
    """Return the JSON schema of a verb's answers. Those with other fields are alternatives."""
    shapes: dict[frozenset[str], list[Any]] = {}
    for answer in answers:
        shapes.setdefault(frozenset(answer) - {"not_finite"}, []).append(answer)
    kinds = [_object(shape) for shape in shapes.values()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"celedger {verb.replace('-', ' ')} --json",
        **(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}),
    }


def _infer(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return what these values of a field have in common. Fields and kinds may be added later."""
    if name == "figure":  # a number, a sentence, or several by name
        return {}
    if name == "environments":  # what a machine tells of itself
        return {"type": ["array", "object"]}
    objects = [value for value in values if isinstance(value, dict)]
    lists = [value for value in values if isinstance(value, list)]
    types = {_type(value) for value in values}
    if not types <= {"object", "array"}:
        types.add("null")  # a number that is not finite, and whatever is missing
    own: dict[str, Any] = {"type": sorted(types) if len(types) > 1 else next(iter(types))}
    if types == {"null"}:
        return {}
    if lists:
        items = [item for value in lists for item in value]
        own["items"] = _infer(name, items) if items else {}
    if name in _MAPS and objects:
        items = [item for value in objects for item in value.values()]
        if any(isinstance(item, dict) for item in items):
            own["additionalProperties"] = _infer("outcomes" * (name == "outcomes"), items)
    elif objects:
        own |= _object(objects)
        own["type"] = sorted(types) if len(types) > 1 else next(iter(types))
    return own


def _object(objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for each in objects for name in each))
    fields = {name: _infer(name, [o[name] for o in objects if name in o]) for name in names}
    for field in fields.values():  # a list of rows is there, if empty; all else may be missing
        kind = field.get("type")
        if kind == "object" or (kind == "array" and "properties" not in field.get("items", {})):
            field["type"] = [kind, "null"]
    if "schema" in fields:
        fields["schema"] = {"const": objects[0]["schema"]}
    required = [n for n in names if all(n in each for each in objects) and n != "not_finite"]
    return {"type": "object", "required": required, "properties": fields}


def _type(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def files() -> dict[Path, str]:
    """Return each schema's file and text."""
    return {
        FOLDER / f"{verb}.json": json.dumps(schema(verb, answers), indent=1) + "\n"
        for verb, answers in sorted(samples().items())
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
