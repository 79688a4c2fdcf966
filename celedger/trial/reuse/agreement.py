"""Whether trees agree at a footprint: the differences that git tells, and what of these counts."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Sequence

from celedger.model import Footprint
from celedger.repo.differences import FOLDER, NOTHING, SUBMODULE, Differences, TreeChange, TreeEntry
from celedger.repo.filters import ATTRIBUTES, attributes_above


class Agreement:
    """One footprint, held against trees.

    Of what was opened counts all: a file's mode and content, a folder's entries with their modes.
    Of what was only looked at a file counts as well, a folder by being there; so do the folders
    on the way, and git's attributes in these, by which it writes files otherwise. Inputs of a
    build count wherever a pattern matches.
    """

    def __init__(self, differences: Differences, footprint: Footprint) -> None:
        self._differences, self._inputs = differences, footprint.inputs
        self._listed = frozenset(footprint.opened)
        paths = {*footprint.opened, *footprint.looked}
        attributes = attributes_above(paths)
        self._named = paths | attributes | {path.rpartition(b"/")[0] for path in attributes}
        self._sums: dict[str, int] = {}

    def sums(self, trees: Sequence[str]) -> dict[str, int]:
        """Return a number for each tree, equal where two trees agree. Raises RepositoryError.

        It is the sum of the hashes of all entries that count, less that of the first tree that
        was ever asked for: a difference between two trees adds what is new and takes away what
        was there.
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
        """Return the differences between two trees that count, the inputs of a build left out."""
        return [
            change
            for change in self._differences.between([(one, other)])[one, other]
            if self._weight(change.path, change.new) != self._weight(change.path, change.old)
        ]

    def _weight(self, path: bytes, entry: TreeEntry, matched: Collection[bytes] = ()) -> int:
        """Return what of an entry counts as a hash of 256 bits, 0 for nothing."""
        folder, _, name = path.rpartition(b"/")
        if entry.mode == NOTHING:
            return 0
        if (
            path in matched
            or (path in self._named and entry.mode != FOLDER)
            # A pattern may match below a submodule, and attributes be above what it matches.
            or (self._inputs and (entry.mode == SUBMODULE or name == ATTRIBUTES))
        ):
            counts = b"%s %s" % entry
        elif path in self._named or folder in self._listed:
            counts = entry.mode
        else:
            return 0
        return int.from_bytes(hashlib.sha256(b"%s\0%s" % (path, counts)).digest(), "big")
