"""The text of `celedger allow`: the difference between the requests and what was allowed before."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from celedger.base.errors import RepositoryError
from celedger.base.text import escaped
from celedger.trial.permissions import FILES, Gate, Request

_CONTEXT = 2  # lines around a change


def changes_text(gate: Gate, new: Sequence[Request], texts: Mapping[str, Path]) -> str:
    """Return the new starts and settings, each difference once, then the files that differ."""
    subjects: dict[tuple[str, ...], list[str]] = {}
    files: dict[str, tuple[str, str]] = {}  # name: digests of what it holds, before and now
    for request in new:
        old = gate.latest(request)
        lines = tuple(_difference(_lines(old), _lines(request, whole=old is not None), 0))
        if lines:
            subjects.setdefault(lines, []).append(request.subject)
        for key in FILES:
            earlier, now = _mapping(old, key), _mapping(request, key)
            before = earlier or gate.last(key)
            for name in sorted({*earlier, *now}):
                if before.get(name) != now.get(name):
                    files[name] = before.get(name, ""), now.get(name, "")
    parts = [_part(", ".join(names), lines) for lines, names in subjects.items()]
    if gate.empty and files:
        return "\n\n".join([*parts, _part("files", [f"+{name}" for name in files])])
    for name, digests in files.items():
        was, is_ = (_content(gate, texts, digest) for digest in digests)
        parts.append(_part(name, _difference(was, is_)))
    return "\n\n".join(parts)


def _part(title: str, lines: Iterable[str]) -> str:
    return "\n".join([escaped(title), *(f"  {escaped(line)}" for line in lines)])


def _difference(
    before: Sequence[str], now: Sequence[str], context: int = _CONTEXT
) -> Iterator[str]:
    lines = list(difflib.unified_diff(before, now, n=context, lineterm=""))
    return (line for line in lines[2:] if not line.startswith("@@"))


def _lines(request: Request | None, *, whole: bool = True) -> list[str]:
    """Return the requests but the content of files, a line each. Without `whole`, variables are
    left out, since nearly all are the same for every process of celedger."""
    lines = []
    for key, value in request.facts.items() if request is not None else ():
        if key == "command" and isinstance(value, list):
            lines.append(f"command: {shlex.join(map(_value_text, value))}")
        elif isinstance(value, dict) and key not in FILES and (whole or key != "variables"):
            lines += [f"{key}: {name} = {_value_text(value[name])}" for name in sorted(value)]
        elif key == "folder" and value:
            lines.append(f"folder: {_value_text(value)}")
    return lines


def _value_text(value: object) -> str:
    pieces = (value if isinstance(value, str) else json.dumps(value)).split("\0")
    return "".join(f"{{{p}}}" if i % 2 else p for i, p in enumerate(pieces))


def _mapping(request: Request | None, key: str) -> Mapping[str, str]:
    fact = request.facts.get(key) if request is not None else None
    return fact if isinstance(fact, dict) else {}


def _content(gate: Gate, texts: Mapping[str, Path], digest: str) -> list[str]:
    """Return the lines of a file by its digest: a suite's file as it is or was stored, a
    requirement file from git."""
    mode, blank, blob = digest.partition(" ")
    content: bytes | None = None
    try:
        if blank and gate.repository is not None:
            content = gate.repository.object(blob)
        elif digest:
            content = texts[mode].read_bytes() if mode in texts else gate.kept(mode)
    except (OSError, RepositoryError):
        pass
    if content is None or b"\0" in content:
        return [f"(not kept) {digest}"] if digest else []
    return content.decode("utf-8", "replace").splitlines()
