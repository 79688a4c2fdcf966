"""The opening of every verb: the repository, its configuration and its ledger, opened in
that order, with the errors a person can act on."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from celedger.service.measure import Session, open_bench

if TYPE_CHECKING:
    from celedger.base.config import Config
    from celedger.base.errors import UsageError
    from celedger.base.model import Commit, Task
    from celedger.ledger import Ledger
    from celedger.ledger.archive import Archive
    from celedger.repo import Repository
    from celedger.trial.runner import Bench
    from celedger.views.document import Json


class Options(NamedTuple):
    """The options before the verb."""

    repository: Path
    ledger: Path | None
    attended: bool = True  # somebody typed the verb; else it runs only what is allowed

    def typed(self, program: str) -> str:
        """Return how `celedger` or `git` is to be typed, in the same folder, to mean the same."""
        typed = Path(sys.argv[0])
        is_absent = typed.name == program and shutil.which(program) is None
        words = [str(typed) if is_absent else program]
        if self.repository != Path():
            words += ["-C", str(self.repository)]
        if self.ledger is not None and program == "celedger":
            words += ["--ledger", str(self.ledger)]
        return shlex.join(words)

    def retyped(self, text: str) -> str:
        """Return a text whose commands mean this repository and ledger: those in backquotes, and
        those on a line of their own."""
        return re.sub(r"(?m)(`|^  )celedger (?=\S)", rf"\1{self.typed('celedger')} ", text)


class Sides(NamedTuple):
    """The sides that a diagnosis compares: the `session` that has the revisions and keeps the
    answer, the revisions, and copies of the suite's files by commit, for commits whose own are
    used."""

    session: Session
    revisions: tuple[str, ...] = ()
    suite_files: Mapping[str, Path] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Looking(Session):
    """A session for diagnostic runs, of which only the answer enters the ledger."""

    bench: Bench
    tasks: tuple[Task, ...]
    folder: Path  # for what the probes leave; gone at the end
    started: float
    sides: Sides

    def bench_at(self, commit: Commit) -> Bench:
        """Return the bench with the files that a commit has of the suite, where those are used."""
        from celedger.trial.runner import Bench

        setup = self.bench.setup
        files = self.sides.suite_files.get(commit.sha, setup.suite_files)
        if files == setup.suite_files:
            return self.bench
        return Bench(self.bench.station.changed(setup=replace(setup, suite_files=files)))


def note(text: str) -> None:
    """A line for the person, on stderr: stdout is the answer's."""
    print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    note(f"celedger: {text}")


def no_incident(name: str, gone: Sequence[str] = ()) -> UsageError:
    """Return why a name is no incident; `gone` are those whose commits the history lacks."""
    from celedger.base.errors import UsageError

    if name in gone:
        from celedger.repo.repository import UNSHALLOW

        return UsageError(
            f"this history lacks the commits of incident {name}",
            f"check out a branch that has them; in a shallow clone: {UNSHALLOW}",
        )
    return UsageError(f"there is no incident {name} in this history", "see `celedger status`")


def find(options: Options) -> tuple[Repository, Config]:
    """Return the repository, and the settings of what is checked out."""
    from celedger.repo import Repository

    repository = Repository.open(options.repository)
    return repository, _load(repository, options, repository.worktree)


def _load(repository: Repository, options: Options, tree: Path, **flags: object) -> Config:
    from celedger.base import config

    root = repository.root
    return config.load(root, os.environ, worktree=tree, ledger=options.ledger, **flags)


@contextmanager
def settled(
    repository: Repository, options: Options, **flags: object
) -> Iterator[tuple[Config, str]]:
    """Yield the settings in force and, during a `git bisect`, the hash of the commit where it
    started: settings and suites are then those of that commit, whatever is checked out."""
    from celedger.base.config import FILES, SUITES
    from celedger.repo import tree_files

    start = tree_files.start_of(repository)
    if not start:
        yield _load(repository, options, repository.worktree, **flags), ""
        return

    import tempfile

    with tempfile.TemporaryDirectory(prefix="celedger-bisect-") as folder:
        tree = Path(folder).resolve()
        tree_files.write_files(repository, start, [*FILES, SUITES], tree)
        settings = _load(repository, options, tree, **flags)
        for home in (repository.worktree, tree):
            if settings.suites.is_relative_to(home):
                suites = settings.suites.relative_to(home)
                tree_files.write_files(repository, start, [str(suites)], tree)
                settings = replace(settings, suites=tree / suites)
        yield settings, start


