"""The nouns: what rooms hand to each other. Frozen, typed, and without behaviour that needs
a clock, a file or a process. Hashes are full 40-character strings; only views shorten them. Units
are SI: times in seconds, sizes in bytes, dates in seconds since the epoch (UTC).

Every command makes these classes before it answers. So they are tuples, which Python makes in a
tenth of the time of a dataclass, and annotations are values: as texts, each field is compiled.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

Seconds = float
Bytes = int


class Direction(StrEnum):
    """Which way a metric gets better; `info` is never judged."""

    LOWER = "lower"
    HIGHER = "higher"
    INFO = "info"

    @property
    def sign(self) -> int:
        """+1 where larger is worse, -1 where larger is better, 0 where nothing is."""
        return {"lower": 1, "higher": -1, "info": 0}[self.value]

    @property
    def opposite(self) -> "Direction":
        """Return what `bisect --find improved` takes for worse."""
        return Direction({"lower": "higher", "higher": "lower"}.get(self.value, self.value))


class Kind(StrEnum):
    QUALITY = "quality"
    SPEED = "speed"  # by the clock: other trials disturb it
    WORK = "work"  # processor time: what other processes do hardly changes it
    MEMORY = "memory"
    COUNT = "count"


CLOCKED = frozenset({Kind.SPEED, Kind.WORK, Kind.MEMORY})
"""Kinds of metrics that vary from trial to trial of the same code, and are not re-used with a
result."""


class Floor(NamedTuple):
    """The smallest change worth knowing: absolute, or relative to the baseline's level."""

    amount: float = 0.0
    relative: bool = False

    @classmethod
    def parse(cls, text: str | float) -> "Floor":
        """`"0.5%"` is relative, `0.01` absolute. Raises ValueError for anything else."""
        relative = str(text).strip().endswith("%")
        amount = float(str(text).strip().removesuffix("%")) / (100 if relative else 1)
        if not math.isfinite(amount) or amount < 0:
            raise ValueError(f"a floor is a number >= 0 or a percentage, not {text!r}")
        return cls(amount, relative)

    def at(self, level: float) -> float:
        """Return the floor in the metric's own unit, at the given level."""
        return self.amount * abs(level) if self.relative else self.amount

    def __str__(self) -> str:
        return f"{self.amount * 100:g}%" if self.relative else f"{self.amount:g}"


_SUMMARY = re.compile(
    r"(?:last|best|worst|area|max|max-own|warm|(?:mean-of-last|median-after)-[1-9][0-9]*|at-[0-9]+|"
    r"epochs-to--?[0-9]+(?:\.[0-9]+)?)(?: of [A-Za-z_][A-Za-z0-9_./-]{0,63})?"
)


def is_summary(rule: str) -> bool:
    """Return True for the rule of a metric's summary."""
    return _SUMMARY.fullmatch(rule) is not None


ALLOCATOR = float(8 << 20)
"""Bytes by which the peaks of one training differ by luck: trials of one fork server agree within
.1 to 2 MiB, the next server's heap is laid out otherwise. Of 360 MiB, same commit and seed, up to
4.4 MiB from server to server and 6.6 MiB from trial to trial (`vector-quantize-pytorch`)."""
LEAK = "memory_growth"
"""The metric of the bytes that a step leaves behind, as the step meter reports it."""
LEAK_SHARE = 0.1
"""Share of a level of LEAK that is its least floor. Evaluations leak between steps, too,
some more of them in one quarter of a training than in another: three trainings that leak 400 kB a
batch varied by a sd of 1.6 %, while their noise, of levels without a leak, was 60 B."""


