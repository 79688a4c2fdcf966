"""The gate: all that a suite asks for, with one byte changed, waits before anything of it starts;
what a person types is allowed by that; and what is allowed goes on."""

from __future__ import annotations

import os
import pty
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import Project, git, hash_of, make_project, until
from scripted import typed

from celedger import suite as suites
from celedger.base import config
from celedger.base.model import JobState
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.service import hooks
from celedger.service.worker import Worker
from celedger.system import process
from celedger.trial.engine import Need
from celedger.trial.permissions import Gate, NotAllowed
from celedger.trial.workplace import choose_tasks, local_bench

from .conftest import Bell, Crew, branch_ahead

SUITE = """\
[suite]
name = "tiny"
{}
[metrics.val_loss]
direction = "lower"
[[task]]
name = "fit"
command = "{{python}} {{suite}}/fit.py --seed {{seed}} a"
"""
FIT = "import model\nfrom celedger.child import log\nlog(epoch=0, val_loss=1.0)\n"

# kind of process: what of the suite's table, its files or the commit's is changed by a byte
KINDS: dict[str, tuple[str, str, tuple[str, str]]] = {
    "a question to an interpreter": ('python = "BIN/p1"', "suite.toml", ("p1", "p2")),
    "an environment": ('venv = ["r.txt"]', "r.txt", ("# a", "# b")),
    "an environment of other files": ('venv = ["r.txt"]', "suite.toml", ('"r.txt', '"s.txt')),
    "a build": ('build = ["true a"]', "suite.toml", ("true a", "true b")),
    "a build of the suite's script": ('build = ["sh {suite}/b.sh"]', "b.sh", ("# a", "# b")),
    "a launcher": ('preload = ["json"]', "suite.toml", ("json", "glob")),
    "a training": ("", "suite.toml", ("} a", "} b")),
    "a training from a launcher": ('preload = ["json"]', "fit.py", ("1.0", "1.5")),
    "a training with other roots": ('pythonpath = ["a"]', "suite.toml", ('"a"', '"b"')),
    "a training with more threads": ("threads = 1", "suite.toml", ("= 1", "= 2")),
    "a training with more time": ('timeout = "1m"', "suite.toml", ("1m", "9m")),
    "a training with more seeds": ("seeds = 1", "suite.toml", ("= 1", "= 3")),
    "a training out of the sandbox": ("sandbox = true", "suite.toml", ("true", "false")),
}
QUICK = {"a build", "a training"}


def matrix_of(kind: str) -> list[pytest.MarkDecorator]:
    return [] if kind in QUICK else [pytest.mark.matrix]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The words of all that the one starting place began: git is asked elsewhere."""
    begin, words = subprocess.Popen, []

    def popen(argv: Sequence[str], **options: Any) -> Any:
        if argv[0] != "git":
            words.append(argv)
        return begin(argv, **options)

    monkeypatch.setattr(process.subprocess, "Popen", popen)
    return words


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv on the path, which makes an environment in no time."""
    found = shutil.which("uv", path=str(Path(sys.executable).parent))
    assert found is not None
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv").symlink_to(found)
    monkeypatch.setenv("PATH", f"{tmp_path / 'uv'}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.matrix
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("table", "file", "change"),
    [pytest.param(*of, id=kind, marks=matrix_of(kind)) for kind, of in KINDS.items()],
)
def test_a_process_with_one_byte_changed_waits(
    table: str, file: str, change: tuple[str, str],
    tmp_path: Path, started: list[Sequence[str]],
) -> None:  # fmt: skip
    for name in ("p1", "p2"):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        path.chmod(0o755)
    text = SUITE.format(table.replace("BIN", str(tmp_path / "bin")))
    project = make_project(tmp_path / "project", text, {"fit.py": FIT, "b.sh": "# a\n"})
    models = dict.fromkeys(("model.py", "a/model.py", "b/model.py"), "X = 1\n")
    project.commit("first", {"r.txt": "# a\n", "s.txt": "# a\n", **models})
    crew = Crew(project)
    crew.note()
    assert crew.worker().drain() == 1  # what was allowed is all that it takes
    assert crew.states() == [(JobState.DONE, "nothing is worse")]
    assert started
    folder = project.root if file == "r.txt" else project.root / "suites" / "tiny"
    path, (before, after) = folder / file, change
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    sha = project.commit("second", dict.fromkeys(models, "X = 2\n"))
    crew.note()
    started.clear()
    crew.worker().drain()
    (_, (state, message)) = crew.states()
    assert state is JobState.WAITING, message
    assert "allow it: `celedger allow`" in message
    assert not any(record.ok for record in crew.ledger.trials(commit=sha))
    assert started == []


