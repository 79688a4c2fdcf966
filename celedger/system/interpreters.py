"""The Python that a repository's trainings use: where it is, and what it can import. Must not know
what a suite is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from celedger.system.environment import ask

_FOLDERS = (".venv", "venv")
_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX")

# Runs in that Python, which may be older than ours (3.8). What a module prints on import is no
# answer.
_IMPORT = r"""
import sys
sys.path = [entry for entry in sys.path if entry]
import json
answer, sys.stdout = sys.stdout, sys.stderr
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        __import__(name)
    except BaseException as error:
        failed[name] = "%s: %s" % (type(error).__name__, error)
json.dump(failed, answer)
"""


def of_repository(root: Path, env: Mapping[str, str]) -> str:
    """Return the interpreter of the environment that belongs to a repository, or else is active: as
    a path from its root where it lies there. "" where there is none but celedger's own."""
    folders = [root / name for name in _FOLDERS]
    folders += [Path(env[name]) for name in _VARIABLES if env.get(name)]
    for folder in folders:
        python = folder / "bin" / "python"
        if os.access(python, os.X_OK) and folder.is_absolute():
            if folder.resolve() == Path(sys.prefix).resolve():
                return ""
            return str(python.relative_to(root) if python.is_relative_to(root) else python)
    return ""


def failed_imports(python: str, modules: Iterable[str]) -> dict[str, str]:
    """Import modules in an interpreter. Return why, by name, for those that fail. Raises
    MachineError where it does not answer."""
    failed: dict[str, str] = ask(python, _IMPORT, json.dumps(list(modules)))
    return failed
