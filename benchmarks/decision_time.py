"""How long one decision of a bisect takes: posterior and choice, with trials stopped at rungs.

Ranges of 1,000 and 100,000 commits, in a line and with merges, a shift of 4 sd, 32 whole trials and
eight stopped at one of five rungs. Prints the best and the median of the processor times, in ms.

    OMP_NUM_THREADS=1 python benchmarks/decision_time.py
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from celedger.stats import partial
from celedger.stats.firstbad import Evidence, Question, Reading
from celedger.stats.lineage import GOOD, Lineage

SHIFT = 4.0
RUNGS = (1, 2, 4, 8, 12)  # of 16 epochs; what was stopped was at the third


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

    def read(position: int, seed: int, part: float = 1.0) -> Reading:
        level = part * SHIFT * (position >= first)
        return Reading(position, level + float(random.standard_normal()), seed)

    def near(count: int, width: float) -> list[int]:
        return [int(p) for p in np.clip(random.normal(first, width, count), 0, n - 2)]

    places = [GOOD] * 6 + [n - 1] * 6 + near(20, n / 50)
    whole = tuple(read(p, i) for i, p in enumerate(places))
    early = tuple(replace(r, value=0.8 * r.value) for r in whole)
    stopped = tuple(read(p, 100 + i, 0.8) for i, p in enumerate(near(8, n / 100)))
    one_more = read(first, 900, 0.8)
    last = read(first, 77)
    memory: partial.Memory = {}

    def rungs(before: tuple[Reading, ...], ended: tuple[Reading, ...]) -> tuple[partial.Rung, ...]:
        return tuple(
            partial.Rung(e, (1 + e) / 17, before, ended if e == RUNGS[2] else ()) for e in RUNGS
        )

    def timed(part: partial.Partial, readings: tuple[Reading, ...]) -> float:
        question, evidence = Question(lineage), Evidence(readings)
        start = time.process_time()
        partial.pick(question, evidence, part, partial.view(question, evidence, part))
        return time.process_time() - start

    def known(ended: tuple[Reading, ...], *more: Reading) -> partial.Partial:
        return partial.Partial(rungs=rungs((*early, *more), ended), memory=memory)

    return {
        "whole trials only": timed(partial.Partial(), whole),
        "first with rungs": timed(known(stopped), whole),
        "after a stopped trial": timed(known((*stopped, one_more)), whole),
        "after a whole trial": timed(known((*stopped, one_more), last), (*whole, last)),
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
