"""Reports found in what a training prints, by patterns of its suite."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from celedger.model import EpochReport
from celedger.trial.epochs import Epochs

CHUNK = 1 << 18  # bytes read at once
LONGEST_LINE = 1 << 16  # bytes; the rest of a longer one is not looked at
_LINE_ENDS = re.compile(rb"[\r\n]")  # progress bars return the carriage instead of feeding a line
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # colours stand between a name and its number


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
        found: list[EpochReport] = []
        while piece := self._piece():
            *lines, self._tail = _LINE_ENDS.split(self._tail + piece)
            self._tail = self._tail[:LONGEST_LINE]
            found += [report for line in lines for report in self._line(line)]
            if not end:
                break
        if end:
            found += [*self._line(self._tail), *self._epochs.flush()]
            self._tail = b""
        return found

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
        said: dict[str, float] = {}
        for pattern in self._patterns:
            if match := pattern.search(text):
                for name, word in match.groupdict().items():
                    try:
                        if word is not None:
                            said[name] = float(word)
                    except ValueError:
                        self.rubbish += 1
        if not said:
            return []
        epoch = said.pop("epoch", None)
        return self._epochs.put(epoch, said)
