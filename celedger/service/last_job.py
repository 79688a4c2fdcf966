"""The line that the next merge prints: a small file in the repository's folder of state. One that
cannot be written costs a line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from celedger.base import files
from celedger.base.text import plain
from celedger.repo import Repository


def leave_line(repository: Repository, text: str) -> None:
    """Leave a line for the post-merge hook, which prints it once."""
    with suppress(OSError):
        files.replace(_file(repository), f"celedger: {plain(text)}\n".encode())


def take_line(repository: Repository) -> str:
    """Return the line that waits for the next merge, and remove it; "" where none does."""
    path = _file(repository)
    with suppress(OSError):
        text = path.read_text(encoding="utf-8").strip()
        path.unlink()
        return text
    return ""


def _file(repository: Repository) -> Path:
    return repository.state_dir / "last-job"
