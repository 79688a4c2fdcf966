"""Looks at a thread's Python stack every few milliseconds, from another thread, and says which
frames are the user's. Standard library only; must not know of steps or torch.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

__all__ = ["PERIOD", "Places", "Sampler", "is_library", "is_library_file"]

# Seconds between two looks. A look takes about 20 µs, and makes a thread that runs pure Python
# give up the interpreter lock once: 0.5 % of its time. A stall of 20 ms is seen four times.
PERIOD = 0.005

_LIBRARIES = tuple(
    {str(Path(path)) for name, path in sysconfig.get_paths().items() if "lib" in name}
    | {str(Path(__file__).parent), "<"}  # "<frozen importlib>", "<string>"
)
_DEEPEST = 200  # frames; deeper recursion is named by its innermost frame

_known: dict[CodeType, bool] = {}


def is_library(code: CodeType) -> bool:
    """Whether code belongs to Python, an installed package or celedger, not to the user."""
    found = _known.get(code)
    if found is None:
        found = _known[code] = is_library_file(code.co_filename)
    return found


def is_library_file(name: str) -> bool:
    return name.startswith(_LIBRARIES) or "site-packages" in name


class Places:
    """File, function and line of frames, each kept once and named by its number."""

    def __init__(self) -> None:
        self.table: list[tuple[str, str, int]] = []
        self._numbers: dict[tuple[CodeType, int], int] = {}

    def of(self, frame: FrameType | None) -> int:
        """The innermost frame of the user's; the innermost of all where there is none. -1 for no
        frame."""
        if frame is None:
            return -1
        at: FrameType | None = frame
        for _ in range(_DEEPEST):
            if at is None or not is_library(at.f_code):
                break
            at = at.f_back
        at = at or frame
        key = at.f_code, at.f_lineno
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.table)
            self.table.append((at.f_code.co_filename, at.f_code.co_name, at.f_lineno or 0))
        return number


class Sampler(threading.Thread):
    """Samples of one thread: for each what `label` says at that moment, a place's number, and the
    seconds since the sample before. Code that keeps the interpreter lock delays the next sample,
    which then finds it still there, or just left, and counts for all that time."""

    def __init__(self, ident: int, places: Places, label: Callable[[], int]) -> None:
        super().__init__(name="celedger sampler", daemon=True)
        self.labels, self.found, self.seconds = array("q"), array("q"), array("d")
        self._watched, self._places, self._label = ident, places, label
        self._done = threading.Event()

    def run(self) -> None:
        last = time.perf_counter()
        while not self._done.wait(PERIOD):
            frame = sys._current_frames().get(self._watched)
            label, now = self._label(), time.perf_counter()
            self.found.append(self._places.of(frame))
            self.labels.append(label)
            self.seconds.append(now - last)
            last = now
            del frame  # else its locals live until the next look

    def finish(self) -> None:
        self._done.set()
        self.join()
