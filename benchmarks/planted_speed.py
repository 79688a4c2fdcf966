"""Does `celedger profile` name what was planted? Faults of speed and memory, drawn by a seed, are
put into trainings of the suites; the phase, module or line named must be the planted one, or the
answer must say that it is unsure. And trainings without a fault must give no finding.

    python benchmarks/planted_speed.py --faults 40 --seed 0
    python benchmarks/planted_speed.py --faults 0 --pairs 20    # equal commits: no finding

Trainings run one after another under the probes, as `celedger profile` runs them.
Exits 1 where a fault was named wrongly, or something was found that is not there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from celedger.diagnose import memory_growth, profile, slower
from celedger.diagnose.stalls import Document
from celedger.diagnose.trace import records
from celedger.trial.training_variables import child_copy

ROOT = Path(__file__).resolve().parent.parent
# Task, and epochs: three reports at least, some 150 steps; quick ones, because there are many.
TASKS = {
    "core/mlp_digits": 3,
    "core/char_transformer": 3,
    "wide/vae_digits": 4,
    "wide/word_vectors": 3,
    "wide/graph_communities": 8,
    "wide/vit_digits": 7,
}
REMEMBERED = ("wide/graph_communities", "wide/vit_digits")  # few steps: the probe is slow
EPOCHS_REMEMBERED = 3
LAYERED = [name for name in TASKS if name != "wide/word_vectors"]  # with an nn.Linear
MARK = "# planted"
# The arguments of `run` that every task of the suites gives by position, in order.
ARGUMENTS = ("p", "model", "optimiser", "schedule", "data", "loss")


@dataclass(frozen=True)
class Fault:
    """`source` is put in front of the call of `run`, and `wrap` wraps its arguments."""

    kind: str
    task: str
    what: str  # for people
    source: str
    wrap: dict[str, str]
    expect: str  # what must be named: a place (the marked line), a module, or a phase
    paired: bool = False  # told by comparison with the training without it
    memory: bool = False


LOSS = """
_calls = 0
def planted(function):
    def loss(model, batch):
        global _calls
        _calls += 1
{body}
        return function(model, batch)
    return loss
"""
MODULE = """
def planted(function):
    def build():
        model = function()
        names = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
        name = names[{pick} % len(names)]
        print("PLANTED", name)
        parent, _, leaf = name.rpartition(".")
        inner = model.get_submodule(parent) if parent else model
        setattr(inner, leaf, Planted(getattr(inner, leaf)))
        return model
    return build
