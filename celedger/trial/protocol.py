"""Parse a training's reports: journal lines into epoch reports, series into summaries. Pure: it
knows neither the file of the lines nor the ledger. No line raises an exception; a line that is no
report is counted as rubbish.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from celedger.base.model import LEAK, Direction, EpochReport, Floor, Kind, Metric, StepValues, Task

MAX_LINE = 1 << 20  # bytes; a longer line is no report
MAX_EPOCH = 2**31 - 1
MAX_METRICS = 1000  # distinct names of one trial; more are a fault of the training
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}\Z")
_WORDS = ("nan", "inf", "infinity", "-inf", "-infinity")  # as other tools write such numbers

_SPEED, _MEMORY = (Floor(share, relative=True) for share in (0.05, 0.03))
_OF_STEPS = (  # of a process with an optimiser of torch, which `child/step_meter.py` measures
    Metric("step_time", "s", Direction.LOWER, Kind.SPEED, _SPEED),
    Metric("step_cpu_time", "s", Direction.LOWER, Kind.WORK, _SPEED),
    Metric(LEAK, "B", Direction.LOWER, Kind.MEMORY, Floor(1024.0)),  # a step
    Metric("optimiser_steps"),
)
_COLD = (
    Metric("duration", "s", Direction.LOWER, Kind.SPEED, _SPEED),
    Metric("cpu_time", "s", Direction.INFO, Kind.WORK, _SPEED),  # of all processors together
    Metric("peak_rss", "B", Direction.LOWER, Kind.MEMORY, _MEMORY, "max"),
)
# A trial forked from a fork server lacks the seconds of starting Python and importing, and the
# memory of what its suite preloads. Another rule, so that the two are never compared.
_WARM = {m.name: m._replace(summary="max-own" if m.summary == "max" else "warm") for m in _COLD}
# Metrics that the runner measures for every trial. A suite may declare one of them itself, to give
# it another floor or direction; a peak stays one.
TELEMETRY: tuple[Metric, ...] = (
    *_COLD,
    *_WARM.values(),
    *_OF_STEPS,
    Metric("rss", "B", kind=Kind.MEMORY),
    Metric("cpu_share", "cores"),
    Metric("gpu_memory", "B", Direction.LOWER, Kind.MEMORY, _MEMORY, "max"),
    # In its place where NVML tells no process's memory, as in a container: the device's, less what
    # it was at the start.
    Metric("gpu_memory_grown", "B", Direction.LOWER, Kind.MEMORY, _MEMORY, "max"),
    Metric("gpu_utilisation", "%", kind=Kind.SPEED),
    Metric("gpu_power", "W", kind=Kind.SPEED),
    Metric("gpu_energy", "J", kind=Kind.SPEED),
    Metric("gpu_clock", "MHz", kind=Kind.SPEED),
    Metric("gpu_temperature", "°C"),
)
_TOTALS = b'{"trial": {'  # how the line of `child/step_meter.py` begins
TELEMETRY_NAMES = frozenset(m.name for m in TELEMETRY)
OF_LONG_TRAININGS = frozenset({LEAK})  # a short training has no value of it


def with_telemetry(task: Task) -> Task:
    """Return the task with the runner's own metrics added to those of its suite."""
    usual: dict[str, Metric] = {}
    for metric in TELEMETRY:
        usual.setdefault(metric.name, metric)
    warm = _WARM if task.preload else {}
    usual |= warm
    own = {metric.name: metric for metric in task.metrics}
    for name in own.keys() & usual.keys():
        if name in warm or own[name].summary == Metric("").summary:
            own[name] = own[name]._replace(summary=usual[name].summary)
    added = [metric for name, metric in usual.items() if name not in own]
    return task._replace(metrics=(*map(_declared, own.values()), *added))


def _declared(metric: Metric) -> Metric:
    """Return a metric as its suite declares it, by a hair's breadth another one than telemetry: the
    ledger keeps definitions alone, and what a suite declares is judged by it."""
    if metric not in TELEMETRY:
        return metric
    floor = metric.floor._replace(amount=math.nextafter(metric.floor.amount, math.inf))
    return metric._replace(floor=floor)


