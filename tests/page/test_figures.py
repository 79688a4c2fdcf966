"""The structure of the pictures: what is marked, what is named, and that nothing overlaps."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from conftest import matrix_after
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from readable import assert_readable
from views.conftest import NEW, OLD, derivation

from celedger.base.errors import CeledgerError, MachineError, UsageError
from celedger.base.model import (
    BaselineAct,
    BaselineRecord,
    BisectRecord,
    Commit,
    Direction,
    EpochReport,
    Footprint,
    Kind,
    Mark,
    Metric,
    Outcome,
    OutcomeKind,
    Purpose,
    StepValues,
    Trial,
)  # fmt: skip
from celedger.judge.bisection import Report
from celedger.judge.bisection.bisect_report import Other
from celedger.judge.state import state_of
from celedger.page import bisect_picture, curves, drift_picture, marks
from celedger.views import picture
from celedger.views.bisect import effect_text, shares_of

Commits = Callable[..., list[Commit]]
TASK = ("core", "mlp_digits")


def draw(
    history: Any,
    made: list[Commit] | None = None,
    metric: str | None = None,
    axis: list[Commit] | None = None,
    title: tuple[str, str] = TASK,
) -> Figure:
    """Draw the drift of a made-up ledger along the line of some commits [default: all]."""
    line = history.ledger.commits() if made is None else made
    known = derivation(history.ledger, line)
    return drift_picture.draw(known, state_of(known), title, metric, axis)


def lines(axes: Axes, label: str) -> list[Any]:
    return [line for line in axes.lines if line.get_label() == label]


def trials(axes: Axes) -> list[float]:
    return [y for line in lines(axes, "one trial") for y in line.get_ydata()]


def marked(axes: Axes, state: str) -> list[int]:
    """Return the positions of the commits that are drawn in this state, with its colour and
    shape."""
    colour, shape = marks.STATES[state]
    own = lines(axes, state)
    assert all((line.get_color(), line.get_marker()) == (colour, shape) for line in own)
    return sorted(int(x) for line in own for x in line.get_xdata())


@pytest.mark.parametrize("n", matrix_after(3, [1, 13, 500, 2, 5, 12, 24, 60]))
def test_tick_labels_never_overlap(history: Any, make_commits: Commits, n: int) -> None:
    made = history.commits(make_commits(n))
    for commit in made[:: max(1, n // 20)]:
        history.trial(commit, {"val_loss": 0.4})
    figure = draw(history, made)
    assert_readable(figure)
    ticks = figure.axes[0].get_xticks()
    assert ticks[0] == 0
    assert ticks[-1] == n - 1


def test_drift_marks_all_there_is_to_know(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(12))
    history.walk(made, step=7, change=4, failing=(9,), untestable=(2,))
    history.ledger.record_bisect(
        BisectRecord(
            "01KB", "core", "mlp_digits", "val_loss", made[0].sha, made[11].sha, (made[7].sha,),
            0.97, "found", 1.0,
        )
    )  # fmt: skip
    figure = draw(history, made)
    (axes,) = figure.axes
    assert axes.get_ylabel() == "val_loss\n← lower is better"
    assert figure.get_suptitle() == "core/mlp_digits · val_loss"
    dots = trials(axes)
    assert len(dots) == 31  # 10 commits × 3 + the trial that ran at the failing one
    assert [list(line.get_xdata()) for line in lines(axes, "mean")] == [
        [0, 1], [3], [4, 5, 6, 7, 8, 9, 10, 11],
    ]  # fmt: skip
    assert [list(line.get_xdata()) for line in lines(axes, "failed or not finite")] == [[9]]
    assert [list(line.get_xdata()) for line in lines(axes, "untestable")] == [[2]]
    assert marked(axes, "worse") == [7, 8, 9, 10, 11]
    assert marked(axes, "unchanged") == [0, 1, 3, 4, 5, 6]
    named = [t.get_text() for t in axes.texts]
    assert f"{made[7].sha[:8]} first bad (97 %)" in named
    assert "torch 2.12.0 → 2.13.0" in named
    assert_readable(figure)


def test_the_axis_is_that_of_history_and_unmeasured_commits_are_gaps(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(10))
    for position in (1, 2, 7):
        history.trial(made[position], {"val_loss": 0.4})
    (axes,) = draw(history, made).axes
    assert axes.get_xticks()[-1] == 8  # nothing is known of the first commit
    assert [list(line.get_xdata()) for line in lines(axes, "mean")] == [[0, 1], [6]]
    (shaded,) = [c for c in axes.collections if c.get_label() == "not measured"]
    extents = [path.get_extents() for path in shaded.get_paths()]
    assert [(box.x0, box.x1) for box in extents] == [(1.5, 5.5), (6.5, 8.5)]
    assert "3 commits, 3 trials; 6 of 9 commits not measured" in axes.get_title("left")
    low, high = axes.get_ylim()
    assert low < 0.4 < high


@pytest.mark.parametrize(
    ("levels", "worse", "better"),
    matrix_after(1, [
        ([0.4, 0.5, 0.4], range(8, 16), ()), ([0.5, 0.4, 0.4], (), range(8, 24)),
        ([0.4, 0.5, 0.5], range(8, 24), ()),
    ]),
)  # fmt: skip
def test_the_colour_says_what_the_state_says(
    history: Any, make_commits: Commits, levels: list[float], worse: range, better: range
) -> None:
    made, draw_value = history.commits(make_commits(24)), random.Random(1)
    for i, commit in enumerate(made):
        for seed in range(3):
            value = draw_value.gauss(levels[i // 8], 0.002)
            history.trial(commit, {"val_loss": value}, seed=seed)
    (axes,) = draw(history, made).axes
    assert marked(axes, "worse") == list(worse)
    assert marked(axes, "better") == list(better)
    rest = set(range(24)) - {*worse, *better}
    assert marked(axes, "unchanged") == sorted(rest)
    known = state_of(derivation(history.ledger, made))
    named = " ".join(text.get_text() for text in axes.texts)
    for incident in known.incidents:
        assert incident.id in named
        assert (f"mends {incident.id}" in named) == (levels[2] < levels[1])
    history.ledger.record_baseline(BaselineRecord(
        "01KP", BaselineAct.ACCEPT, made[8].sha, "core", "", "", "Ada", "meant so", 1.0
    ))  # fmt: skip
    (axes,) = draw(history, made).axes
    assert marked(axes, "worse") == []
    lost = [*range(8, 16), *(range(16, 24) if levels[2] == 0.5 else ())]
    assert marked(axes, "accepted") == (lost if levels[0] < levels[1] else [])


def test_without_repeats_nothing_is_called_unchanged(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(4))
    for commit, value in zip(made, (0.4, 0.41, 0.39, 0.4), strict=True):
        history.trial(commit, {"val_loss": value})
    (axes,) = draw(history, made).axes
    assert marked(axes, "undecided") == [0, 1, 2, 3]
    assert marked(axes, "unchanged") == []


def test_a_commit_with_one_seed_does_not_fall_to_that_seed(
    history: Any, make_commits: Commits
) -> None:
    """Seeds repeat bit by bit and differ by a tenth: commit 4, with seed 1 alone, is no better."""
    made = history.commits(make_commits(8))
    own = {0: 0.441237, 1: 0.361238, 2: 0.401239}
    for i, commit in enumerate(made):
        for seed in (1,) if i == 4 else (0, 1, 2, 0):
            history.trial(commit, {"val_loss": own[seed]}, seed=seed)
    (axes,) = draw(history, made).axes
    (mean,) = lines(axes, "mean")
    mean_of_seeds = [mean.get_ydata()[i] for i in range(8)]
    assert max(mean_of_seeds) - min(mean_of_seeds) < 0.011  # seed 1 alone lies .04 lower
    (level,) = lines(axes, "level")
    values = [y for y in level.get_ydata() if not math.isnan(y)]
    assert max(values) - min(values) < 0.005
    assert marked(axes, "unchanged") == list(range(8))


def test_where_bits_repeat_the_level_is_that_of_the_steps(
    history: Any, make_commits: Commits
) -> None:
    """A rise of one commit, thrice the level, is no outlier where equal seeds tell it."""
    made = history.commits(make_commits(6))
    own = {0: 0.401237, 1: 0.400238, 2: 0.400939}
    for i, commit in enumerate(made):
        for seed in (0, 1, 2, 0):
            history.trial(commit, {"val_loss": own[seed] * (3 if i == 3 else 1)}, seed=seed)
    (axes,) = draw(history, made).axes
    assert marked(axes, "worse") == [3]
    (level,) = lines(axes, "level")
    assert max(y for y in level.get_ydata() if not math.isnan(y)) == pytest.approx(1.2, rel=0.05)


def test_a_new_environment_says_what_it_moved(history: Any, make_commits: Commits) -> None:
    made, draw_value = history.commits(make_commits(16)), random.Random(1)
    old, new = history.ledger.environments().values()
    for i, commit in enumerate(made):
        for environment, level in ((old, 0.4), (new, 0.412)):
            if (environment is old and i < 8) or (environment is new and i >= 7):
                for seed in range(4):
                    value = draw_value.gauss(level, 0.0008)
                    history.trial(commit, {"val_loss": value}, seed=seed, environment=environment)
    (axes,) = draw(history, made).axes
    (text,) = [t.get_text() for t in axes.texts if "torch" in t.get_text()]
    assert text.startswith("torch 2.12.0 → 2.13.0: +")
    assert marked(axes, "worse") == []


def test_environments_used_in_turns_have_a_whole_line_each(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(12))
    one, other = history.ledger.environments().values()
    for i, commit in enumerate(made):
        if i != 6:
            history.trial(commit, {"val_loss": 0.4}, environment=other if i % 2 else one)
    figure = draw(history, made)
    (axes,) = figure.axes
    means = {
        name: [list(line.get_xdata()) for line in lines(axes, f"mean, {name}")]
        for name in ("first environment", "torch 2.12.0 → 2.13.0")
    }
    assert list(means.values()) == [[[0, 2, 4], [8, 10]], [[1, 3, 5], [7, 9, 11]]]
    assert not axes.texts  # an environment in turns did not change at one commit
    assert_readable(figure)


def test_labels_lie_over_no_line(history: Any, make_commits: Commits) -> None:
    made, own, level = history.commits(make_commits(60)), random.Random(2), 0.4
    for i, commit in enumerate(made):
        level *= 1.0 if i % 6 else 1.2 if i // 6 % 2 else 1 / 1.1
        for seed in range(3):
            history.trial(commit, {"val_loss": own.gauss(level, 0.002)}, seed=seed)
    figure = draw(history, made)
    assert_readable(figure)
    (axes,) = figure.axes
    labels = [text for text in axes.texts if text.get_text()]
    assert len(labels) > 4
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for label in labels:
        box = Text.get_window_extent(label, renderer).padded(-1)
        for line in axes.lines:
            assert not line.get_window_extent(renderer).overlaps(box), label.get_text()
        for arrow in (text.arrow_patch for text in axes.texts if text.arrow_patch is not None):
            assert not arrow.get_window_extent(renderer).overlaps(box), label.get_text()


def test_results_that_were_reused_are_drawn_and_are_no_trials(
    history: Any, make_commits: Commits
) -> None:
    """Commit 1 repeats 0."""
    made = history.commits(make_commits(3))
    for commit, value in ((made[0], 0.4), (made[2], 0.5)):
        for seed in range(3):
            history.trial(commit, {"val_loss": value}, seed=seed)
    recipe, environment = history.task.recipe, next(iter(history.ledger.environments()))
    for record in history.ledger.trials():
        history.ledger.record_footprint(record.trial.ulid, Footprint((b"model.py",)), "0" * 64)
    reusable = history.ledger.reusable_trials(recipe=recipe, environment=environment, seed=0)
    source = next(trial for trial in reusable if trial.commit == made[0].sha)
    trial = Trial(f"01KD{1:022d}", made[1].sha, recipe, environment, 0, Purpose.RUN, 9.0, "")
    history.ledger.reuse_trial(trial, source, [])
    (axes,) = draw(history, made, "val_loss").axes
    assert axes.get_title("left") == "3 commits, 6 trials"


def test_bytes_are_shown_in_mebibytes(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(3))
    for commit in made:
        history.trial(commit, {"peak_rss": 300 * 2.0**20})
    (axes,) = draw(history, metric="peak_rss").axes
    assert "peak_rss (MiB)" in axes.get_ylabel()
    assert list(lines(axes, "mean")[0].get_ydata()) == [300, 300, 300]


def test_hindered_trials_do_not_count_for_speed(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(2))
    for commit in made:
        history.trial(commit, {"duration": 10.0, "val_loss": 1.0})
    history.trial(made[1], {"duration": 90.0, "val_loss": 1.0}, marks=(Mark.THROTTLED,))
    for metric, values in (("duration", [10.0, 10.0]), ("val_loss", [1.0] * 3)):
        (axes,) = draw(history, metric=metric).axes
        assert trials(axes) == values


def test_values_that_are_not_finite_stand_with_the_failures(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(2))
    history.trial(made[0], {"val_loss": math.inf})
    history.trial(made[1], {}, kind=OutcomeKind.OOM)
    history.trial(made[1], {}, seed=1, kind=OutcomeKind.INTERRUPTED)
    (axes,) = draw(history).axes
    assert [list(x.get_xdata()) for x in lines(axes, "failed or not finite")] == [[0, 1]]


def test_a_diverged_commit_does_not_flatten_the_rest(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(6))
    for i, commit in enumerate(made):
        for seed in range(2):
            history.trial(commit, {"val_loss": (7e5 if i == 3 else 0.4) + seed / 100}, seed=seed)
    figure = draw(history)
    assert figure.axes[0].get_yscale() == "log"
    assert_readable(figure)


def test_an_edited_suite_begins_a_level_of_its_own(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(3))
    history.trial(made[0], {"val_loss": 9.0})
    other = history.task._replace(files="edited")
    history.ledger.record_task(other)
    for commit in made:
        history.trial(commit, {"val_loss": 0.4}, task=other)
    (axes,) = draw(history, made).axes
    assert trials(axes) == [9.0, 0.4, 0.4, 0.4]
    assert len(lines(axes, "level")) == 2
    assert any("the suite was edited" in text.get_text() for text in axes.texts)


def test_curves_are_small_multiples(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(5))
    history.walk(made, step=3)
    shas = [made[0].sha, made[3].sha]
    chart = curves.read_chart(history.ledger, TASK, shas)
    assert chart.title == "core/mlp_digits"
    assert chart.subject == "2 commits, up to 3 trials each: mean, with the lowest and highest"
    assert [metric.name for metric, _ in chart.panels] == ["val_loss", "val_accuracy"]
    figure = curves.draw(chart)
    first, second = figure.axes
    assert first.get_xlabel() == second.get_xlabel() == "epoch"
    assert len(first.lines) == 2
    (legend,) = figure.legends
    assert legend.get_texts()[0].get_text() == f"{made[0].sha[:8]}  {made[0].subject}"
    assert_readable(figure)


def test_the_curves_of_one_commit_are_its_environments(history: Any, make_commits: Commits) -> None:
    (commit,) = history.commits(make_commits(1))
    for environment, last in ((OLD, 0.5), (NEW, 0.6), (OLD, 0.4)):
        values = [1.0, last]
        history.trial(commit, {"val_loss": last}, environment=environment,
                      curves={"val_loss": values})  # fmt: skip
    chart = curves.read_chart(history.ledger, TASK, [commit.sha])
    assert chart.subject.startswith("2 environments, up to 2 trials each")
    figure = curves.draw(chart)
    ends = [line.get_ydata()[-1] for line in figure.axes[0].lines]
    assert ends == [pytest.approx(0.45), pytest.approx(0.6)]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == [f"{commit.sha[:8]}  {commit.subject}", "torch 2.12.0 → 2.13.0"]
    assert_readable(figure)


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_spread_of_few_epochs_is_seen_whole(
    history: Any, make_commits: Commits, epochs: int
) -> None:
    made = history.commits(make_commits(2))
    for number, commit in enumerate(made):
        for seed in range(3):
            values = [0.4 + 0.1 * number + 0.01 * seed + e for e in range(epochs)]
            history.trial(commit, {"val_loss": values[-1]}, seed=seed, curves={"val_loss": values})
    chart = curves.read_chart(history.ledger, TASK, [commit.sha for commit in made])
    (axes,) = curves.draw(chart).axes
    spreads = [c.get_segments() for c in axes.collections if hasattr(c, "get_segments")]
    heights = [[high - low for (_, low), (_, high) in own] for own in spreads]
    assert heights == [[pytest.approx(0.02)] * epochs] * 2
    ends = [tuple(point) for own in spreads for segment in own for point in segment]
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert all(left < x < right and bottom < y < top for x, y in ends)
    assert len({x for x, _ in ends}) == 2  # commits of one epoch do not hide each other


def test_the_longest_names_still_fit(history: Any, make_commits: Commits) -> None:
    names = [f"{letter * 24}/{letter * 39}" for letter in "abc"]
    metrics = tuple(Metric(name, "B", Direction.LOWER, Kind.MEMORY) for name in names)
    task = history.task._replace(name="t" * 60, metrics=metrics)
    history.ledger.record_task(task)
    (commit,) = history.commits(
        [make_commits(1)[0]._replace(subject="A subject that goes on and on " * 9)]
    )
    series = {name: [3e8, 3.1e8, 3.2e8] for name in names}
    history.trial(commit, dict.fromkeys(names, 300000000.0), curves=series, task=task)
    assert_readable(draw(history, metric=names[0], title=("core", task.name)))
    chart = curves.read_chart(history.ledger, (task.suite, task.name), [commit.sha])
    assert len(chart.panels) == 3
    assert_readable(curves.draw(chart))


def test_a_curve_ends_where_it_stopped_being_finite(history: Any, make_commits: Commits) -> None:
    (commit,) = history.commits(make_commits(1))
    series = {"val_loss": [2.0, 1.0, math.nan, math.inf]}
    history.trial(commit, {}, curves=series, kind=OutcomeKind.FAILED)
    figure = curves.draw(curves.read_chart(history.ledger, TASK, [commit.sha]))
    (axes,) = figure.axes
    assert list(lines(axes, "not finite")[0].get_xdata()) == [2, 3]


def test_curves_say_when_they_do_not_compare(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(8))
    history.walk(made, step=9, change=2)
    chart = curves.read_chart(history.ledger, TASK, [made[0].sha, made[3].sha])
    assert chart.subject.endswith("; not comparable: their environments differ")
    with pytest.raises(UsageError, match="8 commits are too many"):
        curves.read_chart(history.ledger, TASK, [commit.sha for commit in made])
    with pytest.raises(UsageError, match="known: val_loss, val_accuracy"):
        curves.read_chart(history.ledger, TASK, [made[0].sha], ["duration"])


LOSS = Metric("val_loss", "", Direction.LOWER, Kind.QUALITY)


def searched(commits: list[Commit], culprit: int, **more: Any) -> Report:
    """A report that names commits[culprit]; the good end is commits[0], at position -1."""
    n = len(commits) - 1
    sure = tuple(0.97 if p == culprit else 0.03 / (n - 1) for p in range(1, n + 1))
    trials = ((0, 0.41), (n, 0.46), (culprit, 0.455), (culprit - 1, 0.412), (2, math.nan))
    flat = (1 / n,) * n
    steps = ((0, flat), (n, flat), (culprit, flat), (culprit - 1, sure))
    values: dict[str, Any] = {
        "id": "01KB", "ended": 1.0, "suite": "core", "task": "mlp_digits", "metric": "val_loss",
        "crash": "", "improved": False, "good": commits[0], "bad": commits[-1],
        "commits": tuple(commits[1:]), "status": "found", "culprits": (commits[culprit],),
        "probability": 0.97, "no_change": 0.0, "confidence": 0.95, "level": 0.41,
        "effect": 0.047, "low": 0.04, "high": 0.05, "trials": 5, "stopped": 0, "stored": 0,
        "epochs": 5, "tried": 5, "seconds": 1.0, "still": 0.0, "posterior": sure,
        "readings": tuple((p - 1, value) for p, value in trials), "untestable": (),
        "steps": tuple((p - 1, chances) for p, chances in steps), "narrowing": (), "others": (),
        "compared": (commits[culprit - 1].sha, commits[culprit].sha), "between": None,
        "ran": commits[culprit].sha,
    }  # fmt: skip
    return Report(**values | more)


def drawn(*reports: Report) -> Figure:
    return bisect_picture.draw(reports, {"val_loss": LOSS})


@pytest.mark.matrix
@pytest.mark.parametrize(("n", "culprit"), [(4, 3), (40, 23), (600, 600)])
def test_the_picture_of_a_bisect_names_the_culprit(
    make_commits: Commits, n: int, culprit: int
) -> None:
    made = make_commits(n + 1)
    figure = drawn(searched(made, culprit, untestable=(0,)))
    values, probability = figure.axes
    bars = probability.patches[:n]
    assert [bar.get_facecolor()[:3] for bar in bars].count(
        matplotlib.colors.to_rgb(picture.RED)
    ) == 1
    title = values.get_title("left")
    assert f"first bad commit {made[culprit].sha[:8]} (97.0 %), 0.4100 → 0.4570 (+11.5 %" in title
    assert title.endswith(made[culprit].subject)
    assert_readable(figure)


def test_a_bisect_may_end_in_a_set_or_in_nothing(make_commits: Commits) -> None:
    made = make_commits(9)
    for status in ("set", "undecided", "nothing-changed"):
        figure = drawn(searched(made, 4, status=status, level=math.nan))
        assert "no first bad commit" in figure.axes[0].get_title("left")
    with pytest.raises(CeledgerError, match="no candidates to draw"):
        drawn(searched(made, 4, posterior=()))


def test_a_crash_is_bisected_without_a_metric(make_commits: Commits) -> None:
    readings = ((-1, 0.0), (7, 1.0), (3, 1.0))
    crash = searched(make_commits(9), 4, metric="", crash="failed", readings=readings)
    figure = drawn(crash)
    assert figure.get_suptitle() == "core/mlp_digits · crash"
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["runs", "crashes"]
    assert_readable(figure)


def test_a_crash_has_a_low_panel_and_a_mark_for_each_trial(make_commits: Commits) -> None:
    readings = ((-1, 0.0), (-1, 0.0), (-1, 0.0), (7, 1.0), (3, 1.0), (3, 1.0))
    figure = drawn(searched(make_commits(9), 4, metric="", crash="failed", readings=readings))
    figure.draw_without_rendering()
    upper, lower = figure.axes
    assert upper.get_window_extent().height < lower.get_window_extent().height
    marks = [
        tuple(point)
        for line in upper.lines
        for point in upper.transData.transform(line.get_xydata())
    ]
    assert len(marks) == len(readings)
    for one, other in itertools.combinations(marks, 2):
        assert math.dist(one, other) > 5, "a mark hides another"
    assert f"{len(readings)} trials" in upper.get_title("left")


def test_several_metrics_are_drawn_one_below_the_other(make_commits: Commits) -> None:
    made = make_commits(9)
    figure = drawn(searched(made, 4), searched(made, 6, untestable=(0, 1)))
    assert figure.get_suptitle() == "core/mlp_digits · val_loss, val_loss"
    assert len(figure.axes) == 4
    assert_readable(figure)


def test_a_svg_is_the_same_bytes_each_time(
    history: Any, make_commits: Commits, tmp_path: Path
) -> None:
    made = history.commits(make_commits(6))
    history.walk(made, step=3, change=2)
    one, two = (
        picture.save(draw(history), tmp_path / name).read_bytes() for name in ("a.svg", "b.svg")
    )
    assert one == two
    assert b"<dc:date>" not in one


def test_a_picture_leaves_the_users_settings_alone(
    history: Any, make_commits: Commits, tmp_path: Path
) -> None:
    (commit,) = history.commits(make_commits(1))
    history.trial(commit, {"val_loss": 0.4})
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 40.0, "text.usetex": True}):
        drawn = draw(history)
        picture.save(drawn, tmp_path / "new" / "a.PNG")
        assert matplotlib.rcParams["font.size"] == 40.0
    assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "new" / "a.PNG").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.PNG"]


def test_what_cannot_be_drawn_is_said_in_a_sentence(
    history: Any, make_commits: Commits, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"PNG or SVG.*a\.png"):
        picture.check_suffix(tmp_path / "a.jpeg")
    (commit,) = history.commits(make_commits(1))
    with pytest.raises(CeledgerError, match="celedger run"):
        draw(history)
    history.trial(commit, {"val_loss": 0.4})
    with pytest.raises(CeledgerError, match="measured peak_rss"):
        draw(history, metric="peak_rss")
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="cannot write"):
        picture.save(draw(history), tmp_path / "file" / "a.png")


def test_steps_are_joined_over_epochs(history: Any, make_commits: Commits, tmp_path: Path) -> None:
    made = history.commits(make_commits(2))
    for number, commit in enumerate(made):
        ulid = history.trial(commit, {}, running=True)
        history.ledger.append_epochs(
            ulid,
            [
                EpochReport(epoch, {}, steps={
                    "loss": StepValues(0, tuple(2.0 - epoch + 1e-3 * i for i in range(400))),
                    "step_time": StepValues(0, (math.nan, *[0.01 + number / 100] * 399)),
                })
                for epoch in range(3)
            ],
        )  # fmt: skip
        history.ledger.finish_trial(ulid, Outcome(OutcomeKind.OK, 1.8e9), {"val_loss": 1.0})
    chart = curves.read_chart(history.ledger, TASK, [c.sha for c in made], (), "step")
    assert [metric.name for metric, _ in chart.panels] == ["loss", "step_time"]
    assert chart.subject == "2 commits"
    loss, step_time = (curves[0] for _, curves in chart.panels)
    assert list(loss.positions) == list(range(1200))
    assert (loss.mean[400], loss.low[1199]) == (1.0, pytest.approx(0.399))
    assert [i for i, x in enumerate(step_time.mean) if math.isnan(x)] == [0, 400, 800]
    figure = curves.draw(chart)
    assert_readable(figure)
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "step_time (ms)"]
    one = curves.read_chart(history.ledger, TASK, [made[0].sha], ["loss"], "step")
    assert picture.save(curves.draw(one), tmp_path / "s.svg").exists()
    for shas, names, error in (
        ([made[0].sha], ["x"], UsageError), ([], [], UsageError), (["0" * 40], [], CeledgerError),
    ):  # fmt: skip
        with pytest.raises(error):
            curves.read_chart(history.ledger, TASK, shas, names, "step")


def test_an_interval_has_one_scale(make_commits: Commits) -> None:
    made = make_commits(12)
    wide = searched(made, 7, level=450.0, effect=545000.0, low=-545504.0, high=545950.0)
    text = effect_text(wide, "")
    assert text.endswith("(+545000; 95 %: -545504 … +545950)")
    assert effect_text(searched(made, 7, level=1.0, effect=0.1, low=0.05, high=0.2), "").endswith(
        "(+10.0 %; 95 %: +5.0 % … +20.0 %)"
    )
    exact = searched(made, 7, level=1.0, effect=0.1, low=0.1, high=0.1)
    assert effect_text(exact, "").endswith("(+10.0 %)")  # and not "+10.0 % … +10.0 %"


def test_another_step_has_at_most_what_the_named_commit_leaves(make_commits: Commits) -> None:
    made = make_commits(12)
    other = Other(made[2], made[3], 0.02, 0.25, 0.4, -0.01, 0.06)  # 0.05 lies between the ends
    text = "\n".join(shares_of(searched(made, 7, others=(other,))))
    assert "perhaps     up to 20 % of the difference lies in" in text  # named: 0.04 at least
    assert not shares_of(searched(made, 7, others=(other,), low=0.05))
    back = Other(made[2], made[3], -0.0005, 0.9, -0.01, -0.00055, -0.00045)
    (line,) = shares_of(searched(made, 7, others=(back,)))
    assert " moves 1 % of it back" in line  # and not "1 to 1 %"
    (line,) = shares_of(searched(made, 7, others=(replace(back, probability=0.23),)))
    assert line.endswith(" moves a part of it back (23.0 % sure)")  # and not "49 to 174 %"
