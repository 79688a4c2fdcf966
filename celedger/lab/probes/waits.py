"""Count, by the user's line, what makes the host wait for the device: on CUDA the waits themselves,
on the CPU the reads of a value, which would be waits on a GPU."""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import Tensor, cuda

from .observe import patch
from .stack import Lines, is_library_file

METHODS = ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__", "__repr__")
# On CUDA these wait, too, depending on their arguments.
_CUDA_METHODS = (*METHODS, "to", "nonzero", "masked_select", "__getitem__", "__setitem__")
# torch's warning under set_sync_debug_mode. It leaves out explicit synchronisation.
_WAITED = "called a synchronizing CUDA operation"
OPERATOR = "(operator)"  # in place of a method's name


class TensorReads:
    """Count the reads of a value out of a tensor."""

    _methods: tuple[str, ...] = METHODS

    def __init__(self, lines: Lines) -> None:
        self.counts: dict[tuple[str, int], int] = defaultdict(int)
        self._lines = lines
        self._undo: list[Callable[[], None]] = []
        self._running: list[str] = []  # methods, the outermost first

    def watch(self) -> None:
        for name in self._methods:
            self._replace(Tensor, name, self._called)

    def leave(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _called(self, name: str, frame: FrameType) -> None:
        # Reads by an optimiser do not count as the script's.
        if not is_library_file(frame.f_code.co_filename):
            self.counts[name, self._lines.of(frame)] += 1

    def _replace(self, owner: Any, name: str, called: Callable[[str, FrameType], None]) -> None:
        def begins(*_: Any, **__: Any) -> None:
            self._running.append(name.strip("_"))
            if len(self._running) == 1:  # `float` and printing call `item` in turn
                called(self._running[0], sys._getframe(3))  # who calls the patched method

        def ends(*_: Any, **__: Any) -> None:
            self._running.pop()

        self._undo.append(patch(owner, name, before=begins, after=ends))


class DeviceWaits(TensorReads):
    """Count what waits for the GPU: what torch warns of, and explicit synchronisation."""

    _methods = _CUDA_METHODS  # only to name what torch warns of

    def watch(self) -> None:
        super().watch()
        for owner in (cuda, cuda.Stream, cuda.Event):
            self._replace(owner, "synchronize", super()._called)
        self._before = cuda.get_sync_debug_mode(), warnings.showwarning, warnings.filters[:]
        warnings.filterwarnings("always", message=_WAITED)
        warnings.filterwarnings("ignore", message="Synchronization debug mode")  # is a prototype
        warnings.showwarning = self._warned
        cuda.set_sync_debug_mode("warn")

    def leave(self) -> None:
        mode, warnings.showwarning, warnings.filters[:] = self._before  # type: ignore[index]
        cuda.set_sync_debug_mode(mode)
        super().leave()

    def _called(self, name: str, frame: FrameType) -> None:
        pass

    def _warned(self, message: Any, *where: Any, **more: Any) -> None:
        if not str(message).startswith(_WAITED):
            self._before[1](message, *where, **more)
        elif self._running[:1] != ["synchronize"]:
            method = self._running[0] if self._running else OPERATOR
            self.counts[method, self._lines.of(sys._getframe(1))] += 1
