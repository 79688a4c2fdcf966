"""Is re-use sound, and how much does it spare? Small repositories are generated, each with a
training that reads them in a dozen ways; every mutation of one is run for real, and compared with
what its footprint said.

    python benchmarks/reuse.py --mutations 5000

A mutation that changes the fingerprint and would have been reused is a fault; exits 1 then.
"""

# ruff: noqa: E501 (one feature a line)

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from reuse_worlds import RESERVED, Tree, attributes, base, mutate, training

from celedger.base.model import Command, Footprint, Task
from celedger.repo import Repository
from celedger.repo.checkouts import Checkouts
from celedger.repo.tree_files import Differences
from celedger.system import process
from celedger.trial.reuse import FootprintComparison, NamedPaths
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=5000)
    parser.add_argument("--each", type=int, default=12, help="mutations of one repository")
    parser.add_argument("--first", type=int, default=0, help="seed of the first repository")
    parser.add_argument("--pythons", nargs="+", default=[sys.executable], help="they take turns")
    options = parser.parse_args()
    tally = soundness(options.mutations, options.each, options.first, options.pythons)
    report(tally)
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
