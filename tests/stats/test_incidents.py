"""What is open, mended, accepted or a false alarm, derived from steps made by hand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest

from celedger.base.model import IncidentState
from celedger.stats import mends
from celedger.stats.commit_evidence import CommitEvidence
from celedger.stats.course import (
    Acts,
    MetricHistory,
    MetricKey,
    Step,
    StepKind,
    ToldIncident,
    TrialNoise,
)
from celedger.stats.incidents import Derived, derive
from celedger.stats.line_steps import CommitSet
from celedger.stats.next_trial import Job, next_trial
from celedger.stats.sessions import Contrast
from tests.stats.made_steps import (
    LOSS,
    NO_FLOOR,
    NOISE,
    OTHER,
    TIME,
    history,
    open_at,
    step,
    told,
)

OPEN, PARTLY, RECOVERED = IncidentState.OPEN, IncidentState.PARTLY, IncidentState.RECOVERED
ACCEPTED, WITHDRAWN = IncidentState.ACCEPTED, IncidentState.WITHDRAWN

SHORT = open_at("aaaaaaaa", 20, was_sure=True)
DOUBTED = history(step(20, size=10, probability=0.2))


def of(
    *histories: tuple[MetricKey, MetricHistory],
    said: Sequence[ToldIncident] = (),
    acts: Acts | None = None,
    evidence: CommitEvidence | None = None,
    contrasts: Sequence[Contrast] = (),
    floor: float | None = None,
    undeclared: Collection[MetricKey] = (),
) -> Derived:
    floors = NO_FLOOR if floor is None else {key: lambda level: floor for key, _ in histories}
    return derive(
        dict(histories),
        said,
        floors=floors,
        acts=acts,
        evidence=evidence,
        contrasts=contrasts,
        undeclared=undeclared,
    )


def states(derived: Derived) -> list[tuple[int, int, IncidentState]]:
    return [(i.first, i.last, i.state) for i in derived.incidents]


# What opens


def test_a_sure_rise_above_the_floor_opens() -> None:
    derived = of((LOSS, history(step(10, 12, size=8))), floor=5)
    assert states(derived) == [(10, 12, OPEN)]
    incident = derived.incidents[0]
    assert incident.id == "" and incident.shares[LOSS].step.size == 8
    assert incident.likeliest == 12 and 0.3 < incident.probability < 0.4


@pytest.mark.parametrize(
    "rise",
    [
        step(10, size=8, probability=0.94),
        step(10, size=4),  # below the floor
        step(10, size=8, error=5.0),  # below 1.64 standard errors
        step(10, size=-8),
    ],
    ids=["not sure", "below the floor", "size not clear", "better"],
)
def test_what_is_not_a_clear_rise_does_not_open(rise: object) -> None:
    assert not of((LOSS, history(rise)), floor=5).incidents  # type: ignore[arg-type]


def test_nothing_opens_below_four_degrees_of_freedom_but_what_equal_seeds_tell() -> None:
    few = replace(NOISE, freedom=3)
    derived = of((LOSS, history(step(10, size=8), noise=few)))
    assert not derived.incidents
    assert [s.first for _, s in derived.suspected] == [10]
    by_seeds = replace(history(step(10, size=8), noise=few), by_seeds=True)
    assert states(of((LOSS, by_seeds))) == [(10, 10, OPEN)]


def test_a_doubt_above_the_floor_is_suspected_and_improvements_are_changes() -> None:
    derived = of(
        (LOSS, history(step(10, size=-8), step(30, size=8, before=92, probability=0.4))), floor=5
    )
    assert [(k, s.first) for k, s in derived.suspected] == [(LOSS, 30)]
    assert [(k, s.first) for k, s in derived.changes] == [(LOSS, 10)]
    assert not derived.incidents


@pytest.mark.parametrize(("fall", "told"), [(-2, [20]), (-12, [])])
def test_a_doubt_is_over_where_the_metric_fell_below_its_beginning(
    fall: float, told: list[int]
) -> None:
    doubt = step(20, size=8, probability=0.6)
    derived = of((LOSS, history(doubt, step(30, size=fall, before=108))), floor=1)
    assert [s.first for _, s in derived.suspected] == told


def test_a_doubt_about_the_commits_of_an_incident_is_no_line_of_its_own() -> None:
    doubted = history(step(10, size=8, probability=0.4), step(30, size=8, probability=0.4))
    derived = of((LOSS, history(step(10, size=8))), (TIME, doubted))
    assert [(k, s.first) for k, s in derived.suspected] == [(TIME, 30)]


def test_telemetry_hides_no_doubt_of_what_a_suite_declares() -> None:
    """A slowdown was not even suspected, since its commit took more memory, too."""
    doubted, rss = history(step(10, size=8, probability=0.4)), history(step(10, size=8))
    for undeclared, expected in (({OTHER}, [TIME]), ({OTHER, TIME}, []), ((), [])):
        derived = of((OTHER, rss), (TIME, doubted), undeclared=undeclared)
        assert [k for k, _ in derived.suspected] == expected


def test_a_doubt_that_hardly_concerns_an_incidents_commit_is_told() -> None:
    """One commit of its sixteen leaked; and a metric that rises slowly has no commit at all. The
    doubt was hidden by each of them, and nothing said what would settle it."""
    doubted = history(step(13, 28, size=8, probability=0.8))
    leak, slow = history(step(14, size=8)), history(step(1, 35, size=8, kind=StepKind.DRIFT))
    derived = of((LOSS, leak), (TIME, doubted))
    assert [(k, s.first) for k, s in derived.suspected] == [(TIME, 13)]
    derived = of((LOSS, slow), (TIME, doubted))
    assert len(derived.incidents) == 1
    assert [(k, s.first) for k, s in derived.suspected] == [(TIME, 13)]


# One cause


def test_many_metrics_that_share_a_commit_are_one_incident_with_the_joint_set() -> None:
    derived = of(
        (LOSS, history(step(10, 14, size=8))),
        (TIME, history(step(12, 18, size=9))),
        (OTHER, history(step(11, 13, size=7))),
    )
    assert states(derived) == [(12, 13, OPEN)]
    assert set(derived.incidents[0].shares) == {LOSS, TIME, OTHER}


def test_metrics_whose_sets_share_no_commit_are_two_incidents() -> None:
    derived = of((LOSS, history(step(10, 12, size=8))), (TIME, history(step(13, 18, size=9))))
    assert states(derived) == [(10, 12, OPEN), (13, 18, OPEN)]


def test_a_new_metric_joins_the_incident_that_was_told() -> None:
    derived = of(
        (LOSS, history(step(10, 12, size=8))),
        (TIME, history(step(12, size=9))),
        said=[open_at("aaaaaaaa", 10, 12)],
    )
    assert [(i.id, i.first, i.last) for i in derived.incidents] == [("aaaaaaaa", 12, 12)]
    assert set(derived.incidents[0].shares) == {LOSS, TIME}


def test_a_fall_is_less_in_doubt_where_another_metric_surely_fell() -> None:
    rise = step(10, size=8)
    sure, faint = (step(30, size=-8, before=108, probability=p) for p in (0.999, 0.3))
    late = faint._replace(first=32, last=32, likeliest=32)
    for other, state in ((faint, RECOVERED), (late, PARTLY)):
        derived = of((LOSS, history(rise, sure)), (TIME, history(rise, other)))
        assert states(derived) == [(10, 10, state)]


def test_the_joint_set_uses_each_posterior() -> None:
    a = step(10, 13, size=8)._replace(posterior=(0.1, 0.6, 0.2, 0.1))
    b = step(11, 14, size=8)._replace(posterior=(0.9, 0.06, 0.02, 0.02))
    incident = of((LOSS, history(a)), (TIME, history(b))).incidents[0]
    assert (incident.first, incident.last, incident.likeliest) == (11, 11, 11)
    assert 0.95 < incident.probability < 1


def test_a_metric_whose_set_misses_the_commit_does_not_overrule_many_others() -> None:
    sure = [step(10, 11, size=8)._replace(posterior=(0.9, 0.1)) for _ in range(3)]
    wrong = step(11, 12, size=8)._replace(posterior=(0.5, 0.5))
    keys = [("core", "mlp", f"m{n}") for n in range(4)]
    steps = [*sure, wrong]
    lives = [(k, history(s)) for k, s in zip(keys, steps, strict=True)]
    incident = of(*lives).incidents[0]
    assert incident.first == 10 and incident.likeliest == 10


def test_commits_of_one_incident_that_do_not_meet_are_weighed_by_all_its_metrics() -> None:
    # A busy machine made the step time seem to rise two commits before the losses did.
    said = [open_at("aaaaaaaa", 10, 16, keys=(LOSS, TIME, ("core", "mlp", "train_loss")))]
    early = step(10, 11, size=12)
    late = step(13, 16, size=8)
    two = of((TIME, history(early)), (LOSS, history(late)), said=said)
    assert [(i.id, i.first, i.last) for i in two.incidents] == [("aaaaaaaa", 10, 16)]
    three = of(
        (TIME, history(early)),
        (LOSS, history(late)),
        (("core", "mlp", "train_loss"), history(late)),
        said=said,
    )
    assert [(i.id, i.first, i.last) for i in three.incidents] == [("aaaaaaaa", 13, 16)]


def test_what_a_bisect_named_is_the_incidents_commit_and_probability() -> None:
    acts = Acts(named={LOSS: {11: 0.97}})
    incident = of(
        (LOSS, history(step(10, 14, size=8))), (TIME, history(step(9, 12, size=9))), acts=acts
    ).incidents[0]
    assert (incident.first, incident.last, incident.likeliest) == (11, 11, 11)
    assert incident.probability == 0.97 and incident.is_named and incident.was_sure


def test_a_search_that_named_a_commit_opens_what_the_history_hardly_doubted() -> None:
    """The bisect said 96 %, and no incident had it; where a rise is doubted, that one is meant."""
    unlikely, doubted = step(4, 17, size=8, probability=0.016), step(20, size=8, probability=0.5)
    acts = Acts(named={LOSS: {6: 0.96}})
    (incident,) = of((LOSS, history(unlikely)), acts=acts).incidents
    assert (incident.likeliest, incident.probability, incident.is_named) == (6, 0.96, True)
    acts = Acts(named={LOSS: {18: 0.97}})
    (incident,) = of(
        (LOSS, history(step(4, 18, size=8, probability=0.016), doubted)), acts=acts
    ).incidents
    assert (incident.likeliest, incident.shares[LOSS].step.node) == (18, doubted.node)


def test_a_rise_that_the_history_hardly_tells_is_as_large_as_the_bisect_measured() -> None:
    """The bisect said +237 %, 95 %: 81 … 393; the history, of seeds that had differed more at a
    level before, knew .00027 ± .00035, and nothing was listed."""
    vague = step(4, 17, size=2, probability=0.004)._replace(error=3.0)
    acts = Acts(named={LOSS: {6: 0.96}}, effects={LOSS: {6: (100.0, 9.0, 1.0)}})
    (incident,) = of((LOSS, history(vague)), acts=acts).incidents
    told = incident.shares[LOSS].step
    assert (told.before, told.size, told.error, told.after) == (100.0, 9.0, 1.0, 109.0)
    sure = step(4, 8, size=8)
    (incident,) = of((LOSS, history(sure)), acts=acts).incidents
    assert incident.shares[LOSS].step.size == sure.size


def test_a_bisect_parts_a_joined_incident_and_the_largest_keeps_the_identity() -> None:
    said = [open_at("aaaaaaaa", 12, 14, keys=(LOSS, TIME, OTHER))]
    derived = of(
        (LOSS, history(step(10, 14, size=8))),
        (TIME, history(step(12, 16, size=9))),
        (OTHER, history(step(12, 18, size=9))),
        said=said,
        acts=Acts(named={LOSS: {11: 0.98}}),
    )
    assert [(i.id, i.first, i.last, set(i.shares)) for i in derived.incidents] == [
        ("", 11, 11, {LOSS}),
        ("aaaaaaaa", 12, 16, {TIME, OTHER}),
    ]


@pytest.mark.parametrize(("at_11", "causes"), [(0.0, 2), (0.2, 1)])
def test_a_named_commit_amid_the_set_of_another_metric_is_its_cause_only_if_likely(
    at_11: float, causes: int
) -> None:
    """A leak is named; time rose before it for sure, or after it by chance: another cause."""
    slower = step(10, 12, size=9)._replace(posterior=(0.9 - at_11, at_11, 0.1))
    for said in ([], [open_at("aaaaaaaa", 10, 12, keys=(LOSS, TIME))]):
        derived = of(
            (LOSS, history(step(10, 12, size=8))),
            (TIME, history(slower)),
            said=said,
            acts=Acts(named={LOSS: {11: 0.98}}),
        )
        assert len(derived.incidents) == causes


def test_a_named_commit_that_did_not_move_another_task_is_not_its_cause() -> None:
    """The bisect of a crash ran the other task at the commit's parent, which leaked already."""
    told = [open_at("aaaaaaaa", 10, 14, keys=(LOSS, OTHER))]
    for said in ([], told):
        derived = of(
            (LOSS, history(step(10, 14, size=8))),
            (OTHER, history(step(10, 14, size=9))),
            said=said,
            acts=Acts(named={LOSS: {13: 0.98}}, apart={OTHER[:2]: {13}}),
        )
        assert [(i.first, i.last, set(i.shares)) for i in derived.incidents] == [
            (10, 14, {OTHER}),
            (13, 13, {LOSS}),
        ]


