"""Lives of repositories, through the program: after every job the list is right, and no view or
alert contradicts it."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import scripted
from conftest import git, matrix_after

from celedger.base.model import SIGNATURE, BisectRecord, Environment, FindingRecord
from celedger.judge import told as tellings
from celedger.judge.line import Line
from celedger.ledger import Ledger
from celedger.repo import Repository

from .conftest import SUITE, Life, training

Live = Callable[..., Life]
STEP_MS = """
[metrics.step_ms]
direction = "lower"
kind = "speed"
floor = "3%"
"""
OTHER = """
[[task]]
name = "other"
command = "{python} {suite}/fit.py --seed {seed}"
seeds = [10, 11]
"""


@pytest.mark.matrix
def test_three_stacked_steps_are_three_incidents(live: Live) -> None:
    life = live()
    shas = life.project.history([1, 1, 1.04, 1.04, 1.08, 1.08, 1.155, 1.155])
    for revision in (shas[0], "HEAD", f"{shas[0]}..HEAD"):
        life.say("run", revision)
    assert life.check() == 1
    rows = life.listed()
    assert sorted(row["first_bad"] for row in rows) == sorted([shas[n]] for n in (2, 4, 6))
    assert life.listed("recovered", "withdrawn") == []


def test_the_first_week(live: Live) -> None:
    life = live(0.015)
    good = life.commit(1)
    life.check()
    bad = life.commit(1.3)
    assert life.check() == 1
    first = life.only()
    assert first["first_bad"] == [bad]
    life.say("bisect", f"{good}..{bad}")
    life.compare()
    life.revert(bad)
    life.check()
    life.check()  # where the first job's extra trials could not settle it
    assert life.only("recovered")["id"] == first["id"]
    assert life.only("recovered")["closed_at"] == life.head()
    worse = life.commit(1.348)
    assert life.check() == 1
    assert life.only()["first_bad"] == [worse]
    assert life.only()["id"] != first["id"]


def test_an_upgrade_mends_nothing(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    life = live(0.01)
    shas = [life.commit(level) for level in (0.25, 0.25)]
    for sha in shas:
        life.check(sha)
    bad = life.commit(0.88)
    assert life.check() == 1
    life.upgrade(monkeypatch)
    for _ in range(3):
        life.commit(0.88)
        assert life.check() == 1
        assert life.only()["first_bad"] == [bad]
    life.commit(0.25, 'Revert "number 3"')
    assert life.check() != 1
    assert life.only("recovered")["closed_at"] == life.head()


@pytest.mark.matrix
def test_each_of_a_stack_has_its_own_share(live: Live) -> None:
    life = live(0.01)
    life.commit(1)
    life.check()
    life.commit(1)
    life.check()
    levels = [1, 1.298, 1.298 * 1.382, 1.298 * 1.382 * 1.94]
    for before, after in itertools.pairwise(levels):
        sha = life.commit(after)
        assert life.check() == 1
        row = next(r for r in life.listed() if r["first_bad"] == [sha])
        (metric,) = row["metrics"]
        assert metric["change"] == pytest.approx(after - before, rel=0.2)
    assert len(life.listed()) == 3
    assert [sorted(events) for events in life.alerts.values()] == [["opened"]] * 3


@pytest.mark.matrix
def test_an_exact_revert_and_a_second_regression(live: Live) -> None:
    life = live(0.01)
    for _ in range(2):
        life.commit(1)
        life.check()
    first = life.commit(1.3)
    life.check()
    life.revert(first)
    assert life.check() != 1
    assert [row["first_bad"] for row in life.listed("recovered")] == [[first]]
    checked = life.say("check", "HEAD").out
    assert f"{life.listed('recovered')[0]['id']} is recovered; -2" in checked
    assert "not sure" not in checked
    second = life.commit(1.5)
    assert life.check() == 1
    assert life.only()["first_bad"] == [second]
    assert not [c for c in life.json("drift")["changes"] if c["better"]]


@pytest.mark.matrix
def test_a_task_that_failed_from_the_first_is_laid_to_no_older_incident(live: Live) -> None:
    """It was added after another task had recovered, and joined that incident."""
    life, fails = live(suite=TWO[: TWO.rindex("[[task]]")]), "OTHERS = {'fails': 1}\n"
    life.project.executor.training = step
    for level in (10, 10, 10, 15, 15, 10):
        life.commit(level, text=fails)
        life.check()
    old = life.only("recovered")
    (life.project.root / "suites" / "tiny" / "suite.toml").write_text(TWO)
    life.commit(10, text=fails)
    assert life.check() == 1
    assert life.only("recovered")["id"] == old["id"]
    crash = life.only()
    assert (crash["task"], len(crash["first_bad"])) == ("other", life.number)
    assert life.alerts[crash["id"]] == ["opened"]


def test_a_named_revert_is_told_though_the_machine_is_busy(live: Live) -> None:
    """Its step time fell by 23 % while sessions differed by 10 to 30 %, and stayed open."""
    life, draw, load = live(suite=SUITE.replace("[[task]]", STEP_MS + "[[task]]")), Random(2), [1.0]

    def train(model: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
        time = model["LEVEL"] * load[-1] * (1 + draw.gauss(0, 0.03))
        yield {"epoch": 0, "val_loss": 1 + Random(seed).gauss(0, 0.01), "step_ms": time}

    life.project.executor.training = train
    for _ in range(8):
        load.append(1 + draw.gauss(0, 0.01))
        life.commit(10)
        life.say("check")
    bad = life.commit(13)
    life.check()
    load.append(1.02)
    life.project.commit("another file", {"other.py": "1\n"})
    life.say("check")
    assert life.only()["first_bad"] == [bad]
    mend = life.revert(bad)
    load.append(1.3)
    trials = life.trials()
    life.check()
    row = life.only("recovered")
    assert (row["closed_at"], life.trials() - trials) == (mend, 6)


@pytest.mark.matrix
def test_telemetry_that_stays_worse_opens_no_failure_again(live: Live) -> None:
    life = live(0.003)
    life.begin()
    bad = life.commit("float('nan')", text=f"PEAK_RSS = {2**29}\n")
    life.check()
    name = life.only()["id"]
    mend = life.commit(1, text=f"PEAK_RSS = {2**29}\n")
    life.check()
    (over,) = life.listed("recovered")
    assert (over["id"], over["closed_at"]) == (name, mend)
    (memory,) = life.listed()
    assert [m["name"] for m in memory["metrics"]] == ["peak_rss"] and memory["first_bad"] == [bad]


def test_what_is_accepted_takes_the_work_that_was_listed_with_it(live: Live) -> None:
    life = live(suite=TWO[: TWO.rindex("[[task]]")])
    life.project.executor.training = step
    for _ in range(4):
        good = life.commit(10)
        life.say("check")
    sign(life, good, 400)
    life.commit(10)
    sign(life, life.commit(15), 900)
    life.say("check", "--budget", "0")
    row = life.only()
    assert len(row["first_bad"]) == 2 and [w["name"] for w in row["work"]] == ["operators"]
    assert life.say("baseline", "accept", row["id"], "--why", "wanted").status == 0
    assert [(r["id"], r["state"]) for r in life.rows()] == [(row["id"], "accepted")]


def test_what_improved_with_one_of_two_commits_is_better_in_every_view(live: Live) -> None:
    life = live(0.003)
    life.begin()
    life.commit(1)
    life.commit(0.8)
    assert life.check() == 0
    (standing,) = [s for s in life.json("check")["standings"] if s["metric"] == "val_loss"]
    assert standing["standing"] == "better"
    assert "not sure" not in life.say("check").out


@pytest.mark.matrix
def test_what_parts_again_takes_no_name_that_stands_for_another_incident(live: Live) -> None:
    """It was told as open and as withdrawn, in turns, under the name that it had once."""
    other = '[metrics.other]\ndirection = "lower"\nfloor = "1%"\n[[task]]'
    life = live(0.003, suite=SUITE.replace("[[task]]", other))
    for level in ("1", "1", "1", "float('nan')", "1"):
        life.commit(1, text=f"OTHERS = {{'other': {level}}}\n")
        life.check()
    old = life.only("recovered")["id"]
    life.commit(1.3, text="OTHERS = {'other': 1}\n")
    life.check()
    name = life.only()["id"]
    with Ledger.open(life.project.root / "ledger.db") as ledger:
        row = [r for r in ledger.said() if r.incident == name and not r.address][-1]
        joined = {**row.details, "joined": old}
        again = row._replace(ulid=f"{row.ulid[:-1]}Z", state="withdrawn", details=joined)
        ledger.record_said([again])
    life.commit(1.3, text="OTHERS = {'other': 1}\n")
    life.say("check")
    assert life.only()["id"] not in (name, old)
    with Ledger.open(life.project.root / "ledger.db") as ledger:
        last = {row.incident: row.state for row in ledger.said() if not row.address}
    assert last[life.only()["id"]] == "open" and last[name] == "withdrawn"


@pytest.mark.matrix
def test_a_search_goes_on_where_a_trial_was_too_short_to_have_a_value(live: Live) -> None:
    """The step meter reads the memory now and then: by chance too seldom for a growth."""
    metric = '[metrics.memory_growth]\ndirection = "lower"\nkind = "memory"\nfloor = 1024\n'
    life = live(suite=SUITE.replace("[[task]]", metric + "[[task]]"))
    silent = set[float]()

    def train(model: Mapping[str, Any], seed: int) -> Iterator[dict[str, object]]:
        yield {"epoch": 0, "val_loss": 1.0}
        growth = {} if model["NUMBER"] in silent else {"memory_growth": model["LEVEL"] + seed}
        silent.discard(model["NUMBER"])
        yield {"trial": {"optimiser_steps": 60, **growth}}

    life.project.executor.training = train
    for _ in range(3):
        life.commit(100)
        life.say("check")
    life.commit(100, "define a list")
    silent.add(life.number)
    bad = life.commit(30000, "append to it")
    life.say("check")
    assert life.say("bisect", life.only()["id"]).status == 0
    assert life.only()["first_bad"] == [bad]


def test_a_look_at_a_branch_sends_no_alert_before_it_is_merged(live: Live) -> None:
    """What a branch mends was told as "good again", while the main line was as bad as before."""
    life = live(0.003)
    life.begin()
    life.commit(1.5)
    life.check()
    name = life.only("open")["id"]
    git(life.project.root, "checkout", "-q", "-b", "mend")
    life.commit(1)
    git(life.project.root, "checkout", "-q", "-")
    life.say("check", "mend")
    life.compare()
    assert life.alerts[name] == ["opened"]
    git(life.project.root, "merge", "-q", "mend")
    life.check()
    assert life.alerts[name] == ["opened", "recovered"]


@pytest.mark.matrix
def test_a_failure_is_mended_where_it_was_not_at_the_next_commit_of_other_bits(live: Live) -> None:
    """Its revert has the bits of before: the next job's line and `log` said that its commit mended
    it, too."""
    life = live(exact=True)
    life.begin()
    bad = life.commit("float('nan')")
    assert life.check() == 1
    revert = life.revert(bad)
    life.check()
    other = life.commit(0.999)
    assert "recovered" not in life.work()
    log = life.say("log").out
    assert f"mends {life.only('recovered')['id']}" in log[log.index(revert[:8]) :]
    assert "mends" not in log[log.index(other[:8]) : log.index(revert[:8])]


@pytest.mark.matrix
def test_the_answer_of_a_job_names_what_came_last_not_what_is_worst(live: Live) -> None:
    life = live(0.003)
    life.begin()
    life.commit(2, "the worst")
    assert "since" in life.work()
    life.commit(2.4, "the last")
    line = life.work()
    assert "the last" in line and "the worst" not in line
    assert "; 1 more open" in line
    crash = life.commit("raise ValueError('broken')", "the crash")
    line = life.work()
    assert "since" in line and "the crash" in line
    assert "; 2 more open" in line
    (name,) = (row["id"] for row in life.listed() if row["kind"] == "crash")
    assert f"failed; fails ({name})" in life.say("diff", f"{crash}^..{crash}").out
    mend = life.revert(crash)
    life.work()
    assert name not in life.say("diff", f"{crash}..{mend}").out


@pytest.mark.matrix
def test_of_the_commits_of_a_merge_the_one_that_says_it_reverts_is_what_mended(live: Live) -> None:
    life = live(0.02, exact=True)
    life.begin()
    bad = life.commit(1.2)
    life.check()
    revert = life.revert(bad)
    tip = life.commit(1, text="# b\n")
    life.check()
    row = life.only("recovered")
    assert (row["closed_at"], row["first_bad"]) == (revert, [bad])
    assert f"mended by {revert[:10]}" in life.texts[-1]
    said = life.say("run", f"{bad}~2..{tip}", "--steps", "2").out
    assert f"{tip[:8]}: nothing is worse; {row['id']} recovered by {revert[:8]}" in said
    (entry,) = [c for c in life.json("log")["commits"] if c["commit"] == tip]
    told = "; ".join(text for task in entry["tasks"] for text in task["told"])
    assert f"mends {row['id']} (by {revert[:8]})" in told


@pytest.mark.matrix
def test_a_comment_changes_nothing(live: Live) -> None:
    life = live(0.02, exact=True)
    for number in range(12):
        life.commit(1, text=f"# {number}\n")
        life.say("run", *(["HEAD"] if number != 5 else ["HEAD", "--seed", "0"]))
    bad = life.commit(1.2)
    life.check()
    life.revert(bad)
    life.check()
    again = life.commit(1.35)
    assert life.check() == 1
    assert life.only()["first_bad"] == [again]
    assert life.only("recovered")["first_bad"] == [bad]
    assert len(life.rows()) == 2
    assert life.json("drift")["changes"] == []


@pytest.mark.matrix
def test_the_bad_commit_was_measured_first(live: Live) -> None:
    life = live(0.01)
    shas = life.project.history([1, 1, 1, 1.4, 1.4])
    life.check()
    life.say("run", f"{shas[0]}..HEAD")
    life.say("run", shas[0])
    assert life.check() == 1
    assert life.only()["first_bad"] == [shas[3]]
    life.commit(1, 'Revert "level 1.4, number 3"')
    assert life.check() == 0
    assert life.only("recovered")["closed_at"] == life.head()


@pytest.mark.matrix
def test_a_long_regression_and_its_end(live: Live) -> None:
    life = live(0.01)
    for _ in range(4):
        life.commit(1)
        life.say("run")
    bad = life.commit(1.4)
    life.say("run")
    for _ in range(12):
        life.commit(1.4)
        life.say("run")
    life.check()
    assert life.only()["first_bad"] == [bad]
    life.commit(1)
    life.check()
    for _ in range(3):
        life.commit(1)
        life.say("run")
    life.check()
    assert life.only("recovered")["first_bad"] == [bad]
    text = life.say("drift").out
    assert "no change seen" not in text


@pytest.mark.matrix
def test_a_better_commit_is_better_everywhere(live: Live) -> None:
    life = live(0.01)
    for _ in range(3):
        parent = life.commit(1)
        life.check()
    better = life.commit(0.93)
    life.say("run", "HEAD", *itertools.chain(*(["--seed", str(n)] for n in range(10))))
    assert life.check() == 0
    assert life.rows() == []
    (change,) = life.json("drift")["changes"]
    assert change["better"]
    assert change["among"] == [better]
    assert "better" in life.say("show").out
    assert "worse" not in life.say("show").out
    (metric,) = [
        m for t in life.json("diff", f"{parent}..HEAD")["tasks"] for m in t["metrics"]
        if m["metric"] == "val_loss"
    ]  # fmt: skip
    assert metric["said"] == "better"


CRASH = "raise ValueError('the shapes differ')\n"
ENDS = {
    "crash": CRASH,
    "not-finite": "LEVEL = float('nan')\n",
    "missing": "DROPPED = ['val_loss']\n",
}


@pytest.mark.parametrize("kind", matrix_after(1, ENDS))
def test_a_failure_and_its_end(live: Live, kind: str) -> None:
    life = live()
    life.commit(1)
    life.check()
    life.commit(1)
    life.check()
    bad = life.commit(1, text=ENDS[kind])
    assert life.check() == 1
    row = life.only()
    assert (row["kind"], row["first_bad"]) == (kind, [bad])
    life.commit(1, text=ENDS[kind])
    assert life.check() == 1
    assert [r["id"] for r in life.listed()] == [row["id"]]
    life.commit(1)
    assert life.check() == 0
    assert life.only("recovered")["closed_at"] == life.head()
    assert sorted(life.alerts[row["id"]]) == ["opened", "recovered"]


@pytest.mark.matrix
def test_what_is_not_finite_once_a_crash_ends_is_another_cause(live: Live) -> None:
    """It was said to be since the commit that crashed, whose values nobody saw."""
    life = live()
    life.begin()
    crash = life.commit(1, text=CRASH)
    life.check()
    life.commit(1, text=CRASH)
    nowhere = life.commit(1, text=ENDS["not-finite"])
    life.check()
    row = life.only()
    assert (row["kind"], row["first_bad"][0], row["first_bad"][-1]) == (
        "not-finite",
        crash,
        nowhere,
    )
    over = life.only("recovered")
    assert (over["kind"], over["first_bad"], over["closed_at"]) == ("crash", [crash], nowhere)
    life.compare()


@pytest.mark.matrix
def test_a_crash_beside_an_open_one(live: Live) -> None:
    life = live(0.01)
    for _ in range(2):
        life.commit(1)
        life.check()
    slow = life.commit(1.65)
    assert life.check() == 1
    crash = life.commit(1.65, text=CRASH)
    assert life.check() == 1
    assert [(r["kind"], r["first_bad"]) for r in life.listed()] == [
        ("crash", [crash]), ("metric", [slow])
    ]  # fmt: skip
    life.commit(1.65)
    assert life.check() == 1
    assert life.only()["first_bad"] == [slow]


@pytest.mark.matrix
def test_what_is_worse_after_a_crash_is_no_part_of_it(live: Live) -> None:
    life = live()
    life.begin()
    life.commit(1, text=CRASH)
    assert life.check() == 1
    crash = life.only()["id"]
    mend = life.commit(1.4)
    assert life.check() == 1
    assert life.only("recovered")["id"] == crash
    row = life.only()
    assert (row["kind"], row["first_bad"][-1]) == ("metric", mend)
    assert "fails" not in life.say("status").out + life.say("check").out


@pytest.mark.matrix
def test_a_commit_that_fails_is_not_run_again_to_know_its_level(live: Live) -> None:
    life = live()
    life.commit(1)
    life.check()
    life.commit(1, text=CRASH)
    before = life.trials()
    assert life.check() == 1
    assert life.trials() == before + 2  # one a seed


@pytest.mark.matrix
def test_diff_is_sure_of_what_the_state_knows_alone(live: Live) -> None:
    life = live()
    life.begin()
    life.commit(1.4)
    life.say("check")
    life.commit(1)
    life.say("check")
    life.say("check")

    def said(ends: str) -> str:
        (task,) = life.json("diff", ends)["tasks"]
        return next(m["said"] for m in task["metrics"] if m["metric"] == "val_loss")

    assert said("HEAD~2..HEAD~1") == "worse"
    assert said("HEAD~1..HEAD~2") == "better"
    assert said("HEAD~1..HEAD") == "better"
    life.project.executor.training = training(0, exact=True)
    life.commit(1.06)
    life.say("run", "HEAD", "--seed", "0")
    assert life.listed() == []
    assert said("HEAD~1..HEAD") == "seems worse"


@pytest.mark.matrix
def test_a_bisect_of_what_is_not_finite_names_no_rise_before_it(live: Live) -> None:
    """The rise took the commit of the NaN and joined it: what made it was listed no more."""
    life = live()
    life.begin()
    rise = life.commit(1.4)
    assert life.check() == 1
    name = life.only()["id"]
    life.commit("float('nan')")
    infinite = life.commit("float('nan')")
    life.say("check")
    assert life.say("bisect", f"{rise}..{infinite}", "--metric", "val_loss").status == 0
    rows = {row["kind"]: row for row in life.rows()}
    assert rows["metric"]["id"] == name
    assert rows["metric"]["first_bad"] == [rise]
    assert rows["not-finite"]["first_bad"] == [f"{git(life.project.root, 'rev-parse', 'HEAD^')}"]


@pytest.mark.parametrize("half", matrix_after(1, [1.14, 1.1, 1.2]))
def test_what_is_mended_in_two_parts_is_over(live: Live, half: float) -> None:
    life = live()
    for level in (1, 1, 1, 1, 1, 1.3, 1.3, half):
        life.commit(level)
        life.check()
    row = life.only("partly")
    assert life.say("check").out.count(" % left)") == 2  # its row, and its sentence
    for level in (half, 1):
        life.commit(level)
        life.check()
    assert life.only("recovered")["closed_at"] == life.head()
    assert life.check() == 0
    log = life.say("log").out
    assert log.count(f" partly mends {row['id']}") == log.count(f" mends {row['id']}") - 1 == 1
    (events,) = life.alerts.values()
    assert events == ["opened", "recovered"]


@pytest.mark.parametrize("left", matrix_after(1, [0.067, 0.1]))
def test_what_is_mostly_mended_is_partly_open(live: Live, left: float) -> None:
    """Between three quarters and the whole it was an improvement of its own, and all still open."""
    life = live()
    for level in (1, 1, 1, 1, 1, 1.6, 1.6, *[1 + 0.6 * left] * 3):
        life.commit(level)
        life.check()
    assert life.only()["state"] == "partly"
    told = re.search(r"\(\+([0-9.]+) % left\)", life.say("check").out)
    assert told is not None
    assert float(told[1]) == pytest.approx(60 * left, abs=0.5)


@pytest.mark.matrix
def test_of_a_cause_that_is_mended_in_part_the_rest_is_told(live: Live) -> None:
    life = live(suite=SUITE.replace("[[task]]", MANY.split("[[task]]")[0] + "[[task]]", 1))
    for _ in range(3):
        life.commit(1, text="OTHERS = {'accuracy': .9}\n")
        life.check()
    bad = life.commit(1.4, text="OTHERS = {'accuracy': float('nan')}\n")
    assert life.check() == 1
    row = life.only()
    assert (row["kind"], row["first_bad"]) == ("not-finite", [bad])
    for _ in range(2):
        life.commit(1.4, text="OTHERS = {'accuracy': .9}\n")
        assert life.check() == 1
    (standing,) = [s for s in life.json("check")["standings"] if s["metric"] == "accuracy"]
    assert (standing["standing"], standing["incidents"]) == ("same", [])
    assert life.only("partly")["id"] == row["id"]
    assert "fit val_loss is worse: +4" in life.say("status", row["id"]).out
    assert "not finite" not in life.say("status").out


@pytest.mark.matrix
def test_of_a_cause_of_two_metrics_the_one_that_is_mended_is_no_longer_worse(live: Live) -> None:
    life = live(suite=SUITE.replace("[[task]]", STEP_MS + "[[task]]"))
    for level, ms in ((1, 10), (1, 10), (1, 10), (1.3, 13), (1, 13)):
        life.commit(level, text=f"OTHERS = {{'step_ms': {ms}}}\n")
        life.check()
    row, half = life.only("partly"), life.head()[:8]
    assert row["metrics"][0]["name"] == "step_ms"
    assert f"partly recovered by {half}" in life.say("status", row["id"]).out
    assert f"partly mends {row['id']}" in life.say("log").out
    assert "seems" not in life.say("diff", "HEAD^..HEAD").out
    done = life.json("check", "--budget", "0")
    stands = {s["metric"]: s["standing"] for s in done["standings"] if s["declared"]}
    assert stands["step_ms"] == "worse"
    assert stands["val_loss"] != "worse"
    status = life.say("status").out
    assert "fit step_ms; also val_loss" in status
    assert "left)" not in status


def test_an_incident_is_accepted_by_its_id(live: Live) -> None:
    life = live()
    for level in (1, 1, 1.3):
        life.commit(level)
        life.check()
    name = life.only()["id"]
    assert life.say("baseline", "accept", name, "--why", "more regular").status == 0
    life.compare()
    assert life.only("accepted")["id"] == name
    assert life.check() == 0
    bad = life.commit(1.6)
    assert life.check() == 1
    assert life.only()["first_bad"] == [bad]
    assert "recovered" not in life.alerts[name]


@pytest.mark.parametrize("bad", matrix_after(1, ["1 / 0", "float('nan')"]))
def test_a_failure_of_two_tasks_is_accepted_as_one(live: Live, bad: str) -> None:
    life = live(suite=SUITE + OTHER)
    life.begin()
    life.commit(bad)
    assert life.check() == 1
    name = life.only()["id"]
    assert life.say("baseline", "accept", name, "--why", "no longer trained").status == 0
    life.compare()
    assert life.only("accepted")["id"] == name
    assert life.check() != 1
    life.commit(1)
    life.check()
    assert life.only("accepted")["id"] == name


@pytest.mark.matrix
@pytest.mark.parametrize("bad", [1.3, "1 / 0"])
def test_of_commits_that_came_together_none_is_said_to_mend(live: Live, bad: float | str) -> None:
    life = live(exact=True)
    life.begin()
    for named in (False, True):
        worse = life.commit(bad)
        life.check()
        reverts = f'Revert "{worse}"\n\nThis reverts commit {worse}.' if named else ""
        first, last = life.commit(1, reverts), life.commit(1)
        life.check()
        row = next(row for row in life.listed("recovered") if row["first_bad"] == [worse])
        mender = f"one of 2 commits up to {last[:10]}" if not named else first[:10]
        assert f"mended by {mender} " in life.texts[-1]
        assert f"recovered by {mender[:-2]}" in life.say("status", row["id"]).out
        if named:
            assert row["closed_at"] == first


@pytest.mark.matrix
def test_who_goes_back_to_an_older_environment_finds_the_same_incidents(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older environment saw one step there, of the sum of both: it took the second one's place
    and said that the first commit had made all of it."""
    life = live()
    for letter in "gh":
        life.upgrade(monkeypatch, letter)
        life.begin()
    level, rises = 1.0, []
    for factor in (1.3, 1.2):
        level *= factor
        rises.append(life.commit(level))
        life.check()
    life.upgrade(monkeypatch, "g")
    for _ in range(2):
        life.commit(level)
        life.check()
        assert sorted(row["first_bad"] for row in life.listed()) == sorted([[r] for r in rises])
    life.commit(1.2, f'Revert "number 7"\n\nThis reverts commit {rises[0]}.')
    life.check()
    assert life.only("recovered")["first_bad"] == rises[:1]
    life.compare()


