"""Counts how many answers of bisects given at 90, 95 and 99 % were right, into calibration.json,
and draws them.

python benchmarks/bisect_calibration.py --out BISECTS
python benchmarks/calibration_plot.py BISECTS
python scripts/make_pictures.py calibration
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bisect_calibration import CONFIDENCES, groups
from matplotlib.axes import Axes
from scipy.stats import binomtest

from celedger.views import picture

NOISES = {"gauss": "normal", "t3": "Student-3", "outlier": "outlying"}
SAID = {"all": "all bisects", **{law: f"{name} noise" for law, name in NOISES.items()}}
COUNTS = Path(__file__).with_name("calibration.json")
MARKS = ((picture.BLUE, "o"), (picture.GREEN, "D"), (picture.RED, "s"))  # of the confidences
Counts = Mapping[str, Sequence[Sequence[int]]]  # by group, for each confidence: right, given
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


def draw(axes: Axes, groups: Counts, title: str) -> None:
    for row, answers in enumerate(groups.values()):
        for shift, confidence, (colour, shape), (right, given) in zip(
            (-0.2, 0, 0.2), CONFIDENCES, MARKS, answers, strict=True
        ):
            interval = binomtest(right, given).proportion_ci(0.95, "wilson")
            axes.plot([interval.low, interval.high], [row + shift] * 2, color=colour, lw=1.2)
            label = f"asked for {100 * confidence:.0f} %"
            axes.plot(right / given, row + shift, shape, color=colour, ms=4, label=label)
    for confidence, (colour, _) in zip(CONFIDENCES, MARKS, strict=True):
        axes.axvline(confidence, color=colour, lw=0.8, ls=":")
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.set_xticks([0.85, *CONFIDENCES, 1], ["85 %", "90 %", "95 %", "99 %", ""])
    axes.set_xlim(0.85, 1.002)
    axes.set_xlabel("right answers, with 95 % interval")
    axes.set_title(title)


def save(counts: Mapping[str, Counts], path: Path) -> Path:
    with picture.style():
        figure = picture.sheet("Answers asked for at 90, 95 and 99 %, and how many are right", 6.0)
        axes = figure.subplots()
        draw(axes, counts["bisects"], "bisect: the right commit was named")
        picture.finish(figure, axes)
        return picture.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bisects", type=Path)
    options = parser.parse_args()
    counts = {
        "bisects": {
            group: [[sum(rights), len(rights)] for rights in answers]
            for group, answers in bisects(options.bisects).items()
        }
    }
    COUNTS.write_text(json.dumps(counts, indent=1) + "\n")


if __name__ == "__main__":
    main()
