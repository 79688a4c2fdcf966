"""The import finder that looks names up: it finds what Python's own finds, and lists no folder."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import matrix_after

import celedger
from celedger.base.model import Footprint
from celedger.repo import Repository
from celedger.repo.tree_files import Differences
from celedger.system import process
from celedger.trial.reuse import FootprintComparison, NamedPaths
from tests.conftest import git, make_project

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recording is Linux's")

FINDER = Path(celedger.__file__).parent / "child" / "import_finder.py"
VERSIONS = ("3.8", "3.10", "3.12", "3.13")
PYTHONS = [
    sys.executable,
    *(
        str(python)
        for version in VERSIONS
        for python in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))[:1]
    ),
]
FILES = {
    "pkg/__init__.py": "", "pkg/core.py": "X = 1\n", "pkg/sub/__init__.py": "", "ns/part.py": "",
    "docs/a": "", "README": "",
}  # fmt: skip
USUAL = """\
import json, pkg.core, ns.part
try: from pkg import quick
except ImportError: pass
"""
HARMLESS = (
    "pkg/unused.py", "pkg/notes.txt", "ns/other.py", "pkg/Core.py", "docs/b", "pkg/fast.py",
    "pkg/sub/new.py", "pkg/new/deep/file.py",
)  # fmt: skip
HARMFUL = (
    "pkg/core/__init__.py", "pkg/core/x", "pkg/core.so", "pkg/__init__.so", "pkg/__init__.abi3.so",
    "pkg/quick.py", "pkg/quick/x", "pkg/quick.pyc", "ns/__init__.py", "ns/__init__.pyc",
    "ns/part/__init__.py", "ns/part.so",
    # Import roots are listed before any code of ours runs.
    "json.py", "sitecustomize.py", "LICENSE",
)  # fmt: skip


class World:
    """A tree, and others that a commit could have in its place."""

    def __init__(self, place: Path) -> None:
        project = make_project(place / "tree")
        project.commit("start", FILES)
        self.root, self.home = project.root, place / "home"
        self.home.mkdir()
        shutil.copyfile(FINDER, self.home / "sitecustomize.py")
        self.differences = Differences(Repository.open(self.root))

    def footprint(self, place: Path, code: str, python: str = sys.executable) -> Footprint:
        """Return what a programme names of the tree."""
        (place / "main.py").write_text(code)
        env = {
            "PATH": os.environ["PATH"], "PYTHONPATH": f"{self.root}:{self.home}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        log, reads = place / "log", place / "reads"
        done = process.run(
            [python, str(place / "main.py")], cwd=self.root, env=env, log=log,
            reads=process.Reads(self.root, reads), timeout=120,
        )  # fmt: skip
        assert done.ok, log.read_text()
        named = NamedPaths()
        named.take_in(reads)
        inside, _ = named.split(self.root)
        assert not inside.unknown
        return Footprint(tuple(inside.opened), tuple(inside.looked))

    def counts(self, footprint: Footprint, *added: str) -> bool:
        """Return True if a tree with these files added is another one."""
        blob = git(self.root, "hash-object", "-w", "README")
        env = {"GIT_INDEX_FILE": str(self.home / "index")}
        git(self.root, "read-tree", "HEAD", env=env)
        for name in added:
            words = ("--add", "--replace", "--cacheinfo", f"100644,{blob},{name}")
            git(self.root, "update-index", *words, env=env)
        trees = [git(self.root, "rev-parse", "HEAD^{tree}"), git(self.root, "write-tree", env=env)]
        return len({*FootprintComparison(self.differences, footprint).sums(trees).values()}) > 1


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("python", matrix_after(1, PYTHONS))
def test_only_what_an_import_could_find_counts(world: World, tmp_path: Path, python: str) -> None:
    footprint = world.footprint(tmp_path, USUAL, python)
    assert [name for name in HARMLESS if world.counts(footprint, name)] == []
    assert [name for name in HARMFUL if not world.counts(footprint, name)] == []


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.listdir('pkg')", "import glob; glob.glob('pkg/*')",
        "import pkgutil, pkg; list(pkgutil.iter_modules(pkg.__path__))",
        "import subprocess, sys; subprocess.run([sys.executable, '-Sc', 'import pkg.core'])",
        "import os; os.chdir('pkg'); os.listdir('.')", "import os; os.rmdir('pkg')",
    ],
)  # fmt: skip
def test_who_may_have_listed_a_folder_counts_what_is_new_in_it(
    world: World, tmp_path: Path, code: str
) -> None:
    footprint = world.footprint(tmp_path, f"try: exec({code!r})\nexcept OSError: pass")
    assert world.counts(footprint, "pkg/unused.py")


ASKS = """\
import importlib, importlib.util, os, pkgutil, sys
names = ["pkg", "pkg.core", "pkg.sub", "pkg.none", "ns", "ns.part", "none", "compiled", "closed",
         "closed.x", "empty", "both", "zipped", "x\\0y", "pkg.x\\0y", "link", "broken", "Pkg"]
for name in names:
    try:
        spec = importlib.util.find_spec(name)
        print(name, spec and (spec.origin, type(spec.loader).__name__, spec.cached,
              spec.submodule_search_locations and list(spec.submodule_search_locations)))
        print(importlib.import_module(name).__name__)
    except BaseException as error:
        print(name, type(error).__name__, error)
with open("late.py", "w"): pass
importlib.invalidate_caches()
print(importlib.import_module("late").__file__)
os.unlink("late.py")
print(sorted(m.name for m in pkgutil.iter_modules(["."])), sorted(os.listdir("pkg")))
"""


@pytest.mark.parametrize("python", matrix_after(1, PYTHONS))
def test_it_finds_what_the_finder_of_python_finds(tmp_path: Path, python: str) -> None:
    tree, homes = tmp_path / "tree", [tmp_path / "bare", tmp_path / "ours"]
    for name, text in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    for folder in (*homes, tree / "closed", tree / "empty", tree / "both"):
        folder.mkdir()
    shutil.copyfile(FINDER, homes[1] / "sitecustomize.py")
    (tree / "both.py").write_text("")
    (tree / "gone.py").write_text("")
    py_compile.compile(str(tree / "gone.py"), str(tree / "compiled.pyc"))
    (tree / "link.py").symlink_to("pkg/core.py")
    (tree / "broken.py").symlink_to("nowhere")
    shutil.make_archive(str(tmp_path / "deps"), "zip", tree, "pkg")
    said = []
    for home in homes:
        env = {
            "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": f"{tree}:{tmp_path / 'deps.zip'}:{home}",
        }  # fmt: skip
        done = subprocess.run(
            [python, "-c", ASKS], cwd=tree, env=env, capture_output=True, text=True, check=True
        )
        said.append((done.stdout, done.stderr))
    assert said[0] == said[1]
    assert "late.py" in said[0][0]


def test_an_environment_keeps_its_own_sitecustomize(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    shutil.copyfile(FINDER, home / "sitecustomize.py")
    (other / "sitecustomize.py").write_text("import builtins; builtins.MINE = __name__\n")
    code = "import sys; print(MINE, sys.modules[MINE].__file__)"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{home}:{other}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == f"sitecustomize {other}/sitecustomize.py\n"
