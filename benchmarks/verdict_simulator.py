"""Verdicts on simulated runs, commit after commit: delay, false alarms, extra trials, calibration.

    python benchmarks/verdict_simulator.py [--cases 400]

A repository has M metrics (300 by default, each with its own noise) judged at every commit with k
seeds; suspect metrics are run again with fresh seeds up to a budget, as `celedger check` does. The
loop here is the caller's: baselines hold the accepted commits and restart after a change.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from celedger.base.model import VerdictKind
from celedger.judge.drift.reruns import RERUNS
from celedger.stats.noise import Noise, pool
from celedger.stats.verdict import VerdictQuestion, judge, judge_many

CHANGED = (VerdictKind.REGRESSED, VerdictKind.IMPROVED)
Law = Callable[[np.random.Generator, int], np.ndarray]
LAWS: dict[str, Law] = {
    "normal": lambda random, n: random.standard_normal(n),
    "t3": lambda random, n: random.standard_t(3, n) * 0.882,
    "skewed": lambda random, n: (np.exp(0.5 * random.standard_normal(n)) - 1) * 1.963,
    "outliers": lambda random, n: (
        random.standard_normal(n) + (random.random(n) < 0.03) * random.choice([-12, 12], n)
    ),
    "discrete": lambda random, n: np.round(random.standard_normal(n) * 1.5) / 1.5,
    "collapse": lambda random, n: random.standard_normal(n) + 8.0 * (random.random(n) < 0.1),
}


@dataclass
class Tally:
    verdicts: int = 0
    alarms: int = 0
    undecided: int = 0
    trials: int = 0
    extra: int = 0


def check(
    law: Law,
    random: np.random.Generator,
    baselines: list[list[list[float]]],
    seeds: int,
    commit: int,
    tally: Tally,
    *,
    rerun: bool,
) -> list[list[float]]:
    """One HEAD without a change: judged, suspects run again until settled. Its values."""
    metrics = len(baselines)
    noises = [pool(b) for b in baselines]
    values = [law(random, seeds).tolist() for _ in range(metrics)]
    tally.trials += seeds * metrics
    while True:
        asked = zip(values, baselines, noises, strict=True)
        answers = judge_many(
            [VerdictQuestion(v, b, 1, noise=n, first=seeds) for v, b, n in asked], seed=commit
        )
        suspects = [
            m for m, a in enumerate(answers) if a.suspect and len(values[m]) < seeds + RERUNS
        ]
        if not suspects or not rerun:
            break
        tally.extra += len(suspects)  # as if every metric were a task of its own
        for m in suspects:
            values[m] += law(random, 1).tolist()
    tally.verdicts += metrics
    tally.alarms += sum(a.kind in CHANGED for a in answers)
    tally.undecided += sum(a.kind is VerdictKind.UNDECIDED for a in answers)
    return values


def calm(
    law: str, seeds: int, commits: range, metrics: int, histories: int, *, rerun: bool = True
) -> Tally:
    """Histories without a change, judged at the given commits."""
    tally = Tally()
    for h in range(histories):
        random = np.random.default_rng([1, sum(law.encode()), seeds, h])
        baselines = [
            [LAWS[law](random, seeds).tolist() for _ in range(commits.start)]
            for _ in range(metrics)
        ]
        for c in commits:
            values = check(LAWS[law], random, baselines, seeds, c, tally, rerun=rerun)
            for baseline, own in zip(baselines, values, strict=True):
                baseline.append(own)
    return tally


def delay(
    law: str, seeds: int, shift: float, baseline: int, cases: int, *, rerun: bool, metrics: int
) -> tuple[float, float, float]:
    """(mean delay in commits, share told on the very commit, extra trials a commit) of a shift
    after `baseline` quiet commits, the only one of `metrics` metrics that changed."""
    delays, extra, commits = [], 0, 0
    for case in range(cases):
        random = np.random.default_rng([2, sum(law.encode()), seeds, int(shift * 10), case])
        history = [LAWS[law](random, seeds).tolist() for _ in range(baseline)]
        noise = pool(history)
        for late in range(60):
            values = (LAWS[law](random, seeds) + shift).tolist()
            commits += 1
            while True:
                question = VerdictQuestion(values, history, 1, noise=noise, first=seeds)
                # Among quiet metrics e-BH asks of the only changed one what alpha / M asks.
                answer = judge_many([question], alpha=0.05 / metrics, seed=late)[0]
                if not rerun or not answer.suspect or len(values) >= seeds + RERUNS:
                    break
                values += (LAWS[law](random, 1) + shift).tolist()
                extra += 1
            if answer.kind in CHANGED:
                delays.append(late)
                break
            history.append(values)
        else:
            delays.append(60)
    return float(np.mean(delays)), float(np.mean(np.array(delays) == 0)), extra / commits


def settled(
    law: str, seeds: int, shift: float, commits: int, cases: int, metrics: int
) -> tuple[float, float, float]:
    """(share told by the first look, share told with re-runs, trials for each that was planned) of
    HEAD moved by `shift` against so many commits, one of `metrics` metrics."""
    first = last = trials = 0
    for case in range(cases):
        random = np.random.default_rng([8, case, commits, seeds])
        history = [LAWS[law](random, seeds).tolist() for _ in range(commits)]
        noise = pool(history)
        values = (LAWS[law](random, seeds) + shift).tolist()
        while True:
            question = VerdictQuestion(values, history, 1, noise=noise, first=seeds)
            answer = judge_many([question], alpha=0.05 / metrics, seed=case)[0]
            first += len(values) == seeds and answer.kind in CHANGED
            if not answer.suspect or len(values) >= seeds + RERUNS:
                break
            values += (LAWS[law](random, 1) + shift).tolist()
        last += answer.kind in CHANGED
        trials += len(values)
    return first / cases, last / cases, trials / cases / seeds


def calibration(cases: int, kept: Path | None) -> list[list[str]]:
    """How often an answer given at 90, 95 and 99 % is right: false alarms of a single metric, and
    the share of intervals that hold the true effect. `kept` is for calibration_plot.py.
    """
    rows, counts = [], []
    for law in ("normal", "t3", "outliers"):
        for commits in (1, 3, 6, 30):
            wrong = dict.fromkeys((0.1, 0.05, 0.01), 0)
            held = 0
            for case in range(cases):
                random = np.random.default_rng([3, sum(law.encode()), commits, case])
                baseline = LAWS[law](random, commits * 3).reshape(-1, 3).tolist()
                head = LAWS[law](random, 3)
                for alpha in wrong:
                    answer = judge(head.tolist(), baseline, sign=1, alpha=alpha)
                    wrong[alpha] += answer.kind in CHANGED
                held += answer.low < 0 < answer.high
            counts.append(
                {"noise": law, "commits": commits, "cases": cases, "wrong": list(wrong.values())}
            )
            rows.append(
                [
                    law,
                    str(commits),
                    *(f"{1 - w / cases:.3f}" for w in wrong.values()),
                    f"{held / cases:.3f}",
                ]
            )
    if kept is not None:
        kept.write_text("".join(json.dumps(line) + "\n" for line in counts))
    return rows


def sight(law: str, commits: int, cases: int) -> tuple[float, float]:
    """Of changes as large as the smallest one that is said to be seen, in one of ten metrics with
    three seeds: the share told at once, and the share that passes without a second look."""
    told = unseen = 0
    for i in range(cases):
        random = np.random.default_rng([5, i, commits])
        draws = LAWS[law](random, 30 * (commits + 1)).reshape(10, -1, 3)
        run = [VerdictQuestion(x[-1].tolist(), x[:-1].tolist(), 1) for x in draws]
        size = judge_many(run)[0].smallest
        run[0] = replace(run[0], values=[v + size for v in run[0].values])
        answer = judge_many(run)[0]
        told += answer.kind in CHANGED
        unseen += answer.kind in (VerdictKind.SAME, VerdictKind.TOO_NOISY) and not answer.suspect
    return told / cases, unseen / cases


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    print(title)
    for row in [head, *rows]:
        print("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)))
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--only", default="", help="tables whose title holds this text")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="its counts go there")
    options = parser.parse_args()
    cases = options.cases

    title = f"share of right answers where nothing changed, {cases} cases (single metric, 3 seeds)"
    if options.only in title:
        table(
            title,
            ["noise", "commits", "at 90%", "at 95%", "at 99%", "95% interval"],
            calibration(cases, options.calibration),
        )
    title = f"a change of the size that would have been seen, {cases} cases (10 metrics, 3 seeds)"
    if options.only in title:
        rows = []
        for law in LAWS:
            for commits in (1, 4, 7, 10, 15, 30):
                told, unseen = sight(law, commits, cases)
                rows.append([law, str(commits), f"{told:.3f}", f"{unseen:.3f}"])
        table(title, ["noise", "commits", "told at once", "passes unseen"], rows)
    title = f"re-runs at baselines of 1 to 20 commits, {cases} cases"
    if options.only in title:
        rows = []
        for law, seeds, shift, metrics in (
            ("normal", 3, 2.0, 1), ("normal", 3, 2.0, 10), ("normal", 1, 3.0, 1),
            ("normal", 1, 3.0, 10), *((law, k, 0.0, 10) for law in LAWS for k in (1, 3)),
        ):  # fmt: skip
            for commits in (1, 2, 3, 5, 7, 10, 15, 20):
                figures = settled(law, seeds, shift, commits, cases, metrics)
                row = [law, str(seeds), f"{shift:g}", str(metrics), str(commits)]
                rows.append([*row, *(f"{figure:.3f}" for figure in figures)])
        head = ["noise", "seeds", "shift", "metrics", "commits", "first look", "with re-runs"]
        table(title, [*head, "trials"], rows)
    for title, metrics, commits, histories in (
        (
            "nothing changes, 300 metrics, commits 41 to 80",
            300,
            range(40, 80),
            max(1, cases // 200),
        ),
        ("nothing changes, 300 metrics, commits 2 to 8", 300, range(1, 8), max(1, cases // 100)),
    ):
        if options.only not in title:
            continue
        rows = []
        for seeds in (1, 3):
            for law in LAWS:
                for rerun in (False, True):
                    tally = calm(law, seeds, commits, metrics, histories, rerun=rerun)
                    rows.append(
                        [
                            str(seeds),
                            law,
                            "yes" if rerun else "no",
                            str(tally.verdicts),
                            f"{1000 * tally.alarms / tally.verdicts:.3f}",
                            f"{1000 * tally.undecided / tally.verdicts:.1f}",
                            f"{tally.extra / tally.trials:.4f}",
                        ]
                    )
        head = ["seeds", "noise", "re-run", "verdicts", "alarms/1000", "undecided/1000"]
        table(title, [*head, "extra/trial"], rows)
    title = "mean delay in commits (share told on the very commit) of a shift in sd"
    if options.only in title:
        rows = []
        for metrics, seeds, baseline, rerun in (
            (10, 3, 3, True), (10, 3, 6, True), (10, 3, 60, True),
            (300, 1, 60, False), (300, 1, 60, True), (300, 3, 60, False), (300, 3, 60, True),
        ):  # fmt: skip
            for law in ("normal", "skewed"):
                row = [str(metrics), str(seeds), str(baseline), "yes" if rerun else "no", law]
                for shift in (1.0, 2.0, 4.0, 8.0):
                    found = delay(law, seeds, shift, baseline, cases, rerun=rerun, metrics=metrics)
                    row.append(f"{found[0]:.2f} ({found[1]:.2f})")
                rows.append(row)
        table(
            title,
            ["metrics", "seeds", "before", "re-run", "noise", "1", "2", "4", "8"],
            rows,
        )
    random = np.random.default_rng(4)
    noise = Noise(1.0, 100.0, False, 150)
    run = [
        VerdictQuestion(
            random.normal(size=3).tolist(), random.normal(size=(60, 3)).tolist(), 1, noise=noise
        )
        for _ in range(300)
    ]
    started = time.process_time()
    judge_many(run)
    print(f"300 verdicts from stored noise: {time.process_time() - started:.3f} CPU s")


if __name__ == "__main__":
    main()
