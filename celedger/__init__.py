"""celedger: a git-hook and SQLite benchmark ledger that bisects training regressions.

This file is imported inside the trainings under test, by whatever interpreter they use:
it stays standard library only, and cheap.
"""

__version__ = "0.1.0"
