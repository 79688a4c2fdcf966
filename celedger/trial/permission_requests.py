"""The requests that a person allows before the worker may train a suite: for each task everything
that it starts and reads, the files of the suite and the programs that git tracks; for a virtual
environment the requirement files. Starts nothing.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from celedger.base.errors import CeledgerError
from celedger.base.model import Task
from celedger.repo import Repository
from celedger.repo.plumbing import ask
from celedger.suite import Suite
from celedger.system.process import find_program
from celedger.trial.permissions import Request
from celedger.trial.protocol import TELEMETRY
from celedger.trial.venvs import Unmade, requirements

# Fields of a task that have their own lines, or name it.
_OTHERWISE = ("suite", "name", "commands", "params", "metrics", "files", "build", "whole")
_NO_TASK = Task("", "", ())


def of_suite(
    repository: Repository,
    suite: Suite,
    tasks: Iterable[Task],
    interpreters: Mapping[str, str],
    commit: str | None = None,
) -> list[Request]:
    """Return the requests of these tasks, with the virtual environments of a `commit` (a hash).
    `interpreters` by task name."""
    results = []
    for task in tasks:
        python = interpreters[task.name]
        results.append(of_task(repository, suite, task, python))
        if task.venv and commit is not None:
            with suppress(Unmade, CeledgerError):  # the trial will report it
                files = requirements(repository, commit, task.venv).files
                results.append(of_environment(repository, task, python, files))
    return results


def of_task(repository: Repository, suite: Suite, task: Task, python: str) -> Request:
    """Return the requests of one task, `python` being the path of its interpreter."""
    files = {f"{suite.name}/{name}": digest for name, digest in suite.files.items()}
    words = [words[0] for words in (*task.build, *(c.template for c in task.commands))]
    names = {word for word in words if not {*"/{"} & {*word}}  # else the commit's, or named
    asks = _asks(task)
    if suite.preflight and suite.checks:
        asks["preflight checks"] = list(suite.checks)
    facts = {"asks": asks, "files": files, **_programs(repository, {python, *names})}
    return Request(f"training {task.name} of suite {task.suite}", facts)


def of_environment(
    repository: Repository, task: Task, python: str, files: Mapping[str, str]
) -> Request:
    """Return the request to make a virtual environment from `files` with their mode and blob."""
    asks = {"venv": list(task.venv), "python": task.python}
    facts = {"asks": asks, "requirements": dict(files), **_programs(repository, {python})}
    return Request(f"environment of suite {task.suite}", facts)


def texts_of(repository: Repository, suite: Suite, requests: Iterable[Request]) -> dict[str, Path]:
    """Return the files that requests name, of a suite and of programs, by their digests."""
    programs = {
        digest: root / name
        for request in requests
        for facts in [request.facts.get("program")]
        for name, digest in (facts.items() if isinstance(facts, dict) else ())
        for root in (repository.worktree, repository.root)
        if os.path.lexists(root / name)
    }
    return {**programs, **suite.texts}


def _asks(task: Task) -> dict[str, object]:
    """Return the fields that a suite sets for a task, without those that have their default."""
    several = len(task.commands) > 1
    asks: dict[str, object] = {
        f"command {c.name}" if several else "command": shlex.join(c.template) for c in task.commands
    }
    asks |= {f"build {n}": shlex.join(words) for n, words in enumerate(task.build, 1)}
    asks |= {f"parameter {name}": value for name, value in task.params.items()}
    for name, value in task._asdict().items():
        if name not in _OTHERWISE and value != getattr(_NO_TASK, name):
            asks[name] = list(value) if isinstance(value, tuple) else value
    return asks | {
        f"metric {m.name}": f"{m.direction} {m.kind} {m.floor} {m.summary} {m.unit}".strip()
        for m in task.metrics
        if m not in TELEMETRY
    }


def _programs(repository: Repository, names: Iterable[str]) -> dict[str, object]:
    """Return the files, of these programs, that git tracks in a work tree of the user's: the
    programs, the targets of their links, and the files of the virtual environments that they belong
    to. A merge can change these; each name comes with the hash of its content."""
    programs = filter(None, (find_program(n, repository.root, os.environ)[0] for n in names))
    paths = {Path(path) for program in programs for path in (program, os.path.realpath(program))}
    for path in tuple(paths):
        if (path.parent.parent / "pyvenv.cfg").exists():
            paths.add(path.parent.parent)
        paths.update(folder for folder in path.parents if folder.is_symlink())
    hashes: dict[str, str] = {}
    for root in {repository.root, repository.worktree}:
        inside = [
            str(path.relative_to(root))
            for path in paths
            if path.is_relative_to(root) and not path.is_relative_to(repository.common_dir)
        ]
        if inside:
            out = ask(root, "ls-files", "-z", "--", *(f":(literal){n}" for n in inside)).out
            hashes |= {os.fsdecode(n): _content(root / os.fsdecode(n))
                       for n in out.split(b"\0")[:-1]}  # fmt: skip
    return {"program": hashes} if hashes else {}


def _content(path: Path) -> str:
    try:
        text = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return hashlib.sha256(text).hexdigest()
