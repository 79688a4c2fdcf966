"""What a trial reads beside its checkout: of the user's work tree and .git, and through filters."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import celedger
from celedger.base.model import Command, Task
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.system import process
from celedger.trial.reuse import TICK, NamedPaths, Outside, judge_outside, outside_folders
from celedger.trial.training_variables import variables
from tests.conftest import SUITE, Project, git, make_project
from tests.trial.test_reuse import trained

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recording is Linux's")

ONE = SUITE.replace("seeds = [0, 1]", "seeds = [0]")
FILES = {"pkg/core.py": "X = 1\n", "model.py": "LEVEL = 1.0\n", "tool": "#!/bin/sh\n"}


def judged(project: Project, code: str, python: str = sys.executable, path: str = "") -> Outside:
    """What is known of a programme that runs in a checkout of the project's."""
    repository = Repository.open(project.root)
    tree = repository.state_dir / "checkouts" / "0"
    tree.mkdir(parents=True, exist_ok=True)
    log, reads = project.root.parent / "log", project.root.parent / "reads"
    beside = outside_folders(repository)
    time.sleep(2 * TICK)  # what was written just before is not of this time
    began = time.time()
    done = process.run(
        [python, "-c", code], cwd=tree, log=log,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
        reads=process.Reads(tree, reads, beside), timeout=120,
    )  # fmt: skip
    assert done.ok, log.read_text()
    observed = NamedPaths()
    observed.take_in(reads)
    assert not observed.unknown
    kept = project.root / ".celedger"
    observed.since = began
    return judge_outside(
        repository, beside, observed.split(tree)[1], repository.resolve("HEAD").tree,
        kept, [kept / "out" / "OWN"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("code", "unknown"),
    [
        ("open('{root}/model.py')", "work tree: model.py"),
        ("open('../../../../pkg/core.py')", "work tree: pkg/core.py"),
        ("import os; os.chdir('{root}/pkg'); open('core.py')", "work tree: pkg/core.py"),
        ("import os; os.listdir('{root}')", "work tree: the names in it"),
        ("import subprocess; subprocess.run(['{root}/tool'])", "work tree: tool"),
        ("open('{root}/.git/HEAD')", ".git: HEAD"),
        ("import os; os.system('git -C {root} log')", ".git: "),
        ("import os; os.link('{root}/model.py', 'm')", "work tree: model.py"),
        ("open('{root}/staged.py')", "work tree: staged.py"),
        ("open('{root}/pkg/__pycache__/core.cpython-311.pyc')", "work tree: pkg/core.py"),
        ("open('{root}/.other/model.py')", "work tree: model.py"),
        ("import os; os.path.getsize('{root}/.git/index')", ".git: index"),
        ("open('{root}/.celedger/out/OTHER/last')", "kept of other trials: out/OTHER/last"),
        ("import os; os.path.exists('{root}/.celedger/out/X')", "kept of other trials: out/X"),
        ("import os; os.listdir('{root}/pkg')", "work tree: pkg"),
        ("import os; os.path.realpath('{root}/pkg/core.py')", "work tree: pkg/core.py"),
        ("import os; os.listdir('{root}/.celedger/out')", "kept of other trials: out"),
        ("open('{root}/data/last', 'a').write('1')", "work tree: changed meanwhile: data/last"),
        ("open('{root}/data/new', 'x')", "work tree: changed meanwhile: data/new"),
    ],
)
def test_the_users_own_files_make_a_footprint_unknown(
    project: Project, code: str, unknown: str
) -> None:
    project.commit("one", FILES)
    (project.root / "tool").chmod(0o755)
    (project.root / "staged.py").touch()
    (project.root / "pkg" / "__pycache__").mkdir()
    (project.root / "pkg" / "__pycache__" / "core.cpython-311.pyc").touch()
    for name in (".celedger/out/OTHER/last", "data/last"):
        (project.root / name).parent.mkdir(parents=True)
        (project.root / name).touch()
    git(project.root, "worktree", "add", "-q", "--detach", ".other")
    git(project.root, "add", "staged.py")
    found = judged(project, code.replace("{root}", str(project.root)))
    assert unknown in found.unknown
    tracked = "work tree: " in unknown and "changed" not in unknown and " os.path." not in code
    is_file = (project.root / unknown.split()[-1]).is_file()
    assert found.file == (
        unknown.split()[-1] if tracked and is_file and "os.path" not in code else ""
    )


@pytest.mark.parametrize(
    ("code", "paths"),
    [
        ("open('{root}/data/big/a.csv')", {b"data/big/a.csv"}),
        ("open('{root}/pkg/local.json')", {b"pkg/local.json"}),
        ("import os; os.path.exists('{root}/none/at.py')", {b"none"}),
        ("import os; os.path.isdir('{root}/pkg'); os.path.exists('{root}/.git/HEAD')", {b"pkg"}),
        ("open('{root}/.celedger/out/OWN/x', 'w')", set()),
        ("import os; os.path.realpath('{root}/.celedger/out/OWN/x')", set()),
        ("open('{root}/.git/celedger/suites/x')", set()),
    ],
)
def test_what_no_commit_has_is_as_it_is(project: Project, code: str, paths: set[bytes]) -> None:
    project.commit("one", FILES)
    for name in (
        "data/big/a.csv",
        "pkg/local.json",
        ".celedger/out/OWN/x",
        ".git/celedger/suites/x",
    ):
        (project.root / name).parent.mkdir(parents=True, exist_ok=True)
        (project.root / name).touch()
    found = judged(project, code.replace("{root}", str(project.root)))
    assert (found.unknown, found.file, found.opened | found.looked) == ("", "", paths)


def environment(at: Path, on_path: Path) -> str:
    """A virtual environment that looks for modules in a folder too; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(at)], check=True)
    (packages,) = at.glob("lib/python*/site-packages")
    (packages / "editable.pth").write_text(f"{on_path}\n")
    return str(at / "bin" / "python")


def test_an_editable_install_is_no_reason_until_something_is_imported_from_it(
    project: Project,
) -> None:
    project.commit("one", FILES)
    python = environment(project.root / ".venv", project.root)
    site = project.root.parent / "site"
    site.mkdir()
    finder = Path(celedger.__file__).parent / "child" / "import_finder.py"
    shutil.copyfile(finder, site / "sitecustomize.py")
    code = "try: import nowhere\nexcept ImportError: pass"
    found = judged(project, code, python, str(site))
    assert not found.unknown
    assert b"nowhere.py" in found.looked
    assert judged(project, "import model", python, str(site)).file == "model.py"


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("change", "trials"),
    [("config core.autocrlf true", 4), ("config filter.lfs.smudge 'sed s/1/2/'", 4),
     ("config user.name Bo", 2)],
)  # fmt: skip
def test_a_result_is_reused_only_where_git_writes_files_alike(
    tmp_path: Path, change: str, trials: int
) -> None:
    project = make_project(tmp_path / "p")
    project.commit("one", {"model.py": "LEVEL = 1.0\n", "README": "a"})
    project.run("run", "HEAD")
    git(project.root, *shlex.split(change))
    project.commit("words", {"README": "b"})
    project.run("run", "HEAD")
    assert trained(project) == trials


def test_a_repository_at_the_root_is_watched(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "f").touch()
    beside = (Path("/"), tmp_path)
    code = f"open({str(tmp_path / 'f')!r}); open('/etc/passwd')"
    process.run(
        [sys.executable, "-c", code], cwd=tmp_path / "tree", env={}, log=tmp_path / "log",
        reads=process.Reads(tmp_path / "tree", tmp_path / "reads", beside), timeout=120,
    )  # fmt: skip
    observed = NamedPaths()
    observed.take_in(tmp_path / "reads")
    assert {bytes(tmp_path / "f"), b"/etc/passwd"} <= observed.opened


@pytest.mark.matrix
def test_a_trial_of_the_users_work_tree_is_warned_of_and_never_reused(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path\nfrom celedger.child import log\nhere = Path(__file__)\n"
        "while not (here / '.git').exists(): here = here.parent\n"
        "log(epoch=0, val_loss=float((here / 'v').read_text()))\n"
    )
    project = make_project(tmp_path / "p", SUITE, {"fit.py": script})
    for value in ("1", "2"):
        project.commit(value, {"v": value})
        said = project.run("run", "HEAD")
        assert said.status == 0, said.err
        assert said.err.count("read v of your work tree") == 1
        assert "depends on what you have checked out" in said.err
    assert trained(project) == 4
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        values = {record.summaries["val_loss"] for record in ledger.trials()}
    assert values == {1.0, 2.0}


def test_neither_the_shells_folder_nor_git_leads_to_the_users_repository(project: Project) -> None:
    state = project.root / ".git" / "celedger"
    tree = state / "checkouts" / "0"
    copies = [state / "suites" / "x", state / "suites", state, state / "out", tree]
    for folder in copies:
        folder.mkdir(parents=True, exist_ok=True)
    base = {**os.environ, "PWD": str(project.root), "OLDPWD": str(project.root)}
    task = Task("tiny", "fit", (Command("run", ("true",)),))
    env = variables(
        base, task, tree=tree, child=state / "child", visible_devices="", extra={}
    )  # fmt: skip
    assert env["PWD"] == str(tree)
    assert "OLDPWD" not in env
    for folder in copies:
        done = subprocess.run(["git", "rev-parse"], cwd=folder, env=env, capture_output=True)
        assert done.returncode == 128, folder


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "ran"), [("x", (2, 3, 4)), ("lfs", (1, 2, 2)), ("off", (1, 1, 1))]
)
def test_a_filter_may_read_any_file_and_that_of_git_lfs_one(
    project: Project, name: str, ran: tuple[int, ...]
) -> None:
    (project.root / "suites" / "tiny" / "suite.toml").write_text(ONE)
    smudge = "cat" if name == "off" else "sed s/QQ/1.0/"
    git(project.root, "config", f"filter.{name}.smudge", smudge)
    level = "1.0" if name == "off" else "QQ"
    others = ("README", ".lfsconfig", "docs")
    project.commit("one", {
        ".gitattributes": f"model.py filter={name}\n", "model.py": f"LEVEL = {level}\n",
        **dict.fromkeys(others, "[lfs]\n"),
    })  # fmt: skip
    assert project.run("run", "HEAD").status == 0
    for file, trials in zip(others, ran, strict=True):
        project.commit(file, {file: "[lfs]\n\n"})
        assert project.run("run", "HEAD").status == 0
        assert trained(project) == trials
