"""The suite `wide` and the instruments of `core`, each task cut short: it runs, reports what
suite.toml declares, beats its trivial baseline, and repeats itself bit by bit."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from celedger import suite as suites
from celedger.model import Direction, Kind, Task

if find_spec("torch") is None or find_spec("sklearn") is None:
    pytest.skip("needs celedger[torch]", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
SUITES = {name: suites.load(ROOT / "suites" / name) for name in ("core", "wide")}

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


def task_of(name: str) -> tuple[Path, Task]:
    found = [(s.folder, t) for s in SUITES.values() for t in s.tasks if t.name == name]
    assert found, f"{name} is in no suite"
    return found[0]


# Importing torch takes longer than most of these trainings: one process does it for all.
FORKS = """
import json, os, runpy, sys
import torch, torch._dynamo, sklearn.datasets
for line in sys.stdin:
    order = json.loads(line)
    if (pid := os.fork()) == 0:
        said = os.open(order["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        fd = os.open(order["journal"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.environ["CELEDGER_FD"] = str(fd)
        sys.argv = order["argv"]
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        code = 1
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            code = 0
        except BaseException:
            __import__("traceback").print_exc()
        sys.stdout.flush()
        os._exit(code)
    print(os.waitpid(pid, 0)[1], flush=True)
"""
Trial = Callable[[str, str, Path], list[dict[str, float]]]


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    """Runs one trial, all commands of the task in turn; its reports."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as forks:  # fmt: skip
        assert forks.stdin is not None and forks.stdout is not None

        def run(name: str, options: str, place: Path) -> list[dict[str, float]]:
            folder, task = task_of(name)
            place.mkdir()
            journal, said = place / "journal.jsonl", place / "said"
            for _, line in suites.command_lines(
                task, python=sys.executable, suite_dir=folder, tree=ROOT, seed=3, out=place
            ):
                order = {"argv": [*line[1:], *options.split()], "journal": str(journal)}
                print(json.dumps({**order, "said": str(said)}), file=forks.stdin, flush=True)
                assert forks.stdout.readline() == "0\n", said.read_text()
            return [json.loads(line) for line in journal.read_text().splitlines()]

        yield run
        forks.stdin.close()


@pytest.mark.parametrize("name", SHORT)
def test_a_task_learns_reports_and_repeats_itself(name: str, tmp_path: Path, trial: Trial) -> None:
    options, metric, baseline = SHORT[name]
    first, second = (trial(name, options, tmp_path / run) for run in ("a", "b"))
    _, task = task_of(name)
    exact = {"epoch", "fingerprint"} | {m.name for m in task.metrics if m.kind is Kind.QUALITY}
    assert [{k: r[k] for k in exact & r.keys()} for r in first] == [
        {k: r[k] for k in exact & r.keys()} for r in second
    ]
    assert all("fingerprint" in report for report in first)

    last: dict[str, float] = {}
    for report in first:
        last |= report
    declared = {m.name for m in task.metrics if m.direction is not Direction.INFO}
    assert declared <= set(last)
    assert all(math.isfinite(last[metric]) for metric in declared)
    assert last[metric] < baseline


def test_seeds_have_no_say_in_the_instruments(tmp_path: Path, trial: Trial) -> None:
    """What makes them exact: another seed is the same trial."""
    for name in ("linear_probe", "optimisers"):
        options, metric, _ = SHORT[name]
        one = trial(name, f"{options} --seed 1", tmp_path / f"{name}-1")
        two = trial(name, f"{options} --seed 2", tmp_path / f"{name}-2")
        assert one[-1]["fingerprint"] == two[-1]["fingerprint"]
        assert one[-1][metric] == two[-1][metric]


def test_the_twins_are_equal(tmp_path: Path, trial: Trial) -> None:
    last = trial("vit_twins", "--epochs 2", tmp_path / "twins")[-1]
    assert last["checkpoint_gap"] == 0.0
    assert last["accumulation_gap"] < 1e-9


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
