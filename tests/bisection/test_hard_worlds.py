"""benchmarks/hard_worlds.py: its cases are what it says, and reach the answer of a bisect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from conftest import matrix_after

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "hard_worlds.py"


@pytest.mark.parametrize("shape", ["line", "merges", "docs"])
def test_the_range_of_each_shape_has_the_commits_asked_for(
    tmp_path: Path, battery: ModuleType, shape: str
) -> None:
    battery.create(tmp_path / "range", battery.commits(shape, 40), checkout=False)
    opened = battery.Range.open(tmp_path / "range")
    parents = [len(commit.parents) for commit in opened.history.commits]
    assert len(parents) == 40
    assert len(opened.older) == battery.OLDER
    assert opened.reach[-1].all()  # BAD has every commit among its ancestors
    assert parents.count(2) >= 5 if shape == "merges" else set(parents) == {1}
    assert (len(opened.read) < 40) == (shape == "docs")


@pytest.mark.matrix
def test_a_bisect_of_the_battery_names_the_step_and_repeats(tmp_path: Path) -> None:
    words = ["--worlds", "n4,crash-always", "--cases", "2", "--commits", "16"]
    tables = [
        subprocess.run(
            [sys.executable, str(SCRIPT), *words, *more], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for more in ([], ["--jobs", "2"])
    ]
    for name, line, again in zip(("n4", "crash-always"), tables[0][1:], tables[1][1:], strict=True):
        world, cases, trials, *_, milliseconds, time, _, _, started = line.split()
        assert (world, cases) == (name, "2")
        assert 4 <= float(trials) <= 20
        assert " 0/2 " in line
        assert again.split()[:5] == line.split()[:5]
        assert 0 < float(milliseconds) < 1000
        assert started == trials and 0.5 < float(time) / float(trials) < 2


@pytest.mark.parametrize("number", matrix_after(1, [12, 16, 22]))
def test_a_search_from_an_empty_ledger_ends_where_a_change_spares_seeds(
    tmp_path: Path, battery: ModuleType, number: int
) -> None:
    """It went on to the budget: with a seed that the change spares (16), with seeds of the bad end
    alone (22). Or its last trials were stopped where whole ones were needed (12: 58 trials)."""
    battery.create(tmp_path / "range", battery.commits("line", 64), checkout=False)
    world = battery.replace(battery.WORLDS["bits-spared"], stored=0)
    limits = battery.Limits(budget=30)
    result = battery.run_case(world, tmp_path / "range", limits, 1, 7_100_000 + number)
    assert (result.status, result.wrong) == ("found", False)
    assert result.trials <= 16


PARTS = {  # world, module, constant, what switches the part off, a case that needs the part
    "a side's own noise": ("bad-noisier-2", "levels", "SAME", 1 - 1e-9, 2),
    "the second mode": ("collapse-30-4", "likelihood", "COLLAPSE_PRIOR", 1e-9, 0),
    "selected ends": ("null-selected", "levels", "SELECTING_T", 1e9, 0),
    "the second step": ("steps-2+4", "other_steps", "OPEN", 2.0, 4),
}


@pytest.mark.matrix
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_switched_off_turns_its_world_red(
    tmp_path: Path, battery: ModuleType, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    name, module, constant, off, case = PARTS[part]
    world = battery.WORLDS[name]
    battery.create(tmp_path / "range", battery.commits(world.shape, 64), checkout=False)

    def cost() -> float:
        """Trials, with a fine for a wrong answer and a step that is not told."""
        result = battery.run_case(world, tmp_path / "range", battery.Limits(budget=48), 1, case)
        untold = len(world.steps) > 1 and not result.told
        return float(result.trials + 40 * result.wrong + 40 * untold)

    usual = cost()
    package = "judge.bisection" if module == "other_steps" else "stats"
    monkeypatch.setattr(f"celedger.{package}.{module}.{constant}", off)
    assert cost() > 1.5 * usual
