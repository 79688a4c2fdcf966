"""Merges that attack: what a worker does unattended with what one brought, before anybody allowed
it. Real repositories, real pulls, the real program; the payload of each leaves a file behind if it
is ever run, and a secret outside of the repository must turn up nowhere in it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Done, Project, git, matrix_after

from celedger.base import shipped
from celedger.base.model import JobState
from celedger.ledger import Ledger

SUITE = """\
[suite]
name = "tiny"
{suite}
[metrics.val_loss]
direction = "lower"
[[task]]
name = "fit"
command = "{{python}} {{suite}}/fit.py{words}"
{task}
"""
FIT = """\
import model
from celedger.child import log
log(epoch=0, val_loss=model.LEVEL)
print("loss", model.LEVEL)
"""
SECRET = "the-user's-own-secret"


def suite(suite: str = "", words: str = "", task: str = "") -> str:
    return SUITE.format(suite=suite, words=words, task=task)


@dataclass
class World:
    """A repository that a person uses, the one that it pulls from, and what lies around."""

    upstream: Project
    victim: Project
    outside: Path

    @property
    def pwned(self) -> Path:
        return self.outside.with_name("pwned")

    @property
    def payload(self) -> str:
        return f"touch {self.pwned}"

    def evil(self, path: Path) -> Path:
        """A program that runs the payload, and does what an interpreter does."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\n{self.payload}\nexec "{sys.executable}" "$@"\n')
        path.chmod(0o755)
        return path

    def merge(self, files: dict[str, str] | None = None) -> str:
        """Commit upstream, pull, and leave the note that the hook leaves."""
        sha = self.upstream.commit("an attack", files)
        git(self.victim.root, "pull", "-q")
        self.note()
        return sha

    def note(self) -> None:
        folder = self.victim.root / ".git" / "celedger" / "queue"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "1.moved").write_text(str(self.victim.root))

    def work(self) -> Done:
        return self.victim.run("worker", "--from-hook")

    def jobs(self) -> list[tuple[JobState, str]]:
        with Ledger.open(self.victim.root / "ledger.db", readonly=True) as ledger:
            return [(job.state, job.message) for job in ledger.jobs()]

    def waits(self) -> bool:
        """Whether the newest merge waits, in the queue or as a note."""
        shown = json.loads(self.victim.run("queue", "--json").out)
        held = [job["message"] for job in shown["jobs"][-1:] if job["state"] == "waiting"]
        return "celedger allow" in "".join([shown["waits"], *held])

    def clean(self) -> bool:
        """Whether nothing was run, read or written that is not the repository's."""
        assert not self.pwned.exists(), "the payload ran"
        assert sorted(p.name for p in self.outside.iterdir()) == ["secret.txt", "victim.db"]
        assert (self.outside / "secret.txt").read_text() == SECRET
        assert (self.outside / "victim.db").read_bytes() == b""
        kept = [self.victim.root / ".git" / "celedger", self.victim.root / ".celedger"]
        files = [p for folder in kept if not folder.is_symlink()
                 for p in folder.rglob("*") if p.is_file()]  # fmt: skip
        assert not [p for p in files if SECRET.encode() in p.read_bytes()], "the secret was read"
        return True


@pytest.fixture
def world(tmp_path: Path) -> World:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    (outside / "victim.db").touch()
    upstream = Project(tmp_path / "upstream")
    upstream.root.mkdir()
    git(upstream.root, "init", "-q", "-b", "main")
    (upstream.root / ".gitignore").write_text(".venv/\n")
    return World(upstream, Project(tmp_path / "victim"), outside)


def begin(world: World, files: dict[str, str] | None = None, *, allow: bool = True) -> None:
    """What a person has and has allowed: the worker trains it."""
    world.upstream.commit("first", {
        "model.py": "LEVEL = 1.0\n", "suites/tiny/suite.toml": suite(),
        "suites/tiny/fit.py": FIT, **(files or {}),
    })  # fmt: skip
    git(world.victim.root.parent, "clone", "-q", str(world.upstream.root), "victim")
    if allow:
        world.victim.allow()


