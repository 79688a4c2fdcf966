"""Real repositories, in a home of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Git = Callable[..., str]


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("home")
    (home / ".gitconfig").write_text(
        '[user]\nname = T\nemail = t@example.com\n[protocol "file"]\nallow = always\n'
    )
    monkeypatch.setenv("HOME", str(home))
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(home.parent))


@pytest.fixture
def git() -> Git:
    """`git(folder, *words)`: its stdout, stripped; a failure is an error."""

    def run(where: Path, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=where, capture_output=True, check=True)
        return done.stdout.decode(errors="surrogateescape").strip()

    return run