class Metric(NamedTuple):
    """A named number. `summary` turns its series over epochs into one value:
    `last`, `best`, `worst`, `max`, `area` (the mean of all), `at-EPOCH`, `epochs-to-VALUE`,
    `mean-of-last-K`, or `median-after-K` (without the first K), each also ` of ` another series.
    celedger itself uses `max-own` for memory, the largest without what the suite preloads, and
    `warm` for the time of a trial that a fork server started."""

    name: str
    unit: str = ""
    direction: Direction = Direction.INFO
    kind: Kind = Kind.COUNT
    floor: Floor = Floor()
    summary: str = "last"

    @property
    def series(self) -> str:
        """Return the name of the series that it summarises: its own, or that of its rule."""
        return self.summary.partition(" of ")[2] or self.name

    def floor_at(self, level: float) -> float:
        """Return its floor at that level, in its own unit. A share of a trial's memory without what
        the suite preloads is a small share of what the process holds: at least ALLOCATOR. A leak
        varies by a share of its size: LEAK_SHARE."""
        floor = self.floor.at(level)
        if self.name == LEAK and not self.floor.relative:
            return max(floor, LEAK_SHARE * abs(level))
        is_share = self.floor.relative and self.summary == "max-own"
        return max(floor, ALLOCATOR) if is_share else floor

    def visible_at(self, level: float) -> float:
        """Return the change that must be visible there: the floor, or where none is declared a
        tenth, the smallest change that people act on without being asked to say so."""
        return self.floor_at(level) if self.floor.amount else 0.1 * abs(level)

    @property
    def is_signed(self) -> bool:
        """Return True for a count of a step's work: signatures have it, and no training reports
        it."""
        return self.kind is Kind.WORK and self.name in STEP_COUNTS


class Commit(NamedTuple):
    sha: str
    tree: str
    parents: tuple[str, ...]
    author: str
    author_time: int
    commit_time: int
    subject: str


class Command(NamedTuple):
    """One named step of a task: a template such as `{python} {suite}/mlp.py --seed {seed}`."""

    name: str
    template: tuple[str, ...]  # one word an item, placeholders not yet filled


