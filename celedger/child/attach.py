"""Attach a probe to a training that a diagnostic run (celedger.trial.diagnostic) starts.

The run sets CELEDGER_PROBE, a JSON object whose `kind` names a module of `celedger_probes` (a copy
of a folder of probes, beside that of `celedger`), and CELEDGER_PROBE_OUT, a folder for what it
writes. Once the training has imported torch (2.5 or later, so on Python 3.9 or later), the module
is imported and its function `attach` called with the object. `early` names a module whose function
`install` is called before the training begins. The script is not changed and need not use celedger.
Standard library only: every Python of the run imports this.
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

# Called with the epoch and the values of what the script reports, for probes to add to.
LISTENERS: list[Callable[[int | None, Mapping[str, object]], object]] = []


def install() -> None:
    """Attach the probe that CELEDGER_PROBE names once torch is imported, and tell the listeners
    what the script reports."""
    options = json.loads(os.environ.get("CELEDGER_PROBE", "{}"))
    if options:
        child.log = _passed_on(child.log)
        _begin_early(options)
        finder = _AfterTorch(options)
        if "torch" in sys.modules:  # in a fork of a launcher
            finder.attach()
        else:
            sys.meta_path.insert(0, finder)


def _begin_early(options: Mapping[str, Any]) -> None:
    """Let a module of the probes begin before the training imports anything."""
    if "early" in options:
        try:
            importlib.import_module(f"celedger_probes.{options['early']}").install(options)
        except Exception as error:
            note_failure(error)


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
        for listener in LISTENERS:
            listener(epoch, values)

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
        sys.meta_path.insert(0, self)  # transformers asks if torch is there, and imports it later
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_attach(module: ModuleType) -> None:
                sys.meta_path.remove(self)
                load(module)
                self.attach()

            spec.loader.exec_module = load_and_attach  # type: ignore[method-assign]
        return spec

    def attach(self) -> None:
        try:
            if sys.modules["torch"].__version__ < "2.5":
                raise RuntimeError("diagnosis follows trainings with torch 2.5 or later")
            module = importlib.import_module(f"celedger_probes.{self.options['kind']}")
            module.attach(self.options)
        except Exception as error:
            note_failure(error)
