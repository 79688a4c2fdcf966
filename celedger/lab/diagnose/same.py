"""Tell whether a task computes the same at two commits, from signatures of its first steps. That of
the first commit is read from the ledger where it is there, and kept there where it is not."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from shlex import quote
from tempfile import TemporaryDirectory

from celedger.base import files
from celedger.base.errors import CannotJudge, LedgerError, RepositoryError, Status
from celedger.base.model import SIGNATURE, STEP_COUNTS, Commit, FindingRecord, SignatureRow, Task
from celedger.judge.work import RISE, repeating
from celedger.lab.diagnose.signature import (
    SCHEMES,
    SHORT,
    STEPS,
    Difference,
    Scheme,
    Signature,
    changed_work,
    first_difference,
    not_looked_at,
    place_of,
    sign,
    signed,
    work,
)
from celedger.ledger import Ledger, ulid
from celedger.repo.synthetic import name_of
from celedger.trial.diagnostic import folder_of
from celedger.trial.runner import Bench
from celedger.trial.training_variables import child_copy

_NO_TORCH = "no training step of torch was seen"
_NO_REPEAT = "does not repeat its own bits"
QUICK = 3.0
"""Seconds of processor time of a short signature beyond which five steps are looked at instead:
nobody waits longer for an answer while editing."""


class Sameness(StrEnum):
    SAME = "same"
    ROUNDING = "rounding"
    DIFFERENT = "different"
    UNREPEATABLE = "unrepeatable"  # the commit differs from itself
    FAILED = "failed"
    NO_TORCH = "no-torch"


STATUS = {
    Sameness.SAME: Status.GOOD,
    Sameness.ROUNDING: Status.BAD,
    Sameness.DIFFERENT: Status.BAD,
    Sameness.UNREPEATABLE: Status.CANNOT_JUDGE,
    Sameness.FAILED: Status.CANNOT_JUDGE,
    Sameness.NO_TORCH: Status.CANNOT_JUDGE,
}


@dataclass(frozen=True, slots=True)
class TaskSameness:
    """The answer for one task. `work`: name of a count, before, after. `left_out`: what the answer
    says nothing about."""

    task: str
    kind: Sameness
    steps: int = 0
    difference: Difference | None = None
    place: str = ""
    message: str = ""
    work: tuple[tuple[str, float, float], ...] = ()
    left_out: Sequence[str] = field(default=())
    seconds: float = 0.0


@dataclass
class Signatures:
    """The signatures of a task with one seed: `ledger` keeps those of commits."""

    bench: Bench
    ledger: Ledger
    task: Task
    seed: int
    folder: Path
    suite_files: Mapping[str, Path] = field(default_factory=dict)
    _runs: int = 0

    def scheme(self) -> Scheme:
        """Return what to look at where nobody says: more than the first steps, if that is quick."""
        newest = self._newest()
        if newest is None:
            task = self.task
            rows = self.ledger.summaries(task.name, "step_cpu_time", suite=task.suite)
            return STEPS if rows and rows[-1].value * SHORT.steps > QUICK else SHORT
        used = json.loads(newest.key).get("scheme")
        known = (scheme for scheme in SCHEMES if str(scheme) == used)
        return STEPS if newest.seconds > QUICK else next(known, SHORT)

    def is_quick(self, commits: int) -> bool:
        """Return True unless the newest signature of the task took longer than `QUICK`, or so many
        do and take more processor time than the trainings of a commit."""
        newest, task = self._newest(), self.task
        if newest is None:
            return True
        rows = self.ledger.summaries(task.name, "cpu_time", recipe=task.recipe)
        trainings = rows[-1].value * len(task.seeds) if rows else math.inf
        return newest.seconds <= QUICK and newest.seconds * commits <= max(QUICK, trainings)

    def _newest(self) -> SignatureRow | None:
        signatures = self.ledger.signatures(suite=self.task.suite, task=self.task.name)
        return signatures[-1] if signatures else None

    def compare(self, a: Commit, b: Commit, scheme: Scheme) -> TaskSameness:
        """Compare two commits, the second of which is not kept. Where they differ, the first is
        signed again, since a training that does not repeat itself tells nothing."""
        began = time.monotonic()
        if self.reads_the_same(a, b):
            text = "nothing that it reads has changed"
            return TaskSameness(self.task.name, Sameness.SAME, message=text)
        if not self.bench.setup.gate.attended and (problem := self.known_problem(a)):
            if problem != _NO_REPEAT:
                return self._unsigned(a, Signature(str(scheme), ()))
            text = f"{problem}: no answer"
            return TaskSameness(self.task.name, Sameness.UNREPEATABLE, message=text)
        first = stored = self.stored(a, scheme)
        if first is None:
            scheme, first = signed(partial(self.sign, a), scheme)
        if first.problem or not first.count:
            return self._unsigned(a, first)
        second = self.sign(b, scheme)
        if not second.count:
            return self._unsigned(b, second)
        difference = first_difference(first, second)
        if difference is not None:
            again = self.sign(a, scheme)
            if (own := first_difference(first, again)) is not None:
                if stored is None:
                    took, kind = time.monotonic() - began, Sameness.UNREPEATABLE
                    return TaskSameness(self.task.name, kind, first.count, own, seconds=took)
                first, stored = again, None  # what is stored is of another state of the machine
            else:
                first = again  # which has the modules
            difference = first_difference(first, second)
        if stored is None:
            self.keep(a, first)
        if second.problem:
            return self._unsigned(b, second)
        kind = Sameness.SAME if difference is None else Sameness.DIFFERENT
        if difference is not None and difference.is_rounding:
            kind = Sameness.ROUNDING
        tree = self.bench.station.tree
        roots = {str(tree): "", str(self.bench.station.suite_copy): self.task.suite}
        return TaskSameness(
            self.task.name, kind, first.count, difference,
            place_of(difference, roots) if difference else "", "",
            tuple(changed_work(first, second)), not_looked_at(second, scheme),
            time.monotonic() - began,
        )  # fmt: skip

    def reads_the_same(self, a: Commit, b: Commit) -> bool:
        """Return True if a trial named nothing in which either commit differs from its own."""
        if self._files(a) != self._files(b):
            return False  # what a trial reads of the suite is its recipe's, not its footprint's
        environment = self.bench.place(a.sha, self.task).environment.fingerprint
        agreeing = self.bench.reuse.agreeing([a, b], self.task, environment)
        return any(t in agreeing[a.sha] and t.whole and not t.failed for t in agreeing[b.sha])

    def _unsigned(self, commit: Commit, signature: Signature) -> TaskSameness:
        if signature.problem:
            text = f"{name_of(commit)} ended after {signature.count} steps: {signature.problem}"
            return TaskSameness(self.task.name, Sameness.FAILED, signature.count, message=text)
        text = f"{_NO_TORCH}: use `celedger check .`"
        return TaskSameness(self.task.name, Sameness.NO_TORCH, message=text)

    def sign(self, commit: Commit, scheme: Scheme) -> Signature:
        self._runs += 1
        folder = self.folder / self.task.name / str(self._runs)
        bench, files = self.bench, self._files(commit)
        if files != bench.setup.suite_files:
            bench = Bench(bench.station.changed(setup=replace(bench.setup, suite_files=files)))
        return sign(bench, commit, self.task, self.seed, folder, scheme)

    def _files(self, commit: Commit) -> Path:
        """Return the snapshot of the suite that is used at a commit; it is named by its content."""
        return self.suite_files.get(commit.sha, self.bench.setup.suite_files)

    def key(self, commit: Commit, scheme: str) -> str:
        """Return what a signature belongs to, beside the tree."""
        environment = self.bench.place(commit.sha, self.task).environment.fingerprint
        probe = child_copy(self.bench.setup.child.parent, folder_of("signature")).name
        parts = {
            "recipe": self.task._replace(files=self._files(commit).name).recipe,
            "environment": environment, "seed": self.seed,
            "device": self.bench.station.device.key, "probe": probe, "scheme": scheme,
        }  # fmt: skip
        return json.dumps(parts, sort_keys=True)

    def _mark(self, commit: Commit) -> Path:
        """Return the file that says why no commit with these scripts can be signed: the training
        would run to its end, or five steps twice, to say so again. May be deleted at any time."""
        words = [word for command in self.task.commands for word in command.template]
        named = [word.removeprefix("{tree}/") for word in words if word.endswith(".py")]
        scripts = self.bench.repository.matching(commit.sha, named)
        text = self.key(commit, json.dumps(scripts, sort_keys=True))
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self.bench.repository.state_dir / "unsigned" / name

    def known_problem(self, commit: Commit) -> str:
        """Return why this commit cannot be signed, "" where that is not known."""
        with suppress(OSError):
            return self._mark(commit).read_text()
        return ""

    def keep_problem(self, commit: Commit, problem: str) -> None:
        with suppress(OSError):
            files.replace(self._mark(commit), problem.encode())

    def stored(self, commit: Commit, scheme: Scheme) -> Signature | None:
        """Return the signature that the ledger has; None for none, and for two that differ."""
        key, task = self.key(commit, str(scheme)), self.task
        for row in repeating(self.ledger.signatures(commit.tree, suite=task.suite, task=task.name)):
            if row.key == key:
                for record in self.ledger.findings(row.commit):
                    if record.document.get("key") == json.loads(key):
                        with suppress(KeyError, TypeError, ValueError):
                            return Signature.of(record.document)
        return None

    def are_known_to_repeat(self, commit: Commit, scheme: Scheme) -> bool:
        """Return True if a signature is stored that compares with this commit's: it was kept only
        because its bits were seen twice, and those of two runs that differ are no more used."""
        key = self.key(commit, str(scheme))
        rows = self.ledger.signatures(suite=self.task.suite, task=self.task.name)
        return any(row.key == key for row in repeating(rows))

    def keep(self, commit: Commit, signature: Signature) -> None:
        """Keep the signature of a commit. A ledger that cannot be written to is no error."""
        started = self.bench.setup.now()
        counts = ", ".join(f"{n:,.0f} {STEP_COUNTS[name]}" for name, n in work(signature).items())
        record = FindingRecord(
            ulid.new(started, Random()), SIGNATURE, self.task.suite, self.task.name, commit.sha, "",
            f"same {quote(self.task.name)}", started, f"a step: {counts}",
            {"key": json.loads(self.key(commit, signature.scheme)), **signature.document()},
        )  # fmt: skip
        with suppress(LedgerError):
            self.ledger.record_commits([commit])
            self.ledger.record_finding(record)


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A commit of a range beside the one before it. `difference`: the first that decides, None for
    equal bits and for the first commit. `work`: of a step, by count, and `changes` by how much it
    is more."""

    commit: Commit
    difference: Difference | None = None
    work: Mapping[str, float] = field(default_factory=dict)
    changes: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""
    numerics: str = ""  # a digest of all that decides

    @property
    def is_more_work(self) -> bool:
        """Return True if a step does more by what may be an incident."""
        more = self.changes.items()
        return any(n > 0 and n >= RISE * (self.work[name] - n) for name, n in more)


