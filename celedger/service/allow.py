"""List what the worker would start and obey in a repository, and continue the jobs that wait for
approval. Knows how a suite's starts are described; shows nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from celedger.base import files
from celedger.base.config import Config
from celedger.base.errors import CeledgerError, explained
from celedger.base.model import JobState, QueuedJob
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.trial.permissions import Gate, NotAllowed, Request, settings_request


def queue_folder(repository: Repository) -> Path:
    """Return where the hooks of a repository leave their notes, one file NUMBER.moved each."""
    return repository.state_dir / "queue"


class Asked(NamedTuple):
    """The requests of the worker. `problem` says why the suite cannot be read, if it cannot;
    `texts` are the files of the suite and the programs that git tracks, by the hashes of their
    contents."""

    settings: Request
    starts: tuple[Request, ...]
    texts: Mapping[str, Path] = MappingProxyType({})
    problem: CeledgerError | None = None


def asked(repository: Repository, settings: Config, suite_name: str | None = None) -> Asked:
    """Return the settings of the repository and the starts of a suite (the one that a merge trains)
    at HEAD. Starts nothing."""
    from celedger.trial import permission_requests
    from celedger.trial.workplace import choose_tasks, interpreters_of, suite_of

    settings_start = settings_request(settings.merged)
    try:
        name = suite_name or settings.hook_suite
        suite = suite_of(repository, settings, name)
        tasks = choose_tasks(suite, ())  # with the runner's metrics, as the worker trains them
        starts = permission_requests.of_suite(
            repository, suite, tasks, interpreters_of(repository, tasks),
            repository.resolve("HEAD").sha if any(t.venv for t in tasks) else None,
        )  # fmt: skip
    except CeledgerError as error:
        return Asked(settings_start, (), problem=error)
    return Asked(
        settings_start, tuple(starts), permission_requests.texts_of(repository, suite, starts)
    )


def waiting(repository: Repository, settings: Config, ledger: Ledger | None = None) -> list[str]:
    """Return a line for each merge that waits to be allowed: what is new, and what to type. The
    `ledger` is opened where it is not yet open."""
    lines = []
    if _has_notes(repository) and (why := held_back(repository, settings)):
        lines.append(f"a merge waits: {why}")
    jobs = _waiting_jobs(settings) if ledger is None else ledger.jobs(state=JobState.WAITING)
    return lines + [f"the merge of {job.commit[:10]} waits: {job.message}" for job in jobs]


def _has_notes(repository: Repository) -> bool:
    return any(queue_folder(repository).glob("*.moved"))


def _waiting_jobs(settings: Config) -> list[QueuedJob]:
    if not settings.ledger.is_file():
        return []
    with Ledger.open(settings.ledger, readonly=True) as ledger:
        return ledger.jobs(state=JobState.WAITING)


def check_settings(gate: Gate, settings: Config) -> None:
    """Raise NotAllowed where the repository's own settings are new."""
    gate.review([settings_request(settings.merged)])


def held_back(repository: Repository, settings: Config) -> str:
    """Say why the notes of merges wait: "" where they do not."""
    try:
        check_settings(Gate.of(repository, attended=False), settings)
    except NotAllowed as error:
        return str(error)
    return ""


def wake(repository: Repository, settings: Config) -> bool:
    """Start a worker, as a hook does, if a merge waits. Raises MachineError."""
    waits = _has_notes(repository) or bool(_waiting_jobs(settings))
    if waits:
        _start_worker(repository)
    return waits


def note_merge(repository: Repository) -> None:
    """Leave a note that HEAD moved here and start a worker, as the installed hook does. Raises
    MachineError."""
    folder = queue_folder(repository)
    with explained(f"{folder} cannot be written"):
        files.replace(folder / f"{os.getpid()}.moved", os.fsencode(repository.worktree))
        _start_worker(repository)


def _start_worker(repository: Repository) -> None:
    from celedger.system import process

    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    log = os.open(repository.state_dir / "worker.log", flags, 0o600)
    try:
        process.spawn(
            [sys.executable, "-P", "-m", "celedger", "worker", "--from-hook"],
            cwd=repository.worktree, stdout=log, stderr=log,
        )  # fmt: skip
    finally:
        os.close(log)
