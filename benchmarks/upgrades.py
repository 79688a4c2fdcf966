"""Does `celedger bisect --packages` name the upgrade that made a training worse? Twenty times 30 to
60 packages change, and one of them moves the loss by 3 to 30 sd of its seeds; a fifth of them need
another one. Wheels are made here, and installed by uv without a network.

    python benchmarks/upgrades.py [--cases 20]

Prints a line a case. Exits 1 if less than nine of ten packages are named, or a search took more
than log2 of the packages and four environments beyond both ends.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from cli.test_packages import SUITE, locks, wheel
from conftest import Project, make_project

FIT = """\
import random, sys
from importlib import import_module
from celedger.child import log
values = [import_module(f"lib_{n:02d}").value for n in range(COUNT)]
log(epoch=0, val_loss=1.0 + sum(values) + random.Random(int(sys.argv[1])).gauss(0, 0.01))
"""
PEOPLE = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
          for what, value in (("NAME", "a"), ("EMAIL", "a@b.c"))}  # fmt: skip


def search(number: int, place: Path) -> dict[str, object]:
    """Plant one upgrade and search it."""
    draw = random.Random(number)
    count = draw.randint(30, 60)
    names = [f"lib-{n:02d}" for n in range(count)]
    culprit, effect = draw.choice(names), draw.uniform(0.03, 0.3)
    for name in names:
        others = [other for other in names if other != name]
        needs = [draw.choice(others)] if draw.random() < 0.2 else []
        wheel(place / "wheels", name, "1.0", 0.0, needs)
        wheel(place / "wheels", name, "2.0", effect * (name == culprit), needs)
    for tool in ("UV", "PIP"):
        os.environ |= {f"{tool}_FIND_LINKS": str(place / "wheels"), f"{tool}_NO_INDEX": "1"}
    suite = SUITE.replace("seeds = [0]", "seeds = [0, 1, 2]")
    suite = suite.replace("fit.py", "fit.py {seed}")
    project: Project = make_project(place / "project", suite, {"none.py": ""})
    project.commit("one", {"fit.py": FIT.replace("COUNT", str(count))})
    both = locks(project.root, dict.fromkeys(names, "1.0"), dict.fromkeys(names, "2.0"))
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "celedger", "bisect", "HEAD", "--packages", both, "--json"],
        cwd=project.root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 125):
        raise SystemExit(done.stderr)
    (named,) = json.loads(done.stdout)["named"]
    made = len(list((project.root / ".git" / "celedger" / "venvs").glob("*/venv")))
    return {
        "packages": count, "sd": round(effect / 0.01, 1), "named": named["upgrades"],
        "right": named["upgrades"] == [f"{culprit} 1.0 → 2.0"], "environments": made,
        "most": 2 + math.log2(count) + 4, "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    os.environ |= PEOPLE
    rows = []
    for number in range(options.first, options.first + options.cases):
        with tempfile.TemporaryDirectory(prefix="celedger-upgrades-") as folder:
            rows.append(search(number, Path(folder).resolve()))
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    right = sum(bool(row["right"]) for row in rows)
    wide = [row for row in rows if row["environments"] > row["most"]]  # type: ignore[operator]
    print(f"{right} of {len(rows)} named; {len(wide)} took more environments than log2 + 4")
    return int(10 * right < 9 * len(rows) or bool(wide))


if __name__ == "__main__":
    raise SystemExit(main())
