"""The first suite of a repository: one small training that runs anywhere, to be edited; and which
packages the scripts of a suite import. Must not know what the repository contains.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from celedger.base.errors import explained
from celedger.suite.content import files

TEMPLATES = Path(__file__).parent / "templates"
_PYTHON = '# python = "python"      #'  # in the template


def scaffold(folder: Path, name: str, python: str = "") -> list[Path]:
    """Write a runnable suite into a folder, for an interpreter unless it is celedger's own; returns
    the files written. One that is there is left as it is. Raises MachineError where nothing can be
    written."""
    written = []
    for template in sorted(TEMPLATES.glob("*.in")):
        target = folder / template.stem
        if os.path.lexists(target):
            continue
        text = template.read_text(encoding="utf-8").replace("@name@", name)
        if python:
            text = text.replace(_PYTHON, f"python = {json.dumps(python, ensure_ascii=False)}  #")
        with explained(f"{target} cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        written.append(target)
    return written


# --- which installed packages the scripts of a suite import


def installed_imports(folder: Path, roots: Sequence[Path]) -> tuple[str, ...]:
    """Return the top-level modules that the scripts of a suite cannot do without, sorted: not those
    of Python, of celedger, of the suite, or of the code under test, which lies in `roots`. Raises
    SuiteError where the folder cannot be read."""
    scripts = [path for _, path in files(folder) if path.suffix == ".py"]
    names: set[str] = set()
    for script in scripts:
        with suppress(OSError, ValueError, SyntaxError):  # the training will say so
            names.update(_imported(ast.parse(script.read_bytes())))
    local_modules = (
        {path.stem for path in scripts} | {path.parent.name for path in scripts} | {"celedger"}
    )
    return tuple(
        sorted(
            name
            for name in names - local_modules - sys.stdlib_module_names
            if not any((root / name).is_dir() or (root / f"{name}.py").exists() for root in roots)
        )
    )


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the top-level names that code imports, but for those that it tries or chooses."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield child.module.partition(".")[0]
        elif not isinstance(child, ast.Try | ast.If):
            yield from _imported(child)
