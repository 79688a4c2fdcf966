"""Repositories that get merges, and a bell that the other side of a detached process rings."""

from __future__ import annotations

import os
import select
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Project, git
from scripted import scripted

from celedger.base import config
from celedger.base.config import Config
from celedger.base.model import JobState, QueuedJob
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.service.worker import Worker

PATIENCE = 60.0  # seconds until a test gives up on a process; none of them waits this long


class Bell:
    """A named pipe: the event that a test waits for, rung by a process nobody can wait for."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._heard = b""

    def wait(self, patience: float = PATIENCE) -> str:
        """The next line that was said."""
        deadline = time.monotonic() + patience
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "nobody rang"
            self._heard += os.read(self._fd, 65536)
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def wait_for(self, start: str) -> str:
        while not (line := self.wait()).startswith(start):
            pass
        return line

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def bell(tmp_path: Path) -> Iterator[Bell]:
    bell = Bell(tmp_path / "bell")
    yield bell
    bell.close()


@pytest.fixture
def program(bell: Bell) -> Callable[[Path, str], str]:
    """Makes an executable sh script to stand where the interpreter does; `$BELL` is its bell."""

    def make(path: Path, text: str) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\nBELL={shlex.quote(str(bell.path))}\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def interpreter(tmp_path: Path, program: Callable[[Path, str], str]) -> str:
    """The interpreter of this test, which says when what it ran has ended."""
    text = f'{shlex.quote(sys.executable)} "$@"; echo "ended $?" >"$BELL"'
    return program(tmp_path / "bin" / "python", text)


def branch_ahead(project: Project, files: dict[str, str] | None = None, name: str = "next") -> str:
    """A branch one commit ahead of HEAD, which stays where it is: something to merge."""
    git(project.root, "checkout", "-q", "-b", name)
    sha = project.commit(f"work on {name}", files)
    git(project.root, "checkout", "-q", "-")
    return sha


class Crew:
    """Workers of one project that share a ledger, as those of several processes do."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.repository = Repository.open(project.root)
        self.said: list[str] = []
        self.repository.exclude(["/ledger.db*", "/.celedger/"])
        project.allow()
        self.ledger = Ledger.open(project.root / "ledger.db", create=True)

    def configure(self, place: Repository) -> Config:
        return config.load(place.root, {}, worktree=place.worktree)

    def worker(self, **settings: Any) -> Worker:
        return Worker(self.repository, self.ledger, self.configure, self.said.append, **settings)

    def note(self, text: str | None = None, name: str = "1") -> Path:
        path = self.repository.state_dir / "queue" / f"{name}.moved"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(self.project.root) if text is None else text)
        return path

    def enqueue(self, commit: str, key: str = "", suite: str = "") -> QueuedJob:
        self.ledger.record_commits([self.repository.commit(commit)])
        return self.ledger.queue.enqueue("commit", commit, suite, time.time(), key)

    def states(self) -> list[tuple[JobState, str]]:
        return [(j.state, j.message) for j in self.ledger.jobs()]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Workers whose trainings are scripted."""
    project = scripted(tmp_path / "project")
    with project.executor.at(project.root):
        yield Crew(project)
