"""What a trial is seen to name, and which commits re-use its result."""

from __future__ import annotations

import itertools
import json
import os
import random
import sqlite3
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from conftest import load_script

from celedger import suite as suites
from celedger.base import config
from celedger.base.model import Bytes, Command, Commit, Environment, Footprint, ReusableTrial, Task
from celedger.judge.bisection.equal_commits import UNLIKELY, classify
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.repo.tree_files import Differences
from celedger.suite import load
from celedger.system import path_recorder, process
from celedger.system.cache import FolderCache
from celedger.trial.engine import Need
from celedger.trial.permissions import Gate
from celedger.trial.reuse import FootprintComparison, NamedPaths, Reuse
from celedger.trial.runner import Bench
from celedger.trial.training_variables import fingerprint
from celedger.trial.venvs import Installation, Venvs
from celedger.trial.workplace import choose_tasks, local_bench
from tests.conftest import SCRIPT, SUITE, Project, git, make_project

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

linux = pytest.mark.skipif(sys.platform != "linux", reason="recording is Linux's")


def record(tree: Path, code: str) -> Path:
    """The record of what a Python programme names of a folder it runs in."""
    log, reads = tree.parent / "log", tree.parent / "reads"
    done = process.run(
        [sys.executable, "-S", "-c", code], cwd=tree, env={"PATH": os.environ["PATH"]}, log=log,
        reads=process.Reads(tree, reads), timeout=120,
    )  # fmt: skip
    assert done.ok, log.read_text()
    return reads


def observe(tree: Path, code: str) -> NamedPaths:
    observed = NamedPaths()
    observed.take_in(record(tree, code))
    return observed


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "data").mkdir(parents=True)
    (tree / "data" / "a.txt").write_text("a")
    (tree / "data" / "b.txt").write_text("b")
    (tree / "link").symlink_to("data/a.txt")
    (tree / "latest").symlink_to("data")
    return tree


@linux
@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("open('data/a.txt').read()", {b"data/a.txt"}),
        ("import os; os.path.exists('conf/no/such')", {b"conf"}),
        ("import os; os.stat('data/b.txt')", {b"data/b.txt"}),
        ("open('link').read()", {b"link", b"data/a.txt"}),
        ("import os; os.readlink('link')", {b"link"}),
        ("open('latest/../data/./b.txt').read()", {b"latest", b"data/b.txt"}),
        ("import os; os.listdir('data')", {b"data"}),
        ("import os; os.path.exists('data/../link')", {b"data", b"link"}),
        ("import os; os.system('cat < data/b.txt; test -e flag')", {b"data/b.txt", b"flag"}),
        ("import os; os.chdir('data'); open('b.txt').read()", {b"data", b"data/b.txt"}),
        ("open('/proc/self/cwd/data/b.txt').read()", {b"data/b.txt"}),
        (
            (
                "import os; r, w = os.pipe(); os.stat(f'/proc/self/fd/{r}');"
                "os.stat('/proc/self/ns/pid'); os.write(w, b'x'); open(f'/dev/fd/{r}').read(0);"
                "f = os.open('data/b.txt', 0); open(f'/proc/self/fd/{f}').read()"
            ),
            {b"data/b.txt"},
        ),
        ("import os; os.rename('data/a.txt', 'c'); open('c').read()", {b"data/a.txt", b"c"}),
        ("import os; os.symlink('data', 'd'); open('d/b.txt').read()", {b"d", b"data/b.txt"}),
        ("import os; os.rename('data', 'd'); open('d/b.txt').read()", {b"data", b"data/b.txt"}),
        (
            (
                "import os; os.mkdir('d'); os.path.exists('d/b.txt'); os.rmdir('d');"
                "os.link('latest', 'd', follow_symlinks=False); open('d/b.txt').read()"
            ),
            {b"latest", b"data/b.txt"},
        ),
        (  # a name that was named before means something else
            (
                "import os; os.stat('link'); os.remove('link');"
                "os.symlink('data/b.txt', 'link'); os.stat('link'); os.stat('link')"
            ),
            {b"link", b"data/a.txt", b"data/b.txt"},
        ),
        (
            "import os; [os.path.exists('d/x') or os.makedirs('d', exist_ok=True) for _ in '123']",
            {b"d", b"d/x"},
        ),
        (
            "import os; p = os.getcwd() + '/data/a.txt'; [use(p) for use in (os.stat, open)]",
            {b"data/a.txt"},
        ),
        (
            "import os; f = os.open('data', os.O_PATH); os.stat('b.txt', dir_fd=f)",
            {b"data", b"data/b.txt"},
        ),
        (
            "import threading as t; x = t.Thread(target=open, args=('data/b.txt',)); x.start()",
            {b"data/b.txt"},
        ),
    ],
)
def test_every_path_that_a_training_names_is_seen(tree: Path, code: str, named: set[bytes]) -> None:
    observed = observe(tree, code)
    assert not observed.unknown
    inside, beside = observed.split(tree)
    assert not beside.opened
    assert named <= inside.opened | inside.looked
    # A link is followed even where the call does not: in doubt something was read.
    untouched = {b"data/b.txt"} - named
    assert not untouched & (inside.opened | inside.looked)


