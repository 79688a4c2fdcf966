"""The journal of a trial: an append-only file beside the ledger that outlives everyone.

The training appends a line per report and returns; the runner follows the file into the
ledger; whoever starts next takes in what a dead runner left. A runner holds a lock on the
journal for as long as it lives, and the kernel lets go of it however the runner dies, so
"is somebody still working on this trial" never rests on a process number.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from celedger.ledger import Ledger
from celedger.model import EpochReport, Mark, Outcome, OutcomeKind, TrialRecord
from celedger.system import lock
from celedger.trial import protocol, sources

CHUNK = 1 << 18  # bytes read at once
LIMIT = 256 << 20  # bytes of reports of one trial: beyond it, a flood that would fill the disk
_ABANDONED = 60.0  # seconds after which a journal without its name will never get it


def own_folder(ledger: Ledger) -> Path:
    return ledger.folder / ".celedger"


def folder(ledger: Ledger) -> Path:
    return own_folder(ledger) / "journals"


def path(ledger: Ledger, ulid: str) -> Path:
    return folder(ledger) / f"{ulid}.jsonl"


def inode(fd: int) -> str:
    """Return what a training verifies a descriptor of its journal by (`celedger.child`)."""
    state = os.fstat(fd)
    return f"{state.st_dev}:{state.st_ino}"


def log_path(ledger: Ledger, ulid: str) -> Path:
    return own_folder(ledger) / "logs" / f"{ulid}.log"


def out_path(ledger: Ledger, ulid: str) -> Path:
    """The folder that the trial's commands know as `{out}`."""
    return own_folder(ledger) / "out" / ulid


class Journal:
    """Follows one journal file into the ledger, idempotently."""

    def __init__(self, path: Path, ledger: Ledger, ulid: str) -> None:
        self.path = path
        self.sources: list[sources.Source] = []  # what reports in other ways, followed as well
        self.marks: set[Mark] = set()
        self._ledger = ledger
        self._ulid = ulid
        self._parser = protocol.Parser()
        self._offset = 0
        self._tail = b""
        self._skipping = False

    @property
    def size(self) -> int:
        """Bytes reported so far."""
        try:
            return self.path.stat().st_size
        except OSError:
            return self._offset

    def follow(
        self,
        telemetry: Callable[[], dict[str, float]] = dict,
        seen: Callable[[int], None] = lambda _: None,
        *,
        end: bool = True,
    ) -> None:
        """Append what is new: one transaction for what is there at once, which is one report as
        long as the training takes longer than a disk. At most a piece of it, or, at the `end`, when
        nobody writes any more, all. `telemetry` gives the figures since the last report, which
        join the epoch; `seen` is told the newest epoch's number."""
        while piece := self._piece(end=end):
            reports = list(filter(None, map(self._parser.feed, filter(bytes.strip, piece))))
            self._record(reports, telemetry, seen)
            if not end:
                break
        for source in self.sources:
            self._record(source.read(end=end), telemetry, seen)
        if self._parser.rubbish or any(source.rubbish for source in self.sources):
            self.marks.add(Mark.RUBBISH)

    def _record(
        self,
        reports: list[EpochReport],
        telemetry: Callable[[], dict[str, float]],
        seen: Callable[[int], None],
    ) -> None:
        if not reports:
            return
        joined = [replace(r, values={**telemetry(), **r.values}) for r in reports]
        repeated = self._ledger.append_epochs(self._ulid, joined)
        # The runner's own figures of an epoch reported in two halves do not count.
        if {"fingerprint"}.union(*(r.values for r in reports)).intersection(repeated):
            self.marks.add(Mark.REPEATED)
        seen(reports[-1].epoch)

    def _piece(self, *, end: bool) -> list[bytes]:
        """Return the next complete lines; none when there are no more. A line is complete with its
        newline, and the last one at the `end`."""
        lines: list[bytes] = []
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                while not lines and (chunk := file.read(CHUNK)):
                    self._offset += len(chunk)
                    *lines, self._tail = (self._tail + chunk).split(b"\n")
                    if lines and self._skipping:
                        lines[0], self._skipping = b"\0", False  # rubbish, whatever it was
                    if len(self._tail) > protocol.MAX_LINE:
                        # One endless line must not fill the memory: drop it as it comes.
                        self._tail, self._skipping = b"", True
        except FileNotFoundError:
            pass
        if end and not lines and (self._tail or self._skipping):
            lines, self._tail, self._skipping = [self._tail or b"\0"], b"", False
        return lines


def recover(ledger: Ledger, *, now: float, sweep: Callable[[str], int]) -> tuple[TrialRecord, ...]:
    """Take in what dead runners left: their reports, their processes, their trials.

    `sweep` kills the processes that still carry a trial's ulid. Returns the trials that are
    now recorded as interrupted; trials whose runner lives are left alone.
    """
    found = []
    here = folder(ledger)
    for record in ledger.trials(open_only=True):
        ulid, recipe = record.trial.ulid, record.trial.recipe
        path = here / f"{ulid}.jsonl"
        handle = lock.try_flock(path) if path.exists() else None
        if handle is None and path.exists():
            continue  # its runner lives
        try:
            if handle is not None:  # else a copy of a ledger, whose trials run elsewhere
                sweep(ulid)
            journal = Journal(path, ledger, ulid)
            definition = next(t.definition for t in ledger.tasks() if t.recipe == recipe)
            journal.sources = sources.of(
                definition, log=log_path(ledger, ulid), out=out_path(ledger, ulid)
            )
            journal.follow()
            task = ledger.metrics(recipe)
            outcome = Outcome(
                OutcomeKind.INTERRUPTED,
                ended=max(now, record.trial.started),  # the clock may have been set back
                message="its runner died",
                log=os.path.relpath(log_path(ledger, ulid), ledger.folder),
                marks=tuple(sorted(journal.marks)),
            )
            if ledger.finish_trial(ulid, outcome, protocol.summaries(task, ledger.series(ulid))):
                found.append(ledger.trial(ulid) or record)
            path.unlink(missing_ok=True)
        finally:
            if handle is not None:
                handle.close()
    _sweep_finished(ledger, here, now)
    return tuple(found)


def _sweep_finished(ledger: Ledger, here: Path, now: float) -> None:
    """A runner killed before its first row, or between its last one and the removal of its
    journal, left the file."""
    if not here.is_dir():
        return
    for path in here.glob("*.jsonl"):
        record = ledger.trial(path.stem)
        if record is not None and record.outcome is None:
            continue
        handle = lock.try_flock(path)
        if handle is not None:
            path.unlink(missing_ok=True)
            handle.close()
    for path in here.glob("*.reads"):
        if not path.with_suffix(".jsonl").exists():  # whose runner it was wrote it
            path.unlink(missing_ok=True)
    for path in here.glob("*.new"):
        with suppress(FileNotFoundError):
            if now - path.stat().st_mtime > _ABANDONED:
                path.unlink()
