"""Questions to a ledger: each answers exactly what was asked."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from typing import Any

import pytest

import celedger
from celedger.base.errors import LedgerError
from celedger.base.model import (
    Direction,
    Kind,
    Mark,
    Metric,
    Outcome,
    OutcomeKind,
)
from celedger.ledger import Ledger


def test_trials_are_found_by_each_of_their_properties(ledger: Ledger, facts: Any) -> None:
    made = [
        facts.trial(ledger, facts.commit(c), facts.task(t), facts.environment(e), seed)
        for c in (1, 2) for t in ("mlp", "cnn") for e in ("e0", "e1") for seed in (0, 1)
    ]  # fmt: skip
    ledger.finish_trial(made[3].ulid, Outcome(OutcomeKind.OK, 1.0), {"loss": 0.5})

    def ulids(**asked: Any) -> list[str]:
        return [record.trial.ulid for record in ledger.trials(**asked)]

    sha, cnn = facts.commit(2).sha, facts.task("cnn")
    assert ulids() == [t.ulid for t in made]
    assert ulids(commit=sha) == [t.ulid for t in made if t.commit == sha]
    assert ulids(commits=[sha, "f" * 40]) == ulids(commit=sha)
    assert ulids(commits=[]) == []
    assert ulids(suite="core") == ulids()
    assert ulids(suite="other") == []
    assert ulids(task="cnn") == [t.ulid for t in made if t.recipe == cnn.recipe]
    assert ulids(recipe=cnn.recipe) == ulids(task="cnn")
    assert ulids(environment="e1") == [t.ulid for t in made if t.environment == "e1"]
    assert ulids(seed=1) == [t.ulid for t in made if t.seed == 1]
    assert ulids(open_only=True) == [t.ulid for t in made if t is not made[3]]
    assert len(ulids(commit=sha, task="cnn", environment="e0", seed=0)) == 1


def test_a_trial_is_found_by_the_start_of_its_ulid_when_only_one_begins_so(
    ledger: Ledger, facts: Any
) -> None:
    one, two = facts.trial(ledger), facts.trial(ledger)
    for asked in (one.ulid, one.ulid[:12], one.ulid.lower()):
        found = ledger.trial(asked)
        assert found is not None
        assert found.trial == one
    assert one.ulid[:5] == two.ulid[:5]
    for asked in (one.ulid[:5], "", "ZZZ", "%"):
        assert ledger.trial(asked) is None


def test_a_running_trial_has_its_epochs_and_no_outcome(ledger: Ledger, facts: Any) -> None:
    trial = facts.trial(ledger)
    for epoch in (0, 1, 5):
        ledger.append(trial.ulid, epoch, {"loss": 1.0, "speed": 2.0})
    (record,) = ledger.trials(open_only=True)
    assert record.outcome is None
    assert record.epochs == 3
    assert not record.ok


def test_summaries_hold_what_is_needed_to_compare_them(ledger: Ledger, facts: Any) -> None:
    first = facts.finished(ledger, 0.5, commit=facts.commit(1))
    nan = facts.finished(
        ledger, math.nan, commit=facts.commit(2), environment=facts.environment("e1")
    )
    failed = facts.finished(ledger, 0.7, OutcomeKind.FAILED, commit=facts.commit(2), seed=4)
    longer = facts.finished(ledger, math.inf, task=facts.task(epochs=9))  # the same name, edited
    facts.finished(ledger, 0.1, task=facts.task("cnn"))
    marked = facts.trial(ledger)
    outcome = Outcome(OutcomeKind.OK, 5.0, marks=(Mark.DISTURBED, Mark.THROTTLED))
    ledger.finish_trial(marked.ulid, outcome, {"loss": 0.9})
    facts.trial(ledger)  # still runs

    rows = ledger.summaries("mlp", "loss")
    assert [row.ulid for row in rows] == [t.ulid for t in (first, nan, failed, longer, marked)]
    assert [row.commit for row in rows[:3]] == [first.commit, nan.commit, failed.commit]
    assert rows[0].value == 0.5
    assert rows[0].recipe == first.recipe
    assert rows[0].started == first.started
    assert math.isnan(rows[1].value)
    assert rows[1].environment == "e1"
    assert (rows[2].outcome, rows[2].seed) == (OutcomeKind.FAILED, 4)
    assert rows[3].value == math.inf
    assert rows[4].marks == outcome.marks
    assert [r.ulid for r in ledger.summaries("mlp", "loss", recipe=longer.recipe)] == [longer.ulid]
    in_suite = ledger.summaries("mlp", "loss", suite="core")
    assert [row.ulid for row in in_suite] == [row.ulid for row in rows]
    for nothing in (("mlp", "speed", {}), ("none", "loss", {}), ("mlp", "loss", {"suite": "x"})):
        assert ledger.summaries(*nothing[:2], **nothing[2]) == []


def test_drift_over_history_reads_one_index_range(ledger: Ledger, facts: Any) -> None:
    facts.finished(ledger, 0.5)
    seen: list[str] = []
    ledger._connection.set_trace_callback(seen.append)
    ledger.summaries("mlp", "loss")
    (query,) = [sql for sql in seen if "CROSS JOIN summaries" in sql]
    plan = [row[3] for row in ledger._rows(f"EXPLAIN QUERY PLAN {query}")]
    assert "SEARCH s USING PRIMARY KEY (metric=? AND task=?)" in plan
    assert not any("SCAN" in step for step in plan)


def test_commits_come_with_their_parents_and_know_whether_they_were_tried(
    ledger: Ledger, facts: Any
) -> None:
    root, left = facts.commit(1), facts.commit(3, facts.commit(1))
    right = facts.commit(2, root)
    merge = facts.commit(4, left, right, subject="merge 'x' \"y\" -- --")
    ledger.record_commits([merge, left, right, root])
    assert ledger.commits() == [root, right, left, merge]
    assert ledger.commit(merge.sha) == merge
    assert ledger.commit(merge.sha[:10]) is None
    facts.trial(ledger, merge)
    facts.trial(ledger, root)
    facts.trial(ledger, root)
    assert ledger.commits_with_trials() == [root.sha, merge.sha]


def test_metrics_of_a_task_are_what_it_declares_and_what_it_measured(
    ledger: Ledger, facts: Any
) -> None:
    accuracy = Metric("accuracy", "", Direction.HIGHER, Kind.QUALITY)
    in_cnn = Metric("loss", "nats", Direction.LOWER)
    mlp, cnn = facts.task("mlp", accuracy), facts.task("cnn", in_cnn)
    trial = facts.trial(ledger, task=mlp)
    ledger.record_task(cnn)
    ledger.append(trial.ulid, 0, {"rss": 1.0, "only_epochs": 1.0})
    ledger.finish_trial(trial.ulid, Outcome(OutcomeKind.OK, 1.0), {"rss": 1.0})
    assert ledger.metrics(mlp.recipe) == [accuracy, Metric("rss", "B")]
    assert ledger.metrics(cnn.recipe) == [in_cnn]
    assert ledger.metrics("none") == []
    assert {m.name: m for m in ledger.metrics()} == {
        "accuracy": accuracy, "loss": in_cnn, "rss": Metric("rss", "B"),
        "only_epochs": Metric("only_epochs"),
    }  # fmt: skip


def test_environments_come_back(ledger: Ledger, facts: Any) -> None:
    for name in ("e1", "e0"):
        ledger.record_environment(facts.environment(name))
    assert [*ledger.environments().values()] == [facts.environment("e1"), facts.environment("e0")]
    assert ledger.environment("e0") == facts.environment("e0")
    assert ledger.environment("none") is None


def test_a_mark_from_the_future_is_not_passed_over(ledger: Ledger, facts: Any) -> None:
    trial = facts.trial(ledger)
    ledger._rows(
        "INSERT INTO outcomes SELECT id, 'ok', 1, '', 0, '', 'haunted', 0 FROM trials "
        "WHERE ulid = ?", (trial.ulid,)
    )  # fmt: skip
    with pytest.raises(LedgerError, match="haunted"):
        ledger.trials()


def test_a_person_can_read_the_views_with_no_plugin(ledger: Ledger, facts: Any) -> None:
    old, new = facts.commit(1, subject="old"), facts.commit(2, subject="new")
    for commit, values in ((new, (0.75, 1.25)), (old, (0.5, 0.5))):  # an old one is tried later
        for seed, value in enumerate(values):
            facts.finished(ledger, value, commit=commit, seed=seed)
    facts.finished(ledger, 9.0, OutcomeKind.FAILED, commit=new)
    said = facts.said("01A", new)
    metrics = [["core", "cnn", "loss", "open"], ["core", "mlp", "loss", "recovered"]]
    ledger.record_said([said, said._replace(ulid="01B", task="cnn", details={"metrics": metrics})])
    ledger.record_said([said._replace(ulid="01C", state="open", address="an address")])
    with closing(sqlite3.connect(ledger.path)) as person:
        person.row_factory = sqlite3.Row

        def ask(sql: str) -> list[dict[str, Any]]:
            return [dict(row) for row in person.execute(sql)]

        assert ask("SELECT * FROM latest") == [
            {"suite": "core", "task": "mlp", "metric": "loss", "mean": 1.0, "trials": 2,
             "verdict": "recovered", "sha": new.sha, "subject": "new",
             "committed": "2020-09-13T12:28:22Z"}
        ]  # fmt: skip
        drift = ask("SELECT * FROM drift WHERE task = 'mlp' AND metric = 'loss' ORDER BY committed")
        assert [row["mean"] for row in drift] == [0.5, 1.0]
        assert [row["trials"] for row in drift] == [2, 2]
        assert [row["verdict"] for row in drift] == ["recovered", "recovered"]
        assert (drift[1]["lowest"], drift[1]["highest"]) == (0.75, 1.25)
        epochs = ask("SELECT * FROM epoch_metrics")
        assert len(epochs) == 5
        assert epochs[0]["subject"] == "new"
        assert epochs[0]["started"] == "2023-11-14T22:13:21Z"
        assert {row["outcome"] for row in epochs} == {"ok", "failed"}
        assert ask("SELECT direction FROM metric_definitions") == [{"direction": "lower"}]


def test_of_commits_of_one_second_the_child_is_the_newest(ledger: Ledger, facts: Any) -> None:
    first = facts.commit(1)._replace(commit_time=9)
    second = facts.commit(2, first)._replace(commit_time=9)
    for commits in ((second, first), (first, second)):
        for commit in commits:
            facts.finished(ledger, 1.0, commit=commit)
        assert ledger._rows("SELECT sha FROM latest") == [(second.sha,)]


def test_what_was_said_last_of_each_incident_is_read_without_git(
    ledger: Ledger, facts: Any
) -> None:
    old, new = facts.commit(1), facts.commit(2)
    said = facts.said("01A", old)
    details = {
        "first": old.sha, "last": new.sha, "likeliest": new.sha, "probability": 0.9,
        "bisect": "01X", "closed": "", "metrics": [["core", "mlp", "loss", "partly"]],
        "sizes": [["core", "mlp", "loss", 0.5, 0.1]],
    }  # fmt: skip
    ledger.record_said([
        said, said._replace(ulid="01B", state="partly", details=details),
        said._replace(ulid="01C", state="recovered", address="an address"),
        said._replace(ulid="01D", incident="00000001"),
    ])  # fmt: skip
    with celedger.open(ledger.path) as opened:
        first, second = opened.incidents()
    assert (first.id, first.kind, first.state) == ("5e0c91aa", "metric", "partly")
    assert (first.first, first.last, first.likeliest) == (old.sha, new.sha, new.sha)
    assert (first.probability, first.bisect, first.closed_at) == (0.9, "01X", "")
    (metric,) = first.metrics
    assert (metric.name, metric.state, metric.change, metric.error) == ("loss", "partly", 0.5, 0.1)
    assert (second.first, second.probability) == (old.sha, None)
    assert (second.metrics[0].name, second.metrics[0].change) == ("loss", None)
