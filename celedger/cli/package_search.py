"""`celedger bisect REV --packages OLD..NEW`: the upgrade that made a training worse."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from celedger.base.errors import Status, UsageError
from celedger.cli import options
from celedger.cli.session import Options, Session, load_suite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celedger.judge.bisection import Limits
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
    locks = (_read(session.repository, old), _read(session.repository, new))
    suite = load_suite(session)
    with (
        package_bench(
            session.repository, session.config, suite, choose_tasks(suite, tasks or ()),
            session.repository.resolve(revision), locks, session.gate,
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
