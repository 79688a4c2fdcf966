"""Does once, for all tests of a process, what each command of the program does anew.

The program copies and compiles `celedger.child` for each repository. That takes longer than
most scripted trainings, and its sources are the same in every test. It evaluates the options of its
verb, a fifth of what a short command takes, and asks the interpreter of trials what is installed.
"""

from __future__ import annotations

import compileall
import io
import os
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from celedger.base import plugins
from celedger.cli import app
from celedger.system import environment
from celedger.system.devices import CPU

_REALLY = compileall.compile_dir
_known: dict[object, dict[Path, bytes]] = {}  # sources and options -> compiled files
_ask = environment.ask
_answers: dict[str, Any] = {}  # by program, of this interpreter


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


def _ask_once(python: str, code: str, argument: str) -> Any:
    """Take the place of `environment.ask`, for what depends on a folder alone: it is that of a
    test's repository, in which no package lies that the tests run with."""
    if python != sys.executable or not os.path.isdir(argument):  # noqa: PTH112 -- names may be long
        return _ask(python, code, argument)
    if code not in _answers:
        _answers[code] = _ask(python, code, argument)
    return _answers[code]


def compile_once() -> None:
    """Do each of these once from now on, in this process and its forks."""
    compileall.compile_dir = _compile_dir
    typer.main.get_params_from_function = cache(typer.main.get_params_from_function)


def prepare(folder: Path) -> None:
    """Do what a command would do first, for the forks. The folder is anywhere."""
    environment.ask = _ask_once
    environment.describe(sys.executable, device=CPU, threads=1, repo_root=folder)
    plugins.installed(plugins.VERBS)
    with redirect_stdout(io.StringIO()):
        for verb in app.CORE:
            app.run([verb, "--help"])