def test_a_program_that_changes_during_a_job_is_not_run(tmp_path: Path) -> None:
    """A merge may come while the worker trains: each trial asks again."""
    text = SUITE.format('python = "tools/python"')
    project = make_project(tmp_path / "project", text, {"fit.py": FIT})
    wrapper = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    sha = project.commit("first", {"model.py": "X = 1\n", "tools/python": wrapper})
    (project.root / "tools" / "python").chmod(0o755)
    repository = Repository.open(project.root)
    settings = config.load(project.root, {})
    suite = suites.load(suites.find("tiny", settings, project.root))
    project.allow()
    commit, tasks = repository.commit(sha), choose_tasks(suite, ())
    gate = Gate.of(repository, attended=False)
    with (
        Ledger.open(project.root / "ledger.db", create=True) as ledger,
        local_bench(repository, ledger, settings, suite, tasks, gate=gate) as bench,
    ):
        (project.root / "tools" / "python").write_text(f"{wrapper}# evil\n")
        with pytest.raises(NotAllowed, match="tools/python"):
            bench.run(Need(commit, tasks[0], 0))


def test_what_is_allowed_is_for_its_owner_alone_and_no_clone_has_it(
    project: Project, tmp_path: Path
) -> None:
    project.history([1.0])
    project.allow()
    folder = project.root / ".git" / "celedger" / "allowed"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    git(tmp_path, "clone", "-q", str(project.root), "clone")
    clone = Project(tmp_path / "clone")
    (clone.root / "suites").symlink_to(project.root / "suites")
    (clone.root / "suites").unlink()
    shutil.copytree(project.root / "suites", clone.root / "suites")
    assert Gate.of(Repository.open(clone.root), attended=False).empty
    assert "training fit" in clone.run("allow", "--dry-run").out


# --- what a person types


def tracked_project(root: Path) -> Project:
    """A project whose suite is in its history, as pulls need it."""
    project = make_project(root)
    (root / ".git" / "info" / "exclude").write_text("")
    project.commit("suite", {"model.py": "LEVEL = 1.0\n"})
    return project


@pytest.mark.matrix
def test_what_a_person_runs_is_allowed_by_that_and_what_a_merge_brought_is_named_first(
    tmp_path: Path,
) -> None:
    project = tracked_project(tmp_path / "project")
    first = project.run("run", "HEAD")
    assert "last allowed" not in first.err
    toml = (project.root / "suites" / "tiny" / "suite.toml").read_text()
    fit = (project.root / "suites" / "tiny" / "fit.py").read_text()
    (project.root / "suites" / "tiny" / "fit.py").write_text(fit + "# mine\n")
    mine = project.run("run", "HEAD")
    assert "last allowed" not in mine.err  # an edit of one's own needs no word
    project.commit("mine")
    branch_ahead(project, {
        "suites/tiny/fit.py": fit + "# theirs\n", "celedger.toml": "cache_limit = '1GB'\n",
        "suites/tiny/suite.toml": toml.replace("seeds = [0, 1]", "seeds = [0]"),
    })  # fmt: skip
    git(project.root, "merge", "-q", "next")
    crew_note = project.root / ".git" / "celedger" / "queue" / "1.moved"
    crew_note.parent.mkdir(parents=True)
    crew_note.write_text(str(project.root))
    assert "cache_limit" in project.run("worker", "--from-hook").err
    done = project.run("run", "HEAD")
    said = [line for line in done.err.splitlines() if "last allowed" in line]
    assert said == [
        (
            "celedger: new since it was last allowed: settings (cache_limit), tiny/fit.py, "
            "training fit of suite tiny (seeds)"
        )
    ]
    assert done.err.startswith(said[0])
    assert "last allowed" not in project.run("run", "HEAD", "--force").err
    # And the worker, which this has woken, needs no word any more.
    until(lambda: not crew_note.exists())
    until(lambda: [job.state for job in _jobs(project)] == [JobState.DONE])


