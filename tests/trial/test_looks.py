"""Folders that only Python's import system looked at: which of their entries count."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from conftest import PERMIT

import celedger
from celedger.ledger import Ledger
from celedger.ledger.closures import _marks, _sought
from celedger.model import Footprint
from celedger.repo import Repository
from celedger.repo.closures import Contents, Objects
from celedger.system import process
from celedger.trial.closure import Observed
from tests.conftest import SUITE, Project, git, make_project
from tests.trial.test_closures import trained
from tests.trial.test_imports import PYTHONS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recording is Linux's")

FILES = {
    "pkg/__init__.py": "", "pkg/core.py": "X = 1\n", "pkg/sub/__init__.py": "", "ns/part.py": "",
    "docs/a": "", "README": "",
}  # fmt: skip
USUAL = """\
import json, pkg.core, ns.part
try: import fast
except ImportError: pass
try: from pkg import quick
except ImportError: pass
"""
HARMLESS = (
    "LICENSE", "unused.py", "scripts/one.py", "pkg/unused.py", "pkg/notes.txt", "ns/other.py",
    "Json.py", "jsons.py", "json_.py", ".gitignore", "pkg/Core.py", "docs/b", "core.py",
    "pkg/fast.py", "empty/__init__.py", "pkg/sub/new.py", "xjson/a",
)  # fmt: skip
HARMFUL = (
    "json.py", "json/__init__.py", "json/x", "json.so", "json.pyc", "fast.py", "fast.abi3.so",
    "fast/x", "pkg.py", "pkg.so", "pkg/core/__init__.py", "pkg/core.so", "pkg/core.pyc",
    "pkg/__init__.so", "pkg/__init__.abi3.so", "pkg/quick.py", "pkg/quick/x", "ns.py",
    "ns/__init__.py", "ns/__init__.pyc", "ns/part/__init__.py", "ns/part.so", "sitecustomize.py",
    "usercustomize.py", "sitecustomize/__init__.py", "encodings.py", "site.py",
    "new.dist-info/METADATA", "New.EGG-INFO", "new.egg-link",
)  # fmt: skip


@pytest.fixture(scope="module", params=range(2))
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """This one and a newer one, in an environment without lines of code in .pth files."""
    if request.param >= len(PYTHONS):
        pytest.skip("there is no newer Python")
    return environment(PYTHONS[request.param], tmp_path_factory.mktemp("python"))


def environment(python: str, place: Path) -> str:
    subprocess.run([python, "-m", "venv", "--without-pip", str(place)], check=True)
    return str(place / "bin" / "python")


class World:
    """A tree, and others that a commit could have in its place."""

    def __init__(self, place: Path) -> None:
        self.project = make_project(place / "tree")
        self.project.commit("start", FILES)
        self.root, self.home = self.project.root, place / "home"
        self.home.mkdir()
        shutil.copyfile(
            Path(celedger.__file__).parent / "child" / "importing.py",
            self.home / "sitecustomize.py",
        )
        self.objects = Objects(Repository.open(self.root))
        self._file = git(self.root, "hash-object", "-w", "README")

    @cache  # noqa: B019
    def tree(self, *changes: str) -> str:
        """With files of these names, without those that have a minus before, and with those
        executable that have a plus."""
        modes = {"-": "0", "+": "100755"}
        rows = "".join(
            f"{modes.get(name[0], '100644')} {self._file}\t{name.lstrip('-+')}\n"
            for name in changes
        )
        env = {**os.environ, "GIT_INDEX_FILE": str(self.home / "index")}

        def run(*words: str, text: str | None = None) -> str:
            done = subprocess.run(
                ["git", *words], cwd=self.root, env=env, input=text, text=True, check=True,
                stdout=subprocess.PIPE,
            )  # fmt: skip
            return done.stdout.strip()

        run("read-tree", "HEAD")
        run("update-index", "--index-info", text=rows)
        return run("write-tree")


class Looked:
    """What a programme looked at in the tree of a world."""

    def __init__(self, world: World, place: Path, code: str, python: str) -> None:
        (place / "main.py").write_text(code)
        env = {
            "PATH": os.environ["PATH"], "PYTHONPATH": f"{world.root}:{world.home}",
            "TREE": str(world.root), "CELEDGER_SOURCES": str(world.root),
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        log, reads = place / "log", place / "reads"
        done = process.run(
            [python, str(place / "main.py")], cwd=world.root, env=env, log=log, permit=PERMIT,
            reads=process.Reads(world.root, reads), timeout=120,
        )  # fmt: skip
        assert done.ok, log.read_text()
        observed = Observed()
        observed.take_in(reads)
        assert not observed.unknown
        sought = observed.sought(world.objects, world.tree())
        self.footprint = Footprint(tuple(sorted(observed.paths)), sought=sought)
        self._world, self._contents = world, Contents(world.objects, self.footprint)

    def counts(self, *changes: str) -> bool:
        """Whether a tree with these changes is another one."""
        trees = self._world.tree(), self._world.tree(*changes)
        return len({*self._contents.of(trees).values()}) > 1


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def test_what_an_import_could_find_counts_and_nothing_else(
    world: World, tmp_path: Path, python: str
) -> None:
    looked = Looked(world, tmp_path, USUAL, python)
    assert [name for name in HARMLESS if looked.counts(name)] == []
    assert [name for name in HARMFUL if not looked.counts(name)] == []
    assert looked.counts("-pkg/core.py", "pkg/Core.py")
    assert looked.counts("+pkg/core.py")
    assert looked.counts("-ns/part.py")  # and with it the folder
    # As in a long range, in which differences are asked for first.
    trees = [world.tree(), *map(world.tree, (*HARMLESS, *HARMFUL)), world.tree("-ns/part.py")]
    several = Contents(Objects(Repository.open(world.root)), looked.footprint).of(trees)
    assert several == {
        tree: Contents(world.objects, looked.footprint).of([tree])[tree] for tree in trees
    }


def test_a_ledger_keeps_what_was_sought(tmp_path: Path) -> None:
    sought = ((b"", (b"", b"json")), (b"a/b", ()), (b"c", (b"x",)))
    for paths in ((), (b"",), (b"a.py", b"b")):
        footprint = Footprint(paths, sought=sought)
        packed = b"\0".join((*paths, *_marks(footprint))).split(b"\0")
        assert _sought(word for word in packed if b"//" in word) == sought


CHILD = "import subprocess, sys; subprocess.run([sys.executable, {}], check=True)"
SPAWN = """\
import multiprocessing as m
if __name__ == "__main__":
    p = m.get_context("spawn").Process(target=print)
    p.start(); p.join()
