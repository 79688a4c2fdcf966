"""Trials and wrong answers of `celedger bisect` where trainings are not what a simple model takes
them for: noisier sides, collapsing seeds, crashes, two causes, ends that differ by chance.

Every case calls the use case of `celedger bisect`: ends, symptom, search, conclusion. Git's history
and the ledger are real. A history is made once for all cases, a ledger for each case. What a
training would report is drawn from the world. Nothing of the statistics is repeated here. With
`--workers` several trials run at once, in simulated time.

    OMP_NUM_THREADS=1 python benchmarks/hard_worlds.py --worlds n2,n4 --cases 40 --jobs 2
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.stats import ttest_ind

from celedger.base.errors import CannotJudge
from celedger.base.model import (
    Command,
    Commit,
    Direction,
    Environment,
    EpochReport,
    Floor,
    Kind,
    Mark,
    Metric,
    Outcome,
    OutcomeKind,
    Purpose,
    Task,
    Trial,
    TrialRecord,
)
from celedger.judge.bisection import Answer, Limits, bisect_many
from celedger.judge.bisection.bisect_report import Other
from celedger.judge.bisection.planner import BUDGET
from celedger.ledger import Ledger
from celedger.repo import History, Repository, tree_files
from celedger.repo.checkouts import Checkouts
from celedger.stats.lineage import GOOD, Lineage
from celedger.system.devices import CPU, DeviceLock
from celedger.trial.engine import Need
from celedger.trial.reuse import NamedPaths
from celedger.trial.runner import Bench
from celedger.trial.station import Setup, Station
from celedger.trial.venvs import Installation

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from fast_import import NewCommit, create

METRIC = "val_loss"
TASK = Task(
    "hard", "fit", (Command("train", ("train",)),),
    metrics=(Metric(METRIC, direction=Direction.LOWER, kind=Kind.QUALITY),),
)  # fmt: skip
ENVIRONMENT = Environment("e" * 64, {"device": "cpu"})
MESSAGES = {
    OutcomeKind.FAILED: "exit status 1: RuntimeError: shapes cannot be multiplied",
    OutcomeKind.UNTESTABLE: "build `make`: exit status 2",
}
OLDER = 10  # commits before GOOD
EPOCHS = 3
SEEDS = 1000  # that draw noise of their own; later ones repeat it
DURATION = 0.3  # sd of the logarithm of a trial's duration
BASE = 0.7316842  # the level of GOOD without noise, in as many digits as a loss has
COLLAPSED = 8.0  # sd of one trial by which a collapsed seed is worse
# A Student's interquartile range times this is a normal one's of sd 1.
MATCHED = {2: 0.826, 3: 0.882}


def student(degrees: int, random: Generator) -> float:
    return MATCHED[degrees] * float(random.standard_t(degrees))


def with_outliers(random: Generator) -> float:
    far = 12.0 * random.choice((-1, 1)) if random.random() < 0.05 else 0.0
    return float(random.standard_normal()) + far


def nothing(random: Generator) -> float:
    return 0.0


@dataclass(frozen=True)
class World:
    """What the trainings of a range do. Lengths are in sd of one trial; pairs are of the commits
    before the first step, and of those from it on."""

    steps: tuple[float, ...] = (2.0,)
    """Sizes, the oldest first; none where nothing changes."""
    noise: Callable[[Generator], float] = Generator.standard_normal
    scale: tuple[float, float] = (1.0, 1.0)
    collapse: tuple[float, float] = (0.0, 0.0)
    """Shares of trials that end `COLLAPSED` worse."""
    crash: tuple[float, float] | None = None
    """Shares of trials that crash. All stored ones of BAD did, or nobody would ask."""
    step: int | None = None
    """All crashes of bad commits come at this step; those of others anywhere."""
    not_finite: bool = False
    """Trials from the first step on end with NaN."""
    untestable: float = 0.0
    """Share of commits whose build fails, the ends left out."""
    stretch: int = 0
    """So many commits in a row have a build that fails, the first step in their middle."""
    jitter: float = 0.0
    """sd of each commit's own effect, which the next commit does not inherit."""
    wander: float = 0.0
    """sd of each commit's own effect, which the next commit inherits."""
    ramp: float = 0.0
    """Slow drift over the whole range, in equal parts a commit."""
    shape: str = "line"
    """The history: line, merges, or docs (half of the commits touch no file that is read)."""
    spread: int = 1
    """Each step comes in equal parts at so many commits in a row."""
    redraw: float | None = None
    """Trainings repeat to the last bit: share of commits that draw the noise of all seeds anew."""
    shared: float = 0.0
    """Share of the variance that is the seed's, at every commit."""
    touched: float = 1.0
    """Share of the seeds that a step moves; where trainings repeat it spares the bits of others."""
    unit: float = 0.0
    """Values are whole numbers of it, as counts are; 0 for fine ones."""
    floor: float = 0.0
    """The suite's smallest change worth knowing."""
    lost: float = 0.0
    """Share of trials that end with NaN."""
    known: int = 0
    """Stored trials of each older commit."""
    stored: int = 5
    """Stored trials of each end."""
    why: Purpose = Purpose.BISECT
    """Why the stored trials ran: those of `celedger run` made somebody ask, those of a bisect were
    drawn after somebody had asked."""
    selected: bool = False
    """The stored trials of the ends differ by t > 2."""
    metric: str = METRIC
    """`--metric`; without one the search is for what the ends show to be worst, or a crash."""
    every_cause: bool = False
    """`--all`: the search goes on with what the first answer leaves."""

    @property
    def task(self) -> Task:
        return TASK._replace(metrics=(TASK.metrics[0]._replace(floor=Floor(self.floor)),))