@pytest.mark.matrix
def test_during_a_git_bisect_too_what_a_merge_brought_is_named_first(tmp_path: Path) -> None:
    project = tracked_project(tmp_path / "project")
    project.allow()
    good = project.commit("good", {"model.py": "LEVEL = 1.5\n"})
    fit = (project.root / "suites" / "tiny" / "fit.py").read_text()
    bad = project.commit("theirs", {"suites/tiny/fit.py": fit + "# theirs\n"})
    for words in (["start"], ["bad", bad], ["good", good]):
        git(project.root, "bisect", *words)
    git(project.root, "checkout", "-q", "--detach", good)
    done = project.run("check")
    assert "celedger: new since it was last allowed: tiny/fit.py\n" in done.err


def _jobs(project: Project) -> list[Any]:
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        return ledger.jobs()


@pytest.mark.matrix
def test_reading_allows_nothing(tmp_path: Path) -> None:
    project = tracked_project(tmp_path / "project")
    for verb in (["queue"], ["log"], ["doctor"], ["hook", "status"], ["allow", "--dry-run"]):
        project.run(*verb)
    assert Gate.of(Repository.open(project.root), attended=False).empty


def test_init_and_the_first_hook_install_allow_what_is_there_a_second_one_does_not(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path)
    git(tmp_path, "init", "-q")
    project.commit("first")
    assert project.run("init").status == 0
    done = project.run("allow", "--dry-run")
    assert (done.out, "nothing is new" in done.err) == ("", True)
    other = tracked_project(tmp_path / "other")
    assert other.run("hook", "install").status == 0
    assert other.run("allow", "--dry-run").out == ""
    other.commit("evil", {"suites/tiny/fit.py": "evil\n"})
    again = other.run("hook", "install")
    assert "see it: `celedger allow --dry-run`" in again.err
    assert "tiny/fit.py" in other.run("allow", "--dry-run").out


def test_allow_shows_what_differs_and_hides_nothing(tmp_path: Path) -> None:
    project = tracked_project(tmp_path / "project")
    first = project.allow()
    assert "+asks: command = '{python}' '{suite}/fit.py' --seed '{seed}'" in first
    assert "+tiny/fit.py" in first
    toml = (project.root / "suites" / "tiny" / "suite.toml").read_text()
    project.commit("theirs", {
        "suites/tiny/suite.toml": toml.replace("--seed", "--quick \\u202e --seed").replace(
            '"tiny"', '"tiny"\nbuild = ["make -j2"]'
        ),
        "suites/tiny/fit.py": "\x1b[8mhidden\u200b\n"
        + (project.root / "suites" / "tiny" / "fit.py").read_text(),
    })  # fmt: skip
    assert (
        project.allow()
        == """\
training fit of suite tiny
  -asks: command = '{python}' '{suite}/fit.py' --seed '{seed}'
  +asks: build 1 = make -j2
  +asks: command = '{python}' '{suite}/fit.py' --quick '\\u202e' --seed '{seed}'

tiny/fit.py
  +\\x1b[8mhidden\\u200b
   import random, sys
   from celedger.child import log
"""
    )
    assert project.allow() == ""


def test_another_function_of_an_allowed_file_is_asked_about(tmp_path: Path) -> None:
    project = tracked_project(tmp_path / "project")
    path = project.root / "suites" / "tiny" / "suite.toml"
    toml = path.read_text().replace('"tiny"', '"tiny"\npreflight = true', 1)
    checks = '[preflight]\nchecks = ["fit.py:first"]\n'
    project.commit("checks", {"suites/tiny/suite.toml": toml + checks})
    project.allow()
    assert project.allow() == ""
    project.commit("theirs", {"suites/tiny/suite.toml": toml + checks.replace("first", "other")})
    assert '+asks: preflight checks = ["fit.py:other"]' in project.allow()


