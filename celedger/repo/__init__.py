"""The user's repository, read only: revisions and ranges, the DAG; and private checkouts, which
are imported by themselves (`checkouts`): a verb that only reads needs none.

Everything git is asked goes through gitpython, in an environment without git's own variables.
Knows nothing of suites, trials or the ledger; the user's work tree, index, HEAD, refs and
configuration are never written.
"""

from __future__ import annotations

from celedger.repo.plumbing import scrubbed
from celedger.repo.repository import History, Repository, spread, tracked_in

__all__ = ["History", "Repository", "scrubbed", "spread", "tracked_in"]
