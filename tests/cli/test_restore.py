"""Whatever becomes of the ledger's file, what was measured comes back."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from conftest import SUITE, Project, git, make_project, until, with_verbs
from scripted import scripted

EPOCHS = 12
# A training that does something to the ledger when it has reported a third of its epochs.
HARMFUL = f"""\
import os, shutil, sys, time
from pathlib import Path
from celedger.child import log
from model import LEVEL
for epoch in range({EPOCHS}):
    log(epoch=epoch, val_loss=LEVEL + 1 / (epoch + 1))
    if epoch == {EPOCHS // 3} and os.path.exists(os.environ.get("HARM", "")):
        exec(open(os.environ["HARM"]).read())
"""


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Three commits, the first two of them measured."""
    project = make_project(
        tmp_path / "project",
        SUITE.replace("[suite]\n", '[suite]\npass_env = ["HARM"]\n'),
        {"fit.py": HARMFUL},
    )
    monkeypatch.setenv("HARM", str(tmp_path / "harm.py"))
    project.history([1.0, 1.2, 1.4])
    for commit in ("HEAD~2", "HEAD~1"):
        assert project.run("run", commit).status in (0, 1)
    return project


def read(project: Project) -> list[str]:
    return [
        project.run(*words).out for words in (("log",), ("show", "HEAD~1"), ("drift", "HEAD~1"))
    ]


def clean(project: Project) -> None:
    """What a person types; the suite, which these tests keep out of the history, comes back."""
    suites = project.root.with_name("suites")
    shutil.copytree(project.root / "suites", suites)
    git(project.root, "clean", "-xfdq")
    assert sorted(p.name for p in project.root.iterdir()) == [".git", "model.py"]
    shutil.move(suites, project.root / "suites")


def trials(ledger: Path) -> list[tuple[str, int, int]]:
    """Outcome, epochs by the outcome, and epochs that are there, of each trial that ran."""
    with closing(sqlite3.connect(ledger)) as connection:
        return connection.execute(
            "SELECT kind, epochs, (SELECT count(DISTINCT epoch) FROM points p WHERE "
            "p.trial = o.trial) FROM outcomes o WHERE o.trial NOT IN (SELECT trial FROM derived)"
        ).fetchall()


@with_verbs("explain", "watch", "profile", "preflight", "plot")
@pytest.mark.matrix
def test_git_clean_is_told_by_every_command_and_undone_by_one(measured: Project) -> None:
    before = read(measured)
    clean(measured)
    queued = measured.root / ".git" / "celedger" / "queue" / "1.moved"
    queued.parent.mkdir(exist_ok=True)
    queued.write_text(str(measured.root))
    for words in (
        ["log"], ["show"], ["diff", "HEAD~2..HEAD"], ["drift"], ["noise"], ["table"], ["run"],
        ["check"], ["bisect", "HEAD~2..HEAD"], ["explain", "HEAD~2..HEAD"], ["watch", "fit"],
        ["worker"], ["profile", "HEAD", "fit"], ["preflight", "fit"],
        ["baseline", "pin", "HEAD", "--why", "x"], ["plot", "drift", "HEAD"],
        ["plot", "curves", "HEAD", "--task", "fit"],
    ):  # fmt: skip
        answer = measured.run(*words)
        assert answer.status == 128, words
        assert (
            "is missing or empty; " in answer.err and "celedger doctor --restore" in answer.err
        ), words
        assert len(answer.err.splitlines()) == 1, words
    assert "is missing or empty; " in measured.run("doctor").out
    assert not (measured.root / "ledger.db").exists()
    assert queued.exists()
    done = measured.run("doctor", "--restore")
    assert done.status == 0, done.out + done.err
    assert "restored    4 trials" in done.out
    assert "every row is as celedger wrote it" in done.out
    assert read(measured) == before
    assert "queued" in measured.run("queue").out or queued.exists()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("harm", "elsewhere"),
    [
        ("os.system('cd {root} && git clean -xfdq -e suites')", False),
        ("shutil.copy('{ledger}', '{ledger}-2'); os.replace('{ledger}-2', '{ledger}')", False),
        ("shutil.rmtree(Path('{ledger}').parent)", True),
    ],
    ids=["git clean", "replaced", "folder"],
)  # fmt: skip
def test_a_ledger_that_goes_away_during_a_trial_is_told_and_comes_back_with_it(
    measured: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: str,
    elsewhere: bool,
) -> None:
    ledger = measured.root / "ledger.db"
    if elsewhere:
        ledger = tmp_path / "data" / "ledger.db"
        ledger.parent.mkdir()
        monkeypatch.setenv("CELEDGER_LEDGER", str(ledger))
        assert measured.run("run", "HEAD~1").status == 0
    script = tmp_path / "harm.py"
    script.write_text(harm.format(ledger=ledger, root=measured.root))
    before = len(trials(ledger))
    done = measured.run("run", "HEAD", "--seed", "0", env={"HARM": str(script)})
    script.unlink()
    assert done.status == 128, done.err
    last = done.err.splitlines()[-1]
    assert "disappeared during a write" in last and "celedger doctor --restore" in last
    assert done.out == ""
    ledger.parent.mkdir(exist_ok=True)
    back = measured.run("doctor", "--restore")
    assert back.status == 0, back.out + back.err
    assert trials(ledger)[before:] == [("ok", EPOCHS, EPOCHS)]
    assert measured.run("run", "HEAD", "--seed", "0").status in (0, 1)
    assert len(trials(ledger)) == before + 1, "what came back was measured again"