def test_a_wide_set_is_of_the_named_commit_that_moved_the_same_metric() -> None:
    """Two commits were named, for the time and the loss; another task was measured seldom."""
    derived = of(
        (TIME, history(step(5, size=30))),
        (LOSS, history(step(9, size=8))),
        (OTHER, history(step(2, 16, size=8))),
        acts=Acts(named={TIME: {5: 0.98}, LOSS: {9: 0.98}}),
    )
    assert [set(i.shares) for i in derived.incidents] == [{TIME}, {LOSS, OTHER}]


def test_another_fall_of_what_rose_by_little_with_an_incident_does_not_veto_its_mend() -> None:
    """Memory rose by luck, within its floor, with a loss, and fell by more of it with the mend."""
    derived = derive(
        {
            LOSS: history(step(20, size=13), step(30, size=-13, before=113)),
            TIME: history(step(20, size=2), step(30, size=-30, before=102)),
        },
        [open_at("aaaaaaaa", 20, was_sure=True)],
        floors={LOSS: lambda level: 1.0, TIME: lambda level: 50.0},
    )
    assert states(derived) == [(20, 20, RECOVERED)]


@pytest.mark.parametrize(("returns", "state"), [(19, RECOVERED), (-1, OPEN), (20, OPEN)])
def test_a_fall_to_the_very_bits_of_before_is_as_sure_as_the_rise(
    returns: int, state: IncidentState
) -> None:
    """Seeds that each move by their own part leave both in doubt, until a bisect is sure of one."""
    rise = step(20, size=13, probability=0.31)
    fall = step(22, size=-13, before=113, probability=0.31, returns=returns)
    derived = of(
        (LOSS, history(rise, fall)),
        said=[open_at("aaaaaaaa", 20, was_sure=True)],
        acts=Acts(named={LOSS: {20: 0.999}}),
    )
    assert states(derived) == [(20, 20, state)]


