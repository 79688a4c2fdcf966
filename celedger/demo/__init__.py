"""The example that ships: the repository of a small library whose history has a planted regression
of each kind, as a git bundle, and a ledger of its trials. `scripts/make_example.py` makes both.
Must not know how a history is measured or bisected.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from celedger.base import PACKAGE, files
from celedger.base.errors import UsageError
from celedger.repo.object_store import clone_bundle, refs_below

KINDS = ("quality", "speed", "memory", "crash")
_TRUTH = "refs/planted/"  # the repository's own names of the planted commits, by kind


def bundle() -> Path:
    """Return the file of the example's repository."""
    return _shipped("history.bundle", PACKAGE.parent / "docs" / "example")


def ledger() -> Path:
    """Return the example's ledger, which is not to be written to."""
    return _shipped("ledger.db.example", PACKAGE.parent)


def _shipped(name: str, folder: Path) -> Path:
    """In a wheel a file lies in the package, in an editable install beside it."""
    installed = PACKAGE / "_shipped" / "example" / name
    return installed if installed.is_file() else folder / name


def materialise(path: Path) -> dict[str, str]:
    """Make the repository at `path`, or find it there again; return the hash of each planted
    commit by kind. Raises UsageError where something else is."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        clone_bundle(bundle(), path)
    planted = refs_below(path, _TRUTH) if (path / ".git").exists() else {}
    if sorted(planted) != sorted(KINDS):
        raise UsageError(
            f"{path} is not empty and not the demo", "name another folder, or remove it"
        )
    return {kind: planted[kind] for kind in KINDS}


def unpack_ledger(path: Path) -> None:
    """Copy the example's ledger to `path`. Raises UsageError where a file is."""
    if path.exists():
        raise UsageError(f"{path} is there already", "name another folder, or remove it")
    shutil.copyfile(ledger(), path)
    files.beside(path).mkdir(exist_ok=True)  # else each verb that only reads checks every row again