def log(
    signatures: Signatures, commits: Iterable[Commit], scheme: Scheme
) -> Iterator[LoggedCommit]:
    """Yield the signatures of successive commits, the oldest first; each is stored. Only the first
    is yielded where that does not repeat its own bits. One that changes nothing that a trial named
    has the signature of the commit before it."""
    before: Signature | None = None
    last: Commit | None = None
    for commit in commits:
        signature = signatures.stored(commit, scheme)
        if signature is None and before and last and signatures.reads_the_same(last, commit):
            signature = before
            signatures.keep(commit, signature)
        if signature is None:
            if problem := signatures.known_problem(commit):
                yield LoggedCommit(commit, problem=problem)
                return
            try:
                if before is None:
                    scheme, signature = signed(partial(signatures.sign, commit), scheme)
                    if not signatures.are_known_to_repeat(commit, scheme):
                        again = signatures.sign(commit, scheme)
                        if first_difference(signature, again) is not None:
                            signatures.keep_problem(commit, _NO_REPEAT)
                            yield LoggedCommit(commit, problem=_NO_REPEAT)
                            return
                else:
                    signature = signatures.sign(commit, scheme)
            except (CannotJudge, RepositoryError) as error:
                yield LoggedCommit(commit, problem=str(error))
                continue
            if signature.problem or not signature.count:
                if not signature.problem:
                    signatures.keep_problem(commit, _NO_TORCH)
                yield LoggedCommit(commit, problem=signature.problem or _NO_TORCH)
                continue
            signatures.keep(commit, signature)
        difference = first_difference(before, signature) if before is not None else None
        counts = changed_work(before, signature) if before is not None else ()
        changes = {name: new - old for name, old, new in counts}
        yield LoggedCommit(commit, difference, work(signature), changes, "", signature.numerics())
        before, last = signature, commit


