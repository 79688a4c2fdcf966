"""Memory and CPU of real trees of processes. (With a GPU: test_devices.py.)"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from celedger.system import process
from celedger.system.process import Running, Usage, run
from celedger.system.telemetry import Sampler

ENV = {"PATH": os.environ["PATH"]}


def test_the_memory_of_the_whole_tree_counts_orphans_too(tmp_path: Path) -> None:
    child = "kept = b'x' * 60_000_000; print('up', flush=True); import time; time.sleep(200)"
    script = f'(setsid {sys.executable} -S -c "{child}" &); exec {sys.executable} -S -c "{child}"'
    log = tmp_path / "log"
    with Running.start(["sh", "-c", script], cwd=tmp_path, env=ENV, log=log) as running:
        deadline = time.monotonic() + 60
        while log.read_text() != "up\nup\n":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        sampler = Sampler(None)
        sampler.sample(running.usage)
        figures = sampler.take()
        assert 120_000_000 < figures["rss"] < 250_000_000
        assert set(figures) <= {"rss", "cpu_share"}
        assert sampler.totals() == {"peak_rss": figures["rss"]}


@pytest.mark.matrix
def test_the_cpu_share_of_a_busy_process_is_about_one_core(tmp_path: Path) -> None:
    sampler = Sampler(None)
    shares: list[float] = []

    def on_tick(running: Running) -> None:
        sampler.sample(running.usage)
        if running.usage().cpu > 0.3 and not shares:
            shares.append(sampler.take()["cpu_share"])

    busy = "import time; e = time.process_time() + 0.5\nwhile time.process_time() < e: pass"
    done = run(
        [sys.executable, "-S", "-c", busy],
        cwd=tmp_path, env=ENV, log=tmp_path / "log", timeout=120, on_tick=on_tick,
    )  # fmt: skip
    assert done.ok
    assert 0.5 <= done.cpu < 1.5
    assert 0.05 < shares[0] <= 1.3  # this machine may be busy with other tests


def test_a_short_trial_still_has_figures(tmp_path: Path) -> None:
    sampler = Sampler(None)

    def on_tick(running: Running) -> None:
        sampler.sample(running.usage)
        (tmp_path / "sampled").touch()

    until_sampled = ["sh", "-c", "until [ -e sampled ]; do sleep 0.01; done"]
    done = run(
        until_sampled, cwd=tmp_path, env=ENV, log=tmp_path / "log", timeout=90, on_tick=on_tick
    )
    assert sampler.take()["rss"] > 0
    assert sampler.take()["rss"] > 0  # two epochs after the last sample share its figure
    assert done.max_rss > 0


def test_samples_are_taken_at_most_four_times_a_second() -> None:
    now, calls = [0.0], [0]

    def read() -> Usage:
        calls[0] += 1
        return Usage(1, (2,), 5, 0.0)

    sampler = Sampler(None, lambda: now[0])
    for _ in range(100):  # ten seconds of ticks
        sampler.sample(read)
        now[0] += 0.1
    assert 30 <= calls[0] <= 40


def test_cpu_time_goes_on_over_the_commands_of_a_trial_and_never_back() -> None:
    now = [0.0]
    sampler = Sampler(None, lambda: now[0])
    for usage in (
        Usage(1, (2,), 5, 1.0),
        Usage(1, (2, 3), 5, 3.0),
        Usage(1, (2,), 5, 2.5),  # the time of 3 is with nobody for a moment
        Usage(1, (2,), 5, 3.5),
        Usage(7, (8,), 5, 4.5),  # the next command
        Usage(),  # its end
    ):
        now[0] += 1.0
        sampler.sample(lambda usage=usage: usage)  # type: ignore[misc]
    now[0] += 2.0
    assert sampler.take()["cpu_share"] == pytest.approx(8.0 / 5.0)  # until it was last there
    now[0] += 2.0
    assert "cpu_share" not in sampler.take()  # its end was no idle time


def test_a_process_that_is_about_to_end_counts_with_what_it_held() -> None:
    """Its memory goes before its number: the last epoch of a training had an `rss` of 0."""
    now = [0.0]
    sampler = Sampler(None, lambda: now[0])
    sampler.sample(lambda: Usage(1, (2,), 5, 1.0))
    assert sampler.take()["rss"] == 5
    now[0] += 1.0
    sampler.sample(lambda: Usage(1, (2,), 0, 1.0))
    assert sampler.take()["rss"] == 5


def test_nothing_is_known_of_a_process_that_is_gone() -> None:
    assert process.usage(2**22 + 1) == Usage(2**22 + 1)
    sampler = Sampler(None)
    assert sampler.take() == {}
    assert sampler.totals() == {}
