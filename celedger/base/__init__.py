"""The foundation of every room: the nouns, errors and settings, how text and files are written, and
which celedger this is."""

from pathlib import Path

VERSION = "0.1.0"
PACKAGE = Path(__file__).parent.parent
