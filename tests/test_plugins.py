"""Entry points: what is found, what is not read, and what is not loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import packages
import pytest
from conftest import Project, git, matrix_after

from celedger.base import plugins
from celedger.base.errors import MachineError

GOOD = '''\
import typer
def hello(context: typer.Context, name: str = "you") -> int:
    """Greet somebody.

    And no more than that.
    """
    print(f"hello {name}")
    return 0
'''
LIST = (
    "[console_scripts]\nx = y:z\n[celedger.verbs]\nhello = greeting.verb:hello\nbad = broken:verb\n"
)
FILES = {"greeting/__init__.py": "", "greeting/verb.py": GOOD, "broken.py": "import not_there\n"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    packages.install(tmp_path / "site", "greeting", LIST, FILES)
    return tmp_path / "site"


def test_a_verb_is_listed_run_and_suggested(project: Project, site: Path) -> None:
    env = {"PYTHONPATH": str(site)}
    assert project.run("hello", "--name", "Ada", env=env).out == "hello Ada\n"
    assert project.run("-C", ".", "hello", env=env).out == "hello you\n"
    assert "\n  hello      Greet somebody.\n" in project.run("--help", env=env).out
    assert "Did you mean 'hello'" in project.run("hallo", env=env).err


def test_one_that_cannot_be_imported_is_a_line(project: Project, site: Path) -> None:
    env = {"PYTHONPATH": str(site)}
    listed = project.run("--help", env=env)
    said = "bad (broken) cannot be loaded: ModuleNotFoundError: No module named 'not_there'"
    assert (listed.status, listed.err) == (0, "")
    assert f" bad {said} " in " ".join(listed.out.split()) + " "
    done = project.run("bad", env=env)
    assert (done.status, done.out) == (128, "")
    assert done.err.startswith(f"celedger: {said} (it is named in {site}")
    assert len(done.err.splitlines()) == 1


def test_every_group_is_read_as_packaging_tools_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a comment, and an empty line between two groups."""
    groups = (plugins.ENGINES, plugins.PROBES, plugins.SIGNERS, plugins.VERBS)
    text = "\n".join(f"[{group}]\n# ours\nmine = mine_mod:x\n" for group in groups)
    packages.install(tmp_path, "mine", f"{text}\n[console_scripts]\nx = y:z\n", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    for group in groups:
        found = plugins.installed(group)
        assert found["mine"].module == "mine_mod"
        assert "" not in found and "# ours" not in found


def test_a_verb_of_the_core_reads_no_entry_points() -> None:
    program = (
        "import sys\nfrom celedger.base import plugins\nfrom celedger.cli.app import run\n"
        "run(sys.argv[1:])\nprint(plugins._installed.cache_info().misses)"
    )
    for words, misses in ((["log", "--help"], "0"), (["hello"], "1")):
        done = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == misses


def test_a_package_in_the_repository_is_told_by_its_list_and_by_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable install lists elsewhere what lies in the repository."""
    inside, outside = tmp_path / "repository", tmp_path / "site"
    packages.install(inside / "lib", "one", "[celedger.verbs]\na = one_mod:x\n", {"one_mod.py": ""})
    packages.install(outside, "two", "[celedger.verbs]\nb = two_mod:x\n", {})
    (inside / "two_mod.py").write_text("")
    packages.install(outside, "three", "[celedger.verbs]\nc = three_mod:x\n", {"three_mod.py": ""})
    for folder in (inside, inside / "lib", outside):
        monkeypatch.syspath_prepend(folder)
    found = plugins.installed(plugins.VERBS)
    assert [found[name].lies_in(inside) for name in "abc"] == [True, True, False]


def test_what_is_no_module_of_a_package_is_one_sentence() -> None:
    lost = plugins.Plugin("x", "celedger.not_there", "", Path("list"))
    with pytest.raises(MachineError, match="there is no package of that name"):
        lost.folder()


ENGINE = """\
from celedger.base.errors import MachineError
def connect(bench, config, tasks):
    raise MachineError("it was loaded")
"""


@pytest.mark.parametrize(("place", "said"), matrix_after(1, [
    ("project/lib", "the engine mine lies in this repository"), ("site", "it was loaded"),
]))  # fmt: skip
def test_the_worker_of_a_hook_loads_no_engine_from_the_repository(
    place: str, said: str, project: Project, tmp_path: Path
) -> None:
    project.history([1.0])
    packages.install(tmp_path / place, "mine", "[celedger.engines]\nmine = my_engine:connect\n",
                     {"my_engine.py": ENGINE})  # fmt: skip
    env = {"PYTHONPATH": str(tmp_path / place)}
    settings = Path(os.environ["XDG_CONFIG_HOME"]) / "celedger" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('engine = "mine"\n')
    project.allow()
    assert project.run("hook", "install").status == 0
    git(project.root, "commit", "--quiet", "--allow-empty", "-m", "merged")
    project.run("hook", "run", env={**env, "CELEDGER_NO_WORKER": "1"})
    project.run("worker", "--from-hook", env=env)
    assert said in project.run("queue").out
