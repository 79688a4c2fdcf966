"""When a trial need not run. One rule: a commit that differs in nothing that a stored trial named
re-uses its result; in doubt, no re-use.

`named.py` gathers what a trial named, `outside.py` judges what of it is the user's own and no
commit's, `agreement.py` holds a footprint against trees, `results.py` asks and writes the ledger,
`prior.py` tells changes of Python sources that only look like changes. The recorder is
`system/reads.py`; the import finder by which it sees names in place of listings is
`child/finder.py`.
"""

from celedger.trial.reuse.named import NamedPaths
from celedger.trial.reuse.results import Reuse, measured

__all__ = ["NamedPaths", "Reuse", "measured"]
