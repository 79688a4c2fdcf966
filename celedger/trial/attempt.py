"""Run one trial: its journal, its log, its processes, its rows in the ledger.

The order of steps makes it safe against kills. The journal exists and is locked before the trial is
in the ledger; the trial is in the ledger before its process starts; its outcome is in the ledger
and its archive before the journal is removed. After a kill between any two steps the next command
can finish.

`celedger run --only test` runs some commands of a task. Such a part has its own definition and
name, so it never counts as a trial of the whole, and its numbers are not judged. It starts from a
copy of the output folder of the whole.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from celedger.base.errors import LedgerError, MachineError, RepositoryError, UsageError, explained
from celedger.base.files import Lock
from celedger.base.model import Direction, Mark, Outcome, OutcomeKind, Task, Trial, TrialRecord
from celedger.base.text import some
from celedger.ledger import Ledger
from celedger.system import process
from celedger.system.environment import owners, package_folders
from celedger.system.telemetry import Sampler
from celedger.trial import journal, protocol, report_sources
from celedger.trial.ending import begin_log, classify, refusal, without
from celedger.trial.engine import EpochReported, Need, Remark, Started
from celedger.trial.reuse import NamedPaths, Reuse
from celedger.trial.station import Station
from celedger.trial.venvs import unmet


def part(task: Task, names: Collection[str]) -> Task | None:
    """Return the task with only these commands, in its own order; None if it has none of them."""
    chosen = tuple(command for command in task.commands if command.name in names)
    if chosen == task.commands or not chosen:
        return task if chosen else None
    base, bracket, point = task.name.partition("[")
    label = f"only={'+'.join(command.name for command in chosen)}"
    return task._replace(
        name=f"{base}[{point[:-1]},{label}]" if bracket else f"{base}[{label}]",
        commands=chosen,
        metrics=tuple(m._replace(direction=Direction.INFO) for m in task.metrics),
        whole=task.recipe if chosen[0] != task.commands[0] else "",
    )


def inherit(ledger: Ledger, task: Task, trial: Trial, out: Path) -> None:
    """Fill the folder of a part's trial from the newest trial of the whole at the same commit with
    the same seed. Raises UsageError if there is none, OSError."""
    if not task.whole:
        return
    whole_trials = ledger.trials(
        commit=trial.commit, recipe=task.whole, environment=trial.environment, seed=trial.seed
    )
    folders = [journal.stored_out_path(ledger, r.trial.ulid) for r in whole_trials if r.ok]
    existing = [folder for folder in folders if folder.is_dir()]
    if not existing:
        out.rmdir()
        name = task.name.rpartition("only=")[0].rstrip("[,")
        name += "]" if "[" in name else ""
        raise UsageError(
            f"no trial of {name} at {trial.commit[:10]} with seed {trial.seed} left files that "
            f"{task.commands[0].name!r} could go on from",
            f"celedger run {trial.commit[:10]} --task '{name}'",
        )
    shutil.copytree(existing[-1], out, dirs_exist_ok=True, symlinks=True)


# --- the running trial

# A build must not report.
_CHANNEL = ("CELEDGER_FD", "CELEDGER_JOURNAL", "CELEDGER_INODE")
_NAMED = 3  # packages that a warning names

# Seconds between two samples of a training: usually, and if a bisect may end it after an epoch.
TICK, WATCHING = 0.05, 0.01


class _FloodError(Exception):
    """The training reports more than the limit."""


class Attempt:
    """The running trial: its journal, its log, its process."""

    def __init__(self, station: Station, reuse: Reuse, need: Need, trial: Trial) -> None:
        self.station, self.reuse, self.need, self.trial = station, reuse, need, trial
        self.commit, self.task, self.until = need.commit, need.task, need.until
        self.installation = station.place(trial.commit, need.task)
        self.began = time.monotonic()  # unlike `setup.now`, it is never set back
        self.enough = ""  # the reason of `until` to end the trial
        ledger = station.ledger
        self.journal_path = journal.path(ledger, trial.ulid)
        self.log = journal.log_path(ledger, trial.ulid)
        self.out = journal.out_path(ledger, self.task.name, trial)
        self.spent, self.cpu = 0.0, 0.0  # seconds of all commands: of the clock, of processors
        self.peak = 0.0  # bytes of any process
        self.heaps: list[int] = []  # bytes of each command's heap that are of `preload`
        self.files = 0  # bytes of files' pages of a command when it began
        self.starts: set[bool] = set()  # of its commands: warm, cold
        self.named = NamedPaths()
        self.reads = self.journal_path.with_suffix(".reads")
        self.sampler = Sampler(station.device.gpu)
        self.channel = -1
        self.lock: Lock | None = None

    def begin(self) -> None:
        ledger, trial = self.station.ledger, self.trial
        cause = f"cannot write beside the ledger in {self.log.parent}"
        with explained(cause, journal.NO_ROOM, LedgerError):
            for folder in (self.log.parent, self.out):
                folder.mkdir(parents=True, exist_ok=True)
            inherit(ledger, self.task, trial, self.out)
        self.journal_path, self.channel, self.lock = journal.create(ledger, trial)
        self.journal = journal.Journal(self.journal_path, ledger, trial.ulid)
        name, rank = process.join_session()
        facts = {"session": name, "rank": str(rank), "role": self.need.role}
        if self.need.asked:
            facts["asked"] = self.need.asked
        ledger.record_trial_facts(trial.ulid, facts)

    def execute(self) -> Outcome:
        station, task = self.station, self.task
        extra = {
            "CELEDGER_TRIAL": self.trial.ulid,
            "CELEDGER_SEED": str(self.trial.seed),
            "CELEDGER_FD": str(self.channel),
            "CELEDGER_JOURNAL": str(self.journal_path),
            "CELEDGER_INODE": journal.inode(self.channel),
            **({"CELEDGER_STEPS": "1"} if task.steps else {}),
            **({"CELEDGER_STOP_AFTER": str(task.stop_after)} if task.stop_after else {}),
        }
        env = station.variables(task, extra)
        build_env = {k: v for k, v in env.items() if k not in _CHANNEL}
        kind, reason = station.prepare(self.commit, task, build_env, self.log)
        if kind is not OutcomeKind.OK:
            return self._outcome(kind, reason, None)
        station.listen(Started(self.commit, task, self.trial.seed))
        self.journal.sources = report_sources.of(
            task.definition(), log=self.log, out=self.out, tree=station.tree
        )
        lines = station.lines(task, self.installation, self.trial.seed, self.out)
        for number, (name, argv) in enumerate(lines):
            with suppress(OSError):  # a full disk: the command reports it
                if number:  # the previous command's last line may lack its newline
                    os.write(self.channel, b"\n")
                if len(lines) > 1:
                    begin_log(self.log, name)
            try:
                end = self._command(argv, env, task.timeout - self.spent)
            except _FloodError as flood:
                return self._outcome(OutcomeKind.FAILED, str(flood), None)
            if end.end is process.End.STOPPED:
                return self._outcome(OutcomeKind.OK, self.enough, None, Mark.EARLY_STOPPED)
            self.spent += end.wall
            self.cpu += end.cpu
            self.starts.add(end.warm)
            kind = classify(end, self.log)
            if kind is not OutcomeKind.OK:
                return self._failure(kind, end, name if len(lines) > 1 else "")
        reported = protocol.summaries(task.metrics, station.ledger.series(self.trial.ulid))
        if absent := protocol.missing(task, reported):
            own = reported.keys() - protocol.TELEMETRY_NAMES
            return self._outcome(OutcomeKind.MISSING, without(absent, own, task, self.log), 0)
        return self._outcome(OutcomeKind.OK, "", 0)

    def _failure(self, kind: OutcomeKind, end: process.Exit, name: str) -> Outcome:
        """Return the outcome of a command that failed; named, if the task has several."""
        station, task = self.station, self.task
        reason = station.why(task, end, self.log)
        if lack := station.lacks(self.commit, task, reason):
            kind, reason = OutcomeKind.UNTESTABLE, lack
        if name:
            late = end.end is process.End.TIMEOUT
            limit = f"the commands together ran longer than {task.timeout:g} s"
            reason = f"{name}: {limit if late else reason}"
        return self._outcome(kind, reason, end.returncode)

    def _totals(self) -> dict[str, float]:
        """Return the figures of the whole trial. A warm start saves the seconds of importing: if a
        command of a suite that preloads starts cold, its times are comparable with no others."""
        totals = self.sampler.totals()
        # A short peak between two samples is only in the kernel's figure; a peak of several
        # processes together is only in the samples.
        totals["peak_rss"] = max(totals.get("peak_rss", 0.0), self.peak)
        if self.starts == {bool(self.task.preload)}:
            totals |= {"duration": self.spent, "cpu_time": self.cpu}
        if self.task.preload:
            totals["peak_rss"] = self._own_peak()
        if not (self.peak and totals["peak_rss"]):
            del totals["peak_rss"]
        return totals

    def _own_peak(self) -> float:
        """Return the trial's peak of memory without what its suite preloads: what warm commands
        inherited. A cold one that imports the same modules has about as much. 0 if it cannot be
        known."""
        preload = {name.partition(".")[0] for name in self.task.preload}
        if self.starts != {True} and not preload <= self._modules():
            return 0.0
        peak = self.sampler.own_peak(self.peak, self.files)
        return max(0.0, peak - min(self.heaps)) if self.heaps and all(self.heaps) else 0.0

    def _reads(self, python: str) -> process.Reads:
        outside = self.reuse.beside
        return process.Reads(self.station.tree, self.reads, outside, package_folders(python))

    def _command(self, argv: tuple[str, ...], env: Mapping[str, str], limit: float) -> process.Exit:
        station, python = self.station, self.installation.python

        def tick(running: process.Running) -> None:
            station.signals.check()
            self.enough = self.enough or station.signals.reason
            self.sampler.sample(running.usage)
            if self.task.preload:
                self.sampler.see(running.memory())
            self._follow(end=False)

        end = station.run_command(
            self.task, argv, self.out, writable=(self.journal_path, self.log),
            env=env, log=self.log, pass_fds=(self.channel,), timeout=max(limit, 0.0),
            reads=self._reads(python) if self.task.trace else None,
            on_tick=tick, tick=TICK if self.until is None else WATCHING,
            activity=lambda: self.journal.size,
            stop=lambda: bool(self.enough),
            fork=station.forker(self.task, python, argv, env),
        )  # fmt: skip
        if self.task.trace:
            self.named.take_in(self.reads)
        else:
            self.named.began = True
        self._follow(end=True)
        self.peak = max(self.peak, float(end.max_rss))
        self.heaps.append(end.heap or station.launchers.heap(python, self.task.preload, env))
        self.files = max(self.files, end.files)
        return end

    def _follow(self, *, end: bool) -> None:
        """Read the new reports into the ledger, one piece at a time until the `end`: a training may
        report faster than a disk stores, and the runner must still watch the clock."""

        def epoch_added(epoch: int) -> None:
            self.station.listen(EpochReported(self.commit, self.task, self.trial.seed, epoch))
            if self.until is not None and not self.enough:
                self.enough = self.until(self.trial.ulid)

        flooded = self.journal.size > journal.LIMIT
        if not (end and flooded):  # the rest would take minutes
            self.journal.follow(self.sampler.take, epoch_added, end=end)
        if flooded:
            raise _FloodError(
                f"reported more than {journal.LIMIT >> 20} MiB; the ledger has what it took in "
                "until then"
            )

    def _outcome(
        self, kind: OutcomeKind, message: str, returncode: int | None, *marks: Mark
    ) -> Outcome:
        ledger = self.station.ledger
        if self.station.device_lock.was_shared():
            marks = (*marks, Mark.ACCOMPANIED)
        return Outcome(
            kind=kind,
            ended=self.trial.started + time.monotonic() - self.began,
            message=message,
            returncode=returncode,
            log=os.path.relpath(self.log, ledger.folder) if self.log.exists() else "",
            marks=tuple(sorted(self.sampler.marks | self.journal.marks | {*marks})),
        )

    def finish(self, outcome: Outcome) -> TrialRecord:
        """Write outcome and summaries, then remove the journal."""
        ledger, ulid = self.station.ledger, self.trial.ulid
        failed = outcome.kind in (
            OutcomeKind.FAILED, OutcomeKind.MISSING, OutcomeKind.UNTESTABLE
        )  # fmt: skip
        if failed and (problem := refusal(self.log, ledger.folder)):
            raise LedgerError(
                f"a report could not be written in {self.journal_path.parent}: {problem}; the "
                "trial stopped and is not held against the commit",
                "free some room if the disk is full, then run the same command again",
            )
        summaries: dict[str, float] = {}
        if Mark.EARLY_STOPPED not in outcome.marks:
            reported = protocol.summaries(self.task.metrics, ledger.series(ulid))
            summaries = self.journal.take_totals() | reported | self._totals()
        ledger.finish_trial(ulid, outcome, summaries)
        if self.named.began and not self.task.whole:  # a part inherits files outside the tree
            self.named.packages = self._imported() if self.task.trace else frozenset()
            strayed = self.reuse.keep(
                self.commit, self.task, self.trial, self.named, self.station.checkout
            )
            if strayed:
                self._warn(
                    f"{self.task.name} read {strayed} of your work tree, not of the commit: what "
                    "it measures depends on what you have checked out (is the package installed "
                    "in editable form, or is a path absolute?)"
                )
            if wanted := self._unmet():
                self._warn(
                    f"{self.commit.sha[:10]} wants {some(wanted, _NAMED, '; ')}: `venv` in the "
                    "suite trains each commit with its own packages (docs/suites.md)", *wanted,
                )  # fmt: skip
            if outcome.kind is OutcomeKind.OK and self._read_nothing():
                self._warn(
                    f"{self.task.name} read nothing of your repository, so no commit can change "
                    "its numbers: let its command run your code (docs/suites.md)"
                )
        journal.remove(ledger, self.journal_path)
        if self.out.is_dir() and not any(self.out.iterdir()):
            self.out.rmdir()
        record = ledger.trial(ulid)
        assert record is not None
        return record

    def _warn(self, text: str, *about: str) -> None:
        remark = Remark(f"warning: {text}", about or (self.task.name,))
        self.station.listen(remark)

    def _unmet(self) -> tuple[str, ...]:
        """Return what the commit wants of the packages that it imported and did not get. A virtual
        environment of the commit's own is made from its files."""
        installed = self.installation.environment.details.get("packages")
        if self.task.venv or not isinstance(installed, dict):
            return ()
        repository = self.station.setup.repository
        with suppress(RepositoryError):
            return tuple(unmet(repository, self.commit.sha, installed, self.named.packages))
        return ()

    def _read_nothing(self) -> bool:
        """Return True if it is known that the trial opened no file of its tree. What a build or a
        virtual environment took from there may lie elsewhere."""
        if not self.task.trace or self.named.unknown or self.task.build or self.task.venv:
            return False
        tree = self.station.checkout.path
        opened = self.named.split(tree)[0].opened
        return not any((tree / os.fsdecode(path)).is_file() for path in opened)

    def _imported(self) -> frozenset[str]:
        """Return the distributions that the commands imported, with those of a warm start."""
        station, python = self.station, self.installation.python
        modules = self._modules()
        if True in self.starts:
            modules |= station.launchers.preloaded()
        try:
            return owners(python, frozenset(modules)) | {"python"}
        except MachineError:
            return frozenset()

    def _modules(self) -> set[str]:
        """Return the top-level modules that its commands opened where packages are installed."""
        return self.named.modules(package_folders(self.installation.python))

    def abandon(self, error: BaseException) -> None:
        """Record that the trial will not end, unless the ledger itself failed. Then the journal
        stays, and the next command reads it."""
        ledger, trial = self.station.ledger, self.trial
        why = "stopped by hand" if isinstance(error, KeyboardInterrupt) else str(error)
        now = trial.started + time.monotonic() - self.began
        with suppress(LedgerError, OSError):
            record = ledger.trial(trial.ulid)
            if record is not None and not isinstance(error, LedgerError):
                journal.take_in(ledger, record, now, why)

    def close(self) -> None:
        self.reads.unlink(missing_ok=True)
        if self.channel >= 0:
            os.close(self.channel)
            self.journal.close()
            self.channel = -1
        if self.lock is not None:
            self.lock.close()
            self.lock = None
