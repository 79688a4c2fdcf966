"""Of the answers of a bisect given at 90, 95 and 99 %, how many are right?

Every case draws its own range: 16, 64 or 256 commits, a shift of 1 to 8 sd (even in its log),
normal, Student-3 or outlying noise, three or ten trials stored at either end. The bisect is asked
for 90 % first, then for 95 and 99 %, going on with the trials it has.

    OMP_NUM_THREADS=1 python benchmarks/bisect_calibration.py --cases 2000 --out FILE
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from bisect_simulator import Cell, make, ours_at

CONFIDENCES = 0.9, 0.95, 0.99


def run(number: int) -> dict[str, object]:
    random = np.random.default_rng([7, number])
    cell = Cell(
        n=int(random.choice([16, 64, 256])),
        shift=float(np.exp(random.uniform(0, np.log(8)))),
        stored=int(random.choice([3, 10])),
        noise=str(random.choice(["gauss", "t3", "outlier"])),
    )
    answers = [(a.right, a.state, a.trials) for a in ours_at(make(cell, number), CONFIDENCES)]
    return {"case": number, "d": cell.shift, "noise": cell.noise, "answers": answers}


def groups(rows: list[dict]) -> dict[str, list[dict]]:
    """All ranges, those of each size of the shift, and those of each law of the noise."""
    return {
        "all": rows,
        **{f"{d} to {2 * d} sd": [r for r in rows if d <= r["d"] < 2 * d] for d in (1, 2, 4)},
        **{noise: [r for r in rows if r["noise"] == noise] for noise in ("gauss", "t3", "outlier")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="cases it holds are not run again")
    options = parser.parse_args()
    kept = options.out.read_text().splitlines() if options.out.exists() else []
    rows = [json.loads(line) for line in kept]
    lack = sorted(set(range(options.cases)) - {row["case"] for row in rows})
    with ProcessPoolExecutor(options.jobs) as pool, options.out.open("a") as out:
        for row in pool.map(run, lack, chunksize=5):
            rows.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
    for name, part in groups(rows).items():
        if not part:
            continue
        said = []
        for place, confidence in enumerate(CONFIDENCES):
            answers = [row["answers"][place] for row in part]
            given = [right for right, state, _ in answers if state != "searching"]
            trials = np.mean([trials for _, _, trials in answers])
            said.append(f"{confidence:.0%}: {np.mean(given):.1%} right, {trials:.1f} trials")
        print(f"{name:12s} {len(part):5d} cases   " + "   ".join(said))


if __name__ == "__main__":
    main()
