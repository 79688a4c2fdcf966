"""`log`, `show` and `diff` as text and JSON, of ledgers made through the ledger's own API."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celedger.base.errors import CeledgerError, UsageError
from celedger.base.model import (
    Commit,
    FindingRecord,
    JobState,
    Mark,
    Metric,
    OutcomeKind,
    QueuedJob,
)
from celedger.judge.incident import (
    Doubt,
    Incident,
    IncidentMetric,
    MetricNoise,
    MetricStanding,
    Standing,
    State,
)
from celedger.judge.state import state_of
from celedger.views import check, samples
from celedger.views import incidents as words
from celedger.views.diff import Diff
from celedger.views.document import Document, colourless, document, dumps
from celedger.views.log import Log
from celedger.views.show import CommitRows
from celedger.views.status import QueueDocument, StatusDocument

from .conftest import LineWithoutRepository, derivation

Commits = Callable[..., list[Commit]]


def answer_of(view: Document) -> dict[str, Any]:
    return document(**view.json())


def state(history: Any, made: list[Commit]) -> State:
    return state_of(derivation(history.ledger, made))


def rows(history: Any, made: list[Commit], commit: Commit) -> CommitRows:
    return CommitRows.of(history.ledger, commit.sha, state(history, made))


def log(history: Any, made: list[Commit], limit: int = 20) -> Log:
    return Log.of(history.ledger, state(history, made), limit)


def diff(history: Any, made: list[Commit], a: Commit, b: Commit) -> Diff:
    known = derivation(history.ledger, made)
    return Diff.of(history.ledger, a.sha, b.sha, state_of(known), known.line)


@pytest.fixture
def story(history: Any, make_commits: Commits) -> list[Commit]:
    """Six commits: a regression at 3, a crash at 4, a diverged trial at 5."""
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
    return made


def test_the_log_is_newest_first_and_tells_what_a_commit_did(
    history: Any, story: list[Commit]
) -> None:
    incidents = {i.kind: i.id for i in state(history, story).incidents}
    lines = colourless(log(history, story, 4).text(200)).splitlines()
    assert [line[:8] for line in lines[::2]] == [c.sha[:8] for c in story[:1:-1]]
    failed = next(line for line in lines if "core/mlp_digits  failed" in line)
    assert "exit status 1: ValueError: no" in failed
    assert f"fails ({incidents['crash']})" in failed  # what diverged after it is another cause
    worse = lines[lines.index(next(x for x in lines if x.startswith(story[3].sha[:8]))) + 1]
    assert "val_loss 0.4616 ± 0.0010" in worse
    assert f"val_loss worse +12.3 % ({incidents['metric']})" in worse
    assert "worse" not in lines[-1]


def test_the_log_fits_the_terminal(history: Any, story: list[Commit]) -> None:
    text = log(history, story).text(72)
    assert all(len(line) <= 72 for line in colourless(text).splitlines())
    assert len(text) > len(colourless(text))


def test_a_new_environment_is_said_where_it_begins(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(3))
    history.walk(made, step=9, seeds=1, change=2)
    lines = log(history, made).text().splitlines()
    assert ["environment changed" in line for line in lines] == [
        False, True, False, False, False, False,
    ]  # fmt: skip


def test_show_tells_everything_of_a_commit(history: Any, story: list[Commit]) -> None:
    lines = rows(history, story, story[3]).text().splitlines()
    assert lines[:4] == [
        f"commit {story[3].sha}",
        "2026-02-25 13:43 UTC  Ada Lovelace",
        "",
        "    Fix typo (3)",
    ]
    text = "\n".join(lines)
    assert "\nenvironment aaaaaaaa  " in text and "torch 2.12.0" in text
    assert "cuda" not in text
    loss = next(line for line in lines if line.startswith("  val_loss"))
    assert "0.4616 ± 0.0010" in loss
    assert "worse +12.3 %" in loss
    rss = next(line for line in lines if line.startswith("  peak_rss"))
    assert "301.0 ± 1.0 MiB" in rss
    assert "worse" not in rss


def test_show_points_to_the_log_of_a_failure(history: Any, story: list[Commit]) -> None:
    text = rows(history, story, story[4]).text(60)
    assert "  seed 0 failed: exit status 1: ValueError: no" in text
    assert f"    log .celedger/logs/{'01K' + '13'.zfill(23)}.log" in text


def test_speed_of_a_disturbed_trial_is_left_out(history: Any, story: list[Commit]) -> None:
    lines = rows(history, story, story[5]).text().splitlines()
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
        m._replace(summary="best") if m.name == "val_loss" else m for m in history.task.metrics
    )
    history.ledger.record_task(history.task._replace(metrics=metrics))
    history.trial(made[0], {"val_loss": 3.0}, seed=1)
    (task,) = answer_of(rows(history, made, made[0]))["tasks"]  # type: ignore[misc]
    assert task["metrics"][0]["values"] == [3.0]  # type: ignore[index,call-overload]


def test_diff_says_better_worse_or_noise(history: Any, story: list[Commit]) -> None:
    (incident,) = [i for i in state(history, story).incidents if i.kind == "metric"]
    (task,) = diff(history, story, story[1], story[3]).tasks
    told = {c.metric.name: (c.judgement, c.incidents) for c in task.changes}
    assert told == {
        "val_loss": ("worse", (incident.id,)), "peak_rss": ("same", ()), "duration": ("same", ()),
    }  # fmt: skip
    (back,) = diff(history, story, story[3], story[1]).tasks
    assert (back.changes[0].judgement, back.changes[0].incidents) == ("better", ())
    text = diff(history, story, story[1], story[3]).text()
    assert f"+0.0504  +12.3 %  worse ({incident.id})" in text


def test_diff_names_each_incident_between_two_commits_and_no_other(
    history: Any, make_commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits 4 and 8 are worse; 12 mends both. Where one was mended, it is not named."""
    monkeypatch.setattr(LineWithoutRepository, "touches", lambda *_: True)  # as a mend does
    made = history.commits(make_commits(16))
    draw = random.Random(3)
    for i, commit in enumerate(made):
        level = 0.4 + (0.05 if 4 <= i < 12 else 0) + (0.1 if 8 <= i < 12 else 0)
        for seed in range(4):
            history.trial(commit, {"val_loss": draw.gauss(level, 0.002)}, seed=seed)
    by_commit = {i.first_bad[0]: i.id for i in state(history, made).incidents}
    first, second = by_commit[made[4].sha], by_commit[made[8].sha]
    for (a, b), expected in {
        (3, 4): {first}, (3, 8): {first, second}, (5, 8): {second}, (0, 3): set(), (8, 11): set(),
        (3, 15): set(),
    }.items():  # fmt: skip
        (task,) = diff(history, made, made[a], made[b]).tasks
        assert set(task.changes[0].incidents) == expected, (a, b)
        assert task.changes[0].judgement == ("worse" if expected else "within noise")
    (mend,) = {i.closed_at for i in state(history, made).incidents}
    assert mend == made[12].sha
    told = log(history, made).text(200)
    assert f"mends {first}" in told and f"mends {second}" in told
    shown = rows(history, made, made[12]).text(200)
    assert f"mends {first}" in shown and f"mends {second}" in shown


