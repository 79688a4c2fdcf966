"""Decide when a trial need not run. One rule: a commit that differs in nothing that a stored trial
named re-uses its result; in doubt, no re-use. `footprint.py` gathers the paths that a trial named,
compares trees at them, judges those in the user's own folders that belong to no commit, and detects
changes of Python sources without effect; `reusable_results.py` reads and writes the ledger. The
recorder is `system/path_recorder.py`; the import finder that gives it names instead of listings is
`child/import_finder.py`.
"""

from celedger.trial.reuse.footprint import NamedPaths
from celedger.trial.reuse.reusable_results import Reuse, measured

__all__ = ["NamedPaths", "Reuse", "measured"]