def link(world: World, name: str, target: Path | str) -> None:
    path = world.upstream.root / name
    if path.is_dir():
        git(world.upstream.root, "rm", "-qr", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


# --- what must wait: a suite, its scripts, the settings. Each gets the world, and what it merges.

WAITING: dict[str, Callable[[World], dict[str, str]]] = {
    "a build": lambda w: {"suites/tiny/suite.toml": suite(f'build = ["{w.payload}"]')},
    "another command": lambda w: {
        "suites/tiny/suite.toml": suite().replace(
            '"{python} {suite}/fit.py"', f'"sh -c \'{w.payload}; {{python}} {{suite}}/fit.py\'"'
        )
    },
    "another script": lambda w: {
        "suites/tiny/fit.py": f"import os; os.system('{w.payload}')\n" + FIT
    },
    "a module beside the script": lambda w: {
        "suites/tiny/model.py": f"import os; os.system('{w.payload}'); LEVEL = 1\n"
    },
    "an interpreter of the repository": lambda w: {
        "suites/tiny/suite.toml": suite('python = "./evil.sh"'),
        "evil.sh": w.evil(w.upstream.root / "evil.sh").read_text(),
    },
    "an interpreter elsewhere": lambda w: {
        "suites/tiny/suite.toml": suite(
            f'python = "{w.evil(w.outside.parent / "bin" / "evil")}"'
        )
    },
    "modules to preload": lambda w: {"suites/tiny/suite.toml": suite('preload = ["antigravity"]')},
    "requirements": lambda w: {
        "suites/tiny/suite.toml": suite('venv = ["requirements.txt"]'),
        "requirements.txt": f"--no-index\n--find-links {w.outside}\nevil\n",
    },
    "what looks like a placeholder": lambda w: {
        "suites/tiny/suite.toml": suite().replace("{suite}/fit.py", "{{suite}}/fit.py"),
        "{suite}/fit.py": f"import os; os.system('{w.payload}')\n" + FIT,
    },
    "a parameter": lambda w: {
        "suites/tiny/suite.toml": suite(words=" {x}", task='params = { x = "--evil" }')
    },
    "no time-out": lambda w: {"suites/tiny/suite.toml": suite('timeout = "300d"')},
    "ten thousand seeds": lambda w: {"suites/tiny/suite.toml": suite("seeds = 10000")},
    "a pattern that never ends": lambda w: {
        "suites/tiny/suite.toml": suite(task="pattern = '(?P<val_loss>(o+)+)$'")
    },
    "a metric that hides": lambda w: {
        "suites/tiny/suite.toml": suite().replace('"lower"', '"lower"\nfloor = "900%"')
    },
    "another task": lambda w: {
        "suites/tiny/suite.toml": suite() + f'[[task]]\nname = "x"\ncommand = "{w.payload}"\n'
    },
    "another suite by the settings": lambda w: {
        "celedger.toml": 'hook_suite = "other"\n',
        "suites/other/suite.toml": suite(f'build = ["{w.payload}"]').replace("tiny", "other"),
        "suites/other/fit.py": FIT,
    },
    "another folder of suites": lambda w: {
        "celedger.toml": 'suites = "others"\n', "others/tiny/fit.py": FIT,
        "others/tiny/suite.toml": suite(f'build = ["{w.payload}"]'),
    },
    "another ledger": lambda w: {"celedger.toml": 'ledger = "model.db"\n'},
    "a bisect": lambda w: {"pyproject.toml": "[tool.celedger]\nbisect_on_regression = true\n"},
    "a limit that empties the caches": lambda w: {"celedger.toml": "cache_limit = 1\n"},
    "inputs of a build": lambda w: {"suites/tiny/suite.toml": suite('inputs = ["**"]')},
    "a suite behind a link": lambda w: link(w, "suites/tiny", "../elsewhere") or {
        "elsewhere/suite.toml": suite(f'build = ["{w.payload}"]'), "elsewhere/fit.py": FIT,
    },
}  # fmt: skip


QUICK = ("a build",)


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(attack, id=name, marks=[] if name in QUICK else pytest.mark.matrix)
        for name, attack in WAITING.items()
    ],
)
def test_what_a_merge_brought_waits_until_a_person_allows_it(
    attack: Callable[[World], dict[str, str]], world: World
) -> None:
    begin(world)
    sha = world.merge(attack(world))
    done = world.work()
    assert world.clean()
    assert world.waits(), done.err
    assert not (world.victim.root / "model.db").exists()
    with Ledger.open(world.victim.root / "ledger.db", create=True) as ledger:
        assert ledger.trials() == []
    for verb in (["hook", "status"], ["log"]):
        shown = world.victim.run(*verb)
        said = shown.out + shown.err
        assert "allow it: `celedger allow`" in said or "no trials" in said, said
    shown = world.victim.run("allow", "--dry-run")
    assert shown.out and world.waits()
    # The revert is what was allowed: it is trained, with no word from anybody.
    git(world.upstream.root, "revert", "--no-edit", sha)
    git(world.victim.root, "pull", "-q")
    world.note()
    assert world.work().status == 0
    assert world.jobs()[-1] == (JobState.DONE, "nothing is worse")
    assert world.clean()


