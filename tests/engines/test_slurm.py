"""Real Slurm: a cluster of two nodes that share one folder with the head, and cannot open its
repository, ledger and journals."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Project, celedger, make_project, matrix_after
from engines.test_loopback import FIT, SUITE, epochs, notes, series, trials, until

from celedger.engines import slurm_job
from celedger.ledger import Ledger

SCRIPT = Path(__file__).parents[2] / "scripts" / "slurm_here.sh"


def real(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test of the cluster, of which there is one at a time: its ports are fixed."""
    return pytest.mark.slurm(pytest.mark.xdist_group("slurm")(test))


class SlurmCluster:
    """A cluster below a folder, as scripts/slurm_here.sh makes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shared, self.gate = folder / "shared", folder / "shared" / "gate"

    def jobs(self, *states: str) -> list[str]:
        wanted = f"--states={','.join(states or ('pending', 'running'))}"
        return slurm("squeue", "--noheader", wanted, "--format=%i").split()

    def kill(self, node: str) -> None:
        """End all processes of a node."""
        _munged, _controller, *nodes = (self.folder / "daemons").read_text().split()
        os.kill(int(nodes[int(node.removeprefix("node")) - 1]), signal.SIGKILL)


def slurm(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(tmp_path / "cluster")
    up = subprocess.run([SCRIPT, "up", cluster.folder], stderr=subprocess.PIPE, text=True)
    try:
        if up.returncode == 77:
            pytest.skip(up.stderr.strip())
        assert up.returncode == 0, up.stderr
        monkeypatch.setenv("SLURM_CONF", str(cluster.folder / "slurm.conf"))
        monkeypatch.setenv("HOME", str(cluster.folder / "home"))
        monkeypatch.setenv("CELEDGER_LOCK_DIR", str(cluster.folder / "home" / "locks"))
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv("CELEDGER_ENGINE", "slurm")
        monkeypatch.setenv("CELEDGER_ENGINE_ADDRESS", str(cluster.shared))
        monkeypatch.setenv("GATE", str(cluster.gate))
        yield cluster
    finally:
        subprocess.run([SCRIPT, "down", cluster.folder], check=True)


@pytest.fixture
def project(cluster: SlurmCluster) -> Project:
    root = cluster.folder / "head" / "project"
    # It says whether it can open what only the head may open.
    secret = f"import os\nprint('sees', os.path.exists({str(root / 'ledger.db')!r}))\n"
    return make_project(root, SUITE, {"fit.py": secret + FIT})


def begin(project: Project, *words: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "celedger", "run", *words]
    return subprocess.Popen(program, cwd=project.root, stderr=subprocess.PIPE, text=True)


@real
def test_a_run_and_a_bisect_on_slurm_answer_as_at_home(
    project: Project, cluster: SlurmCluster
) -> None:
    cluster.gate.touch()
    shas = project.history([1.0, 1.0, 1.0, 1.3, 1.3])
    done = project.run("run", "HEAD~2..")
    assert done.status == 0, done.err
    logs = (project.root / ".celedger/logs").glob("*.log")
    assert {log.read_text().split("\n")[0] for log in logs} == {"sees False"}
    assert {r.trial.host for r in trials(project)} == {"node1", "node2"}
    on_nodes = series(project)
    here = project.run("run", "HEAD", "--force", "--engine", "local")
    assert here.status == 0, here.err
    assert series(project) == on_nodes
    assert len({r.trial.environment for r in trials(project)}) == 1
    bisect = project.run("bisect", "HEAD~4..", "--metric", "val_loss")
    assert f"first bad commit of fit val_loss: {shas[3]}" in bisect.out, bisect.err
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        assert ledger.damage() == []
    assert notes(project) == []
    assert [path.name for path in cluster.shared.iterdir()] == ["gate"]


@real
@pytest.mark.parametrize("how", ["cancelled", "requeued", "node killed"])
def test_a_lost_job_keeps_its_epochs_and_runs_again(
    project: Project, cluster: SlurmCluster, how: str
) -> None:
    project.history([1.0])
    running = begin(project, "--seed", "0")
    until(lambda: trials(project) and epochs(project) == 2)  # while the trial runs
    (job,) = cluster.jobs("running")
    if how == "cancelled":
        slurm("scancel", job)
    elif how == "requeued":
        slurm("scontrol", "update", f"JobId={job}", "Requeue=1")
        slurm("scontrol", "requeue", job)
    else:
        cluster.kill(slurm("squeue", "--noheader", "--jobs", job, "--format=%N").strip())
    until(lambda: len(trials(project)) == 2 and epochs(project) == 2)
    cluster.gate.touch()
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "runs again on another node: " in err
    first, second = trials(project)
    assert first.outcome is not None
    assert (first.outcome.kind, first.epochs) == ("interrupted", 2)
    assert (second.ok, second.epochs) == (True, 4)
    assert notes(project) == []


@real
def test_a_killed_head_loses_no_epoch_of_its_jobs(project: Project, cluster: SlurmCluster) -> None:
    project.history([1.0])
    head = begin(project)
    until(lambda: len(trials(project)) == 2 and epochs(project) == 4)  # while both trials run
    head.kill()
    head.communicate()
    assert len(notes(project)) == 2
    cluster.gate.touch()
    until(lambda: not cluster.jobs())  # they end without a head
    done = celedger(project.root, "run")
    assert done.status == 0, done.err
    assert sorted((r.trial.seed, r.ok, r.epochs) for r in trials(project)) == [
        (0, True, 4), (1, True, 4),
    ]  # fmt: skip
    assert notes(project) == []
    assert [path.name for path in cluster.shared.iterdir()] == ["gate"]


@real
def test_an_interrupted_command_cancels_its_jobs(project: Project, cluster: SlurmCluster) -> None:
    project.history([1.0, 1.0])
    running = begin(project, "HEAD~1..", "--workers", "1")
    until(lambda: trials(project) and epochs(project) == 2)
    assert len(cluster.jobs()) == 1
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    outcomes = [r.outcome for r in trials(project)]
    assert [(o.kind, o.message) for o in outcomes if o] == [("interrupted", "stopped by hand")]
    assert notes(project) == []
    until(lambda: not cluster.jobs("pending", "running", "completing"))


@real
def test_an_interrupted_command_leaves_no_job_in_the_queue(
    project: Project, cluster: SlurmCluster
) -> None:
    project.history([1.0])
    busy = ("sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null")
    other = slurm(*busy, "--wrap", "sleep 1000").strip()
    running = begin(project)
    until(lambda: len(cluster.jobs("pending")) == 1 and cluster.jobs("running") == [other])
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    until(lambda: cluster.jobs() == [other])
    assert notes(project) == []


@real
def test_what_a_slurm_cluster_lacks_is_one_line(project: Project, cluster: SlurmCluster) -> None:
    project.history([1.0])
    no_gpu = project.run("run", "--device", "cuda:0")
    assert no_gpu.err.splitlines() == [
        "celedger: no node of the Slurm cluster has a GPU (use --device cpu)"
    ]
    # On the nodes alone there is a module that changes what they have.
    sites = [cluster.folder / node / "site" for node in ("node1", "node2")]
    env = {"PYTHONPATH": str(cluster.folder / "home" / "site")}
    for body, words in {
        "import celedger.base\nceledger.base.VERSION = '0.0'": r"node\d has celedger 0.0 \(schema ",
        "import sys\nsys.modules['celedger'] = None": "a node cannot run celedger: .*celedger",
    }.items():
        for site in sites:
            site.mkdir(exist_ok=True)
            (site / "sitecustomize.py").write_text(body)
        done = celedger(project.root, "run", env=env)
        (line,) = done.err.splitlines()
        assert done.status == 128
        assert "install" in line
        assert re.search(words, line), line
    assert cluster.jobs() == []
    configuration = cluster.folder / "slurm.conf"
    configuration.write_text(configuration.read_text().replace("16817", "16818"))
    (line,) = project.run("run").err.splitlines()
    assert line.startswith("celedger: squeue failed: ")
    assert "Unable to contact slurm controller" in line


@pytest.mark.parametrize(
    ("address", "problem"),
    matrix_after(
        1,
        [
            ("/no/folder", "/no/folder cannot be written: No such file or directory"),
            ("", "none is named"),
            ("some/folder", "some/folder is not absolute"),
            ("/sys/kernel", "/sys/kernel cannot be written: Permission denied"),
        ],
    ),
)
def test_a_shared_folder_that_is_unfit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, problem: str
) -> None:
    project = make_project(tmp_path / "project", SUITE, {"fit.py": FIT})
    project.history([1.0])
    programs(tmp_path / "bin", monkeypatch).joinpath("sbatch").symlink_to("/bin/true")
    monkeypatch.setenv("CELEDGER_ENGINE_ADDRESS", address)
    done = project.run("run", "--engine", "slurm")
    assert done.err == (
        f"celedger: the engine slurm needs a folder that the nodes share; {problem} "
        '(write engine_address = "/shared/folder" in your configuration)\n'
    )
    assert done.status == 129


def test_a_machine_without_slurm_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path / "project", SUITE, {"fit.py": FIT})
    project.history([1.0])
    programs(tmp_path / "bin", monkeypatch)
    done = project.run("run", "--engine", "slurm")
    assert done.err == (
        "celedger: the engine slurm needs sbatch, which is not on PATH "
        "(type this on a machine that submits jobs, or use --engine local)\n"
    )
    assert done.status == 128


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave only git on PATH."""
    folder.mkdir()
    (folder / "git").symlink_to(shutil.which("git") or "")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_a_requeued_job_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / slurm_job.LINES).touch()
    env = {**os.environ, "SLURM_RESTART_COUNT": "1"}
    program = [sys.executable, "-m", slurm_job.__name__, str(tmp_path)]
    subprocess.run(program, env=env, check=True, timeout=60)
    assert (tmp_path / slurm_job.LINES).read_bytes() == b""