NORMAL = World()
WORLDS = {
    "n2": NORMAL,
    "n4": World(steps=(4.0,)),
    "n1": World(steps=(1.0,)),
    "t2": World(noise=partial(student, 2)),
    "t3": World(noise=partial(student, 3)),
    "outliers": World(noise=with_outliers),
    "bad-noisier-2": World(scale=(1.0, 3.0)),
    "bad-noisier-4": World(steps=(4.0,), scale=(1.0, 3.0)),
    "good-noisier-2": World(scale=(3.0, 1.0)),
    "good-noisier-4": World(steps=(4.0,), scale=(3.0, 1.0)),
    "collapse-10-2": World(collapse=(0.1, 0.1)),
    "collapse-10-4": World(steps=(4.0,), collapse=(0.1, 0.1)),
    "collapse-30-2": World(collapse=(0.3, 0.3)),
    "collapse-30-4": World(steps=(4.0,), collapse=(0.3, 0.3)),
    "collapse-rate": World(steps=(0.0,), collapse=(0.05, 0.6)),
    "untestable-10": World(untestable=0.1),
    "untestable-30": World(untestable=0.3),
    "stretch-20": World(steps=(4.0,), stretch=20),
    "stretch-20-merges": World(steps=(4.0,), stretch=20, shape="merges"),
    "jitter": World(jitter=0.14),
    "ramp": World(ramp=0.2),
    "merges": World(shape="merges"),
    "merges-4": World(steps=(4.0,), shape="merges"),
    "known": World(known=3),
    "docs": World(shape="docs"),
    "bits": World(redraw=0.2),
    "pairs": World(shared=0.8),
    "pairs-1": World(steps=(1.0,), shared=0.8),
    "pairs-95": World(steps=(0.7,), shared=0.95, stored=3),
    "pairs-null": World(steps=(), shared=0.8),
    "pairs-merges": World(shared=0.8, shape="merges"),
    "pairs-untestable": World(shared=0.8, untestable=0.3),
    "pairs-merges-30": World(shared=0.8, shape="merges", untestable=0.3),
    "pairs-lost": World(shared=0.8, lost=0.1),
    "pairs-known": World(shared=0.8, known=3),
    "pairs-floor": World(shared=0.8, floor=1.0),
    "pairs-below": World(steps=(0.5,), shared=0.8, floor=1.0),
    "floor-same": World(steps=(4.0,), floor=4.0),
    "floor-same-pairs": World(steps=(1.0,), shared=0.8, floor=1.0),
    "floor-same-bits": World(steps=(2.0,), redraw=0.0, floor=2.0),
    "floor-stairs": World(steps=(3.5,) * 4, floor=10.0, stored=3),
    "bits-spared": World(redraw=0.0, touched=0.4),
    "bits-anew": World(redraw=0.0),
    "bits-half": World(redraw=0.2, touched=0.5, stored=3),
    "anew-half": World(steps=(4.0,), redraw=1.0, touched=0.5, stored=3),
    "counts": World(steps=(4.0,), redraw=0.0, touched=0.5, unit=1.0),
    "counts-two": World(steps=(4.0, 2.0), redraw=0.0, touched=0.5, unit=1.0),
    "bits-two": World(steps=(1.0, 0.5), noise=nothing, redraw=0.0, stored=3),
    "bits-two-merges": World(steps=(1.0, 0.5), noise=nothing, redraw=0.0, stored=3, shape="merges"),
    "bits-merges": World(redraw=0.0, touched=0.4, shape="merges"),
    "bits-untestable": World(redraw=0.0, touched=0.4, untestable=0.3),
    "bits-null": World(steps=(), redraw=0.05),
    "slope": World(steps=(4.0,), spread=12),
    "slope-8": World(steps=(8.0,), spread=12),
    "slope-all": World(steps=(4.0,), spread=60),
    "ten-steps": World(steps=(0.4,) * 10),
    "slope-pairs": World(steps=(4.0,), spread=12, shared=0.8),
    "hump": World(steps=(6.0, -6.0)),
    "hump-exact": World(steps=(4.0, -4.0), noise=nothing, stored=2, known=3),
    "crash-always": World(steps=(0.0,), crash=(0.0, 1.0), metric="", stored=3),
    "crash-at-step": World(steps=(0.0,), crash=(0.0, 1.0), metric="", stored=3, step=7),
    "crash-repeats": World(steps=(0.0,), crash=(0.0, 1.0), metric="", stored=3, step=7, redraw=0.2),
    "crash-exact": World(steps=(0.0,), crash=(0.0, 1.0), metric="", stored=3, redraw=0.2),
    "crash-exact-.3": World(steps=(0.0,), crash=(0.0, 0.3), metric="", stored=3, redraw=0.2),
    "crash-exact-.7": World(steps=(0.0,), crash=(0.0, 0.7), metric="", stored=3, redraw=0.2),
    "crash-.7": World(steps=(0.0,), crash=(0.0, 0.7), metric="", stored=3),
    "crash-.5": World(steps=(0.0,), crash=(0.0, 0.5), metric="", stored=3),
    "crash-.3": World(steps=(0.0,), crash=(0.0, 0.3), metric="", stored=3),
    "crash-good-2": World(steps=(0.0,), crash=(0.02, 1.0), metric="", stored=3),
    "null": World(steps=()),
    "n2-run": World(why=Purpose.RUN),
    "n2-unnamed": World(why=Purpose.RUN, metric=""),
    "null-selected": World(steps=(), stored=3, why=Purpose.RUN, selected=True),
    "steps-2+4": World(steps=(2.0, 4.0)),
    "steps-4+4": World(steps=(4.0, 4.0)),
    "steps-1+4": World(steps=(1.0, 4.0)),
    "steps-4-2": World(steps=(4.0, -2.0)),
    "n2-all": World(every_cause=True),
    "steps-2+4-all": World(steps=(2.0, 4.0), every_cause=True),
    "not-finite": World(steps=(0.0,), not_finite=True),
    "not-finite-exact": World(steps=(0.0,), not_finite=True, redraw=0.2),
    "exact": World(steps=(4.0,), noise=nothing, wander=0.004, stored=2),
}


