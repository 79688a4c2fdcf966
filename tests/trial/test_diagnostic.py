"""A diagnostic run: the same training, looked at closely, and never in the record."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import packages
import pytest
from conftest import SUITE, make_project

from celedger import suite as suites
from celedger.base import config
from celedger.base.errors import CannotJudge, MachineError
from celedger.base.model import Commit, OutcomeKind
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.system import process
from celedger.trial.diagnostic import diagnose
from celedger.trial.ending import explain
from celedger.trial.permissions import Gate
from celedger.trial.runner import Bench
from celedger.trial.workplace import choose_tasks, local_bench

LOOKS = """\
import json, os, sys
from pathlib import Path
from celedger.child import log
from model import LEVEL
log(epoch=0, val_loss=LEVEL)
probe = json.loads(os.environ["CELEDGER_PROBE"])
if probe.get("fails"):
    raise ValueError("as asked")
seen = {"level": LEVEL, "argv": sys.argv[1:], "more": os.environ.get("MORE")}
Path(os.environ["CELEDGER_PROBE_OUT"], "seen.json").write_text(json.dumps(seen))
"""
TASK = SUITE.replace("--seed {seed}", "--seed {seed} --lr {lr}") + "params = { lr = 0.1 }\n"


@pytest.fixture(autouse=True)
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe of a package of its own, `look`. The trainings here do without torch and it."""
    entry = "[celedger.probes]\nlook = looking.probes\n"
    files = {"looking/__init__.py": "", "looking/probes/look.py": "def attach(options): pass\n"}
    files["looking/probes/__init__.py"] = ""
    packages.install(tmp_path / "site", "looking", entry, files)
    monkeypatch.syspath_prepend(tmp_path / "site")
    for name in ("looking", "looking.probes"):  # of another test, whose folder is gone
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[tuple[Bench, Commit]]:
    project = make_project(tmp_path / "project", TASK, {"fit.py": LOOKS})
    project.history([1.0, 1.5])
    repository = Repository.open(project.root)
    settings = config.load(repository.root, os.environ)
    suite_ = suites.load(suites.find(None, settings, repository.root))
    tasks = choose_tasks(suite_, ())
    with (
        Ledger.open(settings.ledger, create=True) as ledger,
        local_bench(
            repository, ledger, settings, suite_, tasks,
            gate=Gate.of(repository, attended=True),
        ) as bench,
    ):  # fmt: skip
        yield bench, repository.resolve("HEAD~1")


def test_it_runs_the_commit_with_the_probe_and_leaves_no_row(
    bench: tuple[Bench, Commit], tmp_path: Path
) -> None:
    table, commit = bench
    (task,) = choose_tasks(table.suite, ())
    done = diagnose(
        table, commit, task, 3, tmp_path / "out", {"kind": "look"},
        params={"lr": 0.5}, environment={"MORE": "yes"},
    )  # fmt: skip
    assert done.ok
    seen = json.loads((done.out / "seen.json").read_text())
    assert seen == {"level": 1.0, "argv": ["--seed", "3", "--lr", "0.5"], "more": "yes"}
    assert table.ledger.trials() == []
    assert table.ledger.commits() == []
    assert table.held(commit.sha, task, 3) == []


def test_a_station_on_another_device_shares_the_checkout_and_waits_for_that_device(
    bench: tuple[Bench, Commit],
) -> None:
    station, task = bench[0].station, bench[0].suite.tasks[0]
    other = station.on(replace(station.device, key="GPU-7", visible="GPU-7"))
    assert other.checkout is station.checkout
    assert other.variables(task, {})["CUDA_VISIBLE_DEVICES"] == "GPU-7"
    with other.device_held():
        assert not other.device_lock.free()
        assert station.device_lock.free()


def test_a_training_that_fails_under_the_probe_is_a_result(
    bench: tuple[Bench, Commit], tmp_path: Path
) -> None:
    table, commit = bench
    (task,) = choose_tasks(table.suite, ())
    done = diagnose(table, commit, task, 0, tmp_path / "out", {"kind": "look", "fails": True})
    assert (done.ok, done.kind) == (False, OutcomeKind.FAILED)
    assert "ValueError: as asked" in done.message


def test_a_commit_that_does_not_build_cannot_be_diagnosed(
    bench: tuple[Bench, Commit], tmp_path: Path
) -> None:
    table, commit = bench
    (task,) = choose_tasks(table.suite, ())
    broken = task._replace(build=(("false",),))
    with pytest.raises(CannotJudge, match="cannot be built"):
        diagnose(table, commit, broken, 0, tmp_path / "out", {"kind": "look"})


def test_a_probe_that_no_package_has_is_named(bench: tuple[Bench, Commit], tmp_path: Path) -> None:
    table, commit = bench
    (task,) = choose_tasks(table.suite, ())
    with pytest.raises(MachineError, match="no package that is installed has a probe 'weigh'"):
        diagnose(table, commit, task, 0, tmp_path / "out", {"kind": "weigh"})


def test_the_reason_of_a_failure_is_its_exception_whatever_libraries_say_after(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(
        "epoch 0\nTraceback (most recent call last):\n  File 'fit.py', line 3, in step\n"
        "torch._dynamo.exc.InternalTorchDynamoError: no hooks\n\nSet TORCHDYNAMO_VERBOSE=1\n"
        "USDT:2026-11-22 profiler_stop\n"
    )
    end = process.Exit(process.End.EXITED, 1, 1.0, 0, 1.0, False, "exit status 1")
    said = "exit status 1: torch._dynamo.exc.InternalTorchDynamoError: no hooks"
    assert explain(end, log) == said
    log.write_text(
        'Traceback (most recent call last):\n  File "/a/fit.py", line 3, in <module>\n    train()\n'
        '  File "/a/model.py", line 9, in forward\n    x @ w\nValueError: shapes\n'
        "in step 4 of epoch 1\n"
    )
    said = "exit status 1: ValueError: shapes (in forward of model.py, step 4 of epoch 1)"
    assert explain(end, log) == said
    for head in (
        "",
        'Traceback (most recent call last):\n  File "/a/fit.py", line 3, in <module>\n',
    ):
        log.write_text(
            f'{head}  File "/a/net.py", line 6\n    def f(:\n     ^\nSyntaxError: invalid\n'
        )
        assert explain(end, log) == "exit status 1: SyntaxError: invalid (net.py, line 6)"
    log.write_text("sorry\n\n")
    assert explain(end, log) == "exit status 1: sorry"
    for program in ("__main__.py", "python -m pytest"):  # as pytest 8 and pytest 9 say
        error = f"{program}: error: unrecognized arguments: --benchmark-only"
        log.write_text(f"usage: [options]\n{error}\n  inifile: None\n  rootdir: /tmp/a\n")
        assert explain(end, log) == f"exit status 1: {error}"
    log.write_text(
        ">       size = width\n               ^^^^^\n"
        "E       NameError: name 'width' is not defined\n"
        "E       and so on\n\nsrc/net.py:14: NameError\n"
        "FAILED tests/test_net.py::test_net - NameError: name 'wi...\n1 failed in 2.44s\n"
    )  # as pytest says; how long it took made each seed fail otherwise
    assert explain(end, log) == "exit status 1: NameError: name 'width' is not defined"
