"""`celedger noise` and `celedger show TASK` with scripted trainings."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from conftest import SUITE
from scripted import Report, descend, scripted

TWO = (
    SUITE
    + """\
[[task]]
name = "other"
command = "{python} {suite}/fit.py --seed {seed}"
"""
)


def waiting(model: Mapping[str, Any], seed: int, counter: count = count()) -> Iterator[Report]:  # noqa: B008
    """Report what never repeats, too."""
    yield from descend(model, seed)
    yield {"epoch": 2, "queue": float(next(counter))}


def test_noise_is_measured_in_turns_kept_and_shown(tmp_path: Path) -> None:
    suite = TWO.replace("[[task]]", "[metrics.queue]\ndirection = 'lower'\n[[task]]", 1)
    project = scripted(tmp_path / "project", suite, waiting)
    project.history([1.0])
    first = project.run("noise", "--seeds", "5", "--repeats", "3", "--json")
    assert first.status == 0, first.err
    with sqlite3.connect(project.root / "ledger.db") as ledger:
        ran = ledger.execute(
            "SELECT t.name, r.seed, r.why FROM trials r JOIN tasks t ON t.id = r.task ORDER BY r.id"
        ).fetchall()
    # Every seed, then the repeats of the first, task after task.
    seeds = {"fit": [0, 1, 2, 3, 4, 0, 0], "other": [0, 1, 2, 3, 4, 0, 0]}
    assert [(name, why) for name, _, why in ran] == [("fit", "noise"), ("other", "noise")] * 7
    assert {name: [s for n, s, _ in ran if n == name] for name in seeds} == seeds

    told = json.loads(first.out)["tasks"]
    assert [(t["task"], t["trials"], t["seeds"], t["commits"]) for t in told] == [
        ("fit", 7, 5, 1), ("other", 7, 5, 1),
    ]  # fmt: skip
    metrics = {m["name"]: m for m in told[0]["metrics"]}
    loss = metrics["val_loss"]
    assert loss["equal_seeds_repeat"] is True and loss["degrees_of_freedom"] == 4
    one, three, ten = (loss["smallest_change"][n] for n in ("1", "3", "10"))
    assert 0 < ten < three < one and abs(one / three - 3**0.5) < 1e-6
    assert metrics["queue"]["equal_seeds_repeat"] is False
    assert metrics["queue"]["degrees_of_freedom"] == 4
    assert metrics["duration"]["degrees_of_freedom"] == 6

    again = project.run("noise", "fit", "--seeds", "5", "--repeats", "3")
    assert "holds every trial" in again.err
    shown = project.run("show", "fit")
    assert shown.status == 0 and shown.out == again.out
    for part in ("tiny/fit", "7 trials, 5 seeds, 1 commit", "3 trials", "repeat", "differ"):
        assert part in shown.out
    assert json.loads(project.run("show", "tiny/fit", "--json").out)["tasks"][0] == told[0]
    for words in (["show", "fitt"], ["noise", "fitt"]):
        wrong = project.run(*words)
        assert (wrong.status, wrong.out) == (129, ""), words
