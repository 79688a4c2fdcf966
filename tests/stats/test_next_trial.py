"""Which extra trial a job asks for, from histories made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from celedger.stats.commit_evidence import CommitEvidence
from celedger.stats.course import MetricHistory, MetricKey, Step, StepKind, ToldIncident
from celedger.stats.incidents import derive
from celedger.stats.next_trial import Job, Wanted, Why, anchor, next_trial
from tests.stats.made_steps import LOSS, NO_FLOOR, NOISE, OTHER, TIME, history, open_at, step

HEAD = 59
LOUD = replace(NOISE, session=3.0)
QUIET = replace(NOISE, session=0.2)
PLAIN = Job(head=HEAD, chain=0, run=[HEAD, HEAD], own=2, previous=58, earlier=30, left=6)


def wanted(
    histories: Mapping[MetricKey, MetricHistory],
    job: Job,
    *,
    said: Sequence[ToldIncident] = (),
) -> Wanted | None:
    return next_trial(histories, derive(histories, said, floors=NO_FLOOR), job)


def doubt(probability: float = 0.4, size: float = 8) -> Step:
    return step(HEAD, size=size, probability=probability)


def test_nothing_in_doubt_asks_for_nothing() -> None:
    assert wanted({LOSS: history()}, PLAIN) is None
    assert wanted({LOSS: history(doubt(0.02, size=3))}, PLAIN) is None
    assert wanted({LOSS: history(doubt(0.96))}, PLAIN) is None


def test_no_budget_asks_for_nothing() -> None:
    assert wanted({LOSS: history(doubt())}, replace(PLAIN, left=0)) is None


# The start of a job


def test_the_first_jobs_run_head_twice() -> None:
    first = replace(PLAIN, run=[HEAD], own=1, previous=None, earlier=0)
    assert wanted({LOSS: history()}, first) == Wanted(HEAD, None, Why.REPEAT)
    assert wanted({LOSS: history()}, replace(first, run=[HEAD] * 3)) is None
    third = replace(first, previous=58, earlier=3)
    assert wanted({LOSS: history()}, third) == Wanted(HEAD, None, Why.REPEAT)
    assert wanted({LOSS: history()}, replace(third, run=[HEAD] * 2)) is None
    assert wanted({LOSS: history()}, replace(third, earlier=4)) is None


def test_a_new_chain_runs_the_anchor_as_often_as_head() -> None:
    lives = {LOSS: history(chains=[(0, 0, 58), (1, 59, 59)])}
    assert anchor(lives, HEAD, 1) == 58
    job = replace(PLAIN, chain=1, anchor=58, run=[HEAD] * 3, own=3)
    for _ in range(3):
        assert wanted(lives, job) == Wanted(58, None, Why.ANCHOR, HEAD)
        job = replace(job, run=[*job.run, 58])
    assert wanted(lives, job) is None
    single = replace(job, run=[HEAD, 58, 58], own=1)
    assert wanted(lives, single) == Wanted(HEAD, None, Why.ANCHOR, 58)


def test_a_chain_seen_within_the_last_twenty_measured_commits_needs_no_anchor() -> None:
    for last, place in ((45, None), (30, 58)):
        lives = {LOSS: history(chains=[(1, 0, last), (0, last, 59)])}
        assert anchor(lives, HEAD, 1) == place
    assert anchor({}, HEAD, 1) is None


def test_a_chain_that_an_earlier_job_left_without_an_anchor_gets_one() -> None:
    """An upgrade, four tasks, six extra trials: two tasks had no commit in both environments."""
    lives = {LOSS: history(chains=[(0, 0, 56), (1, 57, 59)])}
    assert anchor(lives, HEAD, 1) == 56
    job = replace(PLAIN, chain=1, anchor=56, run=[HEAD] * 3, own=3)
    assert wanted(lives, job) == Wanted(56, None, Why.ANCHOR, HEAD)
    assert anchor({LOSS: history(chains=[(0, 0, 30), (1, 31, 59)])}, HEAD, 1) is None  # long ago


def test_the_first_sessions_run_the_commit_before_once_more() -> None:
    job = replace(PLAIN, earlier=5, has_sessions={TIME})
    lives = {TIME: history(noise=QUIET)}
    assert wanted(lives, job) == Wanted(58, TIME, Why.BESIDE, HEAD)
    assert wanted(lives, replace(job, run=[HEAD, 58])) is None
    assert wanted(lives, replace(job, earlier=6)) is None
    assert wanted(lives, replace(job, has_sessions=())) is None


def test_where_sessions_differ_much_head_always_runs_beside_the_commit_before() -> None:
    job = replace(PLAIN, has_sessions={TIME})
    assert wanted({TIME: history(noise=LOUD)}, job) == Wanted(58, TIME, Why.BESIDE, HEAD)


def test_a_commit_that_says_it_reverts_what_is_open_runs_beside_the_one_before() -> None:
    """A busy machine hid the fall of a step time: no trial was asked for, and it stayed open."""
    names = CommitEvidence({HEAD: 30}, lambda c, d: True)
    job = replace(PLAIN, has_sessions={TIME})
    for fell, most in ((), 2), ((step(HEAD, size=-8, before=108, probability=0.02),), 4):
        lives = {TIME: history(step(30, size=8), *fell, noise=QUIET)}
        derived, run = derive(lives, [], floors=NO_FLOOR, evidence=names), [HEAD, HEAD]
        for _ in range(2 * most - 2):
            asked = next_trial(lives, derived, replace(job, run=run))
            assert asked is not None
            run.append(asked.place)
        assert next_trial(lives, derived, replace(job, run=run)) is None
        assert (run.count(58), run.count(HEAD)) == (most, most)
    named_before = replace(PLAIN, has_sessions={TIME}, previous=HEAD)
    assert next_trial(lives, derived, named_before) is None


# Doubts


def test_a_doubt_asks_for_the_side_with_fewer_trials() -> None:
    lives = {LOSS: history(doubt())}
    assert wanted(lives, PLAIN) == Wanted(HEAD, LOSS, Why.AGAIN, 58)
    recent = {LOSS: history(step(58, size=5), step(59, size=-5, before=105, probability=0.4))}
    nodes = list(recent[LOSS].nodes)
    nodes[59] = nodes[59]._replace(rows=(1, 2, 3))
    recent = {LOSS: replace(recent[LOSS], nodes=tuple(nodes))}
    assert wanted(recent, PLAIN) == Wanted(58, LOSS, Why.BESIDE, HEAD)


def test_an_older_rise_is_asked_about_or_leaves_the_list() -> None:
    """A rise of 4.5 % that was not the newest step got no trial more, was listed for good, and
    `check` was undecided by it."""
    for probability, is_listed in ((0.045, False), (0.6, True)):
        newest = step(HEAD, size=-8, before=108, probability=0.01)
        lives = {LOSS: history(step(50, size=8, probability=probability), newest)}
        derived = derive(lives, [], floors=NO_FLOOR)
        assert [s.first for _, s in derived.suspected] == [50] * is_listed
        asked = Wanted(50, LOSS, Why.AGAIN, 49) if is_listed else None
        assert next_trial(lives, derived, PLAIN) == asked
    assert [
        s.first for _, s in derive({LOSS: history(doubt(0.045))}, [], floors=NO_FLOOR).suspected
    ] == [HEAD]


def test_a_step_within_its_floor_asks_for_nothing() -> None:
    """Twenty bytes a step more, of a floor of 1,024: no trial could make them count."""
    lives = {LOSS: history(doubt())}
    derived = derive(lives, [], floors=NO_FLOOR)
    assert next_trial(lives, derived, PLAIN, floors={LOSS: lambda _: 20.0}) is None
    assert next_trial(lives, derived, PLAIN, floors={LOSS: lambda _: 8.0}) is not None
    unknown = {LOSS: history(doubt(), noise=replace(NOISE, freedom=0.0))}
    assert next_trial(unknown, derived, PLAIN, floors={LOSS: lambda _: 20.0}) is not None


def test_telemetry_that_is_sure_answers_no_declared_metric() -> None:
    """A step of x-transformers was 31 % slower (47 %), and not asked about: `peak_rss`, which the
    suite does not declare and no worker searches, was sure at the same commit."""
    lives = {LOSS: history(doubt()), TIME: history(doubt(1.0))}
    derived = derive(lives, [], floors=NO_FLOOR)
    assert next_trial(lives, derived, PLAIN) is None
    declared = {LOSS: lives[LOSS]}
    assert next_trial(declared, derived, PLAIN) == Wanted(HEAD, LOSS, Why.AGAIN, 58)


def test_a_far_value_of_few_trials_is_tried_again() -> None:
    """An outlier explains it so well that a rise of eight deviations was never asked for."""
    lives = {LOSS: history(doubt(0.015))}
    assert wanted(lives, PLAIN) == Wanted(HEAD, LOSS, Why.AGAIN, 58)
    assert wanted({LOSS: history(step(50, size=8, probability=0.015))}, PLAIN) is None
    nodes = [node._replace(rows=(1, 2, 3)) for node in lives[LOSS].nodes]
    assert wanted({LOSS: replace(lives[LOSS], nodes=tuple(nodes))}, PLAIN) is None


def test_a_fall_is_doubted_also_where_the_rise_before_it_is_not_told_yet() -> None:
    fall = step(HEAD, size=-8, before=108, probability=0.3)
    lives = {LOSS: history(step(55, size=8, probability=0.94), fall)}
    asked = wanted(lives, PLAIN)
    assert asked is not None and asked.key == LOSS
    assert wanted({LOSS: history(step(55, size=8, probability=0.4), fall)}, PLAIN) is None


def test_of_all_metrics_the_greatest_doubt_asks() -> None:
    lives = {LOSS: history(doubt(0.9)), TIME: history(doubt(0.5))}
    asked = wanted(lives, PLAIN)
    assert asked is not None and asked.key == TIME


def test_a_metric_with_sessions_runs_both_sides_in_turns() -> None:
    lives = {TIME: history(doubt(), noise=QUIET)}
    job = replace(PLAIN, has_sessions={TIME}, run=[HEAD, HEAD])
    assert wanted(lives, job) == Wanted(58, TIME, Why.BESIDE, HEAD)
    job = replace(job, run=[HEAD, HEAD, 58, 58])
    assert wanted(lives, job) == Wanted(HEAD, TIME, Why.AGAIN, 58)


def test_without_repeats_the_first_doubt_asks_for_head_again() -> None:
    few = replace(NOISE, freedom=0)
    for probability in (0.4, 0.99):
        lives = {LOSS: history(doubt(probability), noise=few)}
        assert wanted(lives, PLAIN) == Wanted(HEAD, LOSS, Why.REPEAT)
    assert wanted({LOSS: history(noise=few)}, PLAIN) is None


def test_where_bits_repeat_a_new_seed_runs_on_both_sides() -> None:
    exact = replace(NOISE, is_exact=True)

    def asked(old: tuple[int, ...], new: tuple[int, ...], *, job: Job = PLAIN) -> Wanted | None:
        step = doubt(0.02)._replace(unpaired=(old, new))
        return wanted({LOSS: replace(history(step, noise=exact), by_seeds=True)}, job)

    assert asked((), ()) == Wanted(HEAD, LOSS, Why.AGAIN, 58)
    assert asked((), (5,)) == Wanted(58, LOSS, Why.BESIDE, HEAD, seed=5)
    assert asked((4, 6), ()) == Wanted(HEAD, LOSS, Why.AGAIN, 58, seed=4)
    later = replace(PLAIN, head=HEAD + 1, run=[HEAD + 1] * 2)  # of other bits: it tells less
    assert asked((4,), (), job=later) == Wanted(HEAD, LOSS, Why.AGAIN, 58, seed=4)


def test_a_fall_is_worth_a_trial_only_while_something_is_open() -> None:
    fall = step(HEAD, size=-8, before=108, probability=0.9)
    assert wanted({LOSS: history(fall)}, PLAIN) is None
    asked = wanted({LOSS: history(step(10, size=8), fall)}, PLAIN)
    assert asked is not None and asked.why is Why.AGAIN


def test_only_the_present_chain_is_asked() -> None:
    lives = {LOSS: history(step(30, size=8, probability=0.4), chains=[(0, 0, 40), (1, 30, 59)])}
    assert wanted(lives, replace(PLAIN, chain=1)) is None


# Controls


RISE = step(58, size=10, probability=0.9)
FALLEN = {LOSS: history(step(58, size=10, probability=0.02))}


def test_a_rise_that_is_doubted_runs_again_beside_a_lower_head() -> None:
    job = replace(PLAIN, newest=[(LOSS, RISE)])
    assert wanted(FALLEN, job) == Wanted(58, LOSS, Why.RISEN, HEAD)
    doubted = {LOSS: history(step(58, size=10, probability=0.2))}
    turn = wanted(doubted, replace(job, run=[HEAD, HEAD, 58, 58, 58]))
    assert turn == Wanted(HEAD, LOSS, Why.RISEN, 58)
    done = wanted(doubted, replace(job, run=[HEAD] * 4 + [58] * 4))
    assert done is None or done.why is not Why.RISEN


def test_a_rise_that_is_no_more_doubted_after_two_trials_runs_no_third_one() -> None:
    job = replace(PLAIN, newest=[(LOSS, RISE)], run=[HEAD, HEAD, 58])
    gone = {LOSS: history(step(58, size=10, probability=0.01))}
    assert wanted(gone, job) == Wanted(58, LOSS, Why.RISEN, HEAD)
    assert wanted(gone, replace(job, run=[*job.run, 58])) is None


def test_a_rise_is_not_controlled_while_head_is_as_high_or_its_step_stands() -> None:
    job = replace(PLAIN, newest=[(LOSS, RISE)])
    stands = {LOSS: history(step(58, size=10, probability=0.99))}
    assert wanted(stands, job) is None
    high = {LOSS: history(step(58, size=10, probability=0.6))}
    asked = wanted(high, job)
    assert asked is not None and asked.why is not Why.RISEN


def test_equal_seeds_tell_that_head_is_as_high_as_a_doubted_rise() -> None:
    """Where other seeds ran at HEAD, its level of fresh seeds says nothing."""
    lives = {LOSS: replace(history(RISE._replace(probability=0.8)), by_seeds=True)}
    nodes = list(lives[LOSS].nodes)
    nodes[HEAD] = nodes[HEAD]._replace(level=100.0)
    lives = {LOSS: replace(lives[LOSS], nodes=tuple(nodes))}
    job = replace(PLAIN, newest=[(LOSS, RISE)])
    assert wanted(lives, job) == Wanted(58, LOSS, Why.AGAIN, 57)


def test_equal_seeds_tell_a_fall_by_pairs_not_by_more_seeds_of_the_rise() -> None:
    """Four trials of the commit that rose had seeds that neither HEAD nor the commit before had."""
    job = replace(PLAIN, newest=[(LOSS, RISE)])
    for unpaired, expected in (
        (((3, 4), ()), Wanted(HEAD, LOSS, Why.AGAIN, 58, seed=3)),
        (((), (7,)), Wanted(58, LOSS, Why.BESIDE, HEAD, seed=7)),
    ):
        fall = step(HEAD, size=-10, before=110, probability=0.2)._replace(unpaired=unpaired)
        lives = {LOSS: replace(history(RISE._replace(probability=0.8), fall), by_seeds=True)}
        assert wanted(lives, job) == expected


def test_a_sure_fall_that_several_could_explain_asks_for_the_commit_before_the_likeliest() -> None:
    lives = {
        LOSS: history(
            step(10, size=8), step(20, size=8, before=108), step(HEAD, size=-8, before=116)
        )
    }
    said = [open_at("aaaaaaaa", 10), open_at("bbbbbbbb", 20)]
    asked = wanted(lives, PLAIN, said=said)
    assert asked == Wanted(19, LOSS, Why.CONTROL, HEAD, "bbbbbbbb")
    turn = wanted(lives, replace(PLAIN, run=[HEAD, HEAD, 19, 19]), said=said)
    assert turn == Wanted(HEAD, LOSS, Why.CONTROL, 19, "bbbbbbbb")
    assert wanted(lives, replace(PLAIN, asked={"": 4}), said=said) is None
    spent = wanted(lives, replace(PLAIN, asked={"bbbbbbbb": 8}), said=said)
    assert spent is None or spent.incident == "aaaaaaaa"


def test_telemetry_that_fell_asks_for_no_control() -> None:
    """It stopped a job of x-transformers: `peak_rss` of the incident is none of the metrics that
    may ask."""
    fell = history(step(10, size=8), step(20, size=8, before=108), step(HEAD, size=-8, before=116))
    derived = derive(
        {LOSS: fell, TIME: fell}, [open_at("aaaaaaaa", 10), open_at("bbbbbbbb", 20)],
        floors=NO_FLOOR,
    )  # fmt: skip
    assert any(TIME in incident.shares for incident in derived.incidents)
    asked = next_trial({LOSS: fell}, derived, PLAIN)
    assert asked is not None and (asked.key, asked.why) == (LOSS, Why.CONTROL)
    other = next_trial({OTHER: history()}, derived, PLAIN)
    assert other is None


def test_a_slow_drift_of_one_metric_settles_no_doubt_of_another() -> None:
    """`topographic_error` of one task was "suspected, not settled" for nine jobs without a trial:
    that of another task drifted meanwhile."""
    drift = step(20, HEAD, size=12, kind=StepKind.DRIFT)
    for key, is_asked in ((OTHER, True), (LOSS, False)):
        lives = {LOSS: history(drift, *[doubt()] * (key == LOSS)), OTHER: history()}
        if key == OTHER:
            lives[OTHER] = history(doubt())
        assert (wanted(lives, PLAIN) is not None) is is_asked
