"""The worker, as a hook starts it: real merges, real trials, and no sleep but that of a trial
that waits to be let go."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import PEOPLE, SCRIPT, SUITE, Done, Project, git, make_project, until, with_verbs
from scripted import Report, scripted

from celedger.base.errors import TYPED
from celedger.base.model import JobState, QueuedJob
from celedger.ledger import Ledger
from celedger.ledger.write import Queue
from celedger.repo import Repository
from celedger.service import hooks
from celedger.service.worker import MAX_ATTEMPTS, Worker, at_work

from .conftest import PATIENCE, Bell, Crew, branch_ahead


def queue(project: Project) -> dict[str, Any]:
    done = project.run("queue", "--json")
    assert done.status == 0, done.err
    return json.loads(done.out)


def jobs(project: Project) -> list[tuple[str, str, str]]:
    """(commit, state, message) of every job, the oldest first."""
    if not (project.root / "ledger.db").exists():
        return []
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        return [(j.commit, j.state.value, j.message) for j in ledger.jobs()]


def log(project: Project) -> str:
    return (project.root / ".git" / "celedger" / "worker.log").read_text()


def two_losses(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
    rng = Random(seed)
    yield {
        "epoch": 0,
        "val_loss": model["LEVEL"] + rng.gauss(0, 0.01),
        "other": model["OTHER"] + rng.gauss(0, 0.01),
    }


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def hooked(project: Project, interpreter: str) -> Project:
    hooks.install(Repository.open(project.root), interpreter)
    project.allow()
    return project


@pytest.fixture
def gated(tmp_path: Path, bell: Bell, interpreter: str) -> Iterator[Project]:
    """A project with hooks, of which each trial says its process number and its supervisor's,
    and then waits for the gate to be opened."""
    wait = f"""\
import os, time
from celedger.child import log
with open({str(bell.path)!r}, "w") as bell:
    bell.write(f"training {{os.getpid()}} {{os.getppid()}}\\n")
while not os.path.exists({str(tmp_path / "gate")!r}):
    time.sleep(0.02)
