"""How long one decision of a bisect takes: posterior and choice, with trials stopped at equal bits;
the choice alone beside 15 trials under way.

Ranges of 1,000 and 100,000 commits, in a line and with merges, a shift of 4 sd, 32 whole trials and
eight stopped ones. Prints the best and the median of the processor times, in ms.

    OMP_NUM_THREADS=1 python benchmarks/decision_time.py
"""

from __future__ import annotations

import time

import numpy as np

from celedger.stats import choice, equal_bits
from celedger.stats.choice import UnderWay
from celedger.stats.firstbad import Evidence, Question, Reading
from celedger.stats.lineage import GOOD, Lineage

SHIFT = 4.0
WORKERS = 16


def merging(n: int) -> Lineage:
    """A history in which every fifth commit merges a branch of four."""
    parents: list[tuple[int, ...]] = [()]
    for i in range(1, n):
        branch = {0: (i - 1, i - 5), 1: (i - 5,)}.get(i % 5) if i > 6 else None
        parents.append(branch or (i - 1,))
    return Lineage(tuple(parents))


def decisions(lineage: Lineage, random: np.random.Generator) -> dict[str, float]:
    """Seconds of the decisions of a search that starts from stored trials and goes on twice."""
    n = len(lineage)
    first = n // 3

    def read(position: int, seed: int) -> Reading:
        return Reading(
            position, SHIFT * (position >= first) + float(random.standard_normal()), seed
        )

    def near(count: int, width: float) -> list[int]:
        return [int(p) for p in np.clip(random.normal(first, width, count), 0, n - 2)]

    places = [GOOD] * 6 + [n - 1] * 6 + near(20, n / 50)
    whole = tuple(read(p, i) for i, p in enumerate(places))
    stopped = near(8, n / 100)
    alike = (
        frozenset({GOOD, *(p for p in stopped if p < first)}),
        frozenset({n - 1, *(p for p in stopped if p >= first)}),
    )

    def timed(positions: tuple[frozenset[int], ...], *more: Reading) -> float:
        question, evidence = Question(lineage), Evidence((*whole, *more))
        start = time.process_time()
        equal_bits.pick(question, evidence, equal_bits.view(question, evidence, positions))
        return time.process_time() - start

    def beside_others() -> float:
        question, evidence = Question(lineage), Evidence(whole)
        view, cost = equal_bits.view(question, evidence), choice.Cost()
        beside = UnderWay(tuple(near(WORKERS - 1, n / 50)), WORKERS)
        start = time.process_time()
        equal_bits.pick(question, evidence, view, cost, beside)
        return time.process_time() - start

    return {
        "beside 15 trials": beside_others(),
        "whole trials only": timed(()),
        "with stopped ones": timed(alike),
        "after a whole trial": timed(alike, read(first, 77)),
    }


def main() -> None:
    for n, rounds in ((1000, 9), (100_000, 3)):
        for name, lineage in (("line", Lineage.line(n)), ("merges", merging(n))):
            runs = [decisions(lineage, np.random.default_rng(i)) for i in range(rounds)]
            for what in runs[0]:
                ms = sorted(1e3 * run[what] for run in runs)
                print(
                    f"{n:7d} {name:7s} {what:22s} {ms[0]:6.0f} {ms[len(ms) // 2]:6.0f}", flush=True
                )


if __name__ == "__main__":
    main()
