"""The units of what celedger's own training loop reports, for suites that do not name one."""

from __future__ import annotations

import re

_BYTES = re.compile(r"peak_memory(_reserved|_fragmented)?|peak_host_memory|device_memory_used")
_SECONDS = re.compile(r"(step_time|latency)_p\d\d|evaluation_time")


def usual_unit(metric: str) -> str:
    """Return the unit of a metric of this name where nobody declared one: "" where it has none."""
    if _BYTES.fullmatch(metric):
        return "B"
    if _SECONDS.fullmatch(metric):
        return "s"
    return "1/s" if metric == "samples_per_second" else ""