@linux
def test_a_script_names_its_interpreter_and_a_child_what_it_reads(tree: Path) -> None:
    (tree / "tool").write_text("#!./sh\ncat data/b.txt\n")
    (tree / "tool").chmod(0o755)
    (tree / "sh").symlink_to("/bin/sh")
    (tree / "other").write_text("#!./tool\n")
    (tree / "other").chmod(0o755)
    observed = observe(tree, "import subprocess; subprocess.run(['./other'], check=True)")
    inside, _ = observed.split(tree)
    assert {b"other", b"tool", b"data/b.txt"} <= inside.opened
    assert b"sh" in inside.looked


@linux
def test_what_too_many_paths_are_named_by_is_not_known(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = path_recorder.Record([str(tree)], [])
    record.opened.update(b"%d" % i for i in range(9))
    record.looked.update(b"%d" % i for i in range(3, 12))
    for most, known in ((12, True), (11, False)):
        monkeypatch.setattr(path_recorder, "MOST", most)
        record.write(str(tree / "record"))
        record._busy.release()
        parsed = path_recorder.parse((tree / "record").read_bytes())
        assert parsed is not None
        assert bool(parsed[0]) != known
        assert len(parsed[1]) + len(parsed[2]) == (12 if known else 0)


@linux
def test_a_tree_that_is_moved_has_an_unknown_footprint(tree: Path) -> None:
    code = f"import os; os.rename('{tree}', '{tree}2'); os.rename('{tree}2', '{tree}')"
    assert "moves" in observe(tree, code).unknown


@linux
@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("437, -100, b'data/a.txt', struct.pack('QQQ', 0, 0, 0x10), 24", "openat2"),
        ("600", "600"),
        ("166 if os.uname().machine == 'x86_64' else 39, b'/none', 0", "without being seen"),
        ("308 if os.uname().machine == 'x86_64' else 268, -1, 0", "without being seen"),
    ],
)
def test_a_call_that_hides_what_is_read_makes_a_footprint_unknown(
    tree: Path, call: str, why: str
) -> None:
    observed = observe(tree, f"import ctypes, os, struct; ctypes.CDLL(None).syscall({call})")
    assert why in observed.unknown


@linux
def test_what_reads_the_history_has_an_unknown_footprint(tree: Path) -> None:
    git(tree, "init", "--quiet")
    git(tree, "add", "-A")
    git(tree, "commit", "--quiet", "-m", "one")
    described = observe(tree, "import os; os.system('git describe --always')")
    assert ".git" in described.split(tree)[0].unknown
    assert not observe(tree, "import os; os.path.isdir('.git')").split(tree)[0].unknown
    # As each run of pytest does: no result of one was re-used.
    assert not observe(tree, "import os; os.path.isfile('.git/pyvenv.cfg')").split(tree)[0].unknown
    assert observe(tree, "import os; os.path.getsize('.git/index')").split(tree)[0].unknown


def test_a_record_that_was_lost_makes_the_footprint_unknown(tmp_path: Path) -> None:
    observed = NamedPaths()
    observed.take_in(tmp_path / "none")
    assert observed.unknown