@pytest.mark.matrix
def test_journals_that_go_away_during_a_trial_take_no_epoch_with_them(
    measured: Project, tmp_path: Path
) -> None:
    script = tmp_path / "harm.py"
    script.write_text(
        f"root = Path({str(measured.root)!r})\n"
        "for place in ('.celedger', *root.glob('.git/celedger/ledgers/*/journals')):\n"
        "    shutil.rmtree(root / place)\n"
    )
    done = measured.run("run", "HEAD", "--seed", "0", env={"HARM": str(script)})
    assert done.status in (0, 1), done.err
    assert trials(measured.root / "ledger.db")[-1] == ("ok", EPOCHS, EPOCHS)


def start(project: Project, script: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "celedger", *words], cwd=project.root, text=True,
        env={**os.environ, "HARM": str(script)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_trial_whose_ledger_and_runner_are_gone_comes_back_with_its_epochs(
    measured: Project, tmp_path: Path
) -> None:
    script, mark = tmp_path / "harm.py", tmp_path / "mark"
    script.write_text(
        f"os.system('cd {measured.root} && git clean -xfdq -e suites')\n"
        f"log(epoch=50, val_loss=0.5)\nopen({str(mark)!r}, 'w').close()\ntime.sleep(600)\n"
    )
    runner = start(measured, script, "run", "HEAD", "--seed", "0")
    until(mark.exists)
    runner.send_signal(signal.SIGKILL)
    runner.communicate()
    assert measured.run("log").status == 128
    back = measured.run("doctor", "--restore")
    assert back.status == 0, back.out + back.err
    assert "was interrupted; the ledger has 6 epochs of it" in back.err
    assert trials(measured.root / "ledger.db")[-1] == ("interrupted", 6, 6)
    journals = measured.root / ".git" / "celedger" / "ledgers" / "ledger.db" / "journals"
    assert not list(journals.iterdir())


@pytest.mark.matrix
def test_another_repository_that_shares_the_ledger_leaves_a_trial_that_runs_alone(
    measured: Project, tmp_path: Path
) -> None:
    other = make_project(tmp_path / "other")
    other.history([1.0])
    script, mark, go = (tmp_path / name for name in ("harm.py", "mark", "go"))
    script.write_text(
        f"open({str(mark)!r}, 'w').close()\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    )
    runner = start(measured, script, "run", "HEAD", "--seed", "0")
    until(mark.exists)
    ledger = str(measured.root / "ledger.db")
    assert "interrupted" not in other.run("--ledger", ledger, "log").err
    go.touch()
    _, err = runner.communicate(timeout=120)
    assert runner.returncode in (0, 1), err
    assert trials(measured.root / "ledger.db")[-1] == ("ok", EPOCHS, EPOCHS)


@pytest.mark.matrix
def test_a_damaged_ledger_is_named_and_rebuilt(measured: Project) -> None:
    ledger = measured.root / "ledger.db"
    before = read(measured)
    data = bytearray(ledger.read_bytes())
    at = data.index(b"level 1.2")
    data[at] ^= 1
    ledger.write_bytes(data)
    for words in (["log"], ["show"], ["drift"], ["check"], ["run"]):
        answer = measured.run(*words)
        assert (answer.status, answer.out) == (128, ""), words
        assert len(answer.err.splitlines()) == 1
        assert "is damaged: commit " in answer.err and "celedger doctor" in answer.err
    answer = measured.run("doctor")
    assert answer.status == 128
    assert "damaged     commit " in answer.out and "`celedger doctor --restore`" in answer.out
    back = measured.run("doctor", "--restore")
    assert back.status == 0, back.out + back.err
    assert "ledger.db.damaged-1: the damaged ledger" in back.out
    assert (measured.root / "ledger.db.damaged-1").read_bytes() == data
    assert read(measured) == before
    assert git(measured.root, "status", "--porcelain") == ""


@pytest.mark.matrix
def test_there_may_be_nothing_to_restore(measured: Project, tmp_path: Path) -> None:
    answer = measured.run("--ledger", str(tmp_path / "none.db"), "doctor", "--restore")
    assert answer.status == 129
    assert "nothing to restore" in answer.err


def test_a_restore_that_lost_nothing_exits_0(tmp_path: Path) -> None:
    project = scripted(tmp_path / "project")
    project.history([1.0, 1.2])
    assert project.run("run", "HEAD").status == 0
    # What `git clean -xfd` takes along, too, is no part of the question.
    toml = project.root / "suites" / "tiny" / "suite.toml"
    toml.write_text(SUITE.replace('"tiny"', '"tiny"\npython = ".venv/bin/python"', 1))
    (project.root / "ledger.db").unlink()
    back = project.run("doctor", "--restore")
    assert "problem     " in back.out
    assert back.status == 0, back.out + back.err
    toml.write_text(SUITE)
    # A damaged archive of a ledger that is whole.
    backup = project.root / ".git" / "celedger" / "ledgers" / "ledger.db" / "archive.db"
    with closing(sqlite3.connect(backup, isolation_level=None)) as person:
        person.execute("DROP TRIGGER points_never_changed")
        person.execute("UPDATE points SET value = 9")
    assert project.run("doctor").status == 128
    renewed = project.run("doctor", "--restore")
    assert renewed.status == 0, renewed.out + renewed.err
    assert project.run("doctor").status == 0
    # The same, and the ledger is gone: something is lost.
    with closing(sqlite3.connect(backup, isolation_level=None)) as person:
        person.execute("DROP TRIGGER points_never_changed")
        person.execute("UPDATE points SET value = 9 WHERE trial = 1")
    (project.root / "ledger.db").unlink()
    lost = project.run("doctor", "--restore")
    assert (lost.status, "lost        " in lost.out) == (128, True)


def test_a_ledger_from_a_cache_may_lack_what_another_branch_measured_here(tmp_path: Path) -> None:
    """On a self-hosted runner the archive stays, and each job restores its branch's ledger."""
    project = scripted(tmp_path / "project")
    project.history([1.0])
    project.run("run", "HEAD")
    cached = (project.root / "ledger.db").read_bytes()
    git(project.root, "checkout", "-q", "-b", "other")
    project.history([1.1])
    project.run("run", "HEAD")
    (project.root / "ledger.db").write_bytes(cached)
    git(project.root, "checkout", "-q", "main")
    project.history([1.2])
    said = [project.run(*words).err for words in (["log"], ["run", "HEAD"], ["drift"])]
    assert "is missing recorded" not in "".join(said)
    assert "its archive has 2 more: `celedger doctor --restore`" in project.run("doctor").out
    (project.root / "ledger.db").write_bytes(cached)
    assert "is missing recorded trials" in project.run("log").err
    assert "restored    4 trials" in project.run("doctor", "--restore").out
    assert "its archive has" not in project.run("doctor").out
