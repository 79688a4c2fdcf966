"""How many chains of edits that change nothing does `celedger check .` call better? Each edit draws
all bits anew; a chain is twenty tries against one HEAD, and is wrong if any of them is "better".

    python benchmarks/null_edits.py [--worlds normal shared] [--chains 10] [--first 0]

The program, git, the ledger and what it knows of the noise are real, of eight seeds of another
commit; trainings are functions, in this process. A world is a kind of noise; `naive` counts the
chains in which some try is better by more than 1.96 standard errors. Exits 1 if more than 5 % of
all chains are wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from scripted import ScriptedProject, scripted

TRIES = 20
SD = 0.02
LOSS = """\
[metrics.{name}]
direction = "lower"
kind = "quality"
floor = "1%"
"""
SUITE = """\
[suite]
name = "null"
seeds = {seeds}
{metrics}
[[task]]
name = "fit"
command = "{{python}} {{suite}}/fit.py"
"""
NAMES = ("val_loss", "a_loss", "b_loss", "c_loss")
PEOPLE = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
          for what, value in (("NAME", "a"), ("EMAIL", "a@b.c"))}  # fmt: skip


def student(rng: Random) -> float:
    """Return a draw of Student's t with three degrees of freedom, scaled to a variance of one."""
    return rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2) / 3) / math.sqrt(3)


def values(world: str, draw: int, seed: int) -> list[float]:
    """Return what a training of these bits reports, with noise of SD (but for `collapse`)."""
    rng, of_seed = Random(f"{world} {draw} {seed}"), Random(f"{world} seed {seed}").gauss(0, 1)
    count = len(NAMES) if world == "metrics" else 1
    common, own = rng.gauss(0, 1), [rng.gauss(0, 1) for _ in range(count)]
    if world == "shared":  # most of the noise is the seed's, and stays
        return [1 + SD * (math.sqrt(0.8) * of_seed + math.sqrt(0.2) * own[0])]
    if world == "student":
        return [1 + SD * student(rng)]
    if world == "collapse":  # a seed in ten ends at another level
        return [1 + SD * own[0] + 0.3 * (rng.random() < 0.1)]
    if world == "accuracy":  # right of 500, as an error
        return [round((0.2 + SD * own[0]) * 500) / 500]
    if world == "metrics":  # four that move together
        return [1 + SD * (0.8 * common + 0.6 * x) for x in own]
    return [1 + SD * own[0]]  # normal, few


WORLDS = ("normal", "few", "shared", "student", "accuracy", "metrics", "collapse")


def training(world: str) -> object:
    def train(model: Mapping[str, object], seed: int) -> Iterator[dict[str, object]]:
        drawn = values(world, int(str(model["DRAW"])), seed)
        yield {"epoch": 0, **dict(zip(NAMES, drawn, strict=False))}

    return train


def check(project: ScriptedProject, draw: int) -> list[dict[str, object]]:
    """Try an edit. Return how its metrics stand."""
    (project.root / "model.py").write_text(f"DRAW = {draw}\n")
    done = project.run("check", ".", "--json")
    if done.status not in (0, 1, 125):
        raise SystemExit(done.err)
    answer = json.loads(done.out)
    return [s for s in answer["standings"] if s["metric"] in NAMES]


def chain(world: str, number: int, place: Path) -> dict[str, int]:
    """Measure the noise at a commit, then try twenty edits of the next one. Return counts."""
    seeds = [0] if world == "few" else [0, 1, 2]
    names = NAMES if world == "metrics" else NAMES[:1]
    suite = SUITE.format(seeds=seeds, metrics="".join(LOSS.format(name=name) for name in names))
    project = scripted(place, suite, training(world))  # type: ignore[arg-type]
    start = 100 * number
    project.commit("first", {"model.py": f"DRAW = {start + 98}\n"})
    project.run("noise", "--seeds", "5" if world == "few" else "8", "--repeats", "2")
    project.commit("second", {"model.py": f"DRAW = {start + 99}\n"})
    rows = [check(project, start + draw) for draw in range(TRIES)]
    error = SD * math.sqrt(2 / len(seeds))
    gains = [_gain(world, start + 99, start + draw, seeds) for draw in range(TRIES)]
    kinds = Counter(str(standing["standing"]) for row in rows for standing in row)
    return {"chains": 1, "wrong": kinds["better"] > 0, "naive": max(gains) > 1.96 * error, **kinds}


def _gain(world: str, head: int, edit: int, seeds: list[int]) -> float:
    """Return how much lower the best metric of a try is than HEAD's."""
    sides = [[values(world, draw, seed) for seed in seeds] for draw in (head, edit)]
    before, after = ([sum(x) / len(seeds) for x in zip(*side, strict=True)] for side in sides)
    return max(a - b for a, b in zip(before, after, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", nargs="+", default=WORLDS, choices=WORLDS)
    parser.add_argument("--chains", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first chain")
    options = parser.parse_args()
    os.environ |= PEOPLE
    total: Counter[str] = Counter()
    for world in options.worlds:
        counts: Counter[str] = Counter()
        began = time.monotonic()
        for number in range(options.first, options.first + options.chains):
            with tempfile.TemporaryDirectory(prefix="celedger-null-") as folder:
                counts.update(chain(world, number, Path(folder).resolve() / "project"))
        seconds = (time.monotonic() - began) / TRIES / options.chains
        print(
            json.dumps({"world": world, "seconds a try": round(seconds, 2), **counts}), flush=True
        )
        total += counts
    print(f"{total['wrong']} of {total['chains']} chains have a null edit called better")
    return int(total["wrong"] > 0.05 * total["chains"])


if __name__ == "__main__":
    raise SystemExit(main())
