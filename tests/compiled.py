"""Compiles a folder of sources once for all tests of a process.

The program copies and compiles `celedger.child` for each repository. That takes longer than
most scripted trainings, and its sources are the same in every test.
"""

from __future__ import annotations

import compileall
from pathlib import Path
from typing import Any

_REALLY = compileall.compile_dir
_known: dict[object, dict[Path, bytes]] = {}  # sources and options -> compiled files


def _compile_dir(folder: Path, **options: Any) -> Any:
    """Take the place of `compileall.compile_dir`."""
    sources = tuple(
        (str(file.relative_to(folder)), file.read_bytes()) for file in sorted(folder.rglob("*.py"))
    )
    mode = {name: value for name, value in options.items() if name != "stripdir"}
    key = (sources, str(mode))
    if key not in _known:
        success = _REALLY(folder, **options)
        if success:
            files = folder.rglob("*.pyc")
            _known[key] = {file.relative_to(folder): file.read_bytes() for file in files}
        return success
    for name, content in _known[key].items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return True


def compile_once() -> None:
    """Compile the same sources once from now on, in this process and its forks."""
    compileall.compile_dir = _compile_dir