log(epoch=0, val_loss=1.0)
"""
    suite = '[suite]\nname = "tiny"\n[metrics.val_loss]\ndirection = "lower"\n'
    suite += '[[task]]\nname = "fit"\ncommand = "{python} {suite}/fit.py"\nseeds = [0]\n'
    project = make_project(tmp_path / "project", suite, {"fit.py": wait})
    hooks.install(Repository.open(project.root), interpreter)
    project.allow()
    yield project
    (tmp_path / "gate").touch()  # a test that failed before leaves no worker behind


def test_a_merge_is_trained_judged_and_shown_and_nothing_of_the_users_is_touched(
    hooked: Project, bell: Bell
) -> None:
    hooked.history([1.0])
    sha = branch_ahead(hooked, {"other.py": "1\n"})
    git(hooked.root, "merge", "-q", "next")
    watched = [".git/index", ".git/HEAD", ".git/logs/HEAD", ".git/hooks/post-merge", "model.py"]
    before = {name: (hooked.root / name).read_bytes() for name in watched}
    refs = git(hooked.root, "for-each-ref")
    assert bell.wait() == "ended 0", log(hooked)
    assert jobs(hooked) == [(sha, "done", "nothing is worse")]
    line = (hooked.root / ".git" / "celedger" / "last-job").read_text()
    assert line == f"celedger: {sha[:10]}: nothing is worse (see `celedger status`)\n"
    with Ledger.open(hooked.root / "ledger.db", readonly=True) as ledger:
        trials = ledger.trials(commit=sha)
        assert all((t.ok, t.trial.why) == (True, "hook") for t in trials)
        # The task's own seeds come first, then what tells the noise.
        assert [t.trial.seed for t in trials][:2] == [0, 1]
    shown = queue(hooked)
    assert (shown["schema"], shown["notes"], shown["worker"]) == (1, 0, False)
    assert shown["jobs"][0]["commit"] == sha
    assert {name: (hooked.root / name).read_bytes() for name in watched} == before
    assert git(hooked.root, "for-each-ref") == refs
    assert git(hooked.root, "status", "--porcelain") == ""


@pytest.mark.matrix
def test_a_merge_in_a_linked_worktree_trains_its_head_with_its_configuration(
    hooked: Project, bell: Bell, tmp_path: Path
) -> None:
    """There a hook runs with GIT_DIR set, which would lead every git command astray."""
    main = hooked.history([1.0])[0]
    linked = tmp_path / "linked"
    git(hooked.root, "worktree", "add", "-q", "-b", "side", str(linked))
    sha = branch_ahead(hooked, {"celedger.toml": 'hook_suite = "tiny"\n'})
    git(linked, "merge", "-q", "next")
    assert bell.wait() == "ended 0", log(hooked)
    assert f"celedger -C {linked} allow" in log(hooked)
    assert "hook_suite = tiny" in Project(linked).allow()
    until(lambda: [s for _, s, _ in jobs(hooked)] == ["done"])
    assert jobs(hooked) == [(sha, "done", "nothing is worse")]
    with Ledger.open(hooked.root / "ledger.db", readonly=True) as ledger:
        assert [(j.suite, j.key) for j in ledger.jobs()] == [("tiny", str(linked))]
    assert git(hooked.root, "rev-parse", "HEAD") == main


@pytest.mark.matrix
def test_merges_in_a_row_become_one_job_for_the_newest_and_no_second_worker(
    gated: Project, bell: Bell, tmp_path: Path
) -> None:
    gated.commit("first")
    shas = []
    for name in ("one", "two", "three"):
        shas.append(branch_ahead(gated, name=name))
        git(gated.root, "merge", "-q", name)
        bell.wait_for("training" if name == "one" else "ended 0")
    second = gated.run("worker")
    assert second.status == 0
    assert "another worker" in second.err
    shown = queue(gated)
    assert shown["worker"] is True
    assert [(j["commit"], j["state"]) for j in shown["jobs"]] == list(
        zip(shas, ["running", "superseded", "queued"], strict=True)
    )
    (tmp_path / "gate").touch()
    bell.wait_for("ended 0")
    assert [(c, s) for c, s, _ in jobs(gated)] == list(
        zip(shas, ["done", "superseded", "done"], strict=True)
    )


@pytest.mark.matrix
def test_the_worker_holds_nothing_of_the_shell_that_merged(
    gated: Project, bell: Bell, tmp_path: Path
) -> None:
    """Neither its terminal, nor git's pipes, nor the lock of a `flock 200` around the pull."""
    hooks.install(Repository.open(gated.root), sys.executable)
    gated.commit("first")
    branch_ahead(gated)
    reader, writer = os.pipe()
    high = os.dup2(writer, 200)
    with subprocess.Popen(
        ["git", "merge", "-q", "next"], cwd=gated.root, env={**os.environ, **PEOPLE},
        pass_fds=(writer, high), stdout=writer, stderr=writer, start_new_session=True,
    ) as shell:  # fmt: skip
        os.close(writer)
        os.close(high)
        assert shell.wait() == 0
        session = shell.pid
    ready, _, _ = select.select([reader], [], [], PATIENCE)
    assert ready
    assert os.read(reader, 100) == b""  # the end: nobody holds it
    os.close(reader)
    bell.wait_for("training")
    with Ledger.open(gated.root / "ledger.db", readonly=True) as ledger:
        pid = int(ledger.jobs()[0].owner.split()[-1])
    assert os.getsid(pid) == pid != session
    held = {str(Path(f"/proc/{pid}/fd/{fd}").readlink()) for fd in "012"}
    assert held == {"/dev/null", str(gated.root / ".git" / "celedger" / "worker.log")}
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[4] == "0"  # no tty
    (tmp_path / "gate").touch()
    with (gated.root / ".celedger" / "worker.lock").open() as held_by_it:
        fcntl.flock(held_by_it, fcntl.LOCK_EX)  # waits for the worker's end
    assert [s for _, s, _ in jobs(gated)] == ["done"]


