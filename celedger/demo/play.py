"""Plays the demo: makes the repository, surveys its history, bisects what was planted in it,
and compares the answers with the truth. Everything goes through the same rooms as in a
user's repository; nothing here knows where the regressions are until they are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from celedger import bisection, config
from celedger import suite as suites
from celedger.demo.history import Planted, materialise
from celedger.drift.judge import judge
from celedger.errors import CeledgerError, UsageError
from celedger.ledger import Ledger
from celedger.model import Commit, Task, Why
from celedger.repo import Repository
from celedger.system.gate import Gate
from celedger.trial import events
from celedger.trial.runner import Bench
from celedger.trial.workplace import choose_tasks, lacking, run_all, set_bench

SURVEYED = 12  # commits measured before anything is searched, for the picture of the history
SEEDS = 2  # of each of them
MARKER = ".git/celedger-demo"


@dataclass(frozen=True, slots=True)
class Finding:
    """A planted regression, its true commit, and what the bisect said of it."""

    planted: Planted
    truth: Commit
    report: bisection.Report | None
    error: str = ""

    @property
    def right(self) -> bool:
        return (
            self.report is not None
            and self.report.named
            and self.report.culprits[0].sha == self.truth.sha
        )

    @property
    def honest(self) -> bool:
        """Right, or flagged as undecided with the truth still in the credible set."""
        if self.right or self.report is None:
            return self.right
        inside = self.truth.sha in {c.sha for c in self.report.culprits}
        return not self.report.named and inside


@dataclass(frozen=True, slots=True)
class Stage:
    """The demo's repository, ready to be played on."""

    repository: Repository
    settings: config.Config
    planted: tuple[tuple[Planted, str], ...]


@dataclass
class Watch:
    """What the player tells while it plays."""

    listen: events.Listener = events.ignore
    say: Callable[[str], None] = field(default=lambda _: None)


def set_stage(place: Path, seed: int) -> Stage:
    """Make the demo's repository at `place`, or find it there again for the same seed.

    Raises UsageError where something else is there.
    """
    marker = place / MARKER
    known = marker.is_file() and marker.read_text() == str(seed)
    if not known and place.exists() and any(place.iterdir()):
        raise UsageError(
            f"{place} is not empty and not the demo of seed {seed}",
            "name another folder, or remove it",
        )
    made = materialise(place, seed)
    marker.write_text(str(seed))
    repository = Repository.open(place)
    return Stage(repository, config.load(repository.root, {}), made)


def play(stage: Stage, ledger: Ledger, watch: Watch) -> list[Finding]:
    """Survey the history, then bisect each planted regression from the first commit to the
    last. A search that fails is a finding with its error."""
    repository = stage.repository
    suite = suites.load(suites.find(None, stage.settings, repository.root))
    tasks = choose_tasks(suite, ())
    history = repository.log("HEAD", limit=10_000)[::-1]
    with set_bench(
        repository, ledger, stage.settings, suite, tasks,
        gate=Gate.of(repository, attended=True), why=Why.DEMO, label="celedger demo",
        listen=watch.listen,
    ) as bench:  # fmt: skip
        surveyed = repository.spread(history, SURVEYED)
        measured = {p.task for p, _ in stage.planted if p.metric}
        watched = [task for task in tasks if task.name in measured]
        needs = [
            need
            for need in lacking(bench, surveyed, watched)
            if need.seed in need.task.seeds[:SEEDS]
        ]
        watch.say(f"surveying {len(surveyed)} of {len(history)} commits: {len(needs)} trials")
        run_all(bench, needs)
        for commit in surveyed:
            judge(repository, ledger, commit, watched, bench.environments)
        return [_find(stage, bench, history, tasks, planted, watch) for planted in stage.planted]


def _find(
    stage: Stage,
    bench: Bench,
    history: Sequence[Commit],
    tasks: Sequence[Task],
    planted: tuple[Planted, str],
    watch: Watch,
) -> Finding:
    what, sha = planted
    good, bad = history[0], history[-1]
    chosen = [task for task in tasks if task.name == what.task]
    watch.say(f"bisecting {what.task} {what.metric or 'crash'}")
    try:
        report = bisection.bisect(
            bench, stage.repository.history(good.sha, bad.sha), good, chosen, what.metric or None
        )
    except CeledgerError as error:
        return Finding(what, stage.repository.commit(sha), None, str(error))
    watch.say(report.sentence())
    return Finding(what, stage.repository.commit(sha), report)
