"""`bisect REV --packages OLD..NEW`, with real environments of wheels that the test builds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from conftest import Project, make_project

from celedger.base.errors import UsageError
from celedger.base.model import Environment
from celedger.ledger import Ledger
from celedger.trial.venvs import Upgrade, pins, prefixes, upgrades

SUITE = """\
[suite]
name = "tiny"
seeds = [0]
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "2%"
[[task]]
name = "fit"
command = "{python} fit.py"
"""
COUNT = 14
FIT = """\
import pkgutil
from importlib import import_module
from celedger.child import log
names = [module.name for module in pkgutil.iter_modules() if module.name.startswith("lib_")]
values = [import_module(name).value for name in names]
log(epoch=0, val_loss=1.0 + sum(values))
"""


def wheel(folder: Path, name: str, version: str, value: float, needs: Sequence[str] = ()) -> None:
    """Write the wheel of a module that has a value."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        f"{module}.py": f"value = {value}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{path},sha256={digest.decode()},{len(text)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def locks(root: Path, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    for name, versions in (("old.txt", old), ("new.txt", new)):
        (root / name).write_text("".join(f"{n}=={v}\n" for n, v in versions.items()))
    return "old.txt..new.txt"


def names(count: int = COUNT) -> list[str]:
    return [f"lib-{n:02d}" for n in range(count)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = make_project(tmp_path / "project", SUITE, {"none.py": ""})
    made.commit("one", {"fit.py": FIT})
    for variable in ("UV", "PIP"):
        monkeypatch.setenv(f"{variable}_FIND_LINKS", str(tmp_path / "wheels"))
        monkeypatch.setenv(f"{variable}_NO_INDEX", "1")
    monkeypatch.chdir(made.root)
    return made


@pytest.mark.matrix
def test_the_upgrade_that_moves_a_metric_is_named_among_fourteen(
    project: Project, tmp_path: Path
) -> None:
    culprit = 9
    for n, name in enumerate(names()):
        wheel(tmp_path / "wheels", name, "1.0", 0.0)
        wheel(tmp_path / "wheels", name, "2.0", 0.3 * (n == culprit))
    both = locks(project.root, dict.fromkeys(names(), "1.0"), dict.fromkeys(names(), "2.0"))
    done = project.run("bisect", "HEAD", "--packages", both, "--json")
    assert done.status == 0, done.err
    (named,) = json.loads(done.out)["named"]
    assert named["upgrades"] == [f"lib-{culprit:02d} 1.0 → 2.0"]
    text = project.run("bisect", "HEAD", "--packages", both).out
    assert text.startswith(f"fit val_loss: lib-{culprit:02d} 1.0 → 2.0 (")
    assert "(+30.0 %" in text or "(+30 %" in text
    assert "  searched    14 upgrades, " in text
    made = list((project.root / ".git" / "celedger" / "venvs").glob("*/venv"))
    assert len(made) <= 2 + 4 + 4  # the ends, and log2 of 14 environments and four


@pytest.mark.matrix
def test_an_environment_that_does_not_fit_together_is_untestable(
    project: Project, tmp_path: Path
) -> None:
    """lib-00 2.0 needs lib-01 2.0, and lib-01 2.0 is worse; lib-02 1.0 refuses lib-01 2.0."""
    folder, every = tmp_path / "wheels", names(6)
    for n, name in enumerate(every):
        wheel(folder, name, "1.0", 0.0, ["lib-01<2"] if n == 2 else [])
        needs = {0: ["lib-01>=2"]}.get(n, [])
        wheel(folder, name, "2.0", 0.5 * (n == 1), needs)
    new = {**dict.fromkeys(every, "1.0"), **dict.fromkeys(every[:4], "2.0")}
    both = locks(project.root, dict.fromkeys(every, "1.0"), new)
    done = project.run("bisect", "HEAD", "--packages", both, "--json")
    (named,) = json.loads(done.out)["named"]
    likely = set(named["upgrades"] or named["likely"])
    assert "lib-01 1.0 → 2.0" in likely
    assert likely <= {"lib-01 1.0 → 2.0", "lib-00 1.0 → 2.0", "lib-02 1.0 → 2.0"}
    assert "do not fit together" in project.run("bisect", "HEAD", "--packages", both).out


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("lib-00>=1\n", "lib-00==1.0\n", "old.txt does not pin 'lib-00>=1'"),
        ("lib-00==1.0\n", "Lib_00==1.0\n", "both lock files pin the same packages"),
        ("", "lib-00==1.0\n", "old.txt pins no package"),
        ("a==1\na==2\n", "lib-00==1.0\n", "old.txt has a twice"),
    ],
)
def test_lock_files_that_cannot_be_meant_are_a_line(
    old: str, new: str, sentence: str, project: Project
) -> None:
    (project.root / "old.txt").write_text(old)
    (project.root / "new.txt").write_text(new)
    done = project.run("bisect", "HEAD", "--packages", "old.txt..new.txt")
    assert done.status == 129
    assert sentence in done.err
    assert not re.search("Traceback", done.err)


def test_a_file_that_is_not_there_is_a_line(project: Project) -> None:
    done = project.run("bisect", "HEAD", "--packages", "old.txt..gone.txt")
    assert (done.status, "old.txt cannot be read" in done.err) == (129, True)


def test_pins_are_read_as_installers_write_them() -> None:
    text = "Foo.Bar==1.0 ; python_version > '3' \\\n    --hash=sha256:abc\n-e .\n# note\nx @ file:///x.whl\n"
    assert pins(text, "f") == {
        "foo-bar": "foo-bar==1.0 ; python_version > '3'", "x": "x @ file:///x.whl",
    }  # fmt: skip
    with pytest.raises(UsageError, match="does not pin"):
        pins("a==1.*\n", "f")


def test_dependencies_come_first_and_what_is_removed_last() -> None:
    old = {"a": "a==1", "b": "b==1", "c": "c==1", "gone": "gone==1", "same": "same==1"}
    new = {"a": "a==2", "b": "b==2", "c": "c==2", "new": "new==1", "same": "same==1"}
    order = upgrades(old, new, {"a": ["same", "new"], "same": ["c"], "b": ["a"]})
    assert [u.name for u in order] == ["new", "c", "a", "b", "gone"]
    assert order[-1] == Upgrade("gone", "gone==1", "")
    assert [u.title() for u in order[:2]] == ["new none → 1", "c 1 → 2"]
    texts = list(prefixes(old, order))
    assert (len(texts), texts[-1]) == (6, "a==2\nb==2\nc==2\nnew==1\nsame==1\n")
    assert upgrades(old, new, {"a": ["b"], "b": ["a"]})  # packages may need each other


@pytest.mark.matrix
def test_the_anchor_of_an_upgrade_tells_which_command_names_the_package(
    project: Project, tmp_path: Path
) -> None:
    """The environment itself is upgraded, as by `uv sync`: what was installed is in the ledger."""
    for n, name in enumerate(names(5)):
        wheel(tmp_path / "wheels", name, "1.0", 0.0)
        wheel(tmp_path / "wheels", name, "2.0", 0.3 * (n == 3))
    python = tmp_path / "env" / "bin" / "python"
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([uv, "venv", "--quiet", str(python.parents[1])], check=True)
    suite = project.root / "suites" / "tiny" / "suite.toml"
    suite.write_text(SUITE.replace('name = "tiny"', f'name = "tiny"\npython = "{python}"'))
    subprocess.run([*install, *(f"{name}==1.0" for name in names(5))], check=True)
    assert project.run("run", "HEAD", "--repeat", "6").status == 0
    subprocess.run([*install, *(f"{name}==2.0" for name in names(5))], check=True)
    assert project.run("run", "HEAD", "--repeat", "6").status == 0

    told = project.run("check", "HEAD").out
    head = r"tiny/fit: the upgrade \(lib-00 1.0 → 2.0, .* and 2 more\): val_loss \+3[01]"
    for out in (told, project.run("status").out, project.run("drift").out):
        assert re.search(head if out is told else "", " ".join(out.split())), out
        match = re.search(r"`celedger (bisect [0-9a-f]{12} --packages [^`]+)`", out)
        assert match is not None, out
    done = project.run(*shlex.split(match[1]), "--json")
    assert done.status == 0, done.err
    (named,) = json.loads(done.out)["named"]
    assert named["upgrades"] == ["lib-03 1.0 → 2.0"]
    old = match[1].partition("--packages ")[2][:12]
    assert project.run("bisect", "HEAD", "--packages", f"{old}..{'0' * 12}").status == 129


def test_environments_of_two_pythons_are_refused(project: Project) -> None:
    with Ledger.open(project.root / "ledger.db", create=True) as ledger:
        for digit, version in (("a", "3.11.7"), ("b", "3.12.1")):
            details = {"python": f"CPython {version}", "packages": {"lib-00": "1.0"}}
            ledger.record_environment(Environment(digit * 64, details))
    done = project.run("bisect", "HEAD", "--packages", f"{'a' * 12}..{'b' * 12}")
    assert done.status == 129
    assert "two Pythons, CPython 3.11 and CPython 3.12" in done.err


UV_LOCK = """\
version = 1
requires-python = ">=3.11"
[[package]]
name = "mine"
version = "0.1"
source = { editable = "." }
dependencies = [{ name = "a" }, { name = "w", marker = "sys_platform == 'win32'" }]
[package.dev-dependencies]
dev = [{ name = "t" }]
[[package]]
name = "a"
version = "1.0"
source = { registry = "https://pypi.org/simple" }
dependencies = [{ name = "c" }]
[[package]]
name = "c"
version = "2.0"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "t"
version = "3.0"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "w"
version = "4.0"
source = { registry = "https://pypi.org/simple" }
dependencies = [{ name = "c" }, { name = "v" }]
[[package]]
name = "v"
version = "5.0"
source = { registry = "https://pypi.org/simple" }
"""


TWICE = f"{UV_LOCK}[[{UV_LOCK.rpartition('[[')[2].replace('5.0', '5.1')}"


def test_a_lock_file_of_uv_is_read_with_the_markers_of_what_needs_a_package() -> None:
    windows = "(sys_platform == 'win32')"
    assert pins(UV_LOCK, "uv.lock") == {
        "a": "a==1.0", "c": "c==2.0", "t": "t==3.0",
        "w": f"w==4.0 ; {windows}", "v": f"v==5.0 ; {windows}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TWICE, "has v twice"),
        (UV_LOCK.replace('registry = "https://pypi.org/simple"', 'git = "https://x"'), "elsewhere"),
        ("[[package]]\nname = 'a'\n", "not a uv lock file"),
        ("= 3", "not a uv lock file"),
    ],
)
def test_a_lock_file_of_uv_that_cannot_be_meant_is_a_line(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        pins(text, "uv.lock")
