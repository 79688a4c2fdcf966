"""What a verb imports before it answers: each module costs every command its time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path

import pytest
from conftest import SUITE
from scripted import scripted, typed

from celedger.base import model
from celedger.judge import incident

PROGRAM = """
import sys
from celedger.cli.app import run
run({words!r})
print(*sys.modules, file=sys.stderr)
"""


def imported(*words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(words=list(words))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stderr.split())


def test_a_shell_gets_its_completion() -> None:
    def completed(line: str) -> list[str]:
        env = {**os.environ, "_CELEDGER_COMPLETE": "complete_bash", "COMP_WORDS": line,
               "COMP_CWORD": str(len(line.split(" ")) - 1)}  # fmt: skip
        return typed([], Path(), env).out.split()

    assert completed("celedger sta") == ["status"]
    assert "--bisects" in completed("celedger log --")


@pytest.mark.matrix
def test_a_shell_gets_names_of_the_ledger(tmp_path: Path) -> None:
    grid = "[[task]]\nname = 'net'\ncommand = 'fit {width}'\ngrid = { width = [1, 2] }\nseeds = 1\n"
    project = scripted(tmp_path / "project", SUITE + grid)
    project.history([1.0, 1.0, 1.0, 2.0])
    project.run("run", "HEAD~3..HEAD~1")
    assert project.run("check", "HEAD").status == 1
    (incident,) = json.loads(project.run("status", "--json").out)["incidents"]

    def completed(line: str, cwd: Path = project.root) -> list[str]:
        env = {**os.environ, "_CELEDGER_COMPLETE": "complete_bash", "COMP_WORDS": line,
               "COMP_CWORD": str(len(line.split(" ")) - 1)}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "celedger"],
            cwd=cwd, env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "numpy" not in done.stderr
        assert "Error" not in done.stderr
        return done.stdout.split()

    variants = ["net[width=1]", "net[width=2]"]
    assert completed("celedger run --task ") == ["fit", "net", *variants]
    assert completed("celedger drift --task net") == variants  # takes one task
    assert completed("celedger drift --metric val") == ["val_loss"]
    assert completed("celedger drift --suite ") == ["tiny"]
    assert completed("celedger status ") == [incident["id"]]
    assert completed(f"celedger -C {project.root} drift --metric val", tmp_path) == ["val_loss"]
    assert completed("celedger run --task ", tmp_path) == []


def test_a_verb_imports_no_other_verb_and_nothing_that_it_does_not_need() -> None:
    modules = imported("log", "--help")
    assert "celedger.cli.reading" in modules
    assert not modules & {"celedger.cli.setup", "celedger.cli.run", "celedger.ledger", "git"}
    heavy = {"numpy", "matplotlib", "torch", "rich", "psutil", "sqlite_utils", "tempfile"}
    assert not imported("log") & heavy


def test_the_nouns_that_every_command_makes_are_tuples() -> None:
    """A dataclass of them takes ten times as long to make."""
    nouns = [*vars(model).values(), *vars(incident).values()]
    assert not [noun.__name__ for noun in nouns if isinstance(noun, type) and is_dataclass(noun)]


def test_numpy_gets_one_thread_and_trials_what_the_user_set() -> None:
    program = (
        "import os, subprocess\nfrom celedger.cli import unix\nunix.prepare()\n"
        "print(os.environ.get('OPENBLAS_NUM_THREADS'), flush=True)\n"
        "subprocess.run(['printenv', 'OPENBLAS_NUM_THREADS'])"
    )
    base = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    for own, seen in (({}, ["None", "1"]), ({"OPENBLAS_NUM_THREADS": "3"}, ["3", "3"])):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True, text=True, check=True, env={**base, **own},
        )  # fmt: skip
        assert done.stdout.split() == seen


INTERRUPTED = """
import os, signal, sys, weakref
class Finder:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            kill = lambda *_: os.kill(os.getpid(), signal.SIGINT)
            if sys.argv[2] == "called back":
                reference = weakref.ref(Finder(), kill)  # as the import system's own locks do
            else:
                kill()
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
from celedger.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["celedger.cli.unix", "typer"])
@pytest.mark.parametrize("way", ["at once", "called back"])
def test_an_interrupt_while_the_program_starts_is_one_line(module: str, way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, way], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "celedger: interrupted\n")


def test_a_command_in_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    for verb in ("log", "demo"):
        folder.mkdir()
        program = f"rmdir {folder}; exec {sys.executable} -m celedger {verb}"
        done = subprocess.run(["sh", "-c", program], cwd=folder, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (128, "")
        assert done.stderr.startswith("celedger: the current folder was deleted")
        assert len(done.stderr.splitlines()) == 1
