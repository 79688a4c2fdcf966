"""The queue: several merges are one job, and a job outlives the worker that held it."""

from __future__ import annotations

from celedger.base.model import JobState
from celedger.ledger import Ledger


def job(
    commit: str, key: str = "main", created: float = 1.0, kind: str = "check"
) -> tuple[str, str, str, float, str]:
    return kind, commit * 40, "core", created, key


def test_several_merges_in_a_row_become_one_job_for_the_newest(ledger: Ledger) -> None:
    first = ledger.queue.enqueue(*job("a"))
    ledger.queue.enqueue(*job("b", created=2.0))
    last = ledger.queue.enqueue(*job("c", created=3.0))
    assert ledger.queue.enqueue(*job("c", created=4.0)) == last  # the same merge, told twice
    assert [j.state for j in ledger.jobs()] == [JobState.SUPERSEDED, JobState.SUPERSEDED,
                                               JobState.QUEUED]  # fmt: skip
    assert ledger.jobs()[0].ended == 2.0
    claimed = ledger.queue.claim("worker")
    assert claimed is not None
    assert claimed.id == last.id != first.id
    assert claimed.commit == "c" * 40
    assert (claimed.attempts, claimed.owner) == (1, "worker")


def test_jobs_of_another_kind_or_key_or_without_one_stay(ledger: Ledger) -> None:
    ledger.queue.enqueue(*job("a", "main"))
    ledger.queue.enqueue(*job("b", "other"))
    ledger.queue.enqueue(*job("c", "main", kind="bisect"))
    ledger.queue.enqueue(*job("d", ""))
    ledger.queue.enqueue(*job("d", ""))
    assert [j.state for j in ledger.jobs()] == [JobState.QUEUED] * 5


def test_a_job_that_runs_is_not_superseded(ledger: Ledger) -> None:
    ledger.queue.enqueue(*job("a"))
    running = ledger.queue.claim("worker")
    assert running is not None
    ledger.queue.enqueue(*job("b"))
    assert [j.state for j in ledger.jobs()] == [JobState.RUNNING, JobState.QUEUED]


def test_the_oldest_job_is_claimed_once(ledger: Ledger) -> None:
    for commit in "ab":
        ledger.queue.enqueue(*job(commit, ""))
    claimed = [ledger.queue.claim("worker") for _ in range(3)]
    assert [c and c.commit[0] for c in claimed] == ["a", "b", None]


def test_a_dead_workers_job_is_claimed_anew_and_its_late_word_is_refused(ledger: Ledger) -> None:
    held = ledger.queue.enqueue(*job("a"))
    assert ledger.queue.claim("dead")
    assert ledger.queue.claim("next") is None
    assert ledger.queue.finish(held.id, "dead", JobState.QUEUED, 5.0, "its worker died")
    again = ledger.queue.claim("next")
    assert again is not None
    assert (again.id, again.attempts, again.owner) == (held.id, 2, "next")
    assert not ledger.queue.finish(held.id, "dead", JobState.DONE, 16.0)
    assert ledger.queue.finish(held.id, "next", JobState.DONE, 17.0, "no drift")
    assert not ledger.queue.finish(held.id, "next", JobState.FAILED, 18.0)
    (done,) = ledger.jobs(state=JobState.DONE)
    assert (done.message, done.ended) == ("no drift", 17.0)


def test_a_job_handed_back_waits_again(ledger: Ledger) -> None:
    held = ledger.queue.enqueue(*job("a"))
    ledger.queue.claim("worker")
    assert ledger.queue.finish(held.id, "worker", JobState.QUEUED, 1.0, "interrupted")
    again = ledger.queue.claim("other")
    assert again is not None
    assert (again.id, again.attempts, again.ended) == (held.id, 2, None)
