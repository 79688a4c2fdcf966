"""Which operator-level faults do the suites tell? Puts thirty faults into torch, one at a time
(`injected/torch_faults.py`), and asks celedger's verdict on three trials with the fault against
three without (one where the three without are equal: such a task has no noise).

    python benchmarks/faults.py                      # everything; an hour on one core
    python benchmarks/faults.py --only gelu-tanh     # one fault
    python benchmarks/faults.py --first              # stop at the first task that tells a fault

Rule: a fault is caught when a declared quality metric of a task is judged regressed, improved or
not finite under the false-alarm budget of that task, or when its trials fail. Other bits in the
fingerprint are not a catch. A task that never calls the function at fault, and one whose first
trial repeats the good one to the last digit in every metric, is not run further: it cannot tell.
Exits 1 below 20 caught by `core` or 27 by both suites.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from suite_trials import CACHE, INJECTED, SEEDS, Caught, judge, run, tasks

sys.path.insert(0, str(INJECTED))
from torch_faults import FAULTS

INSTRUMENTS = ("linear_probe", "optimisers")
CORE, ALL = 20, 27  # faults to be caught


def called(suite, task, cache: Path) -> set[str]:
    """The faults whose function this task calls: one trial that counts and changes nothing."""
    kept = cache / f"called-{suite.name}-{task.name}-{task.recipe[:16]}.txt"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as place:
            counts = Path(place, "called.txt")
            extra = {"CELEDGER_INJECT": f"count:{counts}"}
            trial = run(suite, task, 0, cache=Path(place), extra=extra)
            if trial.error:
                raise SystemExit(f"{task.name}: {trial.error}")
            kept.write_text(counts.read_text())
    return set(kept.read_text().split())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="names of faults")
    parser.add_argument("--first", action="store_true", help="one task a fault and suite")
    parser.add_argument("--core", action="store_true", help="this suite only")
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    there = tasks("core", "wide")
    # The instruments first: they are the quickest, and `--first` stops at them.
    there = dict(sorted(there.items(), key=lambda pair: pair[0] not in INSTRUMENTS))
    calls = {
        name: called(suite, task, options.cache)
        for name, (suite, task) in there.items()
        if suite.name == "core" or not options.core
    }
    found: dict[str, dict[str, list[Caught]]] = {}
    for fault in options.only or FAULTS:
        found[fault] = {}
        for name, (suite, task) in there.items():
            known = {there[other][0].name for other in found[fault]}
            settled = options.first and ({suite.name, "core"} & known)
            if fault not in calls.get(name, ()) or settled:
                continue
            good = [run(suite, task, seed, cache=options.cache) for seed in SEEDS]
            extra, bad = {"CELEDGER_INJECT": fault}, []
            # Where no seed has a say, one trial is all there is to know.
            exact = all(trial.summaries == good[0].summaries for trial in good)
            for seed in SEEDS[:1] if exact else SEEDS:
                bad.append(run(suite, task, seed, cache=options.cache, extra=extra))
                if bad[0].summaries == good[0].summaries:
                    break
            if bad[0].summaries == good[0].summaries:
                continue
            told = judge(task, good, bad)
            if told:
                found[fault][name] = told
        by = "; ".join(
            f"{name}: {c[0].metric or 'the trial'} {c[0].how}" for name, c in found[fault].items()
        )
        print(f"{fault:24} {by or 'MISSED'}", flush=True)
    core = sum(any(there[n][0].name == "core" for n in tasks_) for tasks_ in found.values())
    both = sum(bool(tasks_) for tasks_ in found.values())
    print(f"of {len(found)} faults core tells {core}, core and wide together {both}")
    return int(not options.only and (core < CORE or both < ALL))


if __name__ == "__main__":
    sys.exit(main())