# --- the history


def commits(shape: str, number: int) -> Iterator[NewCommit]:
    """Yield `OLDER` commits, GOOD, and `number` more of which the last is BAD."""
    random = Random(number)
    for i in range(OLDER + 1):
        yield NewCommit(str(i), f"older {i}", {"model.py": f"{i}\n"})
    lines = [str(OLDER)]  # the newest commit of each open line of development, main first
    for i in range(OLDER + 1, OLDER + 1 + number):
        key, left = str(i), OLDER + 1 + number - i
        file = "docs.md" if shape == "docs" and random.random() < 0.5 else "model.py"
        at = 0
        parents: tuple[str, ...] = (lines[0],)
        if shape == "merges" and len(lines) > 1 and (left < len(lines) or random.random() < 0.3):
            parents = lines[0], lines.pop(random.randrange(1, len(lines)))
        elif shape == "merges" and len(lines) < min(4, left - 1) and random.random() < 0.4:
            at = len(lines)
            lines.append(key)
        else:
            at = random.randrange(len(lines))
            parents = (lines[at],)
        lines[at] = key
        yield NewCommit(key, f"{file} {i}", {file: f"{i}\n"}, parents)


@dataclass(frozen=True)
class Range:
    """GOOD..BAD of one repository."""

    repository: Repository
    history: History
    older: tuple[Commit, ...]

    @classmethod
    @cache
    def open(cls, folder: Path) -> Range:
        repository = Repository.open(folder)
        good = repository.resolve(f":/older {OLDER}$")
        older = repository.log(f"{good.sha}~", OLDER)
        return cls(repository, repository.history(good.sha, "main"), tuple(older))

    @cached_property
    def positions(self) -> dict[str, int]:
        inside = {commit.sha: i for i, commit in enumerate(self.history.commits)}
        return inside | {commit.sha: GOOD for commit in (self.history.good, *self.older)}

    @cached_property
    def reach(self) -> np.ndarray:
        """(n, n) whether the column's commit is the row's, or an ancestor of it."""
        lineage = Lineage(self.history.parents)
        return np.array([lineage.ancestors(p) for p in range(len(lineage))])

    @cached_property
    def read(self) -> np.ndarray:
        """The commits that touch a file that the training reads."""
        touches = [commit.subject.startswith("model.py") for commit in self.history.commits]
        return np.flatnonzero(touches)

    def covers(self, other: Other, position: int) -> bool:
        """Return True if a further step is said to lie where the commit at this position is."""
        after, by = self.positions[other.after.sha], self.positions[other.by.sha]
        return bool(self.reach[by, position] and (after == GOOD or not self.reach[after, position]))


