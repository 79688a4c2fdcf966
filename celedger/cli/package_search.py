"""`celedger bisect REV --packages OLD..NEW`: the upgrade that made a training worse."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from celedger.base.errors import Status, UsageError
from celedger.cli import options
from celedger.cli.session import Options, Session, load_suite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celedger.base.model import Environment
    from celedger.judge.bisection import Limits
    from celedger.ledger import Ledger
    from celedger.repo import Repository


def search_packages(
    command: Options,
    session: Session,
    revision: str,
    files: str,
    tasks: Sequence[str] | None,
    metrics: Sequence[str],
    limits: Limits,
    *,
    improved: bool,
    json: bool,
) -> Status:
    """Search the differences of two lock files at a commit, and show the answer."""
    from celedger.cli.progress import Progress
    from celedger.judge import bisection
    from celedger.judge.bisection.package_search import package_bench
    from celedger.trial.workplace import choose_tasks
    from celedger.views.package_search import PackageAnswer

    old, dots, new = files.partition("..")
    if not (old and dots and new):
        raise UsageError(f"{files!r} is not two lock files", "write --packages OLD..NEW")
    environments = [_environment(session.ledger, name) for name in (old, new)]
    pythons = [_python(each) for each in environments if each is not None]
    if len({*pythons}) > 1:
        raise UsageError(
            f"these are two Pythons, {' and '.join(pythons)}", "compare packages of one"
        )
    first, second = (
        _read(session.repository, name) if environment is None else (name, _pins(environment))
        for name, environment in zip((old, new), environments, strict=True)
    )
    suite = load_suite(session)
    with (
        package_bench(
            session.repository, session.config, suite, choose_tasks(suite, tasks or ()),
            session.repository.resolve(revision), (first, second), session.gate,
            python=pythons[0] if pythons else "",
        ) as (bench, own_tasks, commits),
        Progress(bench) as progress,
    ):  # fmt: skip
        good, bad = commits[0], commits[-1]
        progress.say(f"searching {len(commits) - 1} upgrades")
        history = bench.repository.history(good.sha, bad.sha)
        answer = bisection.bisect_many(
            bench, history, good, own_tasks, metrics, limits, improved=improved
        )
        known = {metric.name: metric for metric in bench.ledger.metrics()}
    again = shlex.join(["bisect", revision, "--packages", files, "--suite", suite.folder.name])
    typed = f"{command.typed('celedger')} {again}"
    options.answer(PackageAnswer(answer, known, typed), json)
    return Status.GOOD if answer.named else Status.CANNOT_JUDGE


def _environment(ledger: Ledger, name: str) -> Environment | None:
    """Return the environment that the first digits of its fingerprint name; None for a file."""
    if Path(name).exists() or not re.fullmatch("[0-9a-f]{8,64}", name):
        return None
    named = [each for key, each in ledger.environments().items() if key.startswith(name)]
    if len(named) != 1:
        raise UsageError(
            f"{name} is no file, and no environment of the ledger", "see `celedger drift`"
        )
    return named[0]


def _pins(environment: Environment) -> str:
    packages = environment.details.get("packages")
    rows = packages.items() if isinstance(packages, Mapping) else ()
    return "\n".join(f"{name}=={version}" for name, version in rows)


def _python(environment: Environment) -> str:
    """Return `CPython 3.11`."""
    return ".".join(str(environment.details.get("python")).split(".")[:2])


def _read(repository: Repository, name: str) -> tuple[str, str]:
    """Return the name and text of a lock file: a path, or REV:PATH."""
    revision, colon, path = name.partition(":")
    try:
        if colon and not Path(name).exists():
            return name, repository.blob(repository.resolve(revision).sha, path).decode()
        return name, Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise UsageError(f"{name} cannot be read: {reason}") from None
