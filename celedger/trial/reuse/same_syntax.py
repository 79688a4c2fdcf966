"""Detect changes of Python sources without effect: comments, docstrings, format. A commit with only
such changes is an unlikely first bad one. This is evidence and no proof: a wrong hint costs a
trial.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Iterable, Sequence

from celedger.base.model import Commit
from celedger.repo.differences import Differences
from celedger.trial.reuse.footprint import Agreement

_MOST = 4 << 20  # bytes of sources that are parsed for one range: two seconds

_Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class SyntaxTrees:
    def __init__(self, differences: Differences) -> None:
        self._differences = differences
        self._digests: dict[bytes, bytes] = {}  # of blobs

    def alike(
        self, pairs: Iterable[tuple[Commit, Commit]], agreements: Sequence[Agreement]
    ) -> set[tuple[str, str]]:
        """Return those of these pairs (by hashes) whose differences that count, by any of the
        agreements, are only in Python sources with equal syntax trees. Raises RepositoryError."""
        sources: dict[tuple[str, str], set[tuple[bytes, bytes]]] = {}
        pairs = list(pairs)
        self._differences.between((one.tree, other.tree) for one, other in pairs)  # all in one call
        for one, other in pairs:
            changes = {c for each in agreements for c in each.touching(one.tree, other.tree)}
            if changes and all(
                change.path.endswith(b".py") and change.old.mode == change.new.mode
                for change in changes
            ):
                sources[one.sha, other.sha] = {(c.old.sha, c.new.sha) for c in changes}
        blobs = dict.fromkeys(
            blob for rows in sources.values() for row in rows for blob in row
            if blob not in self._digests
        )  # fmt: skip
        texts = self._differences.texts(blobs, _MOST)
        self._digests |= {blob: _digest(text) for blob, text in texts.items()}
        digests = self._digests
        return {
            both
            for both, rows in sources.items()
            if all(old in digests and digests[old] == digests.get(new) for old, new in rows)
        }


def _digest(source: bytes) -> bytes:
    """Return a hash of the syntax tree without docstrings, or of the source if it has no syntax
    tree."""
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
