"""What Tab offers from the ledger. It imports no NumPy, prints nothing and never fails: a shell has
no place for a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from celedger.ledger import Ledger

Completer = Callable[[typer.Context, str], list[str]]


def _completer(names: Callable[[Ledger], Iterable[str]]) -> Completer:
    """Return what offers those names of the ledger that begin as the typed word does."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from pathlib import Path

        from celedger.base.errors import CeledgerError
        from celedger.cli.session import Options, find
        from celedger.ledger import Ledger

        typed = context.find_root().params
        with suppress(CeledgerError, OSError):
            # A line that is not complete is not parsed: these are strings.
            given = Path(typed["ledger"]) if typed.get("ledger") else None
            _, settings = find(Options(Path(typed.get("repository") or "."), given))
            with Ledger.open(settings.ledger, readonly=True) as ledger:
                return sorted({n for n in names(ledger) if n.startswith(incomplete)})
        return []

    return complete


suites = _completer(lambda ledger: (task.suite for task in ledger.tasks()))
tasks = _completer(lambda ledger: (task.name for task in ledger.tasks()))
metrics = _completer(lambda ledger: (metric.name for metric in ledger.metrics()))
incidents = _completer(lambda ledger: (row.incident for row in ledger.said_last()))
