"""Whatever is typed, configured or found on the disk: one clear line, the right status, nothing
lost. Most cases run in this process, where they cost a tenth."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import SUITE, Done, Project, git, make_project, matrix_after, with_verbs

from celedger.cli.app import run

Tell = Callable[..., Done]


@pytest.fixture
def tell(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Run a command line here, in a folder."""

    def call(folder: Path, *words: str) -> Done:
        monkeypatch.chdir(folder)
        capfd.readouterr()
        status = run(words)
        return Done(int(status), *capfd.readouterr())

    return call


def assert_one_line(done: Done, status: int, *words: str) -> None:
    assert done.status == status, done.err
    assert done.err.startswith("celedger: ")
    assert done.err.count("\n") == 1
    assert "internal error" not in done.err
    for word in words:
        assert word in done.err
    assert done.out == ""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Three commits on main and one beside them; the newest is measured. Read only."""
    folder = tmp_path_factory.mktemp("trained")
    project = make_project(folder / "project")
    shas = project.history([1.0, 1.0, 1.3])
    git(project.root, "checkout", "--quiet", "-b", "side", shas[0])
    project.commit("beside", {"beside": "1"})
    git(project.root, "checkout", "--quiet", "main")
    done = project.run("run", env={"CELEDGER_LOCK_DIR": str(folder / "locks")})
    assert done.status == 0, done.err
    return project


# --- where


@pytest.mark.parametrize("words", [["run"], ["log"], ["init"], ["bisect", "a..b"], ["worker"],
                                   ["check"], ["hook", "status"], ["queue"]])  # fmt: skip
def test_outside_a_repository(tell: Tell, tmp_path: Path, words: list[str]) -> None:
    assert_one_line(tell(tmp_path, *words), 128, "is not in a git repository", "git init")


@pytest.mark.parametrize("words", [["run"], ["show"], ["bisect", "a..b"], ["check"]])
def test_without_commits(tell: Tell, tmp_path: Path, words: list[str]) -> None:
    git(tmp_path, "init", "--quiet")
    if words == ["show"]:
        tell(tmp_path, "run")  # makes the ledger
    assert_one_line(tell(tmp_path, *words), 128, "has no commits yet")


@pytest.mark.parametrize("words", [["run"], ["check", "."], ["run", "."]])
def test_a_branch_without_commits(tell: Tell, tmp_path: Path, words: list[str]) -> None:
    project = make_project(tmp_path / "project")
    project.history([1.0])
    git(project.root, "checkout", "--quiet", "--orphan", "empty")
    assert_one_line(tell(project.root, *words), 128, "the branch of ", "has no commits yet")


def test_a_file_where_a_folder_is_meant_and_the_reverse(tell: Tell, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_one_line(tell(tmp_path, "demo", "file"), 129, "is not empty and not the demo")
    assert_one_line(tell(tmp_path, "demo", "file/x"), 128, "file/x cannot be made")


@with_verbs("report", "export")
@pytest.mark.matrix
@pytest.mark.parametrize("verb", ["report", "export"])
@pytest.mark.parametrize("path", [".", "/", ""])
def test_a_folder_is_no_file_to_write(tell: Tell, trained: Project, verb: str, path: str) -> None:
    assert_one_line(tell(trained.root, verb, "-o", path), 128, "Is a directory")


@pytest.mark.matrix
def test_folders_that_are_not_there(tell: Tell, trained: Project, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert_one_line(tell(tmp_path, "-C", str(gone), "run"), 128, "is not a folder")
    for verb in ("run", "log", "status"):
        done = tell(trained.root, "--ledger", str(gone / "x.db"), verb)
        assert_one_line(done, 128, str(gone))
    assert not gone.exists()


def test_a_shallow_clone(tell: Tell, trained: Project, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{trained.root}", str(clone))
    shutil.copytree(trained.root / "suites", clone / "suites")
    old = git(trained.root, "rev-parse", "main~2")
    done = tell(clone, "bisect", f"{old}..main")
    assert_one_line(done, 129, "unknown revision", "git fetch --unshallow")
    git(clone, "fetch", "--quiet", "--depth", "1", "origin", old)
    assert_one_line(tell(clone, "bisect", f"{old}..main"), 128, "shallow")


# --- what


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "nope"], "unknown revision 'nope'"),
        (["run", "maim"], "did you mean main?"),
        (["run", "--", "-x"], "unknown revision '-x'"),
        (["run", ""], "unknown revision ''"),
        (["run", "a\nb"], "unknown revision"),
        (["run", "a" * 5000], "aaa… ("),
        (["run", "\udcff"], "unknown revision"),
        (["run", "HEAD:model.py"], "'HEAD:model.py' names an object that is not a commit"),
        (["run", "model.py"], "'model.py' is a file, not a commit (git log --oneline -- model.py)"),
        (["run", "main..main~2"], "did you mean main~2..main?"),
        (["run", "main..main"], "the same commit"),
        (["run", "--suite", "nope"], "there is no suite 'nope'"),
        (["run", "--task", "nope"], "has no task 'nope'"),
        (["run", "--device", "gpu"], "auto, cpu or cuda:N"),
        (["run", "--repeat", "0"], "'--repeat'"),
        (["run", "--repeat", "99999999999"], "'--repeat'"),
        (["run", "--seed", "-1"], "'--seed'"),
        (["run", "--seed", "99999999999999999999"], "'--seed'"),
        (["run", "fit"], "'fit' is a task, not a commit (type `celedger run --task fit`)"),
        (["run", "--nope"], "No such option"),
        (["nope"], "No such command"),
        (["run", "main~1", "main"], "main is unexpected here; a range is one word, A..B"),
        (["run", "main~1 .. main"], "'main~1 ' has a blank at an end (a range is A..B)"),
        (["baseline", "accept", "abc", "--why", "x"], "there is no incident abc"),
        (["bisect", "main"], "write GOOD..BAD"),
        (["bisect", "side..main"], "side is not an ancestor of main"),
        (["bisect", "main~2...main"], "write GOOD..BAD"),
        (["bisect", "main..main"], "the same commit"),
        (["bisect", "main..main~2"], "did you mean main~2..main?"),
        (["bisect", "main~2..main", "--metric", "nope"], "'nope'"),
        (["bisect", "main~2..main", "--confidence", "nan"], "nan, not a number from 0.5"),
        (["bisect", "main~2..main", "--metric", "val_los"], "did you mean 'val_loss'?"),
        (["bisect", "main~2..main", "--metric", "rss"], "has no direction"),
        (["bisect", "main~2..main", "--task", "nope"], "has no task 'nope'"),
        (["diff", "main"], "write A..B"),
        (["diff", "main..nope"], "unknown revision 'nope'"),
        (["show", "nope"], "unknown revision 'nope'"),
        (["stop", "nope"], "nope is not a commit; a job is named by its commit"),
        (["status", "--ledger", "x"], "--ledger stands before the verb: celedger --ledger"),
        (["import", "runs.csv"], "Missing argument 'PATH': celedger import [OPTIONS] {FORMAT}"),
        (["check", "nope"], "unknown revision 'nope'"),
        *(
            pytest.param(words.split(), says, marks=with_verbs("plot"))
            for words, says in (
                ("plot drift --metric nope", "has no metric 'nope'"),
                ("plot drift --task nope", "has no task 'nope'"),
                ("plot drift --metric val_loss -o x.gif", "PNG or SVG"),
                ("export x.csv", "to write a file, type `celedger export --output x.csv`"),
            )
        ),
    ],
)
def test_what_was_typed_cannot_be_meant(
    tell: Tell, trained: Project, words: list[str], says: str
) -> None:
    before = (trained.root / "ledger.db").read_bytes()
    assert_one_line(tell(trained.root, *words), 129, says)
    assert (trained.root / "ledger.db").read_bytes() == before


# --- suites and configurations


@pytest.mark.parametrize(
    ("old", "new", "status", "says"),
    [
        ("floor =", "flor =", 129, "did you mean 'floor'?"),
        ("seeds = [0, 1]", 'seeds = "x"', 129, "seeds is 'x', not an integer"),
        ("{seed}", "{sed}", 129, "did you mean 'seed'?"),
        ("fit.py", "fot.py", 129, "did you mean 'fit.py'?"),
        ("[suite]", "[suite", 129, "is not TOML"),
        ("[[task]]", "[[task]]\nname = 'fit'\ncommand = 'true'\n[[task]]", 129, "is defined twice"),
        ('name = "tiny"', 'python = "python9"', 128, "there is no interpreter 'python9'"),
        ('name = "tiny"', 'python = "/bin/false"', 128, "cannot describe itself"),
    ],
)
def test_a_suite_that_makes_no_sense(
    tell: Tell, project: Project, old: str, new: str, status: int, says: str
) -> None:
    project.history([1.0])
    (project.root / "suites" / "tiny" / "suite.toml").write_text(SUITE.replace(old, new))
    assert_one_line(tell(project.root, "run"), status, says)


@pytest.mark.parametrize("what", ["folder", "loop", "pipe"])
def test_a_suite_file_that_is_no_file(tell: Tell, project: Project, what: str) -> None:
    """ "no suite is selected: … has no suite" was said of a suite that is there."""
    project.history([1.0])
    file = project.root / "suites" / "tiny" / "suite.toml"
    file.unlink()
    {"folder": file.mkdir, "loop": lambda: file.symlink_to(file), "pipe": lambda: os.mkfifo(file)}[
        what
    ]()
    assert_one_line(tell(project.root, "run"), 129, "tiny/suite.toml is not a file")


def test_the_file_of_a_suite_stands_for_its_folder(tell: Tell, project: Project) -> None:
    """ "suite.toml is not a suite: it has no suite.toml"."""
    project.history([1.0])
    assert tell(project.root, "run", "--suite", "suites/tiny/suite.toml").status == 0


def test_what_could_not_be_built_is_no_first_measurement(tell: Tell, project: Project) -> None:
    project.history([1.0])
    suite = SUITE.replace('name = "tiny"', 'name = "tiny"\nbuild = ["false"]', 1)
    (project.root / "suites" / "tiny" / "suite.toml").write_text(suite)
    done = tell(project.root, "run")
    assert done.status == 125 and "first measurement" not in done.err


def test_a_suite_without_scripts_names_none(tell: Tell, project: Project) -> None:
    """ "which is not there (known: suite.toml)"."""
    project.history([1.0])
    (project.root / "suites" / "tiny" / "fit.py").unlink()
    assert_one_line(tell(project.root, "run"), 129, "which is not there", "tiny has no script")


def test_a_suite_that_is_gone_is_not_replaced_without_a_word(tell: Tell, project: Project) -> None:
    """A suite `core` that was deleted made `check` train the shipped one for five minutes."""
    project.history([1.0])
    (project.root / "celedger.toml").write_text('suite = "core"\n')
    done = tell(project.root, "run", "--dry-run")
    assert f"suite core is the one that ships: {project.root / 'suites'} has none" in done.err


def test_files_of_windows_are_read(tell: Tell, project: Project) -> None:
    """A byte-order mark, and lines that end in carriage return and newline."""
    project.history([1.0])
    suite = project.root / "suites" / "tiny" / "suite.toml"
    for file, text in ((suite, SUITE), (project.root / "celedger.toml", 'suite = "tiny"\n')):
        file.write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    assert tell(project.root, "run", "--dry-run").status == 0


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("celedger.toml", "x", "is not TOML"),
        ("celedger.toml", "nope = 1", "unknown key 'nope'"),
        ("celedger.toml", "ledger = 3", "ledger"),
        ("celedger.toml", "device = 'tpu'", "auto, cpu or cuda:N"),
        ("pyproject.toml", "[tool.celedger", "is not TOML"),
    ],
)
def test_a_configuration_that_makes_no_sense(
    tell: Tell, project: Project, name: str, text: str, says: str
) -> None:
    project.history([1.0])
    (project.root / name).write_text(text)
    for verb in ("run", "log"):
        assert_one_line(tell(project.root, verb), 129, name, says)


def test_a_folder_named_as_the_configuration(tell: Tell, project: Project) -> None:
    (project.root / "celedger.toml").mkdir()
    assert_one_line(tell(project.root, "run"), 129, "celedger.toml is a folder")


def test_a_broken_pyproject_that_is_not_about_us_is_none_of_our_business(
    tell: Tell, trained: Project, tmp_path: Path
) -> None:
    (trained.root / "pyproject.toml").write_text("[broken")
    try:
        assert tell(trained.root, "log").status == 0
    finally:
        (trained.root / "pyproject.toml").unlink()


# --- ledgers


def _from_the_future(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def _corrupt_in_the_middle(path: Path) -> None:
    connection = sqlite3.connect(path)
    (page,) = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'trials'"
    ).fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _foreign(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_from_the_future, "newer celedger"),
        (_corrupt_in_the_middle, "is damaged"),
        (lambda path: os.truncate(path, 5000), "is damaged"),
        (lambda path: path.write_text("dear diary\n" * 100), "is not a ledger"),
        (_folder, "is a folder, not a ledger"),
        (_pipe, "is a special file, not a ledger"),
        (_foreign, "not a ledger of celedger"),
    ],
)
def test_a_ledger_that_is_none(
    tell: Tell, trained: Project, tmp_path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / "ledger.db"
    shutil.copy(trained.root / "ledger.db", path)
    spoil(path)
    before = path.read_bytes() if path.is_file() else b""
    for words in (["log"], ["run"], ["show"], ["check"], ["worker"]):
        assert_one_line(tell(trained.root, "--ledger", str(path), *words), 128, says)
    seen = tell(trained.root, "--ledger", str(path), "doctor")
    assert (seen.status, says in seen.out, "see `celedger" in seen.out) == (128, True, False)
    assert (path.read_bytes() if path.is_file() else b"") == before


@pytest.mark.parametrize("words", [["--ledger", "suites", "log"], ["status"], ["run"]])
def test_a_folder_where_the_ledger_was(
    tell: Tell, trained: Project, tmp_path: Path, words: list[str]
) -> None:
    """A folder with tracked files was "git tracks suites/…", a folder at its name "missing"."""
    copy = tmp_path / "copy"
    shutil.copytree(trained.root, copy, symlinks=True)
    (copy / "ledger.db").unlink()
    (copy / "ledger.db").mkdir()
    git(copy, "add", "--force", "suites")
    assert_one_line(tell(copy, *words), 128, "is a folder, not a ledger", "--ledger FILE")


@contextmanager
def small_disk(place: Path, options: str) -> Iterator[Path]:
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


FILLING = """\
import os
from celedger.child import log
disk = os.environ["DISK"]
try:
    with open(f"{disk}/filling", "wb", 0) as file:
        while os.path.exists(f"{disk}/greedy"):
            file.write(b"x" * 4096)