def evil(project: Project, file: str, content: bytes) -> str:
    """Commit a file as a stranger does, and return what `allow` shows of that."""
    (project.root / file).parent.mkdir(exist_ok=True)
    (project.root / file).write_bytes(content)
    project.commit("theirs")
    return project.run("allow", "--dry-run").out


def test_a_script_that_holds_a_nul_byte_is_shown_escaped(tmp_path: Path) -> None:
    project = tracked_project(tmp_path / "project")
    project.allow()
    fit = (project.root / "suites" / "tiny" / "fit.py").read_bytes()
    shown = evil(project, "suites/tiny/fit.py", b"# \0\x1b\xff\nimport evil\n" + fit)
    start = "tiny/fit.py (binary)\n  +# \\x00\\x1b\\xff\n  +import evil\n   import random, sys\n"
    assert shown.startswith(start), shown


def test_a_tracked_interpreter_is_shown_whole_and_then_what_differs(tmp_path: Path) -> None:
    suite = SUITE.format('python = "tools/python"')
    project = make_project(tmp_path / "project", suite, {"fit.py": FIT})
    wrapper = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    project.commit("first", {"a": "", "tools/python": wrapper})
    (project.root / "tools" / "python").chmod(0o755)
    project.allow()
    wrapper += "\n\n\n\n# end\n"
    shown = evil(project, "tools/python", wrapper.encode())
    assert "   #!/bin/sh" in shown and "  +# end" in shown
    project.allow()
    shown = evil(project, "tools/python", wrapper.encode() + b"evil\n")
    assert shown == "tools/python\n   \n   # end\n  +evil\n"
    shown = evil(project, "tools/python", bytes(1 << 20))
    assert "  +(1048576 bytes, too long to show) " in shown


@pytest.mark.parametrize(
    ("before", "now", "shown"),
    [
        (b"a\n", b"a\r\n", "  -a\n  +a\\r\n"),
        (b"# a\x0cb\n", b"# a\nb\n", "  -# a\\x0cb\n  +# a\n  +b\n"),
        (b"\xfe\n", b"\xff\n", "  -\\xfe\n  +\\xff\n"),
        (b"a\n", b"a", "  -a\n  +a (no end of line)\n"),
    ],
    ids=["CRLF", "form feed", "not UTF-8", "no end of line"],
)
def test_no_change_is_hidden_by_how_a_file_is_read(
    tmp_path: Path, before: bytes, now: bytes, shown: str
) -> None:
    project = tracked_project(tmp_path / "project")
    (project.root / "suites" / "tiny" / "data").write_bytes(before)
    project.allow()
    assert shown in evil(project, "suites/tiny/data", now)


def test_no_change_is_hidden_by_an_equal_text(tmp_path: Path) -> None:
    project = tracked_project(tmp_path / "project")
    toml = project.root / "suites" / "tiny" / "suite.toml"
    text = toml.read_text().replace("seeds =", "params = { x = 1 }\nseeds =")
    toml.write_text(text.replace("--seed {seed}", "--seed {seed} {x}"))
    (project.root / "suites" / "tiny" / "fit.py").chmod(0o644)
    project.allow()
    (project.root / "suites" / "tiny" / "fit.py").chmod(0o755)
    shown = evil(project, "suites/tiny/suite.toml", toml.read_bytes().replace(b"x = 1", b'x = "1"'))
    assert '  -asks: parameter x = 1\n  +asks: parameter x = "1"\n' in shown, shown
    assert "tiny/fit.py\n  +(executable)\n" in shown, shown
    deep = "[" * 100_000  # no JSON, and deeper than it can be read
    text = toml.read_text().replace('x = "1"', f'x = "{deep}"')
    shown = evil(project, "suites/tiny/suite.toml", text.encode())
    assert f"  +asks: parameter x = {deep}\n" in shown


