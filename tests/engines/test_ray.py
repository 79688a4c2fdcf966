"""Real Ray: a cluster of two nodes that cannot open the head's repository, ledger and journals."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import Project, celedger, make_project
from engines.test_loopback import FIT, SUITE, epochs, notes, series, trials, until

from celedger.ledger import Ledger

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a mount namespace"),
]


class RayCluster:
    """The process of the cluster."""

    def __init__(self, hidden: Path, home: Path) -> None:
        program = [sys.executable, str(Path(__file__).with_name("ray_cluster.py"))]
        mount = 'mount -t tmpfs none "$1" && shift && exec "$@"'
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", mount, "sh", hidden, *program, hidden, home],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.address = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the cluster did not start"
        return line.strip()

    def kill(self, node: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{node}\n")
        self._process.stdin.flush()
        assert self._line() == "killed"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    # It says whether it can open what only the head may open.
    secret = f"import os\nprint('sees', os.path.exists({str(tmp_path / 'head/ledger.db')!r}))\n"
    return make_project(tmp_path / "head", SUITE, {"fit.py": secret + FIT})


@pytest.fixture
def cluster(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RayCluster]:
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))  # the nodes' and the head's own
    cluster = RayCluster(project.root, tmp_path / "nodes")
    monkeypatch.setenv("CELEDGER_ENGINE", "ray")
    monkeypatch.setenv("CELEDGER_ENGINE_ADDRESS", cluster.address)
    yield cluster
    cluster.close()


def test_a_run_and_a_bisect_on_nodes_answer_as_at_home(
    project: Project, cluster: RayCluster, tmp_path: Path
) -> None:
    (tmp_path / "gate").touch()
    shas = project.history([1.0, 1.0, 1.0, 1.3, 1.3])
    done = project.run("run", "HEAD~2..")
    assert done.status == 0, done.err
    logs = (project.root / ".celedger/logs").glob("*.log")
    assert {log.read_text().split("\n")[0] for log in logs} == {"sees False"}
    bisect = ("bisect", "HEAD~4..", "--metric", "val_loss")
    remote = project.run(*bisect)
    assert f"first bad commit of fit val_loss: {shas[3]}" in remote.out, remote.err
    on_nodes = series(project)
    environments = {r.trial.environment for r in trials(project)}
    assert len(environments) == 1
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        assert ledger.damage() == []
    here = ("run", "HEAD", "--force", "--engine", "local")
    assert project.run(*here).status == 1  # the bisect named what made it worse
    at_home = {key: each for key, each in series(project).items() if key[0] == shas[4]}
    assert at_home == {key: on_nodes[key] for key in at_home}
    assert {r.trial.environment for r in trials(project)} == environments
    assert notes(project) == []


def test_a_killed_node_and_a_killed_head_lose_no_epoch(
    project: Project, cluster: RayCluster, tmp_path: Path
) -> None:
    project.history([1.0])
    program = [sys.executable, "-m", "celedger", "run"]
    head = subprocess.Popen(program, cwd=project.root, stderr=subprocess.DEVNULL)
    until(lambda: len(trials(project)) == 2 and epochs(project) == 4)  # while both trials run
    cluster.kill(0)
    interrupted = until(lambda: [r for r in trials(project) if r.outcome is not None])
    assert [(r.outcome.kind, r.epochs) for r in interrupted if r.outcome] == [("interrupted", 2)]
    head.kill()
    head.wait()
    assert notes(project)
    (tmp_path / "gate").touch()
    done = celedger(project.root, "run")
    assert done.status == 0, done.err
    ended = [r for r in trials(project) if r.ok]
    assert sorted(r.trial.seed for r in ended) == [0, 1]
    assert [r.epochs for r in ended] == [4, 4]
    assert notes(project) == []
