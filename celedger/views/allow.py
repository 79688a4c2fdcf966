"""The text of `celedger allow`: the difference between the requests and what was allowed before.
Every change is a line of it: two lines that look alike are both shown where they differ."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from celedger.base.errors import MachineError, RepositoryError
from celedger.base.text import escaped
from celedger.trial.permissions import FILES, LONGEST_TEXT, Gate, Request, content_of

_CONTEXT = 2  # lines around a change


def changes_text(gate: Gate, new: Sequence[Request], texts: Mapping[str, Path]) -> str:
    """Return the new starts and settings, each difference once, then the files that differ. Raises
    MachineError where a file is not any more what is asked for."""
    subjects: dict[tuple[str, ...], list[str]] = {}
    files: dict[tuple[str, str], tuple[str, str]] = {}  # kind, name: digests before and now
    for request in new:
        old = gate.latest(request)
        lines = tuple(_difference(_lines(old), _lines(request), _fact_text, 0))
        if lines:
            subjects.setdefault(lines, []).append(request.subject)
        for key in FILES:
            earlier, now = _mapping(old, key), _mapping(request, key)
            before = earlier or gate.last(key)
            for name in sorted({*earlier, *now}):
                if before.get(name) != now.get(name):
                    files[key, name] = before.get(name, ""), now.get(name, "")
    parts = [_part(", ".join(names), lines) for lines, names in subjects.items()]
    if gate.empty and files:
        return "\n\n".join([*parts, _part("files", [f"+{name}" for _, name in files])])
    for (_, name), digests in files.items():
        (was, _), (now_is, is_binary) = (_content(gate, texts, digest) for digest in digests)
        title = f"{name} (binary)" if is_binary else name
        parts.append(_part(title, _difference(was, now_is, _file_text)))
    return "\n\n".join(parts)


def _part(title: str, lines: Iterable[str]) -> str:
    return "\n".join([escaped(title), *(f"  {escaped(line)}" for line in lines)])


def _difference(
    before: Sequence[str], now: Sequence[str], text: Callable[[str], str], context: int = _CONTEXT
) -> Iterator[str]:
    """Yield the lines that differ, each after its sign and as `text` shows it."""
    lines = list(difflib.unified_diff(before, now, n=context, lineterm=""))
    return (line[0] + text(line[1:]) for line in lines[2:] if not line.startswith("@@"))


def _lines(request: Request | None) -> list[str]:
    """Return what is requested but the content of files, a line of JSON each."""
    return [
        json.dumps([key, name, value[name]], sort_keys=True)
        for key, value in (request.facts.items() if request is not None else ())
        if isinstance(value, dict) and key not in FILES
        for name in sorted(value)
    ]


def _fact_text(line: str) -> str:
    key, name, value = json.loads(line)
    shown = value if isinstance(value, str) and not _is_json(value) else json.dumps(value)
    pieces = shown.split("\0")
    return f"{key}: {name} = " + "".join(f"{{{p}}}" if i % 2 else p for i, p in enumerate(pieces))


def _is_json(text: str) -> bool:
    """Return True for a text that reads like another value: the text 1, and the number."""
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return True
    return False


def _mapping(request: Request | None, key: str) -> Mapping[str, str]:
    fact = request.facts.get(key) if request is not None else None
    return fact if isinstance(fact, dict) else {}


def _content(gate: Gate, texts: Mapping[str, Path], digest: str) -> tuple[Sequence[str], bool]:
    """Return the lines of a file by its digest, and whether it is binary: a suite's file or a
    program as it is or was stored, a requirement file from git. Lines keep their ends and what is
    no UTF-8; what is said about the file ends in two ends of lines, as no line of a file does.
    Raises MachineError for one that is not that file any more."""
    mode, blank, blob = digest.partition(" ")
    if not digest:
        return (), False
    content, size = None, 0
    if blank and gate.repository is not None:
        with suppress(RepositoryError):
            content = gate.repository.object(blob)
    elif path := texts.get(digest):
        with suppress(OSError):
            content, size = content_of(path, digest), path.stat().st_size
        if content is None and size <= LONGEST_TEXT:
            raise MachineError(f"{path} changes while it is read", "type the same command again")
    else:
        content = gate.kept(digest)
    size = size if content is None else len(content)
    if content is None or size > LONGEST_TEXT:
        state = f"{size} bytes, too long to show" if size else "not kept"
        return [f"({state}) {digest}\n\n"], False
    text = content.decode("utf-8", "surrogateescape")
    lines = re.findall("[^\n]*\n|[^\n]+", text)
    if digest.startswith("x") or (blank and mode != "100644"):
        lines.insert(0, f"(mode {mode})\n\n" if blank else "(executable)\n\n")
    return lines, b"\0" in content or text.encode(errors="replace") != content


def _file_text(line: str) -> str:
    text = line.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text.rstrip("\n") if line.endswith("\n") else f"{text} (no end of line)"
