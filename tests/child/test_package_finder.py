"""The import finder in folders of installed packages: it finds and loads what Python's own does,
and asks the system less."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from conftest import matrix_after

from celedger.system import path_recorder
from tests.child.test_import_finder import FINDER, PYTHONS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the recorder is Linux's")

# ruff: noqa: E501 (programs)

ASKS = """\
import importlib, importlib.util, inspect, os, pkgutil, runpy, sys
folder = sys.argv[1]
names = ["pkg", "pkg.core", "pkg.sub", "pkg.none", "ns", "ns.part", "none", "compiled", "both", "stale",
         "link", "broken", "x\\0y", "folder", "array", "broken_ext"]
for name in names:
    try:
        spec = importlib.util.find_spec(name)
        print(name, spec and (spec.origin, type(spec.loader).__name__, spec.cached,
              spec.submodule_search_locations and list(spec.submodule_search_locations)))
        module = importlib.import_module(name)
        print(module.__name__, module.__file__, getattr(module, "X", None), module.__loader__ == spec.loader)
    except BaseException as error:
        print(name, type(error).__name__, error)
def code(text, path):
    return compile(text, path, "exec")
print(inspect.getmodule(code("", folder + "/pkg/core.py")))
print(inspect.getmodule(code("", folder + "/pkg/unused.py")))
print(sorted(i for i in inspect.modulesbyfile.items() if i[0].startswith(folder)))
print(sorted(i for i in inspect._filesbymodname.items() if str(i[1]).startswith(folder)))
print(importlib.import_module("linked.core"))
with open(folder + "/late.py", "w"): pass
os.utime(folder, (1, 1))
print(importlib.import_module("late").__file__)
with open(folder + "/pkg/later.py", "w") as file: file.write("import warnings; warnings.warn('w', stacklevel=2)")
importlib.invalidate_caches()
print(importlib.import_module("pkg.later").__file__)
os.unlink(folder + "/pkg/unused.py")
try: import pkg.unused
except ImportError as error: print(error)
with open(folder + "/pkg/core.py", "w") as file: file.write("X = 'another'")
print(importlib.reload(sys.modules["pkg.core"]).X)
print(sorted(m.name for m in pkgutil.iter_modules([folder])))
print(pkgutil.get_data("pkg", "data"))
runpy.run_module("pkg.main", run_name="__main__", alter_sys=True)
"""
FILES = {
    "pkg/__init__.py": "", "pkg/core.py": "X = 1\n", "pkg/sub/__init__.py": "", "pkg/unused.py": "",
    "pkg/main.py": "import inspect, sys\nif __name__ == '__main__': print(inspect.getmodule(sys._getframe()))\n",
    "pkg/data": "x" * 600_000,
    "ns/part.py": "", "both/__init__.py": "X = 'package'\n", "both.py": "X = 'module'\n",
    "folder/x": "", "folder.py": "X = 'beside a folder'\n", "broken_ext.so": "", "stale.py": "X = 2\n",
}  # fmt: skip


def _packages(place: Path) -> Path:
    folder = place / "lib" / "site-packages"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "gone.py").write_text("")
    py_compile.compile(str(folder / "gone.py"), str(folder / "compiled.pyc"))
    (folder / "link.py").symlink_to("pkg/main.py")
    (folder / "broken.py").symlink_to("nowhere")
    (folder / "linked").symlink_to("pkg")
    for name in ("core", "sub/__init__", "both"):
        py_compile.compile(str(folder / (name if "both" in name else f"pkg/{name}")) + ".py")
    return folder


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("python", matrix_after(1, PYTHONS))
def test_it_imports_what_python_imports(tmp_path: Path, python: str, linked: bool) -> None:
    said = []
    for own in (False, True):
        place = tmp_path / "place"
        folder = _packages(place)
        if linked:
            (place / "other").symlink_to("lib")
            folder = place / "other" / "site-packages"
        home = tmp_path / f"home{own}"
        home.mkdir()
        if own:
            shutil.copyfile(FINDER, home / "sitecustomize.py")
        env = {
            "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": f"{folder}:{place / 'none.zip'}:{home}",
        }  # fmt: skip
        done = subprocess.run(
            [python, "-c", ASKS, str(folder)], cwd=tmp_path, env=env, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        said.append([*done.stdout.splitlines(), *done.stderr.splitlines()])
        shutil.rmtree(place)
    assert said[0] == said[1]
    assert "another" in said[0]


def _recorded(place: Path, code: str) -> tuple[Counter[str], path_recorder.Record]:
    """Return how often a Python asked the recorder, by system call, and what was recorded."""
    calls: Counter[str] = Counter()
    watch = path_recorder.Watch([str(place / "tree")], [str(place / "lib/site-packages")])
    take = watch.record.take

    def counted(fd: int, row: tuple[int, ...]) -> None:
        calls[watch.record._names.get(row[3], "")] += 1
        take(fd, row)

    watch.record.take = counted  # type: ignore[method-assign]
    if (child := os.fork()) == 0:
        try:
            env = {
                "PYTHONPATH": f"{place / 'lib/site-packages'}:{place / 'home'}",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            watch.begin()
            os.execve(sys.executable, [sys.executable, "-c", code], env)
        finally:
            os._exit(1)
    serving = threading.Thread(target=watch.serve, daemon=True)
    serving.start()
    assert os.waitpid(child, 0)[1] == 0
    serving.join(60)
    assert not watch.record.unknown
    return calls, watch.record


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of forty modules beside the finder."""
    package, home = tmp_path / "lib/site-packages/pkg", tmp_path / "home"
    package.mkdir(parents=True)
    home.mkdir()
    shutil.copyfile(FINDER, home / "sitecustomize.py")
    for name in ("__init__", *(f"m{i}" for i in range(40))):
        (package / f"{name}.py").write_text("")
        py_compile.compile(str(package / f"{name}.py"))
    return package


def test_a_module_of_a_package_costs_two_calls(tmp_path: Path, package: Path) -> None:
    """One that looks at its source, one that opens its byte-code; none for `inspect.getmodule`,
    which looks at each part of the path of each module."""
    code = "import inspect, pkg.m0; {}; inspect.getmodule(compile('', '', 'exec'))"
    few, _ = _recorded(tmp_path, code.format("0"))
    many, _ = _recorded(
        tmp_path, code.format(f"import {', '.join(f'pkg.m{i}' for i in range(1, 40))}")
    )
    assert many - few == Counter({"newfstatat": 39, "openat": 39})


def test_a_distribution_that_is_only_looked_for_is_not_imported(
    tmp_path: Path, package: Path
) -> None:
    """The environment of a trial names what was opened."""
    _, record = _recorded(tmp_path, "import importlib.util; importlib.util.find_spec('pkg')")
    assert not record.opened
    _, record = _recorded(tmp_path, "import pkg")
    assert record.opened == {os.fsencode(package)}
