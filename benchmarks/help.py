"""`celedger --help` against a bare typer program, run in turns: `python benchmarks/help.py`.

The target is 1.5 times the bare program at most. Two of them are measured: one as typer makes it
by default (its help is drawn by rich where that is installed), and one as lean as ours (no rich).
Wall and processor time of whole processes, medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BARE = """\
import typer
app = typer.Typer({options})
@app.command()
def hello(name: str, loud: bool = False) -> None:
    "Say hello."
@app.command()
def bye(name: str) -> None:
    "Say goodbye."
app()
"""


def once(command: list[str], cache: str) -> tuple[float, float]:
    """Wall and processor seconds of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    # Byte-code is kept, as it is where celedger is installed, and aside.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        lean, default = Path(folder) / "lean.py", Path(folder) / "default.py"
        lean.write_text(BARE.format(options="rich_markup_mode=None, add_completion=False"))
        default.write_text(BARE.format(options=""))
        programs = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "bare typer, lean": [sys.executable, str(lean), "--help"],
            "bare typer, default": [sys.executable, str(default), "--help"],
            "celedger --help": [sys.executable, "-m", "celedger", "--help"],
        }
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for _ in range(rounds + 1):
            for name, command in programs.items():
                spent[name].append(once(command, folder))
    medians = {
        name: [statistics.median(column) for column in zip(*times[1:], strict=True)]
        for name, times in spent.items()
    }
    ours = medians["celedger --help"]
    for name, (wall, cpu) in medians.items():
        print(
            f"{name:20s} {wall * 1000:6.1f} ms wall, {cpu * 1000:6.1f} ms processor; "
            f"celedger --help is {ours[0] / wall:.2f} times (wall), {ours[1] / cpu:.2f} (processor)"
        )
    return int(ours[1] > 1.5 * medians["bare typer, lean"][1])


if __name__ == "__main__":
    sys.exit(main())
