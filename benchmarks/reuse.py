"""Is re-use sound, and how much does it spare? Small repositories are generated, each with a
training that reads them in a dozen ways; every mutation of one is run for real, and compared with
what its footprint said.

    python benchmarks/reuse.py --mutations 5000
    python benchmarks/reuse.py --demo             # what the demo's bisects train
    python benchmarks/reuse.py --range 5000       # time and memory of the classes of a range
    python benchmarks/reuse.py --overhead 5       # a cold start beside the bare script

A mutation that changes the fingerprint and would have been reused is a fault; exits 1 then, and
where a cold start costs more than its target.
"""

# ruff: noqa: E501 (one feature a line)

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))
from reuse_worlds import RESERVED, Tree, attributes, base, mutate, training

from celedger.base.model import Command, Footprint, Task
from celedger.repo import Repository
from celedger.repo.checkouts import Checkouts
from celedger.repo.differences import Differences
from celedger.system import process
from celedger.system.environment import package_folders
from celedger.trial.reuse import FootprintComparison, NamedPaths, Reuse
from celedger.trial.training_variables import child_copy, variables


@dataclass
class Tally:
    mutations: int = 0
    reused: int = 0
    changed: int = 0  # fingerprints that differ: to be trained
    needless: int = 0  # trained though the fingerprint is the same
    faults: list[str] = field(default_factory=list)
    needless_kinds: Counter[str] = field(default_factory=Counter)


def write(repository: Path, trees: list[Tree]) -> list[str]:
    """A commit for each tree; returns their hashes."""
    stream = bytearray()
    for number, tree in enumerate(trees, 1):
        stream += (
            b"commit refs/heads/c%d\nmark :%d\ncommitter A <a@b> 1700000000 +0000\ndata 1\nx\n"
            % (number, number)
        )
        stream += b"deleteall\n"
        for path, (mode, content) in tree.items():
            if mode == "160000":
                stream += b"M 160000 %s %s\n" % (content, path.encode())
            else:
                stream += b"M %s inline %s\ndata %d\n%s\n" % (
                    mode.encode(),
                    path.encode(),
                    len(content),
                    content,
                )
    subprocess.run(
        ["git", "fast-import", "--quiet", "--export-marks=marks"],
        cwd=repository,
        input=bytes(stream),
        check=True,
    )
    marks = dict(line.split() for line in (repository / "marks").read_text().splitlines())
    return [marks[f":{n}"] for n in range(1, len(trees) + 1)]


def run(argv: list[str], tree: Path, env: Mapping[str, str]) -> str:
    done = subprocess.run(
        argv, cwd=tree, env=dict(env), capture_output=True, text=True, check=False, timeout=120
    )
    return (done.stdout.strip().splitlines() or [f"status {done.returncode}"])[-1]


def world(
    seed: int, mutations: int, place: Path, tally: Tally, python: str = sys.executable,
    turn: int | None = None,
) -> None:  # fmt: skip
    """One repository, its training, and so many mutations."""
    rng = random.Random(seed)
    start = base(rng)
    what = training(rng, seed if turn is None else turn)
    made = [
        ("none", dict(start)),
        *(mutate(start, rng, what.foils) for _ in range(mutations)),
    ]
    repository = place / f"world{seed}"
    repository.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=repository, check=True)
    shas = write(repository, [start, *(tree for _, tree in made)])
    rewritten = "ident" in what.features
    if rewritten:
        attributes(repository, rng)
    python = os.path.abspath(python)  # noqa: PTH100 (links stay)
    script = repository / "script.py"
    script.write_text(what.program())
    argv = [python, str(script)]
    opened = Repository.open(repository)
    task = Task("worlds", f"world{seed}", (Command("train", tuple(argv)),))
    # Of the user's own variables those that the harness itself needs; the rest is the product's.
    user = {"PATH": os.environ["PATH"], "HOME": str(place)}
    ours = child_copy(place / "child")
    with Checkouts(opened).take() as checkout:
        env = variables(user, task, tree=checkout.path, child=ours, visible_devices="", extra={})
        checkout.move_to(shas[0])
        log, reads = place / "log", place / "reads"
        log.unlink(missing_ok=True)
        process.run(
            argv, cwd=checkout.path, env=env, log=log, reads=process.Reads(checkout.path, reads), timeout=300,
        )  # fmt: skip
        observed = NamedPaths()
        observed.take_in(reads)
        inside, _ = observed.split(checkout.path)
        assert not inside.unknown, inside.unknown
        tree_of = {sha: opened.commit(sha).tree for sha in dict.fromkeys(shas)}
        footprint = Footprint(tuple(sorted(inside.opened)), tuple(sorted(inside.looked)))
        sums = FootprintComparison(Differences(opened), footprint).sums(list(tree_of.values()))
        fingerprint = ""
        for (kind, tree), sha in zip(made, shas[1:], strict=True):
            if rewritten or RESERVED in {p.rpartition("/")[2] for p in tree}:
                checkout.move_to(sha)
            else:
                lay(checkout.path, tree)
            now = run(argv, checkout.path, env)
            fingerprint = fingerprint or now
            reuse = sums[tree_of[sha]] == sums[tree_of[shas[0]]]
            tally.mutations += 1
            tally.reused += reuse
            tally.changed += now != fingerprint
            if reuse and now != fingerprint:
                tally.faults.append(f"world {seed} {kind} {sha} {python} {what}")
            if now == fingerprint:
                tally.needless += not reuse
                tally.needless_kinds[kind] += not reuse
    shutil.rmtree(repository)


