"""Moving a private checkout over consecutive commits, beside `git checkout` alone.

    python benchmarks/checkouts.py [--files 5000] [--commits 100] [--rounds 3]

Both walk the same history in turns, commit by commit: celedger's slot with all its cleaning, and a
plain clone that runs `git checkout --detach` and nothing else. Prints the medians and the ratio of
the totals; the target is 2. A second figure has a training that leaves files and edits in the tree
before every move, a third has a filter configured through which five files pass; the plain clone
has none.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from celedger.repo import Repository
from celedger.repo.checkouts import Checkout, Checkouts
from celedger.repo.fast_import import NewCommit, create

TARGET = 2.0


def history(files: int, commits: int) -> list[NewCommit]:
    """Folders of 20 files of some 2 kB; each commit edits three, adds one, now and then removes
    one."""
    rng = random.Random(0)
    names = [f"package/part{n // 20}/module{n}.py" for n in range(files)]
    text = {name: f"# {name}\n" + "value = 1\n" * 200 for name in names}
    made = [NewCommit("c0", "start", dict(text))]
    for number in range(1, commits + 1):
        changes: dict[str, str | None] = {
            name: f"# {number}\n{text[name]}" for name in rng.sample(names, 3)
        }
        changes[f"package/part{number}/added{number}.py"] = f"added = {number}\n"
        if number % 10 == 0:
            changes[f"package/part{number - 5}/added{number - 5}.py"] = None
        made.append(NewCommit(f"c{number}", f"commit {number}", changes))
    return made


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def litter(tree: Path, number: int) -> None:
    """What a careless training leaves: a checkpoint, a cache, an edited source."""
    (tree / "checkpoint.pt").write_bytes(b"\0" * 100_000)
    cache = tree / "package" / f"part{number % 50}" / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "module.cpython-311.pyc").write_bytes(b"\0" * 1000)
    with (tree / "package" / "part0" / "module1.py").open("a") as file:
        file.write("edited = True\n")


def set_up_filter(root: Path) -> None:
    (root / ".git" / "info").mkdir(exist_ok=True)
    (root / ".git" / "info" / "attributes").write_text("package/part0/module[0-4].py filter=odd\n")
    subprocess.run(["git", "config", "filter.odd.smudge", "sed s/1/2/"], cwd=root, check=True)


def compare(
    checkout: Checkout, clone: Path, shas: list[str], before: Callable[[int], None]
) -> tuple[list[float], list[float]]:
    ours, theirs = [], []
    command = ["git", "checkout", "--quiet", "--detach"]
    for number, sha in enumerate(shas):
        before(number)
        ours.append(timed(lambda sha=sha: checkout.move_to(sha)))
        plain = [*command, sha]
        theirs.append(timed(lambda plain=plain: subprocess.run(plain, cwd=clone, check=True)))
    return ours, theirs


def show(what: str, ours: list[float], theirs: list[float], target: float = TARGET) -> None:
    ratio = sum(ours) / sum(theirs)
    verdict = "" if ratio <= target else "  (over the target)"
    print(
        f"{what:34s} celedger {statistics.median(ours) * 1e3:6.1f} ms  "
        f"git checkout {statistics.median(theirs) * 1e3:6.1f} ms  "
        f"ratio of totals {ratio:.2f}{verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ids = create(folder / "r", history(given.files, given.commits))
        shas = [ids[f"c{n}"] for n in range(given.commits + 1)]
        subprocess.run(["git", "clone", "-q", "r", "clone"], cwd=folder, check=True)
        start = ["git", "checkout", "-q", "--detach", shas[0]]
        with Checkouts(Repository.open(folder / "r")).take() as checkout:
            for _ in range(given.rounds):
                checkout.move_to(shas[0])
                subprocess.run(start, cwd=folder / "clone", check=True)
                clean = compare(checkout, folder / "clone", shas[1:], lambda _: None)
                show(f"{given.commits} consecutive commits", *clean)
                checkout.move_to(shas[0])
                subprocess.run(start, cwd=folder / "clone", check=True)
                dirty = compare(
                    checkout, folder / "clone", shas[1:], lambda n: litter(checkout.path, n)
                )
                show("the same, after a littering trial", *dirty)
        set_up_filter(folder / "r")
        subprocess.run(start, cwd=folder / "clone", check=True)
        with Checkouts(Repository.open(folder / "r")).take() as checkout:
            checkout.move_to(shas[0])
            passed = compare(checkout, folder / "clone", shas[1:], lambda _: None)
            show("with a filter on five files", *passed, target=math.inf)


if __name__ == "__main__":
    main()
