"""`celedger demo`: make a repository, search its planted regressions, show the answers; or unpack
the ledger that has them. All of it goes through the same rooms as in a user's repository; no search
knows where its regression is.

The example that ships is the repository of a small library whose history has a planted regression
of each kind, as a git bundle, and a ledger of its trials. `scripts/make_example.py` makes both.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base import files, shipped
from celedger.base.errors import CeledgerError, RepositoryError, Status, UsageError, explained
from celedger.cli import app, options
from celedger.cli.session import Options, keep_out_of_git
from celedger.service.measure import Session, open_bench, train

if TYPE_CHECKING:
    from celedger.base.config import Config
    from celedger.base.model import Commit
    from celedger.judge.bisection import Report
    from celedger.repo import Repository
    from celedger.trial.engine import Listener
    from celedger.trial.runner import Bench

_TRUTH = "refs/planted/"  # the repository's own names of the planted commits, by kind
# What each kind of regression is seen in: a task and, unless it crashes, its metric.
SEEN_IN = {
    "quality": ("mlp", "val_loss"),
    "speed": ("mlp", "samples_per_second"),
    "memory": ("mlp", "peak_rss"),
    "crash": ("resume", ""),
}
SURVEYED = 6  # commits measured before anything is searched, for the picture of the history
SEEDS = (0, 1)  # of each of them
_MOST = 0.5  # of a difference: what is left of it is the larger step
# A planted regression: its kind, task, metric ("" for a crash) and true commit; what the bisect
# reported of it, or its error.
_Answer = tuple[str, str, str, "Commit", "Report | None", str]


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to make the repository.")
    ] = Path("demo"),
    example: Annotated[
        bool, typer.Option("--example", help="Train nothing: unpack the example ledger.")
    ] = False,
    device: options.Device = None,
) -> int:
    """Make a repository with four planted regressions, and find them.

    The repository holds a small library that trains with torch, and 20 commits. The demo
    bisects a quality, a speed and a memory regression and a crash, and compares each answer
    with the truth. Type it again to continue. With --example nothing is trained and torch is
    not needed: the ledger that comes with it has trials of every commit.
    """
    status = (_unpack if example else _play)(folder, device)
    print(f"\nlook around:\n  {Options(folder, None).typed('celedger')} status")
    return status


def _unpack(folder: Path, device: str | None) -> Status:
    from celedger.base import config
    from celedger.repo import Repository

    with files.as_the_user():
        materialise(folder.absolute())
    repository = Repository.open(folder)
    ledger = config.load(repository.root, {}, device=device).ledger
    unpack_ledger(ledger)
    keep_out_of_git(repository, ledger)
    print(f"repository  {repository.root}\nledger      {ledger}")
    return Status.GOOD


def _play(folder: Path, device: str | None) -> Status:
    from celedger.cli.progress import Progress
    from celedger.ledger import Ledger
    from celedger.trial.permissions import Gate

    with files.as_the_user():
        repository, settings, planted = set_stage(folder.absolute(), device)
    keep_out_of_git(repository, settings.ledger)
    gate = Gate.of(repository, attended=True)
    with Ledger.open(settings.ledger, create=True) as ledger, Progress() as progress:
        session = Session(repository, settings, ledger, gate, progress.say)
        answers = _survey_and_search(session, planted, progress)
    pictures = [*_draw(folder, answers)] if app.is_installed("plot") else []
    text, are_honest = _result(answers)
    print(f"{text}\n\nledger    {settings.ledger}")
    for picture in pictures:
        print(f"picture   {picture}")
    return Status.GOOD if are_honest else Status.CANNOT_JUDGE


def set_stage(folder: Path, device: str | None = None) -> tuple[Repository, Config, dict[str, str]]:
    """Make the demo's repository at `folder`, or find it there again. Return it, settings by which
    its trials run on the `device`, and the true hashes by kind of regression.

    Raises UsageError where something else is there, or torch is not installed.
    """
    from celedger.base import config
    from celedger.repo import Repository

    if find_spec("torch") is None:
        raise UsageError("the demo trains with torch", "pip install torch")
    planted = materialise(folder)
    repository = Repository.open(folder)
    return repository, config.load(repository.root, {}, device=device), planted


def _survey_and_search(
    session: Session, planted: Mapping[str, str], listen: Listener
) -> list[_Answer]:
    """Survey the history, then bisect each planted regression from the first commit to the last. A
    search that fails is an answer with its error."""
    from celedger.base.model import Purpose
    from celedger.repo import spread
    from celedger.trial.workplace import choose_tasks, lacking

    repository = session.repository
    history = repository.log("HEAD", limit=10_000)[::-1]
    with open_bench(session, "demo", why=Purpose.DEMO, listen=listen) as (bench, _):
        surveyed = spread(history, SURVEYED)
        needs = lacking(bench, surveyed, choose_tasks(bench.suite, ["mlp"]), seeds=SEEDS)
        session.tell(f"surveying {len(surveyed)} of {len(history)} commits: {len(needs)} trials")
        train(bench, needs)
        return [
            _search(bench, history, kind, repository.commit(sha), session.tell)
            for kind, sha in planted.items()
        ]


def _search(
    bench: Bench, history: Sequence[Commit], kind: str, truth: Commit, say: Callable[[str], None]
) -> _Answer:
    from celedger.judge import bisection
    from celedger.trial.workplace import choose_tasks

    task, metric = SEEN_IN[kind]
    tasks = choose_tasks(bench.suite, [task])

    def search(good: Commit, bad: Commit) -> Report:
        history = bench.repository.history(good.sha, bad.sha)
        metrics = (metric,) if metric else ()
        (report,) = bisection.bisect_many(bench, history, tasks, metrics).reports
        say(report.sentence())
        return report

    say(f"bisecting {task} {metric or 'crash'}")
    try:
        report = search(history[0], history[-1])
        # Of another planted edit a machine may make a step of this metric too, but a smaller one;
        # where it only ran faster for a while, nothing is named there.
        for other in report.others:
            if other.share > _MOST:
                rest = search(other.after, other.by)
                answer = rest if rest.named else report
                report = replace(answer, trials=report.trials + rest.trials)
    except CeledgerError as error:
        return kind, task, metric, truth, None, str(error)
    return kind, task, metric, truth, report, ""


def _result(answers: Sequence[_Answer]) -> tuple[str, bool]:
    """Return a line for each planted regression, and how many were named; and whether each answer
    is right, or undecided with the truth still in the credible set."""
    from celedger.views.document import Column, percent, plain, short, table

    rows, grades = [], []
    for kind, task, metric, truth, report, error in answers:
        culprits = [commit.sha for commit in report.culprits] if report is not None else []
        is_named = report is not None and report.named
        grade = "undecided" if truth.sha in culprits and not is_named else "WRONG"
        if is_named and culprits[0] == truth.sha:
            grade = "right"
        grades.append(grade)
        named, sure, trials = f"error: {error}", "", ""
        if report is not None:
            named = short(culprits[0]) if is_named else report.status
            sure, trials = percent(min(report.probability, 0.999)), str(report.trials)
        name, subject = f"{task} {metric}".strip(), plain(truth.subject)
        rows.append((kind, name, short(truth.sha), named, grade, sure, trials, subject))
    columns = (
        Column("worse"), Column("metric"), Column("first bad commit"), Column("named"), Column(),
        Column("sure", right=True), Column("trials", right=True), Column("subject", shrink=True),
    )  # fmt: skip
    number = f"{grades.count('right')} of {len(answers)} first bad commits named"
    return f"{table(columns, rows, width=120)}\n\n{number}", "WRONG" not in grades


def _draw(folder: Path, answers: Sequence[_Answer]) -> Iterator[str]:
    """Draw the history of every metric with a planted change, and each bisect's posterior."""
    command = Options(folder, None)
    for _, task, metric, _, report, _ in answers:
        if metric:
            words = ["drift", "--task", task, "--metric", metric]
            yield app.answer_of("plot", words, command)[1].strip()
        if report is not None and report.posterior:
            yield app.answer_of("plot", ["bisect", report.id], command)[1].strip()