@linux
def test_a_record_that_a_full_disk_cut_anywhere_makes_the_footprint_unknown(tree: Path) -> None:
    reads = record(tree, "open('data/a.txt')")
    text = reads.read_bytes()
    for length in range(len(text) + 1):
        reads.write_bytes(text[:length])
        observed = NamedPaths()
        observed.take_in(reads)
        assert bool(observed.unknown) == (length < len(text))


def agree(project: Project, footprint: Footprint, one: str = "HEAD~1", other: str = "HEAD") -> bool:
    repository = Repository.open(project.root)
    trees = [repository.resolve(name).tree for name in (one, other)]
    sums = FootprintComparison(Differences(repository), footprint).sums(trees)
    return sums[trees[0]] == sums[trees[1]]


FILES = {"pkg/a.py": "a", "pkg/b.py": "b", "data/x": "1", "docs/d": "d", "deep/er/f": "f"}


def test_a_commit_differs_in_what_was_named_and_in_nothing_else(project: Project) -> None:
    footprint = Footprint((b"", b"data", b"pkg/a.py"), (b"pkg/none.py", b"docs", b"deep/er"))
    project.commit("start", FILES)
    project.commit("unread", {"pkg/b.py": "c", "docs/new": "x", "data/x": "2", "deep/er/g": "g"})
    assert agree(project, footprint)  # the folder `data` was listed, not its file read
    attributes = (".gitattributes", "pkg/.gitattributes", "deep/.gitattributes")
    for name in ("pkg/a.py", "pkg/none.py", "data/y", "top", *attributes):
        project.commit(name, {name: f"changed {name}"})
        assert not agree(project, footprint), name
    (project.root / "pkg" / "a.py").chmod(0o755)
    project.commit("mode")
    assert not agree(project, footprint)
    for folder in ("docs", "deep", "data"):  # was there, above what was named, is a file now
        git(project.root, "rm", "-qr", folder)
        project.commit(folder, {folder: "1"} if folder == "data" else {})
        assert not agree(project, footprint), folder
    git(project.root, "revert", "--no-edit", "HEAD", "HEAD~1")
    assert agree(project, footprint, "HEAD~4", "HEAD")  # what came back is what it was


@pytest.mark.matrix
def test_trees_agree_whatever_lies_between_them(project: Project) -> None:
    """Sums are the same for equal trees, in whatever order trees are asked for."""
    chance, names = random.Random(1), ("a", "d/a", "d/b", "d/e/a", "f/a")
    for number in range(40):
        chosen = chance.sample(names, chance.randint(0, 3))
        present = [n for n in names if (project.root / n).is_file()]
        for gone in chance.sample(present, min(len(present), chance.randint(0, 2))):
            git(project.root, "rm", "-qf", gone)
        project.commit(str(number), {n: chance.choice("12") for n in chosen})
    repository = Repository.open(project.root)
    trees = [commit.tree for commit in repository.log("HEAD", 40)]
    for opened, looked in (((b"d", b"a"), ()), ((b"d/e",), (b"f",)), ((), (b"d/a", b"d/e/none"))):
        footprint = Footprint(opened, looked)
        once = FootprintComparison(Differences(repository), footprint).sums(trees)
        shuffled = FootprintComparison(Differences(repository), footprint)
        for _ in range(4):
            some = chance.sample(trees, 20)
            sums = shuffled.sums(some)
            for one, other in itertools.pairwise(some):
                equal = once[one] == once[other]
                assert (sums[one] == sums[other]) == equal
                alone = FootprintComparison(Differences(repository), footprint).sums([one, other])
                assert (alone[one] == alone[other]) == equal
        assert 1 < len(set(once.values())) < len(set(trees))


def test_the_inputs_of_a_build_count_whole(project: Project) -> None:
    footprint = Footprint(inputs=("requirements*.txt", "native", "src/*.c"))
    project.commit("start", {"requirements-dev.txt": "a", "native/deep/x.c": "b", "src/a.c": "c"})
    project.commit("unread", {"other.txt": "x", "src/a.h": "x"})
    assert agree(project, footprint)
    for name in ("requirements-dev.txt", "requirements.txt", "native/deep/x.c", "src/b.c"):
        project.commit(name, {name: f"changed {name}"})
        assert not agree(project, footprint), name