except OSError:
    pass  # no space left
for epoch in range(200):
    log(epoch=epoch, val_loss=1.0)
"""


@pytest.mark.matrix
def test_a_full_disk_stops_the_trial_and_is_not_held_against_the_commit(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=4m") as disk:
        suite = SUITE.replace("--seed {seed}", "").replace("[0, 1]", "[0]")
        suite = suite.replace("[suite]\n", '[suite]\npass_env = ["DISK"]\n')
        project = make_project(tmp_path / "project", suite, {"fit.py": FILLING})
        project.history([1.0])
        (disk / "greedy").touch()
        words = ("--ledger", str(disk / "ledger.db"), "run")
        done = project.run(*words, env={"DISK": str(disk)})
        assert_one_line(done, 128, "full")
        (disk / "greedy").unlink()
        (disk / "filling").unlink()
        done = project.run(*words, env={"DISK": str(disk)})
        assert done.status == 0, done.err
        assert "was interrupted" in done.err
        with sqlite3.connect(disk / "ledger.db") as connection:
            kinds = connection.execute("SELECT kind FROM outcomes ORDER BY trial").fetchall()
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert kinds == [("interrupted",), ("ok",)]


def test_a_read_only_ledger_is_read_and_not_written(
    tell: Tell, trained: Project, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "size=4m") as disk:
        shutil.copy(trained.root / "ledger.db", disk)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        words = ("--ledger", str(disk / "ledger.db"))
        assert tell(trained.root, *words, "log").status == 0
        assert_one_line(tell(trained.root, *words, "run"), 128, "read-only", "make it writable")
        assert_one_line(tell(trained.root, "--ledger", str(disk / "new.db"), "run"), 128, str(disk))


@with_verbs("plot")
def test_a_read_only_disk_ends_no_command_in_an_internal_error(
    tell: Tell, trained: Project, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "size=64m") as disk:
        root = disk / "project"
        shutil.copytree(trained.root, root, symlinks=True)
        (root / ".git" / "celedger" / "checkouts" / "7").mkdir(parents=True)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert_one_line(tell(root, "init"), 128, "celedger.toml cannot be written")
        seen = tell(root, "doctor")
        assert (seen.status, "checkouts: " in seen.out) == (0, True), seen.out + seen.err
        pruned = tell(root, "doctor", "--prune")
        assert pruned.status == 0, pruned.err
        assert "removed" not in pruned.out
        assert tell(root, "drift").status == 0
        assert_one_line(tell(root, "plot", "drift"), 128, "Read-only")
        picture = tmp_path / "drift.png"
        assert tell(root, "plot", "drift", "--output", str(picture)).status == 0
        assert picture.is_file()


# --- names


NAMES = ["two\nlines", os.fsdecode(b"latin-\xe9"), "a b", 'it\'s "so"', "-dash", "naïve—目"]


@pytest.mark.parametrize("name", matrix_after(2, NAMES))
def test_a_repository_of_any_name(tell: Tell, tmp_path: Path, name: str) -> None:
    project = make_project(tmp_path / name)
    project.commit("first", {"model.py": "LEVEL = 1\n", "--": "1", " x\n'\"": "2", "目": "3"})
    git(project.root, "branch", "--", "sub/目-b")
    git(project.root, "update-ref", "refs/heads/-dash", "HEAD")
    done = tell(project.root, "run", "sub/目-b", "--seed", "0")
    assert done.status == 0, done.err
    shown = tell(project.root, "show", "heads/-dash")
    assert shown.status == 0, shown.err
    assert "first" in shown.out


def test_an_author_and_a_subject_of_any_bytes(tell: Tell, tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    project.history([1.0])
    tree = git(project.root, "rev-parse", "HEAD^{tree}")
    who = b"J\xf6rg \xff <j@x> 1700000000 +0000"
    raw = b"tree %s\nauthor %s\ncommitter %s\n\nsub\xe9ject \xff 'q' \"\x1b[31m\n\nbody\n" % (
        tree.encode(), who, who,
    )  # fmt: skip
    sha = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin"], cwd=project.root, input=raw,
        capture_output=True, check=True,
    ).stdout.decode().strip()  # fmt: skip
    git(project.root, "update-ref", "refs/heads/odd", sha)
    assert tell(project.root, "run", "odd", "--seed", "0").status == 0
    for words in (["log"], ["show", "odd"], ["log", "--json"]):
        assert "ject" in tell(project.root, *words).out
    done = project.run("show", "odd", env={"PYTHONIOENCODING": "ascii"})
    assert done.status == 0, done.err
    assert "ject" in done.out


def test_a_colon_in_the_path_is_refused_because_it_would_measure_something_else(
    tell: Tell, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "a:b")
    project.history([1.0])
    assert_one_line(tell(project.root, "run"), 128, "PYTHONPATH cannot carry")


@pytest.mark.matrix
def test_a_detached_head_a_linked_worktree_and_a_bare_repository(
    tell: Tell, trained: Project, tmp_path: Path
) -> None:
    suites = ("--suite", str(trained.root / "suites" / "tiny"))
    linked = tmp_path / "linked"
    git(trained.root, "worktree", "add", "--quiet", "--detach", str(linked), "main~1")
    try:
        done = tell(linked, "run", *suites)
        assert done.status == 0, done.err
        assert not (linked / "ledger.db").exists()
        assert git(trained.root, "rev-parse", "main~1") in tell(trained.root, "show", "main~1").out
    finally:
        git(trained.root, "worktree", "remove", "--force", str(linked))
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "--quiet", "--bare", str(trained.root), str(bare))
    done = tell(bare, "run", *suites)
    assert done.status == 0, done.err
    assert (bare / "ledger.db").exists()
    assert_one_line(tell(bare, "run"), 129, "suite")
    assert_one_line(tell(bare, "init", "--suite", "new"), 128, "is a bare repository", "clone")
    assert not (bare / "celedger.toml").exists()
    empty = tmp_path / "empty.git"
    git(tmp_path, "clone", "--quiet", "--bare", str(trained.root), str(empty))
    assert "`celedger init`, typed in a clone, sets it up" in tell(empty, "status").out


def test_what_is_merged_is_named_as_what_it_is(tell: Tell, trained: Project) -> None:
    """A folder was told how to name one's own ledger."""
    assert_one_line(tell(trained.root, "merge", "suites"), 129, "no file suites (name another")
    assert_one_line(
        tell(trained.root, "merge", "model.py"), 128, "not an SQLite file (name another;"
    )