# --- one case


@dataclass
class Case:
    """A range with one set of levels, and a stream of noise."""

    world: World
    range: Range
    random: Generator
    levels: np.ndarray = field(init=False)
    steps: tuple[int, ...] = field(init=False)
    """The positions of the steps, the oldest first."""
    sizes: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        world, random, n = self.world, self.random, len(self.range.history.commits)
        chosen = random.choice(self.range.read, len(world.steps), replace=False)
        self.steps = tuple(sorted(map(int, chosen)))
        effects = world.wander * random.standard_normal(n) + world.ramp / n
        if world.spread > 1:
            firsts = [min(p, n - world.spread) for p in self.steps]
            self.steps = tuple(p + i for p in firsts for i in range(world.spread))
        self.sizes = np.repeat(np.array(world.steps) / world.spread, world.spread)
        effects[list(self.steps)] += self.sizes
        self.levels = self.range.reach @ effects + world.jitter * random.standard_normal(n)
        self._untestable = random.random(n) < world.untestable
        if world.stretch:
            middle = self.steps[0] + 1 - world.stretch // 2
            self._untestable[max(middle, 0) : max(middle, 0) + world.stretch] = True
        self._untestable[-1] = False
        self._draws: dict[tuple[object, ...], np.ndarray] = {}
        redraws = random.random(n) < (world.redraw or 0.0)
        redraws[list(self.steps)] = True
        own = random.spawn(1)[0]
        self._own = own.standard_normal(SEEDS)
        self._spares = own.random((n, SEEDS)) >= world.touched
        self._bits = [frozenset(np.flatnonzero(row & redraws).tolist()) for row in self.range.reach]

    def outcome(self, position: int) -> OutcomeKind:
        """Return how one more trial ends."""
        crash = self.world.crash
        if position != GOOD and self._untestable[position]:
            return OutcomeKind.UNTESTABLE
        if crash is not None and self.random.random() < crash[self.is_bad(position)]:
            return OutcomeKind.FAILED
        return OutcomeKind.OK

    def reports(self, position: int, seed: int) -> list[float]:
        """Return the metric of one more trial, epoch by epoch."""
        world, random = self.world, self.random
        side = self.is_bad(position)
        seed %= SEEDS
        spared = {p for p in self.steps if self._spares[p, seed]}
        drawn = self._bits[position] if position != GOOD else frozenset()
        bits = drawn - spared
        key = (bits, seed) if world.redraw is not None else (object(),)
        if key not in self._draws:
            last = world.scale[side] * float(world.noise(random)) * math.sqrt(1 - world.shared)
            last += math.sqrt(world.shared) * float(self._own[seed])
            last += COLLAPSED * (random.random() < world.collapse[side])
            early = random.standard_normal(EPOCHS - 1) if world.redraw is not None else ()
            self._draws[key] = np.array([*early, last])
        if (world.not_finite and side) or (world.lost and random.random() < world.lost):
            return [math.nan]
        level = float(self.levels[position]) if position != GOOD else 0.0
        sizes = dict(zip(self.steps, self.sizes.tolist(), strict=True))
        level -= sum(sizes[p] for p in drawn & spared)
        noise = self._draws[key]
        base = BASE if world.noise is nothing else 0.0
        values = [base + level * (i + 1) / len(noise) + float(x) for i, x in enumerate(noise)]
        return [world.unit * round(x / world.unit) for x in values] if world.unit else values

    def is_bad(self, position: int) -> bool:
        reach = self.range.reach
        return position != GOOD and any(reach[position, step] for step in self.steps[:1])


