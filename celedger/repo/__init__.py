"""The user's repository, read only: revisions and ranges, the DAG; and private checkouts, which
are imported by themselves (`checkouts`): a verb that only reads needs none.

git is asked by `plumbing.py`, one process a question, in an environment without git's own
variables: a hook inherits GIT_DIR, which would outweigh every path. Verbs must answer at once, and
importing GitPython takes a third of the time of `celedger log`. So GitPython reads repository,
commits and diffs only where a command trains anyway (`hunks.py`, for `explain`). It hands on the
variables that it inherits, so nothing is written through it.

Knows nothing of suites, trials or the ledger; the user's work tree, index, HEAD, refs and
configuration are never written.
"""

from __future__ import annotations

from celedger.repo.plumbing import scrubbed
from celedger.repo.repository import History, Repository, spread, tracked_in

__all__ = ["History", "Repository", "scrubbed", "spread", "tracked_in"]
