"""Every test: a home of its own, no git variables, and locks that other tests do not hold."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from compiled import compile_once
from forked import PROGRAM
from hypothesis import settings

from celedger.base import plugins

# The same examples in every run: a test that fails, fails again. `make test-all` takes the profile
# "long"; `--hypothesis-profile=search` looks further.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=10)
settings.register_profile("long", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("search", deadline=None)
settings.load_profile("quick")


# Without caches of compiled modules every child compiles anew what it imports. The workers of
# pytest-xdist and their children inherit this.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

compile_once()

# Each test has a home of its own. Without a folder that they share, each picture drawn there by
# a process of its own would list the machine's fonts anew: two seconds.
_CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("MPLCONFIGDIR", str(_CACHES / "matplotlib"))

PROGRAM.adopt(os.environ)

# Who starts the tests in the background, or by nohup(1), has signals ignored, which every process
# inherits: one that a test interrupts would go on for ever.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of the tests in memory, where that can be.

    They write 100,000 files and wait for each SQLite commit: in memory both take a third less
    processor time. Not where files cannot be run, as hooks must be, and only with 4 GB free.
    """
    memory = Path("/dev/shm")
    if sys.platform != "linux" or not os.access(memory, os.W_OK):
        return
    room = os.statvfs(memory)
    if not room.f_flag & os.ST_NOEXEC and room.f_bavail * room.f_frsize > 4 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Give the memory back where nothing failed."""
    folder: Path = session.config._tmp_path_factory.getbasetemp()
    if exitstatus == 0 and not hasattr(session.config, "workerinput"):
        shutil.rmtree(folder, ignore_errors=True)


_passed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_passed] = report.passed and item.stash.get(_passed, True)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what the imports of all tests make, which stays, from each search for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # else a search in a fork copies every page of it
        gc.set_threshold(10_000)  # searches took 4 % of the processor time
        gc.enable()


# What a test module imports if its tests start programs, or train by a script of their own.
_STARTERS = {"subprocess", "celedger", "git", "load_script", "make_project", "scripted", "typed"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start no program as `core`. They are the quickest."""
    for item in items:
        names = {*vars(getattr(item, "module", None) or object), *getattr(item, "fixturenames", ())}
        if not names & {*_STARTERS, "project"} and not item.get_closest_marker("matrix"):
            item.add_marker("core")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Among the `core` tests, skip a module that imports a package which is not installed."""
    report = yield
    if report.failed and collector.config.getoption("markexpr") == "core":
        lacks = re.search(r"ModuleNotFoundError: (No module named .*)", str(report.longrepr))
        if lacks:
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, f"Skipped: {lacks[1]}")
    return report


def matrix_after(quick: int, values: Iterable[object]) -> list[object]:
    """Return the values of a parameter, of which only the first few are for `make test`."""
    return [
        value
        if number < quick
        else pytest.param(
            *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.matrix
        )
        for number, value in enumerate(values)
    ]


def with_verbs(*names: str) -> pytest.MarkDecorator:
    """Skip a test where a verb of a wing is not installed (`test_core_alone.py`)."""
    lacking = {*names} - plugins.installed(plugins.VERBS).keys()
    return pytest.mark.skipif(bool(lacking), reason=f"no verb {', '.join(sorted(lacking))}")


PEOPLE = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


# pytest itself numbers a folder by listing all before it: at the end, 20 ms of each test.
_folders = itertools.count()


@pytest.fixture
def tmp_path(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Path]:
    name = re.sub(r"\W", "_", request.node.name)[:26]  # a socket's path has 107 bytes
    folder = tmp_path_factory.mktemp(f"{name}{next(_folders)}", numbered=False)
    yield folder
    if request.node.stash.get(_passed, False):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp(f"home{next(_folders)}", numbered=False)
    for name in list(os.environ):
        if name.startswith(("GIT_", "GITHUB_", "CELEDGER_", "VIRTUAL_ENV", "CONDA_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("CELEDGER_LOCK_DIR", str(home / "locks"))


def load_script(path: Path) -> ModuleType:
    """Return a script that lies outside the packages, as a module."""
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def git(repo: Path, *words: str, env: Mapping[str, str] | None = None) -> str:
    """Run git, which must succeed, and return what it said. A commit starts no maintenance."""
    return subprocess.run(
        ["git", "-c", "maintenance.auto=false", *words],
        cwd=repo, env={**os.environ, **PEOPLE, **(env or {})},
        check=True, capture_output=True, text=True, errors="replace",
    ).stdout.strip()  # fmt: skip


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str


def celedger(
    cwd: Path, *words: str, env: Mapping[str, str] | None = None, timeout: float = 120
) -> Done:
    """Run the real program in a process of its own."""
    return Done(*PROGRAM.run(words, cwd, {**os.environ, **(env or {})}, timeout))


def until(condition: Callable[[], object], seconds: float = 120, note: str = "") -> Any:
    """Wait for what sends no event; return what the condition became."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain {note}"
        time.sleep(0.01)
    return value


SUITE = """\
[suite]
name = "tiny"
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "0.1%"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py --seed {seed}"
seeds = [0, 1]
"""

