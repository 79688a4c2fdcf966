"""The repositories of the transcripts: fixed commits, and ledgers that the ledger itself writes.

Every hash, ULID, time and value is fixed, so that equal code prints equal text. A repository is
made once a session; each transcript works on a copy.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fast_import import NewCommit, create

from celedger import suite
from celedger.base import config
from celedger.base.model import (
    BaselineAct,
    BaselineRecord,
    Commit,
    Environment,
    EpochReport,
    Footprint,
    JobState,
    Mark,
    Outcome,
    OutcomeKind,
    Purpose,
    StepValues,
    Task,
    Trial,
)
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.trial.workplace import choose_tasks

START = 1_772_000_000  # 2026-02-25, the time of the first commit and of the first trial
NOW = START + 40 * 86400.0  # when the commands of a transcript are typed


def _environment(digit: str, torch: str, device: str = "cpu") -> Environment:
    return Environment(
        digit * 64,
        {
            "python": "CPython 3.11.2",
            "packages": {"numpy": "2.4.6", "torch": torch, "anyio": "4.1"},
            "os": "Linux debian 12", "architecture": "x86_64", "cpu": "Some CPU", "cores": 2,
            "threads": 1, "device": device, "cuda": None,
            "beside": {"host": "box", "memory": 2**35, "gpu_memory": None},
        },
    )  # fmt: skip


OLD = _environment("a", "2.12.0")
HERE = _environment("b", "2.13.0")  # where the commands of a transcript run
ELSEWHERE = _environment("c", "2.13.0", "NVIDIA H200")

SUITE = """\
[suite]
name = "nets"
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "0.5%"
[metrics.val_accuracy]
unit = "%"
direction = "higher"
kind = "quality"
floor = 0.3
[metrics.step_time]
unit = "s"
direction = "lower"
kind = "speed"
floor = "5%"
summary = "median-after-1"
[metrics.lr]
direction = "info"
[[task]]
name = "mlp"
command = "{python} {suite}/fit.py --epochs {epochs} --seed {seed}"
params = { epochs = 4 }
seeds = [0, 1, 2]
"""

EXACT_SUITE = """\
[suite]
name = "bits"
[metrics.loss]
direction = "lower"
kind = "quality"
[[task]]
name = "count"
command = "{python} {suite}/fit.py {seed}"
[[task]]
name = "walk"
command = "{python} {suite}/fit.py {seed}"
steps = true
seeds = [0, 1]
"""

GRID_SUITE = """\
[suite]
name = "grids"
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "1%"
[metrics.val_accuracy]
unit = "%"
direction = "higher"
kind = "quality"
[[task]]
name = "net"
command = "{python} {suite}/fit.py --norm {norm} --depth {depth} --lr {lr} --seed {seed}"
params = { lr = 0.1 }
grid = { norm = ["batch", "group"], depth = [2, 4] }
seeds = [0, 1]
[[task]]
name = "other"
command = "{python} {suite}/fit.py --seed {seed}"
"""

SCRIPT = "raise SystemExit('no transcript trains')\n"
SETTINGS = 'suite = "{suite}"\ndevice = "cpu"\n'

_SUBJECTS = (
    "Use fused layer norm", "Refactor the loader", "Document $x$ and y_1", "Fix a typo",
    "Grüße an alle: größere Batches in einem Betreff, der für eine Zeile viel zu lang ist, oh je",
    "Drop\tthe \x1b[31mred\x1b[0m pill", "学習率を下げる",
)  # fmt: skip


def _commits(main_line: int, *, branch_at: int | None = None) -> list[NewCommit]:
    """A main line `c0` to `cN`; with `branch_at`, two commits `b0` and `b1` on a branch, merged by
    the main line's commit of that number."""

    def commit(key: str, number: int, at: float, **of: object) -> NewCommit:
        subject = _SUBJECTS[number % len(_SUBJECTS)]
        return NewCommit(
            key, f"{subject} ({key})\n\nA body.\n", {"model.py": f"NUMBER = {number}\n"},
            author=("Ada Lovelace", "Émile Ünal")[number % 2],
            time=round(START + at * 9000), **of,  # type: ignore[arg-type]
        )  # fmt: skip

    listed = []
    for i in range(main_line):
        parents = None if i == 0 else (f"c{i - 1}",)
        if i == branch_at:
            listed.append(commit("b0", 100, i - 0.6, parents=(f"c{i - 2}",)))
            listed.append(commit("b1", 101, i - 0.4))
            parents = (f"c{i - 1}", "b1")
        tag = {2: "v1", 6: "v2"}.get(i)
        listed.append(commit(f"c{i}", i, i, parents=parents, tag=tag))
    return listed