def test_allow_allows_exactly_what_has_the_hash(tmp_path: Path) -> None:
    project = tracked_project(tmp_path / "project")
    gate = Gate.of(Repository.open(project.root), attended=False)
    shown = project.run("allow")
    assert (shown.status, gate.empty) == (125, True)
    assert project.run("allow", "0" * 12).status == 125
    assert evil(project, "suites/tiny/fit.py", b"evil\n")
    late = project.run("allow", hash_of(shown))
    assert (late.status, late.out, gate.empty) == (125, "", True)
    assert "differs from what was shown as" in late.err
    again = project.run("allow")
    assert hash_of(again) != hash_of(shown)
    assert hash_of(again) == hash_of(project.run("allow", "--dry-run"))
    assert project.run("allow", hash_of(again)).status == 0
    assert "nothing is new" in project.run("allow").err


def on_terminal(project: Project, asked: Callable[[], None], answer: str) -> tuple[int, str]:
    """Type `allow` on a terminal; when it asks, do something else first. Return what it said."""
    keys, line = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "celedger", "allow"], cwd=project.root,
        stdin=line, stdout=line, stderr=line, start_new_session=True,
    )  # fmt: skip
    os.close(line)
    said = b""
    while b"Allow this? [y/N]" not in said:
        said += os.read(keys, 65536)
    asked()
    os.write(keys, answer.encode())
    with suppress(OSError):  # EIO: nobody has the terminal open any more
        while piece := os.read(keys, 65536):
            said += piece
    os.close(keys)
    return program.wait(), said.decode()


def test_on_a_terminal_what_was_shown_is_allowed_and_nothing_else(tmp_path: Path) -> None:
    project = tracked_project(tmp_path / "project")
    gate = Gate.of(Repository.open(project.root), attended=False)
    status, said = on_terminal(project, lambda: None, "n\n")
    assert (status, gate.empty) == (125, True)
    assert "training fit of suite tiny" in said
    fit = project.root / "suites" / "tiny" / "fit.py"
    shown = fit.read_text()
    status, _ = on_terminal(project, lambda: fit.write_text("evil\n") and None, "y\n")
    assert status == 0
    assert "+evil" in project.run("allow").out
    fit.write_text(shown)
    assert "nothing is new" in project.run("allow").err


# --- the whole way: a pull, its hook, the worker, a person


@pytest.fixture
def hooked(tmp_path: Path, interpreter: str) -> Iterator[Project]:
    project = tracked_project(tmp_path / "project")
    hooks.install(Repository.open(project.root), interpreter)
    project.allow()
    yield project


@pytest.mark.matrix
def test_an_edit_that_was_run_by_hand_waits_for_nobody(hooked: Project, bell: Bell) -> None:
    text = (hooked.root / "suites" / "tiny" / "fit.py").read_text() + "# mine\n"
    git(hooked.root, "checkout", "-q", "-b", "next")
    hooked.commit("edit the suite", {"suites/tiny/fit.py": text})
    assert hooked.run("run", "HEAD").status == 0
    git(hooked.root, "checkout", "-q", "main")
    git(hooked.root, "merge", "-q", "next")
    assert bell.wait() == "ended 0"
    assert [job.state for job in _jobs(hooked)] == [JobState.DONE]


@pytest.mark.matrix
def test_a_pull_waits_for_a_person_and_goes_on_by_itself(hooked: Project, bell: Bell) -> None:
    sha = branch_ahead(hooked, {"suites/tiny/fit.py": "print('evil')\n"})
    git(hooked.root, "merge", "-q", "next")
    assert bell.wait() == "ended 0"
    (job,) = _jobs(hooked)
    assert (job.commit, job.state) == (sha, JobState.WAITING)
    author = git(hooked.root, "log", "-1", "--format=%an").strip()
    said = (
        f"{author} in {sha[:10]}: new since it was last allowed: tiny/fit.py (see it: "
        "`celedger allow --dry-run`; allow it"
    )
    log = (hooked.root / ".git" / "celedger" / "worker.log").read_text()
    for text in (job.message, log, hooked.run("queue").out, hooked.run("hook", "status").out,
                 hooked.run("log").err):  # fmt: skip
        assert said in text
    assert "print('evil')" in hooked.allow()
    until(lambda: _jobs(hooked)[0].state is JobState.DONE)
    assert "without reporting" in _jobs(hooked)[0].message


