"""Cache files: each can be derived anew. One that is absent, damaged or unreadable counts as empty,
and one that cannot be written is not. Must not know what they hold.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path


def read(path: Path) -> bytes:
    """Return what was written; nothing unless it is whole."""
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return b""
    return content if digest == _digest(content) else b""


def write(path: Path, content: bytes) -> None:
    """Replace the file as a whole, where that is possible."""
    with suppress(OSError):  # a disk that is full or read-only
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_digest(content) + b"\n" + content)
            Path(draft).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(draft).unlink()
            raise


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).hexdigest().encode()
