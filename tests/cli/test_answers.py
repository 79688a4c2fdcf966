"""What the reading verbs and `check` claim, no more and no less, through the real program."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import PEOPLE, Project, git, make_project
from scripted import Report, scripted

# Every commit draws its own noise, of 0.75 % of the level.
NOISY = """\
import random, sys
from celedger.child import log
from model import LEVEL, NUMBER
noise = random.Random(2000 * NUMBER + int(sys.argv[2])).gauss(0, 0.01)
log(epoch=0, val_loss=LEVEL + noise)
"""
SUITE = """\
[suite]
name = "tiny"
[metrics.val_loss]
unit = "nats"
direction = "lower"
floor = "2%"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py --seed {seed}"
seeds = [0, 1, 2]
"""


def wander(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
    """Report a loss with noise as NOISY draws it."""
    noise = Random(2000 * (1 + model["NUMBER"]) + seed).gauss(0, 0.01)
    yield {"epoch": 0, "val_loss": model["LEVEL"] + noise}


def noisy(root: Path, suite: str = SUITE) -> Project:
    return scripted(root, suite, wander)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return scripted(tmp_path / "project")


def typed(project: Project, line: str) -> tuple[int, str]:
    """Type a command as it was printed."""
    program, *words = shlex.split(line)
    assert program == "celedger"
    done = project.run(*words)
    return done.status, done.out + done.err


@pytest.mark.matrix
def test_drift_over_gaps_names_the_range_and_its_command_finds_the_commit(
    project: Project,
) -> None:
    shas = project.history([1.0] * 8 + [1.4] * 8)
    for sha in shas[::5]:
        project.run("run", sha, "--repeat", "2")
    wanted = ("drift", "--metric", "val_loss")
    done = project.run(*wanted, env={"COLUMNS": "80"})
    assert done.status == 0, done.err
    assert f"between {shas[5][:8]} and {shas[10][:8]}, 5 commits" in done.out
    assert shas[7][:8] not in done.out
    (command,) = [line for line in done.out.splitlines() if "celedger bisect" in line]
    (incident,) = json.loads(project.run(*wanted, "--json").out)["incidents"]
    assert command.split()[2] == incident["id"]
    assert incident["among"] == incident["first_bad"] == shas[6:11]
    status, text = typed(project, command)
    assert status == 0, text
    assert f"first bad commit of fit val_loss: {shas[8]}" in text
    assert shas[8][:8] in project.run("status", env={"COLUMNS": "200"}).out


def test_drift_without_any_repeat_says_that_the_noise_is_unknown(project: Project) -> None:
    for sha in project.history([1.0, 1.4]):
        project.run("run", sha)
    for words in (["drift", "--metric", "val_loss"], ["status"]):
        said = project.run(*words).out
        assert "no change seen" not in said
        assert "noise unknown: fit val_loss" in " ".join(said.split())


def test_check_does_not_pass_what_it_could_not_see_and_says_what_would(tmp_path: Path) -> None:
    project = noisy(tmp_path / "project", SUITE.replace("2%", "0.8%"))
    shas = project.history([1.3, 1.3])
    first = project.run("check", shas[0])
    assert (first.status, "nothing to compare with" in first.out) == (125, True)
    narrow = project.run("check", shas[1], env={"COLUMNS": "80"})
    assert narrow.status == 125, narrow.out + narrow.err
    lines = [line for line in narrow.out.splitlines() if "celedger bisect" not in line]
    assert max(map(len, lines)) <= 80
    assert "…" not in narrow.out
    said = " ".join(narrow.out.split())
    assert re.search(r"cannot detect less than [\d.]+ %", said), narrow.out
    assert "too noisy: fit val_loss; more `seeds` in suite.toml detect smaller changes" in said
    search = f"bisect {shas[0][:12]}..{shas[1][:12]} --suite tiny --task fit --metric val_loss"
    assert f"celedger {search}" in said
    standings = json.loads(project.run("check", "--json", "--budget", "0").out)["standings"]
    (standing,) = [s for s in standings if s["metric"] == "val_loss"]
    assert standing["standing"] == "too-noisy"
    assert standing["declared"]
    assert standing["smallest"] > standing["floor"] == pytest.approx(0.0104, abs=0.001)
    assert project.run("check", "--lenient", "--budget", "0").status == 0
    assert project.run(*search.split()).status in (0, 125)
    wide = noisy(tmp_path / "wide", SUITE.replace("2%", "30%"))
    for sha in wide.history([1.3, 1.3]):
        wide.run("run", sha, "--repeat", "4")
    done = wide.run("check", "--budget", "0")
    assert done.status == 0, done.out
    assert re.search(r"same .* a change of [\d.]+ % would have been", done.out)
    assert "too noisy:" not in done.out


# A small ViT on digits: its loss at learning rate 2e-3, and how much more it is at 1.75e-3.
BY_SEED = [(1.049, 0.126), (1.009, 0.018), (0.895, 0.134), (0.82, 0.054), (0.927, 0.105)]


def by_seed(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
    """Report a loss that a seed repeats, and that another level moves for each seed otherwise."""
    loss, rise = BY_SEED[seed % 5]
    yield {"epoch": 0, "val_loss": (loss + seed // 5 / 100) * (1 + rise * (model["LEVEL"] > 1))}


@pytest.mark.matrix
def test_what_equal_seeds_say_and_too_few_settle_names_the_search_that_does(tmp_path: Path) -> None:
    """The verdict was "too noisy", and no command helped."""
    project = scripted(tmp_path / "project", SUITE.replace("[0, 1, 2]", "5"), by_seed)
    shas = project.history([1.0, 1.0, 1.0, 2.0, 2.0, 2.0])
    assert project.run("run", shas[0]).status == 0
    project.run("run", shas[-1])
    done = project.run("check", "--budget", "0")
    assert done.status == 125, done.out
    assert "seems worse, not settled" in done.out
    (line,) = [line for line in done.out.splitlines() if "settles whether val_loss" in line]
    assert line.startswith(f"`celedger bisect {shas[0][:12]}..{shas[-1][:12]} ")
    status, out = typed(project, line.split("`")[1])
    assert status == 0, out
    assert f"first bad commit of fit val_loss: {shas[3]}" in out
    assert "settles" not in project.run("check").out


# A small CfC on a sine: its loss with five seeds, and with a flatter tanh.
OF_LEVEL = {1.0: (0.208, 0.100, 0.417, 0.179, 0.279), 2.0: (0.300, 0.241, 0.577, 0.254, 0.239)}


def of_level(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
    yield {"epoch": 0, "val_loss": OF_LEVEL[model["LEVEL"]][seed]}


def test_diff_and_check_agree_on_what_seeds_that_repeat_tell(tmp_path: Path) -> None:
    """A repeat of one seed made equal bits "seem better"; what seemed 39 % worse to `diff`, `check`
    called noise that hides what is smaller than 26 %."""
    project = scripted(tmp_path / "project", SUITE.replace("[0, 1, 2]", "5"), of_level)
    good, equal, worse = project.history([1.0, 1.0, 2.0])
    for sha in (good, worse):
        assert project.run("run", sha).status == 0
    project.run("run", equal, "--seed", "0", "--repeat", "2", "--force")

    def compared(ends: str) -> tuple[str, float]:
        (task,) = json.loads(project.run("diff", ends, "--json").out)["tasks"]
        row = next(m for m in task["metrics"] if m["metric"] == "val_loss")
        return row["said"], row["delta"]

    assert compared(f"{good}..{equal}") == ("same", 0)
    assert compared(f"{good}..{worse}")[0] == "seems worse"
    done = project.run("check", worse, "--budget", "0")
    assert done.status == 125
    assert re.search("val_loss .* seems worse, not settled", done.out), done.out


def test_a_commit_that_repeats_another_bit_by_bit_is_the_same(project: Project) -> None:
    shas = project.history([1.0, 1.0, 1.0])
    project.run("run", shas[0])
    done = project.run("check", shas[1])
    assert (done.status, "same" in done.out) == (0, True), done.out


def test_a_commit_measured_after_a_worse_one_is_good(project: Project) -> None:
    shas = project.history([1.0, 1.0, 1.6])
    assert project.run("check", shas[2]).status == 125
    project.run("check", shas[0])
    done = project.run("check", shas[0], "--budget", "0")
    assert (done.status, "good beside what came later" in done.out) == (0, True), done.out


def test_telemetry_is_listed_and_never_decides(tmp_path: Path) -> None:
    project = scripted(tmp_path / "project", SUITE)
    random.seed(3)  # that of the model: it runs in this process
    model = "import random\nLEVEL = 1.0\nPEAK_RSS = {} * 2**27 + random.randrange(2**20)\n"
    for number in range(3):
        project.commit(f"number {number}", {"model.py": model.format(2) + f"N = {number}\n"})
        project.run("check")
    project.commit("more", {"model.py": model.format(3)})
    done = project.run("check")
    assert done.status == 0, done.out + done.err
    own, telemetry = done.out.split("\ntelemetry, which the suite does not declare")
    assert re.search(r"fit +val_loss +same", own)
    assert re.search(r"fit +peak_rss +worse +\+(49|50)", telemetry)
    found = json.loads(project.run("check", "--json").out)["standings"]
    assert {s["metric"] for s in found if s["declared"]} == {"val_loss"}
    assert project.run("run").status == 0
    declared = SUITE.replace(
        "[[task]]", '[metrics.peak_rss]\nunit = "B"\ndirection = "lower"\nkind = "memory"\n'
        'floor = "3%"\nsummary = "max"\n[[task]]'
    )  # fmt: skip
    (project.root / "suites" / "tiny" / "suite.toml").write_text(declared)
    assert project.run("check").status == 1


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("options", "named"), [((), False), (("--lenient",), True)], ids=["strict", "lenient"]
)
def test_git_bisect_run_skips_what_is_too_noisy_and_blames_no_innocent(
    tmp_path: Path, options: tuple[str, ...], named: bool
) -> None:
    project = make_project(tmp_path / "project", SUITE.replace("2%", "0.1%"), {"fit.py": NOISY})
    shas = project.history([1.3] * 4 + [1.9] * 3)
    project.run("run", shas[0])
    git(project.root, "bisect", "start", shas[-1], shas[0])
    done = subprocess.run(
        ["git", "bisect", "run", sys.executable, "-m", "celedger", "check", *options],
        cwd=project.root, env={**os.environ, **PEOPLE}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert (f"{shas[4]} is the first bad commit" in said) is named, said
    if not named:
        assert "The first bad commit could be any of" in said
        assert set(re.findall(r"^[0-9a-f]{40}$", said, re.MULTILINE)) == set(shas[1:5])


def test_a_count_of_work_that_is_always_zero_is_not_too_noisy(tmp_path: Path) -> None:
    """A share of nothing is no floor, and no noise hides what never varied."""
    work = '[metrics.skipped]\ndirection = "lower"\nkind = "work"\nfloor = "5%"\n[[task]]'
    project = scripted(
        tmp_path / "project", SUITE.replace("[[task]]", work),
        lambda model, seed: iter([{"epoch": 0, "val_loss": model["LEVEL"] + seed, "skipped": 0}]),
    )  # fmt: skip
    shas = project.history([1.3, 1.3])
    for sha in shas:
        project.run("run", sha)
    done = project.run("check")
    assert done.status == 0, done.out


@pytest.mark.matrix
def test_what_is_too_noisy_changes_nothing_of_what_the_worker_concludes(tmp_path: Path) -> None:
    project = noisy(tmp_path / "project", SUITE.replace("2%", "0.1%"))
    shas = project.history([1.3, 1.3])
    project.run("check", shas[0])
    note = project.root / ".git" / "celedger" / "queue" / "1.moved"
    note.parent.mkdir(exist_ok=True)
    note.write_bytes(os.fsencode(project.root))
    done = project.run("worker")
    assert done.status == 0, done.err
    (job,) = json.loads(project.run("queue", "--json").out)["jobs"]
    assert (job["commit"], job["state"], job["message"]) == (shas[1], "done", "nothing is worse")
    assert project.run("check").status == 125