class Workers:
    """An engine of several workers in simulated time. Durations are lognormal with mean 1; a trial
    is drawn when it ends. One that is ended frees its worker at once."""

    def __init__(self, bench: Bench, workers: int, number: int) -> None:
        self.workers, self._bench = workers, bench
        self._random = np.random.default_rng([number, 16])
        self._running: list[tuple[float, int, Need, Future[TrialRecord]]] = []
        self.now, self.started = 0.0, 0

    def submit(self, need: Need) -> Future[TrialRecord]:
        seconds = float(np.exp(DURATION * self._random.standard_normal() - DURATION**2 / 2))
        future: Future[TrialRecord] = Future()
        self.started += 1
        heappush(self._running, (self.now + seconds, self.started, need, future))
        return future

    def wait(self) -> None:
        while self._running:
            end, _, need, future = heappop(self._running)
            if future.set_running_or_notify_cancel():
                self.now = end
                future.set_result(self._bench.run(need))
                return

    def close(self) -> None:
        """Do nothing: what runs takes simulated time only."""


class ScriptedBench(Bench):
    """A bench whose trials are drawn from a case. All that `Bench.run` asks the ledger is real."""

    case: Case
    metric = METRIC
    busy = 0.0  # seconds of processor time in place of trainings

    @classmethod
    def of(cls, case: Case, ledger: Ledger) -> ScriptedBench:
        unused: Any = None
        folder = ledger.folder
        setup = Setup(
            Checkouts(case.range.repository), unused, unused, folder, folder, unused, unused,
            unused, {}, "host", case.world.why, random=Random(int(case.random.integers(2**32))),
        )  # fmt: skip
        bases = {TASK.name: Installation(ENVIRONMENT, sys.executable)}
        lock = DeviceLock("cpu", folder=folder, label="a benchmark")
        bench = cls(Station(setup, ledger, bases, CPU, lock, setup.launchers()))
        bench.case = case
        return bench

    def searches(self) -> None:
        """Let the trials that run from now on be those of a bisect."""
        self.setup = replace(self.setup, why=Purpose.BISECT)

    def store(self, commit: Commit, kind: OutcomeKind, values: Sequence[float]) -> None:
        """Record a trial that ran before anybody asked."""
        seed = len(self.ledger.trials(commit=commit.sha))
        self._record(Need(commit, self.case.world.task, seed), kind, values)

    def _run(self, need: Need) -> TrialRecord:
        began = time.process_time()
        position = self.case.range.positions[need.commit.sha]
        kind = self.case.outcome(position)
        values = self.case.reports(position, need.seed) if kind is OutcomeKind.OK else ()
        record = self._record(need, kind, values)
        self.busy += time.process_time() - began
        return record

    def _record(self, need: Need, kind: OutcomeKind, values: Sequence[float]) -> TrialRecord:
        commit, until = need.commit, need.until
        trial = self._begin(need)
        self.ledger.start_trial(trial)
        enough = ""
        for epoch, value in enumerate(values):
            self.ledger.append_epochs(trial.ulid, [EpochReport(epoch, {self.metric: value})])
            if until is not None and (enough := until(trial.ulid)):
                break
        message = enough or MESSAGES.get(kind, "")
        if kind is OutcomeKind.FAILED and self.case.world.step is not None:
            bad = self.case.is_bad(self.case.range.positions[commit.sha])
            step = self.case.world.step if bad else int(self.case.random.integers(100))
            message += f" (in forward of model.py, step {step} of epoch 0)"
        outcome = Outcome(
            kind, trial.started + 1.0, message, int(not values),
            marks=(Mark.EARLY_STOPPED,) if enough else (),
        )  # fmt: skip
        summaries = {self.metric: values[-1]} if values and not enough else {}
        self.ledger.finish_trial(trial.ulid, outcome, summaries)
        if self.case.world.shape == "docs":
            self._keep_footprint(commit, need.task, trial)
        record = self.ledger.trial(trial.ulid)
        assert record is not None
        return record

    def _keep_footprint(self, commit: Commit, task: Task, trial: Trial) -> None:
        root = self.case.range.repository.root
        tree: Any = SimpleNamespace(
            path=root, manner=tree_files.manner(self.case.range.repository), filtered={}
        )
        self.reuse.keep(commit, task, trial, NamedPaths({bytes(root / "model.py")}), tree)