@pytest.mark.parametrize("pattern", ["pkg/**/*.c", "**/*.c", "pkg/**", "pkg/*/x.c", "p*"])
def test_inputs_count_whole_beside_what_the_trial_named(project: Project, pattern: str) -> None:
    project.commit("start", {"pkg/sub/x.c": "1", "pkg/sub/mod.py": "", "pkg/__init__.py": ""})
    footprint = Footprint((b"pkg/sub/mod.py", b"pkg/__init__.py"), inputs=(pattern,))
    repository = Repository.open(project.root)
    for name, text in (("pkg/sub/x.c", "2"), ("pkg/.gitattributes", "*.c eol=crlf")):
        shas = [repository.resolve("HEAD").sha, project.commit(name, {name: text})]
        before, after = (repository.matching(sha, [pattern]) for sha in shas)
        # As for a build itself, `*` stays in its folder.
        assert agree(project, footprint) == (before == after and pattern == "p*" and ".c" in name)


def test_a_submodule_that_git_is_told_to_ignore_is_seen(project: Project) -> None:
    ignored = "[submodule 'third']\n\tpath = third\n\turl = ../third\n\tignore = all\n"
    start = project.commit("start", {".gitmodules": ignored.replace("'", '"')})
    git(project.root, "update-index", "--add", "--cacheinfo", f"160000,{start},third")
    git(project.root, "commit", "-qm", "added")
    assert not agree(project, Footprint((b"third",)))
    repository = Repository.open(project.root)
    for pattern in ("third", "third/**", "third/src/*.c", "*/src/**"):
        assert set(repository.matching(repository.resolve("HEAD").sha, [pattern])) == {"third"}
        assert not agree(project, Footprint(inputs=(pattern,)))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("src/[^t]*", "ab"), ("src/[!t]*", "ab"), ("src/[[:alpha:]]b", "ab"), ("src/\\*", "*"),
        ("src/[\\[a]b", "[b"), ("src/??.c", "é.c"), ("**/a?", "ab"),
    ],
)  # fmt: skip
def test_what_git_finds_by_a_pattern_is_an_input(project: Project, pattern: str, name: str) -> None:
    sha = project.commit("start", {f"src/{name}": "1", "src/deep/x": "1"})
    assert Repository.open(project.root).matching(sha, [pattern]).keys() == {f"src/{name}"}
    project.commit("changed", {f"src/{name}": "2"})
    assert not agree(project, Footprint(inputs=(pattern,)))


@pytest.mark.matrix
@linux
def test_adversarial_mutations_are_never_reused(tmp_path: Path) -> None:
    """As benchmarks/reuse.py does it five thousand times."""
    adversary = load_script(BENCHMARKS / "reuse.py")
    tally = adversary.Tally()
    for seed in (1, 2):
        adversary.world(seed, 20, tmp_path, tally)
    assert tally.faults == []
    assert tally.changed > 3
    assert tally.reused > 10


# --- through the whole


def bench_of(project: Project, ledger: Ledger) -> Bench:
    repository = Repository.open(project.root)
    settings = config.load(repository.root, {})
    suite = suites.load(suites.find(None, settings, repository.root))
    gate = Gate.of(repository, attended=True)
    return local_bench(repository, ledger, settings, suite, choose_tasks(suite, ()), gate=gate)


def trained(project: Project) -> int:
    """Trials that really ran."""
    with sqlite3.connect(project.root / "ledger.db") as ledger:
        ((count,),) = ledger.execute(
            "SELECT count(*) FROM trials WHERE id NOT IN (SELECT trial FROM derived)"
        )
    return int(count)