"""


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.path.realpath('pkg/none'); os.path.realpath(os.environ['TREE'])",
        "import os; os.chdir('docs'); os.chdir(os.environ['TREE']); os.system('readlink $TREE')",
        "import pathlib, pkg.core as c; pathlib.Path(c.__file__).resolve().parents[1] / 'x'",
        "import importlib.metadata as m\ntry: m.version('none')\nexcept m.PackageNotFoundError: 1",
        "import os\nif os.fork() == 0: import pkg.core; os._exit(0)\nos.wait()",
        "import threading as t; x = t.Thread(target=__import__, args=('pkg.core',)); x.start()",
        "import runpy; runpy.run_module('pkg.core')",
        CHILD.format("'-c', 'import pkg.core'"), CHILD.format("'-m', 'pkg.core'"),
        CHILD.format("'-I', '-c', ''"), SPAWN,
    ],
)  # fmt: skip
def test_who_asks_no_more_than_an_import_does_not_list(
    world: World, tmp_path: Path, python: str, code: str
) -> None:
    looked = Looked(world, tmp_path, code, python)
    assert not looked.counts("unused.py", "LICENSE", "scripts/one.py", "pkg/unused.py")
    assert looked.counts("sitecustomize.py")
    assert looked.counts("pkg.so") == ("pkg.core" in code)


# A call that fails begins no programme; another interpreter in the same thread is none.
FAILED = """\
try: os.execv("/none", ["x"])
except OSError: os.listdir(TREE)
try: import _interpreters as other
except ImportError: import _xxsubinterpreters as other
other.create()
"""
HOOK = """\
import os, sys
from importlib.machinery import FileFinder, SourceFileLoader
{}
sys.path_importer_cache.clear()
try: import unused
except ImportError: pass
"""


@pytest.mark.parametrize(
    "code",
    [
        "os.listdir('.')", "os.listdir(TREE)", "os.stat(TREE)", "os.stat('.')", "os.lstat(TREE)",
        "os.path.isdir(TREE)", "os.path.exists(TREE)", "list(os.scandir(TREE))",
        "os.chdir('pkg/..')", "__import__('glob').glob('*')", "os.system('ls > /dev/null')",
        "list(__import__('pkgutil').iter_modules([TREE]))", "os.system('test -d $TREE')",
        "list(__import__('pkgutil').walk_packages([TREE]))", "os.access(TREE, 0)",
        "list(__import__('pathlib').Path(TREE).iterdir())", "os.path.getmtime(TREE)",
        "os.makedirs(TREE, exist_ok=True)", "os.open(TREE, os.O_PATH)", "os.stat('pkg/..')",
        CHILD.format("'-S', '-c', ''"), CHILD.format("'-Sc', 'import site; site.main()'"),
        "os.system('cd docs; cd ..; PYTHONPATH=$TREE/docs/.. ' + sys.executable + ' -c pass')",
        "os.environ['LD_PRELOAD'] = ''; os.system(sys.executable + ' -c pass')",
        "os.lstat, old = lambda *a, **k: old(*a, **k), os.lstat; os.path.realpath(TREE)",
        "os.statvfs(TREE)", "os.system(sys.executable + ' -W error::plug.W -c pass')", FAILED,
        HOOK.format("class F(FileFinder): pass\nsys.path_hooks[:0] = [lambda p: F(p)]"),
        HOOK.format(
            "sys.path_hooks.insert(0, FileFinder.path_hook((SourceFileLoader, ['_v2.py'])))"
        ),
        "os.listdir('pkg/../.')",
        "sys.path[:0] = [TREE + '/docs/..']; __import__('csv')",
        "try: __import__('x\\0y')\nexcept Exception: pass",  # what was sought cannot be said
    ],
)  # fmt: skip
def test_who_may_have_listed_a_folder_counts_what_is_new_in_it(
    world: World, tmp_path: Path, code: str
) -> None:
    head = "import os, sys; TREE = os.environ['TREE']\n"
    looked = Looked(world, tmp_path, head + code, sys.executable)
    assert looked.counts("unused.py")
    assert looked.counts("scripts/one.py")


# --- through the whole


SCRIPT = """\
import code
from celedger.child import log
import model, pkg.core
try: import fast
except ImportError: fast = None
log(epoch=0, val_loss=1.0 if fast is None else 2.0)
"""
MORE = {"LICENSE": "MIT\n", "unused.py": "1\n", "scripts/one.py": "1\n", "pkg/unused.py": "1\n"}


def small(place: Path, script: str, python: str, preload: str = "") -> Project:
    suite = SUITE.replace("seeds = [0, 1]", "seeds = [0]")
    suite = suite.replace('name = "tiny"\n', f'name = "tiny"\npython = "{python}"\n{preload}', 1)
    project = make_project(place / "p", suite, {"fit.py": script})
    project.commit("one", {"model.py": "X = 1\n", "pkg/__init__.py": "", "pkg/core.py": ""})
    said = project.run("run", "HEAD")
    assert said.status == 0, said.err
    project.commit("more", MORE)
    return project


@pytest.mark.parametrize("preload", ["", 'preload = "code"\n'])
def test_new_files_that_nobody_imports_are_derived(
    tmp_path: Path, python: str, preload: str
) -> None:
    project = small(tmp_path, SCRIPT, python, preload)
    assert "derived" in project.run("run", "HEAD").err
    assert trained(project) == 1
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        assert ("warm_duration" in ledger.trials()[0].summaries) == bool(preload)
    # What a launcher imported early is sought in each tree, too.
    for count, name in enumerate(("fast.py", "codeop.py"), 2):
        project.commit(name, {name: ""})
        said = project.run("run", "HEAD")
        assert trained(project) == count, said


def test_who_may_ask_a_finder_for_its_listing_trains_anew(tmp_path: Path) -> None:
    script = SCRIPT.replace("log(", "import sys; sys.path_importer_cache; log(")
    project = small(tmp_path, script, sys.executable)
    project.run("run", "HEAD")
    assert trained(project) == 2


def test_a_helper_of_nobodys_may_ask_finders_what_they_listed(tmp_path: Path) -> None:
    helper = "import sys\ndef names(tree): return sys.path_importer_cache[tree]._path_cache\n"
    (tmp_path / "helper.py").write_text(helper)
    script = f"import os, sys\nfrom celedger.child import log\nsys.path.append({str(tmp_path)!r})\n"
    script += "try: import none\nexcept ImportError: import helper\n"
    script += "log(epoch=0, val_loss=len(helper.names(os.getcwd())))\n"
    suite = SUITE.replace("seeds = [0, 1]", "")
    project = make_project(tmp_path / "p", suite, {"fit.py": script})
    for name in ("one.py", "two.py"):
        project.commit(name, {name: ""})
        assert project.run("run", "HEAD").status == 0
    assert trained(project) == 2
