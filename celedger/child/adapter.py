"""The common part of the adapters: frameworks log at any time, celedger records whole epochs. The
last of several values in an epoch counts; all of them are its series per step, if the task records
those. Standard library only."""

from __future__ import annotations

import functools
import math
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from celedger.child import log, notebook, wants_steps


class Gathered:
    """The current epoch. It is reported when the next one begins, or by `flush`."""

    def __init__(self) -> None:
        self._epoch = 0
        self._last: dict[str, object] = {}
        self._series: dict[str, list[object]] = {}
        self._reported: set[str] = set()  # of this epoch

    def put(self, epoch: int, values: Mapping[str, object]) -> None:
        """Add the values of a log call. Values that are not numbers are ignored."""
        if epoch != self._epoch:
            self.flush()
            self._epoch, self._reported = epoch, set()
        for name, value in values.items():
            if isinstance(value, (int, float)) or hasattr(value, "item"):
                self._last[name] = value
                if wants_steps():
                    self._series.setdefault(name, []).append(value)

    def flush(self) -> None:
        report = {n: value for n, value in self._last.items() if n not in self._reported}
        self._reported.update(report)
        steps = {name: series for name, series in self._series.items() if len(series) > 1}
        if steps:
            report["steps"] = steps
        self._last, self._series = {}, {}
        if report:
            log(epoch=self._epoch, **report)


def run_script(trainer: Any, adapt: Callable[[Any, float], object]) -> None:
    """Run the script that stands on the command line after the module, and call `adapt` with every
    trainer of this class that it makes and the most epochs: `--epochs N` before the script."""
    epochs = math.inf
    if sys.argv[1] == "--epochs":
        epochs = int(sys.argv[2])
        del sys.argv[1:3]
    init = trainer.__init__

    @functools.wraps(init)
    def made(self: Any, *values: Any, **options: Any) -> None:
        init(self, *values, **options)
        adapt(self, epochs)

    trainer.__init__ = made
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
    try:
        if sys.argv[0].endswith(".ipynb"):
            notebook.run(sys.argv[0])
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as error:
        trace = error.__traceback__  # begins here and in `runpy`; show the script's part
        while trace and trace.tb_next and trace.tb_frame.f_code.co_filename != sys.argv[0]:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise SystemExit(1) from None