@pytest.mark.matrix
def test_the_code_under_test_and_what_an_allowed_build_reads_of_it_may_change(
    world: World,
) -> None:
    begin(world, {"setup.py": "pass\n", "suites/tiny/suite.toml": suite('build = ["sh setup.py"]')})
    world.merge({"model.py": "LEVEL = 1.5\n", "setup.py": world.payload, "README.md": "x",
                 "suites/tiny/README.md": "words"})  # fmt: skip
    world.work()
    assert world.jobs() == [(JobState.DONE, "nothing is worse")]
    assert world.pwned.exists()


@pytest.mark.matrix
def test_files_that_git_and_python_obey_elsewhere_start_nothing(world: World) -> None:
    """A merge cannot bring the configuration that drivers, hooks and submodules need; and modules
    of the repository are for trainings, not for celedger and its questions to the interpreter."""
    begin(world, {"suites/tiny/suite.toml": suite('preload = ["json"]')})
    module = f"import os\n'/checkouts/' in os.getcwd() or os.system({world.payload!r})\n"
    names = ("csv", "zipfile", "sqlite3", "typer", "psutil", "usercustomize")
    world.merge({
        **{f"{name}.py": module for name in names},
        ".gitattributes": "* filter=evil diff=evil merge=evil\n",
        ".gitmodules": '[submodule "x"]\npath = x\nurl = ./y\nupdate = "!' + world.payload + '"\n',
        ".gitconfig": f'[filter "evil"]\nsmudge = {world.payload}\n',
        "hooks/post-checkout": f"#!/bin/sh\n{world.payload}\n",
        ".githooks/post-checkout": f"#!/bin/sh\n{world.payload}\n",
    })  # fmt: skip
    # As the hook starts it: the program of other tests has its modules by now.
    words = [sys.executable, "-P", "-m", "celedger", "worker"]
    subprocess.run(words, cwd=world.victim.root, check=True)
    assert world.jobs() == [(JobState.DONE, "nothing is worse")]
    assert world.clean()


@pytest.mark.matrix
def test_settings_that_outweigh_those_allowed_wait(world: World) -> None:
    begin(world, {"pyproject.toml": '[tool.celedger]\nsuite = "tiny"\n'})
    world.merge({"celedger.toml": 'suite = "tiny"\nbisect_on_regression = true\n'})
    world.work()
    assert world.waits()
    assert "bisect_on_regression" in world.victim.run("queue").out


def test_requirements_that_change_wait_though_the_suite_is_the_same(world: World) -> None:
    begin(world, {
        "suites/tiny/suite.toml": suite('venv = ["r*.txt"]'), "r.txt": "-c c.txt\n", "c.txt": "#\n"
    })  # fmt: skip
    world.merge({"c.txt": "evil==1\n"})
    world.work()
    assert world.waits()
    shown = world.victim.run("allow", "--dry-run").out
    assert "+evil==1" in shown, shown


def test_an_interpreter_that_a_merge_changes_is_not_run(world: World) -> None:
    world.evil(world.upstream.root / "tools" / "python")
    begin(world, {
        "suites/tiny/suite.toml": suite('python = "tools/python"'),
        "tools/python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
    })  # fmt: skip
    world.merge({"tools/python": f'#!/bin/sh\n{world.payload}\nexec "{sys.executable}" "$@"\n'})
    world.work()
    assert world.waits()
    assert world.clean()


def test_files_that_a_merge_puts_into_a_virtual_environment_are_not_run(world: World) -> None:
    begin(world, {"suites/tiny/suite.toml": suite('python = ".venv/bin/python"')}, allow=False)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    venv.create(world.victim.root / ".venv", with_pip=False, symlinks=True)
    world.victim.allow()
    folder = f".venv/lib/{version}/site-packages"
    site = world.upstream.root / folder / "sitecustomize.py"
    site.parent.mkdir(parents=True)
    site.write_text(f"import os; os.system('{world.payload}')\n")
    git(world.upstream.root, "add", "-f", folder)
    world.merge()
    world.work()
    assert world.waits()
    assert world.clean()
    assert "sitecustomize.py" in world.victim.run("queue").out


