"""Which regressions were reported before, and the line that the next merge prints: small files in
the repository's folder of state. One that cannot be read or written costs a repetition."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from celedger.base import files
from celedger.base.text import plain
from celedger.judge.drift.open_regressions import Known
from celedger.repo import Repository


def read_known(repository: Repository, name: str) -> Known:
    """Return the regressions that were reported before under this name."""
    with suppress(OSError, ValueError, TypeError):
        rows = json.loads(_file(repository, name).read_text())
        return {(suite, task, metric): (bad, first) for suite, task, metric, bad, first in rows}
    return {}


def write_known(repository: Repository, name: str, known: Known) -> None:
    _write(
        _file(repository, name), json.dumps([[*key, *commits] for key, commits in known.items()])
    )


def leave_line(repository: Repository, text: str) -> None:
    """Leave a line for the post-merge hook, which prints it once."""
    _write(_file(repository, "last-job"), f"celedger: {plain(text)}\n")


def take_line(repository: Repository) -> str:
    """Return the line that waits for the next merge, and remove it; "" where none does."""
    path = _file(repository, "last-job")
    with suppress(OSError):
        text = path.read_text(encoding="utf-8").strip()
        path.unlink()
        return text
    return ""


def _file(repository: Repository, name: str) -> Path:
    return repository.state_dir / name


def _write(path: Path, text: str) -> None:
    with suppress(OSError):
        files.replace(path, text.encode())