@linux
def test_a_commit_that_touches_nothing_read_reuses_a_result_and_says_so(project: Project) -> None:
    sha = project.commit("one", {"model.py": "LEVEL = 1.0\n", "README": "a"})
    assert project.run("run", "HEAD").status == 0
    project.commit("words", {"README": "b"})
    said = project.run("run", "HEAD")
    assert said.status == 0, said.err
    why = f"re-used from {sha[:7]}: it differs in no file that this training reads"
    assert said.err.count("re-used") == 1 and "re-used 2 results" in said.err
    assert trained(project) == 2
    shown = json.loads(project.run("show", "HEAD", "--json").out)
    (task,) = shown["tasks"]
    assert all(t["derived"] for t in task["trials"])
    assert {m["metric"] for m in task["metrics"]}.isdisjoint({"duration", "peak_rss"})
    assert why in project.run("show", "HEAD").out
    assert "2 trials re-used" in project.run("log").out
    standings = json.loads(project.run("check", "--budget", "0", "--json").out)["standings"]
    detects = {s["metric"]: s["smallest"] for s in standings}  # a clock tells nothing of it
    assert (detects["val_loss"], detects["duration"]) == (0.0, None)
    assert project.run("run", "HEAD", "--force").status == 0
    assert trained(project) == 4


@pytest.mark.matrix
@linux
def test_a_time_budget_is_for_commits_that_change_what_a_task_reads(tmp_path: Path) -> None:
    parts = SUITE.partition("[[task]]")
    tasks = [f"[[task]]{parts[2].replace('fit', name, 1)}" for name in ("a", "b")]
    script = "open(sys.argv[0][-4:-3] + '.txt').read()\n"
    files = {f"{name}.py": f"{SCRIPT}{script}" for name in "ab"}
    tasks = [t.replace("fit.py", f"{n}.py") for t, n in zip(tasks, "ab", strict=True)]
    suite = parts[0] + "".join(tasks)
    project = make_project(tmp_path / "project", suite, files)
    texts = {"model.py": "LEVEL = 1.0\n", "a.txt": "0", "b.txt": "0"}
    base = project.commit("base", texts)
    assert project.run("run", base).status == 0
    one, two, three = (project.commit(f"a {n}", {"a.txt": n}) for n in "123")
    listed = project.run("run", f"{base}..{three}", "--for", "2h", "--dry-run")
    assert listed.status == 0, listed.err
    rows = [tuple(line.split()[:2]) for line in listed.out.splitlines()[:-1]]
    order = [(three, "a"), (three, "b"), (one, "b"), (two, "b"), (one, "a"), (two, "a")]
    assert rows == [(sha[:8], task) for sha, task in order]
    assert "12 trials should take" in listed.out
    forced = project.run("run", f"{base}..{three}", "--for", "2h", "--dry-run", "--force")
    rows = [tuple(line.split()[:2]) for line in forced.out.splitlines()[:-1]]
    assert sorted(rows[:4]) == sorted((sha[:8], task) for sha in (three, one) for task in "ab")


