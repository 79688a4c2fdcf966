"""Builds kept by their inputs, and environments made from requirements: through the real program,
with real builds and a real `pip install` of a wheel that the test makes itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from conftest import Project, git, make_project, matrix_after

from celedger.base.model import Command, OutcomeKind, Task
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.repo.checkouts import Checkouts
from celedger.system.cache import FolderCache
from celedger.trial.station import Builds
from celedger.trial.venvs import Unmade, install_lines, install_variables, python_of, requirements

SUITE = """\
[suite]
name = "tiny"
build = ["sh build.sh"]
inputs = ["native/**", "build.sh"]
[metrics.val_loss]
direction = "lower"
kind = "quality"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py"
"""
FIT = """\
from pathlib import Path
from celedger.child import log
import model
log(epoch=0, val_loss=float(Path("lib/level").read_text()) + model.EXTRA)
"""
# Every run of it leaves a line outside of the tree.
BUILD = """\
echo built >>{count}
mkdir -p lib/empty && cp native/level lib/level && ln -s level lib/link
"""

TASK = Task(
    "tiny", "fit", (Command("train", ("true",)),),
    build=(("sh", "build.sh"),), inputs=("native/**", "build.sh"),
)  # fmt: skip


@pytest.fixture
def native(tmp_path: Path) -> Project:
    project = make_project(tmp_path / "native", SUITE, {"fit.py": FIT})
    project.commit(
        "lay out",
        {
            "build.sh": BUILD.format(count=tmp_path / "count"),
            "native/level": "1.0\n",
            "model.py": "EXTRA = 0\n",
        },
    )
    return project


def builds(project: Project) -> int:
    count = project.root.parent / "count"
    return len(count.read_text().splitlines()) if count.exists() else 0


def losses(project: Project) -> dict[str, list[float]]:
    """commit -> the losses that the ledger has, in order."""
    found: dict[str, list[float]] = {}
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        for record in ledger.trials():
            if record.ok:
                found.setdefault(record.trial.commit, []).append(record.summaries["val_loss"])
    return found


def test_a_build_serves_commits_with_equal_inputs(native: Project, tmp_path: Path) -> None:
    """Without processes: `build` writes what a build would."""
    shas = {"first": git(native.root, "rev-parse", "HEAD")}
    for name, files in {
        "code": {"model.py": "EXTRA = 10\n"},
        "native": {"native/level": "2.0\n"},
        "in the way": {"lib/built": "3.0\n"},
        "attributes": {"native/.gitattributes": "level text eol=crlf\n"},
        "broken": {"native/level": "broken\n"},
        "broken code": {"model.py": "EXTRA = 11\n"},
    }.items():
        shas[name] = native.commit(name, files)
    repository, suite = Repository.open(native.root), tmp_path / "suite"
    suite.mkdir()
    cache = FolderCache(tmp_path / "cache")
    builds, task = Builds(repository, cache, (cache,), 10**6), TASK
    made: list[str] = []
    outcomes = {}
    with Checkouts(repository).take() as checkout:
        for name, sha in shas.items():
            checkout.move_to(sha)

            def build(name: str = name) -> tuple[OutcomeKind, str]:
                made.append(name)
                level = (checkout.path / "native" / "level").read_text()
                if level == "broken\n":
                    return OutcomeKind.FAILED, "no level"
                (checkout.path / "lib" / "empty").mkdir(parents=True)
                (checkout.path / "lib" / "built").write_text(level)
                (suite / "tool").write_text(level)
                return OutcomeKind.OK, ""

            outcomes[name] = builds.provide(
                repository.commit(sha), task, checkout, suite, {}, build
            )
            if "broken" not in name:
                level = (checkout.path / "native" / "level").read_text()
                assert (checkout.path / "lib" / "built").read_text() == level
                assert (checkout.path / "lib" / "empty").is_dir()
                assert (suite / "tool").read_text() == level
            (suite / "tool").unlink(missing_ok=True)
    assert made == ["first", "native", "in the way", "attributes", "broken"]
    assert outcomes["broken"] == (OutcomeKind.UNTESTABLE, "no level")
    kind, reason = outcomes["broken code"]
    assert kind is OutcomeKind.UNTESTABLE
    assert reason == f"no level (so at {shas['broken'][:10]}, whose inputs are the same)"
    assert {name for name, outcome in outcomes.items() if outcome != (OutcomeKind.OK, "")} == {
        "broken", "broken code",
    }  # fmt: skip


@pytest.mark.matrix
def test_equal_inputs_are_built_once_and_the_product_is_that_of_the_inputs(
    native: Project,
) -> None:
    first = git(native.root, "rev-parse", "HEAD")
    extra = native.commit("code", {"model.py": "EXTRA = 10\n"})
    worse = native.commit("native", {"native/level": "2.0\n"})
    back = native.commit("native, back", {"native/level": "1.0\n", "model.py": "EXTRA = 5\n"})
    for sha in (first, extra, worse, back):  # a command each: what is kept outlives a process
        done = native.run("run", sha)
        assert done.status in (0, 1), done.err
    assert losses(native) == {first: [1.0], extra: [11.0], worse: [12.0], back: [6.0]}
    assert builds(native) == 2
    slot = native.root / ".git" / "celedger" / "checkouts" / "0"
    assert (slot / "lib" / "empty").is_dir() and (slot / "lib" / "link").is_symlink()


@pytest.mark.matrix
def test_files_that_git_writes_otherwise_are_other_inputs(native: Project) -> None:
    fit = native.root / "suites" / "tiny" / "fit.py"
    fit.write_text(
        FIT.replace('float(Path("lib/level").read_text())', 'len(open("lib/level", "rb").read())')
    )
    plain = git(native.root, "rev-parse", "HEAD")
    crlf = native.commit("attributes", {"native/.gitattributes": "level text eol=crlf\n"})
    for sha in (plain, crlf):
        assert native.run("run", sha).status == 0
    git(native.root, "config", "core.autocrlf", "true")
    assert native.run("run", plain, "--force").status == 0
    assert losses(native) == {plain: [4.0, 5.0], crlf: [5.0]}


@pytest.mark.matrix
def test_without_inputs_or_with_inputs_that_match_nothing_every_commit_is_built(
    native: Project,
) -> None:
    toml = native.root / "suites" / "tiny" / "suite.toml"
    for number, inputs in enumerate(("[]", '["no-such-file"]')):
        toml.write_text(SUITE.replace('["native/**", "build.sh"]', inputs))
        before = builds(native)
        shas = [native.commit(f"{number}{n}", {"notes": f"{number}{n}"}) for n in range(2)]
        assert native.run("run", f"{shas[0]}~1..{shas[1]}").status == 0
        assert builds(native) == before + 2


@pytest.mark.matrix
def test_a_trial_cannot_change_what_is_kept(native: Project) -> None:
    vandal = "open('lib/level', 'r+').write('9.9\\n')\n"
    script = native.root / "suites" / "tiny" / "fit.py"
    script.write_text(FIT + vandal)
    native.run("run")
    native.commit("code", {"model.py": "EXTRA = 3\n"})
    native.run("run", "HEAD", "--repeat", "3")
    assert sorted(v for found in losses(native).values() for v in found) == [1.0, 4.0, 4.0, 4.0]
    assert builds(native) == 1


@pytest.mark.matrix
def test_what_a_build_rewrote_of_the_commit_is_not_carried_to_another(native: Project) -> None:
    script = (native.root / "build.sh").read_text() + "echo 'EXTRA = 100' >>model.py\n"
    one = native.commit("stamp", {"build.sh": script})
    two = native.commit("code", {"model.py": "EXTRA = 1\nEXTRA += 1\n"})
    native.run("run", one)
    native.run("run", two)
    assert builds(native) == 2
    assert losses(native)[two] == [101.0]


@pytest.mark.matrix
def test_damage_to_what_is_kept_is_seen_and_built_again(native: Project) -> None:
    native.run("run")
    kept = next((native.root / ".git" / "celedger" / "builds").glob("*/0.tar"))
    kept.write_bytes(kept.read_bytes()[:700])
    sha = native.commit("code", {"model.py": "EXTRA = 3\n"})
    native.run("run")
    assert losses(native)[sha] == [4.0]
    assert builds(native) == 2


@pytest.mark.matrix
def test_a_file_of_the_commit_is_never_overwritten_by_a_kept_one(native: Project) -> None:
    native.run("run")
    sha = native.commit("track it", {"lib/level": "5.0\n"})
    done = native.run("run", sha)
    assert builds(native) == 2, done.err  # its own build decides what becomes of the file


@pytest.mark.matrix
def test_a_failure_is_remembered_by_content_within_a_command(native: Project) -> None:
    count = native.root.parent / "count"
    script = f"echo built >>{count}\nfalse\n"
    one = native.commit("break", {"build.sh": script})
    two = native.commit("unrelated", {"notes": "1"})
    first = git(native.root, "rev-parse", "HEAD~2")
    done = native.run("run", f"{first}..{two}")
    assert done.status == 125
    assert builds(native) == 1
    assert f"so at {one[:10]}" in done.out + done.err


@pytest.mark.matrix
def test_a_build_that_was_killed_is_not_remembered(native: Project) -> None:
    count = native.root.parent / "count"
    native.commit("kill", {"build.sh": f"echo built >>{count}\nkill -9 $$\n"})
    native.run("run")
    native.commit("unrelated", {"notes": "1"})
    native.run("run")
    assert builds(native) == 2


SWAP = """\
import sys
sys.dont_write_bytecode = False
from celedger.child import log
import model, other
log(epoch=0, val_loss=model.LEVEL + 10 * other.LEVEL)
"""


@pytest.mark.matrix
@pytest.mark.parametrize("inputs", matrix_after(1, ["[]", '["build.sh"]']))
def test_a_file_swapped_for_one_of_its_size_in_the_same_second_is_seen(
    tmp_path: Path, inputs: str
) -> None:
    suite = SUITE.replace('["native/**", "build.sh"]', inputs)
    project = make_project(tmp_path / "swap", suite, {"fit.py": SWAP})
    # All sources of all commits get one and the same time, so that size and time of a source,
    # by which Python knows its byte-code, never differ; and the build compiles them.
    build = "touch -d @1700000000 *.py && python3 -B -m compileall -q . && touch made\n"
    (project.root / "suites" / "tiny" / "fit.py").write_text(
        "import os\nfor n in ('model.py', 'other.py'): os.utime(n, (1700000000, 1700000000))\n"
        + SWAP
    )
    files = {"model.py": "LEVEL = 1\n", "other.py": "LEVEL = 2\n", "build.sh": build}
    a = project.commit("a", files)
    b = project.commit("b", {"model.py": "LEVEL = 2\n", "other.py": "LEVEL = 1\n"})
    for _ in range(2):
        for sha in (a, b):
            done = project.run("run", sha, "--force")
            assert done.status in (0, 1), done.out + done.err
    assert losses(project) == {a: [21.0, 21.0], b: [12.0, 12.0]}


# --- virtual environments

VENV_SUITE = """\
[suite]
name = "tiny"
venv = ["requirements.txt"]
[metrics.val_loss]
direction = "lower"
kind = "quality"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py"
seeds = [0, 1]
"""
VENV_FIT = """\
import sys
from celedger.child import log
import tinypackage, model
assert "venvs" in sys.prefix
log(epoch=0, val_loss=tinypackage.LEVEL + model.EXTRA)
"""
REQUIREMENTS = "--no-index\n--find-links wheels\ntinypackage=={}\n"


def wheel(level: int) -> bytes:
    """A package of one module, as a wheel."""
    name, out = "tinypackage", BytesIO()
    info = f"{name}-{level}.dist-info"
    with zipfile.ZipFile(out, "w") as file:

        def put(path: str, text: str) -> None:
            file.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)

        put(f"{name}.py", f"LEVEL = {level}\n")
        put(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {level}\n")
        put(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        put(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return out.getvalue()


@pytest.mark.matrix
def test_trials_run_in_what_their_commit_requires_and_a_new_lock_is_no_regression(
    tmp_path: Path,
) -> None:
    project = make_project(tmp_path / "locked", VENV_SUITE, {"fit.py": VENV_FIT})
    wheels = project.root / "wheels"
    wheels.mkdir()
    for level in (1, 2):
        (wheels / f"tinypackage-{level}-py3-none-any.whl").write_bytes(wheel(level))
    first = project.commit(
        "one", {"requirements.txt": REQUIREMENTS.format(1), "model.py": "EXTRA = 0\n"}
    )
    second = project.commit("code", {"model.py": "EXTRA = 0.0\n"})
    upgrade = project.commit("upgrade", {"requirements.txt": REQUIREMENTS.format(2)})
    last = project.commit("code", {"model.py": "EXTRA = 0.5\n"})
    broken = project.commit("broken", {"requirements.txt": REQUIREMENTS.format(3)})

    done = project.run("run", f"{first}..{upgrade}")
    assert done.status == 0, done.out + done.err
    assert losses(project) == {second: [1.0, 1.0], upgrade: [2.0, 2.0]}
    drift = project.run("check", upgrade, "--json")
    kinds = {s["standing"] for s in json.loads(drift.out)["standings"] if s["metric"] == "val_loss"}
    assert kinds == {"first"}, drift.out

    # A bisect over the upgrade compares code alone: all commits in the bad end's environment.
    found = project.run("bisect", f"{first}..{last}", "--metric", "val_loss")
    assert found.status == 0, found.out + found.err
    assert f"first bad commit of fit val_loss: {last}" in found.out
    assert "requirements change" in found.err
    assert set(losses(project)[first]) == {2.0}
    nothing = project.run("bisect", f"{first}..{upgrade}", "--metric", "val_loss")
    assert nothing.status == 125, nothing.out

    # What cannot be installed says nothing about the code: it is worse by what the bisect named.
    said = project.run("run", broken)
    assert said.status == 1, said.err
    incidents = json.loads(project.run("status", "--json").out)["incidents"]
    assert [incident["first_bad"] for incident in incidents] == [[last]]
    assert "untestable" in said.out + said.err
    assert "requirements.txt" in said.out + said.err
    venvs = project.root / ".git" / "celedger" / "venvs"
    assert len(list(venvs.iterdir())) == 2

    # A package that a trial installs, or breaks, does not reach the next one.
    module = next(venvs.glob("*/venv/lib/*/site-packages/tinypackage.py"))
    level = float(module.read_text().split()[-1])
    (module.parent / "model.py").write_text("EXTRA = 77\n")
    module.unlink()
    sha = last if level == 2 else second
    again = project.run("run", sha, "--seed", "7")
    assert again.status in (0, 1), again.err
    assert losses(project)[sha][-1] == (2.5 if level == 2 else 1.0)


@pytest.mark.matrix
@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_an_environment_is_made_with_uv_where_it_is_there(
    tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tool == "pip":
        monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "tinypackage-1-py3-none-any.whl").write_bytes(wheel(1))
    (tmp_path / "requirements.txt").write_text(REQUIREMENTS.format(1))
    env = install_variables(os.environ)
    for line in install_lines(tmp_path, sys.executable, ["requirements.txt"], env):
        subprocess.run(line, cwd=tmp_path, env=env, check=True, capture_output=True)
    subprocess.run([python_of(tmp_path), "-c", "import tinypackage"], check=True)
    assert ("uv = " in (tmp_path / "venv" / "pyvenv.cfg").read_text()) == (tool == "uv")


@pytest.mark.parametrize(
    ("line", "reason"),
    [("-e .", "editable"), ("./package", "pythonpath"), ("-r ../other.txt", "outside"),
     (".[test]", "pythonpath"), ("package @ file:./package", "pythonpath")],
)  # fmt: skip
def test_the_repositorys_own_code_is_no_part_of_an_environment(
    project: Project, line: str, reason: str
) -> None:
    sha = project.commit("own", {"requirements.txt": f"{line}\n", "package/x.py": ""})
    with pytest.raises(Unmade, match=reason):
        requirements(Repository.open(project.root), sha, ("requirements.txt",))


def test_what_requirements_name_is_taken_from_where_pip_takes_it(project: Project) -> None:
    files = {
        "in/r.txt": "-c c.txt\n--requirement=more.txt\n-f wheels\nnumpy==1  # ./no.whl\n",
        "in/c.txt": "", "in/more.txt": "./own.whl\n", "wheels/a.whl": "", "own.whl": "",
        "c.txt": "", "numpy": "",
    }  # fmt: skip
    sha = project.commit("files", files)
    taken = requirements(Repository.open(project.root), sha, ("in/r.txt",))
    assert taken.install == ("in/r.txt",)
    assert taken.files.keys() == {
        "in/r.txt", "in/c.txt", "in/more.txt", "wheels/a.whl", "own.whl"
    }  # fmt: skip


def test_uv_takes_no_settings_from_the_folders_above(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    for line in install_lines(tmp_path / "home", sys.executable, ["r.txt"], env):
        assert "--no-config" in line
    own = tmp_path / ".config" / "uv" / "uv.toml"
    own.parent.mkdir(parents=True)
    own.touch()
    _, install = install_lines(tmp_path / "home", sys.executable, ["r.txt"], env)
    assert install[3:5] == ("--config-file", str(own))
