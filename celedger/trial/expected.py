"""All that a suite will start, described before any of it is: what `celedger allow` shows and the
worker asks for first. Made by what makes the starts themselves, with other paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from celedger.errors import CeledgerError
from celedger.model import Task
from celedger.suite import build_lines, command_lines
from celedger.system import environment, warm
from celedger.system.gate import Permit, Request, mark
from celedger.system.programs import find_program
from celedger.trial import venvs
from celedger.trial.starts import Starts
from celedger.trial.surroundings import variables


def requests(
    starts: Starts,
    tasks: Iterable[Task],
    interpreters: Mapping[str, str],
    base: Mapping[str, str],
    commit: str | None = None,
) -> list[Request]:
    """Return a description of each start, none twice. `interpreters` by task name, `base` the
    user's variables; without a commit (a hash) its requirement files are left out."""
    by_digest = {
        request.digest: request
        for task in tasks
        for request in _of_task(starts, task, interpreters[task.name], base, commit)
    }
    return list(by_digest.values())


def _of_task(
    starts: Starts, task: Task, python: str, base: Mapping[str, str], commit: str | None
) -> Iterator[Request]:
    state = starts.repository.state_dir
    tree, suite, out = (state / name / "0" for name in ("checkouts", "suites", "out"))
    yield _question(starts, task, python)
    if task.venv:
        home = state / "venvs" / "0"
        if commit is not None:
            with suppress(venvs.Unmade, CeledgerError):  # the trial will say so
                files = venvs.requirements(starts.repository, commit, task.venv)
                env = venvs.install_variables(base)
                yield from venvs.install_requests(starts, task, python, home, env, files)
        python = str(venvs.python_of(home))
        yield _question(starts, task, python)
    env = variables(
        base, task, tree=tree, child=starts.child, visible_devices="", extra={}
    )  # fmt: skip
    if task.preload:
        early = warm.early_variables(env)
        permit = starts.launcher(task, python)
        yield _request(permit, warm.line(python, task.preload), warm.FOLDER, early)
    lines = build_lines(task, python=python, suite_dir=suite, tree=tree)
    for step, line in enumerate(lines, 1):
        yield _request(starts.build(task, step, python, tree, suite), line, tree, env)
    commands = command_lines(
        task, python=python, suite_dir=suite, tree=tree, seed=mark("seed"), out=out
    )
    for name, line in commands:
        permit = starts.training(task, name, python, tree, suite, out, 0)
        yield _request(permit, line, tree, env)


def _question(starts: Starts, task: Task, python: str) -> Request:
    return _request(starts.question(task, python), environment.question(python), None, None)


def _request(
    permit: Permit, words: tuple[str, ...], cwd: Path | None, env: Mapping[str, str] | None
) -> Request:
    program = find_program(words[0], cwd or Path(), env or {})[0]
    return permit.request(words, cwd, env, program or "")
