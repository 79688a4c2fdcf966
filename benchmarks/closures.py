"""Are closures sound, and how much do they spare? Small repositories are generated, each with a
training that reads them in a dozen ways; every mutation of one is run for real, and compared with
what its closure said.

    python benchmarks/closures.py --mutations 5000
    python benchmarks/closures.py --demo 0           # what the demo's bisects train
    python benchmarks/closures.py --range 5000       # time and memory of the classes of a range
    python benchmarks/closures.py --overhead 5       # what recording costs a trial

A mutation that changes the fingerprint and would have been reused is a fault; exits 1 then.
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

from celedger.model import Footprint
from celedger.repo import Repository
from celedger.repo.checkouts import Checkouts
from celedger.repo.closures import Contents, Objects
from celedger.system import process
from celedger.trial.closure import Observed

# path -> (git mode, content); of a link the target, of a submodule its commit
Tree = dict[str, tuple[str, bytes]]

HEAD = """\
import hashlib, os, sys, subprocess
state = hashlib.sha256()
def mix(*values): state.update(repr(values).encode())
def text(path):
    with open(path, "rb") as file: return file.read()
"""
# What a training may do with its repository. Each is tried: what fails counts as what it did.
FEATURES = {
    "import": "import pkg.core; mix(pkg.core.LEVEL, pkg.core.step(3))",
    "lazy": "from pkg.sub import mod; mix(mod.VALUE)",
    "try_import": "import accel; mix(accel.FAST)",
    "namespace": "import space.part; mix(space.part.X)",
    "data": "mix(text('data/train.csv'))",
    "link": "mix(text('current'))",
    "linked_folder": "mix(text('latest/extra.csv'))",
    "readlink": "mix(os.readlink('current'))",
    "exists": "mix(os.path.exists('conf/local.json'), os.path.isdir('cache'))",
    "walk_up": "mix([os.path.isfile(p + 'setup.cfg') for p in ('pkg/sub/', 'pkg/', '')])",
    "size": "mix(os.path.getsize('data/extra.csv'))",
    "mode": "mix(os.access('tools/run.sh', os.X_OK), os.stat('pkg/core.py').st_mode)",
    "plugins": "mix([text('plugins/' + n) for n in sorted(os.listdir('plugins'))])",
    "glob": "import glob; mix(sorted(glob.glob('**/*.csv', recursive=True)))",
    "rglob": "from pathlib import Path; mix(sorted(str(p) for p in Path('conf').rglob('*')))",
    "resource": "from importlib import resources; mix((resources.files('pkg') / 'table.txt').read_text())",
    "pkgutil": "import pkgutil, pkg; mix(sorted(m.name for m in pkgutil.iter_modules(pkg.__path__)))",
    "child": "mix(subprocess.run(['cat', 'data/child.txt'], capture_output=True).stdout)",
    "shell": "mix(subprocess.run('cat conf/* | sort; test -e flag && echo on', shell=True, capture_output=True).stdout)",
    "script": "mix(subprocess.run(['./tools/run.sh'], capture_output=True).stdout)",
    "python_child": "mix(subprocess.run([sys.executable, '-c', 'import pkg.core as c; print(c.LEVEL)'], capture_output=True).stdout)",
    "by_c": "import ctypes; c = ctypes.CDLL(None); f = c.open(b'data/c.bin', 0); b = ctypes.create_string_buffer(64); n = c.read(f, b, 64); mix(n, b.raw[:max(n, 0)])",
    "mmap": "import mmap; f = open('data/map.bin', 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); f.close(); mix(m[:])",
    "env_file": "[os.environ.__setitem__(*l.split('=', 1)) for l in open('.env').read().split()]; mix(os.environ.get('RATE'))",
    "site": "import site; site.addsitedir('vendor'); mix(sys.path[-2:]); import extra; mix(extra.Y)",
    "vendor": "sys.path.insert(0, 'vendor'); import helper; mix(helper.Z)",
    "json_import": "import json; mix(json.dumps([1]), hasattr(json, 'MINE'))",
    "source": "import inspect, pkg.core; mix(inspect.getsource(pkg.core.step))",
    "doc": "import pkg.core; mix(pkg.core.step.__doc__)",
    "line": "import pkg.core; mix(pkg.core.step.__code__.co_firstlineno)",
    "exec_text": "scope = {}; exec(text('pkg/version.py'), scope); mix(scope.get('V'))",
    "submodule": "mix(os.path.exists('third'), os.listdir('third'))",
    "rename": "os.rename('data/move.txt', 'moved'); mix(text('moved'))",
    "hardlink": "os.link('data/hard.txt', 'hard2'); mix(text('hard2'))",
    "made_link": "os.symlink('data', 'made'); mix(text('made/extra.csv'))",
    "chdir": "os.chdir('conf'); mix(text('a.json')); os.chdir('..')",
    "dirfd": "d = os.open('data', os.O_RDONLY); f = os.open('train.csv', os.O_RDONLY, dir_fd=d); mix(os.read(f, 99))",
    "thread": "import threading; t = threading.Thread(target=lambda: mix(text('data/thread.txt'))); t.start(); t.join()",
    "fork": "r, w = os.pipe(); p = os.fork()\n    if p == 0: os.write(w, text('data/fork.txt')); os._exit(0)\n    os.waitpid(p, 0); mix(os.read(r, 99))",
    "proc": "mix(text('/proc/self/cwd/data/proc.txt'))",
    "absent": "mix(text('data/none.txt'))",
    "zip": "import zipimport; mix(sorted(n for n in os.listdir('.') if n.endswith('.zip')))",
}  # fmt: skip
ADDED = (
    "json.py", "random.py", "pkg.py", "pkg/sub.py", "pkg/core/__init__.py", "accel.py",
    "accel/__init__.py", "space/__init__.py", "space/part/__init__.py", "sitecustomize.py",
    "usercustomize.py", "conf/local.json", "conf/zz.json", "cache/x", "setup.cfg", "pkg/setup.cfg",
    "plugins/zz.py", "vendor/helper.py", "vendor/more.pth", "vendor/extra/__init__.py", "flag",
    "data/none.txt", "data/more.csv", "docs/new.md", "tests/test_new.py", "pkg/new.py", "a.zip",
    "pkg/sub/mod/__init__.py", "pkg/core.so", "extra.py", "helper.py", "hashlib.py", "README.txt",
    "pkg/__init__.pyc", "pkg/sub/setup.cfg", "docs/deep/er/file.txt", "inspect.py", "Data/train.csv",
)  # fmt: skip
RESERVED = ".gitattributes"


def base(rng: random.Random) -> Tree:
    number = lambda: rng.randrange(10**6)  # noqa: E731
    texts = {
        "pkg/__init__.py": f"# package\nNAME = {number()}\n",
        "pkg/core.py": f'"""Core."""\nLEVEL = {number()}\n\n\ndef step(x):\n    """One step."""\n'
        f"    return x * {number()}  # slowly\n",
        "pkg/sub/__init__.py": "",
        "pkg/sub/mod.py": f"VALUE = {number()}\n",
        "pkg/unused.py": "X = 1\n",
        "pkg/version.py": f"V = {number()}\n",
        "pkg/table.txt": f"{number()}\n",
        "space/part.py": f"X = {number()}\n",
        "data/train.csv": f"{number()}\n", "data/extra.csv": f"{number()}\n",
        "data/child.txt": f"{number()}\n", "data/c.bin": f"{number()}\n",
        "data/map.bin": f"{number()}\n", "data/move.txt": f"{number()}\n",
        "data/hard.txt": f"{number()}\n", "data/thread.txt": f"{number()}\n",
        "data/fork.txt": f"{number()}\n", "data/proc.txt": f"{number()}\n",
        "conf/a.json": f"{number()}\n", "conf/b.json": f"{number()}\n",
        "plugins/one.py": f"{number()}\n", "plugins/two.py": f"{number()}\n",
        "vendor/extra.py": f"Y = {number()}\n", "vendor/paths.pth": "more\n",
        "vendor/more/deep.py": "D = 1\n", "tools/lib.sh": f"echo {number()}\n",
        ".env": f"RATE={number()}\n", "docs/index.md": "words\n", "docs/guide.md": "words\n",
        "tests/test_pkg.py": "pass\n", "README.md": "words\n", "CHANGES.md": "words\n",
        "tools/other.py": "pass\n", "examples/demo.py": "pass\n",
    }  # fmt: skip
    tree = {path: ("100644", text.encode()) for path, text in texts.items()}
    tree["tools/run.sh"] = ("100755", b"#!/bin/sh\n. ./tools/lib.sh\n")
    tree["current"] = ("120000", b"data/train.csv")
    tree["latest"] = ("120000", b"data")
    return tree


def mutate(tree: Tree, rng: random.Random) -> tuple[str, Tree]:
    """One commit's change, and what it was."""
    new = dict(tree)
    files = [p for p, (mode, _) in tree.items() if mode.startswith("100")]
    path = rng.choice(files)
    mode, content = new[path]
    kind = rng.choice([
        "edit", "edit", "edit", "comment", "docstring", "blank", "delete", "add", "add", "add",
        "case", "mode", "to-link", "retarget", "submodule", "to-folder", "move", "attributes",
        "swap", "folder-link", "swap-links",
    ])  # fmt: skip
    match kind:
        case "edit":
            new[path] = (mode, content.replace(b"1", b"7") + b"0 = 0\n" * (b"1" not in content))
        case "comment":
            new[path] = (mode, content + b"# a comment\n")
        case "docstring":
            new["pkg/core.py"] = (mode, tree["pkg/core.py"][1].replace(b"One step", b"A step"))
        case "blank":
            new["pkg/core.py"] = (mode, b"\n\n" + tree["pkg/core.py"][1])
        case "delete":
            del new[path]
        case "add":
            add(new, rng.choice(ADDED), b"FAST = MINE = X = Y = Z = VALUE = 1\n")
        case "case":
            del new[path]
            folder, _, name = path.rpartition("/")
            add(new, f"{folder}/{name.capitalize()}".lstrip("/"), content)
        case "mode":
            path = rng.choice([path, "tools/run.sh", "pkg/core.py"])
            new[path] = ("100644" if new[path][0] == "100755" else "100755", new[path][1])
        case "to-link":
            del new[path]
            target = "../" * path.count("/") + rng.choice(files)
            new[path] = ("120000", target.encode())
        case "retarget":
            new["current"] = (
                "120000",
                rng.choice(["data/extra.csv", "none", "/etc/hostname"]).encode(),
            )
        case "folder-link":
            new["latest"] = ("120000", rng.choice(["conf", "none", "docs"]).encode())
        case "swap-links":
            new["current"], new["latest"] = ("120000", b"latest/train.csv"), ("120000", b"./data")
        case "submodule":
            add(new, rng.choice(["third", "cache", "accel", "docs/third"]), b"1" * 40, "160000")
        case "to-folder":
            del new[path]
            add(new, f"{path}/inside", content)
        case "move":
            del new[path]
            add(new, rng.choice(ADDED), content)
        case "attributes":
            folder = rng.choice(["", "data/", "pkg/", "conf/", "docs/"])
            new[folder + RESERVED] = ("100644", b"* text eol=crlf\n")
        case "swap":
            other = rng.choice(files)
            new[path], new[other] = new[other], new[path]
    return kind, new


