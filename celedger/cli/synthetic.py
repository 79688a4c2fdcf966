"""Use a synthetic revision in a verb (`.`, `REV-CULPRIT`).

Its trials go to a ledger of their own among celedger's files: no state, history, merge, export or
engine can see them there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celedger.base.errors import CeledgerError, Status, UsageError
from celedger.cli.session import note, report_leftovers
from celedger.service.measure import Session, load_suite, open_bench

if TYPE_CHECKING:
    from celedger.base.model import Commit, Task, TrialRecord
    from celedger.repo import Repository
    from celedger.repo.synthetic import Synthetic
    from celedger.suite import Suite
    from celedger.trial.runner import Bench


def find(repository: Repository, text: str) -> Synthetic | None:
    """Return the synthetic revision that a text names, and say what it leaves out; None where git
    itself knows the text, or does not know it either."""
    from celedger.base.errors import UnknownRevision
    from celedger.repo import synthetic

    try:
        revision = synthetic.find(repository, text)
    except UnknownRevision:
        return None  # the caller's own error says more
    if revision is not None and revision.left_out:
        note(f"celedger: left out of the {revision.title}:")
        for line in revision.left_out:
            note(f"  {line}")
    return revision


def two(repository: Repository, words: Sequence[str]) -> list[str]:
    """Return the two revisions that `A..B`, or `A B`, names. The working tree needs two words:
    three dots are git's. Raises UsageError for other words."""
    if len(words) == 1:
        start, dots, end = words[0].partition("..")
        if not dots or ".." in end or end.startswith("."):
            repository.ends(words[0])  # its error says what is wrong
        words = (start, end)
    if len(words) != 2 or any(".." in word for word in words):
        raise UsageError(f"{' '.join(words)} are not two revisions", "write A..B, or A B")
    return [word or "HEAD" for word in words]


@contextmanager
def reading_apart(
    session: Session, words: Sequence[str]
) -> Iterator[tuple[Session, Sequence[Commit]]]:
    """Yield a session that has the trials of these revisions, and their commits. It is one `apart`
    where a revision is synthetic. Raises CeledgerError where that has no trials."""
    from celedger.repo.synthetic import name_of
    from celedger.views.samples import run_command

    repository = session.repository
    revisions = [find(repository, word) for word in words]
    commits = [
        revision.commit if revision else repository.resolve(word)
        for revision, word in zip(revisions, words, strict=True)
    ]
    if not any(revision is not None and revision.is_changed for revision in revisions):
        yield session, commits
        return
    with apart(session) as own_session:
        ledger = own_session.ledger
        ledger.take_trials(session.ledger, [commit.sha for commit in commits])
        measured = ledger.commits_with_trials()
        for commit, word in zip(commits, words, strict=True):
            if commit.sha not in measured:
                typed = run_command(session.ledger, word)
                raise CeledgerError(f"no trial of {name_of(commit)} is stored", f"type {typed}")
        yield own_session, commits


@contextmanager
def apart(session: Session) -> Iterator[Session]:
    """Yield a session whose repository has the synthetic revisions, and whose ledger their trials.
    Raises UsageError for an engine that would carry them to another machine."""
    from celedger.ledger import Ledger
    from celedger.repo.synthetic import LEDGER, ObjectStore

    if session.config.engine != "local":
        raise UsageError("a synthetic revision is measured on this machine alone", "--engine local")
    store = ObjectStore(session.repository)
    with Ledger.open(store.folder / LEDGER, create=True) as ledger:
        report_leftovers(store.repository, ledger)
        yield replace(session, repository=store.repository, ledger=ledger)


@contextmanager
def bench_apart(
    session: Session,
    synthetic: Synthetic,
    text: str,
    verb: str,
    names: Sequence[str] | None,
    **options: Any,
) -> Iterator[tuple[Session, Bench, tuple[Task, ...]]]:
    """Yield a session `apart`, with a bench that measures a synthetic revision by its own suite,
    and the tasks (`options`: those of `open_bench`)."""
    with (
        apart(session) as own_session,
        suite_at(own_session, load_suite(session), synthetic.commit, text) as suite,
    ):
        own_session.ledger.take_trials(session.ledger, [synthetic.base.sha])
        with open_bench(
            own_session, verb, names, suite=suite, together=True, **options
        ) as (bench, tasks):  # fmt: skip
            yield own_session, bench, tasks


@contextmanager
def suite_at(session: Session, suite: Suite, commit: Commit, text: str) -> Iterator[Suite]:
    """Yield a suite with the files that a revision has of it: those of the working tree for `.`,
    and where the revision has none. What git ignores of them is the working tree's."""
    import tempfile

    from celedger.repo import tree_files
    from celedger.repo.synthetic import WORKING_TREE
    from celedger.suite.loading import digests, hash_of

    repository = session.repository
    if text == WORKING_TREE or not suite.folder.is_relative_to(repository.worktree):
        yield suite
        return
    name = str(suite.folder.relative_to(repository.worktree))
    with tempfile.TemporaryDirectory(prefix="celedger-suite-") as folder:
        tree = Path(folder).resolve()
        if not tree_files.write_beside_ignored(repository, commit.sha, [name], tree):
            yield suite
            return
        files = digests(tree / name)
        tasks = tuple(task._replace(files=hash_of(files)) for task in suite.tasks)
        yield replace(suite, folder=tree / name, files=files, tasks=tasks)


def is_unchanged(synthetic: Synthetic) -> bool:
    """Return True, and say so, where a synthetic revision has the tree of what it is made from."""
    if not synthetic.is_changed:
        print(f"{synthetic.title} has the files of {synthetic.base.sha[:10]}: nothing to measure")
    return not synthetic.is_changed


def status(records: Sequence[TrialRecord]) -> Status:
    """Return the exit status of trials of a synthetic revision: 1 where one failed by itself."""
    kinds = [record.outcome.kind for record in records if record.outcome is not None]
    if any(kind.crashed for kind in kinds):
        return Status.BAD
    return Status.GOOD if all(kind == "ok" for kind in kinds) else Status.CANNOT_JUDGE