@pytest.mark.parametrize(("size", "better"), [(-13, []), (-30, [OTHER])])
def test_a_fall_to_the_level_before_a_rise_in_doubt_is_no_improvement(
    size: float, better: list[MetricKey]
) -> None:
    """It fell beside the mend of another metric, and its rise was never told."""
    rise = step(20, size=13, probability=0.27)
    fall = step(22, size=size, before=113, probability=0.27)
    derived = derive(
        {
            LOSS: history(step(20, size=13), step(22, size=-13, before=113)),
            OTHER: history(rise, fall),
        },
        [],
        floors={OTHER: lambda level: 1.0},
    )
    assert [key for key, _ in derived.changes] == better


# Identity


def test_a_step_whose_set_moved_keeps_its_name() -> None:
    derived = of((LOSS, history(step(12, 20, size=8))), said=[open_at("aaaaaaaa", 9, 12)])
    assert [(i.id, i.state) for i in derived.incidents] == [("aaaaaaaa", OPEN)]


def test_wider_sets_do_not_rob_one_another_of_their_names() -> None:
    """12-18 is nearest to 15-18; it must not take its name from the step at 17."""
    said = [open_at("aaaaaaaa", 12, 14), open_at("bbbbbbbb", 15, 18)]
    derived = of((LOSS, history(step(12, 18, size=8), step(17, 19, size=9, before=108))), said=said)
    assert [(i.id, i.first, i.state) for i in derived.incidents] == [
        ("aaaaaaaa", 12, OPEN),
        ("bbbbbbbb", 17, OPEN),
    ]


def test_a_small_size_neither_opens_nor_withdraws() -> None:
    small = history(step(10, size=0.5, error=0.5))
    assert not of((LOSS, small)).incidents
    assert states(of((LOSS, small), said=[open_at("aaaaaaaa", 10)])) == [(10, 10, OPEN)]


def test_a_rise_on_top_of_an_open_one_has_its_own_share() -> None:
    derived = of(
        (LOSS, history(step(10, size=8), step(20, 21, size=12, before=108))),
        said=[open_at("aaaaaaaa", 10)],
    )
    assert [(i.id, i.first, i.shares[LOSS].step.size) for i in derived.incidents] == [
        ("aaaaaaaa", 10, 8),
        ("", 20, 12),
    ]


def test_an_incident_stays_told_until_its_step_is_less_probable_than_not() -> None:
    doubted = history(step(10, size=8, probability=0.6))
    assert states(of((LOSS, doubted), said=[open_at("aaaaaaaa", 10)])) == [(10, 10, OPEN)]
    gone = history(step(10, size=8, probability=0.4))
    assert states(of((LOSS, gone), said=[open_at("aaaaaaaa", 10)])) == [(10, 10, WITHDRAWN)]


def test_a_withdrawn_one_opens_again_under_its_name_but_only_if_it_is_sure() -> None:
    said = [open_at("aaaaaaaa", 10, state=WITHDRAWN)]
    assert states(of((LOSS, history(step(10, size=8, probability=0.9))), said=said)) == [
        (10, 10, WITHDRAWN)
    ]
    derived = of((LOSS, history(step(10, size=8))), said=said)
    assert [(i.id, i.state) for i in derived.incidents] == [("aaaaaaaa", OPEN)]


# Environments


def test_a_new_environment_closes_nothing_and_counts_a_step_that_both_saw_once() -> None:
    both = history(
        step(10, 12, size=8),
        step(11, 14, size=8, before=300, chain=1),
        chains=[(0, 0, 30), (1, 8, 59)],
    )
    assert states(of((LOSS, both), said=[open_at("aaaaaaaa", 10, 12)])) == [(10, 12, OPEN)]
    upgrade = history(step(10, 12, size=8), chains=[(0, 0, 30), (1, 30, 59)])
    derived = of((LOSS, upgrade), said=[open_at("aaaaaaaa", 10, 12, was_sure=True)])
    assert states(derived) == [(10, 12, OPEN)]


def test_a_fall_in_the_new_environment_mends_what_the_old_one_saw() -> None:
    lives = history(
        step(10, 12, size=8),
        step(40, size=-8, before=300, chain=1),
        chains=[(0, 0, 30), (1, 30, 59)],
    )
    derived = of((LOSS, lives), said=[open_at("aaaaaaaa", 10, 12)])
    assert states(derived) == [(10, 12, RECOVERED)]
    assert derived.incidents[0].closed == 40