@pytest.mark.matrix
def test_a_metric_declared_as_celedger_has_it_by_itself_is_allowed_once(
    hooked: Project, bell: Bell
) -> None:
    """`allow` approved the suite without the runner's metrics, and the job went on waiting."""
    suite = (hooked.root / "suites" / "tiny" / "suite.toml").read_text()
    own = '[metrics.step_time]\ndirection = "lower"\nfloor = "5%"\n'
    branch_ahead(hooked, {"suites/tiny/suite.toml": suite + own})
    git(hooked.root, "merge", "-q", "next")
    assert bell.wait() == "ended 0"
    assert "+asks: metric step_time" in hooked.allow()
    until(lambda: _jobs(hooked)[0].state is JobState.DONE)


@pytest.mark.matrix
def test_the_next_merge_says_nothing_of_what_a_typed_worker_ended(
    hooked: Project, bell: Bell
) -> None:
    fit = (hooked.root / "suites" / "tiny" / "fit.py").read_text()
    branch_ahead(hooked, {"suites/tiny/fit.py": fit + "# theirs\n"})
    git(hooked.root, "merge", "-q", "next")
    assert bell.wait() == "ended 0"
    line = hooked.root / ".git" / "celedger" / "last-job"
    assert "waits: " in line.read_text()
    assert hooked.run("worker").status == 0
    assert not line.exists()


@pytest.mark.matrix
def test_what_a_linked_work_tree_waits_for_is_shown_and_allowed_there(
    hooked: Project, bell: Bell, tmp_path: Path
) -> None:
    linked = Project(tmp_path / "linked")
    git(hooked.root, "worktree", "add", "-q", "-b", "other", str(linked.root))
    fit = (linked.root / "suites" / "tiny" / "fit.py").read_text()
    branch_ahead(linked, {"suites/tiny/fit.py": fit + "# theirs\n"})
    git(linked.root, "merge", "-q", "next")
    assert bell.wait() == "ended 0"
    (job,) = _jobs(hooked)
    assert f"`celedger -C {linked.root} allow`" in job.message
    assert "+# theirs" in linked.allow()
    until(lambda: _jobs(hooked)[0].state is JobState.DONE)


@pytest.mark.matrix
def test_a_newer_merge_supersedes_one_that_waits(hooked: Project, bell: Bell) -> None:
    fit = (hooked.root / "suites" / "tiny" / "fit.py").read_text()
    for name, text in (("one", "evil\n"), ("two", fit)):
        branch_ahead(hooked, {"suites/tiny/fit.py": text}, name=name)
        git(hooked.root, "merge", "-q", name)
        assert bell.wait() == "ended 0"
    assert [job.state for job in _jobs(hooked)] == [JobState.SUPERSEDED, JobState.DONE]


def test_a_worker_that_nobody_attends_raises_before_it_opens_anything(crew: Crew) -> None:
    """The settings say which ledger it is."""
    crew.project.commit("theirs", {"celedger.toml": 'ledger = "other.db"\n'})
    crew.note()
    settings = crew.configure(crew.repository)
    from celedger.service.allow import check_settings

    with pytest.raises(NotAllowed, match="settings"):
        check_settings(Gate.of(crew.repository, attended=False), settings)
    assert isinstance(crew.worker(), Worker)
    assert crew.worker().collect() == 0  # the note stays
    assert not (crew.project.root / "other.db").exists()


def test_a_typed_worker_runs_without_being_asked_whether_it_may(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "celedger.toml").write_text("cache_limit = '1GB'\n")
    done = typed(["worker"], tmp_path)
    assert (done.status, done.err) == (0, "celedger: 0 jobs run, the queue is empty\n")


def test_a_dry_run_says_that_no_suite_is_there_and_nothing_else(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    done = typed(["allow", "--dry-run"], tmp_path)
    assert done.status == 129
    assert "no suite" in done.err
    assert "nothing is new" not in done.err
