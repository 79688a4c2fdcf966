"""Which installed packages the scripts of a suite import. Reads files; runs nothing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from celedger.suite.content import files


def installed_imports(folder: Path, roots: Sequence[Path]) -> tuple[str, ...]:
    """Return the top-level modules that the scripts of a suite cannot do without, sorted: not those
    of Python, of celedger, of the suite, or of the code under test, which lies in `roots`. Raises
    SuiteError where the folder cannot be read."""
    scripts = [path for _, path in files(folder) if path.suffix == ".py"]
    names: set[str] = set()
    for script in scripts:
        with suppress(OSError, ValueError, SyntaxError):  # the training will say so
            names.update(_imported(ast.parse(script.read_bytes())))
    own = {path.stem for path in scripts} | {path.parent.name for path in scripts} | {"celedger"}
    return tuple(
        sorted(
            name
            for name in names - own - sys.stdlib_module_names
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