@pytest.mark.parametrize("by", ["code", "company", "neither"])
def test_a_rise_seen_after_a_way_back_is_not_the_one_that_another_environment_saw_mended(
    by: str,
) -> None:
    """Its history alone doubts the fall, of which it thus knows the level after no better."""
    chains = [(0, 0, 14), (0, 25, 40), (1, 14, 24)]
    rise = step(20, size=13, error=0.6, chain=1)
    fall = step(22, size=-13, before=113, error=0.6, probability=0.1, chain=1)
    wide = step(15, 25, size=8, error=0.6)
    seen = fall if by == "company" else fall._replace(after=105)
    histories = [(LOSS, history(rise, seen, wide, chains=chains))]
    if by == "company":
        histories.append((TIME, history(rise, fall._replace(probability=0.999), chains=chains)))
    same_code = {LOSS[:2]: {22: 19}} if by == "code" else {}
    evidence = CommitEvidence({}, lambda later, earlier: True, 0.1, same_code=same_code)
    derived = of(*histories, evidence=evidence)
    assert states(derived) == (
        [(20, 20, RECOVERED), (23, 25, OPEN)] if by != "neither" else [(20, 20, OPEN)]
    )


def test_parts_that_are_hardly_known_take_no_step_away() -> None:
    """A sure rise was explained by a rise and a fall of large errors, and nothing was open."""
    steps = [
        step(15, 25, size=9, error=0.9),
        step(20, size=5, error=2, probability=0.76, chain=1),
        step(22, size=-6, before=105, error=3.7, probability=0.97, chain=1),
    ]
    derived = of((LOSS, history(*steps, chains=[(0, 0, 14), (0, 25, 40), (1, 14, 24)])))
    assert states(derived) == [(15, 25, OPEN)]


# Mends


def test_a_fall_to_the_level_of_before_is_recovered() -> None:
    derived = of((LOSS, history(step(10, size=8), step(30, 31, size=-8, before=108))))
    assert states(derived) == [(10, 10, RECOVERED)]
    assert derived.incidents[0].closed == 31 and derived.incidents[0].mended > 0.9
    assert not derived.changes


@pytest.mark.parametrize("share", [0.5, 0.75])
def test_what_is_half_mended_is_not_recovered(share: float) -> None:
    lives = history(step(10, size=16, error=0.2), step(30, size=-16 * share, before=116, error=0.2))
    derived = of((LOSS, lives))
    assert states(derived) == [(10, 10, PARTLY)]
    assert derived.incidents[0].shares[LOSS].left == pytest.approx(16 * (1 - share))


def test_a_fall_that_is_not_sure_makes_nothing_good() -> None:
    rise = step(10, size=8)
    for fall in (
        step(30, size=-8, before=108, probability=0.98),
        step(30, size=-8, before=108, error=3.0),
    ):
        assert states(of((LOSS, history(rise, fall))))[0][2] is not RECOVERED


def test_a_mend_is_taken_back_only_below_one_half() -> None:
    lives = history(step(10, size=8), step(30, size=-8, before=108, probability=0.96))
    assert states(of((LOSS, lives)))[0][2] is not RECOVERED
    said = [open_at("aaaaaaaa", 10, state=RECOVERED)]
    assert states(of((LOSS, lives), said=said)) == [(10, 10, RECOVERED)]


def test_what_was_recovered_is_not_open_where_the_metric_is_better_than_before() -> None:
    """One commit mended the rest, the next ones improved it: a doubt about which of them it was
    opened the incident again at half of the level of before."""
    rise = step(20, size=10.6, before=8.9, error=0.3)
    partly = step(30, size=-3.4, before=19.5, error=0.3)
    fall = step(40, size=-7.2, before=16.1, error=0.4)
    (opened,) = of((TIME, history(rise, partly, fall))).incidents
    assert opened.state is RECOVERED
    doubted = step(39, 40, size=-7.8, before=16.1, error=5.3, probability=0.75)
    later = step(39, 42, size=-6.1, before=10.4, error=2.4)
    lives = history(rise, partly, doubted, later)
    (incident,) = of((TIME, lives), said=[told(opened, "aaaaaaaa")]).incidents
    assert incident.state is RECOVERED


def test_what_is_recovered_takes_no_metric_that_is_seen_to_rise_later() -> None:
    mended = history(step(10, size=8), step(30, size=-8, before=108))
    said = [open_at("aaaaaaaa", 10, state=RECOVERED)]
    derived = of((LOSS, mended), (OTHER, history(step(10, size=8))), said=said)
    assert sorted((i.id, i.state, [*i.shares]) for i in derived.incidents) == [
        ("", OPEN, [OTHER]),
        ("aaaaaaaa", RECOVERED, [LOSS]),
    ]


def test_two_halves_mend_the_whole() -> None:
    lives = history(step(10, size=16), step(30, size=-8, before=116), step(40, size=-8, before=108))
    derived = of((LOSS, lives))
    assert states(derived) == [(10, 10, RECOVERED)]
    assert derived.incidents[0].closed == 40


def test_of_two_the_one_whose_size_fell_is_recovered() -> None:
    lives = history(step(10, size=6), step(20, size=20, before=106), step(30, size=-20, before=126))
    assert states(of((LOSS, lives))) == [(10, 10, OPEN), (20, 20, RECOVERED)]


def test_a_fall_by_the_very_sum_of_two_mends_both_and_is_no_improvement() -> None:
    # As pytorch_tabnet's pretraining went, whose scale was mended 40 commits later.
    first, second = step(10, size=183_123, error=40), step(20, size=1_058_840, before=183_223)
    fall = step(30, size=-1_241_933, before=1_242_063, error=150)
    doubted = step(30, size=-4_134_889, before=4_135_321, error=377_000, probability=0.837)
    training = history(step(10, size=4_686_640, before=414_000, error=2_175_000), doubted)
    derived = of((LOSS, history(first, second, fall)), (TIME, training))
    assert states(derived) == [(10, 10, RECOVERED), (20, 20, RECOVERED)]


def test_of_two_of_one_size_the_named_revert_mends_the_right_one() -> None:
    lives = history(step(10, size=8), step(20, size=8, before=108), step(30, size=-8, before=116))
    alone = of((LOSS, lives))
    assert [i.state for i in alone.incidents] == [OPEN, OPEN]
    names = CommitEvidence({30: 10}, lambda c, d: (c, d) == (30, 10))
    assert states(of((LOSS, lives), evidence=names)) == [
        (10, 10, RECOVERED),
        (20, 20, OPEN),
    ]