def quick_or_last(commits: Sequence[Commit], is_quick: Callable[[], bool]) -> Iterator[Commit]:
    """Yield the first and the last of some commits, and the others while that is quick: what takes
    a minute for each of twenty merged commits delays what a job is for."""
    for number, commit in enumerate(commits):
        if number in (0, len(commits) - 1) or is_quick():
            yield commit


class StepSigner:
    """Signs the commits of a bisect, each when it is asked for (equal_commits.py)."""

    def __init__(self, bench: Bench, task: Task) -> None:
        self._signatures = Signatures(bench, bench.ledger, task, task.seeds[0], Path())
        self._asked: deque[Commit] = deque()
        self._scheme = self._signatures.scheme()
        self._rows = log(self._signatures, iter(self._asked.popleft, None), self._scheme)

    def stored(self, commit: Commit) -> dict[str, str]:
        """Return the digests that the ledger holds by tree, which compare with this commit's."""
        task, key = self._signatures.task, self._signatures.key(commit, str(self._scheme))
        rows = self._signatures.ledger.signatures(suite=task.suite, task=task.name)
        return {row.tree: row.numerics for row in repeating(rows) if row.key == key}

    def sign(self, commit: Commit) -> str:
        """Return the digest of what the first steps compute, "" where they cannot be signed. Raises
        CannotJudge where no commit can: without a step of torch, or without bits that repeat."""
        self._asked.append(commit)
        bench = self._signatures.bench
        held = nullcontext() if bench.setup.gate.attended else bench.station.device_held()
        with TemporaryDirectory(prefix="celedger-sign-") as folder, held:
            self._signatures.folder = Path(folder)
            row = next(self._rows)
        if row.problem in (_NO_TORCH, _NO_REPEAT):
            raise CannotJudge(f"{self._signatures.task.name}: {row.problem}")
        return row.numerics


def answers(
    signatures: Iterator[Signatures], a: Commit, b: Commit, scheme: Scheme | None
) -> Iterator[TaskSameness]:
    """Yield the answer of each task. One that cannot be judged is an answer, too."""
    for each in signatures:
        try:
            yield each.compare(a, b, scheme or each.scheme())
        except CannotJudge as error:
            yield TaskSameness(each.task.name, Sameness.FAILED, message=str(error))
