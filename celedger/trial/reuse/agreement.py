"""Compare trees at a footprint: the differences that git reports, and those of them that count."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Sequence

from celedger.model import Footprint
from celedger.repo.differences import FOLDER, NOTHING, SUBMODULE, Differences, TreeChange, TreeEntry
from celedger.repo.filters import ATTRIBUTES, attributes_above


class Agreement:
    """One footprint, compared with trees.

    For opened paths everything counts: a file's mode and content, a folder's entries with their
    modes. For a path that was only looked for a file counts in the same way, a folder only by its
    existence. The folders on the way count too, and git's attributes in them, because they decide
    how files are written. Inputs of a build count wherever a pattern matches.
    """

    def __init__(self, differences: Differences, footprint: Footprint) -> None:
        self._differences, self._inputs = differences, footprint.inputs
        self._listed = frozenset(footprint.opened)
        paths = {*footprint.opened, *footprint.looked}
        attributes = attributes_above(paths)
        self._named = paths | attributes | {path.rpartition(b"/")[0] for path in attributes}
        self._sums: dict[str, int] = {}

    def sums(self, trees: Sequence[str]) -> dict[str, int]:
        """Return a number for each tree, equal if two trees agree. Raises RepositoryError.

        It is the sum of the hashes of all entries that count, less that of the first tree ever
        requested: a difference between two trees adds the new entries and subtracts the old ones.
        """
        chain = [*itertools.islice(self._sums, 1), *trees]
        self._sums |= dict.fromkeys(chain[:1], 0)
        steps = [pair for pair in itertools.pairwise(chain) if pair[1] not in self._sums]
        changes = self._differences.between(steps)
        inputs = self._differences.between(steps, self._inputs) if self._inputs else {}
        for one, other in steps:
            matched = {change.path for change in inputs.get((one, other), ())}
            self._sums[other] = self._sums[one] + sum(
                self._weight(change.path, change.new, matched)
                - self._weight(change.path, change.old, matched)
                for change in changes[one, other]
            )
        return {tree: self._sums[tree] for tree in trees}

    def touching(self, one: str, other: str) -> list[TreeChange]:
        """Return the differences between two trees that count, without the inputs of a build."""
        return [
            change
            for change in self._differences.between([(one, other)])[one, other]
            if self._weight(change.path, change.new) != self._weight(change.path, change.old)
        ]

    def _weight(self, path: bytes, entry: TreeEntry, matched: Collection[bytes] = ()) -> int:
        """Return the counting part of an entry as a hash of 256 bits, 0 for nothing."""
        folder, _, name = path.rpartition(b"/")
        if entry.mode == NOTHING:
            return 0
        if (
            path in matched
            or (path in self._named and entry.mode != FOLDER)
            # A pattern may match below a submodule, and attributes may be above a match.
            or (self._inputs and (entry.mode == SUBMODULE or name == ATTRIBUTES))
        ):
            counts = b"%s %s" % entry
        elif path in self._named or folder in self._listed:
            counts = entry.mode
        else:
            return 0
        return int.from_bytes(hashlib.sha256(b"%s\0%s" % (path, counts)).digest(), "big")
