"""`celedger status` from the first command to a named commit: what it shows, and that the command
it prints next is the right one."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from conftest import git, with_verbs
from scripted import Report, ScriptedProject, descend, scripted, typed

from celedger.base.model import Environment, Footprint
from celedger.cli import status
from celedger.judge.incident import Doubt
from celedger.ledger import Ledger


@pytest.fixture
def project(tmp_path: Path) -> ScriptedProject:
    return scripted(tmp_path / "project")


def test_colours_are_for_a_terminal_that_wants_them(project: ScriptedProject) -> None:
    project.history([1.0, 1.0, 1.5, 1.5])
    project.run("run", "HEAD~2")
    project.run("check", "HEAD")
    project.run("status")  # nothing is new any more
    for verb, word in (("status", r"\+\d\d\.?\d* %"), ("log", "val_loss worse .*")):
        plain, forced = project.run(verb), project.run(verb, env={"FORCE_COLOR": "1"})
        assert "\x1b" not in plain.out
        assert re.search(f"\x1b\\[31m{word}\x1b\\[0m", forced.out), forced.out
        assert re.sub(r"\x1b\[\d*m", "", forced.out) == plain.out
        both = project.run(verb, env={"FORCE_COLOR": "1", "NO_COLOR": "1"})
        assert both.out == plain.out
        assert "\x1b" not in project.run(verb, "--json", env={"FORCE_COLOR": "1"}).out
    assert "\x1b[31m" in on_terminal(project, "status")
    assert "\x1b" not in on_terminal(project, "status", NO_COLOR="1")
    assert "\x1b" not in on_terminal(project, "status", TERM="dumb")


def on_terminal(project: ScriptedProject, verb: str, **variables: str) -> str:
    """Return what a verb writes to a terminal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", **variables}
    words = [sys.executable, "-m", "celedger", verb]
    with subprocess.Popen(words, cwd=project.root, env=env, stdout=theirs):
        os.close(theirs)
        text = b""
        with suppress(OSError):  # EIO: everything was read, and nobody writes any more
            while part := os.read(ours, 1 << 16):
                text += part
    os.close(ours)
    return text.decode()


def follow(project: ScriptedProject) -> str:
    """Type what status prints next, and return it."""
    words = shlex.split(json.loads(project.run("status", "--json").out)["next"] or "")
    assert words[:1] == ["celedger"], project.run("status")
    done = project.run(*words[1:])
    assert done.status in (0, 1, 125), done.err
    return " ".join(words)


@with_verbs("explain")
def test_status_leads_from_a_new_repository_to_the_first_bad_commit(
    project: ScriptedProject,
) -> None:
    shas = project.history([1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.5])
    assert "celedger run HEAD" in project.run("status").out
    project.run("run", f"{shas[0]}..{shas[3]}")
    project.run("check", shas[3])
    assert follow(project) == "celedger run HEAD"

    first, again = project.run("status"), project.run("status")
    assert re.search(r"new: fit val_loss +\+3\d\.?\d* % +one of 3 commits", first.out)
    assert "new: " not in again.out

    (incident,) = json.loads(project.run("status", "--json").out)["incidents"]
    assert follow(project) == f"celedger bisect {incident['id']}"
    (named,) = json.loads(project.run("status", "--json").out)["incidents"]
    assert (named["id"], named["first_bad"]) == (incident["id"], [shas[4]])
    shown = project.run("status")
    assert f"{shas[4][:8]} level 1.5, number 4" in shown.out
    next_line = f"`celedger explain {shas[3][:12]}..{shas[4][:12]} fit --suite tiny` says why"
    assert next_line in " ".join(shown.out.split())

    project.run("baseline", "accept", shas[4], "--why", "wanted")
    closed = project.run("status")
    assert re.search(r"^worse +nothing$", closed.out, re.M)
    assert re.search(r"^over +\w+ fit val_loss: accepted", closed.out, re.M)
    assert "over" not in project.run("status").out