def test_diff_within_the_noise_is_no_news(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(2))
    for i, commit in enumerate(made):
        for seed in range(4):
            history.trial(commit, {"val_loss": 0.4 + 0.01 * seed + 0.001 * i}, seed=seed)
    (task,) = diff(history, made, made[0], made[1]).tasks
    assert task.changes[0].judgement == "within noise"


def test_without_repeats_diff_says_that_the_noise_is_unknown(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(2))
    for commit, loss in zip(made, (0.4123456789, 0.5123456789), strict=True):
        history.trial(commit, {"val_loss": loss})
    (task,) = diff(history, made, made[0], made[1]).tasks
    assert task.changes[0].judgement == "unknown"
    assert math.isinf(task.changes[0].smallest)


def test_diff_never_judges_across_environments(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(4))
    history.walk(made, step=3, change=2)
    text = diff(history, made, made[0], made[3]).text()
    assert "not comparable: the environment changed between them" in text
    assert "torch        2.12.0  2.13.0" in text
    assert "worse" not in text
    answer: Any = answer_of(diff(history, made, made[0], made[3]))
    assert answer["tasks"][0]["comparable"] is False
    assert answer["environments"][0]["changed"] == [{"key": "torch", "a": "2.12.0", "b": "2.13.0"}]


def test_diff_prefers_trials_that_can_be_compared(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(2))
    new = next(e for e in history.ledger.environments().values() if "2.13.0" in str(e.details))
    history.trial(made[0], {"val_loss": 0.4})
    history.trial(made[1], {"val_loss": 0.5})
    history.trial(made[1], {"val_loss": 0.9}, environment=new)
    (task,) = diff(history, made, made[0], made[1]).tasks
    assert task.comparable
    assert task.changes[0].b.values == (0.5,)