def archive_of(repository: Repository, settings: Config) -> Archive:
    """Return the archive that the repository keeps of its ledger."""
    from celedger.ledger.archive import Archive

    return Archive(repository.state_dir, repository.root, settings.ledger)


@contextmanager
def reading(options: Options, repository: Repository | None = None) -> Iterator[Session]:
    """A session that only reads [default: the repository of the options]. The ledger must exist."""
    from celedger.ledger import Ledger
    from celedger.repo import Repository
    from celedger.service import allow
    from celedger.trial.permissions import Gate

    repository = repository or Repository.open(options.repository)
    with settled(repository, options) as (settings, _):
        if not settings.ledger.exists() and (why := allow.held_back(repository, settings)):
            warn(options.retyped(f"the worker ignores settings that are not approved: {why}"))
        archive = archive_of(repository, settings)
        _take_in_leftovers(repository, settings.ledger, archive)
        with Ledger.open(settings.ledger, readonly=True, archive=archive) as ledger:
            _report_lost_trials(repository, ledger, options)
            yield Session(repository, settings, ledger, Gate.of(repository, attended=False), warn)


@contextmanager
def writing(
    options: Options, *, attended: bool = True, read_only: bool = False, **flags: object
) -> Iterator[Session]:
    """Open a session that appends. A missing ledger is made, and kept out of git. With `read_only`,
    a ledger that cannot be written to is opened all the same.

    Raises NotAllowed if the command is unattended and the settings are not approved.
    """
    from celedger.ledger import Ledger
    from celedger.ledger.opening import writable
    from celedger.repo import Repository
    from celedger.service import allow
    from celedger.trial.permissions import Gate

    repository = Repository.open(options.repository)
    gate = Gate.of(repository, attended=attended)
    with settled(repository, options, **flags) as (settings, start):
        if not attended:
            allow.check_settings(gate, settings)
        if start:
            note(f"celedger: settings and suites are those of {start[:10]}, where git bisect began")
        keep_out_of_git(repository, settings.ledger)
        archive = archive_of(repository, settings)
        read_only &= settings.ledger.is_file() and not writable(settings.ledger)
        with Ledger.open(
            settings.ledger, create=True, readonly=read_only, archive=archive
        ) as ledger:
            _report_lost_trials(repository, ledger, options)
            if not read_only:
                report_leftovers(repository, ledger)
            if settings.engine == "local":
                _name_orders(repository)
            try:
                yield Session(repository, settings, ledger, gate, warn)
            finally:
                if attended and gate.grown:
                    allow.wake(repository, settings)


@contextmanager
def diagnosing(
    options: Options,
    verb: str,
    *,
    suite: str | None,
    tasks: Sequence[str] = (),
    device: str | None = None,
    around: Callable[[Session], AbstractContextManager[Sides]] | None = None,
) -> Iterator[Looking]:
    """Yield a session with a bench for `celedger.trial.diagnostic.diagnose`, and the tasks named
    (all of the suite when none is). The folder of its runs is kept where they cannot be judged.
    `around` yields what is compared, and the session that can measure it."""
    import tempfile

    from celedger.base.errors import CannotJudge

    with (
        writing(
            options, attended=options.attended, read_only=True, suite=suite, device=device
        ) as opened,
        around(opened) if around else nullcontext(Sides(opened)) as sides,
    ):
        session = sides.session
        folder = Path(tempfile.mkdtemp(prefix=f"celedger-{verb}-"))
        failed = False
        try:
            with open_bench(session, verb, tasks) as (bench, chosen):
                yield Looking(
                    session.repository, session.config, session.ledger, session.gate, session.tell,
                    bench, chosen, folder, time.time(), sides,
                )  # fmt: skip
        except CannotJudge:
            failed = any(folder.rglob("log.txt"))
            if failed:
                note(f"celedger: the logs of this run are kept in {folder}")
            raise
        finally:
            if not failed:
                shutil.rmtree(folder, ignore_errors=True)


