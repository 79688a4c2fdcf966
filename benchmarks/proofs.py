"""After a bisect named a commit: is the share that its revert restores within its interval
(`--prove`), and are the hunks of it that move the metric found, in few trainings (`--hunks`)?

    python benchmarks/proofs.py [--cases 12] [--first 0] [prove] [hunks]

The program, git and the ledger are real; trainings are functions, in this process. Most of the
noise is the seed's, and each change of the level draws the rest anew. Prints a line a case. Exits 1
where the share lies outside in more than one case of twelve, fewer than nine sets of ten are the
planted one, or a search took more than 2 log2(parts) + 4 sets of hunks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from conftest import SUITE
from scripted import ScriptedProject, scripted

SD = 0.01
PADDING = "".join(f"# {n}\n" for n in range(9))
NAMES = "ABCDEFGHIJKL"
PEOPLE = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
          for what, value in (("NAME", "a"), ("EMAIL", "a@b.c"))}  # fmt: skip


def training(model: Mapping[str, object], seed: int) -> Iterator[dict[str, object]]:
    """Report the level with noise of SD. The level decides the bits."""
    level = float(str(model["LEVEL"]))
    shared, own = Random(f"seed {seed}").gauss(0, 1), Random(f"{level} {seed}").gauss(0, 1)
    yield {"epoch": 0, "val_loss": level + SD * (math.sqrt(0.6) * shared + math.sqrt(0.4) * own)}


def text(level: str, names: Mapping[str, int]) -> str:
    return "".join(f"{n} = {v}\n{PADDING}" for n, v in names.items()) + f"LEVEL = {level}\n"


def level_of(level: str, names: Mapping[str, int]) -> float:
    return float(eval(level, {}, dict(names)))


def project_in(place: Path) -> ScriptedProject:
    suite = SUITE.replace("[0, 1]", "[0, 1, 2]").replace("0.1%", "1%")
    return scripted(place, suite, training)


def bisected(project: ScriptedProject, shas: list[str], *words: str) -> dict[str, object]:
    ends = f"{shas[0]}..{shas[-1]}"
    done = project.run("bisect", ends, "--metric", "val_loss", "--json", *words)
    if done.status not in (0, 125):
        raise SystemExit(done.err)
    return dict(json.loads(done.out))


def prove(number: int, place: Path) -> dict[str, object]:
    """Plant a culprit among sixteen commits, and another change after it, that adds to it or takes
    some of it away."""
    draw = Random(number)
    effect = draw.uniform(4, 20) * SD
    kind = ("alone", "another", "less of it", "more of it")[number % 4]
    level = (
        f"1 + {effect} * A"
        + {
            "alone": "",
            "another": f" + {draw.uniform(2, 8) * SD} * B",
            "less of it": f" - {draw.uniform(0.2, 0.6) * effect} * A * B",
            "more of it": f" + {draw.uniform(0.2, 0.6) * effect} * A * B",
        }[kind]
    )
    project, shas = project_in(place), []
    at, later = draw.randint(2, 8), draw.randint(10, 14)
    for step in range(16):
        names = {"A": int(step >= at), "B": int(step >= later)}
        shas.append(project.commit(f"{step}", {"model.py": text(level, names), f"o{step}.py": ""}))
    project.run("noise", "--commit", shas[0], "--seeds", "6")
    project.run("run", shas[-1])
    ran = len(project.executor.ran)
    answer = bisected(project, [*shas[:1], shas[-1]], "--prove")
    report = dict(answer["bisect"])  # type: ignore[call-overload]
    rehearsal = report["rehearsal"] or {}
    both = level_of(level, {"A": 1, "B": 1}) - level_of(level, {"A": 0, "B": 1})
    share = both / effect
    low, high = rehearsal.get("low", math.nan), rehearsal.get("high", math.nan)
    return {
        "kind": kind, "sd": round(effect / SD, 1), "right": report["culprits"] == [shas[at]],
        "share": round(share, 2), "told": rehearsal.get("share"), "low": low, "high": high,
        "within": low is not None and high is not None and low <= share <= high,
        "trainings": len(project.executor.ran) - ran, "of the proof": rehearsal.get("trials"),
        "why": rehearsal.get("why"),
    }  # fmt: skip


def hunks(number: int, place: Path) -> dict[str, object]:
    """Plant a commit of three to twelve hunks, one to three of which move the loss together."""
    draw = Random(1000 + number)
    count = draw.randint(3, 12)
    chosen = sorted(draw.sample(NAMES[:count], (1, 1, 1, 2, 2, 1, 1, 2, 3, 1)[number % 10]))
    level = f"1 + {draw.uniform(6, 30) * SD} * ({' and '.join(chosen)})"
    project, shas = project_in(place), []
    for step in range(8):
        names = dict.fromkeys(NAMES[:count], int(step >= 4))
        shas.append(project.commit(f"{step}", {"model.py": text(level, names), f"o{step}.py": ""}))
    project.run("noise", "--commit", shas[0], "--seeds", "6")
    bisected(project, shas)
    ran = len(project.executor.ran)
    (answer,) = bisected(project, shas, "--hunks")["hunks"]  # type: ignore[misc]
    lines = {1 + 10 * NAMES.index(name) for name in chosen}
    named = {part["line"] for part in answer["parts"]}
    return {
        "parts": answer["of"], "planted": len(chosen), "right": named == lines,
        "trainings": answer["trainings"], "ran": len(project.executor.ran) - ran,
        "most": round(2 * math.log2(answer["of"]) + 4, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["prove", "hunks"])
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    os.environ |= PEOPLE
    bad = False
    for name in options.parts:
        rows = []
        for number in range(options.first, options.first + options.cases):
            with tempfile.TemporaryDirectory(prefix="celedger-proofs-") as folder:
                place = Path(folder).resolve() / "project"
                rows.append((prove if name == "prove" else hunks)(number, place))
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
        if name == "prove":
            within = sum(bool(row["within"]) for row in rows)
            print(f"the share lies within its interval in {within} of {len(rows)}")
            bad |= within < len(rows) - max(1, len(rows) // 12)
        else:
            right = sum(bool(row["right"]) for row in rows)
            many = sum(float(str(row["trainings"])) > float(str(row["most"])) for row in rows)
            print(f"the planted hunks in {right} of {len(rows)}; {many} took more trainings")
            bad |= 10 * right < 9 * len(rows) or many > 0
    return int(bad)


if __name__ == "__main__":
    raise SystemExit(main())
