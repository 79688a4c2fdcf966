"""What every verb needs first: the repository, its configuration and its ledger, opened in
that order, with the errors a person can act on."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celedger.config import Config
    from celedger.ledger import Ledger
    from celedger.model import Task
    from celedger.repo import Repository
    from celedger.trial.runner import Bench


@dataclass(frozen=True, slots=True)
class Options:
    """What stands before the verb."""

    repository: Path
    ledger: Path | None

    def typed(self, program: str) -> str:
        """Return how `celedger` or `git` is to be typed, in the same folder, to mean the same."""
        words = [program]
        if self.repository != Path():
            words += ["-C", str(self.repository)]
        if self.ledger is not None and program == "celedger":
            words += ["--ledger", str(self.ledger)]
        return shlex.join(words)

    def retyped(self, text: str) -> str:
        """Return a text whose commands, in backquotes, mean this repository and ledger."""
        return text.replace("`celedger ", f"`{self.typed('celedger')} ")


@dataclass(frozen=True, slots=True)
class Session:
    repository: Repository
    config: Config
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Looking(Session):
    """A session for diagnostic runs, whose results never enter the ledger."""

    bench: Bench
    tasks: tuple[Task, ...]
    folder: Path  # for what the probes leave; gone at the end


def note(text: str) -> None:
    """A line for the person, on stderr: stdout is the answer's."""
    print(text, file=sys.stderr, flush=True)


def find(options: Options) -> tuple[Repository, Config]:
    """Return the repository, and the settings of what is checked out."""
    from celedger.repo import Repository

    repository = Repository.open(options.repository)
    return repository, _load(repository, options, repository.worktree)


def _load(repository: Repository, options: Options, tree: Path, **flags: object) -> Config:
    from celedger import config

    root = repository.root
    return config.load(root, os.environ, worktree=tree, ledger=options.ledger, **flags)


@contextmanager
def settled(
    repository: Repository, options: Options, **flags: object
) -> Iterator[tuple[Config, str]]:
    """Yield the settings in force and, during a `git bisect`, the hash of the commit where it
    started: settings and suites are then those of that commit, whatever is checked out."""
    import tempfile

    from celedger.config import FILES, SUITES
    from celedger.repo import bisecting

    start = bisecting.start_of(repository)
    if not start:
        yield _load(repository, options, repository.worktree, **flags), ""
        return
    with tempfile.TemporaryDirectory(prefix="celedger-bisect-") as folder:
        tree = Path(folder).resolve()
        bisecting.lay(repository, start, [*FILES, SUITES], tree)
        settings = _load(repository, options, tree, **flags)
        for home in (repository.worktree, tree):
            if settings.suites.is_relative_to(home):
                suites = settings.suites.relative_to(home)
                bisecting.lay(repository, start, [str(suites)], tree)
                settings = replace(settings, suites=tree / suites)
        yield settings, start


@contextmanager
def reading(options: Options) -> Iterator[Session]:
    """A session that only reads. The ledger must exist."""
    from celedger.ledger import Ledger
    from celedger.repo import Repository

    repository = Repository.open(options.repository)
    with settled(repository, options) as (settings, _):
        _take_in_leftovers(settings.ledger)
        with Ledger.open(settings.ledger, readonly=True) as ledger:
            yield Session(repository, settings, ledger)


@contextmanager
def writing(options: Options, **flags: object) -> Iterator[Session]:
    """A session that appends. The ledger is made where there is none, and kept out of git."""
    from celedger.ledger import Ledger
    from celedger.repo import Repository

    repository = Repository.open(options.repository)
    with settled(repository, options, **flags) as (settings, start):
        if start:
            note(f"celedger: settings and suites are those of {start[:10]}, where git bisect began")
        keep_out_of_git(repository, settings.ledger)
        with Ledger.open(settings.ledger, create=True) as ledger:
            _report_leftovers(ledger)
            yield Session(repository, settings, ledger)


@contextmanager
def diagnosing(
    options: Options,
    verb: str,
    *,
    suite: str | None,
    tasks: Sequence[str] = (),
    device: str | None = None,
) -> Iterator[Looking]:
    """A session with a bench for `celedger.trial.diagnostic.diagnose`, and the tasks named (all of
    the suite when none is)."""
    import tempfile

    from celedger import suite as suites
    from celedger.trial.workplace import choose_tasks, set_bench

    with writing(options, suite=suite, device=device) as session:
        repository, settings, ledger = session.repository, session.config, session.ledger
        chosen = suites.load(suites.find(None, settings, repository.root))
        picked = choose_tasks(chosen, tasks)
        with (
            tempfile.TemporaryDirectory(prefix=f"celedger-{verb}-") as folder,
            set_bench(
                repository, ledger, settings, chosen, picked, label=f"celedger {verb}"
            ) as bench,
        ):
            yield Looking(repository, settings, ledger, bench, picked, Path(folder))


def keep_out_of_git(repository: Repository, ledger: Path) -> None:
    """Name the ledger and its folder in .git/info/exclude, where they lie inside the tree."""
    from celedger.errors import RepositoryError

    root = repository.root.resolve()
    home = ledger.parent.resolve()
    if home == root or root in home.parents:
        prefix = "/" + "".join(f"{part}/" for part in home.relative_to(root).parts)
        name = f"{prefix}{ledger.name}"
        try:
            repository.exclude([name, f"{name}-*", f"{name}.before-*", f"{prefix}.celedger/"])
        except OSError as error:
            raise RepositoryError(
                f"{repository.common_dir} cannot be written: {error.strerror}"
            ) from error


def _take_in_leftovers(path: Path) -> None:
    """A reader too says what became of trials whose runner died, where it may write."""
    from celedger.errors import CeledgerError
    from celedger.ledger import Ledger

    journals = path.parent / ".celedger" / "journals"
    if not all(os.access(place, os.W_OK) for place in (path, path.parent, journals)):
        return
    try:
        if any(journals.iterdir()):
            with Ledger.open(path) as ledger:
                _report_leftovers(ledger)
    except (CeledgerError, OSError):
        return  # reading goes on, and says what is wrong with the ledger if it must


def _report_leftovers(ledger: Ledger) -> None:
    from celedger.system.process import sweep
    from celedger.trial.journal import recover

    for record in recover(ledger, now=time.time(), sweep=sweep):
        note(
            f"celedger: the trial of {record.task} at {record.trial.commit[:10]}, seed "
            f"{record.trial.seed}, was interrupted; its {record.epochs} epochs are kept"
        )
