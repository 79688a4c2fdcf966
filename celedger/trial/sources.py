"""How a training reports that does not call `log`: what its task says of it, as something that a
runner can follow. Reading again from the beginning gives the same reports, so what a dead runner
did not take in is not lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, Self

from celedger.model import EpochReport
from celedger.trial.eventfiles import EventFiles
from celedger.trial.protocol import Epochs

CHUNK = 1 << 18  # bytes read at once
LONGEST_LINE = 1 << 16  # bytes; the rest of a longer one is not looked at
_LINE_ENDS = re.compile(rb"[\r\n]")  # progress bars return the carriage instead of feeding a line
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # colours stand between a name and its number


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


class Printed:
    """Lines of a log, searched by patterns whose named groups are metrics (and `epoch`)."""

    def __init__(self, log: Path, patterns: Iterable[str]) -> None:
        self.rubbish = 0
        self._log = log
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._offset = 0
        self._tail = b""
        self._epochs = Epochs()

    def afresh(self) -> Printed:
        return Printed(self._log, [pattern.pattern for pattern in self._patterns])

    def read(self, *, end: bool) -> list[EpochReport]:
        results: list[EpochReport] = []
        while piece := self._piece():
            *lines, self._tail = _LINE_ENDS.split(self._tail + piece)
            self._tail = self._tail[:LONGEST_LINE]
            results += [report for line in lines for report in self._line(line)]
            if not end:
                break
        if end:
            results += [*self._line(self._tail), *self._epochs.flush()]
            self._tail = b""
        return results

    def _piece(self) -> bytes:
        try:
            with self._log.open("rb") as file:
                # A log that outgrew its limit was cut: go on at its end, which is most likely
                # where we were.
                self._offset = min(self._offset, file.seek(0, 2))
                file.seek(self._offset)
                piece = file.read(CHUNK)
        except FileNotFoundError:
            return b""
        self._offset += len(piece)
        return piece

    def _line(self, line: bytes) -> list[EpochReport]:
        if not line:
            return []
        text = _ESCAPES.sub("", line[:LONGEST_LINE].decode("utf-8", "replace"))
        values: dict[str, float] = {}
        for pattern in self._patterns:
            if match := pattern.search(text):
                for name, word in match.groupdict().items():
                    try:
                        if word is not None:
                            values[name] = float(word)
                    except ValueError:
                        self.rubbish += 1
        if not values:
            return []
        epoch = values.pop("epoch", None)
        return self._epochs.put(epoch, values)


def of(
    definition: Mapping[str, object], *, log: Path, out: Path, tree: Path | None = None
) -> list[Source]:
    """The sources that a task's definition names. Without a `tree` (its checkout is gone) those
    that lie in it are left out."""
    results: list[Source] = []
    patterns = definition.get("pattern")
    if isinstance(patterns, list):
        results.append(Printed(log, patterns))
    where = definition.get("tensorboard")
    if isinstance(where, str) and (tree is not None or "{tree}" not in where):
        folder = where.replace("{out}", str(out)).replace("{tree}", str(tree))
        # The folder {out} is the trial's own; elsewhere others have left theirs.
        within = out if "{out}" in where else tree
        results.append(EventFiles(Path(folder), new="{out}" not in where, within=within))
    return results
