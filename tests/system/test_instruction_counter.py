"""The counter of instructions, by what the kernel would answer: this machine may have none."""

from __future__ import annotations

import os
import struct

import pytest

from celedger.system.instruction_counter import Counter


def kernel(count: int, enabled: int, running: int) -> int:
    """Return a descriptor with the kernel's answer to one read."""
    read, write = os.pipe()
    os.write(write, struct.pack("=QQQ", count, enabled, running))
    os.close(write)
    return read


@pytest.mark.parametrize(
    ("answer", "number"),
    [((1000, 50, 50), 1000), ((1000, 50, 25), 2000), ((0, 50, 0), None)],
)
def test_a_count_is_scaled_by_the_time_for_which_the_kernel_counted(
    answer: tuple[int, int, int], number: float | None
) -> None:
    asked: list[int] = []

    def start(pid: int) -> int:
        asked.append(pid)
        return kernel(*answer)

    counter = Counter(7, start)
    assert (counter.read(), counter.problem, asked) == (number, "", [7])


def test_a_machine_without_counters_says_so_and_counts_nothing() -> None:
    def start(pid: int) -> int:
        raise OSError(2, "No such file or directory")

    counter = Counter(7, start)
    assert (counter.read(), counter.problem) == (None, "No such file or directory")


def test_the_real_kernel_counts_or_says_why_not() -> None:
    counter = Counter(0)
    assert (counter.read() is None) == bool(counter.problem)