class Planted(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.kept = []
    @property
    def weight(self):
        return self.inner.weight
    @property
    def bias(self):
        return self.inner.bias
    def forward(self, x):
        y = self.inner(x)
{body}
        return y
"""
DATA = """
import time
def planted(function):
    def data():
        for batch in function():
            {body}
            yield batch
    return data
"""


def _indented(*lines: str) -> str:
    return "\n".join(" " * 8 + line for line in lines)


def stall(rng: random.Random, task: str, body: str, what: str) -> Fault:
    every = rng.choice([11, 17, 20, 25])
    source = "import gc, time\n" + LOSS.format(
        body=_indented(f"if _calls % {every} == 0:", f"    {body}  {MARK}")
    )
    return Fault(
        "stall", task, f"{what} every {every} steps", source, {"loss": "planted"}, str(every)
    )


def faults(rng: random.Random, count: int) -> Iterator[Fault]:
    kinds: list[Callable[[str], Fault]] = [
        lambda t: stall(rng, t, f"time.sleep({rng.choice([0.06, 0.1])})", "a sleep"),
        lambda t: stall(
            rng, t, f"sum(i * i for i in range({rng.choice([6, 9])}00_000))", "busy Python"
        ),
        lambda t: stall(rng, t, "gc.collect()", "gc.collect()"),
        lambda t: stall(
            rng, t, "open('/tmp/planted', 'wb').write(bytes(80_000_000))", "a file written"
        ),
        lambda t: Fault(
            "loader", t, "a sleep in the data", DATA.format(body=f"time.sleep(0.015)  {MARK}"),
            {"data": "planted"}, "place",
        ),
        lambda t: Fault(
            "synchronisation", t, ".item() each step",
            LOSS.format(body=_indented(f"float(next(model.parameters()).sum().item())  {MARK}")),
            {"loss": "planted"}, "place",
        ),
        lambda t: Fault(
            "synchronisation", t, "a print of a tensor each step",
            LOSS.format(body=_indented(f"print(next(model.parameters()).sum())  {MARK}")),
            {"loss": "planted"}, "place",
        ),
        lambda t: Fault(
            "leak", t, "losses kept with their graphs",
            "kept = []\ndef planted(function):\n    def loss(model, batch):\n"
            f"        value = function(model, batch) * 1.0  {MARK}\n"
            "        kept.append(value)\n        return value\n    return loss\n",
            {"loss": "planted"}, "place", memory=True,
        ),
        lambda t: Fault(
            "leak", t, "activations kept in a module",
            MODULE.format(pick=rng.randrange(99), body=_indented(
                "if torch.is_grad_enabled():", f"    self.kept.append(y.detach() * 2)  {MARK}")),
            {"model": "planted"}, "place", memory=True,
        ),
        lambda t: Fault(
            "leak", t, "a cache that grows",
            "cache = {}\n" + LOSS.format(
                body=_indented(f"cache[_calls] = ['entry', [_calls], {{_calls: 1}}]  {MARK}")),
            {"loss": "planted"}, "place", memory=True,
        ),
        lambda t: Fault(
            "peak", t, "a double-precision copy of an activation held through the step",
            MODULE.format(pick=rng.randrange(99), body=_indented(
                "if torch.is_grad_enabled():",
                f"    self.kept = [y.detach().double().repeat(8, *[1] * (y.dim() - 1))]  {MARK}")),
            {"model": "planted"}, "place", paired=True, memory=True,
        ),
        lambda t: Fault(
            "slower", t, "an extra matrix product in a module",
            MODULE.format(pick=rng.randrange(99), body=_indented(
                f"y = y + 0 * (torch.ones(400, 400) @ torch.ones(400, 400)).sum()  {MARK}")),
            {"model": "planted"}, "module", paired=True,
        ),
        lambda t: Fault(
            "slower", t, "a Python loop in a module",
            MODULE.format(pick=rng.randrange(99), body=_indented(
                f"y = y + 0 * sum(i * 0.5 for i in range(60_000))  {MARK}")),
            {"model": "planted"}, "module", paired=True,
        ),
    ]  # fmt: skip
    tasks = list(TASKS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        fault = kind(rng.choice(tasks))
        if fault.memory:
            fault = replace(fault, task=rng.choice(REMEMBERED))
        elif "model" in fault.wrap and fault.task not in LAYERED:
            fault = replace(fault, task=rng.choice(LAYERED))
        yield fault


class Bench:
    """A folder with copies of the suites, and the child side beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "suites", folder / "suites")
        self.child = child_copy(folder / "child")
        (folder / "site").mkdir()
        shutil.copy(self.child / "sitecustomize.py", folder / "site")
        self.runs = 0

    def plant(self, fault: Fault) -> tuple[Path, int]:
        """The script with the fault, and the marked line's number."""
        path = self.folder / "suites" / f"{fault.task}.py"
        text = (ROOT / "suites" / f"{fault.task}.py").read_text()
        head, call, tail = text.rpartition("\nrun(")
        arguments = dict(zip(ARGUMENTS, tail.split(", "), strict=False))
        for argument, wrapper in fault.wrap.items():
            arguments[argument] = f"{wrapper}({arguments[argument]})"
        rest = tail.split(", ")[len(ARGUMENTS) :]
        text = f"{head}\n{fault.source}{call}{', '.join([*arguments.values(), *rest])}"
        planted = path.with_name(f"planted_{path.name}")
        planted.write_text(text)
        line = next(i for i, row in enumerate(text.splitlines(), 1) if row.endswith(MARK))
        return planted, line

    def run(self, script: Path, epochs: int, **probe: object) -> tuple[Path, str]:
        self.runs += 1
        out = self.folder / f"out{self.runs}"
        out.mkdir()
        env = {
            **os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join([str(self.folder / "site"), str(self.child)]),
            "CELEDGER_PROBE": json.dumps(probe), "CELEDGER_PROBE_OUT": str(out),
        }  # fmt: skip
        done = subprocess.run(  # noqa: PLW1510
            [sys.executable, str(script), "--epochs", str(epochs)],
            env=env, capture_output=True, text=True, cwd=self.folder,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{script}: {done.stderr[-2000:]}")
        return out / "0", done.stdout

    def roots(self) -> dict[str, str]:
        return {str(self.folder / "suites"): ""}

    def profile(self, script: Path, epochs: int) -> tuple[Document, str]:
        folder, said = self.run(script, epochs, kind="profile")
        return profile.load(dict(enumerate(records(folder, "profile"))), self.roots()), said

    def memory(self, script: Path, epochs: int) -> Document:
        folder, _ = self.run(script, epochs, kind="memory")
        found = memory_growth.load(*records(folder, "memory"), self.roots())
        if memory_growth.objects_pile_up(found):
            folder, _ = self.run(script, epochs, kind="memory", objects=True)
            found = memory_growth.load(*records(folder, "memory"), self.roots())
        return found

    def pair(self, a: Path, b: Path, epochs: int) -> tuple[Document, str]:
        sides: tuple[list[Document], list[Document]] = ([], [])
        said = ""
        for letter in slower.TURNS * 2:
            found, text = self.profile((a, b)["AB".index(letter)], epochs)
            sides["AB".index(letter)].append(found)
            said = text if letter == "B" else said
        return slower.compare(*sides), said


def judge(bench: Bench, fault: Fault) -> tuple[str, str]:
    """right, unsure or wrong; and what was said."""
    epochs = EPOCHS_REMEMBERED if fault.memory else TASKS[fault.task]
    clean = bench.folder / "suites" / f"{fault.task}.py"
    script, line = bench.plant(fault)
    if fault.kind == "stall":
        found, _ = bench.profile(script, epochs)
        stalls = found["stalls"]
        if not stalls["found"]:
            return "unsure", f"nothing claimed; {len(stalls['unexplained'])} slow steps"
        best = stalls["found"][0]
        right = best["line"] == line and best["every"] in (int(fault.expect), None)
        return ("right" if right else "wrong"), f"every {best['every']}, {best['place']}"
    if fault.kind in ("loader", "synchronisation"):
        found, _ = bench.profile(script, epochs)
        given = [a for a in found["advice"] if a["rule"] == fault.kind]
        if not given:
            return "unsure", "no advice"
        right = any(f":{line} " in f"{a['figure']} " for a in given)
        return ("right" if right else "wrong"), given[0]["figure"]
    if fault.kind == "leak":
        kept = bench.memory(script, epochs)
        if not kept["leaks"]:
            return "unsure", "nothing piles up"
        first = kept["leaks"][0]["line"]
        right = first == line
        said = [(leak["what"], leak["file"], leak["line"]) for leak in kept["leaks"][:3]]
        return ("right" if right else "wrong"), str(said)
    if fault.kind == "peak":
        sides = (bench.memory(path, epochs) for path in (clean, script))
        top = memory_growth.compare(*sides)["peaks"]["step"]["parts"][0]
        right = f":{line} " in f"{top['place']} "
        return ("right" if right else "wrong"), f"{top['operator']} {top['place']}"
    compared, said = bench.pair(clean, script, epochs)
    planted = re.search(r"PLANTED (.*)", said)
    module = planted.group(1) if planted else ""
    if compared["verdict"] != "slower":
        share = compared["whole"]["difference"] / compared["whole"]["before"]
        return "unsure", f"{share:+.0%} within noise"
    ranked = [
        r
        for r in compared["operators"][:-1]
        if r["difference"] > 0 and "backward" not in r["where"]
    ]
    ranked.sort(key=lambda row: (not row["beyond_noise"], -row["difference"]))
    right = bool(ranked) and ranked[0]["where"] == f"forward {module}"
    first = ranked[0]
    return ("right" if right else "wrong"), f"{first['name']} in {first['where']}, {module}"


def equal(bench: Bench, task: str, *, keep: bool) -> tuple[str, ...]:
    """What is found between a training and itself, and in it alone."""
    script, epochs = bench.folder / "suites" / f"{task}.py", TASKS[task]
    compared, _ = bench.pair(script, script, epochs)
    found = [f"{task}: {compared['verdict']}"] * (compared["verdict"] != "same")
    found += [f"stall {stall['place']}" for stall in compared["new_stalls"]]
    found += [f"wait {wait['place']}" for wait in compared["new_waits"]]
    if keep:
        sides = tuple(bench.memory(script, EPOCHS_REMEMBERED) for _ in "AB")
        difference = memory_growth.compare(*sides)
        found += [f"leak {leak['what']}" for side in sides for leak in side["leaks"]]
        found += [
            f"peak {part['operator']}"
            for peak in difference["peaks"].values()
            for part in peak["parts"]
        ]
    return tuple(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--only", help="kinds, comma-separated")
    parser.add_argument("--first", type=int, default=0, help="the first fault of the list to plant")
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts = {"right": 0, "unsure": 0, "wrong": 0}
    with tempfile.TemporaryDirectory(prefix="celedger-planted-speed-") as folder:
        bench = Bench(Path(folder))
        drawn = list(faults(random.Random(options.seed), options.faults))[options.first :]
        for fault in drawn:
            if options.only and fault.kind not in options.only.split(","):
                continue
            start = time.time()
            said, detail = judge(bench, fault)
            counts[said] += 1
            print(
                f"{said:7} {fault.kind:16} {fault.task:24} {fault.what}: {detail} "
                f"({time.time() - start:.0f} s)",
                flush=True,
            )
        false = 0
        for number in range(options.pairs):
            found = equal(bench, list(TASKS)[number % len(TASKS)], keep=number < len(TASKS))
            false += bool(found)
            print(f"pair {number}: {', '.join(found) or 'no finding'}", flush=True)
    total = sum(counts.values())
    print(f"{total} faults: {counts}; {options.pairs} equal pairs: {false} with a finding")
    return int(counts["wrong"] > 0 or false > 0)


if __name__ == "__main__":
    sys.exit(main())