def test_a_repository_that_is_damaged_or_gone(tell: Tell, tmp_path: Path) -> None:
    """ "is not in a git repository (git init)" would have made a second one inside."""
    project = make_project(tmp_path / "project")
    project.history([1.0])
    linked, folder = tmp_path / "linked", project.root / "suites"
    git(project.root, "worktree", "add", "--quiet", "--detach", str(linked))
    head = project.root / ".git" / "HEAD"
    content = head.read_text()
    head.write_text("garbage")
    for at in (project.root, folder):
        assert_one_line(tell(at, "log"), 128, f"{project.root / '.git'} is damaged")
    head.write_text(content)
    (project.root / ".git" / "index").write_text("garbage")
    assert_one_line(tell(project.root, "run", "."), 128, "git status failed", "index")
    project.root.rename(tmp_path / "moved")
    assert_one_line(tell(linked, "log"), 128, f"{linked / '.git'} is damaged", "worktree repair")


# --- streams


@pytest.mark.parametrize("unbuffered", matrix_after(1, ["", "1"]))
@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("log | head -n 0", 141, ""),
        ("log >&-", 0, ""),
        ("log >/dev/full", 128, "cannot be written to stdout: No space left on device"),
        ("show --json >/dev/full", 128, "cannot be written to stdout: No space left on device"),
        ("--help >/dev/full", 128, "cannot be written to stdout: No space left on device"),
        ("log <&- 2>&- >/dev/null", 0, ""),
        ("nope 2>/dev/full", 129, ""),
        ("nope 2>&1 >/dev/null | head -n 0", 129, ""),
    ],
)
def test_streams_that_take_nothing(
    trained: Project, line: str, status: int, says: str, unbuffered: str
) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"$0" -m celedger {line}; exit ${{PIPESTATUS[0]}}', sys.executable],
        cwd=trained.root, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == status
    assert done.stderr == (f"celedger: the answer {says}\n" if says else "")