def store_ends(bench: ScriptedBench) -> None:
    """Record what made somebody ask, and what was measured before."""
    case, world = bench.case, bench.case.world
    good, bad = case.range.history.good, case.range.history.bad
    last = len(case.range.history.commits) - 1
    crashes = world.crash is not None
    for commit in case.range.older:
        for seed in range(world.known):
            bench.store(commit, OutcomeKind.OK, case.reports(GOOD, seed))
    while True:
        at_good, at_bad = (
            [case.reports(position, seed) for seed in range(world.stored)]
            for position in (GOOD, last)
        )
        if not world.selected or ttest_ind(at_bad, at_good).statistic[-1] > 2:
            break
    for values in at_good:
        bench.store(good, OutcomeKind.OK, values)
    for values in at_bad:
        bench.store(bad, *((OutcomeKind.FAILED, ()) if crashes else (OutcomeKind.OK, values)))


@dataclass(frozen=True)
class Result:
    """What came of one case. `stated` is the probability given to the named commits."""

    status: str
    trials: int
    wrong: bool
    """A commit was named that is no step, or a slope that does not hold all of them."""
    stated: float
    told: bool
    """The report has every other step."""
    false: bool
    """The report is sure of a further step that is none."""
    milliseconds: float
    """Processor time of a decision."""
    time: float
    """Time it took, in mean durations of a trial."""
    started: int
    """Trials that were started, those that were ended too."""