@pytest.mark.matrix
def test_a_killed_worker_leaves_no_process_and_the_next_one_goes_on(
    gated: Project, bell: Bell, tmp_path: Path
) -> None:
    gated.commit("first")
    branch_ahead(gated)
    git(gated.root, "merge", "-q", "next")
    training, supervisor = map(int, bell.wait_for("training").split()[1:])
    with Ledger.open(gated.root / "ledger.db", readonly=True) as ledger:
        os.kill(int(ledger.jobs()[0].owner.split()[-1]), signal.SIGKILL)
    assert bell.wait_for("ended") == "ended 137"
    lost = gated.run("queue")
    assert "lost" in lost.out
    assert "`celedger worker` goes on" in lost.out
    (job,) = json.loads(gated.run("queue", "--json").out)["jobs"]
    assert (job["state"], job["message"]) == ("lost", "its worker died")
    assert "running" not in gated.run("log").out
    deadline = time.monotonic() + PATIENCE
    while alive(training) or alive(supervisor):
        assert time.monotonic() < deadline, "a stray process"
        time.sleep(0.02)
    (tmp_path / "gate").touch()
    again = gated.run("worker")
    assert again.status == 0, again.err
    assert "1 job run" in again.err
    (job,) = queue(gated)["jobs"]
    assert (job["state"], job["attempts"]) == ("done", 2)
    assert at_work(gated.root / "ledger.db") is False


def test_a_worker_is_missed_only_once_its_merge_is_old(crew: Crew) -> None:
    """The hook's worker takes the lock a second or so after the merge."""
    crew.project.commit("first")
    note = crew.note()
    young = crew.project.run("queue")
    assert young.out == "1 merge noted, not yet in the queue; its worker starts\n"
    assert "celedger worker" not in crew.project.run("status").out
    os.utime(note, (1.0, 1.0))
    assert "no worker is running: `celedger worker` goes on" in crew.project.run("queue").out
    assert "`celedger worker` runs what is queued" in crew.project.run("status").out


@pytest.mark.matrix
def test_a_stopped_worker_hands_its_job_back(gated: Project, bell: Bell) -> None:
    gated.commit("first")
    branch_ahead(gated)
    git(gated.root, "merge", "-q", "next")
    training = int(bell.wait_for("training").split()[1])
    with Ledger.open(gated.root / "ledger.db", readonly=True) as ledger:
        os.kill(int(ledger.jobs()[0].owner.split()[-1]), signal.SIGTERM)
    assert bell.wait_for("ended") != "ended 0"
    assert [(s, m) for _, s, m in jobs(gated)] == [("queued", "stopped")]
    assert not alive(training)


@pytest.mark.matrix
def test_a_person_ends_one_job(gated: Project, bell: Bell) -> None:
    gated.commit("first")
    shas = []
    for name in ("one", "two"):
        shas.append(branch_ahead(gated, name=name))
        git(gated.root, "merge", "-q", name)
        if name == "one":
            training = int(bell.wait_for("training").split()[1])
    assert bell.wait_for("ended") == "ended 0"  # that of the second merge: another one is at it
    assert gated.run("stop", shas[0]).out.startswith(f"the job of {shas[0][:10]} and its worker")
    assert bell.wait_for("ended") != "ended 0"
    assert [(s, m) for _, s, m in jobs(gated)] == [("failed", "stopped"), ("queued", "")]
    assert not alive(training)
    assert gated.run("stop", "HEAD").out.startswith(f"the job of {shas[1][:10]} ended")
    assert [s for _, s, _ in jobs(gated)] == ["failed", "failed"]
    again = gated.run("stop", "HEAD")
    assert (again.status, again.err) == (
        129, f"celedger: no job of {shas[1][:10]} waits or runs (see `celedger queue`)\n"
    )  # fmt: skip