@pytest.mark.matrix
@linux
def test_a_suite_without_a_trace_reuses_results_for_equal_trees_only(tmp_path: Path) -> None:
    """Nothing is set that the training could see: no filter, no `sitecustomize`."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom celedger.child import log\n"
        "status = Path('/proc/self/status').read_text().split()\n"
        "assert [status[status.index(n) + 1] for n in ('Seccomp:', 'NoNewPrivs:')] == ['0', '0']\n"
        "site = getattr(sys.modules.get('sitecustomize'), '__file__', None) or ''\n"
        "assert 'child' not in site and 'install' not in str(sys.path_hooks)\n"
        "log(epoch=1, val_loss=1.0)\n"
    )
    head = 'name = "tiny"\ntrace = false\n'
    suite = SUITE.replace('name = "tiny"\n', head).replace("seeds = [0, 1]", "seeds = [0]")
    project = make_project(tmp_path / "p", suite, {"fit.py": script})
    project.commit("one", {"README": "a"})
    assert project.run("run", "HEAD").status == 0
    project.commit("words", {"README": "b"})
    assert project.run("run", "HEAD").status == 0
    assert trained(project) == 2
    git(project.root, "commit", "-q", "--allow-empty", "-m", "the same tree")
    said = project.run("run", "HEAD")
    assert said.status == 0, said.err
    assert "re-used" in said.err
    assert trained(project) == 2


@pytest.mark.matrix
@linux
def test_a_reused_result_is_no_repeat(project: Project) -> None:
    def counts(*words: str) -> list[int]:
        (task,) = json.loads(project.run("show", *words, "--json").out)["tasks"]
        if isinstance(task["trials"], int):  # those that a task's level is estimated from
            return [task["trials"]]
        return [m["n"] for m in task["metrics"] if m["metric"] == "val_loss"]

    project.commit("one", {"model.py": "LEVEL = 1.0\n", "README": "a"})
    project.run("run", "HEAD")
    project.commit("words", {"README": "b"})
    project.run("run", "HEAD")
    assert counts("HEAD") == [2]  # what else is there to tell of this commit
    assert counts("fit") == [2]
    project.run("run", "HEAD", "--force", "--seed", "5")
    assert counts("HEAD") == [3]  # a seed each
    assert counts("fit") == [3]


@pytest.mark.matrix
@linux
def test_a_trial_that_is_summarised_otherwise_stands_for_none(project: Project) -> None:
    project.commit("one", {"model.py": "LEVEL = 1.0\n", "README": "a"})
    project.run("run", "HEAD")
    toml = project.root / "suites" / "tiny" / "suite.toml"
    toml.write_text(SUITE.replace('floor = "0.1%"', 'summary = "max"'))
    project.commit("words", {"README": "b"})
    assert project.run("run", "HEAD").status == 0
    assert trained(project) == 4
    toml.write_text(
        toml.read_text().replace("[[task]]", '[metrics.other]\ndirection = "lower"\n[[task]]')
    )
    project.commit("more words", {"README": "c"})
    assert "without reporting other" in project.run("run", "HEAD").err


@pytest.mark.matrix
@linux
def test_a_commit_that_changes_what_is_read_is_trained(project: Project) -> None:
    project.history([1.0, 2.0])
    for revision in ("HEAD~1", "HEAD"):
        project.run("run", revision)
    assert trained(project) == 4


@pytest.mark.matrix
@linux
def test_a_failed_or_killed_trial_stands_for_none_of_another_day(tmp_path: Path) -> None:
    script = "import os, signal\nfrom model import HOW\n"
    script += "raise ValueError('x') if HOW == 'raise' else os.kill(os.getpid(), 9)\n"
    project = make_project(tmp_path / "p", SUITE.replace("seeds = [0, 1]", ""), {"fit.py": script})
    for how, ran in (("raise", 2), ("kill", 4)):
        project.commit(how, {"model.py": f"HOW = {how!r}\n", "README": how})
        project.run("run", "HEAD")
        project.commit("words", {"README": f"{how} again"})
        project.run("run", "HEAD")
        assert trained(project) == ran


@pytest.mark.matrix
@linux
def test_a_build_without_inputs_is_never_reused(tmp_path: Path) -> None:
    head = 'name = "tiny"\nbuild = ["true"]\n'
    for inputs, ran in (("", 4), ('inputs = ["setup.py"]\n', 2)):
        suite = SUITE.replace('name = "tiny"\n', head + inputs)
        project = make_project(tmp_path / f"p{ran}", suite)
        project.commit("one", {"model.py": "LEVEL = 1.0\n", "README": "a", "setup.py": ""})
        project.run("run", "HEAD")
        project.commit("words", {"README": "b"})
        project.run("run", "HEAD")
        assert trained(project) == ran


def test_wheels_of_the_same_version_are_told_apart_by_what_is_in_them(project: Project) -> None:
    texts = {"reqs/a.txt": "-r b.txt\n./wheels/x.whl\n", "wheels/x.whl": "1", "other": "1"}
    for name, text in (*texts.items(), ("other", "2"), ("reqs/b.txt", "x"), ("wheels/x.whl", "2")):
        project.commit(name, {name: text})
    repository = Repository.open(project.root)
    task = Task("s", "t", (Command("train", ("x",)),), venv=("reqs/a*.txt",))
    base = Installation(Environment("e", {"python": "3.11"}), sys.executable)
    made = Venvs(
        repository,
        FolderCache(project.root / ".git" / "x"),
        (),
        Bytes(0),
        {},
        lambda *_: base.environment,
        lambda *_: None,
    )
    keys = [made.key(repository.resolve(f"HEAD~{n}").sha, task, base) for n in range(4)]
    assert len(set(keys)) == 3
    assert "" not in keys


@linux
def test_a_result_is_reused_only_where_the_same_is_installed(project: Project) -> None:
    (sha,) = project.history([1.0])
    assert project.run("run", sha, "--seed", "0").status == 0
    repository = Repository.open(project.root)
    task = load(project.root / "suites" / "tiny").tasks[0]
    with Ledger.open(project.root / "ledger.db") as ledger:
        (record,) = ledger.trials(commit=sha)
        same = fingerprint(os.environ, task)
        for installed, agree in (("", 1), ("others", 0)):
            reuse = Reuse(
                ledger, repository, project.root, lambda _: same, lambda *_, key=installed: key
            )  # fmt: skip
            found = reuse.agreeing([repository.resolve(sha)], task, record.trial.environment)
            assert len(found[sha]) == agree


def test_the_variables_of_a_task_are_asked_for_once_whatever_the_range(project: Project) -> None:
    """They were asked for once a commit: a fifth of a bisect's time in 1,024 commits."""
    project.history([1.0] * 5)
    repository = Repository.open(project.root)
    task = load(project.root / "suites" / "tiny").tasks[0]
    asked = []
    with Ledger.open(project.root / "ledger.db", create=True) as ledger:
        reuse = Reuse(
            ledger, repository, project.root, lambda t: asked.append(t) or "", lambda *_: ""
        )  # fmt: skip
        assert len(reuse.agreeing(repository.log(), task, "e" * 64)) >= 5
    assert asked == [task]


