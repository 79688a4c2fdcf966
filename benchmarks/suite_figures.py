"""Are the suites what they say? Every task runs three times with one seed, in full:

- the fingerprints of every epoch are equal;
- processor seconds (median) and the largest memory, and what a whole suite takes with its seeds.

    python benchmarks/suite_figures.py               # both suites
    python benchmarks/suite_figures.py optimisers    # one task

With `--noise 5`, five seeds once each instead: mean and standard deviation of the declared quality
metrics.
Exits 1 where a task is not deterministic, crashes, or takes 1.5 GB or more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from suite_trials import CACHE, run, tasks

MOST_MEMORY = 1.5e9  # bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="names of tasks, or how they begin")
    parser.add_argument("--noise", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    faults, total = 0, {"core": 0.0, "wide": 0.0}
    for name, (suite, task) in tasks("core", "wide").items():
        if options.only and not name.startswith(tuple(options.only)):
            continue
        if options.noise:
            trials = [run(suite, task, seed, cache=options.cache) for seed in range(options.noise)]
            for metric in trials[0].summaries:
                values = [trial.summaries[metric] for trial in trials]
                level, sd = statistics.mean(values), statistics.stdev(values)
                share = f"{100 * sd / abs(level):.2g} %" if level else "-"
                print(f"{name:28} {metric:22} {level:10.5g}  sd {sd:.2g} ({share})", flush=True)
            continue
        trials = [run(suite, task, 0, cache=options.cache)]  # maybe of another benchmark
        for _ in range(2):
            with tempfile.TemporaryDirectory() as fresh:  # these are run now
                trials.append(run(suite, task, 0, cache=Path(fresh)))
        seconds = statistics.median(trial.seconds for trial in trials)
        memory = max(trial.memory for trial in trials)
        same = len({tuple(trial.fingerprints) for trial in trials}) == 1
        good = same and not any(t.error for t in trials) and memory < MOST_MEMORY
        faults += not good
        total[suite.name] += seconds * len(task.seeds)
        print(
            f"{name:28} {'deterministic' if same else 'NOT DETERMINISTIC':18}"
            f"{len(trials[0].fingerprints):3} epochs {seconds:6.1f} s {memory / 1e6:6.0f} MB",
            *(t.error for t in trials if t.error),
            flush=True,
        )
    for suite_name, seconds in total.items():
        if seconds:
            print(f"{suite_name}: {seconds:.0f} processor seconds for all tasks and seeds")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