# Making any optimiser, or profile, imports torch's compiler, which takes as long as torch itself:
# two seconds of each training in a process of its own. Those that compile nothing do without it.
# Of what is left, a third went into searches for garbage among torch's objects.
FEW_SEARCHES = """\
import atexit, gc
gc.set_threshold(100_000)
atexit.register(gc.freeze)
"""
UNCOMPILED = (
    FEW_SEARCHES
    + """\
import sys
from types import SimpleNamespace
sys.modules["torch._dynamo"] = SimpleNamespace(
    disable=lambda function, *_, **__: function, graph_break=lambda: None
)
settings = SimpleNamespace(triton=SimpleNamespace(cudagraphs=False))
sys.modules |= {
    "torch._inductor": SimpleNamespace(config=settings), "torch._inductor.config": settings
}
"""
)

# The repository under test holds one module, `model.py`, whose `LEVEL` is the loss.
SCRIPT = """\
import random, sys
from celedger.child import log
from model import LEVEL
rng = random.Random(int(sys.argv[2]))
for epoch in range(3):
    log(epoch=epoch, val_loss=LEVEL + rng.gauss(0, 0.01) + 1 / (epoch + 1))
print("trained")
"""


@dataclass(frozen=True)
class Project:
    """A git repository with a suite (kept out of its history) and helpers to grow it."""

    root: Path

    def commit(self, subject: str, files: Mapping[str, str] | None = None) -> str:
        for name, text in (files or {}).items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git(self.root, "add", "-A")
        git(self.root, "commit", "--quiet", "--allow-empty", "-m", subject)
        return git(self.root, "rev-parse", "HEAD")

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> Done:
        return celedger(self.root, *words, env=env)

    def allow(self) -> str:
        """Allow what is new, as where there is no terminal: by the hash under which it is shown.
        Return what was shown."""
        shown = self.run("allow")
        if shown.status == 125:
            done = self.run("allow", hash_of(shown))
            assert done.status == 0, done.err
        else:
            assert (shown.status, shown.out) == (0, ""), shown.err
        return shown.out

    def history(self, levels: Sequence[float]) -> list[str]:
        """A commit for each level of the loss."""
        changes = [
            (f"level {level}, number {i}", f"LEVEL = {level}\nNUMBER = {i}\n")
            for i, level in enumerate(levels)
        ]
        first = [self.commit(subject, {"model.py": text}) for subject, text in changes[:1]]
        return first + self._import(changes[1:])

    def _import(self, changes: Sequence[tuple[str, str]]) -> list[str]:
        """Commit versions of model.py by one git process for all of them. Nothing else changes."""
        if not changes:
            return []
        before = git(self.root, "rev-parse", "HEAD")
        person = f"{PEOPLE['GIT_COMMITTER_NAME']} <{PEOPLE['GIT_COMMITTER_EMAIL']}> now"
        stream = f"reset refs/new\nfrom {before}\n\n"
        for subject, text in changes:
            stream += f"commit refs/new\ncommitter {person}\ndata {len(subject)}\n{subject}\n"
            stream += f"M 100644 inline model.py\ndata {len(text)}\n{text}\n"
        subprocess.run(
            ["git", "fast-import", "--quiet", "--date-format=now"], cwd=self.root, text=True,
            input=stream, check=True, capture_output=True,
        )  # fmt: skip
        git(self.root, "reset", "--quiet", "--hard", "refs/new")
        git(self.root, "update-ref", "-d", "refs/new")
        return git(self.root, "rev-list", "--reverse", f"{before}..HEAD").split()


def rows(project: Project, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Ask the project's ledger."""
    with closing(sqlite3.connect(project.root / "ledger.db")) as connection:
        return connection.execute(sql, values).fetchall()


# What keeping the answer of a diagnosis adds: it, its commits, and their checksums.
_ANSWER = re.compile(r'INSERT INTO "?(findings|commits|parents|checksums)"?')


def record_of(ledger: Path) -> list[str]:
    """Return the rows of a ledger as SQL, without the answers of diagnoses."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        return [row for row in connection.iterdump() if not _ANSWER.match(row)]


def hash_of(shown: Done) -> str:
    """Return the hash under which `celedger allow` showed what is new."""
    match = re.search(r"celedger (?:-C \S+ )?allow ([0-9a-f]{12})`", shown.err)
    assert match is not None, shown.err
    return match[1]


def make_project(
    root: Path, suite: str = SUITE, scripts: Mapping[str, str] | None = None
) -> Project:
    root.mkdir(parents=True, exist_ok=True)
    # Without a template, whose 14 sample hooks cost twice as much as the repository itself.
    git(root, "init", "--quiet", "-b", "main", "--template=")
    for name in ("hooks", "info"):
        (root / ".git" / name).mkdir()
    folder = root / "suites" / "tiny"
    folder.mkdir(parents=True)
    (folder / "suite.toml").write_text(suite)
    for name, text in (scripts or {"fit.py": SCRIPT}).items():
        (folder / name).write_text(text)
    with (root / ".git" / "info" / "exclude").open("a") as file:
        file.write("/suites/\n")
    return Project(root)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")