def test_json_is_strict_and_carries_whole_hashes(history: Any, story: list[Commit]) -> None:
    answers: list[Any] = [
        json.loads(dumps(document(**view.json())), parse_constant=pytest.fail)
        for view in (
            log(history, story),
            *(rows(history, story, commit) for commit in story),
            diff(history, story, story[3], story[5]),
        )
    ]
    assert [c["commit"] for c in answers[0]["commits"]] == [c.sha for c in story[::-1]]
    assert answers[0]["commits"][0]["tasks"][0]["main"]["mean"] is None
    assert answers[0]["not_finite"]["/commits/0/tasks/0/main/mean"] == "nan"
    assert answers[-1]["tasks"][0]["metrics"][0]["delta"] is None
    assert answers[-1]["not_finite"]["/tasks/0/metrics/0/delta"] == "nan"
    assert answers[5]["tasks"][0]["trials"][0]["outcome"]["kind"] == "failed"


def test_without_trials_the_next_command_is_said(history: Any, make_commits: Commits) -> None:
    with pytest.raises(CeledgerError, match=r"no trials yet.*celedger run"):
        Log.of(history.ledger, State("")).text()
    (commit,) = history.commits(make_commits(1))
    with pytest.raises(CeledgerError, match=f"celedger run {commit.sha[:8]}"):
        CommitRows.of(history.ledger, commit.sha, State("")).text()
    history.trial(commit, {"val_loss": 0.4})
    with pytest.raises(CeledgerError, match="celedger run ffffffff"):
        line = derivation(history.ledger, [commit]).line
        Diff.of(history.ledger, commit.sha, "f" * 40, State(""), line).text()


def test_a_mistyped_task_or_metric_is_suggested(history: Any, story: list[Commit]) -> None:
    assert samples.find_task(history.ledger, "core/mlp_digits") == ("core", "mlp_digits")
    with pytest.raises(UsageError, match="known: core/mlp_digits"):
        samples.find_task(history.ledger, "core/mlp_digit")
    with pytest.raises(UsageError, match="known: val_loss, "):
        samples.find_metric(history.ledger, history.task.recipe, "val_los")


def test_parents_come_before_children_whatever_the_clocks_said(make_commits: Commits) -> None:
    made = make_commits(5)
    skewed = [c._replace(commit_time=-c.commit_time) for c in made]
    assert samples.history_order(reversed(skewed)) == skewed


def test_commits_of_one_second_are_listed_as_on_the_line(make_commits: Commits) -> None:
    """Those of the tutorial are, and the ledger has not the parents between them."""
    made = [c._replace(commit_time=0, author_time=0, parents=()) for c in make_commits(9)[::2]]
    line = [commit.sha for commit in made]
    assert samples.history_order(reversed(made), line) == made


def test_what_was_not_judged_has_no_least_change(history: Any, make_commits: Commits) -> None:
    (commit,) = history.commits(make_commits(1))
    history.trial(commit, {"val_loss": 0.4, "surprise": 7.0})
    answer: Any = answer_of(rows(history, [commit], commit))
    told = {m["metric"]: m["smallest_change"] for m in answer["tasks"][0]["metrics"]}
    assert told["val_loss"] == math.inf
    assert math.isnan(told["surprise"])
    assert samples.in_order([Metric("surprise"), *history.task.metrics])[0].name == "val_loss"


def test_seeds_are_compared_with_their_like_where_the_metric_repeats(
    history: Any, make_commits: Commits
) -> None:
    """A commit with one seed more has another mean, though nothing changed."""
    made = history.commits(make_commits(10))
    of_seed = {0: 0.4123456789, 1: 0.4723456789, 2: 0.3623456789}
    for i, commit in enumerate(made):
        for seed in (0, 1, 2) if i in (4, 5) else (0, 1):
            history.trial(commit, {"val_loss": of_seed[seed]}, seed=seed)
    known = state(history, made)
    assert (known.incidents, known.changes, known.doubts) == ((), (), ())