@pytest.mark.matrix
def test_what_a_merge_made_worse_is_bisected_and_the_queue_names_the_commit(
    hooked: Project, bell: Bell
) -> None:
    hooked.commit("configure", {"celedger.toml": "bisect_on_regression = true\n"})
    hooked.history([1.0])
    assert hooked.run("run", "HEAD").status == 0
    git(hooked.root, "checkout", "-q", "-b", "next")
    shas = hooked.history([1.0, 1.5, 1.5])
    git(hooked.root, "checkout", "-q", "main")
    git(hooked.root, "merge", "-q", "next")
    assert bell.wait() == "ended 0", log(hooked)
    shown = hooked.run("queue").out
    assert shown.startswith(f"{shas[-1][:8]}  done ")
    assert "fit val_loss is worse" in shown
    assert f"since {shas[1][:8]} " in shown


# --- inside one process, where the moment matters


@pytest.mark.parametrize("bisect", [True, False])
def test_a_crash_is_bisected_too_and_only_where_the_configuration_says_so(
    bisect: bool, crew: Crew
) -> None:
    crew.project.history([1.0])
    crew.note()
    assert crew.worker().drain() == 1
    settings = f"bisect_on_regression = {str(bisect).lower()}\n"
    crew.project.commit("harmless", {"celedger.toml": settings})
    crew.project.allow()
    boom = crew.project.commit("boom", {"model.py": "raise RuntimeError('boom')\n"})
    crew.project.commit("later", {"a.py": "2\n"})
    crew.note()
    assert crew.worker().drain() == 1
    state, message = crew.states()[-1]
    assert state is JobState.DONE
    assert message.startswith("fit fails since ")
    assert ": exit status 1: RuntimeError: boom" in message
    assert (f"since {boom[:8]} boom" in message) is bisect, message
    assert (f"reverting {boom[:8]} on" in message and "every training runs" in message) is bisect


def test_what_a_bisect_parts_from_an_incident_is_bisected_in_the_same_job(
    tmp_path: Path,
) -> None:
    suite = SUITE.replace("[[task]]", '[metrics.other]\ndirection = "lower"\n\n[[task]]', 1)
    project = scripted(tmp_path / "project", suite, two_losses)
    with project.executor.at(project.root):
        crew = Crew(project)
        project.commit("configure", {"celedger.toml": "bisect_on_regression = true\n"})
        project.allow()
        project.commit("base", {"model.py": "LEVEL = OTHER = 1.0\n"})
        crew.note()
        assert crew.worker().drain() == 1
        first = project.commit("other", {"model.py": "LEVEL = 1.0\nOTHER = 1.5\n"})
        for number in range(6):
            project.commit("between", {"a.py": f"{number}\n"})
        second = project.commit("level", {"model.py": "LEVEL = OTHER = 1.5\n"})
        crew.note()
        assert crew.worker().drain() == 1
    incidents = json.loads(project.run("status", "--json").out)["incidents"]
    named = {row["metrics"][0]["name"]: row["first_bad"] for row in incidents}
    assert named == {"other": [first], "val_loss": [second]}