@with_verbs("explain")
def test_a_diagnosis_that_follows_torch_is_not_proposed_without_it(
    project: ScriptedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = {"packages": {"numpy": "2.4.6"}}
    monkeypatch.setattr("scripted.ENVIRONMENT", Environment("f" * 64, packages))
    shas = project.history([1.0, 1.5])
    project.run("run", shas[0])
    project.run("check", "HEAD")
    assert f"`celedger show {shas[1][:12]}` shows it" in project.run("status").out


@with_verbs("explain")
def test_a_diagnosis_is_not_proposed_or_run_of_a_task_whose_trials_import_no_torch(
    project: ScriptedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter has torch for other tasks: `explain` trained, and answered 125."""

    def record(ledger: Ledger, ulid: str, why: str) -> None:
        named = (b"fit.py", Footprint.package("scikit-learn"))
        ledger.record_footprint(ulid, Footprint(named), "0" * 64)

    monkeypatch.setattr(Ledger, "record_unknown_footprint", record)
    shas = project.history([1.0, 1.5])
    project.run("run", shas[0])
    with Ledger.open(project.root / "ledger.db") as ledger:
        assert ledger.imported(suite="tiny", task="fit") == {"scikit-learn"}
        assert ledger.imported(suite="tiny", task="other") == frozenset()
    project.run("check", "HEAD")
    assert f"`celedger show {shas[1][:12]}` shows it" in project.run("status").out
    searched = project.run("bisect", f"{shas[0]}..{shas[1]}", "--explain")
    assert "fit is not explained: its trainings import no torch" in searched.err


def test_what_a_person_asks_takes_back_the_line_of_an_earlier_job(
    project: ScriptedProject,
) -> None:
    """A merge said that a loss was worse after `check` had shown that it was mended."""
    project.history([1.0])
    line = project.root / ".git" / "celedger" / "last-job"
    line.parent.mkdir(exist_ok=True)
    line.write_text("celedger: 1a2b: fit loss is worse\n")
    project.run("check", "HEAD")
    assert not line.exists()


def test_a_failure_of_an_earlier_definition_does_not_judge_the_present_one(
    project: ScriptedProject,
) -> None:
    def fail(*_: object) -> NoReturn:
        raise FileNotFoundError("missing.csv")

    project.history([1.0])
    works, project.executor.training = project.executor.training, fail
    assert project.run("run", "HEAD").status == 1
    assert re.search(r"new: fit +fails", project.run("status").out)

    project.executor.training = works
    suite = next(project.root.glob("suites/*/suite.toml"))
    suite.write_text(suite.read_text().replace("--seed", "--data here.csv --seed"))
    assert project.run("run", "HEAD").status == 0
    assert "fails" not in project.run("log").out
    shown = project.run("status")
    assert re.search(r"^worse +nothing$", shown.out, re.M)


def test_the_running_trial_is_followed_beside_the_last_one(tmp_path: Path) -> None:
    followers: list[subprocess.Popen[str]] = []
    lines: list[str] = []

    def training(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
        for number, report in enumerate(descend(model, seed)):
            yield report  # it is in the ledger once this goes on
            if model["LEVEL"] == 2.0 and seed == 0:
                if not followers:
                    words = [sys.executable, "-m", "celedger", "status", "--follow"]
                    started = subprocess.Popen(
                        words, cwd=tmp_path / "project", stdout=subprocess.PIPE, text=True
                    )
                    followers.append(started)
                while not lines or not lines[-1].startswith(f"epoch {number}"):
                    lines.append((followers[0].stdout or io.StringIO()).readline())
                    assert lines[-1], lines

    project = scripted(tmp_path / "project", training=training)
    first, second = project.history([1.0, 2.0])
    assert project.run("status", "--follow").out == "no trial is running\n"
    project.run("run", "HEAD~1")
    assert project.run("run", "HEAD").status == 0
    rest, _ = followers[0].communicate()
    assert (followers[0].returncode, rest) == (0, "ended: ok\n")
    assert lines[0] == f"fit at {second[:8]}, seed 0\n"
    assert lines[1].startswith(f"in brackets: {first[:8]}, seed 0, ")
    values = [re.fullmatch(r"epoch (\d)  val_loss (\S+) \((\S+)\)\n", line) for line in lines[2:]]
    assert [m and m[1] for m in values] == ["0", "1", "2"]
    assert all(m and abs(float(m[2]) - float(m[3]) - 1) < 0.01 for m in values)
    assert project.run("status", "--follow", "--json").status == 129


def test_what_waits_comes_first(project: ScriptedProject) -> None:
    project.history([1.0])
    folder = project.root / ".git" / "celedger" / "queue"
    folder.mkdir(parents=True)
    (folder / "1.moved").write_text(str(project.root))
    (project.root / "celedger.toml").write_text('suite = "tiny"\n')
    done = project.run("status")
    assert "1 merge noted: nothing was allowed here yet" in done.out
    assert "`celedger allow` lets what waits go on" in done.out
    assert project.run("-C", str(project.root), "status").out.count("celedger -C ") >= 1


def test_a_ledger_that_is_gone_is_not_taken_for_none(project: ScriptedProject) -> None:
    project.history([1.0])
    project.run("run", "HEAD")
    (project.root / "ledger.db").unlink()
    done = project.run("status")
    assert (done.status, "celedger doctor --restore" in done.err) == (128, True)


def test_a_repository_without_a_suite_is_told_to_make_one(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert "`celedger init`" in typed(["status"], tmp_path).out
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    assert typed(["run"], tmp_path).status == 129  # it leaves a ledger without a task
    assert "`celedger init`" in typed(["status"], tmp_path).out
    assert "holds no trials yet" in typed(["drift"], tmp_path).err


def test_what_is_probably_worse_is_searched_next() -> None:
    doubt = Doubt("s", "fit", "loss", ("a" * 40, "b" * 40), "b" * 40, 0.85, 0.1, "", 1.0, "e" * 40)
    session: Any = SimpleNamespace(
        repository=SimpleNamespace(resolve=lambda _: SimpleNamespace(sha="c" * 40)),
        ledger=SimpleNamespace(trials=lambda **_: [1], bisects=list),
    )
    state: Any = SimpleNamespace(in_force=(), doubts=(doubt,), standings=(), commits=2)
    said = status._next(session, state, ())
    state.doubts = (doubt._replace(probability=0.27),)
    assert status._next(session, state, ()) == said
    search = f"{'e' * 12}..{'b' * 12} --suite s --task fit --metric loss"
    assert said == f"`celedger bisect {search}` settles whether loss got worse"
    state.doubts = (doubt._replace(probability=0.09),)
    assert status._next(session, state, ()) == ""


def test_a_search_without_a_good_end_asks_for_one(project: ScriptedProject) -> None:
    for n, level in enumerate(["1.0", "1.0", "1 / 0"]):
        project.commit(f"work {n}", {"model.py": f"LEVEL = {level}  # {n}\n"})
    older = "`celedger run REV` trains an older commit, to compare with"
    assert f"first measurement: {older}" in project.run("run", "HEAD").err
    assert older in project.run("status").out
    said = project.run("run", "HEAD~2").err
    assert older not in said and "Next: `celedger bisect " in said


def test_a_first_measurement_says_what_to_compare_it_with(project: ScriptedProject) -> None:
    shas = project.history([1.0, 1.0])
    assert "`celedger run HEAD` trains HEAD, to compare with" in project.run("run", shas[0]).err
    assert "first measurement" not in project.run("run", "HEAD").err


def test_what_a_crash_may_hide_is_looked_for_after_its_search(project: ScriptedProject) -> None:
    levels = ["1.0", "1.0", "1.0", "1 / 0", "1 / 0"]
    shas = [
        project.commit(f"work {n}", {"model.py": f"LEVEL = {level}  # {n}\n"})
        for n, level in enumerate(levels)
    ]
    suite = next(project.root.glob("suites/*/suite.toml"))
    suite.write_text(re.sub("seeds = .*", "seeds = [0, 1, 2, 3, 4]", suite.read_text()))
    project.run("run", shas[0])
    project.run("run", "HEAD")
    (crash,) = json.loads(project.run("status", "--json").out)["incidents"]
    found = project.run("bisect", crash["id"])
    check = f"celedger check {shas[2][:12]} --suite tiny"
    assert f"Next: `{check}` tells what got worse before it fails" in found.err
    assert follow(project) == check
    assert json.loads(project.run("status", "--json").out)["next"] != check
    # The tip fails by it still: the named commit is not the only one that says so.
    assert f"fails ({crash['id']})" in project.run("show", "HEAD").out
    assert f"fails ({crash['id']})" in project.run("log").out.partition(shas[3][:8])[0]


def test_commits_that_cannot_be_told_apart_are_the_incidents_and_are_not_searched_again(
    project: ScriptedProject,
) -> None:
    levels = ["1.0", "1.0", "1 / 0", "1 / 0", "1 / 0", "1.5", "1.5"]
    shas = [
        project.commit(f"work {n}", {"model.py": f"LEVEL = {level}  # {n}\n"})
        for n, level in enumerate(levels)
    ]
    project.run("run", shas[1])
    project.run("check", "HEAD")
    (incident,) = json.loads(project.run("status", "--json").out)["incidents"]
    assert incident["next"] == f"celedger bisect {incident['id']}"
    done = project.run("bisect", incident["id"])
    assert "is one of 4: what lies between cannot be tested" in done.out + done.err
    document = json.loads(project.run("status", "--json").out)
    after = next(i for i in document["incidents"] if i["id"] == incident["id"])
    assert after["first_bad"] == shas[2:6] and after["bisect"] is None
    assert after["next"] == document["next"] == f"celedger status {incident['id']}"
    shown = project.run("status", incident["id"]).out
    assert "no bisect can tell them apart" in shown and "celedger" not in shown
