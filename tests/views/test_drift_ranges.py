"""`drift` on histories with gaps: the stated set holds every commit that may have made the change,
measured or not, and text, JSON and picture agree on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from celedger.judge.drift.level_changes import Course, LevelStep, courses

from celedger.base.model import Commit, Footprint, Mark, OutcomeKind, Trial, Why
from celedger.repo import Ancestry
from celedger.views import drift_picture
from celedger.views.document import document
from celedger.views.drift import CourseList
from celedger.views.noise import NoiseList, TaskNoise

Commits = Callable[..., list[Commit]]


def measure(history: Any, commits: Sequence[Commit], values: Sequence[float], **more: Any) -> None:
    """Three equal seeds at each commit: every change of value is a fact."""
    for commit, value in zip(commits, values, strict=True):
        for seed in range(3):
            history.trial(commit, {"val_loss": value}, seed=seed, **more)


def of_loss(history: Any, commits: Sequence[Commit], lineage: Sequence[Commit]) -> list[Course]:
    return courses(history.ledger, commits, lineage=lineage, metric="val_loss")


def only_step(found: Sequence[Course]) -> LevelStep:
    (step,) = [step for course in found for step in course.steps]
    return step


def test_every_unmeasured_commit_back_to_the_last_good_one_is_in_the_set(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(24))
    measured = made[::6]
    measure(history, measured, [0.4, 0.4, 0.5, 0.5])
    found = of_loss(history, measured, made)
    step = only_step(found)
    assert step.among == tuple(made[7:13])
    assert (step.start, step.end, step.seen_at) == (made[6], made[12], made[12])
    assert (step.unmeasured, step.between) == (5, 6)
    short = [c.sha[:8] for c in made]
    text = CourseList(found).text(100)
    assert f"between {short[6]} and {short[12]}, 6 commits, 5 not measured" in text
    command = f"celedger bisect {made[6].sha[:12]}..{made[12].sha[:12]}"
    assert f"  {command} --suite core --task mlp_digits --metric val_loss\n" in text
    assert made[12].subject not in text, "nobody says that it was this one"
    (row,) = document(**CourseList(found).json())["courses"][0]["steps"]  # type: ignore[index,call-overload]
    assert row["among"] == [c.sha for c in made[7:13]]
    assert (row["start"], row["end"], row["not_measured"]) == (made[6].sha, made[12].sha, 5)
    assert row["bisect"].startswith(command)


def test_a_change_between_neighbours_is_that_commits(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(12))
    measure(history, made, [0.4] * 7 + [0.5] * 5)
    found = of_loss(history, made, made)
    assert only_step(found).among == (made[7],)
    text = CourseList(found).text(160)
    assert made[7].subject in text
    assert "bisect" not in text


def test_the_name_of_a_grid_s_task_is_quoted(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(12))
    task = replace(history.task, name="net[size=small,norm=batch]")
    history.ledger.record_task(task)
    measure(history, made[::3], [0.4, 0.4, 0.5, 0.5], task=task)
    text = CourseList(of_loss(history, made[::3], made)).text()
    (command,) = [line for line in text.splitlines() if "celedger bisect" in line]
    assert "--task 'net[size=small,norm=batch]' --metric" in command


def test_an_improvement_is_searched_as_one(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(12))
    measure(history, made[::3], [0.5, 0.5, 0.4, 0.4])
    assert (
        "--metric val_loss --find improved" in CourseList(of_loss(history, made[::3], made)).text()
    )


def test_what_a_merge_brought_counts_and_what_was_there_before_does_not(
    history: Any, make_commits: Commits
) -> None:
    """0 - 1 - 2 - 3 - 6 - 7 - 8, where 4 and 5 branch off at 1 and come with the merge 6. The main
    line is measured but for 3 and 6; so is 4, aside."""
    made = make_commits(9)
    line = {4: (1,), 5: (4,), 6: (3, 5)}
    made = [
        replace(c, parents=tuple(made[p].sha for p in line[i])) if i in line else c
        for i, c in enumerate(made)
    ]
    history.commits(made)
    measured = [made[0], made[1], made[2], made[7], made[8]]
    measure(history, [*measured, made[4]], [0.4, 0.4, 0.4, 0.5, 0.5, 0.4])
    step = only_step(of_loss(history, measured, made))
    assert step.among == tuple(made[3:8])
    assert (step.start, step.end, step.unmeasured) == (made[2], made[7], 3)
    main_line = [c for i, c in enumerate(made) if i not in line or i == 6]
    assert main_line[4] == made[6]
    (axes,) = drift_picture.draw(
        history.ledger, "mlp_digits", "val_loss", commits=main_line, lineage=made
    ).axes
    (shaded,) = [c for c in axes.collections if c.get_label() == "got worse here (95 %)"]
    (box,) = [path.get_extents() for path in shaded.get_paths()]
    assert (box.x0, box.x1) == (2.5, 5.5)  # of 3, the merge 6, and 7


def test_commits_measured_only_in_another_environment_are_not_measured_in_this_one(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(12))
    new = history.ledger.environments()[1]
    measure(history, made[:4], [0.4] * 4)
    measure(history, made[4:8], [0.35] * 2 + [0.45] * 2, environment=new)
    measure(history, made[8:], [0.5] * 4)
    old_steps, new_steps = (course.steps for course in of_loss(history, made, made))
    assert [s.among for s in old_steps] == [tuple(made[4:9])]
    assert old_steps[0].unmeasured == 4
    assert [s.among for s in new_steps] == [(made[6],)]


def test_a_commit_that_diverged_or_failed_is_not_measured(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(8))
    measure(history, made[:3], [0.4] * 3)
    measure(history, made[3:4], [math.nan])
    history.trial(made[4], {}, kind=OutcomeKind.FAILED)
    measure(history, made[5:], [0.5] * 3)
    step = only_step(of_loss(history, made, made))
    assert (step.among, step.unmeasured) == (tuple(made[3:6]), 2)


def test_a_result_that_was_reused_counts_as_measured(history: Any, make_commits: Commits) -> None:
    """Commits 1 to 3 repeat 0, and 5 repeats 6: only 4 and 5 can have made the change."""
    made = history.commits(make_commits(9))
    measure(history, [made[0], *made[6:]], [0.4, 0.5, 0.5, 0.5])
    recipe = history.task.recipe
    environment = history.ledger.environments()[0].fingerprint
    for record in history.ledger.trials():
        history.ledger.record_footprint(record.trial.ulid, Footprint((b"model.py",)), "0" * 64)
    trials = history.ledger.reusable_trials(recipe=recipe, environment=environment, seed=0)
    by_commit = {trial.commit: trial for trial in trials}
    for place, of in ((1, 0), (2, 0), (3, 0), (5, 6)):
        trial = Trial(
            f"01KD{place:022d}", made[place].sha, recipe, environment, 0, Why.RUN, 9.0, ""
        )
        history.ledger.reuse_trial(trial, by_commit[made[of].sha], [])
    found = of_loss(history, made, made)
    step = only_step(found)
    assert (step.among, step.unmeasured) == (tuple(made[4:6]), 1)
    assert (step.start, step.end) == (made[3], made[5])
    assert "over 8 commits, 12 trials, 1 metric" in CourseList(found).text()
    figure = drift_picture.draw(history.ledger, "mlp_digits", "val_loss", commits=made)
    title = "8 commits, 12 trials; 1 of 9 commits not measured"
    assert figure.axes[0].get_title("left") == title


def test_the_picture_shows_the_gap_and_counts_as_the_text_does(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(24))
    measured = made[::6]
    measure(history, measured, [0.4, 0.4, 0.5, 0.5])
    history.trial(measured[3], {}, kind=OutcomeKind.FAILED)
    history.trial(measured[3], {"val_loss": math.nan}, seed=7)
    figure = drift_picture.draw(
        history.ledger, "mlp_digits", "val_loss", commits=measured, lineage=made
    )
    assert "one of 6 +25.0 % (> 99 %)" in [text.get_text() for text in figure.axes[0].texts]
    subtitle = figure.axes[0].get_title("left")
    assert subtitle == "4 commits, 12 trials, 2 failed or not finite"
    text = CourseList(of_loss(history, measured, made)).text()
    assert text.endswith("1 changed over 4 commits, 12 trials, 1 metric")


def test_a_task_is_shown_with_the_counts_of_its_picture(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(4))
    measure(history, made[:3], [0.4, 0.4, 0.5])
    history.trial(made[2], {"val_loss": 0.4}, seed=8, marks=(Mark.EARLY_STOPPED,))
    history.trial(made[3], {}, kind=OutcomeKind.FAILED)
    history.trial(made[3], {}, seed=1, kind=OutcomeKind.KILLED)
    figure = drift_picture.draw(history.ledger, "mlp_digits", "val_loss", commits=made)
    task = TaskNoise.of(history.ledger, "core", "mlp_digits")
    assert (task.trials, task.commits, task.seeds) == (9, 3, 3)
    assert "3 commits, 9 trials" in figure.axes[0].get_title("left")
    text = NoiseList([task]).text()
    assert "  9 trials, 3 seeds, 3 commits, environment" in text
    assert "over 3 commits, 9 trials" in CourseList(of_loss(history, made, made)).text()


def test_branches_alone_have_no_range_to_bisect(history: Any, make_commits: Commits) -> None:
    """1 - 2 and 3 - 4 are branches of 0, and only they were measured."""
    made = make_commits(5)
    made[3] = replace(made[3], parents=(made[0].sha,))
    history.commits(made)
    good, bad = ([made[i] for i in pair] for pair in ((1, 2), (3, 4)))
    measure(history, [*good, *bad], [0.4, 0.4, 0.5, 0.5])
    found = of_loss(history, [*good, *bad], made)
    step = only_step(found)
    assert (step.among, step.start) == ((made[3],), None)
    assert "celedger bisect" not in CourseList(found).text()


def test_ancestry_is_that_of_git_whatever_the_order_and_the_clocks(make_commits: Commits) -> None:
    made = make_commits(6)
    made[4] = replace(made[4], parents=(made[1].sha, made[3].sha))
    for order in (made, made[::-1]):
        ancestry = Ancestry(order)
        assert {c.sha for c in ancestry.between(made[2].sha, made[5].sha)} == {
            made[i].sha for i in (3, 4, 5)
        }
        assert ancestry.between(made[5].sha, made[2].sha) == ()
        assert ancestry.between(made[3].sha, made[3].sha) == ()
