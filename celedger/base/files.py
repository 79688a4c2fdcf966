"""Write a small file as a whole: whoever reads it, also after a kill, has the old content or the
new. Must not know what the content means."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write(path: Path, text: str, errors: str = "surrogateescape") -> None:
    """Write a file that is there, or make it; not where its name is a link. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8", errors=errors) as file:
        file.write(text)


def replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Give a file this content and mode, and make its folder. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(draft).chmod(mode)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