def test_the_code_of_before_an_incident_undoes_it_though_the_fall_is_not_sure() -> None:
    lives = history(
        step(10, size=8), step(20, size=8, before=108),
        step(30, size=-8, before=116, probability=0.7),
    )  # fmt: skip
    assert [i.state for i in of((LOSS, lives)).incidents] == [OPEN, OPEN]
    same = CommitEvidence({}, lambda c, d: False, same_code={LOSS[:2]: {30: 15}})
    derived = of((LOSS, lives), evidence=same)
    assert states(derived) == [(10, 10, OPEN), (20, 20, RECOVERED)]
    assert derived.incidents[1].closed == 30
    bad = CommitEvidence({}, lambda c, d: False, same_code={LOSS[:2]: {30: 20}})
    assert [i.state for i in of((LOSS, lives), evidence=bad).incidents] == [OPEN, OPEN]


def test_the_revert_mended_it_where_only_a_later_commit_was_measured() -> None:
    """The alert named the commit of a README after the revert: its code was known to be as before,
    and nothing was known of the revert's."""
    lives = history(step(20, size=8), step(29, 30, size=-8, before=108))
    said = CommitEvidence({29: 20}, lambda c, d: True, same_code={LOSS[:2]: {30: 15}})
    (incident,) = of((LOSS, lives), evidence=said).incidents
    assert (incident.state, incident.closed) == (RECOVERED, 29)


def test_the_code_of_before_an_incident_undoes_it_where_an_improvement_goes_too() -> None:
    lives = history(step(10, size=8), step(20, size=-12, before=108), step(30, size=4, before=96))
    assert states(of((LOSS, lives)))[0][2] is not RECOVERED
    same = CommitEvidence({}, lambda c, d: False, same_code={LOSS[:2]: {30: 5}})
    first, second = of((LOSS, lives), evidence=same).incidents
    assert (first.state, first.closed) == (RECOVERED, 30)
    assert (second.first, second.state) == (30, OPEN)  # what the improvement had gained


def test_the_files_that_a_mend_touches_count() -> None:
    lives = history(step(10, size=8), step(20, size=8, before=108), step(30, size=-8, before=116))
    touching = CommitEvidence({}, lambda c, d: d == 10)
    first, second = of((LOSS, lives), evidence=touching).incidents
    before, _ = of((LOSS, lives)).incidents
    assert first.mended > 0.8 > before.mended and first.mended > second.mended


def test_the_only_incident_is_mended_also_by_a_commit_that_touches_other_files() -> None:
    """It was open for ever although its level was that of before."""
    other = CommitEvidence({}, lambda c, d: False)
    rise, fall = step(10, size=6), step(30, size=-6, before=106)
    one = of((LOSS, history(rise, fall)), evidence=other).incidents[0]
    assert one.state is IncidentState.RECOVERED and one.mended < 0.95
    older = step(5, size=3.6, before=96.4)
    two = of((LOSS, history(older, rise, fall)), evidence=other)
    assert [state for *_, state in states(two)] == [OPEN, OPEN]
    mended = step(5, size=3.6, before=96.4), step(7, size=-3.6)
    again = of(
        (LOSS, history(*mended, step(10, size=6, before=96.4), step(30, size=-6, before=102.4))),
        evidence=other,
    )
    first, second = again.incidents
    assert second.state is IncidentState.RECOVERED and second.mended < 0.95 > first.mended


def test_a_commit_that_names_what_it_reverts_makes_a_doubted_fall_sure() -> None:
    lives = history(step(10, size=8), step(30, size=-8, before=108, probability=0.9))
    assert states(of((LOSS, lives)))[0][2] is not RECOVERED
    names = CommitEvidence({30: 10}, lambda c, d: True)
    assert states(of((LOSS, lives), evidence=names)) == [(10, 10, RECOVERED)]
    unlikely = history(step(10, size=8), step(30, size=-8, before=108, probability=0.2))
    assert states(of((LOSS, unlikely), evidence=names)) == [(10, 10, RECOVERED)]
    noise = history(step(10, size=8), step(30, size=-8, before=108, probability=0.02))
    assert states(of((LOSS, noise), evidence=names))[0][2] is not RECOVERED


def test_a_claim_to_revert_what_is_open_is_told_to_the_planner() -> None:
    lives = history(step(10, size=8), commits=31)
    names = CommitEvidence({30: 10}, lambda c, d: True)
    assert of((LOSS, lives), evidence=names).claims == ((LOSS, 30, 0.0),)
    assert of((LOSS, lives), evidence=CommitEvidence({30: 9}, lambda c, d: True)).claims == ()
    older = CommitEvidence({29: 10}, lambda c, d: True)
    assert of((LOSS, lives), evidence=older).claims == ()


def test_what_a_session_measured_is_not_undone_by_the_level_of_a_busy_machine() -> None:
    """The revert was recovered, and partly mended once a few jobs had raised the level after it:
    its size in one session no longer counted, being known no better than the levels."""
    rise = step(10, size=3.1, error=0.2, before=10.4)
    fall = step(30, size=-3.1, error=0.3, before=13.5)._replace(after=11.7, after_error=0.2)
    said = [open_at("aaaaaaaa", 10, state=RECOVERED)]
    assert states(of((LOSS, history(rise, fall)), said=said)) == [(10, 10, RECOVERED)]


def test_git_is_asked_only_of_incidents_that_a_fall_may_have_mended() -> None:
    rises = [step(10 * n, size=8, before=100 + 8 * n) for n in range(1, 11)]
    asked: set[int] = set()
    touches = CommitEvidence({}, lambda c, d: asked.add(d) is None)
    lives = history(*rises, step(150, size=-8, before=188), commits=160)
    assert states(of((LOSS, lives), evidence=touches))[-1] == (100, 100, OPEN)
    assert asked == {50, 60, 70, 80, 90, 100}


def test_a_metric_that_did_not_fall_speaks_against_a_mend() -> None:
    up = step(10, size=8)
    down = step(30, size=-8, before=108)
    one = of((LOSS, history(up, down)), (TIME, history(up)))
    assert states(one)[0][2] is not RECOVERED
    both = of((LOSS, history(up, down)), (TIME, history(up, down)))
    assert states(both) == [(10, 10, RECOVERED)]


def test_telemetry_keeps_no_incident_of_a_declared_metric_open() -> None:
    """A leak of x-transformers was reverted exactly; `peak_rss`, which nobody declared, had risen
    with it and then for another reason: the incident was partly mended for ever."""
    up = step(10, size=8)
    down = step(30, size=-8, before=108)
    lives = (LOSS, history(up, down)), (TIME, history(up))
    assert states(of(*lives))[0][2] is not RECOVERED
    (only,) = of(*lives, undeclared={TIME}).incidents
    assert (only.state, only.closed, set(only.shares)) == (RECOVERED, 30, {LOSS, TIME})
    alone = of((TIME, history(up)), undeclared={TIME})
    assert states(alone) == [(10, 10, OPEN)]


