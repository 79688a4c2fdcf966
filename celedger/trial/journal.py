"""The journal of a trial: an append-only file that outlives every process and the ledger. The
training appends a line a report and returns; the runner copies the file into the ledger; the next
command copies what a dead runner left.

A runner holds a lock on the journal for as long as it lives, and the kernel releases it however the
runner dies. So whether a trial still has a runner never depends on a process number. The journal is
beside the ledger's archive, where `git clean` cannot remove it. A link beside the ledger shows it
to other repositories that share the ledger.

A trial on another machine has a note in `.git/celedger/remote/` instead, named by its ULID. Its
engine writes the note before the trial can start, and removes it when all of the trial is in the
ledger. While the command that sent it lives, it holds a lock on the note.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection
from contextlib import closing, nullcontext, suppress
from pathlib import Path

from celedger.base import files
from celedger.base.errors import LedgerError, MachineError, explained
from celedger.base.model import (
    Commit,
    EpochReport,
    Mark,
    Outcome,
    OutcomeKind,
    Task,
    Trial,
    TrialRecord,
)
from celedger.ledger import Ledger
from celedger.ledger.archive import private_folder
from celedger.repo import Repository
from celedger.trial import protocol, report_sources

CHUNK = 1 << 18  # bytes read at once
LIMIT = 256 << 20  # bytes of reports of one trial: more would fill the disk
NO_ROOM = "free some room there or move the ledger with --ledger"
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")  # in a path: shells, Hydra and TOML take it for more
_LONGEST = 100  # characters of a name
_ABANDONED = 60.0  # seconds after which a journal without its name is abandoned


def folder(ledger: Ledger) -> Path:
    return ledger.archive.journals if ledger.archive is not None else links(ledger)


def links(ledger: Ledger) -> Path:
    """Return the folder beside the ledger that links to its journals. Without an archive, and for
    an older celedger, the journals themselves are there."""
    return ledger.private / "journals"


def path(ledger: Ledger, ulid: str) -> Path:
    return folder(ledger) / f"{ulid}.jsonl"


def inode(fd: int) -> str:
    """Return the inode by which a training verifies a descriptor of its journal
    (`celedger.child`)."""
    state = os.fstat(fd)
    return f"{state.st_dev}:{state.st_ino}"


def log_path(ledger: Ledger, ulid: str) -> Path:
    return ledger.private / "logs" / f"{ulid}.log"


def out_path(ledger: Ledger, task: str, trial: Trial) -> Path:
    """Return the folder that is `{out}` in the trial's commands, for people to find: by the name of
    the task with its parameters, the commit and the seed."""
    folder = _UNFIT.sub("-", task).strip("-")[:_LONGEST]
    return ledger.private / "out" / folder / f"{trial.commit[:10]}-seed-{trial.seed}-{trial.ulid}"


def stored_out_path(ledger: Ledger, ulid: str) -> Path:
    """Return the folder of a trial that began, by its ulid alone: it may be gone, and an older
    celedger named it by the ulid."""
    folder = ledger.private / "out"
    return next(folder.glob(f"*/*{ulid}"), folder / ulid)


class Journal:
    """Copy one journal file into the ledger, idempotently."""

    def __init__(self, path: Path, ledger: Ledger, ulid: str) -> None:
        # The open file can be read to its end even if its name is removed.
        self._file = path.open("rb", buffering=0)
        # Other sources of reports, which are followed too.
        self.sources: list[report_sources.Source] = []
        self.marks: set[Mark] = set()
        self._ledger = ledger
        self._ulid = ulid
        self._parser = protocol.Parser()
        self._offset = 0
        self._tail = b""

    @property
    def size(self) -> int:
        """Return the bytes reported until now."""
        return os.fstat(self._file.fileno()).st_size

    def take_totals(self) -> dict[str, float]:
        """Return what a command measured of the whole trial. The hash of what it computed becomes
        the fingerprint of the last epoch, unless the training reported its own."""
        parser, ledger, ulid = self._parser, self._ledger, self._ulid
        if parser.bits and not ledger.fingerprints(ulid):
            last = max(
                (n for points in ledger.series(ulid).values() for n, _ in points), default=-1
            )
            if last >= 0:
                ledger.append(ulid, last, {}, parser.bits)
        return parser.totals

    def close(self) -> None:
        self._file.close()

    def follow(
        self,
        telemetry: Callable[[], dict[str, float]] = dict,
        on_epoch: Callable[[int], None] = lambda _: None,
        *,
        end: bool = True,
    ) -> None:
        """Add the new reports to the ledger in one transaction: one report, as long as an epoch
        takes longer than a write. Reads at most one piece, or all at the `end`, when no process
        writes any more. `telemetry` returns the figures since the last report, which are added to
        the epoch; `on_epoch` gets the newest epoch's number."""
        while piece := self._piece(end=end):
            reports = list(filter(None, map(self._parser.feed, filter(bytes.strip, piece))))
            self._record(reports, telemetry, on_epoch)
            if not end:
                break
        for source in self.sources:
            self._record(source.read(end=end), telemetry, on_epoch)
        if self._parser.rubbish or any(source.rubbish for source in self.sources):
            self.marks.add(Mark.RUBBISH)

    def _record(
        self,
        reports: list[EpochReport],
        telemetry: Callable[[], dict[str, float]],
        on_epoch: Callable[[int], None],
    ) -> None:
        if not reports:
            return
        joined = [r._replace(values={**telemetry(), **r.values}) for r in reports]
        repeated = self._ledger.append_epochs(self._ulid, joined)
        # The runner's own figures do not count for an epoch reported in two parts.
        if {"fingerprint"}.union(*(r.values for r in reports)).intersection(repeated):
            self.marks.add(Mark.REPEATED)
        on_epoch(reports[-1].epoch)

    def _piece(self, *, end: bool) -> list[bytes]:
        """Return the next complete lines; none if there are no more. A line is complete with its
        newline, and the last one at the `end`."""
        lines: list[bytes] = []
        while not lines and (chunk := os.pread(self._file.fileno(), CHUNK, self._offset)):
            self._offset += len(chunk)
            *lines, self._tail = (self._tail + chunk).split(b"\n")
            if len(self._tail) > protocol.MAX_LINE:
                self._tail = b"\0"  # an endless line must not fill the memory: it is no report
        if end and not lines and self._tail:
            lines, self._tail = [self._tail], b""
        return lines


