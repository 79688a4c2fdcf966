"""`drift`: the stated set holds every commit that may have made the change, measured or not; and
what is listed, in which order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import git

from celedger.base.model import Commit, Footprint, Mark, OutcomeKind, Purpose, Trial
from celedger.judge.derivation import derive
from celedger.judge.incident import LevelChange, State
from celedger.judge.line import Line
from celedger.judge.state import state_of
from celedger.repo import Repository
from celedger.views.document import document
from celedger.views.drift import DriftDocument, narrowed, within
from celedger.views.noise import TaskNoise, noise_of

from .conftest import NEW, derivation

Commits = Callable[..., list[Commit]]


def measure(
    history: Any, commits: Sequence[Commit], values: Sequence[float], *, seeds: int = 4, **more: Any
) -> None:
    """Measure a level of the loss at each commit: a trial differs by half a percent."""
    draw = Random(5)
    for commit, value in zip(commits, values, strict=True):
        for seed in range(seeds):
            loss = value * draw.gauss(1, 0.005)
            history.trial(commit, {"val_loss": loss}, seed=seed, **more)


def state(history: Any, made: Sequence[Commit]) -> State:
    return state_of(derivation(history.ledger, made))


def drift(history: Any, known: State, made: Sequence[Commit], **more: Any) -> DriftDocument:
    environments = history.ledger.environments()
    return DriftDocument(known, made, {c.sha: c for c in made}, environments, **more)


def text(history: Any, made: Sequence[Commit], width: int = 160, **more: Any) -> str:
    return drift(history, state(history, made), made, **more).text(width)


def only_set(known: State) -> tuple[str, ...]:
    (incident,) = known.incidents
    assert incident.state == "open"
    return incident.first_bad


def hashes(made: Sequence[Commit]) -> tuple[str, ...]:
    return tuple(commit.sha for commit in made)


def test_every_unmeasured_commit_back_to_the_last_good_one_is_in_the_set(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(24))
    measure(history, made[::6], [0.4, 0.4, 0.5, 0.5])
    known = state(history, made)
    (incident,) = known.incidents
    assert incident.first_bad == hashes(made[7:13])
    assert (incident.known_good, incident.seen_at) == (made[6].sha, made[12].sha)
    short = [c.sha[:8] for c in made]
    told = text(history, made)
    assert f"between {short[6]} and {short[12]}, 6 commits" in told
    assert f"\n  celedger bisect {incident.id}\n" in told
    assert made[12].subject not in told, "nobody says that it was this one"
    (row,) = document(**drift(history, known, made).json())["incidents"]  # type: ignore[misc]
    assert row["among"] == row["first_bad"] == [c.sha for c in made[7:13]]  # type: ignore[index,call-overload]
    assert row["next"] == f"celedger bisect {incident.id}"  # type: ignore[index,call-overload]


def test_a_change_between_neighbours_is_that_commits(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(12))
    measure(history, made, [0.4] * 7 + [0.5] * 5)
    assert only_set(state(history, made)) == (made[7].sha,)
    told = text(history, made)
    assert made[7].subject in told
    assert "bisect" not in told


def test_an_improvement_is_searched_as_one_and_a_grid_s_name_is_quoted(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(12))
    task = history.task._replace(name="net[size=small,norm=batch]")
    history.ledger.record_task(task)
    measure(history, made[::3], [0.5, 0.5, 0.4, 0.4], task=task)
    told = text(history, made)
    (command,) = [line for line in told.splitlines() if "celedger bisect" in line]
    ends = f"{made[3].sha[:12]}..{made[6].sha[:12]}"
    assert f"bisect {ends} " in command
    assert "--task 'net[size=small,norm=batch]'" in command
    assert "--metric val_loss --find improved" in command
    assert "better" in told
    assert state(history, made).incidents == ()


@pytest.fixture
def merged(tmp_path: Path, history: Any) -> tuple[Repository, dict[str, Commit]]:
    """0 - 1 - 2 - 3 - 6 - 7 - 8, where 4 and 5 branch off at 1 and come with the merge 6."""
    root = tmp_path / "merged"
    git(tmp_path, "init", "-q", "-b", "main", str(root))

    clock = count(1_700_000_000)

    def commit(*names: str) -> None:
        for name in names:
            (root / name).write_text(name)
            git(root, "add", ".")
            at = {"GIT_COMMITTER_DATE": f"@{next(clock)} +0000"}
            git(root, "commit", "-q", "-m", name, env=at)

    commit("0", "1")
    git(root, "branch", "side")
    commit("2", "3")
    git(root, "checkout", "-q", "side")
    commit("4", "5")
    git(root, "checkout", "-q", "main")
    at = {"GIT_COMMITTER_DATE": f"@{next(clock)} +0000"}
    git(root, "merge", "-q", "--no-ff", "-m", "6", "side", env=at)
    commit("7", "8")
    repository = Repository.open(root)
    commits = {c.subject: c for c in repository.log("HEAD", limit=100)}
    history.commits(list(commits.values()))
    return repository, commits


def test_what_a_merge_brought_counts_and_what_was_there_before_does_not(
    history: Any, merged: tuple[Repository, dict[str, Commit]]
) -> None:
    repository, named = merged
    measure(history, [named[n] for n in "01278"], [0.4, 0.4, 0.4, 0.5, 0.5])
    known = state_of(derive(history.ledger, Line.of(repository, "HEAD")))
    (incident,) = known.incidents
    assert set(incident.first_bad) == {named[n].sha for n in "34567"}
    assert incident.first_bad[-2:] == (named["6"].sha, named["7"].sha)
    assert incident.known_good == named["2"].sha


def test_all_takes_the_commits_of_merged_branches(
    history: Any, merged: tuple[Repository, dict[str, Commit]]
) -> None:
    """The commits of the branch tell which of them it was; the main line has them as one place."""
    repository, named = merged
    measure(history, [named[n] for n in "01234578"], [0.4] * 5 + [0.5] * 3)
    line = state_of(derive(history.ledger, Line.of(repository, "HEAD")))
    assert line.aside == 2
    told = drift(history, line, repository.log("HEAD", limit=9, first_parent=True)[::-1]).text()
    assert "2 measured commits outside this line: `celedger drift --all` includes them" in told
    every = state_of(derive(history.ledger, Line.of(repository, "HEAD", every=True)))
    assert every.aside == 0
    assert only_set(every) == (named["5"].sha,)


def test_no_change_is_not_seen_where_most_lies_aside(
    history: Any, merged: tuple[Repository, dict[str, Commit]]
) -> None:
    repository, named = merged
    measure(history, [named[n] for n in "045"], [0.4, 0.4, 0.5])
    made = repository.log("HEAD", limit=9, first_parent=True)[::-1]
    known = state_of(derive(history.ledger, Line.of(repository, "HEAD")))
    told = drift(history, known, made).text()
    assert "no change seen" not in told
    assert told.startswith("nothing to report over 1 commit, 4 trials, 1 metric")
    assert "2 measured commits outside this line" in told


def test_commits_measured_only_in_another_environment_are_not_measured_in_this_one(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(12))
    measure(history, made[:4], [0.4] * 4)
    measure(history, made[4:8], [0.35] * 4, environment=NEW)
    measure(history, made[8:], [0.5] * 4)
    assert only_set(state(history, made)) == hashes(made[4:9])


def test_a_commit_that_diverged_or_failed_is_not_measured(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(8))
    measure(history, made[:3], [0.4] * 3)
    history.trial(made[3], {"val_loss": 0.4}, marks=(Mark.EARLY_STOPPED,))
    history.trial(made[4], {}, kind=OutcomeKind.UNTESTABLE)
    measure(history, made[5:], [0.5] * 3)
    assert only_set(state(history, made)) == hashes(made[3:6])


def test_a_result_that_was_reused_counts_as_measured(history: Any, make_commits: Commits) -> None:
    """Commits 1 to 3 repeat 0, and 5 repeats 6: only 4 and 5 can have made the change."""
    made = history.commits(make_commits(9))
    measure(history, [made[0], *made[6:]], [0.4, 0.5, 0.5, 0.5])
    recipe = history.task.recipe
    environment = next(iter(history.ledger.environments()))
    for record in history.ledger.trials():
        history.ledger.record_footprint(record.trial.ulid, Footprint((b"model.py",)), "0" * 64)
    for seed in range(4):
        trials = history.ledger.reusable_trials(recipe=recipe, environment=environment, seed=seed)
        by_commit = {trial.commit: trial for trial in trials}
        for place, of in ((1, 0), (2, 0), (3, 0), (5, 6)):
            ulid = f"01KD{seed:02d}{place:020d}"
            trial = Trial(ulid, made[place].sha, recipe, environment, seed, Purpose.RUN, 9.0, "")
            history.ledger.reuse_trial(trial, by_commit[made[of].sha], [])
    known = state(history, made)
    assert only_set(known) == hashes(made[4:6])
    assert known.incidents[0].known_good == made[3].sha
    assert "over 8 commits, 32 trials, 1 metric" in text(history, made)


def test_a_task_is_shown_with_the_counts_of_drift(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(4))
    measure(history, made[:3], [0.4, 0.4, 0.4], seeds=3)
    history.trial(made[2], {"val_loss": 0.4}, seed=8, marks=(Mark.EARLY_STOPPED,))
    history.trial(made[3], {}, kind=OutcomeKind.UNTESTABLE)
    history.trial(made[3], {}, seed=1, kind=OutcomeKind.KILLED)
    known = state(history, made)
    task = TaskNoise.of(history.ledger, "core", "mlp_digits", known)
    assert (task.trials, task.commits, task.seeds) == (9, 3, 3)
    assert "  9 trials, 3 seeds, 3 commits, environment" in noise_of([task]).text()
    assert "no change seen over 3 commits, 9 trials, 1 metric" in text(history, made)


def test_changes_are_sorted_by_time_or_by_size(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(15))
    measure(history, made, [0.4] * 5 + [0.42] * 5 + [0.6] * 5)
    by_time, by_size = (
        [line.split()[2] for line in text(history, made, by_size=by_size).splitlines()[1:3]]
        for by_size in (False, True)
    )
    assert by_time == [made[5].sha[:8], made[10].sha[:8]]
    assert by_size == by_time[::-1]


def test_no_commit_is_surely_the_first_bad_one_of_a_false_alarm(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(10))
    measure(history, made, [0.4] * 5 + [0.42] * 5)
    known = state(history, made)
    assert " 95 % " in drift(history, known, made).text(160)
    (incident,) = known.incidents
    known = known._replace(incidents=(incident._replace(state="withdrawn"),))
    shown = drift(history, known, made).text(160)
    assert f"{incident.id} withdrawn" in shown and " 95 % " not in shown


@pytest.mark.parametrize("way", ["crash", "not-finite"])
def test_failures_are_listed_with_all_else(history: Any, make_commits: Commits, way: str) -> None:
    made = history.commits(make_commits(6))
    measure(history, made[:3], [0.4] * 3)
    if way == "crash":
        history.trial(made[4], {}, kind=OutcomeKind.FAILED, message="ValueError: no")
    else:
        history.trial(made[4], {"val_loss": math.nan})
    (incident,) = state(history, made).incidents
    assert (incident.kind, incident.first_bad) == (way, hashes(made[3:5]))
    told = text(history, made)
    assert ("fails" if way == "crash" else "is not finite") in told
    assert incident.id in told and "1 changed" in told
    measure(history, made[5:], [0.4])
    (incident,) = state(history, made).incidents
    assert (incident.state, incident.closed_at) == ("recovered", made[5].sha)


def test_what_fails_in_another_way_is_another_incident_and_may_hide_the_first(
    history: Any, make_commits: Commits
) -> None:
    """One crash was mended in the merge that brought another: the first stood as what fails."""
    made = history.commits(make_commits(8))
    measure(history, made[:2], [0.4] * 2)
    for at, message in ((3, "ValueError: no angle"), (5, "SyntaxError: no"), (6, "ValueError: 2")):
        history.trial(made[at], {}, kind=OutcomeKind.FAILED, message=message)
    first, second = sorted(state(history, made).incidents, key=lambda i: i.message, reverse=True)
    assert [i.first_bad for i in (first, second)] == [hashes(made[2:4]), hashes(made[4:6])]
    assert [i.known_good for i in (first, second)] == [made[1].sha] * 2
    assert [i.state for i in (first, second)] == ["open", "open"]
    measure(history, made[7:], [0.4])
    mends = {i.message: i.mended_by for i in state(history, made).incidents}
    assert mends == {
        "ValueError: no angle": hashes(made[7:]),
        "SyntaxError: no": hashes(made[6:]),
    }


def test_an_environment_s_offset_is_named_and_is_no_incident(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(8))
    measure(history, made[:5], [0.4] * 5)
    measure(history, made[4:], [0.5] * 4, environment=NEW)  # the last commit is the anchor
    known = state(history, made)
    assert known.incidents == ()
    told = text(history, made)
    assert "no change seen" in told
    assert "core/mlp_digits: torch 2.12.0 → 2.13.0: val_loss +" in told
    assert f"; by code since: nothing ({made[4].sha[:8]})" in told


def test_an_offset_within_the_floor_is_nothing(history: Any, make_commits: Commits) -> None:
    """An upgrade was said to make a leak of 50 bytes worse by 111 %; 1,024 count."""
    made = history.commits(make_commits(8))
    measure(history, made[:5], [0.4] * 5, seeds=30)
    measure(history, made[4:], [0.4015] * 4, seeds=30, environment=NEW)
    known = state(history, made)
    (change,) = (c for c in known.changes if c.kind == "environment")
    assert change.low > 0 and not change.is_clear
    assert known.upgrades == []
    assert "→ 2.13.0: nothing clear; by code since" in text(history, made)


def test_beside_an_environment_s_offset_the_code_s_part_is_named(
    history: Any, make_commits: Commits
) -> None:
    made = history.commits(make_commits(8))
    measure(history, made[:5], [0.4] * 5)
    measure(history, made[4:], [0.5, 0.7, 0.7, 0.7], environment=NEW)
    (incident,) = state(history, made).incidents
    assert incident.first_bad == (made[5].sha,)
    assert f"; by code since: {incident.id} ({made[4].sha[:8]})" in text(history, made)


def test_a_range_has_what_may_have_happened_in_it(history: Any, make_commits: Commits) -> None:
    made = history.commits(make_commits(15))
    measure(history, made, [0.4] * 5 + [0.42] * 5 + [0.6] * 5)
    known = state(history, made)
    assert len(known.incidents) == 2
    early = within(known, hashes(made[:8]))
    assert only_set(early) == (made[5].sha,)
    assert only_set(within(known, hashes(made[8:]))) == (made[10].sha,)
    assert narrowed(known, metric="val_accuracy").incidents == ()
    assert len(narrowed(known, task="mlp_digits").incidents) == 2


def test_an_offset_just_beyond_its_noise_is_not_clear() -> None:
    """Of ten metrics on a busy machine one or two lie beyond two standard errors: an upgrade was
    said to make the duration 29 % longer."""
    offset = LevelChange(
        "environment", "core", "fit", "duration", 10.0, 13.0, 0.2, 5.8, "s", 1.0, ("a",), "a",
        better=False, declared=False,
    )  # fmt: skip
    assert offset.low > 0 and not offset.is_clear
    assert offset._replace(declared=True).is_clear
    assert offset._replace(low=2.0, high=4.0).is_clear
    assert not offset._replace(low=2.0, high=4.0, floor=3.5).is_clear