def test_metrics_of_one_incident_may_be_mended_one_by_one() -> None:
    up = step(10, size=8)
    mended = (LOSS, history(up, step(30, size=-8, before=108)))
    first = of(mended, (TIME, history(up)))
    assert states(first) == [(10, 10, PARTLY)] and not first.changes
    both = of(mended, (TIME, history(up, step(40, size=-8, before=108))))
    assert states(both) == [(10, 10, RECOVERED)] and both.incidents[0].closed == 40
    pair = of(mended, (OTHER, mended[1]), (TIME, history(up, step(40, size=-8, before=108))))
    assert states(pair) == [(10, 10, RECOVERED)]


def test_bits_that_come_back_mend_nothing_that_stays() -> None:
    """As the nodes of one task did, whose commit had made another task's loss worse: "is good
    again" was sent, and the loss was 13 deviations above."""
    loss = LOSS, history(step(10, size=7))
    nodes = TIME, history(step(10, size=150), step(30, size=-150, before=250, returns=9))
    assert states(of(loss, nodes)) == [(10, 10, PARTLY)]


def test_the_mend_of_another_incident_is_no_part_of_this_one() -> None:
    """The second one made only one metric worse; what mended it touched nothing else."""
    loss = history(step(10, size=8), step(20, size=8, before=108), step(30, size=-8, before=116))
    lives = [(LOSS, loss), (TIME, history(step(10, size=8)))]
    assert states(of(*lives)) == [(10, 10, OPEN), (20, 20, RECOVERED)]


def test_a_mend_counts_although_one_metric_is_unsure_where_its_rise_began() -> None:
    wide = history(step(10, 40, size=8), step(30, size=-8, before=108))
    lives = [(LOSS, history(step(10, size=8), step(30, size=-8, before=108))), (TIME, wide)]
    assert states(of(*lives)) == [(10, 10, RECOVERED)]


def test_a_smaller_fall_of_another_metric_is_an_improvement() -> None:
    derived = of((LOSS, history(step(10, size=8))), (TIME, history(step(30, size=-8))), floor=2)
    assert states(derived) == [(10, 10, OPEN)]
    assert [(k, s.first) for k, s in derived.changes] == [(TIME, 30)]


# Acts


def test_a_commit_may_mend_one_metric_and_improve_another() -> None:
    mended = history(step(10, size=20), step(30, size=-20, before=120))
    derived = of((LOSS, mended), (TIME, history(step(30, size=-20))))
    assert states(derived) == [(10, 10, RECOVERED)]
    assert [key for key, _ in derived.changes] == [TIME]


def test_a_doubted_fall_of_what_did_not_rise_says_nothing_of_a_mend() -> None:
    """An exact revert on a busy machine was "good again", and open once a fall of the same metric
    in another task was likelier than not."""
    mended = LOSS, history(step(10, size=8), step(30, size=-9.3, before=108, probability=0.9))
    faint = history(step(30, size=-7, before=108, error=2.0, probability=0.6))
    for others in ((), ((OTHER, faint),)):
        derived = of(mended, *others, said=[open_at("aaaaaaaa", 10, state=RECOVERED)])
        assert states(derived) == [(10, 10, RECOVERED)]
        assert not derived.changes


def test_what_rose_within_its_floor_is_mended_with_what_rose_beyond_it() -> None:
    large = history(step(10, size=8), step(30, size=-8, before=108))
    small = history(step(10, size=4), step(30, size=-4, before=104))
    derived = of((LOSS, large), (OTHER, small), floor=5)
    assert states(derived) == [(10, 10, RECOVERED)]
    assert not derived.changes


def test_an_accepted_commit_leaves_what_can_be_mended() -> None:
    lives = history(
        step(10, 12, size=8), step(20, size=8, before=108), step(30, size=-8, before=116)
    )
    acts = Acts(accepted={("core", "", ""): frozenset({11})})
    assert states(of((LOSS, lives), acts=acts)) == [(10, 12, ACCEPTED), (20, 20, RECOVERED)]
    other = Acts(accepted={("other", "", ""): frozenset({11})})
    assert states(of((LOSS, lives), acts=other))[0][2] is not ACCEPTED


def test_an_incident_is_accepted_by_its_name_or_in_one_metric() -> None:
    lives = [(LOSS, history(step(10, size=8))), (TIME, history(step(10, size=8)))]
    said = [open_at("aaaaaaaa", 10, keys=(LOSS, TIME))]
    by_name = of(*lives, said=said, acts=Acts(accepted_ids=frozenset({"aaaaaaaa"})))
    assert states(by_name) == [(10, 10, ACCEPTED)]
    one = of(*lives, said=said, acts=Acts(accepted={TIME: frozenset({10})})).incidents[0]
    assert one.state is OPEN
    assert {k: s.state for k, s in one.shares.items()} == {LOSS: OPEN, TIME: ACCEPTED}


def test_a_dismissed_incident_is_withdrawn_and_does_not_come_back_as_another() -> None:
    derived = of(
        (LOSS, history(step(10, size=8))),
        said=[open_at("aaaaaaaa", 10)],
        acts=Acts(dismissed_ids=frozenset({"aaaaaaaa"})),
    )
    assert [(i.id, i.state) for i in derived.incidents] == [("aaaaaaaa", WITHDRAWN)]
    assert not derived.suspected


def test_an_incident_of_a_task_that_was_removed_is_kept_as_it_was() -> None:
    derived = of((TIME, history()), said=[open_at("aaaaaaaa", 10)])
    assert states(derived) == [(10, 10, OPEN)]


def test_an_act_that_was_taken_back_accepts_nothing_any_more() -> None:
    said = [open_at("aaaaaaaa", 20, state=ACCEPTED, was_sure=True)]
    for lives in (DOUBTED, history(step(20, size=10))):
        assert states(of((LOSS, lives), said=said)) == [(20, 20, OPEN)]
        acts = Acts(accepted={("", "", ""): frozenset({20})})
        assert states(of((LOSS, lives), said=said, acts=acts)) == [(20, 20, ACCEPTED)]


def test_a_fall_that_may_have_mended_one_of_several_is_told() -> None:
    """A loss fell by 6 %, and neither `log` nor `drift` had a word of it: it might have mended a
    part of one of two open incidents, for neither of which that was sure."""
    derived = of((LOSS, history(step(10, size=12), step(20, size=12), step(40, size=-6))))
    assert [i.state for i in derived.incidents] == [OPEN, OPEN]
    assert [(key, s.first, s.size) for key, s in derived.changes] == [(LOSS, 40, -6)]


