"""The communication of a distributed training in the events of torch.profiler: how long collectives
run, beside which of it the training computes, and how long it waits for them. Pure: must not know
of steps' hooks or of other ranks. Times are in µs, as the profiler's.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Span = tuple[float, float]

_KERNELS = ("ncclDevKernel", "ncclKernel")  # the second before NCCL 2.19
_THREADS = ("gloo:", "mpi:", "ucc:")  # ranges of the threads that run the others' collectives
_CALLS = ("c10d::", "_c10d_functional::", "c10d_functional::")  # they start one, or wait for it
_WRAPPER = "autograd::engine::evaluate_function: "
_USER_SCOPE = 7  # of a range around code, as record_function makes it


class Communication:
    """Spans of `running` collectives, and of the time that the training `waited` for them.

    On a GPU both are kernels: every moment in which only collectives run is waited for. On a CPU a
    thread that waits goes on when a collective ends: of each gap between operators the part up to
    the last such end is waited for. A gap in which none ends is Python's.
    """

    def __init__(self, events: Sequence[Any]) -> None:
        device = [e for e in events if str(e.device_type).endswith("CUDA")]
        self.on_device = any(_is_kernel(e) for e in device)
        if self.on_device:
            ranges = {e.name for e in events if e.scope == _USER_SCOPE}  # a GPU has copies of them
            device = [e for e in device if e.name not in ranges]
            self.running = union(_span(e) for e in device if _is_kernel(e))
            computing = union(_span(e) for e in device if not _is_kernel(e))
            waiting = _gaps(computing)
        else:
            collectives = [_span(e) for e in events if e.is_async and e.name.startswith(_THREADS)]
            self.running = union(collectives)
            computing = union(_computing(events) if collectives else [])
            waiting = _awaited(computing, sorted(end for _, end in collectives))
        self.waited = _overlap(waiting, self.running)
        self.overlapped = _overlap(self.running, computing)


def length(spans: Iterable[Span], start: float = -math.inf, end: float = math.inf) -> float:
    """Return the seconds of disjoint spans between two moments."""
    return sum(max(min(b, end) - max(a, start), 0.0) for a, b in spans) / 1e6


def _span(event: Any) -> Span:
    return event.time_range.start, event.time_range.end


def _is_kernel(event: Any) -> bool:
    return str(event.name).startswith(_KERNELS)


def _computing(events: Sequence[Any]) -> Iterator[Span]:
    """Yield the spans of the CPU's operators, without those that start a collective inside or wait
    for one."""
    callers: set[int] = set()
    for event in events:
        if event.name.startswith(_CALLS):
            while event is not None and id(event) not in callers:
                callers.add(id(event))
                event = event.cpu_parent
    for event in events:
        wraps = event.is_async or event.scope == _USER_SCOPE or event.name.startswith(_WRAPPER)
        if not wraps and event.name != "[memory]" and id(event) not in callers:
            yield _span(event)


def union(spans: Iterable[Span]) -> list[Span]:
    """Return disjoint spans in order."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _overlap(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return the parts of spans in which one of the disjoint others runs."""
    parts = []
    for begin, end in spans:
        for other in others[max(bisect_right(others, (begin, end)) - 1, 0) :]:
            if other[0] >= end:
                break
            if other[1] > begin:
                parts.append((max(other[0], begin), min(other[1], end)))
    return parts


def _gaps(busy: Sequence[Span]) -> Iterator[Span]:
    """Yield the spans before, between and after others."""
    edges = [-math.inf, *(edge for span in busy for edge in span), math.inf]
    yield from zip(edges[::2], edges[1::2])  # noqa: B905 (Python 3.8)


def _awaited(computing: Sequence[Span], ends: Sequence[float]) -> Iterator[Span]:
    """Yield each gap between operators, up to the last end of a collective in it."""
    for start, end in _gaps(computing):
        last = bisect_right(ends, end) - 1
        if last >= bisect_left(ends, start) and ends[last] > start:
            yield start, ends[last]