@dataclass
class Writer:
    """Adds trials to the ledger of a repository; the same calls make the same ledger."""

    ledger: Ledger
    commits: Mapping[str, Commit]  # by key
    tasks: Mapping[str, Task]
    count: int = 0

    def ulid(self) -> str:
        self.count += 1
        return f"01K{self.count:023d}"

    def trial(
        self,
        key: str,
        task: str,
        summaries: Mapping[str, float],
        *,
        seed: int = 0,
        environment: Environment = HERE,
        kind: OutcomeKind | None = OutcomeKind.OK,
        message: str = "",
        marks: tuple[Mark, ...] = (),
        curves: Mapping[str, Sequence[float]] | None = None,
        fingerprints: Sequence[str] = (),
        steps: Mapping[str, Sequence[float]] | None = None,
        why: Purpose = Purpose.RUN,
        reads: Sequence[bytes] = (),
    ) -> str:
        """A trial of 12 seconds; `kind` None: one that has no outcome yet. `steps` are two epochs
        of a series. `reads` is its footprint."""
        ledger = self.ledger
        ulid = self.ulid()
        started = START + self.count * 60.0
        ledger.start_trial(
            Trial(
                ulid,
                self.commits[key].sha,
                self.tasks[task].recipe,
                environment.fingerprint,
                seed,
                why,
                started,
                "box",
            )
        )
        length = max(map(len, (curves or {}).values()), default=0)
        reports = [
            EpochReport(
                epoch,
                {name: series[epoch] for name, series in (curves or {}).items()},
                fingerprints[epoch] if fingerprints else None,
                {
                    name: StepValues(0, tuple(series[epoch::2]))
                    for name, series in (steps or {}).items()
                    if epoch < 2
                },
            )
            for epoch in range(length)
        ]
        ledger.append_epochs(ulid, reports)
        if kind is not None:
            ended = Outcome(
                kind, started + 12, message, 1 if kind is OutcomeKind.FAILED else 0,
                f".celedger/logs/{ulid}.log", marks,
            )  # fmt: skip
            ledger.finish_trial(ulid, ended, summaries)
        if reads:
            ledger.record_footprint(ulid, Footprint(tuple(reads)), "around")
        return ulid

    def derived(self, key: str, task: str, *, seed: int = 0) -> str:
        """A trial derived from the first one that the ledger has of this task and seed."""
        recipe, ulid = self.tasks[task].recipe, self.ulid()
        evidence, *_ = self.ledger.reusable_trials(
            recipe=recipe, environment=HERE.fingerprint, seed=seed
        )
        started = START + self.count * 60.0
        self.ledger.reuse_trial(
            Trial(
                ulid, self.commits[key].sha, recipe, HERE.fingerprint, seed, Purpose.RUN, started,
                "box",
            ),
            evidence, ["duration", "peak_rss"],
        )  # fmt: skip
        return ulid

    def baseline(self, act: BaselineAct, key: str, task: str, metric: str, why: str) -> None:
        self.ledger.record_baseline(
            BaselineRecord(
                self.ulid(),
                act,
                self.commits[key].sha,
                next(iter(self.tasks.values())).suite,
                task,
                metric,
                "Ada Lovelace <ada@example.org>",
                why,
                START + self.count * 60.0,
            )
        )


