"""Trials on nodes of a cluster. The nodes are processes of this machine, each of which keeps one
order; everything else is what runs on Ray too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Done, Project, git, make_project, until
from engines.loopback import Loopback

from celedger.base.config import Config
from celedger.base.errors import LedgerError
from celedger.base.model import TrialRecord
from celedger.engines import head, order
from celedger.engines.node_keeper import PROGRAM
from celedger.engines.order_lines import Intake
from celedger.ledger import Ledger, store
from celedger.repo import Repository
from celedger.suite import load
from celedger.trial import workplace
from celedger.trial.engine import Need
from celedger.trial.permissions import Gate

SUITE = """\
[suite]
name = "tiny"
pass_env = ["GATE"]
[metrics.val_loss]
direction = "lower"
floor = "0.1%"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py --seed {seed}"
seeds = [0, 1]
"""
# After its second epoch it waits for a file to appear.
FIT = """\
import os, random, sys, time
from celedger.child import log
from model import LEVEL
rng = random.Random(int(sys.argv[2]))
for epoch in range(4):
    while epoch == 2 and os.environ.get("GATE") and not os.path.exists(os.environ["GATE"]):
        time.sleep(0.02)
    log(epoch=epoch, val_loss=LEVEL + rng.gauss(0, 0.01) + 1 / (epoch + 1))
assert LEVEL < 2, "too bad"
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project", SUITE, {"fit.py": FIT})


@pytest.fixture
def cluster(tmp_path: Path) -> Loopback:
    return Loopback(tmp_path / "nodes")


def typed(
    project: Project, cluster: Loopback, *words: str, env: Mapping[str, str] | None = None
) -> Done:
    """Run one command line, whose engine is the loopback, in a process of its own."""
    process = started(project, cluster, *words, env=env)
    out, err = process.communicate(timeout=120)
    return Done(process.returncode, out, err)


