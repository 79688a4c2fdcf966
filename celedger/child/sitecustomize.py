"""What Python runs first in a diagnostic run: `celedger.trial.diagnostic` puts a copy of this file
in front of PYTHONPATH. Arranges for the probe, then runs the `sitecustomize` it stands before."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _next() -> None:
    path = [entry for entry in sys.path if Path(entry).resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


try:
    from celedger.child.probes.observe import install
except ImportError:
    pass  # another program that this training starts, with a PYTHONPATH of its own
else:
    install()
_next()