def run_case(world: World, folder: Path, limits: Limits, workers: int, number: int) -> Result:
    """Bisect one case in the repository at `folder`, beside which the ledger is made. Equal
    arguments give equal results."""
    case = Case(world, Range.open(folder), np.random.default_rng([number, 15]))
    history = case.range.history
    with (
        tempfile.TemporaryDirectory(dir=folder.parent) as place,
        closing(Ledger.open(Path(place) / "ledger.db", create=True)) as ledger,
        ScriptedBench.of(case, ledger) as bench,
    ):
        with ledger.transaction():
            store_ends(bench)
        bench.searches()
        metrics = (world.metric,) if world.metric else ()
        bench.pool = engine = Workers(bench, workers, number)
        began = time.process_time()
        try:
            answer = bisect_many(
                bench, history, [world.task], metrics,
                replace(limits, every_cause=world.every_cause),
            )  # fmt: skip
        except CannotJudge:
            answer = None
        spent = time.process_time() - began - bench.busy
    return judge(case, answer, limits, spent, engine)


def judge(
    case: Case, answer: Answer | None, limits: Limits, spent: float, engine: Workers
) -> Result:
    """Hold an answer against the truth; None where the ends were refused."""
    if answer is None:
        return Result("nothing-changed", 0, False, 0.0, False, False, 1e3 * spent, 0.0, 0)
    (first,) = answer.reports
    position, covers = case.range.positions, case.range.covers
    named = [position[commit.sha] for commit in first.culprits[: 1 if first.named else None]]
    later = [position[r.culprits[0].sha] for r in answer.further if r.named]
    others = set(case.steps) - set(named[:1])
    trials = sum(report.trials for report in (first, *answer.further))
    return Result(
        first.status,
        trials,
        wrong=bool(named)
        and (
            not set(case.steps) <= set(named)
            if first.status == "gradual"
            else not set(named) & set(case.steps)
        ),
        stated=first.probability
        if first.status == "gradual"
        else sum(first.posterior[p] for p in named),
        told=all(s in later or any(covers(o, s) for o in first.others) for s in others),
        false=bool(set(later) - others)
        or any(
            o.probability >= limits.confidence and not any(covers(o, s) for s in others)
            for o in first.others
        ),
        milliseconds=1e3 * spent / (engine.started + 1),
        time=engine.now,
        started=engine.started,
    )


# --- the table