def test_a_suite_of_the_repository_in_the_place_of_a_shipped_one_waits(world: World) -> None:
    begin(world, {"celedger.toml": 'suite = "core"\n'})
    core = shipped("suites") / "core"
    text = (core / "suite.toml").read_text()
    scripts = {f"suites/core/{p.name}": p.read_text() for p in core.glob("*.py")}
    scripts["suites/core/digits.py"] = f"import os; os.system('{world.payload}')\n"
    world.merge({"suites/core/suite.toml": text, **scripts})
    world.work()
    assert world.waits()
    assert world.clean()


# --- what is refused, allowed or not: what leads out of the repository

REFUSED: dict[str, tuple[Callable[[World], object], str]] = {
    "a ledger elsewhere": (
        lambda w: w.merge({"celedger.toml": f'ledger = "{w.outside}/victim.db"\n'}),
        "leads out of the repository",
    ),
    "a ledger above": (
        lambda w: w.merge({"celedger.toml": 'ledger = "../outside/victim.db"\n'}),
        "leads out of the repository",
    ),
    "a ledger in .git": (
        lambda w: w.merge({"celedger.toml": 'ledger = ".git/hooks/post-commit"\n'}),
        "leads out of the repository",
    ),
    "a ledger with a line for .git/info/exclude": (
        lambda w: w.merge({"celedger.toml": 'ledger = "x\\n*\\n"\n'}),
        "leads out of the repository",
    ),
    "suites elsewhere": (
        lambda w: w.merge({"celedger.toml": f'suites = "{w.outside}"\n'}),
        "leads out of the repository",
    ),
    "a suite elsewhere": (
        lambda w: w.merge({"celedger.toml": 'hook_suite = "../outside"\n'}),
        "leads out of the repository",
    ),
    "a link for the ledger": (
        lambda w: (link(w, "ledger.db", w.outside / "victim.db"), w.merge()),
        "ledger.db is a symbolic link",
    ),
    "a link for its folder": (
        lambda w: (link(w, ".celedger", w.outside), w.merge()),
        ".celedger is a symbolic link",
    ),
    "settings behind a link": (
        lambda w: (link(w, "celedger.toml", w.outside / "secret.txt"), w.merge()),
        "celedger.toml is a link that leads out of the repository",
    ),
    "settings behind a link, for all tools": (
        lambda w: (link(w, "pyproject.toml", w.outside / "secret.txt"), w.merge()),
        "pyproject.toml is a link that leads out of the repository",
    ),
    "a link for the suites": (
        lambda w: (link(w, "suites", w.outside), w.merge()),
        "suites is a symbolic link",
    ),
    "a ledger of its own": (
        lambda w: (sqlite3.connect(w.upstream.root / "ledger.db").execute("CREATE TABLE t (x)"),
                   w.merge()),
        "git tracks ledger.db",
    ),
    "a link in its folder": (
        lambda w: (link(w, ".celedger/logs", w.outside), w.merge()),
        "git tracks .celedger/logs",
    ),
}  # fmt: skip


QUICK_REFUSED = ("a ledger elsewhere", "settings behind a link", "a ledger of its own")


@pytest.mark.parametrize(
    ("attack", "says"),
    [
        pytest.param(*attack, id=name, marks=[] if name in QUICK_REFUSED else pytest.mark.matrix)
        for name, attack in REFUSED.items()
    ],
)
def test_what_leads_out_of_the_repository_is_refused(
    attack: Callable[[World], object], says: str, world: World
) -> None:
    begin(world)
    attack(world)
    done = world.work()
    states = world.jobs() if (world.victim.root / "ledger.db").is_file() and not done.err else []
    assert says in done.err + "".join(message for _, message in states), (done, states)
    assert world.clean()
    # A command that a person types does not follow it either.
    typed = world.victim.run("run", "HEAD")
    assert says in typed.err, typed.err
    assert typed.status in (128, 129)
    assert world.clean()
    assert "\n*\n" not in (world.victim.root / ".git" / "info" / "exclude").read_text()


@pytest.mark.matrix
def test_a_suite_behind_a_link_that_leads_out_is_not_read(world: World) -> None:
    begin(world)
    theirs = world.outside.parent / "theirs"
    theirs.mkdir()
    (theirs / "suite.toml").write_text(suite(f'build = ["{world.payload}"]'))
    (theirs / "fit.py").write_text(FIT)
    link(world, "suites/tiny", theirs)
    world.merge()
    world.work()
    ((state, message),) = world.jobs()
    assert state is JobState.FAILED
    assert "suites/tiny is a link that leads out of the repository" in message
    assert world.victim.run("run", "HEAD").status == 129
    assert world.clean()


