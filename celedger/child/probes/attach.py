"""Attach a probe to a training that a diagnostic run (celedger.trial.diagnostic) starts.

The run sets CELEDGER_PROBE, a JSON object whose `kind` names a module of this folder and its
probe (`trace`: TraceProbe), and CELEDGER_PROBE_OUT, a folder. The probe is loaded once the training
has imported torch (2.5 or later, so on Python 3.9 or later). The script is not changed and need not
use celedger. Standard library only: every Python of the run imports this.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from celedger import child

FAILED = "probe-failed.txt"  # in the folder of the run: why a probe stopped


def install() -> None:
    """Attach the probe that CELEDGER_PROBE names once torch is imported, and pass it the script's
    reports."""
    options = json.loads(os.environ.get("CELEDGER_PROBE", "{}"))
    if options:
        child.log = _passed_on(child.log)
        sys.meta_path.insert(0, _AfterTorch(options))


def note_failure(error: Exception) -> None:
    """Write, for the parent process, what failed in a probe."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        Path(os.environ["CELEDGER_PROBE_OUT"], FAILED).write_text(text)
    except (OSError, KeyError):
        print(text, file=sys.stderr)


def _passed_on(log: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(log)
    def logged(epoch: int | None = None, **values: object) -> None:
        log(epoch, **values)
        values.pop("steps", None)
        if "celedger.child.probes.observe" in sys.modules:
            sys.modules["celedger.child.probes.observe"].reported(epoch, values)

    return logged


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as the others do, and has the probe attached when its import is complete."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_attach(module: ModuleType) -> None:
                load(module)
                self._attach()

            spec.loader.exec_module = load_and_attach  # type: ignore[method-assign]
        return spec

    def _attach(self) -> None:
        try:
            if sys.modules["torch"].__version__ < "2.5":
                raise RuntimeError("diagnosis follows trainings with torch 2.5 or later")
            kind = self.options["kind"]
            module, observe = (
                importlib.import_module(f"celedger.child.probes.{name}")
                for name in (kind, "observe")
            )
            probe = getattr(module, f"{kind.capitalize()}Probe")
            observe.attach(probe(self.options))
        except Exception as error:
            note_failure(error)