def test_bits_are_those_since_the_last_signed_commit(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two weeks every training failed; the mend was said to compute what nothing had computed."""
    signed, failing, mended = crew.project.history([1.0, 2.0, 1.5])
    crew.enqueue(failing)
    assert crew.worker().drain() == 1
    crew.said.clear()
    monkeypatch.setattr(crew.ledger, "signatures", lambda: [SimpleNamespace(commit=signed)])
    suite = SimpleNamespace(folder=Path("tiny"))
    bench: Any = SimpleNamespace(repository=crew.repository, suite=suite)
    rows = [{"commit": signed, "bits": "signed"}, {"commit": mended, "bits": "new"}]
    asked: list[str] = []
    for commits in (rows[1:], rows):
        answer = json.dumps({"tasks": [{"task": "fit", "commits": commits}]})

        def same(words: Sequence[str], answer: str = answer) -> str:
            asked.append(words[1])
            return answer

        crew.worker()._sign(same, bench, crew.repository.commit(mended))
    assert asked == [f"{signed[:TYPED]}..{mended[:TYPED]}"] * 2
    assert crew.said == [f"{mended[:10]} bits: new"]


def test_a_search_in_vain_is_no_error_of_the_worker(crew: Crew) -> None:
    """It has no first bad commit to explain: the job failed with an IndexError."""
    nothing: Any = SimpleNamespace(named=False, culprits=())
    unused: Any = None
    worker = crew.worker()
    worker.run_verb = lambda repository, settings, words: pytest.fail(f"ran {words}")
    worker._explain(unused, unused, nothing, unused)


def test_a_merge_at_the_moment_the_lock_is_let_go_is_not_lost(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew.project.history([1.0])
    crew.note()
    claim, told = Queue.claim, []

    def last_moment(queue: Queue, *words: Any) -> QueuedJob | None:
        job = claim(queue, *words)
        if job is None and not told:
            told.append(crew.project.history([1.1]))
            crew.note(name="2")
            assert crew.worker().drain() is None  # it finds the lock taken, and goes
        return job

    monkeypatch.setattr(Queue, "claim", last_moment)
    assert crew.worker().drain() == 2
    assert [s for s, _ in crew.states()] == [JobState.DONE] * 2


def test_a_job_that_kills_its_worker_again_and_again_is_given_up(crew: Crew) -> None:
    (sha,) = crew.project.history([1.0])
    crew.enqueue(sha)
    for _ in range(MAX_ATTEMPTS):
        crew.worker()._release_dead()
        assert crew.ledger.queue.claim(crew.worker().owner) is not None
    assert crew.worker().drain() == 0
    ((state, message),) = crew.states()
    assert state is JobState.FAILED
    assert "died 3 times" in message
    assert crew.ledger.trials() == []


def test_status_proposes_no_run_of_what_the_worker_measures(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, head = crew.project.history([1.0, 1.0])
    crew.project.run("run", first)
    monkeypatch.setattr("celedger.cli.status._queue_hint", lambda queue: "")  # a worker runs
    assert "`celedger run HEAD` measures HEAD" in crew.project.run("status").out
    crew.enqueue(head)
    assert "measures HEAD" not in crew.project.run("status").out


def test_a_job_that_cannot_run_is_recorded_with_its_sentence_and_the_next_one_runs(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sha,) = crew.project.history([1.0])
    crew.enqueue(sha, suite="absent")
    crew.enqueue(sha, key="a bug of ours")
    crew.enqueue(sha)
    place = Worker._place

    def bug(worker: Worker, job: QueuedJob) -> Repository:
        if job.key:
            raise ZeroDivisionError("ours")
        return place(worker, job)

    monkeypatch.setattr(Worker, "_place", bug)
    assert crew.worker().drain() == 3
    first, second, third = crew.states()
    assert first[0] is JobState.FAILED
    assert "absent" in first[1]
    assert second == (JobState.FAILED, "internal error: ZeroDivisionError: ours")
    assert any("Traceback" in line for line in crew.said)
    assert third == (JobState.DONE, "nothing is worse")


def test_a_note_of_a_folder_that_is_gone_is_passed_over(crew: Crew) -> None:
    crew.project.history([1.0])
    gone = crew.note("/no/such/folder", "2")
    assert crew.worker().collect() == 0
    assert not gone.exists()
    assert "/no/such/folder" in crew.said[0]


def test_a_merge_whose_configuration_is_broken_is_a_job_that_says_so(crew: Crew) -> None:
    crew.project.commit("broken", {"celedger.toml": "suiet = 'tiny'\n"})
    crew.note()
    assert crew.worker().drain() == 1
    ((state, message),) = crew.states()
    assert state is JobState.FAILED
    assert "did you mean 'suite'" in message


@pytest.mark.matrix
def test_two_repositories_that_share_a_ledger_train_their_own(crew: Crew, tmp_path: Path) -> None:
    other = make_project(tmp_path / "other", scripts={"fit.py": SCRIPT})
    other.history([1.0, 2.0])
    other.allow()
    crew.project.history([1.0])
    crew.note(str(crew.project.root), "1")
    crew.note(str(other.root), "2")
    assert crew.worker().drain() == 2
    assert [s for s, _ in crew.states()] == [JobState.DONE] * 2


@pytest.mark.matrix
@with_verbs("report")
def test_the_page_is_written_anew_after_each_job_and_never_in_its_way(
    crew: Crew, tmp_path: Path
) -> None:
    page = tmp_path / "www" / "page.html"
    file = Path(os.environ["XDG_CONFIG_HOME"]) / "celedger" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'report = "{page}"\n')
    for count in (1, 2):
        crew.enqueue(crew.project.history([1.0 + count])[-1])
        assert crew.project.run("worker").status == 0
        assert f"{count} measured" in page.read_text()
    page.unlink()
    page.mkdir()
    crew.enqueue(crew.project.history([4.0])[-1])
    done = crew.project.run("worker")
    assert "the report was not written: cannot write" in done.err
    assert [state for state, _ in crew.states()] == [JobState.DONE] * 3
    assert list(page.parent.iterdir()) == [page]


@pytest.mark.matrix
def test_the_log_does_not_grow_without_bound(project: Project) -> None:
    project.history([1.0])
    crew = Crew(project)
    crew.note()
    crew.ledger.close()
    path = crew.repository.state_dir / "worker.log"
    path.write_bytes(b"x" * (3 << 20))
    with path.open("ab") as file:
        subprocess.run(
            [sys.executable, "-m", "celedger", "worker", "--from-hook"],
            cwd=project.root, check=True, stdout=file, stderr=file,
        )  # fmt: skip
    assert path.stat().st_size < 1 << 20
    assert path.read_text().endswith("nothing is worse\n")


def test_the_queue_before_the_first_worker_shows_the_note(crew: Crew) -> None:
    crew.ledger.close()
    (crew.project.root / "ledger.db").unlink()
    crew.project.history([1.0])
    crew.note()
    done: Done = crew.project.run("queue")
    assert done.status == 0, done.err
    assert "1 merge noted, not yet in the queue; its worker starts" in done.out


@pytest.mark.matrix
def test_another_hook_manager_does_what_the_installed_hook_does(
    project: Project, bell: Bell
) -> None:
    """As `.pre-commit-hooks.yaml` calls it."""
    sha = project.history([1.0])[0]
    project.allow()
    for name, value in (("IS_SQUASH_MERGE", "1"), ("REWRITE_COMMAND", "amend")):
        project.run("hook", "run", env={f"PRE_COMMIT_{name}": value})
    assert queue_notes(project) == []
    (project.root / ".git" / "celedger" / "last-job").write_text("celedger: 1a2b: nothing\n")
    done = project.run("hook", "run")
    assert (done.status, done.err) == (0, "celedger: 1a2b: nothing\n")
    until(lambda: [state for _, state, _ in jobs(project)] == ["done"])
    assert jobs(project)[0][0] == sha


def queue_notes(project: Project) -> list[Path]:
    return list((project.root / ".git" / "celedger" / "queue").glob("*"))


def test_a_worker_that_cannot_start_is_told_by_the_next_merge(project: Project) -> None:
    (project.root / "celedger.toml").write_text("[notify]\nwebhook = 'http://localhost'\n")
    assert project.run("worker", "--from-hook").status == 129
    line = (project.root / ".git" / "celedger" / "last-job").read_text()
    assert line.startswith("celedger: an earlier merge was not measured: ")
    assert "unknown key 'notify'" in line
    assert line.count("\n") == 1