def test_a_revert_of_a_bad_commit_makes_nothing_worse_that_the_commit_improved() -> None:
    """The revert of a culprit was alerted as the first bad commit of a metric that the culprit had
    improved."""
    bad = history(step(20, size=12), step(40, size=-12, before=112, returns=19))
    improved = step(20, size=-12)
    for returns in (19, -1):
        back = step(40, size=12, before=88, returns=returns)
        derived = of((LOSS, bad), (TIME, history(improved, back)))
        opened = {i.first: i for i in derived.incidents}
        assert opened[20].state is RECOVERED
        assert (40 in opened) is (returns < 0)
        assert derived.changes == ((TIME, improved),) * (returns < 0)
    derived = of((TIME, history(improved, step(40, size=12, before=88, returns=19))))
    assert [i.first for i in derived.incidents] == [40]  # of an improvement alone it is one


# Slow drift


def test_a_metric_that_drifts_is_no_part_of_another_ones_step() -> None:
    said = [open_at("aaaaaaaa", 12, 14, keys=(LOSS, TIME))]
    drift = step(10, 40, size=12, kind=StepKind.DRIFT)
    derived = of((LOSS, history(drift)), (TIME, history(step(12, 14, size=9))), said=said)
    assert [(i.id, i.kind, i.first, i.last) for i in derived.incidents] == [
        ("aaaaaaaa", StepKind.DRIFT, 10, 40),
        ("", StepKind.STEP, 12, 14),
    ]


def test_a_drift_takes_the_oldest_incident_inside_and_the_others_join_it() -> None:
    said = [open_at("aaaaaaaa", 12, 14), open_at("bbbbbbbb", 25, 27), open_at("cccccccc", 50)]
    lives = history(
        step(10, 40, size=12, kind=StepKind.DRIFT), step(50, size=8, before=112), commits=70
    )
    drift, joined, beside = of((LOSS, lives), said=said).incidents
    assert (drift.id, drift.kind, drift.state) == ("aaaaaaaa", StepKind.DRIFT, OPEN)
    assert (drift.first, drift.last) == (10, 40)
    assert (joined.id, joined.joined, joined.state) == ("bbbbbbbb", "aaaaaaaa", WITHDRAWN)
    assert (beside.id, beside.kind, beside.state) == ("cccccccc", StepKind.STEP, OPEN)


def test_a_drift_that_is_not_sure_absorbs_nothing_until_it_was_told() -> None:
    steps = (
        step(10, 40, size=12, kind=StepKind.DRIFT, probability=0.7),
        step(12, 14, size=6),
    )
    assert of((LOSS, history(*steps)), said=[open_at("aaaaaaaa", 12)]).incidents[0].kind is (
        StepKind.STEP
    )
    drift = replace(open_at("aaaaaaaa", 10, 40), kind=StepKind.DRIFT)
    assert [i.kind for i in of((LOSS, history(*steps)), said=[drift]).incidents] == [StepKind.DRIFT]


def test_rises_within_the_floor_that_together_exceed_it_are_a_drift() -> None:
    rises = [step(10 * k, size=2, before=98 + 2 * k) for k in range(1, 5)]
    assert not of((LOSS, history(*rises[:2], commits=70)), floor=5).incidents
    (told,) = of((LOSS, history(*rises[:3], commits=70)), floor=5).incidents
    assert (told.kind, told.state, told.first, told.last) == (StepKind.DRIFT, OPEN, 10, 30)
    assert told.shares[LOSS].step.size == pytest.approx(6, rel=0.01)
    (grown,) = of((LOSS, history(*rises, commits=70)), floor=5).incidents
    assert (grown.first, grown.last) == (10, 40)


@pytest.mark.parametrize("between", [step(25, size=-3.9, before=104), step(25, size=8, before=104)])
def test_nothing_is_added_up_from_before_it_was_good_again_or_across_a_step(between: Step) -> None:
    small = [step(10, size=2), step(20, size=2, before=102)]
    after = [step(30, size=2, before=between.after), step(40, size=2, before=between.after + 2)]
    derived = of((LOSS, history(*small, between, *after, commits=70)), floor=5)
    assert [i.kind for i in derived.incidents] == [StepKind.STEP] * (between.size > 5)


def test_what_was_told_as_a_drift_stays_one_however_its_rises_are_parted() -> None:
    said = [replace(open_at("aaaaaaaa", 10, 30), kind=StepKind.DRIFT)]
    for parted in ([step(10, 30, size=6)], [step(10, 20, size=4), step(30, size=0.8, before=104)]):
        (told,) = of((LOSS, history(*parted, commits=70)), said=said, floor=5).incidents
        assert (told.id, told.kind, told.state) == ("aaaaaaaa", StepKind.DRIFT, OPEN)


def test_rises_are_added_up_from_the_level_that_was_accepted() -> None:
    said = [replace(open_at("aaaaaaaa", 10, 30), kind=StepKind.DRIFT, states={LOSS: ACCEPTED})]
    rises = [step(10 * k, size=2, before=98 + 2 * k) for k in range(1, 7)]
    acts = Acts(accepted_ids=frozenset({"aaaaaaaa"}))
    lives = history(*rises[:5], commits=90)
    assert states(of((LOSS, lives), said=said, acts=acts, floor=5)) == [(10, 30, ACCEPTED)]
    lives = history(*rises, commits=90)
    assert states(of((LOSS, lives), said=said, acts=acts, floor=5)) == [
        (10, 30, ACCEPTED), (40, 60, OPEN)
    ]  # fmt: skip


def test_a_fall_may_mend_what_was_accepted_with_what_is_open() -> None:
    lives = history(
        step(10, size=80), step(20, size=50, before=180), step(30, size=-130, before=230)
    )
    acts = Acts(accepted={("core", "", ""): frozenset({10})})
    assert states(of((LOSS, lives), acts=acts)) == [(10, 10, ACCEPTED), (20, 20, RECOVERED)]


# Short rises


def test_a_short_rise_that_was_sure_waits_for_a_control() -> None:
    derived = of((LOSS, DOUBTED), said=[SHORT])
    assert states(derived) == [(20, 20, OPEN)]
    assert derived.incidents[0].in_doubt
    assert [(k, s.likeliest, s.size) for k, s in derived.newest] == [(LOSS, 20, 10.0)]
    unsure = of((LOSS, DOUBTED), said=[replace(SHORT, was_sure=False)])
    assert states(unsure) == [(20, 20, WITHDRAWN)]


