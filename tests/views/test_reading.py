"""`log`, `show` and `diff` as text and JSON, of ledgers made through the ledger's own API."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from celedger.judge.drift.level_changes import courses
from old_verdicts import record_verdicts

from celedger.base.errors import CeledgerError, UsageError
from celedger.base.model import (
    BaselineAct,
    BaselineRecord,
    Commit,
    Mark,
    Metric,
    OutcomeKind,
    Verdict,
    VerdictKind,
)
from celedger.views import samples
from celedger.views.diff import Diff
from celedger.views.document import Document, document, dumps
from celedger.views.drift import CourseList
from celedger.views.log import Log
from celedger.views.show import CommitRows

Commits = Callable[..., list[Commit]]


def answer_of(view: Document) -> dict[str, Any]:
    return document(**view.json())


@pytest.fixture
def story(history: Any, make_commits: Commits) -> list[Commit]:
    """Six commits: a regression at 3 judged, a crash at 4, a diverged trial at 5."""
    made = history.commits(make_commits(6))
    for i, commit in enumerate(made[:4]):
        for seed in range(3):
            loss = (0.46 if i >= 3 else 0.41) + 0.001 * seed + 0.0002 * i
            rss = (300 + seed) * 2.0**20
            history.trial(commit, {"val_loss": loss, "peak_rss": rss, "duration": 12.0}, seed=seed)
    history.trial(
        made[4], {}, kind=OutcomeKind.FAILED, message="exit status 1: ValueError:\x1b[31m no"
    )
    history.trial(made[5], {"val_loss": math.nan, "duration": 40.0}, marks=(Mark.DISTURBED,))
    record_verdicts(history.ledger, [
            Verdict(
                made[3].sha, "core", "mlp_digits", "val_loss", VerdictKind.REGRESSED,
                0.411, 0.461, 0.05, 0.048, 0.052, 1e-6, rule="r1", recipe=history.task.recipe,
            ),
            Verdict(
                made[3].sha, "core", "mlp_digits", "peak_rss", VerdictKind.SAME,
                recipe=history.task.recipe,
            ),
        ]
    )  # fmt: skip
    return made


def test_the_log_is_newest_first_and_lines_up(history: Any, story: list[Commit]) -> None:
    assert Log.of(history.ledger, 4).text() == (
        f"{story[5].sha[:8]}  2026-02-25  Refactor the loader (5)\n"
        "  core/mlp_digits  ok      1 trial   val_loss nan\n"
        "1bcfb39c  2026-02-25  Use fused layer norm (4)\n"
        "  core/mlp_digits  failed  1 trial"
        "                             exit status 1: ValueError: no\n"
        "512572f7  2026-02-25  Fix typo (3)\n"
        "  core/mlp_digits  ok      3 trials  val_loss 0.4616 ± 0.0010"
        "  val_loss regressed +12.2 %\n"
        "78b3ba12  2026-02-25  Document $x$ and y_1 (2)\n"
        "  core/mlp_digits  ok      3 trials  val_loss 0.4114 ± 0.0010"
    )


def test_the_log_fits_the_terminal(history: Any, story: list[Commit]) -> None:
    assert all(len(line) <= 72 for line in Log.of(history.ledger).text(72).splitlines())


def test_a_new_environment_is_said_where_it_begins(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(3))
    history.walk(made, step=9, seeds=1, change=2)
    lines = Log.of(history.ledger).text().splitlines()
    assert ["environment changed" in line for line in lines] == [
        False, True, False, False, False, False,
    ]  # fmt: skip


def test_show_tells_everything_of_a_commit(history: Any, story: list[Commit]) -> None:
    lines = CommitRows.of(history.ledger, story[3].sha).text().splitlines()
    assert lines[:4] == [
        f"commit {story[3].sha}",
        "2026-02-25 13:43 UTC  Ada Lovelace",
        "",
        "    Fix typo (3)",
    ]
    text = "\n".join(lines)
    assert "environment aaaaaaaa" in text
    assert "  packages      anyio 4.1, numpy 2.4.6, torch 2.12.0\n" in text
    assert "  not compared  host box, memory 32 GiB\n" in text
    assert "cuda" not in text
    loss = next(line for line in lines if line.startswith("  val_loss"))
    assert "0.4616 ± 0.0010" in loss
    assert "regressed  +0.0500 (+12.2 %) [+0.0480, +0.0520]" in loss
    rss = next(line for line in lines if line.startswith("  peak_rss"))
    assert "301.0 ± 1.0 MiB  3  same" in rss
    assert rss.endswith("4.4 MiB (1.5 %)")


def test_show_points_to_the_log_of_a_failure(history: Any, story: list[Commit]) -> None:
    text = CommitRows.of(history.ledger, story[4].sha).text(60)
    assert "  seed 0 failed: exit status 1: ValueError: no" in text
    assert f"    log .celedger/logs/{'01K' + '13'.zfill(23)}.log" in text


def test_speed_of_a_disturbed_trial_is_left_out(history: Any, story: list[Commit]) -> None:
    lines = CommitRows.of(history.ledger, story[5].sha).text().splitlines()
    assert next(line.split() for line in lines if "duration" in line) == [
        "duration", "–", "0", "1", "hindered",
    ]  # fmt: skip
    assert any("marked disturbed" in line for line in lines)


def test_values_summarised_by_another_rule_are_not_mixed(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(1))
    history.trial(made[0], {"val_loss": 1.0})
    metrics = tuple(
        replace(m, summary="best") if m.name == "val_loss" else m for m in history.task.metrics
    )
    history.ledger.record_task(replace(history.task, metrics=metrics))
    history.trial(made[0], {"val_loss": 3.0}, seed=1)
    (task,) = answer_of(CommitRows.of(history.ledger, made[0].sha))["tasks"]  # type: ignore[misc]
    assert task["metrics"][0]["values"] == [3.0]  # type: ignore[index,call-overload]


def test_diff_says_better_worse_or_noise(history: Any, story: list[Commit]) -> None:
    (task,) = Diff.of(history.ledger, story[1].sha, story[3].sha).tasks
    said = {c.metric.name: c.judgement for c in task.changes}
    assert said == {"val_loss": "worse", "peak_rss": "same", "duration": "same"}
    (back,) = Diff.of(history.ledger, story[3].sha, story[1].sha).tasks
    assert back.changes[0].judgement == "better"
    assert "+0.0504  +12.3 %  worse" in Diff.of(history.ledger, story[1].sha, story[3].sha).text()


def test_diff_within_the_noise_is_no_news(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(2))
    for i, commit in enumerate(made):
        for seed in range(3):
            history.trial(commit, {"val_loss": 0.4 + 0.01 * seed + 0.001 * i}, seed=seed)
    (task,) = Diff.of(history.ledger, made[0].sha, made[1].sha).tasks
    assert task.changes[0].judgement == "within noise"


def test_diff_pools_the_noise_in_the_order_of_history(history: Any, make_commits: Commits) -> None:
    """Commits of one second, as a rebase makes them, have no order but git's: taken by hash, each
    neighbour would lie across the step, which would pass for noise."""
    made = [replace(c, commit_time=1, author_time=1, parents=()) for c in make_commits(12)]
    made = sorted(made, key=lambda c: c.sha)
    line = [*made[::2], *made[1::2]]  # by hash, they take turns
    history.commits(made)
    draw = random.Random(2)
    for i, commit in enumerate(line):
        history.trial(commit, {"val_loss": draw.gauss(0.4 + 0.1 * (i >= 6), 0.002)})
    order = {commit.sha: place for place, commit in enumerate(line)}
    pair = line[5].sha, line[6].sha
    (task,) = Diff.of(history.ledger, *pair, order=order).tasks
    assert task.changes[0].judgement == "worse"
    assert task.changes[0].smallest < 0.02


def test_diff_never_judges_across_environments(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(4))
    history.walk(made, step=3, change=2)
    text = Diff.of(history.ledger, made[0].sha, made[3].sha).text()
    assert "not comparable: the environment changed between them" in text
    assert "torch        2.12.0  2.13.0" in text
    assert "worse" not in text
    answer: Any = answer_of(Diff.of(history.ledger, made[0].sha, made[3].sha))
    assert answer["tasks"][0]["comparable"] is False
    assert answer["environments"][0]["changed"] == [{"key": "torch", "a": "2.12.0", "b": "2.13.0"}]


def test_diff_prefers_trials_that_can_be_compared(history: Any, make_commits: Commits) -> None:
    from dataclasses import astuple

    made = history.commits(make_commits(2))
    new = next(e for e in history.ledger.environments() if "2.13.0" in str(astuple(e)))
    history.trial(made[0], {"val_loss": 0.4})
    history.trial(made[1], {"val_loss": 0.5})
    history.trial(made[1], {"val_loss": 0.9}, environment=new)
    (task,) = Diff.of(history.ledger, made[0].sha, made[1].sha).tasks
    assert task.comparable
    assert task.changes[0].b.values == (0.5,)


def test_json_is_strict_and_carries_whole_hashes(history: Any, story: list[Commit]) -> None:
    ledger = history.ledger
    answers: list[Any] = [
        json.loads(dumps(document(**view.json())), parse_constant=pytest.fail)
        for view in (
            Log.of(ledger),
            *(CommitRows.of(ledger, commit.sha) for commit in story),
            Diff.of(ledger, story[3].sha, story[5].sha),
        )
    ]
    assert all(answer["schema"] == 1 for answer in answers)
    assert [c["commit"] for c in answers[0]["commits"]] == [c.sha for c in story[::-1]]
    assert answers[0]["commits"][0]["tasks"][0]["main"]["mean"] is None
    assert answers[0]["not_finite"]["/commits/0/tasks/0/main/mean"] == "nan"
    assert answers[-1]["tasks"][0]["metrics"][0]["delta"] is None
    assert answers[-1]["not_finite"]["/tasks/0/metrics/0/delta"] == "nan"
    assert answers[5]["tasks"][0]["trials"][0]["outcome"]["kind"] == "failed"


def test_without_trials_the_next_command_is_said(history: Any, make_commits: Commits) -> None:
    with pytest.raises(CeledgerError, match=r"no trials yet.*celedger run"):
        Log.of(history.ledger).text()
    (commit,) = history.commits(make_commits(1))
    with pytest.raises(CeledgerError, match=f"celedger run {commit.sha[:8]}"):
        CommitRows.of(history.ledger, commit.sha).text()
    history.trial(commit, {"val_loss": 0.4})
    with pytest.raises(CeledgerError, match="celedger run ffffffff"):
        Diff.of(history.ledger, commit.sha, "f" * 40).text()


def test_a_mistyped_task_or_metric_is_suggested(history: Any, story: list[Commit]) -> None:
    assert samples.find_task(history.ledger, "core/mlp_digits") == ("core", "mlp_digits")
    with pytest.raises(UsageError, match="known: core/mlp_digits"):
        samples.find_task(history.ledger, "core/mlp_digit")
    with pytest.raises(UsageError, match="known: val_loss, "):
        samples.find_metric(history.ledger, history.task.recipe, "val_los")


def test_parents_come_before_children_whatever_the_clocks_said(make_commits: Commits) -> None:
    made = make_commits(5)
    skewed = [replace(c, commit_time=-c.commit_time) for c in made]
    assert samples.history_order(reversed(skewed)) == skewed


def test_what_was_not_judged_has_no_least_change(history: Any, make_commits: Commits) -> None:
    (commit,) = history.commits(make_commits(1))
    history.trial(commit, {"val_loss": 0.4, "surprise": 7.0})
    answer: Any = answer_of(CommitRows.of(history.ledger, commit.sha))
    told = {m["metric"]: m["smallest_change"] for m in answer["tasks"][0]["metrics"]}
    assert told["val_loss"] == math.inf
    assert math.isnan(told["surprise"])
    assert samples.in_order([Metric("surprise"), *history.task.metrics])[0].name == "val_loss"


def test_a_slow_drift_is_told_by_its_distance_from_the_pin(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(12))
    draw = random.Random(3)
    for i, commit in enumerate(made):
        for seed in range(3):
            history.trial(commit, {"val_loss": draw.gauss(0.4 + 0.004 * i, 0.006)}, seed=seed)
    history.ledger.record_baseline(
        BaselineRecord(
            "01KB", BaselineAct.PIN, made[0].sha, "core", "", "val_loss", "Ada", "v1", 1.0
        )
    )
    (course,) = courses(history.ledger, made, metric="val_loss")
    assert course.away is not None
    assert course.away.pinned == made[0]
    assert not course.away.better
    assert course.away.low < 0.036 < course.away.high  # the mean of the last five
    assert f"(worse) from the pinned {made[0].sha[:8]}" in CourseList([course]).text()
    assert answer_of(CourseList([course]))["courses"][0]["away"]["pinned"] == made[0].sha  # type: ignore
    (before,) = courses(history.ledger, made[:1], metric="val_loss")
    assert before.away is None


def test_seeds_are_compared_with_their_like_where_the_metric_repeats(
    history: Any, make_commits: Commits
) -> None:
    """A commit with one seed more has another mean, though nothing changed."""
    made = history.commits(make_commits(10))
    of_seed = {0: 0.41, 1: 0.47, 2: 0.36}
    for i, commit in enumerate(made):
        for seed in (0, 1, 2) if i in (4, 5) else (0, 1):
            history.trial(commit, {"val_loss": of_seed[seed]}, seed=seed)
    (course,) = courses(history.ledger, made, metric="val_loss")
    assert course.steps == ()
    assert course.values.sizes[4] == 2
