"""celedger: a git-hook and SQLite benchmark ledger that bisects training regressions.

This file is imported inside the trainings under test, by whatever interpreter they use:
it stays standard library only, and cheap.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from celedger.api import open as open  # noqa: A004


def __getattr__(name: str) -> object:
    """Import what a notebook asks for when it does."""
    if name == "open":
        from celedger import api

        return api.open
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