@dataclass
class Parser:
    """Parse the lines of one journal, in order, into reports. A line without an epoch belongs to
    the one after the last (the first is 0). Series per step in several lines of one epoch are
    joined.
    """

    last: int = -1
    rubbish: int = 0
    names: set[str] = field(default_factory=set)
    counted: dict[tuple[int, str], int] = field(default_factory=dict)  # number of steps by series
    totals: dict[str, float] = field(default_factory=dict)  # of the whole trial (`step_meter`)
    bits: str = ""  # a hash of what it computed; "" where that is not known

    def feed(self, line: bytes) -> EpochReport | None:
        """Return the report on this line (without its newline), or None if it is none."""
        if line.startswith(_TOTALS) and self._take_totals(line):
            return None
        report = self._parse(line)
        if report is None:
            self.rubbish += 1
        else:
            self.last = max(self.last, report.epoch)
        return report

    def _parse(self, line: bytes) -> EpochReport | None:
        if len(line) > MAX_LINE or not line.lstrip().startswith(b"{"):
            return None  # a cheap test first: most lines of a flood fail it
        try:
            try:
                document = json.loads(line)
            except ValueError:  # an integer with too many digits for Python: infinity
                document = json.loads(line, parse_int=float)
        except (ValueError, RecursionError):
            return None
        if not isinstance(document, dict):
            return None
        epoch = document.pop("epoch", self.last + 1)
        if isinstance(epoch, float) and epoch.is_integer():
            epoch = int(epoch)
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch <= MAX_EPOCH:
            return None
        fingerprint = document.pop("fingerprint", None)
        if fingerprint is not None and not isinstance(fingerprint, str):
            return None
        series = document.pop("steps") if isinstance(document.get("steps"), dict) else {}
        values: dict[str, float] = {}
        for name, value in document.items():
            number = _number(value)
            if number is None or not self._accepts(name):
                self.rubbish += value is not None
                continue
            values[name] = number
        steps = self._steps(epoch, series)
        if not values and not fingerprint and not steps:
            return None
        return EpochReport(epoch, values, fingerprint, steps)

    def _take_totals(self, line: bytes) -> bool:
        """Keep the figures of the process that made most steps. Returns False for another line."""
        try:
            document = json.loads(line)["trial"]
            bits = str(document.get("bits", ""))[:64]
            totals = {m.name: float(document[m.name]) for m in _OF_STEPS if m.name in document}
        except (ValueError, RecursionError, KeyError, TypeError):
            return False
        steps = "optimiser_steps"
        if totals.get(steps, 0.0) > self.totals.get(steps, 0.0):
            self.totals, self.bits = totals, bits
        return True

    def _accepts(self, name: str) -> bool:
        """Return True if the name is a metric's, and the trial has not too many of them."""
        if len(self.names) < MAX_METRICS and _NAME.match(name):
            self.names.add(name)
        return name in self.names

    def _steps(self, epoch: int, series: Mapping[str, object]) -> dict[str, StepValues]:
        series_by_name = {}
        for name, document in series.items():
            steps = document if isinstance(document, list) else ["none"]
            # `null` is a step without a value.
            values = [math.nan if value is None else _number(value) for value in steps]
            numbers = tuple(value for value in values if value is not None)
            if len(numbers) < len(values) or not self._accepts(name):
                self.rubbish += 1
                continue
            first = self.counted.get((epoch, name), 0)
            self.counted[epoch, name] = first + len(numbers)
            if numbers:
                series_by_name[name] = StepValues(first, numbers)
        return series_by_name


def _number(value: object) -> float | None:
    if isinstance(value, (bool, int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return float(value) if isinstance(value, str) and value.lower() in _WORDS else None


@dataclass
class Epochs:
    """Gather values into epochs; the last of several values of a metric counts. If no epoch is
    reported, the repetition of a name begins the next one.
    """

    number: int = 0
    numbered: bool = False
    values: dict[str, float] = field(default_factory=dict)

    def put(self, epoch: float | None, values: Mapping[str, float]) -> list[EpochReport]:
        """Add values, and return the epoch that they end, if any. A fractional epoch, such as 0.25
        or 1.0 of some trainers, is the one that it ends in: the first is 1."""
        ended: list[EpochReport] = []
        if epoch is not None and math.isfinite(epoch) and 0 <= epoch <= MAX_EPOCH:
            self.numbered = True
            if math.ceil(epoch) != self.number:
                ended = self.flush()
                self.number = math.ceil(epoch)
        elif not self.numbered and values.keys() & self.values.keys():
            ended = self.flush()
            self.number += 1
        self.values.update(values)
        return ended

    def flush(self) -> list[EpochReport]:
        values, self.values = self.values, {}
        return [EpochReport(self.number, values)] if values else []


def summarise(
    metric: Metric, series: Sequence[tuple[int, float]], better: Direction | None = None
) -> float | None:
    """Return one value for a series of (epoch, value), as the metric's `summary` defines; None for
    an empty series. A NaN among the values that the rule reads makes the summary NaN, so that a
    training that diverged once cannot hide behind its best epoch. `better` is the direction of the
    series, where that is another metric's."""
    if not series:
        return None
    points = sorted(series, key=lambda point: point[0])
    values = [value for _, value in points]
    rule, _, number = metric.summary.partition(" of ")[0].rpartition("-")
    higher = (better or metric.direction) is Direction.HIGHER
    match rule:
        case "at":
            return next((value for epoch, value in points if epoch == int(number)), None)
        case "epochs-to" | "epochs-to-":
            goal = float(number) * (-1 if rule.endswith("-") else 1)
            reached = (v >= goal if higher else v <= goal for v in values)
            return next((n for n, is_reached in enumerate(reached, 1) if is_reached), math.inf)
        case "mean-of-last":
            values = values[-int(number) :]
        case "median-after":
            values = values[int(number) :] or values
        case "" if number in ("last", "warm"):
            return values[-1]
    if any(map(math.isnan, values)):
        return math.nan
    if rule == "median-after":
        from statistics import median  # needs fractions and decimals

        return median(values)
    if rule == "mean-of-last" or number == "area":
        return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else sum(values)
    highest = rule == "max" or number == "max" or higher is (number == "best")
    return max(values) if highest else min(values)


def summaries(
    metrics: Iterable[Metric], series: Mapping[str, Sequence[tuple[int, float]]]
) -> dict[str, float]:
    """Return the summary of every series and every metric that summarises another one's; undeclared
    metrics are summarised by their last value."""
    declared = {m.name: m for m in metrics}
    every = {**{name: Metric(name) for name in series}, **declared}
    values = {}
    for name, metric in every.items():
        source = declared.get(metric.series, Metric(metric.series))
        value = summarise(metric, series.get(metric.series, ()), source.direction)
        if value is not None:
            values[name] = value
    return values


def missing(task: Task, reported: Mapping[str, float]) -> tuple[str, ...]:
    """Return the judged metrics that the suite declares and the trial did not report."""
    return tuple(
        m.name
        for m in task.metrics
        if m.direction is not Direction.INFO
        and m.name not in reported
        and m.name not in TELEMETRY_NAMES
        and not m.is_signed
    )
