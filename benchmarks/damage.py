"""Damage a ledger and ask it: does `log`, `show`, `drift` or `check` answer differently without a
word, or end in an internal error?

    python benchmarks/damage.py [--cases 250] [--seed 1] [--keep]

A case is one copy of a small ledger with one damage: a bit flipped anywhere, a bit flipped in what
describes a page, garbage, a page of zeros, a page from elsewhere in the file, a page as it was some
commits ago, or the file cut short. Each verb is asked twice: with celedger's stamp of the file and
without it, as if the file had been copied. Exits 1 where one answered differently with a good
status, or fell over.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from conftest import PEOPLE, Project, make_project  # noqa: E402

from celedger.cli.app import run  # noqa: E402

VERBS = (("log",), ("show",), ("drift",), ("check",))
PAGE = 4096
LEVELS = (1.0, 1.0, 1.1, 1.1, 1.5, 1.5)
EARLIER = 3  # commits after which the older state of the file is taken


def flip(data: bytearray, random: random.Random) -> str:
    at = random.randrange(len(data))
    bit = random.randrange(8)
    data[at] ^= 1 << bit
    return f"bit {bit} of byte {at} (page {at // PAGE + 1})"


def flip_in_head(data: bytearray, random: random.Random) -> str:
    """In the head of a page or among its first cell pointers, where one bit hides most rows."""
    page = random.randrange(len(data) // PAGE)
    at = page * PAGE + (100 if page == 0 else 0) + random.randrange(24)
    bit = random.randrange(8)
    data[at] ^= 1 << bit
    return f"bit {bit} of byte {at % PAGE} of page {page + 1}"


def garbage(data: bytearray, random: random.Random) -> str:
    at = random.randrange(len(data) - 16)
    data[at : at + 16] = random.randbytes(16)
    return f"16 bytes at {at} (page {at // PAGE + 1})"


def zeros(data: bytearray, random: random.Random) -> str:
    page = random.randrange(len(data) // PAGE)
    data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    return f"page {page + 1}"


def misplaced(data: bytearray, random: random.Random) -> str:
    one, other = random.sample(range(1, len(data) // PAGE), 2)
    data[one * PAGE : (one + 1) * PAGE] = data[other * PAGE : (other + 1) * PAGE]
    return f"page {other + 1} over page {one + 1}"


def cut_short(data: bytearray, random: random.Random) -> str:
    size = random.randrange(len(data))
    del data[size:]
    return f"to {size} bytes"


class Ring:
    """A repository with a ledger, its answers, and a way to damage it."""

    def __init__(self, project: Project) -> None:
        self.root = project.root
        self._import_all()
        self.ledger = self.root / "ledger.db"
        project.history(LEVELS[:EARLIER])
        self._measure(f"HEAD~{EARLIER - 1}..HEAD")
        self.older = self.ledger.read_bytes()
        project.history(LEVELS[EARLIER:])
        self._measure(f"HEAD~{len(LEVELS) - EARLIER}..HEAD")
        self.ask(("check",))  # what it finds is recorded once
        self.good = self.ledger.read_bytes()
        self.state = self.root.with_name("state")
        for folder in (".celedger", ".git/celedger"):
            shutil.copytree(self.root / folder, self.state / folder)
        self.answers = {verb: self.ask(verb)[:2] for verb in VERBS}
        assert self.ledger.read_bytes() == self.good, "a verb changed the ledger that it read"

    def _measure(self, commits: str) -> None:
        for commit in (commits.split("..")[0], commits):
            status, _, error = self.ask(("run", commit))
            assert status in (0, 1), error

    def _import_all(self) -> None:
        """What the verbs import, so that each process need not."""
        from importlib import import_module

        for name in ("judge.memory", "judge.state", "ledger.schema", "trial.workplace",
                     "views.document", "views.drift", "views.log", "views.show"):  # fmt: skip
            import_module(f"celedger.{name}")

    def ask(self, verb: tuple[str, ...]) -> tuple[int, str, str]:
        """Status, stdout and stderr of a verb, in a process of its own."""
        out, err = self.root.with_name("out"), self.root.with_name("err")
        child = os.fork()
        if not child:
            status = 255
            try:
                os.chdir(self.root)
                for path, number in ((out, 1), (err, 2)):
                    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
                with os.fdopen(1, "w") as sys.stdout, os.fdopen(2, "w") as sys.stderr:
                    status = run(verb)
            finally:
                os._exit(status)
        _, code = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(code), out.read_text(), err.read_text()

    def restore(self, data: bytes, *, sums: bool) -> None:
        for folder in (".celedger", ".git/celedger"):
            shutil.rmtree(self.root / folder)
            shutil.copytree(self.state / folder, self.root / folder)
        if not sums:
            (self.root / ".celedger" / "ledger.db.stamp").unlink(missing_ok=True)
        for suffix in ("-wal", "-shm"):
            Path(f"{self.ledger}{suffix}").unlink(missing_ok=True)
        self.ledger.write_bytes(data)

    def outdated(self, data: bytearray, random: random.Random) -> str:
        pages = [
            at for at in range(0, min(len(data), len(self.older)), PAGE)
            if data[at : at + PAGE] != self.older[at : at + PAGE]
        ]  # fmt: skip
        at = random.choice(pages)
        data[at : at + PAGE] = self.older[at : at + PAGE]
        return f"page {at // PAGE + 1}"

    def judge(self, verb: tuple[str, ...], data: bytes, *, sums: bool) -> tuple[str, str]:
        self.restore(data, sums=sums)
        status, out, err = self.ask(verb)
        if "internal error" in err or "Traceback" in err or status not in (0, 1, 125, 128):
            return "fell over", err
        if status == 128:
            clear = len(err.splitlines()) == 1 and not out
            return ("refused", err) if clear else ("fell over", err)
        return ("same", "") if (status, out) == self.answers[verb] else ("DIFFERS", out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    folder = Path(tempfile.mkdtemp(prefix="celedger-damage-"))
    os.environ |= {"CELEDGER_LOCK_DIR": str(folder / "locks"), "COLUMNS": "150", **PEOPLE}
    wrong = 0
    with contextlib.ExitStack() as stack:
        if not asked.keep:
            stack.callback(shutil.rmtree, folder)
        ring = Ring(make_project(folder / "project"))
        kinds = (flip, flip_in_head, flip, flip_in_head, garbage, zeros, misplaced, ring.outdated,
                 cut_short)  # fmt: skip
        counts: dict[str, Counter[str]] = {kind.__name__: Counter() for kind in kinds}
        for number in range(asked.cases):
            kind = kinds[number % len(kinds)]
            data = bytearray(ring.good)
            where = kind(data, chance)
            if data == ring.good:
                continue
            for verb in VERBS:
                for sums in (True, False):
                    result, output = ring.judge(verb, bytes(data), sums=sums)
                    counts[kind.__name__][result] += 1
                    if result in ("fell over", "DIFFERS"):
                        wrong += 1
                        how = "with" if sums else "without"
                        print(f"{kind.__name__} {where}: {verb[0]} {how} sums {result}\n{output}")
    print(f"{len(ring.good) // PAGE} pages, seed {asked.seed}")
    for name, counter in counts.items():
        print(f"  {name:13} {dict(counter)}")
    print(f"{sum(map(Counter.total, counts.values()))} answers, {wrong} of them wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
