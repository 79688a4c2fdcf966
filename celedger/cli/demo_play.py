"""Plays the demo: makes the repository, surveys its history, bisects each planted regression and
compares the answers with the truth. All of it goes through the same rooms as in a user's
repository; no search knows where its regression is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from celedger.base import config
from celedger.base.errors import CeledgerError, UsageError
from celedger.base.model import Commit, Purpose
from celedger.demo import materialise
from celedger.judge import bisection
from celedger.ledger import Ledger
from celedger.repo import Repository, spread
from celedger.service.measure import Session, open_bench
from celedger.trial import events
from celedger.trial.permissions import Gate
from celedger.trial.runner import Bench, run_all
from celedger.trial.workplace import choose_tasks, lacking
from celedger.views.demo import DemoAnswer

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


def set_stage(
    folder: Path, device: str | None = None
) -> tuple[Repository, config.Config, dict[str, str]]:
    """Make the demo's repository at `folder`, or find it there again. Return it, settings by which
    its trials run on the `device`, and the true hashes by kind of regression.

    Raises UsageError where something else is there, or torch is not installed.
    """
    if find_spec("torch") is None:
        raise UsageError("the demo trains with torch", "pip install torch")
    planted = materialise(folder)
    repository = Repository.open(folder)
    return repository, config.load(repository.root, {}, device=device), planted


def play(
    repository: Repository,
    settings: config.Config,
    planted: Mapping[str, str],
    ledger: Ledger,
    listen: events.Listener,
    say: Callable[[str], None],
) -> list[DemoAnswer]:
    """Survey the history, then bisect each planted regression from the first commit to the last. A
    search that fails is an answer with its error."""
    history = repository.log("HEAD", limit=10_000)[::-1]
    session = Session(repository, settings, ledger, Gate.of(repository, attended=True), say)
    with open_bench(session, "demo", why=Purpose.DEMO, listen=listen) as (bench, _):
        surveyed = spread(history, SURVEYED)
        measured = choose_tasks(bench.suite, ["mlp"])
        needs = lacking(bench, surveyed, measured, seeds=SEEDS)
        say(f"surveying {len(surveyed)} of {len(history)} commits: {len(needs)} trials")
        run_all(bench, needs)
        return [
            _search(bench, history, kind, repository.commit(sha), say)
            for kind, sha in planted.items()
        ]


def _search(
    bench: Bench, history: Sequence[Commit], kind: str, truth: Commit, say: Callable[[str], None]
) -> DemoAnswer:
    task, metric = SEEN_IN[kind]
    first, head = history[0], history[-1]
    tasks = choose_tasks(bench.suite, [task])

    def search(good: Commit, bad: Commit) -> bisection.Report:
        history = bench.repository.history(good.sha, bad.sha)
        metrics = (metric,) if metric else ()
        (report,) = bisection.bisect_many(bench, history, tasks, metrics).reports
        say(report.sentence())
        return report

    say(f"bisecting {task} {metric or 'crash'}")
    try:
        report = search(first, head)
        # Of another planted edit a machine may make a step of this metric too, but a smaller one;
        # where it only ran faster for a while, nothing is named there.
        for other in report.others:
            if other.share > _MOST:
                rest = search(other.after, other.by)
                answer = rest if rest.named else report
                report = replace(answer, trials=report.trials + rest.trials)
    except CeledgerError as error:
        return DemoAnswer(kind, task, metric, truth, None, str(error))
    return DemoAnswer(kind, task, metric, truth, report)
