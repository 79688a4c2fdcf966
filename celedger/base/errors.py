"""The tree of exceptions, each with its exit status.

Every error carries the cause in one sentence and, where there is one, the next command
to type. The CLI prints both on one line of stderr; nothing below the CLI prints.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class Status(IntEnum):
    """Exit statuses: `git bisect run celedger check` reads 0 good, 1 bad, 125 skip, >127 abort."""

    GOOD = 0
    BAD = 1
    CANNOT_JUDGE = 125
    FAILED = 128
    USAGE = 129
    INTERRUPTED = 130
    CLOSED_PIPE = 141


TYPED = 12
"""Digits of a hash in a command: enough for a large repository."""


def command(verb: str, *words: str, **options: str | None) -> str:
    """Return a command for a person to type, in backquotes and quoted for a shell: its words, then
    the options that have a value."""
    typed = [word for name, value in options.items() if value for word in (f"--{name}", value)]
    return f"`{shlex.join(['celedger', verb, *words, *typed])}`"


class CeledgerError(Exception):
    """An expected failure: `cause` is one sentence, `hint` the next command or action."""

    status: Status = Status.FAILED

    def __init__(self, cause: str, hint: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.cause} ({self.hint})" if self.hint else self.cause


class UsageError(CeledgerError):
    """The command line is invalid: bad option, bad range, unknown task or metric."""

    status = Status.USAGE


class RepositoryError(CeledgerError):
    """Git could not give what was asked: no repository, no commits, a shallow history."""


class UnknownRevision(UsageError):
    """A revision or range that git cannot resolve."""


class SuiteError(UsageError):
    """A suite file is missing, malformed, or names something that does not exist."""


class LedgerError(CeledgerError):
    """The ledger cannot be opened, read or written: corrupt, foreign, too new, read-only, full."""


class LedgerDamaged(LedgerError):
    """The ledger is not as celedger wrote it."""


class LedgerGone(LedgerError):
    """The ledger is not where it was: deleted, renamed, replaced, its disk gone."""


class MachineError(CeledgerError):
    """The machine refused: no such interpreter, no such device, disk full."""


class CannotJudge(CeledgerError):
    """The question is sound, but what was measured does not answer it."""

    status = Status.CANNOT_JUDGE


@contextmanager
def explained(
    cause: str, hint: str = "", kind: type[CeledgerError] = MachineError
) -> Iterator[None]:
    """Raise an error of this kind, with the system's reason, where the body raises OSError."""
    try:
        yield
    except OSError as error:
        raise kind(f"{cause}: {error.strerror}", hint) from error