@pytest.mark.matrix
def test_during_a_git_bisect_a_link_that_leads_out_is_not_read(world: World) -> None:
    """The suite is then laid in another folder, as it is at the commit where the bisect began."""
    begin(world)
    link(world, "suites/tiny/data", world.outside / "secret.txt")
    world.merge()
    for words in (["start"], ["bad"], ["good", "HEAD~1"]):
        git(world.victim.root, "bisect", *words)
    git(world.victim.root, "checkout", "-q", "--detach", "HEAD~1")
    done = world.victim.run("check")
    assert "suites/tiny/data of " in done.err and "leads out" in done.err, done.err
    assert done.status == 128
    assert world.clean()


@pytest.mark.parametrize("name", matrix_after(1, ["fit.py", "data", "suite.toml"]))
def test_a_link_in_a_suite_that_leads_out_is_not_read(name: str, world: World) -> None:
    begin(world)
    git(world.upstream.root, "rm", "-q", "--ignore-unmatch", f"suites/tiny/{name}")
    target = world.outside if name == "data" else world.outside / "secret.txt"
    link(world, f"suites/tiny/{name}", target)
    world.merge()
    world.work()
    ((state, message),) = world.jobs()
    assert state is JobState.FAILED
    assert "leads out of the repository" in message
    assert world.clean()
    assert world.victim.run("run", "HEAD").status == 129
    assert world.clean()


@pytest.mark.matrix
def test_a_link_into_gits_own_folder_is_not_read(world: World) -> None:
    begin(world)
    (world.victim.root / ".git" / "token").write_text(SECRET)
    link(world, "suites/tiny/data", "../../.git/token")
    world.merge()
    world.work()
    assert "leads out of the repository" in world.jobs()[0][1]
    assert world.clean()


@pytest.mark.matrix
def test_requirements_that_are_a_link_are_not_read(world: World) -> None:
    begin(world, {"suites/tiny/suite.toml": suite('venv = ["r.txt"]'), "r.txt": "#\n"})
    git(world.upstream.root, "rm", "-q", "r.txt")
    link(world, "r.txt", world.outside / "secret.txt")
    world.merge()
    world.work()
    assert "r.txt is a symbolic link" in world.jobs()[0][1]
    assert world.clean()


@pytest.mark.matrix
def test_what_a_build_made_is_not_brought_back_through_a_link(world: World) -> None:
    begin(world, {
        "suites/tiny/suite.toml": suite('build = ["sh build.sh"]\ninputs = ["build.sh"]'),
        "build.sh": "test -L lib || echo made >lib/made.txt\n", "lib/x": "1",
    })  # fmt: skip
    world.note()
    assert world.work().status == 0
    assert world.jobs() == [(JobState.DONE, "nothing is worse")]
    assert len(list((world.victim.root / ".git" / "celedger" / "builds").iterdir())) == 1
    link(world, "lib", world.outside)
    world.merge({"model.py": "LEVEL = 2.0 - 1.0\n"})
    world.work()
    assert world.jobs()[-1] == (JobState.DONE, "nothing is worse")
    assert world.clean()


@pytest.mark.matrix
def test_what_a_subject_says_to_a_terminal_is_removed_or_written_out(world: World) -> None:
    begin(world)
    subject = "\x1b]0;owned\x07 \u202etxt.exe \u2066 \x9b31m red\x7f"
    (world.upstream.root / "a").touch()
    git(world.upstream.root, "add", "-A")
    git(world.upstream.root, "commit", "-qm", subject, "--author", "E\u202e\x1b[2J <e@e>")
    git(world.victim.root, "pull", "-q")
    world.note()
    assert world.work().status == 0
    rows = sqlite3.connect(world.victim.root / "ledger.db").execute(
        "SELECT subject, author FROM commits WHERE subject LIKE '%txt.exe%'"
    )
    shown = "\\u202etxt.exe \\u2066 \\x9b31m red\\x7f"
    assert rows.fetchall() == [(shown, "E\\u202e")]
    for verb in (["log"], ["show"], ["queue"], ["show", "--json"]):
        done = world.victim.run(*verb)
        text = done.out + done.err
        assert not set("\x1b\x07\u202e\u2066\x9b\x7f") & set(text), text