def started(
    project: Project, cluster: Loopback, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    program = [sys.executable, str(Path(__file__).with_name("loopback.py")), "head"]
    return subprocess.Popen(
        [*program, cluster.options(), *words],
        cwd=project.root,
        env={**os.environ, "CELEDGER_ENGINE": "ray", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stopped_at_the_gate(
    project: Project, cluster: Loopback, folder: Path
) -> tuple[Path, subprocess.Popen[str]]:
    """Start a trial on a node; return the file that lets it go on, and the command, once two of its
    epochs are in the ledger."""
    project.history([1.0])
    gate = folder / "gate"
    running = started(project, cluster, "run", "--seed", "0", env={"GATE": str(gate)})
    until(lambda: trials(project) and epochs(project) == 2)
    return gate, running


def trials(project: Project) -> list[TrialRecord]:
    path = project.root / "ledger.db"
    if not path.exists():
        return []
    with Ledger.open(path, readonly=True) as ledger:
        return ledger.trials()


def series(project: Project) -> dict[tuple[str, int], list[tuple[int, float]]]:
    """Return the losses of the trials that ended well, by commit and seed. One that a search needs
    no more may be stopped before its first epoch."""
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        rows = [(r, ledger.series(r.trial.ulid)) for r in ledger.trials() if r.ok]
    return {(r.trial.commit, r.trial.seed): s["val_loss"] for r, s in rows if s}


def epochs(project: Project) -> int:
    """Return how many epochs the ledger has of trials that run."""
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        running = [r.trial.ulid for r in ledger.trials(open_only=True)]
        return sum(len(ledger.series(ulid).get("val_loss", ())) for ulid in running)


def notes(project: Project) -> list[Path]:
    return list((project.root / ".git/celedger/remote").glob("*.json"))


@pytest.mark.matrix
def test_a_range_runs_on_the_nodes_as_it_does_at_home(
    project: Project, cluster: Loopback, tmp_path: Path
) -> None:
    project.history([1.0, 1.0, 5.0])
    done = typed(project, cluster, "run", "HEAD~2..")
    assert done.status == 1, done.err  # HEAD crashes
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        assert ledger.damage() == []
        failed = [r for r in ledger.trials() if not r.ok]
        assert len(failed) == 2
        assert failed[0].outcome is not None
        assert "AssertionError: too bad" in failed[0].outcome.message
        log = project.root / failed[0].outcome.log
        assert "AssertionError: too bad" in log.read_text()
    on_nodes = series(project)
    here = make_project(tmp_path / "twin", SUITE, {"fit.py": FIT})
    git(here.root, "pull", "--quiet", str(project.root), "main")
    assert here.run("run", "HEAD~2..").status == 1
    assert series(here) == on_nodes
    assert len(on_nodes) == 2
    environments = [{r.trial.environment for r in trials(each)} for each in (here, project)]
    assert environments[0] == environments[1]
    assert notes(project) == []
    nodes = tmp_path / "nodes"
    assert not list(nodes.glob("*/celedger/node/orders/*"))
    assert len(list(nodes.glob("*/celedger/node/repositories/*"))) == 2


@pytest.mark.matrix
def test_epochs_are_in_the_ledger_while_the_trial_runs_and_stay_when_its_node_dies(
    project: Project, cluster: Loopback, tmp_path: Path
) -> None:
    gate, running = stopped_at_the_gate(project, cluster, tmp_path)
    (lost,) = trials(project)
    queue = project.run("queue")
    assert f"fit seed 0 runs on ray {cluster.folder}" in queue.out
    cluster.release(lost.trial.ulid)
    until(lambda: len(trials(project)) == 2 and epochs(project) == 2)
    gate.touch()
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "runs again on another node: " in err
    first, second = trials(project)
    assert first.outcome is not None
    assert (first.outcome.kind, first.epochs, second.ok) == ("interrupted", 2, True)
    assert notes(project) == []


@pytest.mark.matrix
def test_a_killed_head_loses_nothing_and_the_next_one_takes_over(
    project: Project, cluster: Loopback, tmp_path: Path
) -> None:
    gate, running = stopped_at_the_gate(project, cluster, tmp_path)
    running.kill()
    running.communicate()
    assert len(notes(project)) == 1
    local = project.run("run", "--seed", "1", "--engine", "local")
    assert "1 trial runs on ray" in local.err, local.err
    (record,) = (r for r in trials(project) if r.outcome is None)
    gate.touch()
    done = typed(project, cluster, "run", "--seed", "0", env={"GATE": str(gate)})
    assert done.status == 0, done.err
    ended = [r for r in trials(project) if r.trial.seed == 0]
    assert [r.trial.ulid for r in ended] == [record.trial.ulid]
    assert (ended[0].ok, ended[0].epochs) == (True, 4)
    assert notes(project) == []


@pytest.mark.matrix
def test_a_head_killed_while_it_records_a_lost_node_leaves_the_trial_to_the_next(
    project: Project, cluster: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, running = stopped_at_the_gate(project, cluster, tmp_path)
    running.kill()
    running.communicate()
    (note,) = notes(project)
    sent = store.rebuilt(order.Order, json.loads(note.read_bytes())["order"])
    keeper = int((cluster.folder / f"{sent.ulid}.pid").read_text())
    os.kill(keeper, signal.SIGSTOP)  # the next head finds it, and hears nothing
    with Ledger.open(project.root / "ledger.db") as ledger:
        Intake(sent, ledger).interrupt(time.time(), "its node was lost")
    gate.touch()
    monkeypatch.setenv("GATE", str(gate))
    with bench_on(project, cluster) as bench:
        commit, (task,) = bench.repository.resolve("HEAD"), bench.suite.tasks
        need = Need(commit, workplace.protocol.with_telemetry(task), 0)
        future = bench.engine.submit(need)
        os.kill(keeper, signal.SIGKILL)
        while not future.done():
            bench.engine.wait()
        assert future.result().ok
        bench.ledger.close()
    assert [r.outcome.kind for r in trials(project) if r.outcome] == ["interrupted", "ok"]
    assert notes(project) == []


@pytest.mark.matrix
def test_a_node_that_is_shut_down_does_not_interrupt_the_command(
    project: Project, cluster: Loopback, tmp_path: Path
) -> None:
    gate, running = stopped_at_the_gate(project, cluster, tmp_path)
    (ulid,) = (r.trial.ulid for r in trials(project))
    program = [
        p
        for p in psutil.process_iter(["cmdline"])
        if (p.info["cmdline"] or [])[2:3] == [PROGRAM]  # None of one that has just ended
    ]
    (node,) = (p for p in program if p.info["cmdline"][3].endswith(ulid))
    node.terminate()
    until(lambda: len(trials(project)) == 2)
    gate.touch()
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "runs again on another node: its node ended it" in err
    assert [(r.outcome.kind, r.epochs) for r in trials(project) if r.outcome] == [
        ("interrupted", 2),
        ("ok", 4),
    ]


@pytest.mark.matrix
def test_an_interrupted_command_takes_its_trials_back(
    project: Project, cluster: Loopback, tmp_path: Path
) -> None:
    project.history([1.0])
    running = started(project, cluster, "run", env={"GATE": str(tmp_path / "gate")})
    until(lambda: len(trials(project)) == 2 and epochs(project) == 4)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    outcomes = [r.outcome for r in trials(project)]
    assert [(o.kind, o.message) for o in outcomes if o] == [("interrupted", "stopped by hand")] * 2
    assert notes(project) == []
    assert not list(cluster.folder.glob("*.port"))


@pytest.mark.matrix
def test_a_node_with_another_environment_refuses(project: Project, cluster: Loopback) -> None:
    project.history([1.0])
    cluster.environment = {"two": {"TORCH_OTHER": "1"}}
    done = typed(project, cluster, "run")
    assert done.status == 0, done.err
    assert "the environment of" in done.err
    assert "variables" in done.err
    assert len({r.trial.environment for r in trials(project)}) == 1
    assert [r.ok for r in trials(project)] == [True, True]


@pytest.mark.matrix
def test_a_commit_that_changes_nothing_named_re_uses_what_a_node_measured(
    project: Project, cluster: Loopback
) -> None:
    cluster.nodes = ("one",)  # of another user's variables no node would know enough
    project.commit("words", {"docs/README.md": "one\n"})
    project.history([1.0])
    assert typed(project, cluster, "run").status == 0
    project.commit("words", {"docs/README.md": "two\n"})
    done = typed(project, cluster, "run")
    assert "re-used 2 results" in done.err, done.err


@pytest.mark.matrix
def test_a_bisect_runs_on_the_nodes(project: Project, cluster: Loopback) -> None:
    shas = project.history([1.0, 1.0, 1.3])
    done = typed(project, cluster, "bisect", "HEAD~2..", "--metric", "val_loss")
    assert done.status == 0, done.err
    assert f"first bad commit of fit val_loss: {shas[2]}" in done.out


@pytest.mark.matrix
def test_a_trial_that_has_told_enough_ends_early(
    project: Project, cluster: Loopback, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    project.history([1.0])
    with bench_on(project, cluster) as bench:
        commit, (task,) = bench.repository.resolve("HEAD"), bench.suite.tasks
        need = Need(commit, workplace.protocol.with_telemetry(task), 0, until=lambda _: "enough")
        future = bench.engine.submit(need)
        while not future.done():
            bench.engine.wait()
        assert future.result().early_stopped
        assert future.result().outcome.message == "enough"
        bench.ledger.close()


@pytest.mark.matrix
def test_lines_that_the_ledger_refused_are_taken_in_by_what_comes_after(
    project: Project, cluster: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.history([1.0])
    with bench_on(project, cluster) as bench:
        add, refusals = bench.ledger.append_epochs, iter([LedgerError("the disk is full")])

        def refused_once(*arguments: Any) -> Any:
            for error in refusals:
                raise error
            return add(*arguments)

        monkeypatch.setattr(bench.ledger, "append_epochs", refused_once)
        commit, (task,) = bench.repository.resolve("HEAD"), bench.suite.tasks
        bench.engine.submit(Need(commit, workplace.protocol.with_telemetry(task), 0))
        lines = until(lambda: list(cluster.folder.glob("*/celedger/node/orders/*/lines.jsonl")))
        until(lambda: "finish_trial" in lines[0].read_text())
        with pytest.raises(LedgerError):
            bench.engine.wait()
    (record,) = bench.ledger.trials()
    assert (record.ok, record.epochs) == (True, 4)
    assert len(bench.ledger.series(record.trial.ulid)["val_loss"]) == 4
    assert notes(project) == []
    bench.ledger.close()


@pytest.mark.matrix
def test_the_end_of_a_trial_is_not_held_back_for_what_else_may_come(
    project: Project, cluster: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.history([1.0])
    monkeypatch.setattr(head, "GATHER", 120.0)
    began = time.monotonic()
    with bench_on(project, cluster) as bench:
        commit, (task,) = bench.repository.resolve("HEAD"), bench.suite.tasks
        record = bench.run(Need(commit, workplace.protocol.with_telemetry(task), 0))
    assert (record.ok, record.epochs) == (True, 4)
    assert time.monotonic() - began < 120
    bench.ledger.close()


def bench_on(project: Project, cluster: Loopback) -> Any:
    repository = Repository.open(project.root)
    config = Config(project.root / "ledger.db", project.root / "suites")
    suite = load(project.root / "suites" / "tiny")
    tasks = workplace.choose_tasks(suite, ())
    gate = Gate.of(repository, attended=True)
    ledger = Ledger.open(config.ledger, create=True)
    bench = workplace.local_bench(repository, ledger, config, suite, tasks, gate=gate)
    return head.send_out(bench, config, tasks, cluster)


def test_a_node_with_another_celedger_is_named(
    project: Project, cluster: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.history([1.0])
    monkeypatch.setattr(head, "VERSION", "9.9")
    with pytest.raises(head.MachineError, match=r"has celedger .* and this is 9\.9") as error:
        bench_on(project, cluster)
    assert "install one of both on all nodes" in str(error.value)


def test_a_shallow_clone_is_refused(project: Project, cluster: Loopback, tmp_path: Path) -> None:
    project.history([1.0, 1.0])
    clone = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{project.root}", str(clone))
    (project.root / "suites").rename(clone / "suites")
    done = typed(Project(clone), cluster, "run")
    assert done.status == 128
    assert done.err.splitlines() == [
        "celedger: this clone is shallow, and a node needs whole history (git fetch --unshallow)"
    ]


@pytest.mark.parametrize(
    ("env", "words", "line"),
    [
        (
            {"CELEDGER_ENGINE": "cray"},
            [],
            "there is no engine 'cray' (known: local, ray, slurm)",
        ),
        ({}, ["--engine", "cray"], "there is no engine 'cray' (known: local, ray, slurm)"),
        (
            {"PYTHONPATH": "no-ray"},
            ["--engine", "ray"],
            "the engine ray needs the package ray (none here) (pip install ray)",
        ),
    ],
)
def test_wrong_use_is_one_line(
    project: Project, tmp_path: Path, env: dict[str, str], words: list[str], line: str
) -> None:
    project.history([1.0])
    (tmp_path / "no-ray").mkdir()
    (tmp_path / "no-ray" / "ray.py").write_text("raise ImportError('none here')")
    env = {k: str(tmp_path / v) if k == "PYTHONPATH" else v for k, v in env.items()}
    done = project.run("run", *words, env=env)
    assert done.err.splitlines() == [f"celedger: {line}"]
    assert done.status in (128, 129)


def test_a_merged_file_cannot_name_an_engine(project: Project) -> None:
    project.history([1.0])
    (project.root / "celedger.toml").write_text('engine = "ray"\n')
    done = project.run("run")
    assert done.status == 129
    assert "unknown key 'engine'" in done.err
    assert json.dumps(done.err).count("\\n") == 1
