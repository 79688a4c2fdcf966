"""Landlock, with the kernel's own word for it: what a training and its build may write, started
cold and from a launcher, and what happens where the kernel has none."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Project, make_project, matrix_after

from celedger import suite as suites
from celedger.base import config
from celedger.base.errors import MachineError
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.system import process, sandbox
from celedger.trial.permissions import Gate
from celedger.trial.workplace import choose_tasks, local_bench

needs_landlock = pytest.mark.skipif(
    sandbox.version() < sandbox.NEEDED, reason="this kernel has no Landlock, or too old a one"
)
# What is tried, and whether it is let. Each line is an expression; `out` is the user's own folder.
TRIED = {
    "open('new', 'w')": True,
    "os.mkdir('d')": True,
    "os.rename('new', 'd/new')": True,
    "open('/dev/null', 'w')": True,
    "tempfile.TemporaryFile()": True,
    "multiprocessing.Lock()": True,
    "subprocess.run('echo x >>/dev/stderr', shell=True, check=True)": True,
    "open(out + '/theirs').read()": True,
    "open(out + '/theirs', 'a')": False,
    "open(out + '/new', 'w')": False,
    "os.truncate(out + '/theirs', 0)": False,
    "os.open(out + '/theirs', os.O_TRUNC)": False,
    "os.unlink(out + '/theirs')": False,
    "os.rename(out + '/theirs', 'mine')": False,
    "os.rename('d/new', out + '/new')": False,
    "os.link(out + '/theirs', 'mine')": False,
    "os.mkdir(out + '/d')": False,
    "os.symlink('x', out + '/link')": False,
    "os.mkfifo(out + '/fifo')": False,
    "os.symlink(out + '/theirs', 's') or open('s', 'a')": False,
    "subprocess.run(['sh', '-c', f'echo x >{out}/new'], check=True)": False,
}
SCRIPT = f"""\
import multiprocessing, os, subprocess, sys, tempfile
out = sys.argv[1]
for tried, let in {TRIED!r}.items():
    try:
        eval(tried)
        done = True
    except (OSError, subprocess.CalledProcessError):
        done = False
    if done != let:
        print("wrong:", tried, done)
print("tried")
"""


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """Return a folder outside of /dev/shm, where each command may write."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@needs_landlock
def test_a_command_writes_only_where_it_may(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path = on_disk
    for name in ("tree", "out", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    theirs = tmp_path / "out" / "theirs"
    theirs.write_text("theirs")
    (tmp_path / "script.py").write_text(SCRIPT)
    log = tmp_path / "log"
    done = process.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "out")],
        cwd=tmp_path / "tree", env=os.environ, log=log, timeout=60,
        writable=(tmp_path / "tree", log),
    )  # fmt: skip
    assert done.ok, log.read_text()
    lines = log.read_text().splitlines()
    assert lines[-1] == "tried"
    assert not [line for line in lines if line.startswith("wrong")]
    assert theirs.read_text() == "theirs"
    assert list((tmp_path / "out").iterdir()) == [theirs]


SUITE = """\
[suite]
name = "tiny"
sandbox = {sandbox}
preload = {preload}
build = ["sh -c 'echo made >made; echo x >{user}/built || true'"]
[metrics.val_loss]
direction = "lower"
[[task]]
name = "fit"
command = "{{python}} {{suite}}/fit.py {{out}} {user}"
"""
FIT = """\
import os, subprocess, sys
from celedger.child import log
assert open("made").read() == "made\\n"
out, user = sys.argv[1:]
open(f"{out}/weights", "w").write("x")
# As torchrun and accelerate start theirs: without the descriptors they inherit.
child = "from celedger.child import log; log(epoch=0, val_loss=1.0)"
subprocess.run([sys.executable, "-c", child], check=True, close_fds=True)
log(epoch=1, val_loss=1.0)
try:
    open(f"{user}/trained", "w")
except OSError:
    pass
"""


@pytest.mark.matrix
@needs_landlock
@pytest.mark.parametrize("preload", matrix_after(1, ["[]", '["json"]']))
@pytest.mark.parametrize("whose", ["suite", "user", "nobody"])
def test_a_training_and_its_build_write_only_where_they_are_meant_to(
    whose: str, preload: str, tmp_path: Path, on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = on_disk / "user"
    (tmp_path / "tmp").mkdir()
    user.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    text = SUITE.format(sandbox=str(whose == "suite").lower(), preload=preload, user=user)
    project = make_project(tmp_path / "project", text, {"fit.py": FIT})
    if whose == "user":
        own = Path(os.environ["XDG_CONFIG_HOME"]) / "celedger" / "config.toml"
        own.parent.mkdir(parents=True)
        own.write_text("sandbox = true\n")
    project.commit("first")
    done = project.run("run", "HEAD")
    assert done.status == 0, done.out + done.err
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        (record,) = ledger.trials()
    assert record.ok and record.epochs == 2, record
    assert (record.rules["duration"] == "warm") is (preload != "[]")
    assert [*(project.root / ".celedger" / "out").glob(f"*/*{record.trial.ulid}/weights")]
    names = [] if whose != "nobody" else ["built", "trained"]
    assert sorted(path.name for path in user.iterdir()) == names


def test_a_sandbox_that_this_kernel_does_not_have_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = project.root / "suites" / "tiny" / "suite.toml"
    toml.write_text(toml.read_text().replace('"tiny"', '"tiny"\nsandbox = true', 1))
    project.history([1.0])
    repository = Repository.open(project.root)
    suite = suites.load(toml.parent)
    monkeypatch.setattr(sandbox, "version", lambda: 2)
    with (
        Ledger.open(project.root / "ledger.db", create=True) as ledger,
        pytest.raises(MachineError, match="needs Landlock of version 3, and this kernel has 2"),
    ):
        local_bench(
            repository, ledger, config.load(project.root, {}), suite, choose_tasks(suite, ()),
            gate=Gate.of(repository, attended=True),
        )  # fmt: skip


@pytest.mark.matrix
def test_doctor_says_whether_there_is_one(project: Project) -> None:
    there = sandbox.version() >= sandbox.NEEDED
    assert f"sandbox     {'available' if there else 'not available'}" in project.run("doctor").out
