"""How a task that does not call `log` reports: patterns for what it prints, a folder of event
files. Readers of values in suite.toml; what they mean is celedger.trial's.
"""

from __future__ import annotations

import re

from celedger.suite import commands
from celedger.suite.toml_table import shown, string, strings

_METRIC = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
EPOCH = "epoch"  # the group that tells which epoch the others belong to


def patterns(value: object) -> tuple[str, ...]:
    """Regular expressions with a named group for each metric. Raises ValueError."""
    patterns = strings(value)
    names: list[str] = []
    for text in patterns:
        try:
            groups = re.compile(text).groupindex
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{shown(text)} is no regular expression: {error}") from error
        if not groups:
            raise ValueError(f"{shown(text)} has no named group such as (?P<val_loss>\\S+)")
        names += groups
    unfit = next((name for name in names if not _METRIC.fullmatch(name)), None)
    if unfit is not None:
        raise ValueError(f"names {unfit!r}; a metric is up to 64 letters, digits and _")
    if set(names) == {EPOCH}:
        raise ValueError("names no metric, only the epoch")
    return patterns


def event_folder(value: object) -> str:
    """Where event files will lie: below {out} or {tree}."""
    text = string(value)
    commands.check((text,), ("out", "tree"))
    if not text.startswith(("{out}", "{tree}")) or ".." in text.split("/"):
        raise ValueError(f'is {shown(value)}, not a folder such as "{{out}}" or "{{tree}}/runs"')
    return text