LIBRARY = '''\
"""A model."""


class Model:
    """Of one level."""

    LEVEL = 1.0  # known


def level():
    """The level."""
    return Model.LEVEL
'''
LOOKALIKES = {
    "comment": ("# known", "# well known\n    # so far"),
    "docstring": ("Of one level", "Of a level"),
    "no docstring": ('    """The level."""\n', ""),
    "format": ("return Model.LEVEL", "return (\n        Model.LEVEL\n    )"),
}


@pytest.mark.matrix
@linux
def test_a_commit_of_comments_is_trained_but_is_an_unlikely_first_bad_one(tmp_path: Path) -> None:
    script = "import model\nfrom celedger.child import log\nlog(epoch=0, val_loss=model.level())\n"
    suite = SUITE.replace("seeds = [0, 1]", "seeds = [0]")
    project = make_project(tmp_path / "p", suite, {"fit.py": script})
    text, good = LIBRARY, project.commit("start", {"model.py": LIBRARY, "docs/a": "1"})
    assert project.run("run", "HEAD").status == 0
    for subject, (old, new) in LOOKALIKES.items():
        assert old in text
        text = text.replace(old, new)
        project.commit(subject, {"model.py": text})
    assert project.run("run", "HEAD").status == 0
    assert trained(project) == 2
    project.commit("comment and data", {"model.py": text + "# words\n", "docs/a": "2"})
    project.commit("code", {"model.py": text.replace("1.0", "2.0")})
    project.commit("broken", {"model.py": text + "("})
    project.commit("still broken", {"model.py": text + "( # words"})
    (project.root / "model.py").chmod(0o755)
    project.commit("mode")
    with Ledger.open(project.root / "ledger.db") as ledger, bench_of(project, ledger) as bench:
        repository = bench.repository
        history = repository.history(good, "HEAD")
        classes = classify(bench, history, bench.suite.tasks[0])
    assert classes.weights == (*[UNLIKELY] * 5, 1.0, 1.0, 1.0, 1.0)