class Task(NamedTuple):
    """One small training, as its suite defines it. `files` is the content hash of the suite."""

    suite: str
    name: str
    commands: tuple[Command, ...]
    params: Mapping[str, object] = MappingProxyType({})
    seeds: tuple[int, ...] = (0,)
    metrics: tuple[Metric, ...] = ()
    files: str = ""
    python: str = "python"
    pythonpath: tuple[str, ...] = (".",)
    build: tuple[tuple[str, ...], ...] = ()
    inputs: tuple[str, ...] = ()
    venv: tuple[str, ...] = ()  # requirement files of the commit that make its interpreter
    pass_env: tuple[str, ...] = ()  # names and patterns of variables of the user that it gets
    threads: int = 1
    preload: tuple[str, ...] = ()  # imported once for many trials; no part of the definition
    sandbox: bool = False  # it writes only where it is meant to; no part of the definition either
    trace: bool = True  # the paths that it names are recorded; no part of the definition either
    timeout: Seconds = 600.0
    silence: Seconds | None = None
    memory: Bytes | None = None
    steps: bool = False  # series per step are asked for, too
    stop_after: int = 0  # steps of an optimiser, after which the training ends; 0: it ends itself
    pattern: tuple[str, ...] = ()  # regular expressions that find reports in its output
    tensorboard: str = ""  # template of a folder whose event files hold its reports
    cwd: str = ""  # folder of the checkout in which its commands run
    whole: str = ""  # recipe of the task that this one is a selection of commands of

    def definition(self) -> dict[str, object]:
        """Everything that decides what runs, and nothing that only decides how it is judged."""
        keys = ("steps", "stop_after", "pattern", "tensorboard", "cwd", "whole", "venv", "pass_env")
        seldom = {name: value for name in keys if (value := getattr(self, name))}
        return {
            "suite": self.suite,
            "name": self.name,
            "commands": [[c.name, *c.template] for c in self.commands],
            "params": dict(self.params),
            "files": self.files,
            "python": self.python,
            "pythonpath": list(self.pythonpath),
            "build": [list(words) for words in self.build],
            "inputs": list(self.inputs),
            "threads": self.threads,
            **{k: list(v) if isinstance(v, tuple) else v for k, v in seldom.items()},
        }

    @property
    def recipe(self) -> str:
        """Return the content hash of all that defines the task (64 hex digits)."""
        text = json.dumps(self.definition(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def metric(self, name: str) -> Metric | None:
        return next((m for m in self.metrics if m.name == name), None)


class Environment(NamedTuple):
    """Everything but the code. Equal fingerprints may be compared; others start anew."""

    fingerprint: str
    details: Mapping[str, object]


class Purpose(StrEnum):
    """The purpose of a trial."""

    RUN = "run"
    BISECT = "bisect"
    HOOK = "hook"
    CHECK = "check"
    DEMO = "demo"
    NOISE = "noise"


class OutcomeKind(StrEnum):
    """Did it run? Never what the numbers say: that is a `Standing`."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OOM = "oom"
    KILLED = "killed"
    INTERRUPTED = "interrupted"
    UNTESTABLE = "untestable"  # its build failed, or the interpreter lacks a module
    MISSING = "missing"  # it ended well but without a declared metric

    @property
    def final(self) -> bool:
        """True for an answer about the commit: the others are about the machine or a person."""
        return self not in (OutcomeKind.KILLED, OutcomeKind.INTERRUPTED)

    @property
    def crashed(self) -> bool:
        """Return True if the training itself broke: what `bisect` can bisect as a crash."""
        return self.value in ("failed", "timeout", "oom", "missing")


class Mark(StrEnum):
    """A remark on a trial for whoever reads its numbers."""

    DISTURBED = "disturbed"  # another process used its device: speed and power not judged
    THROTTLED = "throttled"  # the device slowed itself: speed and power not judged
    ACCOMPANIED = "accompanied"  # another trial ran beside it: speed and power not judged
    RUBBISH = "rubbish"  # lines on the channel that were no reports
    REPEATED = "repeated"  # an epoch's metric reported twice: the first was kept
    EARLY_STOPPED = "early-stopped"  # ended once its epochs had told enough: no summaries


SPOILT = frozenset({Mark.DISTURBED, Mark.THROTTLED, Mark.ACCOMPANIED})
"""Marks of a trial whose speed and power are no evidence about its commit."""


class Trial(NamedTuple):
    """One execution of one recipe at one commit with one seed in one environment."""

    ulid: str
    commit: str
    recipe: str
    environment: str
    seed: int
    why: Purpose
    started: float
    host: str
    device: str = "cpu"


class Outcome(NamedTuple):
    kind: OutcomeKind
    ended: float
    message: str = ""  # one line: "exit status 1: ValueError: …"
    returncode: int | None = None  # negative: the signal, as in subprocess
    log: str = ""  # path relative to the ledger's folder
    marks: tuple[Mark, ...] = ()


class StepValues(NamedTuple):
    """Successive values of a per-step series within one epoch, from its step `first` (0, …) on."""

    first: int
    values: tuple[float, ...]


class EpochReport(NamedTuple):
    """The report of one epoch. NaN and infinities are kept as they are."""

    epoch: int
    values: Mapping[str, float]
    fingerprint: str | None = None
    steps: Mapping[str, StepValues] = MappingProxyType({})


REUSED = "it differs in no file that this training reads"


class TrialRecord(NamedTuple):
    """A trial as the ledger knows it. `outcome` is None while it runs."""

    trial: Trial
    suite: str
    task: str
    outcome: Outcome | None
    summaries: Mapping[str, float] = MappingProxyType({})  # metric name -> value
    epochs: int = 0
    rules: Mapping[str, str] = MappingProxyType({})  # metric name -> the summary's rule
    derived: str = ""  # the ulid of the trial whose result it re-uses, "" where it ran itself
    source: str = ""  # the commit of that trial

    @property
    def ok(self) -> bool:
        return self.outcome is not None and self.outcome.kind is OutcomeKind.OK

    @property
    def is_final(self) -> bool:
        """Return True if it ended in a way that need not be repeated."""
        return self.outcome is not None and self.outcome.kind.final

    @property
    def is_conclusive(self) -> bool:
        """Return True if it is final, and was not ended early."""
        return self.is_final and not self.early_stopped

    @property
    def reused(self) -> str:
        """From where it has its result, and why, "" where it ran itself."""
        return f"re-used from {self.source[:7]}: {REUSED}" if self.derived else ""

    @property
    def early_stopped(self) -> bool:
        """True if it was ended before its last epoch, and answers nothing that this would."""
        return self.outcome is not None and Mark.EARLY_STOPPED in self.outcome.marks

    def is_whole(self, metric: Metric) -> bool:
        """Return True if it ran well to its end, with the metric by its present summary."""
        is_of_rule = self.rules.get(metric.name, "last") == metric.summary
        return self.ok and not self.early_stopped and metric.name in self.summaries and is_of_rule

    def is_hindered(self, metric: Metric) -> bool:
        """Return True if the metric is of speed, and something disturbed the trial."""
        marks = self.outcome.marks if self.outcome else ()
        return metric.kind is Kind.SPEED and not SPOILT.isdisjoint(marks)

    def may_be_judged(self, metric: Metric) -> bool:
        """Return True if it is whole, and nothing hindered it."""
        return self.is_whole(metric) and not self.is_hindered(metric)


_PACKAGE = b"//"  # before the name of a distribution among paths: no tree has such a path


class Footprint(NamedTuple):
    """The paths of its commit's tree that a trial named: paths relative to it as git has them (""
    is itself), there or not. `inputs` are the patterns of what its build depends on."""

    opened: tuple[bytes, ...] = ()  # it can have read content or listing
    looked: tuple[bytes, ...] = ()  # it learned what `stat` tells
    inputs: tuple[str, ...] = ()

    @staticmethod
    def package(name: str) -> bytes:
        """Return what stands for a distribution among the opened paths."""
        return _PACKAGE + os.fsencode(name)

    @property
    def packages(self) -> frozenset[str]:
        """Return the distributions that the trial imported; none where that is not known."""
        own = (path for path in self.opened if path.startswith(_PACKAGE))
        return frozenset(os.fsdecode(path.removeprefix(_PACKAGE)) for path in own)


class ReusableTrial(NamedTuple):
    """A trial whose result others may re-use."""

    ulid: str
    commit: str
    tree: str
    seed: int
    footprint: int  # its number in the ledger
    surroundings: str  # what beside the tree decides what a training reads
    whole: bool = True  # else it was stopped early: only how another would begin is known
    failed: bool = False  # it may have lacked what is no commit's


class TaskRecord(NamedTuple):
    """A task as the ledger knows it: `definition` is what `Task.definition()` said."""

    suite: str
    name: str
    recipe: str
    definition: Mapping[str, object]

    @property
    def without_files(self) -> str:
        """Return what is equal for definitions that differ in the suite's files alone."""
        return json.dumps({**self.definition, "files": ""}, sort_keys=True)


class SummaryRow(NamedTuple):
    """One trial's summary of one metric, with what is needed to compare it."""

    commit: str
    ulid: str
    seed: int
    environment: str
    recipe: str
    value: float
    started: float
    marks: tuple[Mark, ...]
    outcome: OutcomeKind
    summary: str = "last"  # the rule that made `value`: those of other rules do not compare
    derived: str = ""  # as in TrialRecord: no value of its own, so no repeat

    def may_be_judged(self, metric: Metric) -> bool:
        """Return True if the trial ran well to its end, and, for speed, undisturbed."""
        if self.outcome is not OutcomeKind.OK or Mark.EARLY_STOPPED in self.marks:
            return False
        is_hindered = metric.kind is Kind.SPEED and not SPOILT.isdisjoint(self.marks)
        return self.summary == metric.summary and not is_hindered


class BisectRecord(NamedTuple):
    """The conclusion of one bisect. `culprits` is the credible set, the leader first."""

    ulid: str
    suite: str
    task: str
    metric: str  # "" when a crash was bisected
    good: str
    bad: str
    culprits: tuple[str, ...]
    probability: float  # of the leader
    status: str
    ended: float
    report: Mapping[str, object] = MappingProxyType({})

    @property
    def key(self) -> tuple[str, str, str]:
        return self.suite, self.task, self.metric

    @property
    def direction(self) -> str:
        """Return `better` if it searched an improvement, else `bad`."""
        return "better" if self.report.get("improved") else "bad"

    @property
    def is_of_failure(self) -> bool:
        """Return True if it searched what fails or is not finite, and no rise of a number."""
        effect = self.report.get("effect", 0.0)
        return not self.metric or not (isinstance(effect, int | float) and math.isfinite(effect))

    def disagreeing(self) -> list[str]:
        """Return the other tasks of the incident that the named commit probably did not move."""
        rows = self.report.get("agreements")
        rows = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
        return [row["task"] for row in rows if row.get("probability", 1.0) < AGREES]


AGREES = 0.5
"""P(the named commit moved another task of its incident) from which that task agrees."""

ENVIRONMENTS = "*environments"  # in place of a metric: those that a commit was measured in are one
BY_ID = "*"  # before the id of an incident or a trial, in place of a metric: the act is about that


class BaselineAct(StrEnum):
    PIN = "pin"  # judge every later commit against this one too, however slowly it drifts
    ACCEPT = "accept"  # what this commit changed is wanted: later ones are held to its level
    DISMISS = "dismiss"  # an incident was noise, or a broken data set
    VOID = "void"  # a trial is left out of all judgement
    RESTORE = "restore"  # a void trial counts again


class BaselineRecord(NamedTuple):
    """A person's word on a level. An empty task or metric means every one."""

    ulid: str
    act: BaselineAct
    commit: str
    suite: str
    task: str
    metric: str
    who: str
    why: str
    at: float

    def covers(self, task: str, metric: str) -> bool:
        return self.task in ("", task) and self.metric in ("", metric)


class FindingRecord(NamedTuple):
    """The answer of one diagnosis of one task. Commits are full hashes; `before` is the one that
    `commit` was compared with, "" without one."""

    ulid: str
    verb: str
    suite: str
    task: str
    commit: str
    before: str
    command: str  # what gives the same answer again, without `celedger`
    started: float
    headline: str
    document: Mapping[str, object]  # what `--json` prints


class SignatureRow(NamedTuple):
    """What the first steps of a training computed at a commit, and how much work one of them was;
    a finding of the verb `SIGNATURE`. `key` says which signatures may be compared: definition,
    environment, seed, device and probe. `numerics` is a digest. `work` are counts of a step by
    name, and `growth` by how much they grow from one step to the next."""

    suite: str
    task: str
    commit: str
    tree: str
    key: str
    numerics: str
    seconds: float  # of processor time, that it took
    work: Mapping[str, float]
    growth: Mapping[str, float]


IMPORTED = "imported"  # the suite of what other programs recorded
SIGNATURE = "signature"  # the verb of the findings that hold signatures
STEP_COUNTS = {
    "operators": "operators",
    "lines": "of your lines",
    "calls": "of your calls",
    "allocated": "bytes allocated",
    "waits": "reads of a value",
    "items": "batches loaded",
}
"""The counts of a step's work, in words. A suite may declare one as a metric of kind `work`."""


class SaidRecord(NamedTuple):
    """One event of one incident, as it was recorded by a job or sent to an address. Commits are
    full hashes. `suite`, `task`, `metric`, `kind` and `oldest` are of the incident as it was then.
    """

    ulid: str
    incident: str  # 8 hexadecimal digits
    state: str  # "open", "partly", "recovered", "accepted", "withdrawn"
    event: str
    kind: str
    suite: str
    task: str
    metric: str
    oldest: str  # the oldest commit that may be the first bad one
    revision: str  # HEAD then
    job: str
    address: str  # to whom an alert went; "" is the record of a job
    at: float  # seconds since the epoch, UTC
    details: Mapping[str, object] = MappingProxyType({})


FEWEST_REPEATS = 4
"""Degrees of freedom of repeats below which nothing opens: log sd is known to .35, the prior's
weight is 5 %. Without it one seed a commit gave 5 false incidents in 12,480 commits, with it 0."""


class IncidentState(StrEnum):
    """What became of an incident."""

    OPEN = "open"
    PARTLY = "partly"
    RECOVERED = "recovered"
    ACCEPTED = "accepted"
    WITHDRAWN = "withdrawn"


IN_FORCE = (IncidentState.OPEN, IncidentState.PARTLY)


class SaidMetric(NamedTuple):
    """A metric of an incident: its state, and how much worse it got, in its own unit."""

    suite: str
    task: str
    name: str
    state: str
    change: float | None = None  # None: nobody said it
    error: float | None = None  # the standard error of `change`


class SaidIncident(NamedTuple):
    """An incident as it was said last: one cause that made something worse. Commits are full
    hashes, "" where there is none. Only git knows which commits lie from `first` to `last`."""

    id: str
    kind: str
    state: str
    metrics: tuple[SaidMetric, ...]
    first: str  # of the commits that may be the first bad one
    last: str
    likeliest: str
    probability: float | None  # of `likeliest`, when this was said
    bisect: str  # the bisect that named it
    closed_at: str  # the commit that mended it
    revision: str  # HEAD then
    at: float  # seconds since the epoch, UTC


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"  # until a person allows what it would start
    DONE = "done"
    FAILED = "failed"
    SUPERSEDED = "superseded"  # a newer commit of the same key took its place


class QueuedJob(NamedTuple):
    """A job as the queue holds it. Queued jobs of one kind and `key` become one: the newest."""

    id: int
    kind: str
    commit: str
    suite: str
    created: float
    key: str
    state: JobState
    owner: str = ""
    attempts: int = 0
    message: str = ""
    ended: float | None = None


# Of the names and units of metrics: compiled where one is asked for first.
_BYTES = (
    r"peak_memory(_reserved|_fragmented)?|peak_host_memory|device_memory_used|memory_growth"
    r"|gpu_memory(_grown)?|(peak_)?rss"
)
_SECONDS = r"(step_time|latency)_p\d\d|step_time|evaluation_time|duration|(step_)?cpu_time"
_CLOCKED_NAME = (
    r"(.*_)?(time|times|seconds|latency|throughput)(_p\d\d)?|.*_(m|u|n)s|.*_per_s(ec|econd)?"
)
_CLOCKED_UNIT = r"[mµun]?s|min|h|.*/(s|min|h)"
_MEMORY_NAME = r"(.*_)?(memory|bytes|rss|vram)|.*_[kmg]i?b"
_MEMORY_UNIT = r"[kKMGT]?i?B"


def is_time(unit: str) -> bool:
    """Return True for a unit of time, and of what is done in one ("1/s")."""
    return re.fullmatch(_CLOCKED_UNIT, unit) is not None


def usual_kind(metric: str, unit: str) -> Kind:
    """Return the kind of a metric of this name and unit where nobody declared one. What a clock or
    the memory tells must not be taken for computed: equal bits do not make it equal."""
    if metric in ("cpu_time", "step_cpu_time"):
        return Kind.WORK
    if is_time(unit) or re.fullmatch(_CLOCKED_NAME, metric):
        return Kind.SPEED
    if re.fullmatch(_MEMORY_UNIT, unit) or re.fullmatch(_MEMORY_NAME, metric):
        return Kind.MEMORY
    return Kind.QUALITY


def usual_unit(metric: str) -> str:
    """Return the unit of a metric of this name where nobody declared one: "" where it has none."""
    if re.fullmatch(_BYTES, metric):
        return "B"
    if re.fullmatch(_SECONDS, metric):
        return "s"
    return "1/s" if metric == "samples_per_second" else ""
