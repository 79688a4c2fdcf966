"""How a training reports that does not call `log`: what its task says of it, as something that a
runner can follow. Reading again from the beginning gives the same reports, so what a dead runner
did not take in is not lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, Self

from celedger.model import EpochReport
from celedger.trial.eventfiles import EventFiles
from celedger.trial.printed import Printed


class Source(Protocol):
    @property
    def rubbish(self) -> int:
        """How much looked like a report and was none."""
        ...

    def read(self, *, end: bool) -> list[EpochReport]:
        """What is new, at most a piece of it; at the `end` all, the last epoch included."""
        ...

    def afresh(self) -> Self:
        """The same source, at its beginning."""
        ...


def of(
    definition: Mapping[str, object], *, log: Path, out: Path, tree: Path | None = None
) -> list[Source]:
    """The sources that a task's definition names. Without a `tree` (its checkout is gone) those
    that lie in it are left out."""
    found: list[Source] = []
    patterns = definition.get("pattern")
    if isinstance(patterns, list):
        found.append(Printed(log, patterns))
    where = definition.get("tensorboard")
    if isinstance(where, str) and (tree is not None or "{tree}" not in where):
        place = where.replace("{out}", str(out)).replace("{tree}", str(tree))
        # The folder {out} is the trial's own; elsewhere others have left theirs.
        within = out if "{out}" in where else tree
        found.append(EventFiles(Path(place), new="{out}" not in where, within=within))
    return found