@contextmanager
def _writer(root: Path, commits: Sequence[NewCommit], suite_file: str) -> Iterator[Writer]:
    """A repository with a suite that its history lacks, and its ledger to write to."""
    hashes = create(root, commits)
    folder = suite_file.partition('name = "')[2].partition('"')[0]
    _write(root / "celedger.toml", SETTINGS.format(suite=folder))
    _write(root / "suites" / folder / "suite.toml", suite_file)
    _write(root / "suites" / folder / "fit.py", SCRIPT)
    _write(
        root / ".git" / "info" / "exclude", "/suites/\n/celedger.toml\n/ledger.db*\n/.celedger/\n"
    )
    repository = Repository.open(root)
    chosen = suite.load(suite.find(None, config.load(root, {}), root))
    tasks = {task.name: task for task in choose_tasks(chosen, ())}
    resolved = {key: repository.resolve(sha) for key, sha in hashes.items()}
    with Ledger.open(root / "ledger.db", create=True) as ledger:
        ledger._connection.execute("PRAGMA synchronous=OFF")  # nobody cuts the power here
        with ledger.transaction():
            ledger.record_commits(resolved.values())
            for task in tasks.values():
                ledger.record_task(task)
            for environment in (OLD, HERE, ELSEWHERE):
                ledger.record_environment(environment)
            yield Writer(ledger, resolved, tasks)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def noisy(root: Path) -> None:
    """Noise, two environments, a regression at c14, an improvement at c20, a merged branch,
    telemetry, a disturbed trial; c2 is pinned, c20 accepted; c26 has no trial yet."""
    draw = Random(7)
    commits = _commits(27, branch_at=9)
    with _writer(root, commits, SUITE) as writer:
        for key in [commit.key for commit in commits][:-1]:
            number = int(key[1:]) if key[0] == "c" else 8
            environment = OLD if number < 6 else HERE
            loss = 0.41 - 0.03 * (number >= 6) + 0.04 * (number >= 14) - 0.05 * (number >= 20)
            for seed in range(3):
                noise = draw.gauss(0, 0.004)
                writer.trial(
                    key,
                    "mlp",
                    {
                        "val_loss": loss + noise,
                        "val_accuracy": draw.gauss(91 - 20 * loss, 0.4),
                        "step_time": abs(draw.gauss(0.012, 0.0004)),
                        "lr": 0.1,
                        "duration": abs(draw.gauss(12.0, 0.3)),
                        "peak_rss": draw.gauss(3.2e8, 2e6),
                        "cpu_share": 0.98,
                    },
                    seed=seed,
                    environment=environment,
                    marks=(Mark.DISTURBED,) if (number, seed) == (7, 2) else (),
                    curves={
                        "val_loss": [loss + noise + 1.9 * math.exp(-e) for e in range(4)],
                        "lr": [0.1 / (e + 1) for e in range(4)],
                    },
                )
        writer.baseline(BaselineAct.PIN, "c2", "", "", "what the paper reports")
        writer.baseline(BaselineAct.ACCEPT, "c20", "mlp", "val_loss", "new initialisation")


def exact(root: Path) -> None:
    """Bits that repeat: worse from c5 on, better from c8 on; documentation commits derived."""
    with _writer(root, _commits(10), EXACT_SUITE) as writer:
        for i in range(10):
            level = 0.5 + 0.125 * (i >= 5) - 0.25 * (i >= 8)
            for task, seeds in (("count", 1), ("walk", 6)):
                for seed in range(seeds):
                    if i in (2, 3):
                        writer.derived(f"c{i}", task, seed=seed)
                        continue
                    curve = [level + 1 / (epoch + 1) + seed / 64 for epoch in range(3)]
                    writer.trial(
                        f"c{i}",
                        task,
                        {"loss": curve[-1], "duration": 8.0, "peak_rss": 2.0**28},
                        seed=seed,
                        curves={"loss": curve},
                        fingerprints=[f"{task}{level}{seed}{epoch}" for epoch in range(3)],
                        steps={"loss": [level + 0.01 * step for step in range(8)]}
                        if task == "walk"
                        else None,
                        reads=[b"model.py"],
                    )