def keep(
    session: Session,
    task: Task,
    commits: Sequence[Commit],
    command: str,
    headline: str,
    answer: Mapping[str, Json],
    *,
    started: float,
) -> None:
    """Keep the answer of a diagnosis with the last of its commits, and the command to repeat it.
    The verb goes on where the ledger cannot be written to."""
    from random import Random

    from celedger.base.errors import LedgerError
    from celedger.base.model import FindingRecord
    from celedger.ledger import ulid
    from celedger.views.document import finite

    first, last = commits[0].sha, commits[-1].sha
    record = FindingRecord(
        ulid.new(started, Random()), command.partition(" ")[0], task.suite, task.name, last,
        first if first != last else "", command, started, headline, finite(answer),
    )  # fmt: skip
    try:
        session.ledger.record_commits(commits)
        session.ledger.record_finding(record)
    except LedgerError as error:
        warn(f"the answer was not stored: {error}")


def keep_out_of_git(repository: Repository, ledger: Path) -> None:
    """Name the ledger and its folder in .git/info/exclude, where they lie inside the tree."""
    from celedger.base.errors import RepositoryError, explained

    root, path = repository.root.resolve(), ledger.parent.resolve() / ledger.name
    if not path.is_relative_to(root):
        return
    # gitignore(5) has characters with a meaning.
    name = re.sub(r"([*?\[\\])", r"\\\1", f"/{path.relative_to(root)}")
    aside = [f"{name}{suffix}" for suffix in ("-*", ".before-*", ".damaged-*")]
    with explained(f"{repository.common_dir} cannot be written", kind=RepositoryError):
        repository.exclude([name, *aside, f"{name.rpartition('/')[0]}/.celedger/"])


def _take_in_leftovers(repository: Repository, path: Path, archive: Archive) -> None:
    """Record the trials whose runner died, if the ledger can be written to."""
    from celedger.base import files
    from celedger.base.errors import CeledgerError
    from celedger.ledger import Ledger

    folders = (archive.journals, files.beside(path) / "journals")
    # Reading goes on where this fails, and says what is wrong with the ledger if it must.
    with suppress(CeledgerError, OSError):
        if os.access(path, os.W_OK) and any(any(f.glob("*.*")) for f in folders):
            with Ledger.open(path, archive=archive) as ledger:
                report_leftovers(repository, ledger)


def _report_lost_trials(repository: Repository, ledger: Ledger, options: Options) -> None:
    """Warn where trials of this branch are gone. A runner that restores a branch's ledger from a
    cache has an archive with what it measured for other branches."""
    lost = ledger.lost_commits()
    if lost and repository.has_in_history(lost):
        note(options.retyped(
            f"celedger: {ledger.path} is missing recorded trials; "
            "`celedger doctor --restore` brings it back"
        ))  # fmt: skip


def _name_orders(repository: Repository) -> None:
    """Say which trials a killed command left on nodes, to one that does not ask them."""
    from celedger.trial import journal

    for engine, number in Counter(
        engine for *_, engine, attended in journal.remote_trials(repository) if not attended
    ).items():
        trials = "1 trial runs" if number == 1 else f"{number} trials run"
        name = engine.split()[0]
        note(f"celedger: {trials} on {engine}; a command with --engine {name} collects "
             "the results")  # fmt: skip


def report_leftovers(repository: Repository, ledger: Ledger) -> None:
    from celedger.system.process import sweep
    from celedger.trial import journal
    from celedger.views.document import count

    for record in journal.recover(
        ledger, now=time.time(), sweep=sweep, elsewhere=journal.remote_ulids(repository)
    ):
        epochs = count(record.epochs, "epoch")
        note(
            f"celedger: the trial of {record.task} at {record.trial.commit[:10]}, seed "
            f"{record.trial.seed}, was interrupted; the ledger has {epochs} of it"
        )