def test_a_job_between_two_trials_is_no_idle_machine() -> None:
    job = QueuedJob(1, "hook", "1" * 40, "tiny", 0.0, "", JobState.RUNNING)
    for alive, line in ((True, "running  the worker, on its job for 11111111"), (False, "nothing")):
        queue = QueueDocument([job], 0, alive, "")
        document = StatusDocument(0.0, (), queue, State(""), {}, {}, "")
        assert line in document.text().splitlines()[0]
        assert ("waiting  11111111 lost: its worker died" in document.text()) is not alive


def test_a_search_is_proposed_of_what_is_likely_and_not_already_named() -> None:
    def doubt(metric: str, seen_at: str, probability: float) -> Doubt:
        return Doubt(
            "s", "t", metric, ("a" * 40, seen_at), seen_at, probability, 1, "s", 1, "e" * 40
        )

    named: Any = SimpleNamespace(likeliest="b" * 40, is_named=True, explains=lambda *_: False)
    doubts = (
        doubt("loss", "d" * 40, 0.4), doubt("time", "c" * 40, 0.5), doubt("time", "d" * 40, 0.1),
        doubt("size", "b" * 40, 0.9), doubt("rss", "c" * 40, 0.09),
    )  # fmt: skip
    state: Any = SimpleNamespace(doubts=doubts, standings=(), in_force=[named])
    expected = [
        f"`celedger bisect {'e' * 12}..{bad * 12} --suite s --task t --metric {metric}` "
        f"settles whether {metric} got worse"
        for bad, metric in (("c", "time"), ("d", "loss"))
    ]
    assert words.searches(state, []) == expected
    answered = {"key": ("s", "t", "time"), "bad": "c" * 40, "status": "nothing-changed"}
    bisect: Any = SimpleNamespace(**answered)
    assert words.searches(state, [bisect]) == expected[1:], "proposed for ever"
    bisect.key, bisect.bad = ("s", "t", "loss"), "e" * 40
    bisect.status, bisect.culprits = "found", ("d" * 40,)
    assert words.searches(state, [bisect]) == expected[:1], "a longer range has its commit"


def test_what_one_cause_explains_is_not_searched_again() -> None:
    """After `val_loss` had its commit, `val_loss_area` was to be searched in the same range; what
    another kind of metric did there may have another commit."""
    among = ("a" * 40, "b" * 40, "c" * 40)
    row = IncidentMetric("s", "t", "val_loss", 1.0, 2.0, 1.0, 0.9, 1.1)
    named = Incident(
        "1" * 8, "metric", "open", (row,), (among[1],), among[1], 0.99, among[2], bisect="B"
    )
    speed = row._replace(name="step_time", kind="speed")
    other = row._replace(task="u")
    for own, metric, kind, is_searched in (
        (row, "val_loss_area", "quality", False), (row, "memory_growth", "memory", True),
        (speed, "step_cpu_time", "work", False), (speed, "val_loss", "quality", True),
        (other, "val_loss", "quality", False), (other, "val_loss_area", "quality", True),
    ):  # fmt: skip
        doubt = Doubt("s", "t", metric, among, among[2], 0.9, 1.0, "", 1.0, "e" * 40, kind=kind)
        known = State("", incidents=(named._replace(metrics=(own,)),), doubts=(doubt,))
        assert bool(words.searches(known, [])) is is_searched, metric
        assert words.searches(known._replace(incidents=()), [])


