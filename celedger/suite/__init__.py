"""A suite: `suite.toml` and its scripts, read into tasks, found by name, copied by content.

Knows what a task is made of; never runs one, and knows no git and no ledger.
"""

from __future__ import annotations

from celedger.suite.loading import Suite, find, load, snapshot, suites_in
from celedger.suite.toml_table import build_lines, command_lines

__all__ = [
    "Suite", "build_lines", "command_lines", "find", "load", "snapshot", "suites_in",
]  # fmt: skip