def create(ledger: Ledger, trial: Trial) -> tuple[Path, int, files.Lock | None]:
    """Create the journal of a trial and add the trial to the ledger. Returns its path, the
    descriptor for reports, and the lock of its runner. Raises LedgerError.

    The journal has its name and is locked before the ledger has the trial: `recover` can finish
    after a kill between any two steps.
    """
    path = folder(ledger) / f"{trial.ulid}.jsonl"
    link = links(ledger) / path.name
    cause = f"cannot write in {path.parent} or beside the ledger"
    with explained(cause, NO_ROOM, LedgerError), ledger.transaction():
        ledger.start_trial(trial)
        for parent in (path.parent, link.parent):
            private_folder(parent)
        # Locked before it has its name: nobody may take a new journal for that of a dead runner.
        draft = path.with_suffix(".new")
        channel = os.open(
            draft, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        runner_lock = files.try_flock(draft)
        draft.rename(path)
        if link != path:
            link.symlink_to(path)
    return path, channel, runner_lock


def remove(ledger: Ledger, path: Path) -> None:
    """Remove the journal and the links of a trial whose outcome is in the ledger."""
    for file in (links(ledger) / path.name, path):
        file.unlink(missing_ok=True)


def recover(
    ledger: Ledger,
    *,
    now: float,
    sweep: Callable[[str], int],
    elsewhere: Collection[str] = (),
) -> tuple[TrialRecord, ...]:
    """Finish the trials of dead runners: their reports, their processes, their outcomes.

    `sweep` kills the processes that still carry a trial's ulid. Returns the trials that are now
    recorded as interrupted; trials whose runner lives are not changed, nor those that run
    `elsewhere` (ulids).
    """
    interrupted = []
    for record in ledger.trials(open_only=True):
        if record.trial.ulid in elsewhere:
            continue
        path = _path(ledger, record.trial.ulid)
        handle = files.try_flock(path) if path is not None else None
        if handle is None and path is not None:
            continue  # its runner lives
        with handle or nullcontext():
            if handle is not None:  # else a copy of a ledger, whose trials run elsewhere
                sweep(record.trial.ulid)
            if take_in(ledger, record, now, "its runner died"):
                interrupted.append(ledger.trial(record.trial.ulid) or record)
    for directory in {folder(ledger), links(ledger)}:
        _sweep_finished(ledger, directory, now)
    return tuple(interrupted)


def is_attended(repository: Repository, ledger: Ledger, ulid: str) -> bool:
    """Return True if the runner of a trial lives, or it runs on a node."""
    path = _path(ledger, ulid)
    return ulid in remote_ulids(repository) or (path is not None and files.is_locked(path))


def take_in(ledger: Ledger, record: TrialRecord, now: float, why: str) -> bool:
    """Record a trial as interrupted with all reports in its journal and its own files, and remove
    the journal. Return False if it already has an outcome."""
    ulid, recipe = record.trial.ulid, record.trial.recipe
    definition = next(t.definition for t in ledger.tasks() if t.recipe == recipe)
    path, log, out = _path(ledger, ulid), log_path(ledger, ulid), stored_out_path(ledger, ulid)
    with closing(Journal(path or Path(os.devnull), ledger, ulid)) as journal:
        journal.sources = report_sources.of(definition, log=log, out=out)
        journal.follow()
    outcome = Outcome(
        OutcomeKind.INTERRUPTED,
        ended=max(now, record.trial.started),  # the clock may have been set back
        message=why,
        log=os.path.relpath(log, ledger.folder) if log.exists() else "",
        marks=tuple(sorted(journal.marks)),
    )
    summaries = protocol.summaries(ledger.metrics(recipe), ledger.series(ulid))
    ended = ledger.finish_trial(ulid, outcome, summaries)
    if path is not None:
        remove(ledger, path)
    with suppress(OSError):  # it is not empty
        out.rmdir()
    return ended


def _path(ledger: Ledger, ulid: str) -> Path | None:
    """Return the journal of a trial, in this repository's archive or in another one's."""
    for directory in (folder(ledger), links(ledger)):
        path = directory / f"{ulid}.jsonl"
        if path.exists():
            return path.resolve()
    return None


def _sweep_finished(ledger: Ledger, directory: Path, now: float) -> None:
    """Remove the file that a runner left when it was killed before its first row, or between its
    last row and the removal of its journal."""
    if not directory.is_dir():
        return
    for path in directory.glob("*.jsonl"):
        record = ledger.trial(path.stem)
        if ledger.lacks_trials() if record is None else record.outcome is None:
            continue  # `celedger doctor --restore` restores its trial
        if path.is_symlink():
            path.unlink(missing_ok=True)
            continue
        handle = files.try_flock(path)
        if handle is not None:
            remove(ledger, path)
            handle.close()
    for path in directory.glob("*.reads"):
        if not path.with_suffix(".jsonl").exists():  # its runner removed the file
            path.unlink(missing_ok=True)
    for path in directory.glob("*.new"):
        with suppress(FileNotFoundError):
            if now - path.stat().st_mtime > _ABANDONED and not path.with_suffix(".jsonl").exists():
                path.unlink()


# --- trials on other machines


def remote_folder(repository: Repository) -> Path:
    return repository.state_dir / "remote"


def remote_ulids(repository: Repository) -> list[str]:
    """Return the trials that run elsewhere."""
    return [path.stem for path in remote_folder(repository).glob("*.json")]


def remote_trials(repository: Repository) -> list[tuple[str, str, int, str, bool]]:
    """Return commit, task and seed of each, on which engine (with its address), and whether the
    command that sent it lives."""
    trials = []
    for path in sorted(remote_folder(repository).glob("*.json")):
        with suppress(OSError, ValueError, LookupError, TypeError, MachineError):
            facts = json.loads(path.read_bytes())
            order, engine = facts["order"], f"{facts['engine']} {facts['address']}".strip()
            if order["commit"] is not None:
                sha, task = Commit(*order["commit"]).sha, Task(*order["tasks"][0]).name
                trials.append((sha, task, int(order["seed"]), engine, files.is_locked(path)))
    return trials