def lay(place: Path, tree: Tree) -> None:
    """Write the files of a tree as git would."""
    for entry in place.iterdir():
        if entry.name != ".git":
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    for path, (mode, content) in tree.items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if mode == "120000":
            file.symlink_to(os.fsdecode(content))
        elif mode == "160000":
            file.mkdir(exist_ok=True)
        else:
            file.write_bytes(content)
            file.chmod(0o755 if mode == "100755" else 0o644)


def soundness(mutations: int, each: int, first: int, pythons: list[str]) -> Tally:
    tally = Tally()
    with tempfile.TemporaryDirectory() as place:
        for seed in range(first, first + -(-mutations // each)):
            # `none` is one more of each world.
            python = pythons[seed % len(pythons)]
            turn = seed // len(pythons)
            world(seed, each - 1, Path(place).resolve(), tally, python, turn)
            if seed % 32 == 31:
                report(tally)
                print(end="", flush=True)
    return tally


def report(tally: Tally) -> None:
    unneeded = tally.mutations - tally.changed
    print(
        f"{tally.mutations} mutations: {tally.changed} change the fingerprint, {len(tally.faults)} of them reused"
    )
    print(
        f"{unneeded} change nothing: {unneeded - tally.needless} reused, {tally.needless} trained "
        f"needlessly ({100 * tally.needless / max(unneeded, 1):.0f} %)"
    )
    print("trained needlessly, by kind:", dict((+tally.needless_kinds).most_common()))
    for fault in tally.faults[:5]:
        print("FAULT", fault)


def demo(*, reuse: bool) -> dict[str, object]:
    """The demo's survey and four bisects: commits and trials that were trained in the bisects."""
    from unittest import mock

    from celedger.cli import demo_play as play
    from celedger.ledger import Ledger
    from celedger.trial import events

    trained: dict[str, set[tuple[str, int]]] = {}
    derived: Counter[str] = Counter()
    phase = ["survey"]

    def say(text: str) -> None:
        phase[0] = text if text.startswith("bisecting") else phase[0]

    def listen(event: events.Event) -> None:
        if isinstance(event, events.Started):
            trained.setdefault(phase[0], set()).add((event.commit.sha, event.seed))
        derived[phase[0]] += isinstance(event, events.Reused)

    blind = mock.patch.object(
        Reuse,
        "compared",
        lambda self, commits, *_: ({c.sha: [] for c in commits}, {}),
    )
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        if not reuse:
            stack.enter_context(blind)
        stage = play.set_stage(Path(place).resolve() / "demo")
        with Ledger.open(stage.settings.ledger, create=True) as ledger:
            found = play.play(stage, ledger, listen, say)
    surveyed = trained.pop("survey", set())
    return {
        "survey trials": len(surveyed),
        "commits": sum(len({sha for sha, _ in pairs}) for pairs in trained.values()),
        "trials": sum(map(len, trained.values())),
        "right": sum(f.right for f in found),
        "each": {k: len({sha for sha, _ in v}) for k, v in trained.items()},
    }


def overlapping(commits: int) -> None:
    """Time and memory of the classes of a range, in a process of its own."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as place:
        repository = Path(place).resolve() / "long"
        repository.mkdir()
        subprocess.run(["git", "init", "-q", "-b", "main"], cwd=repository, check=True)
        paths = [f"part{i % 20}/sub{i % 7}/file{i}.py" for i in range(2000)]
        stream = bytearray()
        for number in range(1, commits + 1):
            stream += (
                b"commit refs/heads/main\nmark :%d\ncommitter A <a@b> %d +0000\ndata 1\nx\n"
                % (number, 1700000000 + number)
            )
            for path in paths if number == 1 else rng.sample(paths, 3):
                text = b"x = %d\n" % number
                stream += b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(text), text)
        subprocess.run(
            ["git", "fast-import", "--quiet"], cwd=repository, input=bytes(stream), check=True
        )
        opened = Repository.open(repository)
        trees = [c.tree for c in opened.log("main", commits)]
        read = [p.encode() for p in rng.sample(paths, 150)]
        for footprints in (1, 5):
            differences = Differences(opened)
            began, busy = time.perf_counter(), time.process_time()
            children = resource.getrusage(resource.RUSAGE_CHILDREN)
            before = children.ru_utime + children.ru_stime
            for extra in range(footprints):
                footprint = Footprint((*read, b"", b"part1"), (b"none%d" % extra,))
                sums = FootprintComparison(differences, footprint).sums(trees)
            took = time.perf_counter() - began
            cpu = time.process_time() - busy
            children = resource.getrusage(resource.RUSAGE_CHILDREN)
            git = children.ru_utime + children.ru_stime - before
            print(
                f"{commits} commits of 2,000 files, {footprints} footprints of 150 files: {took:.1f} s "
                f"({cpu:.1f} s of this process, {git:.1f} s of git), peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB, "
                f"{len(set(sums.values()))} contents"
            )


STEP = (
    "import torch; m = torch.nn.Linear(4, 4); o = torch.optim.SGD(m.parameters(), lr=0.1);"
    "m(torch.randn(8, 4)).sum().backward(); o.step()"
)
MOST_WALL, MOST_CPU = 0.3 / 1.72, 0.2  # of the bare script


def overhead(repeats: int) -> bool:
    """What a cold start costs beside the bare script, in turns: torch and one step, with the
    supervisor, the finder and the record, and without. Processor time is that of all processes.
    Return True if it is within the target."""
    task = Task("s", "t", ())
    kinds = ("bare", "supervised", "recorded")
    runs: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name).resolve() / "tree"
        tree.mkdir()
        (tree / "step.py").write_text(STEP)
        child = child_copy(tree.parent / "child")
        env = variables(os.environ, task, tree=tree, child=child, visible_devices="", extra={})
        reads = process.Reads(tree, tree.parent / "reads", (), package_folders(sys.executable))
        for number in range(repeats + 1):
            for kind in kinds:
                start, before = time.perf_counter(), os.times()
                if kind == "bare":
                    subprocess.run(
                        [sys.executable, "step.py"],
                        cwd=tree,
                        env={**env, "PYTHONPATH": ""},
                        check=True,
                    )
                else:
                    end = process.run(
                        [sys.executable, "step.py"], cwd=tree, env=env, log=tree.parent / "log",
                        timeout=300, reads=reads if kind == "recorded" else None,
                    )  # fmt: skip
                    assert end.ok, end
                wall, cpu = time.perf_counter() - start, sum(os.times()[:4]) - sum(before[:4])
                if number:  # the first fills the page cache
                    runs[kind].append((wall, cpu))
    middle = {kind: [median(values) for values in zip(*runs[kind], strict=True)] for kind in kinds}
    over = [
        [a / b - 1 for a, b in zip(one, bare, strict=True)]
        for one, bare in zip(runs["recorded"], runs["bare"], strict=True)
    ]
    wall, cpu = (median(values) for values in zip(*over, strict=True))
    for kind in kinds:
        print(f"{kind:10} {middle[kind][0]:.2f} s, processor time {middle[kind][1]:.2f} s")
    print(
        f"recorded / bare, median of {repeats} pairs: wall {wall:+.0%} (at most {MOST_WALL:+.0%}), processor time {cpu:+.0%} (at most {MOST_CPU:+.0%}), load {os.getloadavg()[0]:.1f}"
    )
    return wall <= MOST_WALL and cpu <= MOST_CPU


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=0)
    parser.add_argument("--each", type=int, default=12, help="mutations of one repository")
    parser.add_argument("--first", type=int, default=0, help="seed of the first repository")
    parser.add_argument("--pythons", nargs="+", default=[sys.executable], help="they take turns")
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--range", type=int, default=0, metavar="COMMITS")
    parser.add_argument("--overhead", type=int, default=0, metavar="REPEATS")
    options = parser.parse_args()
    bad = 0
    if options.mutations:
        tally = soundness(options.mutations, options.each, options.first, options.pythons)
        report(tally)
        bad += len(tally.faults)
    if options.demo:
        for reuse in (False, True):
            print(f"demo {'with' if reuse else 'without'} re-use: {demo(reuse=reuse)}", flush=True)
    if options.range:
        overlapping(options.range)
    if options.overhead:
        bad += not overhead(options.overhead)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