def add(tree: Tree, path: str, content: bytes, mode: str = "100644") -> None:
    """Put a file there, whatever was in its place."""
    parts = path.split("/")
    for i in range(1, len(parts)):
        tree.pop("/".join(parts[:i]), None)
    for below in [p for p in tree if p.startswith(f"{path}/")]:
        del tree[below]
    tree[path] = (mode, content)


def script(rng: random.Random) -> str:
    """A training that does some of the features, in some order."""
    chosen = rng.sample(sorted(FEATURES), rng.randint(2, 8))
    lines = [
        f"try:\n    {FEATURES[name]}\nexcept Exception as e:\n    mix({name!r}, type(e).__name__)"
        for name in chosen
    ]
    return "\n".join([HEAD, *lines, "print(state.hexdigest())\n"])


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
        argv, cwd=tree, env=dict(env), capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or f"status {done.returncode}"


def world(seed: int, mutations: int, place: Path, tally: Tally) -> None:
    """One repository, its training, and so many mutations."""
    rng = random.Random(seed)
    start = base(rng)
    program = script(rng)
    made = [("none", dict(start)), *(mutate(start, rng) for _ in range(mutations))]
    repository = place / f"world{seed}"
    repository.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=repository, check=True)
    shas = write(repository, [start, *(tree for _, tree in made)])
    (place / "script.py").write_text(program)
    argv = [sys.executable, str(place / "script.py")]
    opened = Repository.open(repository)
    # One python search path, byte-code and hash seed, as trial/surroundings.py gives them.
    with Checkouts(opened).take() as checkout:
        env = {
            "PATH": os.environ["PATH"], "PYTHONPATH": str(checkout.path), "HOME": str(place),
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0",
        }  # fmt: skip
        checkout.move_to(shas[0])
        log, reads = place / "log", place / "reads"
        log.unlink(missing_ok=True)
        process.run(
            argv, cwd=checkout.path, env=env, log=log, reads=(checkout.path, reads), timeout=300
        )
        observed = Observed()
        observed.take_in(reads)
        fingerprint = log.read_text().strip().splitlines()[-1]
        assert not observed.unknown, observed.unknown
        contents = Contents(Objects(opened), Footprint(tuple(sorted(observed.paths))))
        tree_of = {sha: opened.commit(sha).tree for sha in dict.fromkeys(shas)}
        same = contents.of(tree_of.values())
        before = same[tree_of[shas[0]]]
        for (kind, tree), sha in zip(made, shas[1:], strict=True):
            if RESERVED in {p.rpartition("/")[2] for p in tree}:
                checkout.move_to(sha)
            else:
                lay(checkout.path, tree)
            now = run(argv, checkout.path, env)
            reuse = same[tree_of[sha]] == before
            tally.mutations += 1
            tally.reused += reuse
            tally.changed += now != fingerprint
            if reuse and now != fingerprint:
                tally.faults.append(f"world {seed} {kind} {sha}\n{program}")
            if not reuse and now == fingerprint:
                tally.needless += 1
                tally.needless_kinds[kind] += 1
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


