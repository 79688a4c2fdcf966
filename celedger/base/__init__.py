"""The foundation of every room: the nouns, errors and settings, how text and files are written, and
which celedger this is."""

from pathlib import Path

VERSION = "0.1.0"
PACKAGE = Path(__file__).parent.parent


def shipped(name: str) -> Path:
    """Return a file or folder that comes with celedger: in a wheel it lies in the package, in an
    editable install beside it."""
    installed = PACKAGE / "_shipped" / name
    return installed if installed.exists() else PACKAGE.parent / name