def test_who_goes_back_to_an_older_environment_is_told_of_no_upgrade(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` and `check` went on to say that the upgrade made it worse."""
    life = live(exact=True)
    old, new = (
        Environment(letter * 64, {"python": "CPython 3.11", "packages": {"kit": version}})
        for letter, version in (("a", "1.0"), ("b", "1.1"))
    )
    plain, factor = life.project.executor.training, 1.0

    def scaled(model: Mapping[str, Any], seed: int) -> Iterator[scripted.Report]:
        for report in plain(model, seed):
            yield {**report, "val_loss": report["val_loss"] * factor}

    life.project.executor.training = scaled
    monkeypatch.setattr(scripted, "ENVIRONMENT", old)
    life.begin()
    monkeypatch.setattr(scripted, "ENVIRONMENT", new)
    factor = 1.1
    life.commit(1)
    life.check()
    assert "the upgrade" in life.say("status").out
    monkeypatch.setattr(scripted, "ENVIRONMENT", old)
    factor = 1.0
    life.commit(1)
    assert "the upgrade" not in life.say("check").out
    assert "the upgrade" not in life.say("status").out
    assert "kit 1.0 → 1.1: val_loss +9.9 %" in life.say("drift").out


def test_what_falls_back_to_the_bits_of_before_is_over_as_soon_as_it_is_listed(live: Live) -> None:
    """A rise of P = .98 was "partly recovered, none of it left": its fall was no surer than it."""
    good = (2.7352, 1.9194, 2.7265, 2.9419, 1.5278, 3.5219, 2.4036, 2.1173)
    bad = (3.3512, 2.5880, 3.3438, 3.6502, 2.2949, 4.6237, 3.0811, 2.7713)
    life = live(suite=SUITE.replace("[0, 1]", "[0, 1, 2]"))

    def train(model: Mapping[str, Any], seed: int) -> Iterator[scripted.Report]:
        yield {"epoch": 0, "val_loss": (bad if model["LEVEL"] > 1 else good)[seed] + 1e-9 * seed}

    life.project.executor.training = train
    for level in (1, 1, 1, 1, 2, 2):
        life.commit(level)
        life.check()
    assert len(life.listed("open")) == 1
    mend = life.commit(1)
    assert life.check() == 0
    assert life.only("recovered")["closed_at"] == mend


def test_of_one_cause_in_two_tasks_what_is_mended_in_part_is_told(live: Live) -> None:
    """`drift` said "better -18.5 %", and `status` "+58.7 %", open: also where the count of one task
    was the very one of before."""
    life = live(suite=SUITE.replace("[0, 1]", "[0, 1, 2]") + OTHER.replace("11]", "11, 12]"))

    def train(model: Mapping[str, Any], seed: int) -> Iterator[scripted.Report]:
        count = model["LEVEL"] if seed < 10 else model["OTHERS"]["other"]
        yield {"epoch": 0, "val_loss": count + seed % 2}

    life.project.executor.training = train
    shown = []
    for fit, other in ((10, 10), (10, 10), (10, 10), (10, 10), (16, 13), (13, 13), (10, 13)):
        life.commit(fit, text=f"OTHERS = {{'other': {other}}}\n")
        life.check()
        shown.append([row["state"] for row in life.rows()])
        assert not life.json("drift")["changes"]
        if fit == 13:
            assert "% left)" in life.say("status").out
    assert shown == [[]] * 4 + [["open"], ["partly"], ["partly"]]
    assert "other val_loss; also task fit" in life.say("status").out
    assert "% left)" not in life.say("status").out
    mend = life.commit(10, text="OTHERS = {'other': 10}\n")
    assert life.check() == 0
    assert life.only("recovered")["closed_at"] == mend


def test_the_alert_of_a_mend_names_the_commit_that_the_list_has(live: Live) -> None:
    """The first fall may be that of either: which one shows at the second. The next job, which knew
    them to be over, laid the first fall to the second rise; its alert had named the second fall."""
    life = live(0.01)
    for level in (1, 1, 1, 1.2, 1.4, 1.4):
        life.commit(level)
        life.check()
    mends = []
    for level in (1.2, 1):
        mends.append(life.commit(level))
        life.check()
    over = {row["id"]: row["closed_at"] for row in life.listed("recovered")}
    assert sorted(over.values()) == sorted(mends)
    for name, mend in over.items():
        (text,) = (text for text in life.texts if f"{name}: fit val_loss is good again" in text)
        assert f"mended by {mend[:10]}" in text.split(name)[1].split("\n")[1]


def test_of_hosts_that_take_turns_a_mend_stays_where_it_was_reported(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other host saw the fall one commit later: the list named that one as the mend, the next
    job the first one again, as the alert had."""
    life, shas = live(0.01, suite=SUITE.replace("[0, 1]", "[0, 1, 2]")), []
    for number, level in enumerate((1, 1, 1, 1, 1, 1, 1.2, 1.2, 1.2, 1, 1, 1)):
        life.upgrade(monkeypatch, "gh"[number % 2])
        shas.append(life.commit(level))
        life.check()
        if number >= 9:
            assert life.only("recovered")["closed_at"] == shas[9]
    # One host saw the commit before it, the other one the one before that.
    assert life.only("recovered")["first_bad"] in ([shas[6]], shas[5:7])


@pytest.mark.parametrize("mended", matrix_after(1, [True, False]))
def test_who_goes_back_to_an_environment_that_saw_no_rise_is_told_of_its_mend(
    live: Live, monkeypatch: pytest.MonkeyPatch, mended: bool
) -> None:
    """The older environment had neither the rise nor the fall: it stayed open for ever."""
    life = live()
    life.upgrade(monkeypatch, "g")
    life.begin()
    life.upgrade(monkeypatch, "h")
    life.commit(1)
    life.check()
    bad = life.commit(1.25)
    assert life.check() == 1
    name = life.only()["id"]
    life.upgrade(monkeypatch, "g")
    if not mended:  # there; what it does in the newer environment is not known
        plain = life.project.executor.training
        life.project.executor.training = lambda model, seed: plain({**model, "LEVEL": 1}, seed)
    mend = life.commit(1)
    trials = life.trials()
    assert life.check() == (0 if mended else 1)
    assert life.trials() - trials <= 2 + 4
    row = life.only("recovered" if mended else "open")
    assert (row["id"], row["first_bad"], row["closed_at"]) == (
        name,
        [bad],
        mend if mended else None,
    )
    life.commit(1)
    trials = life.trials()
    assert life.check() == (0 if mended else 1)
    assert life.trials() - trials == 2


@pytest.mark.matrix
def test_of_two_factors_none_is_left_where_the_level_is_that_of_before(live: Live) -> None:
    """The first mend falls by .36, of rises of .3 and .23: its commit does not say of which."""
    life = live(0.005)
    for _ in range(5):
        life.commit(1)
        life.check()
    life.commit(1.3)
    life.check()
    second = life.commit(1.3 * 1.17)
    life.check()
    life.commit(1.17, "tidy up")
    life.check()
    life.commit(1, f'Revert "number 7"\n\nThis reverts commit {second}.')
    life.check()
    life.commit(1)
    life.check()
    assert [row["state"] for row in life.rows()] == ["recovered"] * 2


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("one", "other", "is_named"),
    [(1.26, 1.35, True), (1.3, 1.15, False), (1.4, 1.1, True)],
)
def test_of_two_factors_the_one_that_is_taken_back_recovers(
    live: Live, one: float, other: float, is_named: bool
) -> None:
    """Without noise: the first one's mend falls by the second one's share more than it rose."""
    life = live(exact=True)
    life.begin()
    first = life.commit(one)
    life.check()
    second = life.commit(one * other)
    life.check()
    life.commit(other, f'Revert "number 4"\n\nThis reverts commit {first}.' * is_named)
    assert life.check() == 1
    assert life.only("recovered")["first_bad"] == [first]
    assert life.only()["first_bad"] == [second]


@pytest.mark.matrix
@pytest.mark.parametrize("end", ["accepted", "recovered"])
def test_what_is_over_hides_nothing_that_was_measured_later(live: Live, end: str) -> None:
    """The other task was last measured before what was accepted; each commit since may be it."""

    def by_task(model: Mapping[str, Any], seed: int) -> Iterator[scripted.Report]:
        level = model["LEVEL"] if seed < 10 else model["OTHERS"]["other"]
        yield {"epoch": 0, "val_loss": level * (1 + Random(seed).gauss(0, 0.01))}

    life = live(suite=SUITE + OTHER)
    life.project.executor.training = by_task
    well = "OTHERS = {'other': 1}\n"
    for _ in range(3):
        life.commit(1, text=well)
        life.say("check")
    bad = life.commit(1.4, text=well)
    assert life.say("check", "--task", "fit").status == 1
    old = life.only()["id"]
    if end == "accepted":
        life.say("baseline", "accept", old, "--why", "a new loss")
    for _ in range(3):
        life.commit(1.4 if end == "accepted" else 1, text=well)
        life.say("check", "--task", "fit")
    assert life.only(end)["id"] == old
    life.commit(1.4 if end == "accepted" else 1, text="OTHERS = {'other': 1.3}\n")
    assert life.check() == 1
    row = life.only()
    assert row["id"] != old
    assert [m["task"] for m in row["metrics"]] == ["other"]
    assert bad in row["first_bad"]
    assert life.only(end)["id"] == old


def searched_in_vain(life: Life) -> tuple[str, str]:
    """Open an incident, and record a later search of its range that found no change of one task.
    Return the incident's name, and its commit."""
    for _ in range(2):
        good = life.commit(1)
        life.check()
    bad = life.commit(1.5)
    assert life.check() == 1
    name = life.only("open")["id"]
    with Ledger.open(life.project.root / "ledger.db") as ledger:
        ledger.record_bisect(BisectRecord(
            "01HZZZZZZZZZZZZZZZZZZZZZZZ", "tiny", "fit", "val_loss", good, bad, (), 0.97,
            "nothing-changed", time.time(), {},
        ))  # fmt: skip
    return name, bad


@pytest.mark.matrix
def test_a_search_that_found_no_change_withdraws_what_lies_in_its_range(live: Live) -> None:
    """It ran after an upgrade: its trials are in no chain of the rise."""
    life = live()
    name, bad = searched_in_vain(life)
    assert [row["id"] for row in life.listed("withdrawn")] == [name]
    assert life.check() != 1
    life.say("run", "--force", "--seed", "0", bad)
    assert life.listed("open"), life.rows()


@pytest.mark.matrix
def test_a_search_of_one_metric_withdraws_nothing_that_another_tells(live: Live) -> None:
    life = live(suite=SUITE + OTHER)
    name, _ = searched_in_vain(life)
    (row,) = [row for row in life.rows() if row["id"] == name]
    assert {metric["task"] for metric in row["metrics"]} == {"fit", "other"}
    assert life.check() == 1
    assert life.only("open")["id"] == name


@pytest.mark.matrix
def test_what_was_dismissed_opens_again_on_newer_trials_alone(live: Live) -> None:
    life = live()
    for level in (1, 1, 1.3):
        life.commit(level)
        life.check()
    name = life.only()["id"]
    assert life.say("baseline", "dismiss", name, "--why", "a broken data set").status == 0
    assert life.only("withdrawn")["id"] == name
    assert life.say("check").status != 1
    life.compare()
    assert life.only("withdrawn")["id"] == name
    life.commit(1.3)
    assert life.check() == 1
    assert life.only()["id"] == name
    state = life.say("status", name).out.splitlines()[1]
    assert re.fullmatch(r"state: open again \(dismissed by \w+: a broken data set\)", state)


@pytest.mark.matrix
def test_the_revert_of_a_trade_makes_nothing_worse(live: Live) -> None:
    """Its author was alerted: "first bad commit: Revert …", of what the culprit had improved."""
    life = live(exact=True, suite=SUITE.replace("[[task]]", MANY.split("[[task]]")[0] + "[[task]]"))
    for _ in range(4):
        life.commit(1, text="OTHERS = {'accuracy': .8}\n")
        life.check()
    bad = life.commit(1.3, text="OTHERS = {'accuracy': .9}\n")
    assert life.check() == 1
    row = life.only()
    assert row["first_bad"] == [bad]
    life.revert(bad)
    assert life.check() == 0
    assert [each["state"] for each in life.rows()] == ["recovered"]
    assert life.alerts == {row["id"]: ["opened", "recovered"]}
    for _ in range(2):
        life.commit(1, text="OTHERS = {'accuracy': .8}\n")
        assert life.check() == 0


@pytest.mark.matrix
def test_void_trials_count_no_more_until_they_are_taken_back(live: Live) -> None:
    life = live()
    for level in (1, 1):
        life.commit(level)
        life.check()
    sha = life.commit(1.3)
    assert life.check() == 1
    name = life.only()["id"]
    ids = [t["ulid"] for task in life.json("show", sha)["tasks"] for t in task["trials"]]
    assert life.say("baseline", "void", *ids, "--why", "the fan was broken").status == 0
    assert life.listed() == []
    assert life.say("baseline", "void", *ids, "--why", "it was not", "--undo").status == 0
    assert life.only()["id"] == name
    life.compare()


@pytest.mark.matrix
def test_a_merged_branch_is_one_place(live: Live) -> None:
    life = live()
    life.begin()
    root = life.project.root
    git(root, "checkout", "-q", "-b", "feature")
    life.commit(1)
    tip = life.commit(1.4)
    life.say("run", tip)
    git(root, "checkout", "-q", "main")
    life.compare()
    assert life.rows() == []
    git(root, "merge", "-q", "--no-ff", "-m", "merge feature", "feature")
    assert life.check() == 1
    assert life.only()["first_bad"][-2:] == [tip, life.head()]


@pytest.mark.matrix
def test_a_rebase_keeps_the_incident(live: Live) -> None:
    life = live()
    life.begin()
    bad = life.commit(1.4)
    assert life.check() == 1
    name = life.only()["id"]
    git(life.project.root, "commit", "--amend", "-q", "-m", "another subject")
    assert life.head() != bad
    assert life.only()["id"] == name
    assert life.only()["first_bad"] == [life.head()]
    assert life.check() == 1
    git(life.project.root, "reset", "-q", "--hard", "HEAD^")
    life.commit(1)
    life.check()
    status = life.json("status")
    assert status["gone"] == [name]
    assert "recovered" not in life.alerts[name]


def test_what_rose_within_a_squashed_branch_is_no_incident_of_the_line(live: Live) -> None:
    """The branch's tip had the squash's tree, and its rise stayed open there, though the level had
    fallen."""
    life = live(exact=True)
    life.begin()
    root = life.project.root
    life.commit(1.4)
    assert life.check() == 1
    before = life.only()["id"]
    git(root, "checkout", "-q", "-b", "feature")
    life.commit(1)
    assert life.check() == 0
    life.commit(1.2)
    assert life.check() == 1
    within = life.only()["id"]
    life.squash("feature")
    assert life.say("check").status == 1
    assert {row["id"]: row["state"] for row in life.rows()} == {before: "partly"}
    assert life.json("status")["gone"] == [within]
    assert life.alerts[within] == ["opened"]
    life.commit(1)
    assert life.say("check").status == 0
    assert {row["id"]: row["state"] for row in life.rows()} == {before: "recovered"}


@pytest.mark.matrix
def test_what_rose_at_the_tip_of_a_squashed_branch_keeps_its_name(live: Live) -> None:
    life = live(exact=True)
    life.begin()
    root = life.project.root
    git(root, "checkout", "-q", "-b", "feature")
    life.commit(1)
    life.commit(1.4)
    assert life.check() == 1
    name = life.only()["id"]
    life.say("baseline", "accept", name, "--why", "meant")
    life.squash("feature")
    assert life.check() == 0
    assert {row["id"]: row["state"] for row in life.rows()} == {name: "accepted"}
    assert life.json("status")["gone"] == []


@pytest.mark.matrix
def test_a_shallow_clone_knows_what_it_has(live: Live) -> None:
    life = live()
    for level in (1, 1, 1, 1.4, 1.4):
        life.commit(level)
        life.check()
    root = life.project.root
    parent = git(root, "rev-parse", "HEAD~2")
    (root / ".git" / "shallow").write_text(f"{parent}\n")
    life.compare()
    head = git(root, "rev-parse", "HEAD")
    (root / ".git" / "shallow").write_text(f"{head}\n")  # what is worse lies before it
    assert f"nothing since {head[:8]}, where this history begins" in life.say("status").out


ORDERS = [(order,) for order in itertools.permutations(range(4))]


@pytest.mark.matrix
@pytest.mark.parametrize(("order",), ORDERS[::-4])
def test_the_order_of_measuring_decides_nothing(live: Live, order: tuple[int, ...]) -> None:
    life = live(0.01, exact=True)
    shas = life.project.history([1, 1, 1.4, 1.4])
    for index in order:
        life.say("run", shas[index], "--repeat", "2")
    life.check()
    assert life.only()["first_bad"] == [shas[2]]


@pytest.mark.matrix
def test_one_seed_a_commit(live: Live) -> None:
    life = live(0.01, suite=SUITE.replace("[0, 1]", "[0]"))
    for _ in range(5):
        life.commit(1)
        life.check()
    assert life.rows() == []
    bad = life.commit(1.3)
    assert life.check() == 1
    assert life.only()["first_bad"] == [bad]
    life.revert(bad)
    life.check()
    life.commit(1)
    life.check()
    assert life.only("recovered")["first_bad"] == [bad]


@pytest.mark.matrix
def test_a_training_that_is_too_short_for_a_figure_misses_nothing(live: Live) -> None:
    """After one that was slow, and so had a growth of memory, every check ended with 125."""
    growth = '[metrics.memory_growth]\ndirection = "lower"\nkind = "memory"\nfloor = 1024\n'
    life = live(suite=SUITE.replace("[[task]]", growth + "[[task]]"))
    life.begin()
    life.commit(1, text="OTHERS = {'memory_growth': 100.}\n")
    assert life.check() == 125  # the first of them
    life.commit(1)
    assert life.check() == 0
    assert life.rows() == []


ACCURACY = """\
[metrics.accuracy]
direction = "higher"
kind = "quality"
"""
STEP = """\
[metrics.step_ms]
direction = "lower"
kind = "speed"
floor = "3%"
"""


@pytest.mark.matrix
def test_a_mend_of_one_commit_is_run_again_before_it_is_taken_back(live: Live) -> None:
    """What was good again and came back at the next commit is another incident."""
    life = live(0.01, suite=SUITE.replace("[[task]]", STEP + "[[task]]"))
    for level in (10, 10, 10, 10, 10, 22, 22, 10):
        life.commit(1, text=f"OTHERS = {{'step_ms': {level}.}}\n")
        life.check()
    name = life.only("recovered")["id"]
    back = life.commit(1.3, text="OTHERS = {'step_ms': 22.}\n")  # and the loss is worse, too
    assert life.check() == 1
    assert life.only("recovered")["id"] == name
    assert life.only()["first_bad"] == [back]
    assert life.alerts[name] == ["opened", "recovered"]


MANY = """
[metrics.accuracy]
direction = "higher"
kind = "quality"
[[task]]
name = "other"
command = "{python} {suite}/fit.py --seed {seed}"
seeds = [0, 1]
"""


@pytest.mark.matrix
def test_one_cause_is_one_incident(live: Live) -> None:
    suite = SUITE.replace("[[task]]", MANY.split("[[task]]")[0] + "[[task]]", 1)
    suite += "[[task]]" + MANY.split("[[task]]")[1]
    life = live(suite=suite)
    for _ in range(3):
        life.commit(1, text="OTHERS = {'accuracy': .9}\n")
        life.check()
    bad = life.commit(1.3, text="OTHERS = {'accuracy': .7}\n")
    assert life.check() == 1
    row = life.only()
    assert row["first_bad"] == [bad]
    assert len(row["metrics"]) == 4
    assert len(life.alerts) == 1


@pytest.mark.matrix
def test_an_edited_suite_mends_nothing(live: Live) -> None:
    life = live()
    life.begin()
    bad = life.commit(1.3)
    assert life.check() == 1
    file = life.project.root / "suites" / "tiny" / "suite.toml"
    file.write_text(file.read_text().replace("--seed {seed}", "--seed {seed} --wide"))
    life.commit(1.3)
    assert life.check() == 1
    assert life.only()["first_bad"] == [bad]
    life.commit(1, 'Revert "number 4"')
    life.check()
    assert life.only("recovered")["first_bad"] == [bad]


@pytest.mark.matrix
def test_what_is_worse_on_another_branch_is_not_listed(live: Live) -> None:
    life = live()
    life.begin()
    git(life.project.root, "checkout", "-q", "-b", "feature")
    life.commit(1.4)
    assert life.check() == 1
    git(life.project.root, "checkout", "-q", "main")
    assert life.rows() == []
    assert life.json("status")["gone"] == []


@pytest.mark.matrix
def test_a_rebase_onto_other_work_keeps_the_incident_open(live: Live) -> None:
    life = live()
    life.begin()
    root = life.project.root
    git(root, "checkout", "-q", "-b", "feature")
    life.commit(1.4)
    assert life.check() == 1
    name = life.only()["id"]
    git(root, "checkout", "-q", "main")
    life.project.commit("beside", {"notes.txt": "one\n"})
    git(root, "checkout", "-q", "feature")
    git(root, "rebase", "-q", "main")
    row = life.only()
    assert (row["id"], row["first_bad"]) == (name, [life.head()])
    (metric,) = row["metrics"]
    assert metric["change"] == pytest.approx(0.4, abs=0.02)
    assert life.check() == 1
    assert life.only()["id"] == name
    assert life.only()["first_bad"][-1] == life.head()  # the commit before was not measured


@pytest.mark.parametrize("bad", matrix_after(1, ["1.4", "raise ValueError('broken')"]))
def test_a_rebase_of_the_mend_leaves_the_incident_recovered(live: Live, bad: str) -> None:
    """`pull --rebase` gave the revert another hash and another tree, and the incident was open
    until that was measured."""
    life = live(exact=True)
    life.begin()
    root = life.project.root
    broken = life.commit(bad)
    assert life.check() == 1
    life.revert(broken)
    assert life.check() == 0
    name = life.only("recovered")["id"]
    git(root, "checkout", "-q", "-b", "upstream", "HEAD~1")
    life.project.commit("beside", {"notes.txt": "one\n"})
    git(root, "checkout", "-q", "main")
    git(root, "rebase", "-q", "upstream")
    row = life.only("recovered")
    assert (row["id"], row["closed_at"]) == (name, life.head())
    life.compare()
    assert life.check() == 0
    assert life.only("recovered")["closed_at"] == life.head()
    assert life.alerts[name].count("recovered") == 1


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["--no-rebase-merges", "--rebase-merges"])
def test_a_rebase_of_a_merge_keeps_the_incident_though_its_branch_stays(
    live: Live, way: str
) -> None:
    life = live(exact=True)
    life.begin()
    root = life.project.root
    git(root, "checkout", "-q", "-b", "feature")
    life.commit(1.4)
    git(root, "checkout", "-q", "main")
    git(root, "merge", "-q", "--no-ff", "-m", "merge feature", "feature")
    assert life.check() == 1
    name = life.only()["id"]
    assert life.say("bisect", name).status == 0
    git(root, "checkout", "-q", "-b", "upstream", "HEAD~1")
    life.project.commit("beside", {"notes.txt": "one\n"})
    git(root, "checkout", "-q", "main")
    git(root, "rebase", "-q", way, "upstream")
    assert life.only()["id"] == name
    assert life.check() == 1
    row = life.only()
    assert (row["id"], row["first_bad"][-1]) == (name, life.head())
    assert life.alerts.keys() == {name}


@pytest.mark.matrix
def test_a_bisect_searches_inside_a_merge_and_diff_tells_what_it_found(live: Live) -> None:
    life = live(exact=True)
    life.begin()
    root = life.project.root
    git(root, "checkout", "-q", "-b", "feature")
    parent = life.commit(1)
    bad = life.commit(1.4)
    life.commit(1.4)
    git(root, "checkout", "-q", "main")
    git(root, "merge", "-q", "--no-ff", "-m", "merge feature", "feature")
    assert life.check() == 1
    row = life.only()
    assert len(row["first_bad"]) == 4
    assert row["next"] == f"celedger bisect {row['id']}"
    assert life.say("bisect", row["id"]).status == 0
    life.compare()
    named = life.only()
    assert (named["id"], named["first_bad"]) == (row["id"], [bad])
    assert sorted(life.alerts[row["id"]]) == ["named", "opened"]
    (task,) = life.json("diff", f"{parent}..{bad}")["tasks"]
    (metric,) = [m for m in task["metrics"] if m["metric"] == "val_loss"]
    assert (metric["said"], metric["incidents"]) == ("worse", [row["id"]])
    life.commit(1.4)
    assert life.check() == 1
    assert life.only()["id"] == row["id"]


@pytest.mark.matrix
def test_diff_of_a_culprit_in_a_merged_branch_tells_what_the_list_has(live: Live) -> None:
    """One trial of it, and none of what came after it, says less than the merge does."""
    life = live(0.03, suite=SUITE.replace("[[task]]", ACCURACY + "[[task]]"))
    for _ in range(4):
        life.commit(1, text="OTHERS = {'accuracy': 0.9}\n")
        life.check()
    root = life.project.root
    git(root, "checkout", "-q", "-b", "feature")
    parent = life.commit(1, text="OTHERS = {'accuracy': 0.9}\n")
    bad = life.commit(1.4, text="OTHERS = {'accuracy': 0.7}\n")
    git(root, "checkout", "-q", "main")
    git(root, "merge", "-q", "--no-ff", "-m", "merge feature", "feature")
    assert life.check() == 1
    assert life.say("bisect", life.only()["id"]).status == 0
    row = life.only()
    assert row["first_bad"] == [bad]
    assert row["next"].startswith(f"celedger explain {parent[:12]}..{bad[:12]}")
    (task,) = life.json("diff", f"{parent}..{bad}")["tasks"]
    judged = {m["metric"]: (m["said"], m["incidents"]) for m in task["metrics"]}
    for metric in row["metrics"]:
        assert judged[metric["name"]] == ("worse", [row["id"]])


WIDE = SUITE + SUITE[SUITE.index("[[task]]") :].replace('"fit"', '"wide"').replace(
    "seeds = [0, 1]", "seeds = [10, 11]"
)


def by_task(model: Mapping[str, Any], seed: int) -> Iterator[scripted.Report]:
    """Train: the second task's loss is higher by MORE."""
    loss = model["LEVEL"] + Random(seed).gauss(0, 0.003) + (seed >= 10) * model.get("MORE", 0)
    yield {"epoch": 0, "val_loss": loss}


@pytest.mark.matrix
def test_what_is_left_in_a_removed_task_alone_is_no_longer_measured(live: Live) -> None:
    life = live(suite=WIDE)
    life.project.executor.training = by_task
    life.begin()
    life.commit(1.4)
    assert life.check() == 1
    name = life.only()["id"]
    life.commit(1, text="MORE = 0.4")
    assert life.check() == 1
    assert life.only()["state"] == "partly"
    (life.project.root / "suites" / "tiny" / "suite.toml").write_text(SUITE)
    life.commit(1)
    done = life.say("check")
    assert f"{name} wide val_loss is left out: it is no longer measured" in done.err
    assert ", no longer measured" in life.say("status", name).out
    life.compare()


@pytest.mark.matrix
def test_an_incident_is_searched_by_a_task_that_is_there(live: Live) -> None:
    life = live(suite=WIDE)
    life.project.executor.training = by_task
    life.begin()
    bad = [life.commit(level) for level in (1, 1.4, 1.4)][1]
    assert life.check() == 1
    (life.project.root / "suites" / "tiny" / "suite.toml").write_text(SUITE)
    assert life.say("bisect", life.only()["id"]).status == 0
    assert life.only()["first_bad"] == [bad]


@pytest.mark.matrix
@pytest.mark.parametrize("named", [False, True], ids=["one of the merge", "named by a bisect"])
def test_what_a_merge_brought_keeps_its_name_when_it_is_over(live: Live, named: bool) -> None:
    """Once it was recovered, the state had another name for it, which nobody had been told."""
    life = live(exact=True)
    life.begin()
    root = life.project.root
    git(root, "checkout", "-q", "-b", "feature")
    for level in (1, 1.4, 1.4):
        life.commit(level)
    git(root, "checkout", "-q", "main")
    git(root, "merge", "-q", "--no-ff", "-m", "merge feature", "feature")
    assert life.check() == 1
    name = life.only()["id"]
    if named:
        assert life.say("bisect", name).status == 0
    for _ in range(3):
        life.commit(1)
        life.check()
    assert [row["id"] for row in life.rows()] == [name]
    assert life.only("recovered")["id"] == name
    with Ledger.open(root / "ledger.db", readonly=True) as ledger:
        told = tellings.told(ledger, Line.of(Repository.open(root), "HEAD"))
    assert [(each.id, each.is_here) for each in told] == [(name, True)]


@pytest.mark.matrix
def test_a_task_that_was_removed_is_no_doubt_of_the_worker(live: Live) -> None:
    life = live(suite=SUITE + "[[task]]" + MANY.split("[[task]]")[1])
    life.commit(1)
    life.project.allow()
    life.work()
    file = life.project.root / "suites" / "tiny" / "suite.toml"
    file.write_text(SUITE)
    life.commit(1, "Remove the other task")
    life.project.allow()
    assert "not judged" not in life.work()


@pytest.mark.matrix
def test_an_incident_of_a_renamed_task_is_listed_as_no_longer_measured(live: Live) -> None:
    life = live(0.01)
    life.begin()
    life.commit(1.4)
    assert life.check() == 1
    row = life.only()
    file = life.project.root / "suites" / "tiny" / "suite.toml"
    file.write_text(SUITE.replace('name = "fit"', 'name = "fitted"'))
    for commit in range(2):
        done = life.say("check")
        assert done.status in (0, 125)
        assert f"{row['id']} fit val_loss is left out: it is no longer measured" in done.err
        text = life.say("status").out
        assert "open, no longer measured" in text
        assert "celedger bisect" not in text
        life.commit(1.4, f"number {commit}")
    assert life.only()["id"] == row["id"]


@pytest.mark.matrix
def test_the_worker_names_the_commit_inside_a_bad_merge_in_one_alert(live: Live) -> None:
    life = live(exact=True)
    life.project.commit("configure", {"celedger.toml": "bisect_on_regression = true\n"})
    life.commit(1)
    life.project.allow()
    for _ in range(3):
        assert "nothing is worse" in life.work()
        life.commit(1)
    life.work()
    root = life.project.root
    git(root, "checkout", "-q", "-b", "feature")
    life.commit(1)
    bad = life.commit(1.4)
    life.commit(1.4)
    git(root, "checkout", "-q", "main")
    git(root, "merge", "-q", "--no-ff", "-m", "merge feature", "feature")
    line = life.work()
    assert "fit val_loss is worse: +" in line
    assert f"since {bad[:8]} number" in line
    row = life.only()
    assert row["first_bad"] == [bad]
    assert life.alerts == {row["id"]: ["opened"]}
    assert any(bad[:10] in text for text in life.texts)
    ran = life.trials()
    life.project.commit("comment", {"notes.txt": "one\n"})
    assert f"since {bad[:8]} number" in life.work()
    assert life.trials() - ran <= 3
    assert life.alerts == {row["id"]: ["opened"]}


TWO = SUITE.replace("val_loss", "step_ms").replace("quality", "speed") + OTHER


def step(model: Mapping[str, Any], seed: int) -> Iterator[scripted.Report]:
    """Report the time of a step; the other task fails where the model says so."""
    if seed >= 10 and model["OTHERS"]["fails"]:
        raise RuntimeError("shapes do not match")
    for epoch in range(2):
        noise = Random(f"{seed} {epoch} {model['NUMBER']}").gauss(0, 0.002)
        yield {"epoch": epoch, "step_ms": model["LEVEL"] * (1 + noise)}


CALLS = """
[metrics.calls]
direction = "lower"
kind = "count"
floor = "1%"
"""


def failing(model: Mapping[str, Any], seed: int) -> Iterator[scripted.Report]:
    """Report a loss and a count; the task of the small seeds fails where the model says so."""
    if seed < 10 and model["OTHERS"]["fails"]:
        raise RuntimeError("shapes do not match")
    for epoch in range(2):
        noise = Random(f"{seed} {epoch} {model['NUMBER']}").gauss(0, 0.002)
        calls = model["OTHERS"]["calls"] if seed >= 10 else 40
        level = model["LEVEL"] if seed < 10 else 1
        yield {"epoch": epoch, "val_loss": level * (1 + noise), "calls": calls}


def sign(life: Life, sha: str, operators: float, numerics: str = "a") -> None:
    """Store what a signature counts and computes in a step of the task."""
    with Ledger.open(life.project.root / "ledger.db") as ledger:
        ledger.record_commits([Repository.open(life.project.root).commit(sha)])
        document = {
            "key": {"environment": "e", "recipe": "r"}, "numerics": numerics, "seconds": 0.1,
            "work": {"operators": operators}, "growth": {},
        }  # fmt: skip
        ulid = f"01{life.number:08d}{int(operators):015d}{numerics.upper()}"
        ledger.record_finding(
            FindingRecord(ulid, SIGNATURE, "tiny", "fit", sha, "", "", 1.0, "", document)
        )


@pytest.mark.parametrize("at", matrix_after(1, [1, 0, 2, None]))
def test_of_the_commits_that_may_have_mended_the_one_that_changed_the_bits_is_named(
    live: Live, at: int | None
) -> None:
    life = live(0.01, exact=True)
    life.begin()
    life.commit(1.5)
    life.check()
    sign(life, life.head(), 1, "b")
    shas = []
    for i in range(3):
        shas.append(life.commit(1.5 if at is not None and i < at else 1.02, text="# by hand\n"))
        if at is not None:
            sign(life, shas[-1], 1, "b" if i < at else "c")
    life.check()
    row = life.only("recovered")
    assert row["closed_at"] == shas[2 if at is None else at]
    told = "one of 3 commits" if at is None else shas[at][:10]
    assert f"mended by {told}" in life.texts[-1]


@pytest.mark.matrix
def test_what_more_work_slowed_is_another_cause_than_a_crash_of_the_same_merge(
    tmp_path: Path,
) -> None:
    life = Life(scripted.scripted(tmp_path / "project", TWO, step), [])
    well, fails = "OTHERS = {'fails': 0}\n", "OTHERS = {'fails': 1}\n"
    for _ in range(4):
        good = life.commit(10, text=well)
        life.say("check")
    sign(life, good, 400)
    slow = life.commit(15, text=well)
    sign(life, slow, 900)
    broken = life.commit(15, text=fails)
    sign(life, broken, 900)
    life.say("check")
    life.say("run", slow, "--task", "other")
    life.say("check", "--budget", "0")
    rows = {row["kind"]: row for row in life.listed()}
    assert rows["crash"]["first_bad"] == [broken]
    assert rows["metric"]["first_bad"] == [slow, broken]
    assert [metric["name"] for metric in rows["metric"]["work"]] == ["operators"]


@pytest.mark.matrix
def test_a_crash_that_is_mended_is_no_reason_for_the_number_that_is_left(live: Live) -> None:
    life, runs = live(suite=TWO), "OTHERS = {'fails': 0}\n"
    life.project.executor.training = step
    for _ in range(3):
        life.commit(10, text=runs)
        life.check()
    life.commit(15, text="OTHERS = {'fails': 1}\n")
    assert "other fails" in (line := life.work()) and "exit status 1" in line
    life.commit(15, text=runs)
    line = life.work()
    assert life.only()["state"] == "partly" and "exit status" not in line


@pytest.mark.matrix
def test_a_search_of_what_came_with_a_mended_crash_opens_no_crash_again(live: Live) -> None:
    """Both came with one merge: once a search named the commit of the loss there, the crash that
    was good again was partly open."""
    life = live(exact=True)
    life.begin()
    root = life.project.root
    git(root, "checkout", "-q", "-b", "feature")
    life.commit(1.4)
    life.commit(1.4, text="raise ValueError('broken')\n")
    git(root, "checkout", "-q", "main")
    git(root, "merge", "-q", "--no-ff", "-m", "merge feature", "feature")
    assert life.check() == 1
    crash = life.only()["id"]
    life.commit(1.4)
    assert life.check() == 1
    loss = life.only()["id"]
    assert life.say("bisect", loss).status == 0
    life.compare()
    assert {row["id"]: row["state"] for row in life.rows()} == {crash: "recovered", loss: "open"}


@pytest.mark.matrix
def test_what_moved_while_a_task_failed_tells_nothing_of_its_mend(live: Live) -> None:
    """The mend made the loss worse; the commit that crashed moved a count of another task."""
    life = live(suite=SUITE.replace("[[task]]", CALLS + "[[task]]") + OTHER)
    life.project.executor.training = failing
    well, fails = "OTHERS = {'calls': 40, 'fails': 0}\n", "OTHERS = {'calls': 60, 'fails': 1}\n"
    for _ in range(3):
        life.commit(1, text=well)
        life.check()
    crash = life.commit(1, text=fails)
    assert life.check() == 1
    mend = life.commit(1.4, text=fails.replace("'fails': 1", "'fails': 0"))
    assert life.check() == 1
    losses = [r for r in life.listed() if "val_loss" in {m["name"] for m in r["metrics"]}]
    assert [row["first_bad"] for row in losses] == [[crash, mend]]
    (row,) = [r for r in life.listed() if r not in losses]
    assert row["first_bad"] == [crash]
    life.compare()
    life.commit(1, text=fails.replace("'fails': 1", "'fails': 0"))
    life.check()
    (over,) = [r for r in life.listed("recovered") if r["id"] == losses[0]["id"]]
    assert over["closed_at"] == life.head()


TRIALS = itertools.count()


def nearly(model: Mapping[str, Any], seed: int) -> Iterator[scripted.Report]:
    """A seed tells 3 % of the loss, and each trial .2 % more, as on a device whose sums have no
    fixed order. A model may draw all seeds anew, or leave every third one."""
    others = model.get("OTHERS", {})
    own = Random(f"{others.get('draw', 0)} {seed}").gauss(0, 0.03)
    own += Random(next(TRIALS)).gauss(0, 0.002)
    level = 1 if others.get("some") and seed % 3 == 0 else model["LEVEL"]
    for epoch in range(2):
        yield {"epoch": epoch, "val_loss": level * (1 + own)}


@pytest.mark.matrix
def test_seeds_that_nearly_repeat_are_compared_with_themselves(live: Live) -> None:
    """A new draw was an incident, and every other commit "too noisy": nothing was ever good."""
    life = live(suite=SUITE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    life.project.executor.training = nearly
    for _ in range(5):
        life.commit(1)
        status = life.check()
    assert status == 0
    for _ in range(2):
        life.commit(1, text="OTHERS = {'draw': 1}\n")
        status = life.check()
    assert status == 0 and not life.rows()
    bad = life.commit(1.25, text="OTHERS = {'draw': 1, 'some': 1}\n")
    assert life.check() == 1
    row = life.only()
    assert row["first_bad"] == [bad]
    (metric,) = row["metrics"]
    assert metric["after"] / metric["before"] == pytest.approx(1 + 0.25 * 2 / 3, abs=0.02)
