"""What a person is asked to allow, as a difference to what was allowed before."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from celedger.errors import RepositoryError
from celedger.repo import Repository
from celedger.system.gate import FILES, Gate, Request
from celedger.text import escaped

_CONTEXT = 2  # lines around a change
_MISSING = "(not kept)"


def changes_text(
    repository: Repository,
    gate: Gate,
    new: Sequence[Request],
    texts: Mapping[str, Path],
) -> str:
    """The new starts and settings, each difference once, then the files that differ."""
    subjects: dict[tuple[str, ...], list[str]] = {}
    files: dict[str, tuple[str, str]] = {}  # name: digests of what it holds, before and now
    for request in new:
        old = gate.latest(request)
        lines = tuple(_difference(_lines(old), _lines(request, whole=old is not None), 0))
        if lines:
            subjects.setdefault(lines, []).append(request.subject)
        for key in FILES:
            before = _mapping(old, key) or gate.last(key)
            now = _mapping(request, key)
            for name in sorted({*_mapping(old, key), *now}):
                if before.get(name) != now.get(name):
                    files[name] = before.get(name, ""), now.get(name, "")
    parts = [_part(", ".join(names), lines) for lines, names in subjects.items()]
    if gate.empty and files:
        return "\n\n".join([*parts, _part("files", [f"+{name}" for name in files])])
    for name, digests in files.items():
        was, is_ = (_content(repository, gate, texts, digest) for digest in digests)
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
    """What is asked for but the content of files, a line each. Not `whole`: without variables, of
    which nearly all are the same for all that celedger starts."""
    if request is None:
        return []
    lines = []
    for key, value in request.facts.items():
        if key == "command" and isinstance(value, list):
            lines.append(f"command: {shlex.join(map(_shown, value))}")
        elif key == "variables" and not whole:
            continue
        elif key in ("variables", "settings", "asks") and isinstance(value, dict):
            lines += [
                f"{key}: {name} = {_shown(setting)}" for name, setting in sorted(value.items())
            ]
        elif key == "folder" and value:
            lines.append(f"folder: {_shown(value)}")
    return lines


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    pieces = text.split("\0")
    return "".join(f"{{{p}}}" if i % 2 else p for i, p in enumerate(pieces))


def _mapping(request: Request | None, key: str) -> Mapping[str, str]:
    fact = request.facts.get(key) if request is not None else None
    return fact if isinstance(fact, dict) else {}


def _content(
    repository: Repository, gate: Gate, texts: Mapping[str, Path], digest: str
) -> list[str]:
    """The lines of a file by its digest: of the suite's as it is or was kept, of requirements as
    git has them."""
    if not digest:
        return []
    mode, blank, blob = digest.partition(" ")
    content: bytes | None
    try:
        if blank:
            content = repository.object(blob)
        else:
            content = gate.kept(mode) if mode not in texts else texts[mode].read_bytes()
    except (OSError, RepositoryError):
        content = None
    if content is None or b"\0" in content:
        return [f"{_MISSING} {digest}"]
    return content.decode("utf-8", "replace").splitlines()
