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

    def __init__(self, hidden: Path, home: Path, gate: Path) -> None:
        program = [sys.executable, str(Path(__file__).with_name("ray_cluster.py"))]
        mount = 'mount -t tmpfs none "$1" && shift && exec "$@"'
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", mount, "sh", hidden, *program, hidden, home],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
            env={**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "GATE": str(gate)},
        )  # fmt: skip
        self.hidden, self.gate = hidden, gate
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


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    folder = tmp_path_factory.mktemp("ray")
    (folder / "heads").mkdir()
    cluster = RayCluster(folder / "heads", folder / "nodes", folder / "gate")
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(nodes: RayCluster, monkeypatch: pytest.MonkeyPatch) -> RayCluster:
    monkeypatch.setenv("GATE", str(nodes.gate))  # the nodes' and the head's own
    monkeypatch.setenv("CELEDGER_ENGINE", "ray")
    monkeypatch.setenv("CELEDGER_ENGINE_ADDRESS", nodes.address)
    nodes.gate.unlink(missing_ok=True)
    return nodes


@pytest.fixture
def project(cluster: RayCluster, tmp_path: Path) -> Project:
    head = cluster.hidden / tmp_path.name
    # It says whether it can open what only the head may open.
    secret = f"import os\nprint('sees', os.path.exists({str(head / 'ledger.db')!r}))\n"
    return make_project(head, SUITE, {"fit.py": secret + FIT})


def test_a_run_on_nodes_answers_as_at_home(project: Project, cluster: RayCluster) -> None:
    """A search on nodes: tests/engines/test_loopback.py."""
    cluster.gate.touch()
    shas = project.history([1.0, 1.3])
    done = project.run("run", "HEAD~1..")
    assert done.status == 0, done.err
    logs = (project.root / ".celedger/logs").glob("*.log")
    assert {log.read_text().split("\n")[0] for log in logs} == {"sees False"}
    on_nodes = series(project)
    environments = {r.trial.environment for r in trials(project)}
    assert len(environments) == 1
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        assert ledger.damage() == []
    here = ("run", "HEAD", "--force", "--engine", "local")
    assert project.run(*here).status in (0, 1)
    at_home = {key: each for key, each in series(project).items() if key[0] == shas[-1]}
    assert at_home == {key: on_nodes[key] for key in at_home}
    assert len(at_home) == 2
    assert {r.trial.environment for r in trials(project)} == environments
    assert notes(project) == []


def test_a_killed_node_and_a_killed_head_lose_no_epoch(
    project: Project, cluster: RayCluster
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
    cluster.gate.touch()
    done = celedger(project.root, "run")
    assert done.status == 0, done.err
    ended = [r for r in trials(project) if r.ok]
    assert sorted(r.trial.seed for r in ended) == [0, 1]
    assert [r.epochs for r in ended] == [4, 4]
    assert notes(project) == []
