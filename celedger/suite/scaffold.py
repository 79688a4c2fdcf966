"""The first suite of a repository: the training that was proposed for it, or else a small one that
runs anywhere, to be edited; and which packages the scripts of a suite import.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from celedger.base.errors import explained
from celedger.suite import content
from celedger.suite.propose import TaskProposal

TEMPLATES = Path(__file__).parent / "templates"
_TEMPLATES = ("suite.toml.in", "first.py.in", "first.toml", "steps.toml", "benchmarks.py.in")


def scaffold(
    folder: Path, name: str, python: str = "", proposal: TaskProposal | None = None
) -> list[Path]:
    """Write a runnable suite into a folder, for an interpreter unless it is celedger's own; returns
    the files written. One that is there is left as it is. Raises MachineError where nothing can be
    written."""
    texts = {name: (TEMPLATES / name).read_text(encoding="utf-8") for name in _TEMPLATES}
    suite = texts["suite.toml.in"].replace("@name@", name)
    keys: dict[str, object] = {"python": python}
    if proposal is None:
        files = {"first.py": texts["first.py.in"], "suite.toml": suite + texts["first.toml"]}
    else:
        keys["pythonpath"] = [*proposal.pythonpath] if proposal.pythonpath != (".",) else []
        keys["preload"] = list(proposal.preload)
        steps = texts["steps.toml"] if proposal.has_steps else ""
        files = {"suite.toml": suite + steps + proposal.task}
        if proposal.benchmarks:
            files["benchmarks.py"] = texts["benchmarks.py.in"]
    for key, value in keys.items():
        if value:
            line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
            commented = re.search(rf"(?m)^# {key} = .*?(?=  #)", suite)
            assert commented is not None
            files["suite.toml"] = files["suite.toml"].replace(commented[0], line)
    written = []
    for file, text in files.items():
        target = folder / file
        if os.path.lexists(target):
            continue
        with explained(f"{target} cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        written.append(target)
    return written


# --- which installed packages the scripts of a suite import


def installed_imports(
    folder: Path, roots: Sequence[Path], others: Iterable[Path] = ()
) -> tuple[str, ...]:
    """Return the top-level modules that the scripts of a suite, and these others, cannot do
    without, sorted: not those of Python, of celedger, of the suite, or of the code under test,
    which lies in `roots`. Raises SuiteError where the folder cannot be read."""
    scripts = [*(path for _, path in content.files(folder) if path.suffix == ".py"), *others]
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
