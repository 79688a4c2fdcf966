"""Changes of Python sources that only look like changes: comments, docstrings, format. A commit of
such is an unlikely first bad one. That is a hint and no proof: a wrong one costs a trial.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Iterable

from celedger.repo.differences import NOTHING, Differences, Pair
from celedger.trial.reuse.agreement import Agreement

_MOST = 4 << 20  # bytes of sources that are parsed for one range: two seconds

_Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class SyntaxTrees:
    def __init__(self, differences: Differences) -> None:
        self._differences = differences
        self._digests: dict[bytes, bytes] = {}  # of blobs

    def alike(self, pairs: Iterable[Pair], agreements: Iterable[Agreement]) -> set[Pair]:
        """Return those of these pairs of trees that differ, where any of the agreements says that
        it counts, in Python sources alone, and there in nothing that a syntax tree shows."""
        agreements, sources = list(agreements), dict[Pair, set[tuple[bytes, bytes]]]()
        for pair in pairs:
            changes = {change for agreement in agreements for change in agreement.touching(*pair)}
            if changes and all(
                change.path.endswith(b".py") and change.old.mode == change.new.mode != NOTHING
                for change in changes
            ):
                sources[pair] = {(change.old.sha, change.new.sha) for change in changes}
        blobs = dict.fromkeys(
            blob for both in sources.values() for row in both for blob in row
            if blob not in self._digests
        )  # fmt: skip
        texts = self._differences.texts(blobs, _MOST)
        self._digests |= {blob: _digest(text) for blob, text in texts.items()}
        known = self._digests
        return {
            pair
            for pair, both in sources.items()
            if all(one in known and known[one] == known.get(other) for one, other in both)
        }


def _digest(source: bytes) -> bytes:
    """Return a hash of the syntax tree without docstrings, of the source where it has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, _Scope) and ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
        source = ast.dump(tree).encode(errors="surrogatepass")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return hashlib.sha256(source).digest()
