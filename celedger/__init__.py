"""celedger: a git-hook and SQLite benchmark ledger that bisects training regressions.

This file is imported inside the trainings under test, by whatever interpreter they use:
it stays standard library only, and cheap.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from celedger.base import VERSION as __version__  # noqa: F401, N811
    from celedger.ledger.arrays import open as open  # noqa: A004


def __getattr__(name: str) -> object:
    """Import what a notebook asks for when it does."""
    if name == "open":
        from celedger.ledger import arrays

        return arrays.open
    if name == "__version__":
        from celedger.base import VERSION

        return VERSION
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
