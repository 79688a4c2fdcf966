"""Make a repository with a long history and a full ledger, for measuring what reading costs.

    python benchmarks/large_ledger.py FOLDER [--commits 2000] [--tasks 10] [--here]
    python benchmarks/large_ledger.py FOLDER --grow

2,000 commits, 10 tasks, 2 seeds, 12 metrics and 10 epochs make 4.8 million values. The rows go
through the ledger's own write path, from a seed: equal arguments make equal rows. Metrics differ
as real ones do: normal and heavy-tailed noise, few possible values, exact repeats, a machine that
drifts. A few trials fail, are disturbed, diverge, repeat a seed or are derived; the environment
changes after a twentieth of the commits. `--grow` adds the next commit and its trials.

With `--here` the newer environment is the one of this machine, so that `celedger check HEAD` and
`celedger noise` find every trial and train nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random

from celedger import suite as suites
from celedger.base import config
from celedger.base.model import (
    BaselineAct,
    BaselineRecord,
    Commit,
    Environment,
    EpochReport,
    Footprint,
    Mark,
    Outcome,
    OutcomeKind,
    Purpose,
    Task,
    Trial,
)
from celedger.ledger import Ledger, ulid
from celedger.repo import Repository
from celedger.repo.plumbing import tell
from celedger.trial.permissions import Gate
from celedger.trial.workplace import choose_tasks, local_bench

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from fast_import import NewCommit, create

BEGINNING = 1_700_000_000  # seconds since the epoch
HOUR = 3600
SEEDS, EPOCHS = (0, 1), 10
SPARE = 20  # commits to grow by
METRICS = """\
[metrics]
val_loss = { direction = "lower", kind = "quality", floor = "0.5%" }
val_accuracy = { direction = "higher", kind = "quality", floor = 0.005 }
top5_accuracy = { direction = "higher", kind = "quality" }
train_loss = { direction = "lower", kind = "quality", floor = "0.5%" }
calibration = { direction = "lower", kind = "quality" }
grad_norm = { direction = "lower", kind = "quality", floor = "1%" }
parameters = { direction = "lower", kind = "count" }
peak_memory = { direction = "lower", kind = "memory", floor = "1%", summary = "max" }
step_ms = { direction = "lower", kind = "speed", floor = "2%", summary = "median-after-1" }
samples_per_second = { direction = "higher", kind = "speed", floor = "2%" }
"""  # and what celedger itself measures: duration and peak_rss


@dataclass
class Level:
    """Where the metrics of a task stand. A commit may move them, and may draw the numbers of the
    deterministic ones anew."""

    loss: float
    step: float  # milliseconds
    memory: float  # bytes
    parameters: int = 10**6
    draw: int = 0
    machine: float = 0.0  # a slow state of the machine, relative

    def advance(self, random: Random) -> None:
        if random.random() < 0.01:
            self.loss *= 1 + random.choice((-0.02, 0.01, 0.03, -0.01))
            self.draw += 1
        if random.random() < 0.006:
            self.step *= 1 + random.choice((-0.1, 0.05, 0.15, -0.08))
        if random.random() < 0.005:
            self.memory *= 1 + random.choice((0.04, -0.04))
            self.parameters += random.choice((-4096, 4096))
        if random.random() < 0.02:
            self.draw += 1
        self.machine = 0.9 * self.machine + random.gauss(0, 0.003)

    def epochs(self, task: int, seed: int, random: Random) -> list[dict[str, float]]:
        """What a training reports, epoch by epoch."""
        own = Random(f"{task} {seed} {self.draw}")
        loss = self.loss * own.gauss(1, 0.004) * random.gauss(1, 0.003)
        pinned = self.loss * 0.8 * own.gauss(1, 0.01)
        heavy = random.gauss(0, 1) / math.sqrt(random.gammavariate(1.5, 2 / 3))
        step = self.step * (1 + self.machine)
        reports = []
        for epoch in range(EPOCHS):
            rest = 1 + 2.2 * math.exp(-0.9 * epoch)
            now = step * random.gauss(1, 0.01) * (1.6 if epoch == 0 else 1)
            reports.append({
                "val_loss": loss * rest,
                "val_accuracy": round(360 * math.exp(-loss * rest)) / 360,
                "top5_accuracy": min(1.0, round(360 * (1.05 - 0.1 * loss * rest)) / 360),
                "train_loss": pinned * rest,
                "calibration": abs(0.05 + 0.01 * random.gauss(0, 1)),
                "grad_norm": 1.5 * rest * math.exp(0.05 * heavy),
                "parameters": float(self.parameters),
                "peak_memory": round(self.memory) + 512.0 * random.randrange(3),
                "step_ms": now,
                "samples_per_second": 64_000 / now,
                "duration": now * 0.4,
                "peak_rss": float(round(self.memory * 1.7 * random.gauss(1, 0.002))),
            })  # fmt: skip
        return reports


def make(folder: Path, commits: int, tasks: int, seed: int, *, here: bool) -> None:
    """Make the repository and its ledger in `folder`, which must not hold a repository yet."""
    create(folder, [
        NewCommit(str(i), f"Change number {i}", {"model.py": f"NUMBER = {i}\n"},
                  time=BEGINNING + i * HOUR)
        for i in range(commits + SPARE)
    ])  # fmt: skip
    tell(folder, "branch", "--quiet", "later")
    tell(folder, "reset", "--quiet", "--hard", f"HEAD~{SPARE}")
    home = folder / "suites" / "large"
    home.mkdir(parents=True)
    (home / "suite.toml").write_text(_suite(tasks))
    (home / "train.py").write_text("raise SystemExit('this suite is not meant to be trained')\n")
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "exclude").write_text("/suites/\n/ledger.db*\n/.celedger/\n")
    repository = Repository.open(folder)
    chosen = choose_tasks(suites.load(home), ())
    with Ledger.open(folder / "ledger.db", create=True) as ledger:
        older = Environment(_digest("older")[:16], {"python": "3.11.8", "packages": {"torch": "1"}})
        newer = Environment(_digest("newer")[:16], {"python": "3.11.9", "packages": {"torch": "2"}})
        if here:
            suite, settings = suites.load(home), config.load(folder, {})
            gate = Gate.of(repository, attended=True)
            bench = local_bench(repository, ledger, settings, suite, chosen, gate=gate)
            newer = next(iter(bench.environments.values()))
        history = repository.log("HEAD", limit=commits)[::-1]
        with ledger.transaction():
            for task in chosen:
                ledger.record_task(task)
            for environment in (older, newer):
                ledger.record_environment(environment)
        old = commits // 20
        Filling(ledger, chosen, seed).add(history[:old], older.fingerprint)
        Filling(ledger, chosen, seed, old).add(history[old:], newer.fingerprint)
        pin = history[commits // 3].sha
        ledger.record_baseline(BaselineRecord(
            ulid.new(BEGINNING, Random(seed)), BaselineAct.PIN, pin, "large", "task_0", "", "Ada",
            "the release", BEGINNING,
        ))  # fmt: skip


def grow(folder: Path, seed: int) -> None:
    """Add the next commit to the history, and its trials to the ledger."""
    repository = Repository.open(folder)
    number = len(repository.log("HEAD", limit=10**6))
    tell(folder, "reset", "--quiet", "--hard", repository.commits("HEAD..later")[0].sha)
    tasks = choose_tasks(suites.load(folder / "suites" / "large"), ())
    with Ledger.open(folder / "ledger.db") as ledger:
        environment = [*ledger.environments()][-1]
        Filling(ledger, tasks, seed, number).add([repository.resolve("HEAD")], environment)


def _suite(tasks: int) -> str:
    text = f'[suite]\nname = "large"\nseeds = {list(SEEDS)}\n{METRICS}'
    for i in range(tasks):
        text += f'[[task]]\nname = "task_{i}"\ncommand = "{{python}} {{suite}}/train.py {i}"\n'
    return text


class Filling:
    """Records the trials of successive commits, from the one with this number on."""

    def __init__(self, ledger: Ledger, tasks: tuple[Task, ...], seed: int, number: int = 0) -> None:
        self.ledger, self.tasks, self.seed, self.number = ledger, tasks, seed, number
        self.walk = Random(seed)
        self.levels = [Level(0.2 + 0.1 * i, 10.0 + i, 3e8 + 2e7 * i) for i in range(len(tasks))]
        self.sources: dict[tuple[int, int], str] = {}  # trials that others may be derived from
        for _ in range(number):
            self.advance()

    def advance(self) -> None:
        for level in self.levels:
            level.advance(self.walk)

    def add(self, history: list[Commit], environment: str) -> None:
        for commit in history:
            self.advance()
            with self.ledger.transaction():
                self.ledger.record_commits([commit])
                for index, task in enumerate(self.tasks):
                    self.measure(commit, index, task, environment)
            self.number += 1

    def measure(self, commit: Commit, index: int, task: Task, environment: str) -> None:
        random = Random(f"{self.seed} {self.number} {index}")
        seeds = list(SEEDS)
        if random.random() < 0.03:
            seeds.append(random.choice((0, 2)))
        derived = random.random() < 0.02
        for place, seed in enumerate(seeds):
            now = commit.commit_time + 100.0 * index + 20.0 * place
            trial = Trial(
                ulid.new(now, random), commit.sha, task.recipe, environment, seed,
                Purpose.HOOK, now,
                "host",
            )  # fmt: skip
            source = self.sources.get((index, seed))
            if derived and source is not None:
                evidence = next(
                    reusable
                    for reusable in self.ledger.reusable_trials(
                        recipe=task.recipe, environment=environment, seed=seed
                    )
                    if reusable.ulid == source
                )
                self.ledger.reuse_trial(trial, evidence, ("step_ms",))
                continue
            self.ledger.start_trial(trial)
            ended_well = _train(self.ledger, trial, index, self.levels[index], random)
            if ended_well and random.random() < 0.05:
                self.ledger.record_footprint(
                    trial.ulid, Footprint((b"model.py",)), _digest(trial.ulid)
                )
                self.sources[index, seed] = trial.ulid


def _train(ledger: Ledger, trial: Trial, index: int, level: Level, random: Random) -> bool:
    """Record what the trial reports and how it ends; return False where it failed or
    was disturbed."""
    ended = trial.started + 15.0
    if random.random() < 0.005:
        outcome = Outcome(OutcomeKind.FAILED, ended, "exit status 1: ValueError: bad batch", 1)
        ledger.finish_trial(trial.ulid, outcome, {})
        return False
    epochs = level.epochs(index, trial.seed, random)
    if random.random() < 0.001:
        for report in epochs[3:]:
            report["val_loss"] = math.nan
    marks: tuple[Mark, ...] = ()
    if (chance := random.random()) < 0.01:
        marks = (Mark.DISTURBED,)
    elif chance < 0.012:
        marks = (Mark.EARLY_STOPPED,)
    ledger.append_epochs(trial.ulid, [EpochReport(i, values) for i, values in enumerate(epochs)])
    summaries = dict(epochs[-1])
    for name in ("peak_memory", "peak_rss"):
        summaries[name] = max(values[name] for values in epochs)
    summaries["step_ms"] = sorted(values["step_ms"] for values in epochs[1:])[(EPOCHS - 1) // 2]
    if marks == (Mark.EARLY_STOPPED,):
        summaries = {"duration": summaries["duration"]}
    ledger.finish_trial(
        trial.ulid, Outcome(OutcomeKind.OK, ended, returncode=0, marks=marks), summaries
    )
    return not marks


def _digest(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commits", type=int, default=2000)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help="measured in this environment")
    parser.add_argument("--grow", action="store_true", help="add a commit to an existing one")
    asked = parser.parse_args()
    folder = asked.folder.absolute()
    if asked.grow:
        grow(folder, asked.seed)
    else:
        make(folder, asked.commits, asked.tasks, asked.seed, here=asked.here)
    print(f"{folder}: {(folder / 'ledger.db').stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