def soundness(mutations: int, each: int, first: int = 0) -> Tally:
    tally = Tally()
    with tempfile.TemporaryDirectory() as place:
        for seed in range(first, first + -(-mutations // each)):
            world(seed, min(each, mutations - tally.mutations), Path(place).resolve(), tally)
            if seed % 4 == 3:
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
        f"needlessly ({100 * tally.needless / max(unneeded, 1):.0f} %): {dict(tally.needless_kinds.most_common())}"
    )
    for fault in tally.faults[:5]:
        print("FAULT", fault)


def demo(seed: int, *, closures: bool) -> dict[str, object]:
    """The demo's survey and four bisects: commits and trials that were trained in the bisects."""
    from unittest import mock

    from celedger.demo import play
    from celedger.ledger import Ledger
    from celedger.trial import closure, events

    trained: dict[str, set[tuple[str, int]]] = {}
    derived: Counter[str] = Counter()
    phase = ["survey"]

    def say(text: str) -> None:
        phase[0] = text if text.startswith("bisecting") else phase[0]

    def listen(event: events.Event) -> None:
        if isinstance(event, events.Started):
            trained.setdefault(phase[0], set()).add((event.commit.sha, event.seed))
        derived[phase[0]] += isinstance(event, events.Derived)

    blind = mock.patch.object(
        closure.Closures, "compared", lambda self, commits, *_: ({c.sha: [] for c in commits}, [])
    )
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        if not closures:
            stack.enter_context(blind)
        stage = play.set_stage(Path(place).resolve() / "demo", seed)
        with Ledger.open(stage.settings.ledger, create=True) as ledger:
            found = play.play(stage, ledger, play.Watch(listen, say))
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
            objects = Objects(opened)
            began, busy = time.perf_counter(), time.process_time()
            for extra in range(footprints):
                footprint = Footprint(tuple(sorted([*read, b"", b"part1", b"none%d" % extra])))
                contents = Contents(objects, footprint).of(trees)
            took = time.perf_counter() - began
            cpu = time.process_time() - busy
            print(
                f"{commits} commits of 2,000 files, {footprints} footprints of 150 files: {took:.1f} s "
                f"({cpu:.1f} s of this process), peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB, "
                f"{len(set(contents.values()))} contents"
            )


def overhead(repeats: int) -> None:
    """Wall time of a start of Python, and of an import of torch, with and without the record."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        for words in ("pass", "import numpy", "import torch"):
            walls: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(repeats):
                for on in (False, True):
                    done = process.run(
                        [sys.executable, "-c", words], cwd=place, env=dict(os.environ),
                        log=place / "log", timeout=300, reads=(place, place / "reads") if on else None,
                    )  # fmt: skip
                    walls[on].append(done.wall)
            off, on_ = (min(walls[side]) for side in (False, True))
            print(
                f"{words}: {1000 * off:.0f} ms, recorded {1000 * on_:.0f} ms (the best of {repeats})"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=0)
    parser.add_argument("--each", type=int, default=50, help="mutations of one repository")
    parser.add_argument("--first", type=int, default=0, help="seed of the first repository")
    parser.add_argument("--demo", type=int, nargs="*", metavar="SEED", default=[])
    parser.add_argument("--range", type=int, default=0, metavar="COMMITS")
    parser.add_argument("--overhead", type=int, default=0, metavar="REPEATS")
    options = parser.parse_args()
    bad = 0
    if options.mutations:
        tally = soundness(options.mutations, options.each, options.first)
        report(tally)
        bad += len(tally.faults)
    for seed in options.demo:
        for closures in (False, True):
            print(
                f"demo {seed}, {'with' if closures else 'without'} closures: {demo(seed, closures=closures)}",
                flush=True,
            )
    if options.range:
        overlapping(options.range)
    if options.overhead:
        overhead(options.overhead)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