@linux
def test_two_celedgers_reuse_a_result_once(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p", SUITE.replace("seeds = [0, 1]", "seeds = [0]"))
    project.commit("one", {"model.py": "LEVEL = 1.0\n", "README": "a"})
    project.commit("words", {"README": "b"})
    path = project.root / "ledger.db"
    with (
        Ledger.open(path, create=True) as mine, Ledger.open(path) as other,
        bench_of(project, mine) as bench, bench_of(project, other) as second,
    ):  # fmt: skip
        (task,) = bench.suite.tasks
        before, commit = map(bench.repository.resolve, ("HEAD~1", "HEAD"))
        assert not bench.run(Need(before, task, 0)).derived
        evidence = Reuse.evidence
        met: list[Commit] = []

        def meanwhile(self: Reuse, commit: Commit, *words: Any) -> ReusableTrial | None:
            """The other one re-uses it between this one's question and its answer."""
            found = evidence(self, commit, *words)
            if not met:
                met.append(commit)
                assert second.run(Need(commit, task, 0)).derived
            return found

        with mock.patch.object(Reuse, "evidence", meanwhile):
            record = bench.run(Need(commit, task, 0))
        assert met
        assert record.derived
        assert [r.trial.ulid for r in mine.trials(commit=commit.sha)] == [record.trial.ulid]


@pytest.mark.matrix
@linux
def test_bisect_trains_nothing_twice_after_messages_were_rewritten(project: Project) -> None:
    for i in range(6):
        level = 1.0 if i < 3 else 2.0
        project.commit(f"step {i}", {"model.py": f"LEVEL = {level}  # {i}\n"})
        project.commit(f"words {i}", {f"docs/{i}": "words\n"})
    first = git(project.root, "rev-list", "--max-parents=0", "HEAD")
    found = project.run("bisect", f"{first}..HEAD", "--metric", "val_loss", "--json")
    assert found.status == 0, found.err
    report = json.loads(found.out)["bisect"]
    culprit = git(project.root, "log", "-1", "--format=%s", report["culprits"][0])
    assert culprit == "step 3"
    ran = trained(project)
    again = project.run("bisect", f"{first}..HEAD~1", "--metric", "val_loss", "--json")
    assert json.loads(again.out)["bisect"]["trials"] == 0
    git(
        project.root, "filter-branch", "--force", "--msg-filter", "sed s/step/reworded/",
        "HEAD", env={"FILTER_BRANCH_SQUELCH_WARNING": "1"},
    )  # fmt: skip
    other = git(project.root, "rev-list", "--max-parents=0", "HEAD")
    assert other != first
    rewritten = project.run("bisect", f"{other}..HEAD", "--metric", "val_loss", "--json")
    assert rewritten.status == 0, rewritten.err
    report = json.loads(rewritten.out)["bisect"]
    assert git(project.root, "log", "-1", "--format=%s", report["culprits"][0]) == "reworded 3"
    assert report["trials"] == 0
    assert trained(project) == ran
    planned = project.run("bisect", f"{other}..HEAD", "--metric", "val_loss", "--dry-run")
    assert "11 commits in the range" in planned.out
    left = int(planned.out.splitlines()[1].split()[0])
    assert 1 <= left < 11  # each step has another comment, so it takes trials to prove more


@pytest.mark.matrix
@linux
@pytest.mark.parametrize("odd", ["open('model.py').read()", "open('.git/x')"])
def test_what_one_seed_alone_reads_splits_the_classes_too(tmp_path: Path, odd: str) -> None:
    """Its footprint has the same paths, or nothing is known of it."""
    script = "import os, model\nfrom celedger.child import log\n"
    script += (
        f"seed = int(os.environ['CELEDGER_SEED'])\nif seed: {odd}\nlog(epoch=0, val_loss=1.0)\n"
    )
    project = make_project(tmp_path / "p", SUITE, {"fit.py": script})
    for words in ("zero", "one", "two"):
        project.commit(words, {"model.py": f"LEVEL = 1.0  # {words}\n"})
    for revision in ("HEAD~2", "HEAD"):
        project.run("run", revision)
    planned = project.run("bisect", "HEAD~2..HEAD", "--metric", "val_loss", "--dry-run")
    assert planned.status == 0, planned.err
    assert int(planned.out.splitlines()[1].split()[0]) == 2


@pytest.mark.matrix
@linux
def test_a_range_in_which_nothing_read_differs_is_not_searched(project: Project) -> None:
    project.commit("one", {"model.py": "LEVEL = 1.0\n", "docs/0": "a"})
    project.run("run", "HEAD")
    project.commit("words", {"docs/a": "b"})
    project.commit("words", {"docs/a": "c"})
    said = project.run("bisect", "HEAD~2..HEAD", "--metric", "val_loss")
    assert said.status == 125
    assert "differs between" in said.err
    assert trained(project) == 2