def test_the_next_search_is_of_what_is_declared_and_was_not_searched() -> None:
    """Telemetry was searched before what the suite declares, and a search that ended without a
    commit was proposed for ever."""

    def incident(name: str, *, declared: bool = True) -> Incident:
        row = IncidentMetric("s", "t", name, 1.0, 2.0, 1.0, 0.9, 1.1, declared=declared)
        return Incident(
            name[0] * 8, "metric", "open", (row,), ("a" * 40, "b" * 40), "b" * 40, 0.5, "b" * 40,
            known_good="c" * 40,
        )  # fmt: skip

    doubt = Doubt("s", "t", "acc", ("a" * 40, "b" * 40), "b" * 40, 0.9, 1.0, "", 1.0, "e" * 40)
    rss, loss, flops = incident("rss", declared=False), incident("loss"), incident("flops")
    known = State("", incidents=(rss, loss, flops), doubts=(doubt,))
    bisects: list[Any] = []
    ledger: Any = SimpleNamespace(bisects=lambda: bisects)
    answers = []
    for _ in range(6):
        search = words.next_search(known, (), ledger)
        answers.append(search.split()[2].rstrip("`"))
        name = next((n for n in ("loss", "flops", "rss") if n[0] * 8 in answers[-1]), "acc")
        ends = {"good": "c" * 40, "bad": "b" * 40}
        bisects.append(SimpleNamespace(key=("s", "t", name), status="undecided", **ends))
    last = "l" * 8
    assert answers == [last, "f" * 8, f"{'e' * 12}..{'b' * 12}", "r" * 8, last, last]


def test_what_a_crash_hides_is_asked_until_its_noise_is_known() -> None:
    """The commit before a crash had the one seed of its task: a slowdown stayed hidden, for no
    command was proposed that told the noise of a step."""
    row = IncidentMetric("s", "t", "", *(math.nan,) * 5)
    crash = Incident(
        "c" * 8, "crash", "open", (row,), ("b" * 40,), "b" * 40, 1.0, "b" * 40, parent="a" * 40
    )
    trials: list[Any] = [SimpleNamespace(trial=SimpleNamespace(seed=0))]
    ledger: Any = SimpleNamespace(bisects=list, trials=lambda **_: trials)
    task: Any = SimpleNamespace(suite="s", name="t", seeds=(0,))
    noise = MetricNoise("s", "t", "step_time", 0.1, 0, is_exact=False, session=0.0)
    known = State("", incidents=(crash,), noise=(noise,))
    assert words.next_search(known, [task], ledger).startswith("`celedger check aaaaaaaaaaaa ")
    for each in (noise._replace(freedom=4), noise._replace(declared=False)):
        assert words.next_search(known._replace(noise=(each,)), [task], ledger) == ""
    trials *= 5
    assert words.next_search(known, [task], ledger) == "", "proposed for ever"


def test_show_prints_the_newest_answer_of_each_command(make_commits: Commits) -> None:
    commit, sha = make_commits(1)[0], make_commits(1)[0].sha
    findings = [
        FindingRecord(str(i), "signature", "lab", "mlp", sha, "", command, 1.0 + i, headline, {})
        for i, (command, headline) in enumerate(
            [("same mlp", "956 operators"), ("watch mlp", "quiet"), ("same mlp", "953 operators")]
        )
    ]
    rows = CommitRows(commit, (), (), tuple(findings))
    assert "953 operators" in rows.text() and "956 operators" not in rows.text()
    assert "quiet" in rows.text() and len(answer_of(rows)["findings"]) == 3


def test_a_floor_above_the_level_is_told_in_its_unit() -> None:
    """`less than 955 % does not count`, of 1024 B."""
    small = MetricStanding(
        "lab", "mlp", "memory_growth", Standing.SAME, True, level=107.0, value=110.2, low=1.0,
        high=5.0, smallest=2.0, floor=1024.0, unit="B",
    )  # fmt: skip
    assert check._sensitivity(small) == "+3.0 %; less than 1024 B does not count"


def test_status_lists_the_likeliest_suspicion_of_a_metric() -> None:
    """Five lines of three metrics, two of them with 4 % and 13 %."""
    doubts = tuple(
        Doubt("s", "t", metric, (sha * 40,), sha * 40, probability, 0.5, "s", 1.0, "e" * 40)
        for metric, sha, probability in (
            ("step_time", "a", 0.84), ("step_time", "b", 0.04), ("acc", "b", 0.13),
            ("loss", "b", 0.5),
        )
    )  # fmt: skip
    queue = QueueDocument([], 0, False, "")
    text = StatusDocument(0.0, (), queue, State("", doubts=doubts), {}, {}, "").text()
    assert 0 < text.index("(84 %)") < text.index("(50 %)") < text.index("(13 %)")
    assert "(4 %)" not in text
