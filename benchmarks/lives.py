"""Simulated lives of repositories: what is worse, since which commit, and is it over?

    OMP_NUM_THREADS=1 python benchmarks/lives.py --lives 20 --noise seed collapse session
    python benchmarks/lives.py --scenes                    # fixed scenes in place of lives
    python benchmarks/lives.py --lives 1 --noise seed --seed 17 --faults

celedger's judge is scored at every job (`lives/score.py`). Tables have the targets beside;
the command exits with 1 where one is missed by more than two standard errors. `--without` switches
a part of the judge off. `--faults` lists what was said wrongly, by life and job.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from lives import events, report
from lives.judges import PARTS, Judge
from lives.noise import KINDS
from lives.pure import PureJudge
from lives.scenes import SCENES
from lives.score import Score, play, total

Unit = tuple[str, int]
"""A kind of noise or the name of a scene, and the number of the life."""


def main() -> int:
    args = _arguments()
    judge = partial(PureJudge, tuple(args.without))
    units: list[Unit] = []
    for name in args.scene if args.scenes else args.noise:
        count = args.lives or (SCENES[name].lives if args.scenes else 20)
        units += [(name, args.seed + i) for i in range(count)]
    start, by_name = time.time(), {}
    for (name, _), score in _scores(units, partial(_one, args.scenes, judge), args.jobs):
        by_name.setdefault(name, []).append(score)
    scores = {name: total(parts) for name, parts in by_name.items()}
    if args.scenes:
        text, missed = report.scene_rows({n: (SCENES[n], s) for n, s in scores.items()})
    else:
        text, missed = report.tables(scores)
    print(text)
    print(f"{len(units)} lives from {args.seed} on, {time.time() - start:.0f} s.")
    if args.faults:
        print(*(fault for score in scores.values() for fault in score.faults), sep="\n")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lives", type=int, help="of each kind or scene (20, as a scene has it)")
    parser.add_argument("--noise", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--scenes", action="store_true", help="fixed scenes in place of lives")
    parser.add_argument("--scene", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--seed", type=int, default=0, help="number of the first life")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--without", nargs="+", choices=PARTS, default=[])
    parser.add_argument("--faults", action="store_true")
    args = parser.parse_args()
    args.scenes = args.scenes or any(a.startswith("--scene") for a in sys.argv)
    return args


def _one(scenes: bool, judge: Callable[[], Judge], unit: Unit) -> tuple[Unit, Score]:
    name, number = unit
    if not scenes:
        return unit, play(events.life(number, name), judge())[0]
    life = SCENES[name].make(number)
    score, details = play(life, judge())
    for cell, (hits, cases) in SCENES[name].ask(life, details).items():
        score.add(cell, hits, cases)
    return unit, score


def _scores(
    units: list[Unit], one: Callable[[Unit], tuple[Unit, Score]], jobs: int
) -> Iterator[tuple[Unit, Score]]:
    if jobs == 1:
        yield from map(one, units)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(one, units, chunksize=1)


if __name__ == "__main__":
    sys.exit(main())