def broken(root: Path) -> None:
    """Every way in which a trial ends, values that are not finite, and one without an outcome."""
    fails = OutcomeKind.FAILED
    with _writer(root, _commits(12), SUITE) as writer:
        for number, (kind, message) in enumerate(
            [
                (OutcomeKind.OK, ""),
                (fails, "exit status 1: ValueError: shapes (3,) and (4,)"),
                (OutcomeKind.TIMEOUT, "ran longer than 600 s"),
                (OutcomeKind.OOM, "exit status 1: torch.OutOfMemoryError: \x1b[31mCUDA\x1b[0m"),
                (OutcomeKind.KILLED, "ended by SIGKILL"),
                (OutcomeKind.INTERRUPTED, "stopped by hand"),
                (OutcomeKind.UNTESTABLE, "make failed: exit status 2"),
                (OutcomeKind.MISSING, "ended without reporting val_accuracy"),
            ]
        ):
            for seed in range(3):
                good = kind is OutcomeKind.OK or (kind is fails and seed == 1)
                values = {"val_loss": 0.4 + seed / 100, "val_accuracy": 90.0, "step_time": 0.012}
                writer.trial(
                    f"c{number}", "mlp", values if good else {}, seed=seed,
                    kind=OutcomeKind.OK if good else kind, message="" if good else message,
                    curves={"val_loss": [1.0, 0.5]} if kind is OutcomeKind.TIMEOUT else None,
                )  # fmt: skip
        for seed, value in enumerate((math.nan, math.inf, -math.inf)):
            values = {"val_loss": value, "val_accuracy": 10.0, "step_time": 0.012}
            writer.trial("c8", "mlp", values, seed=seed, curves={"val_loss": [0.5, value]})
        early = (Mark.EARLY_STOPPED,)
        writer.trial(
            "c9", "mlp", {}, marks=early, curves={"val_loss": [1.0, 0.9]}, why=Purpose.BISECT
        )
        marks = (Mark.RUBBISH, Mark.REPEATED, Mark.THROTTLED)
        values = {"val_loss": 0.4, "val_accuracy": 90.0, "step_time": 0.012, "undeclared": 1e-9}
        writer.trial("c9", "mlp", values, seed=1, marks=marks)
        writer.trial("c9", "mlp", values, environment=ELSEWHERE, seed=2)
        writer.trial("c10", "mlp", {}, kind=None, curves={"val_loss": [0.9]})


def grid(root: Path) -> None:
    """A grid of parameters at two commits, where one point fails."""
    draw = Random(11)
    with _writer(root, _commits(3), GRID_SUITE) as writer:
        for number, (key, (name, task)) in enumerate(
            (key, item) for key in ("c1", "c2") for item in writer.tasks.items()
        ):
            depth = task.params.get("depth", 0)
            for seed in task.seeds:
                fails = (depth, key) == (4, "c2") and seed == 1
                writer.trial(
                    key, name,
                    {}
                    if fails
                    else {"val_loss": draw.gauss(0.5 - 0.01 * number, 0.01),
                          "val_accuracy": draw.gauss(90.0, 0.5), "duration": 8.0},
                    seed=seed,
                    kind=OutcomeKind.FAILED if fails else OutcomeKind.OK,
                    message="exit status 1: too deep" if fails else "",
                )  # fmt: skip


def jobs(root: Path) -> None:
    """Jobs in every state, and a note of a merge that no worker took in yet."""
    with _writer(root, _commits(9), EXACT_SUITE) as writer:
        writer.trial("c8", "count", {"loss": 0.5, "duration": 8.0})
        ledger, at = writer.ledger, NOW - 5000.0

        def enqueue(number: int, branch: str = "main") -> None:
            commit = writer.commits[f"c{number}"].sha
            ledger.queue.enqueue("commit", commit, "bits", at + number, branch)

        for number in range(5):
            enqueue(number)
            job = ledger.queue.claim("box:1")
            assert job is not None
            state, message = (
                (JobState.DONE, "count loss: same"),
                (JobState.FAILED, "the suite is \x1b[31mbroken\x1b[0m"),
            )[number % 2]
            ledger.queue.finish(job.id, "box:1", state, at + 100 * number, message)
        enqueue(5)
        enqueue(6)  # supersedes it
        ledger.queue.claim("box:1")  # and was killed
        enqueue(7, "other")
    note = root / ".git" / "celedger" / "queue" / "1.moved"
    _write(note, "")
    os.utime(note, (NOW, NOW))  # so long ago that its worker cannot be starting any more


def empty(root: Path) -> None:
    """A suite and a ledger without a trial."""
    with _writer(root, _commits(3), EXACT_SUITE):
        pass


def new(root: Path) -> None:
    """A repository in which celedger was never run, beside what is no ledger."""
    create(root, _commits(3))
    _write(root / "notes.txt", "no ledger, whatever the name says, but long enough to look at\n")
    (root / "empty.txt").touch()


REPOSITORIES: dict[str, Callable[[Path], None]] = {
    made.__name__: made for made in (noisy, exact, broken, grid, jobs, empty, new)
}


def copy(template: Path, target: Path) -> None:
    """Copy a repository with its ledger to where a transcript works on it."""
    shutil.copytree(template, target, symlinks=True)
