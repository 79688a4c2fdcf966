"""The suite `wide` and the instruments of `core`, each task cut short: it runs, reports what
suite.toml declares, beats its trivial baseline, and repeats itself bit by bit."""

from __future__ import annotations

import math
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from suites.conftest import SUITES, Trials, task_of

from celedger.model import Direction, Kind

if find_spec("torch") is None or find_spec("sklearn") is None:
    pytest.skip("needs celedger[torch]", allow_module_level=True)

# Options that cut a task short, a metric, and a value on the bad side of which it may not end:
# that of the trivial baseline in the script's docstring.
SHORT = {
    "linear_probe": ("--epochs 2", "val_loss", math.log(10)),
    "optimisers": ("--epochs 2", "val_loss", math.log(10)),
    "mobilenet_digits[amp=false]": ("--epochs 2 --width 8 --blocks 1", "val_loss", math.log(10)),
    "mobilenet_digits[amp=true]": (
        "--epochs 2 --width 8 --blocks 1 --lr 1e-2",
        "val_loss",
        math.log(10),
    ),
    "vit_digits[amp=false]": ("--epochs 2 --layers 1", "val_loss", math.log(10)),
    "vit_digits[amp=true]": ("--epochs 2 --layers 1", "val_loss", math.log(10)),
    "vit_twins": ("--epochs 2 --batch 96", "val_loss", math.log(10) + 0.05),
    "word_vectors": ("--epochs 2 --passes 1", "val_loss", 2.70),
    "graph_communities": ("--epochs 2", "val_loss", math.log(4)),
    "vae_digits": ("--epochs 1 --passes 2", "val_loss", 31.0),
    "diffusion_rings": ("--epochs 1 --passes 2", "val_loss", 1.0),
    "actor_critic": ("--epochs 1 --steps 8", "val_cost", 0.6),
    "averaged_cnn": ("--epochs 4 --last 2", "averaged_loss", math.log(10)),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_task_learns_reports_and_repeats_itself(name: str, tmp_path: Path, trial: Trials) -> None:
    options, metric, baseline = SHORT[name]
    first, second = (trial(name, options, tmp_path / run) for run in ("a", "b"))
    _, task = task_of(name)
    exact = {"epoch", "fingerprint"} | {m.name for m in task.metrics if m.kind is Kind.QUALITY}
    assert [{k: r[k] for k in exact & r.keys()} for r in first] == [
        {k: r[k] for k in exact & r.keys()} for r in second
    ]
    assert all("fingerprint" in report for report in first)
    epochs = [report["epoch"] for report in first]
    assert sorted(set(epochs)) == epochs  # nothing is reported twice

    last: dict[str, float] = {}
    for report in first:
        last |= report
    declared = {m.name for m in task.metrics if m.direction is not Direction.INFO}
    assert declared <= set(last)
    assert all(math.isfinite(last[metric]) for metric in declared)
    assert last[metric] < baseline
    if name == "vit_twins":
        assert last["twins_apart"] == last["checkpoint_gap"] == 0
        assert last["accumulation_gap"] < 1e-9


def test_seeds_have_no_say_in_the_instruments(tmp_path: Path, trial: Trials) -> None:
    """What makes them exact: another seed is the same trial."""
    for name in ("linear_probe", "optimisers"):
        options, metric, _ = SHORT[name]
        one = trial(name, f"{options} --seed 1", tmp_path / f"{name}-1")
        two = trial(name, f"{options} --seed 2", tmp_path / f"{name}-2")
        assert one[-1]["fingerprint"] == two[-1]["fingerprint"]
        assert one[-1][metric] == two[-1][metric]


def test_suite_file_and_scripts_agree_on_the_defaults() -> None:
    for suite in SUITES.values():
        assert suite.warnings == ()
        for task in suite.tasks:
            word = next(w for w in task.commands[0].template if w.endswith(".py"))
            script = (suite.folder / Path(word).name).read_text()
            for name, value in task.params.items():
                default = re.search(rf"^    {name}=([^,]+),", script, re.MULTILINE)
                assert default is not None, f"{word} has no {name}"
                assert "[" in task.name or float(default[1]) == float(value)


def test_every_task_says_what_it_is() -> None:
    for suite in SUITES.values():
        for task in suite.tasks:
            word = next(w for w in task.commands[0].template if w.endswith(".py"))
            docstring = (suite.folder / Path(word).name).read_text().split('"""')[1]
            for part in ("Feels ", "rivial baseline"):
                assert part in " ".join(docstring.split()), f"{word} does not say: {part}"
            assert re.search(r"arXiv:|\d{4}", docstring), f"{word} names no paper"
            assert "RESULT" not in docstring and "BASELINE" not in docstring