def wilson(hits: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a share."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, hits / of
    middle = share + z**2 / (2 * of)
    half = z * math.sqrt(share * (1 - share) / of + z**2 / (4 * of**2))
    low, high = ((middle + sign * half) / (1 + z**2 / of) for sign in (-1, 1))
    return max(low, 0.0), min(high, 1.0)


# Mean time, in durations of a trial, that a cell may take at most: (world, commits).
TRIALS = {
    ("n2", 1024): 28.5, ("n4", 1024): 12.0, ("bad-noisier-2", 64): 40.0,
    ("good-noisier-2", 64): 40.0, ("collapse-10-4", 64): 11.0, ("collapse-30-4", 64): 18.0,
    ("crash-always", 64): 10.5, ("crash-at-step", 64): 9.0,
    ("not-finite", 64): 10.5, ("exact", 64): 8.0,
}  # fmt: skip
WRONG, TOLD, FALSE = 0.05, 0.95, 0.01
HEADER = (
    f"{'world':15s} {'cases':>5s} {'trials':>13s} {'wrong/named (95 %)':>24s} {'open':>5s} "
    f"{'none':>5s} {'slope':>5s} {'stated':>6s} {'right':>6s} {'told':>7s} {'false':>5s} "
    f"{'ms':>5s} {'time':>13s} {'started':>7s}  missed"
)


def row(name: str, world: World, size: int, results: Sequence[Result]) -> str:
    """Return the line of one world with ranges of `size` commits. `missed` names the columns whose
    95 % interval lies beyond what is asked."""
    trials = np.array([r.trials for r in results], dtype=float)
    error = trials.std(ddof=1) / math.sqrt(len(trials)) if len(trials) > 1 else math.nan
    spans = np.array([r.time for r in results])
    late = spans.std(ddof=1) / math.sqrt(len(spans)) if len(spans) > 1 else math.nan
    named = [r for r in results if r.status in ("found", "set", "gradual")]
    wrong, told, false = (
        sum(getattr(r, name) for r in group)
        for name, group in (("wrong", named), ("told", named), ("false", results))
    )
    # Where nothing changed, whoever is named is blamed: the share is of all cases.
    of = len(named) if world.steps else len(results)
    low, high = wilson(wrong, of)
    beyond = {
        "time": spans.mean() - 1.96 * late > TRIALS.get((name, size), math.inf),
        "wrong": low > WRONG,
        "told": len(world.steps) > 1 and wilson(told, len(named))[1] < TOLD,
        "false": wilson(false, len(results))[0] > FALSE,
    }
    stated, right = "-", "-"
    if named:
        stated = f"{np.mean([r.stated for r in named]):.3f}"
        right = f"{1 - wrong / len(named):.3f}"
    return (
        f"{name:15s} {len(results):5d} {trials.mean():6.1f} ± {error:4.1f} "
        f"{f'{wrong}/{of} ({100 * low:.1f}–{100 * high:.1f})':>24s} "
        f"{sum(r.status == 'undecided' for r in results):5d} "
        f"{sum(r.status == 'nothing-changed' for r in results):5d} "
        f"{sum(r.status == 'gradual' for r in results):5d} {stated:>6s} {right:>6s} "
        f"{f'{told}/{len(named)}' if len(world.steps) > 1 else '-':>7s} {false:5d} "
        f"{np.mean([r.milliseconds for r in results]):5.1f} "
        f"{spans.mean():6.2f} ± {late:4.2f} "
        f"{np.mean([r.started for r in results]):7.1f}  "
        f"{', '.join(column for column, missed in beyond.items() if missed)}"
    ).rstrip()


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", default=",".join(WORLDS), help="names of rows, by commas")
    parser.add_argument("--cases", type=int, default=40, help="cases a world")
    parser.add_argument("--commits", type=int, default=64, help="candidates a range")
    parser.add_argument("--stored", type=int, help="stored trials an end, in place of the world's")
    parser.add_argument("--first-seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--confidence", type=float, default=Limits().confidence)
    parser.add_argument("--workers", type=int, default=1, help="trials at once, in simulated time")
    parser.add_argument("--budget", type=int, default=BUDGET, help="trials a case at most")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args(words)
    names = options.worlds.split(",")
    if unknown := [name for name in names if name not in WORLDS]:
        parser.error(f"no world {unknown[0]!r}; there are {', '.join(WORLDS)}")
    worlds = {name: WORLDS[name] for name in names}
    if options.stored is not None:
        worlds = {name: replace(world, stored=options.stored) for name, world in worlds.items()}
    numbers = range(options.first_seed, options.first_seed + options.cases)
    limits = Limits(options.confidence, options.budget)
    # What lies in memory need not reach a disk: the ledger waits for that in every transaction.
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place,
        ProcessPoolExecutor(options.jobs) as pool,
    ):
        folders = {shape: Path(place) / shape for shape in {w.shape for w in worlds.values()}}
        for shape, folder in folders.items():
            create(folder, commits(shape, options.commits), checkout=False)
        print(HEADER, flush=True)
        for name, world in worlds.items():
            case = partial(run_case, world, folders[world.shape], limits, options.workers)
            print(row(name, world, options.commits, list(pool.map(case, numbers))), flush=True)


if __name__ == "__main__":
    main()
