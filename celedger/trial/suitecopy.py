"""What `{suite}` is to the trainings of one command: a copy of the suite that nobody else uses. A
training may write beside its script (a cache, a download); the next one must not meet that.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from celedger.errors import MachineError
from celedger.repo.leftovers import Key, delete, key_of


class SuiteCopy:
    """A copy at `path` of a suite's snapshot."""

    def __init__(self, snapshot: Path, path: Path) -> None:
        self.path = path
        self._snapshot = snapshot
        self._as_laid: dict[Path, Key] = {}
        self._settled: dict[Path, Key] = {}

    def lay(self) -> None:
        """Make it what the snapshot is, and nothing else. Raises MachineError where it cannot be
        written."""
        if self._as_laid and self._keys() == self._as_laid:
            return
        try:
            delete(self.path)
            shutil.copytree(self._snapshot, self.path)
        except OSError as error:
            raise MachineError(f"{self.path} cannot be written: {error.strerror}") from error
        self._as_laid = self._keys()

    def settle(self) -> None:
        """Remember what is there: a build may have written something, too."""
        self._settled = self._keys()

    @property
    def settled(self) -> bool:
        """Whether that is what is there now."""
        return bool(self._settled) and self._keys() == self._settled

    def _keys(self) -> dict[Path, Key]:
        found = {}
        for path in (self.path, *self.path.rglob("*")):
            with suppress(OSError):
                found[path] = key_of(path)
        return found
