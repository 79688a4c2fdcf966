"""Count the lines and calls of the user's own Python code: exact counts, which no clock disturbs.

`sys.monitoring` (Python 3.12) costs library code nothing; before that it is `sys.settrace`, for the
main thread. Standard library only.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Any

from .stack import is_library_file

_TOOL = "celedger"


class OwnCode:
    """`lines` and `calls` of the user's code so far, and whether they are counted at all: not while
    a debugger or a coverage tool traces."""

    def __init__(self) -> None:
        self.lines = self.calls = 0
        self.is_counted = False

    def start(self) -> None:
        """Count from now on, in the functions that run, too: what a script sets up before is no
        step's, and may be all of its Python."""
        if sys.gettrace() is not None:
            return
        self.is_counted = True
        frame: FrameType | None = sys._getframe(1)
        running = []
        while frame is not None:
            if not is_library_file(frame.f_code.co_filename):
                running.append(frame)
            frame = frame.f_back
        if sys.version_info >= (3, 12):
            self._monitor([frame.f_code for frame in running])
        else:
            sys.settrace(self._called)
            for frame in running:
                frame.f_trace = self._traced
        os.register_at_fork(after_in_child=self._stop)

    def _stop(self) -> None:
        """Count nothing in a loader's worker."""
        if sys.version_info >= (3, 12):
            if self.is_counted:  # functions that ran have events of their own: they call nothing
                sys.monitoring.set_events(self._tool, 0)
                sys.monitoring.register_callback(self._tool, sys.monitoring.events.LINE, None)
        else:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        if is_library_file(frame.f_code.co_filename):
            return None
        self.calls += 1
        return self._traced

    def _traced(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.lines += 1
        return self._traced

    if sys.version_info >= (3, 12):

        def _monitor(self, running: list[CodeType]) -> None:
            monitoring = sys.monitoring
            free = (number for number in range(6) if monitoring.get_tool(number) is None)
            self._tool = next(free, -1)
            if self._tool < 0:
                self.is_counted = False
                return
            monitoring.use_tool_id(self._tool, _TOOL)
            events = monitoring.events
            monitoring.register_callback(self._tool, events.PY_START, self._started)
            monitoring.register_callback(self._tool, events.LINE, self._line)
            monitoring.set_events(self._tool, events.PY_START)
            for code in running:
                monitoring.set_local_events(self._tool, code, events.LINE)

        def _started(self, code: CodeType, _: int) -> Any:
            if is_library_file(code.co_filename):
                return sys.monitoring.DISABLE
            self.calls += 1
            sys.monitoring.set_local_events(self._tool, code, sys.monitoring.events.LINE)
            return None

        def _line(self, code: CodeType, number: int) -> Any:
            self.lines += 1
