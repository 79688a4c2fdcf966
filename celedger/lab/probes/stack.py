"""Find the user's lines that are running: the sites of calls, and samples of a thread's stack.
Standard library only; must not know of steps or torch."""

from __future__ import annotations

import functools
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

# Seconds between two samples. A sample takes about 20 µs, and makes a thread that runs pure Python
# release the interpreter lock once: 0.5 % of its time. A stall of 20 ms gets four samples.
PERIOD = 0.005

_LIBRARIES = tuple(
    {str(Path(path)) for name, path in sysconfig.get_paths().items() if "lib" in name}
    | {str(Path(__file__).parents[1]), "<"}  # "<frozen importlib>", "<string>"
)
_DEEPEST = 200  # frames; deeper recursion is named by its innermost frame
_SITE_FRAMES = 5
_CALLERS = 20  # frames of the user's in a sample


@functools.cache
def is_library_file(name: str) -> bool:
    """Return True if code belongs to Python, an installed package or celedger, not to the user."""
    return name.startswith(_LIBRARIES) or "site-packages" in name


class Lines:
    """File, function and line of frames, each stored once and named by its number."""

    def __init__(self) -> None:
        self.table: list[tuple[str, str, int]] = []
        self._numbers: dict[tuple[CodeType, int], int] = {}

    def of(self, frame: FrameType | None) -> int:
        """Return the innermost frame of the user's; the innermost of all if there is none. -1 for
        no frame."""
        return self.stack(frame)[0]

    def stack(self, frame: FrameType | None, most: int = 1) -> list[int]:
        """Return `most` frames of the user's, the innermost first: at least one, as `of` does."""
        at: FrameType | None = frame
        numbers: list[int] = []
        for _ in range(_DEEPEST):
            if at is None or len(numbers) == most:
                break
            if not is_library_file(at.f_code.co_filename):
                numbers.append(self._number(at))
            at = at.f_back
        return numbers or [self._number(at or frame)]

    def _number(self, frame: FrameType | None) -> int:
        if frame is None:
            return -1
        key = frame.f_code, frame.f_lineno
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.table)
            self.table.append((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno or 0))
        return number


class CallSites:
    """The innermost frames of a call that are neither torch's nor ours, a number for each site; of
    other libraries' only the innermost, however deep they call one another. `write` is called for a
    site that was not met before, with file, line and function of each."""

    def __init__(self, write: Callable[[int, list[Any]], None]) -> None:
        self._write = write
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._files: dict[str, str] = {}  # as they are printed; empty: torch's, or celedger's
        self._homes = [str(Path(__file__).parents[1])]

    def here(self, without: object | None = None) -> int:
        """Return the site of the current call. `without`: leave out the frames of this object's
        methods that call it first (the constructor, for an object under construction)."""
        frames: list[tuple[str, int, str]] = []
        frame: Any = sys._getframe(1)
        leading = without is not None
        while frame is not None and len(frames) < _SITE_FRAMES:
            code: CodeType = frame.f_code
            file = self._file(code.co_filename)
            if file and not (frames and is_library_file(code.co_filename)):
                is_method = leading and code.co_argcount and (
                    frame.f_locals.get(code.co_varnames[0]) is without
                )  # fmt: skip
                if not is_method:
                    leading = False
                    frames.append((file, frame.f_lineno, code.co_name))
            frame = frame.f_back
        key = tuple(frames)
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._write(self._numbers[key], frames)
        return self._numbers[key]

    def _file(self, name: str) -> str:
        if name not in self._files:
            if "torch" in sys.modules and len(self._homes) == 1:
                self._homes.append(str(Path(sys.modules["torch"].__file__ or "").parent))
            foreign = name.startswith("<") or any(name.startswith(home) for home in self._homes)
            self._files[name] = "" if foreign else str(Path.cwd() / name)  # it may be relative
        return self._files[name]


class StackSampler(threading.Thread):
    """Sample one thread, into `columns`: the last edge (`edge` returns it), the numbers of a line
    and of its callers', and the seconds since the previous sample. Code that holds the interpreter
    lock delays the next sample, which then finds it still there, or just left, and counts for all
    that time."""

    def __init__(self, ident: int, lines: Lines, edge: Callable[[], int]) -> None:
        super().__init__(name="celedger sampler", daemon=True)
        self.columns: dict[str, list[Any]] = {"edge": [], "line": [], "callers": [], "seconds": []}
        self._watched, self._lines, self._edge = ident, lines, edge
        self._done = threading.Event()

    def run(self) -> None:
        last = time.perf_counter()
        while not self._done.wait(PERIOD):
            frame = sys._current_frames().get(self._watched)
            edge, now = self._edge(), time.perf_counter()
            line, *callers = self._lines.stack(frame, _CALLERS)
            row = (edge, line, callers, round(now - last, 6))
            for column, value in zip(self.columns.values(), row):  # noqa: B905 (Python 3.8)
                column.append(value)
            last = now
            del frame  # else its locals live until the next sample

    def finish(self) -> None:
        self._done.set()
        if self.is_alive():
            self.join()
