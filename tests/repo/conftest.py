"""Real repositories, in a home of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Git = Callable[..., str]


@pytest.fixture(autouse=True)
def configured_home(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path.home()
    (home / ".gitconfig").write_text(
        '[user]\nname = T\nemail = t@example.com\n[protocol "file"]\nallow = always\n'
    )
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(home.parent))


@pytest.fixture
def git() -> Git:
    """`git(folder, *words)`: its stdout, stripped; a failure is an error."""

    def run(where: Path, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=where, capture_output=True, check=True)
        return done.stdout.decode(errors="surrogateescape").strip()

    return run
