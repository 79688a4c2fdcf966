"""Does `celedger same` see what was planted, and is it quiet where nothing changes? Every fault and
refactor of the lab (lab.py) alone, beside the training as it is: its signature of two batches an
epoch, and that of five steps.

    python benchmarks/same.py                   # everything
    python benchmarks/same.py --only unet gan   # two trainings

A fault is `seen` where the signatures differ, `moved` where the whole training prints other figures
than before. A refactor that keeps the arithmetic must be `same`; `rounding` is right only where the
figures move at rounding level. Exits 1 at a refactor that is called different, or where less than
97 % of the faults that move a figure are seen.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from lab import LAB, SEED, commit, figures, opened, repository, training

from celedger.base.errors import CannotJudge
from celedger.lab.diagnose.signature import SHORT, STEPS, first_difference, sign, signed
from celedger.trial.diagnostic import EAGER, diagnose

_PRELOADED = ("torch", "torch._dynamo")


def judge(name: str, place: Path, most: int) -> tuple[Counter[str], list[str]]:
    """Sign the edits of a training; return counts, and a line for each that went wrong."""
    described = training(name)
    repo = repository(described, place)
    file = repo / "suites" / "lab" / "suite.toml"
    if described.preload is not None:
        preload = [*_PRELOADED, *described.preload]
        file.write_text(file.read_text().replace("preload = []", f"preload = {preload!r}"))
    edits = [
        (kind, edit)
        for kind, some in (("fault", described.faults), ("refactor", described.refactors))
        for edit in some[:most] if edit.verb == "explain"
    ]  # fmt: skip
    shas = [commit(repo, described, edit, "refactor") for _, edit in edits]
    counts: Counter[str] = Counter()
    lines = []
    with opened(repo) as (found, bench, task):
        good = found.resolve("main")
        folder = place / "runs"

        def trained(sha: str) -> list[str]:
            done = diagnose(
                bench, found.resolve(sha), task, SEED, folder / f"bare-{sha}", {"kind": "trace",
                "full": [], "steps": 0}, environment=EAGER, quick=True,
            )  # fmt: skip
            return figures(done.log) if done.ok else [done.message]

        plain = trained(good.sha)
        schemes, base = {}, {}
        for label, scheme in {"short": SHORT, "steps": STEPS}.items():
            schemes[label], base[label] = signed(
                lambda one: sign(
                    bench, good, task, SEED, folder / f"base-{one}".replace(":", "-"), one
                ),
                scheme,
            )
        for label, signature in base.items():
            counts[f"seconds {label}"] = round(1000 * signature.seconds)
        for (kind, edit), sha in zip(edits, shas, strict=True):
            moved = trained(sha) != plain
            counts[f"{kind} {'moved' if moved else 'still'}"] += 1
            for label, scheme in schemes.items():
                try:
                    signature = sign(
                        bench, found.resolve(sha), task, SEED, folder / f"{sha}-{label}", scheme
                    )
                    difference = first_difference(base[label], signature)
                    answer = "same" if difference is None else (
                        "rounding" if difference.is_rounding else "different"
                    )  # fmt: skip
                    if signature.problem:
                        answer = f"failed: {signature.problem}"
                    text = f"{difference}" if difference else ""
                except CannotJudge as error:
                    answer, text = "failed", str(error)
                seen = answer != "same"
                counts[f"{label}: {kind} {'moved' if moved else 'still'}, {answer}"] += 1
                if (kind == "fault" and moved != seen) or (kind == "refactor" and seen):
                    moves = "moves the figures" if moved else "moves no figure"
                    lines.append(
                        f"  {name}/{edit.name} ({kind}, {moves}), {label}: {answer} {text}"
                    )
    return counts, lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = sorted(path.stem for path in LAB.glob("*.toml"))
    parser.add_argument("--only", nargs="+", default=names, choices=names)
    parser.add_argument("--each", type=int, default=99, help="edits of a kind of each training")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    total: Counter[str] = Counter()
    for name in arguments.only:
        start = time.monotonic()
        if training(name).missing:
            print(f"{name}: {training(name).missing}", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="celedger-same-") as place:
            counts, lines = judge(name, Path(place), arguments.each)
        took = {k: v for k, v in counts.items() if k.startswith("seconds")}
        total += Counter({k: v for k, v in counts.items() if k not in took})
        print(
            f"{name}: {dict(took)} ms; {time.monotonic() - start:.0f} s",
            *lines,
            sep="\n",
            flush=True,
        )
    for key, number in sorted(total.items()):
        print(f"{number:4}  {key}")
    moved = sum(v for k, v in total.items() if k.startswith("short: fault moved"))
    seen = moved - total["short: fault moved, same"]
    cried = sum(v for k, v in total.items() if "refactor" in k and "different" in k)
    print(f"faults that move a figure seen: {seen} of {moved}; refactors called different: {cried}")
    return int(seen < 0.97 * moved or cried > 0)


if __name__ == "__main__":
    sys.exit(main())