def test_a_bisect_that_found_no_change_clears_its_range() -> None:
    """It trained both ends in one session; a rise among two days' sessions opened nevertheless."""
    risen = history(step(20, size=10.0))
    assert states(of((LOSS, risen))) == [(20, 20, OPEN)]
    cleared = of((LOSS, risen), acts=Acts(cleared={LOSS: [(15, 20)]}))
    assert (cleared.incidents, cleared.suspected) == ((), ())
    beyond = of((LOSS, risen), acts=Acts(cleared={LOSS: [(20, 25)]}))
    assert states(beyond) == [(20, 20, OPEN)]


def test_no_control_is_asked_of_a_rise_within_the_floor() -> None:
    """A byte more at one commit, of a floor of 1024, cost four trials at the next one."""
    risen = history(step(20, size=10.0))
    assert [s.likeliest for _, s in of((LOSS, risen), floor=9.0).newest] == [20]
    assert not of((LOSS, risen), floor=11.0).newest


def test_a_short_rise_is_withdrawn_once_it_ran_again_and_is_doubted_still() -> None:
    control = Contrast(LOSS, 0, 20, 21, 0.0, 0.6)
    false = of((LOSS, DOUBTED), said=[SHORT], contrasts=[control])
    assert states(false) == [(20, 20, WITHDRAWN)]
    was = replace(SHORT, state=RECOVERED, states={LOSS: RECOVERED})
    assert states(of((LOSS, DOUBTED), said=[was], contrasts=[control])) == [(20, 20, RECOVERED)]
    risen = history(step(20, size=10, probability=0.97))
    assert not of((LOSS, risen)).incidents[0].was_sure
    assert of((LOSS, risen), contrasts=[control]).incidents[0].was_sure
    elsewhere = replace(control, old=19, new=20)
    assert states(of((LOSS, DOUBTED), said=[SHORT], contrasts=[elsewhere])) == [(20, 20, OPEN)]


def test_a_rise_that_the_noise_explains_now_is_withdrawn() -> None:
    loud = replace(DOUBTED, noise=TrialNoise(8.0, 40))
    assert states(of((LOSS, loud), said=[SHORT])) == [(20, 20, WITHDRAWN)]
    unmeasured = history(chains=[(0, 0, 19)], commits=20)
    assert states(of((LOSS, unmeasured), said=[SHORT])) == [(20, 20, WITHDRAWN)]


def test_derived_anew_from_what_was_told_nothing_changes() -> None:
    lives = [
        (
            LOSS,
            history(step(10, size=8), step(20, size=8, before=108), step(30, size=-16, before=116)),
        ),
        (TIME, history(step(10, 12, size=8), step(40, size=9, before=108))),
    ]
    first = of(*lives)
    said = [told(i, f"{n:08x}") for n, i in enumerate(first.incidents)]
    second = of(*lives, said=said)
    assert [replace(i, id="") for i in second.incidents] == list(first.incidents)


def test_sets_that_overlap_without_a_common_commit_are_both_kept() -> None:
    ends = CommitSet(0, 4, 0, np.array([0.5, 0, 0, 0, 0.5]))
    middle = CommitSet(1, 3, 1, np.array([0.3, 0.4, 0.3]))
    joint = ends.both(middle)
    assert (joint.first, joint.last, joint.weights.sum()) == (0, 4, 1.0)


@pytest.mark.parametrize(
    ("names", "first", "last", "expected"),
    [
        (("new",), 4, 6, IncidentState.ACCEPTED),  # a commit of its set is accepted
        (("new",), 6, 8, None),
        (("new", "kept"), 6, 8, IncidentState.ACCEPTED),  # by one of its names
        (("false",), 4, 6, IncidentState.WITHDRAWN),  # whatever was accepted, too
    ],
)
def test_what_a_person_decided_is_one_rule_for_every_kind(
    names: tuple[str, ...], first: int, last: int, expected: IncidentState | None
) -> None:
    acts = Acts({("s", "", "loss"): frozenset({5})}, frozenset({"kept"}), frozenset({"false"}))
    assert acts.state_of(names, ("s", "fit", "loss"), first, last) is expected
    assert acts.state_of(("new",), ("s", "fit", "operators"), first, last) is None


def test_a_fall_weighs_the_newest_of_many_open_rises_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    hypotheses = mends._hypotheses

    def noted(left: tuple[int, ...]) -> object:
        widths.append(len(left))
        return hypotheses(left)

    monkeypatch.setattr(mends, "_hypotheses", noted)
    rises = [step(place, size=10.0, before=100.0 + place) for place in range(40)]
    fall = step(50, size=-10.0, before=150.0)
    of((LOSS, history(*rises, fall)))
    assert widths and max(widths) <= mends.MOST_OPEN


@pytest.mark.parametrize("state", [WITHDRAWN, ACCEPTED])
def test_what_a_person_decided_does_not_come_back_as_a_suspicion(state: IncidentState) -> None:
    """It did once later trials left it in doubt, and each job spent trials on it."""
    said = [open_at("aaaaaaaa", 58, 59, state=state)]
    ids = frozenset({"aaaaaaaa"})
    acts = Acts(dismissed_ids=ids) if state is WITHDRAWN else Acts(accepted_ids=ids)
    doubted = history(step(59, size=8, probability=0.3))
    derived = of((LOSS, doubted), said=said, acts=acts)
    assert [(i.id, i.state) for i in derived.incidents] == [("aaaaaaaa", state)]
    assert not derived.suspected
    job = Job(head=59, chain=0, run=[59, 59], own=2, previous=58, earlier=30, left=6)
    assert next_trial({LOSS: doubted}, derived, job) is None
    probable = history(step(59, size=8, probability=0.9))
    assert not of((LOSS, probable), said=said, acts=acts).newest  # a control would open it again
    assert of((LOSS, probable)).newest
    beside = history(step(59, size=2), step(56, 59, size=8, probability=0.9))
    assert [s.first for _, s in of((LOSS, beside), said=said, acts=acts).suspected] == [56]
    by_place = Acts(accepted={("core", "", ""): frozenset({59})})
    assert not of((LOSS, doubted), acts=by_place).suspected
    assert of((LOSS, doubted)).suspected


def test_what_was_mended_does_not_become_a_false_alarm() -> None:
    """A step was slower at one commit by eleven deviations, until its exact revert. "Is good again"
    was followed by "was a false alarm", once the commits around it outweighed one session."""
    short = history(step(20, size=10, probability=0.1))
    for state, then in ((RECOVERED, RECOVERED), (OPEN, WITHDRAWN)):
        said = [open_at("aaaaaaaa", 20, state=state)]
        assert states(of((LOSS, short), said=said)) == [(20, 20, then)]