# --- the example that ships


def bundle() -> Path:
    """Return the file of the example's repository."""
    return shipped("docs/example/history.bundle")


def ledger() -> Path:
    """Return the example's ledger, which is not to be written to."""
    return shipped("ledger.db.example")


def materialise(path: Path) -> dict[str, str]:
    """Make the repository at `path`, or find it there again; return the hash of each planted
    commit by kind. Raises UsageError where something else is."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        _clone_bundle(path)
    planted = _refs_below(path, _TRUTH) if (path / ".git").exists() else {}
    if sorted(planted) != sorted(SEEN_IN):
        raise UsageError(
            f"{path} is not empty and not the demo", "name another folder, or remove it"
        )
    return {kind: planted[kind] for kind in SEEN_IN}


def unpack_ledger(path: Path) -> None:
    """Copy the example's ledger to `path`. Raises UsageError where a file is."""
    if path.exists():
        raise UsageError(f"{path} is there already", "name another folder, or remove it")
    shutil.copyfile(ledger(), path)
    files.beside(path).mkdir(exist_ok=True)  # else each verb that only reads checks every row again


def _clone_bundle(path: Path) -> None:
    """Make a repository at `path` of all refs of the bundle, and check out its branch `main`."""
    from celedger.repo.plumbing import tell

    with explained(f"{path} cannot be made", kind=RepositoryError):
        path.mkdir(parents=True, exist_ok=True)
    tell(path, "init", "--quiet", "--initial-branch=main", "--template=")
    tell(path, "fetch", "--quiet", "--update-head-ok", str(bundle()), "refs/*:refs/*")
    tell(path, "-c", "core.hooksPath=/dev/null", "reset", "--quiet", "--hard", "main", "--")


def _refs_below(path: Path, prefix: str) -> dict[str, str]:
    """Return the hash of each ref of a repository below a prefix, by the rest of its name."""
    from celedger.repo.plumbing import ask

    shown = ask(path, "for-each-ref", "--format=%(objectname) %(refname)", prefix).text
    pairs = (line.split() for line in shown.splitlines())
    return {name.removeprefix(prefix): sha for sha, name in pairs}
