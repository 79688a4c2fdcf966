"""Draws how many answers given at 90, 95 and 99 % were right, of bisects and of verdicts.

python benchmarks/bisect_calibration.py --out BISECTS
python benchmarks/verdict_simulator.py --only "right answers" --calibration VERDICTS
python benchmarks/calibration_plot.py BISECTS VERDICTS docs/images/calibration.png
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import matplotlib.pyplot as plt
from bisect_calibration import CONFIDENCES, groups
from matplotlib.axes import Axes
from scipy.stats import binomtest

NOISES = {
    "gauss": "normal", "normal": "normal", "t3": "Student-3", "outlier": "outlying",
    "outliers": "outlying",
}  # fmt: skip
SAID = {"all": "all bisects", **{law: f"{name} noise" for law, name in NOISES.items()}}
COLOURS = "#4477aa", "#228833", "#cc6677"  # Paul Tol's bright scheme: told apart by everyone
Groups = Mapping[str, Sequence[Sequence[bool]]]  # for each confidence, whether each was right


def bisects(file: Path) -> Groups:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {
        f"{SAID.get(name, name)} ({len(part)})": [
            [right for right, state, _ in (row["answers"][place] for row in part)
             if state != "searching"]
            for place in range(len(CONFIDENCES))
        ]
        for name, part in groups(rows).items()
    }  # fmt: skip


def verdicts(file: Path) -> Groups:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    groups = {
        f"{NOISES[row['noise']]}, {row['commits']} commits before ({row['cases']})": [
            [True] * (row["cases"] - wrong) + [False] * wrong for wrong in row["wrong"]
        ]
        for row in rows
    }
    everything = [list(chain(*parts)) for parts in zip(*groups.values(), strict=True)]
    return {f"all verdicts ({len(everything[0])})": everything, **groups}


def draw(axes: Axes, groups: Groups, title: str) -> None:
    for place, answers in enumerate(groups.values()):
        for shift, confidence, colour, given in zip(
            (-0.2, 0, 0.2), CONFIDENCES, COLOURS, answers, strict=True
        ):
            share = sum(given) / len(given)
            held = binomtest(sum(given), len(given)).proportion_ci(0.95, "wilson")
            axes.plot([held.low, held.high], [place + shift] * 2, color=colour, lw=1.2)
            axes.plot(share, place + shift, "o", color=colour, ms=4, label=f"{confidence:.0%}")
    for confidence, colour in zip(CONFIDENCES, COLOURS, strict=True):
        axes.axvline(confidence, color=colour, lw=0.8, ls=":")
    axes.set_yticks(range(len(groups)), groups)
    axes.invert_yaxis()
    axes.set_xticks([0.85, *CONFIDENCES, 1], ["85 %", "90 %", "95 %", "99 %", ""])
    axes.set_xlim(0.85, 1.002)
    axes.set_xlabel("right answers, with 95 % interval")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bisects", type=Path)
    parser.add_argument("verdicts", type=Path)
    parser.add_argument("image", type=Path)
    options = parser.parse_args()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    draw(left, bisects(options.bisects), "Bisect: the right commit was named")
    draw(right, verdicts(options.verdicts), "Verdict: no alarm where nothing changed")
    handles = left.get_lines()[1 : 2 * len(CONFIDENCES) : 2]
    figure.legend(handles=handles, title="asked for", loc="outside right center", frameon=False)
    figure.savefig(options.image, dpi=110)


if __name__ == "__main__":
    main()
