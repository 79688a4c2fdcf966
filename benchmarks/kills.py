"""kill -9 at random moments of the training, of `celedger run` and of `celedger worker`, and
what is left afterwards: `python benchmarks/kills.py --times 30 --seed 1`.

The training writes each epoch to a witness file of its own after `log` has returned; the ledger
must hold all of them after the next command. Ends with 1, and says why, when an epoch is missing,
a trial stays open, a process, journal or lock is left, or the next command does not go on.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SUITE = """\
[metrics.loss]
direction = "lower"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py"
seeds = [0, 1]
"""
TRAINING = """\
import os, time
from celedger.child import log
witness = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
if os.fork() == 0:
    time.sleep(600)  # a child that outlives its parent, if nobody ends it
for epoch in range(25):
    time.sleep(0.02)
    log(epoch=epoch, loss=1.0 / (epoch + 1))
    os.write(witness, f"{os.environ['CELEDGER_TRIAL']} {epoch}\\n".encode())
"""


@dataclass
class Ring:
    """A repository, and what went wrong in it."""

    root: Path
    rng: random.Random
    wrong: list[str] = field(default_factory=list)
    phases: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.witness = self.root.with_name("witness")
        self.repo = self.root
        folder = self.repo / "suites" / "tiny"
        folder.mkdir(parents=True)
        (folder / "suite.toml").write_text(SUITE)
        (folder / "fit.py").write_text(TRAINING)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "CELEDGER_"))},
            "WITNESS": str(self.witness),
            "CELEDGER_LOCK_DIR": str(self.root.with_name("locks")),
            "HOME": str(self.root.parent),
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        for words in (
            ["init", "--quiet"],
            ["add", "-A"],
            ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first"],
        ):
            subprocess.run(["git", *words], cwd=self.repo, env=self.env, check=True)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "celedger", *words], cwd=self.repo, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *words: str) -> float:
        """A command that must end well; its seconds."""
        began = time.monotonic()
        process = self.start(*words)
        try:
            _, said = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            self.wrong.append(f"`celedger {' '.join(words)}` hangs")
            return 60.0
        if process.returncode != 0:
            self.wrong.append(f"`celedger {' '.join(words)}`: {process.returncode}: {said}")
        return time.monotonic() - began

    def sql(self, query: str) -> list[tuple]:
        path = self.repo / "ledger.db"
        if not path.exists():
            return []
        connection = sqlite3.connect(path, timeout=30)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def queue(self) -> None:
        """What a git hook leaves."""
        notes = self.repo / ".git" / "celedger" / "queue"
        notes.mkdir(parents=True, exist_ok=True)
        (notes / f"{self.rng.getrandbits(32)}.moved").write_text(str(self.repo))
        git = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q"]
        subprocess.run(
            [*git, "--allow-empty", "-m", "next"], cwd=self.repo, env=self.env, check=True
        )

    def examine(self, what: str) -> None:
        """After a kill and one more command."""
        held = {
            f"{u} {e}"
            for u, e in self.sql("SELECT ulid, epoch FROM points p JOIN trials t ON t.id = p.trial")
        }
        told = set(self.witness.read_text().splitlines()) if self.witness.exists() else set()
        if told - held:
            lost = min(told - held)
            ulid = lost.split()[0]
            kept = sorted(int(e) for u, e in map(str.split, held) if u == ulid)
            end = self.sql(
                "SELECT kind, message FROM outcomes JOIN trials ON trials.id = trial "
                f"WHERE ulid = '{ulid}'"
            )
            self.wrong.append(
                f"{what}: {len(told - held)} epochs are lost: {lost}; kept {kept}; {end}"
            )
        still = self.sql(
            "SELECT ulid FROM trials LEFT JOIN outcomes ON trial = trials.id WHERE trial IS NULL"
        )
        if still:
            self.wrong.append(f"{what}: {len(still)} trials stay open")
        journals = list((self.repo / ".celedger" / "journals").glob("*.jsonl"))
        if journals:
            self.wrong.append(f"{what}: journals are left: {journals}")
        slots = self.repo / ".git" / "celedger" / "checkouts"
        locks = [*slots.glob("*.lock"), *self.root.with_name("locks").glob("*.lock")]
        locks.append(self.repo / ".git" / "celedger" / "worker.lock")
        for lock in filter(Path.exists, locks):
            with lock.open("r+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self.wrong.append(f"{what}: {lock} is still held")
        deadline = time.monotonic() + 3
        while (stray := list(trial_processes(self.root))) and time.monotonic() < deadline:
            time.sleep(0.02)
        if stray:
            self.wrong.append(f"{what}: processes are left: {stray}")

    def strike(self, kind: str, usual: float) -> None:
        """Start, kill, go on, look."""
        if kind == "worker":
            self.queue()
            process = self.start("worker")
        else:
            process = self.start("run", "HEAD", "--force")
        trials = len(self.sql("SELECT 1 FROM trials"))
        if kind == "trial" or self.rng.random() < 0.5:  # into the training, or anywhere
            deadline = time.monotonic() + usual * 3
            while not list(trial_processes(self.root)) and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(self.rng.uniform(0, 0.5))
        else:
            time.sleep(self.rng.uniform(0, usual * 1.1))
        found = list(trial_processes(self.root)) if kind == "trial" else [process.pid]
        pid = self.rng.choice(found) if found else 0
        busy = bool(list(trial_processes(self.root)))
        began = len(self.sql("SELECT 1 FROM trials")) > trials
        self.phases["training" if busy else "around trials" if began else "before a trial"] += 1
        if pid:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                self.phases["too late"] += 1
        process.communicate(timeout=60)
        self.run("worker" if kind == "worker" else self.rng.choice(["log", "run"]))
        self.examine(f"{kind} killed")


def trial_processes(root: Path) -> Iterator[int]:
    """Those that carry CELEDGER_TRIAL and belong to this ring, supervisors included."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environ = (folder / "environ").read_bytes()
            except OSError:
                continue
            if b"CELEDGER_TRIAL=" in environ and os.fsencode(root.parent) in environ:
                yield int(folder.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("kinds", nargs="*", default=["trial", "run", "worker"])
    options = parser.parse_args()
    status = 0
    for kind in options.kinds:
        with tempfile.TemporaryDirectory(prefix="celedger-kills-") as folder:
            ring = Ring(Path(folder) / "repo", random.Random(f"{options.seed} {kind}"))
            ring.run("run")
            usual = ring.run("run", "--force")
            began = time.monotonic()
            for _ in range(options.times):
                ring.strike(kind, usual)
            ring.run("run", "HEAD")
            ring.examine("at the end")
            kinds = dict(ring.sql("SELECT kind, count(*) FROM outcomes GROUP BY kind"))
            told = len(ring.witness.read_text().splitlines())
            slots = len(list((ring.repo / ".git" / "celedger" / "checkouts").glob("*.lock")))
            print(
                f"{kind:7s} killed {options.times} times in {time.monotonic() - began:.0f} s "
                f"(a command takes {usual:.1f} s): {len(ring.wrong)} faults; {told} epochs "
                f"witnessed; outcomes {kinds}; checkouts {slots}; when {dict(ring.phases)}"
            )
            for line in ring.wrong:
                print(f"    {line.strip()}")
            status |= bool(ring.wrong)
    return status


if __name__ == "__main__":
    sys.exit(main())
