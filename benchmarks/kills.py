"""kill -9 at random moments of each kind of process (KINDS), and what is left afterwards:
`python benchmarks/kills.py --times 30 --seed 1`.

A training writes each epoch to a witness file of its own after `log` has returned; the ledger
must hold all of them after the next command. A process that reports also has a file of its own
open under the number in CELEDGER_FD. Ends with 1, and says why, when an epoch is missing, that
file holds anything else, a trial stays open, a process, journal or lock is left, or the next
command does not go on.
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
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE = 300.0  # seconds for a command, on a machine that does much else
SUITE = """\
[suite]
pass_env = ["WITNESS"]
preload = {preload}
[metrics.loss]
direction = "lower"
[[task]]
name = "fit"
command = "{command}"
seeds = [0, 1]
"""
# What reports: 25 epochs, each witnessed once its report returned.
REPORTER = """\
import os, sys, time
from celedger.child import log
open("model.txt").close()  # no result is re-used for a commit that changes it
rank = os.environ.get("RANK", "0")
folder, number = os.environ["WITNESS"], int(os.environ["CELEDGER_FD"])
own = os.open(folder + "/own", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
if os.environ.get("PARENT") != str(os.getpid()):
    os.dup2(own, number)
    own = number
witness = os.open(folder + "/witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    import torch.distributed as dist
    dist.init_process_group("gloo")
for epoch in range(25):
    time.sleep(0.02)
    log(epoch=epoch, **{"loss" if rank == "0" else f"loss{rank}": 1.0 / (epoch + 1)})
    line = f"{os.environ['CELEDGER_TRIAL']} {epoch} {rank}\\n"
    os.write(witness, line.encode())
    os.write(own, b"own\\n")
"""
PARENT = """\
import os, runpy, sys, time
os.environ["PARENT"] = str(os.getpid())
if os.fork() == 0:
    time.sleep(600)  # a child that outlives its parent, if nobody ends it
runpy.run_path(os.path.dirname(__file__) + "/report.py")
"""
CALLER = """\
import os, subprocess, sys
sys.exit(subprocess.call([sys.executable, os.path.dirname(__file__) + "/report.py"]))
"""
TORCHRUN = "{python} -m torch.distributed.run --standalone --nproc-per-node 2 {suite}/report.py"
ACCELERATE = (
    "{python} -m accelerate.commands.launch --cpu --num_processes 1 --num_machines 1 "
    "--mixed_precision no --dynamo_backend no {suite}/report.py"
)
PLAIN, CALLED = "{python} {suite}/fit.py", "{python} {suite}/call.py"

# Kind of kill: the task's command, what a launcher imports for it, and who may be killed.
KINDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "trial": (PLAIN, "[]", ("process",)),
    "run": (PLAIN, "[]", ("run",)),
    "worker": (PLAIN, "[]", ("worker",)),
    "launcher": (PLAIN, '["numpy"]', ("launcher", "process")),
    "child": (CALLED, "[]", ("process", "run", "worker")),
    "supervisor": (CALLED, "[]", ("supervisor",)),
    "both": (CALLED, "[]", ("supervisor run", "run supervisor")),
    "torchrun": (TORCHRUN, "[]", ("process", "supervisor", "supervisor run", "run")),
    "accelerate": (ACCELERATE, "[]", ("process", "supervisor", "supervisor run", "run")),
}  # fmt: skip


@dataclass
class Ring:
    """A repository, and what went wrong in it."""

    root: Path
    kind: str
    rng: random.Random
    wrong: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    foreign: int = 0
    phases: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.witness = self.root.with_name("witness")
        self.own = self.root.with_name("own")
        self.repo = self.root
        folder = self.repo / "suites" / "tiny"
        folder.mkdir(parents=True)
        command, preload, _ = KINDS[self.kind]
        suite = SUITE.replace("{command}", command).replace("{preload}", preload)
        (folder / "suite.toml").write_text(suite)
        (folder / "fit.py").write_text(PARENT)
        (folder / "call.py").write_text(CALLER)
        (folder / "report.py").write_text(REPORTER)
        (self.repo / "model.txt").touch()
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "CELEDGER_"))},
            "WITNESS": str(self.root.parent),
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
            _, said = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            self.wrong.append(f"`celedger {' '.join(words)}` hangs")
            return PATIENCE
        if process.returncode not in (0, 1):  # 1: of a killed child, its training failed
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
        number = self.rng.getrandbits(32)
        (notes / f"{number}.moved").write_text(str(self.repo))
        (self.repo / "model.txt").write_text(f"{number}")
        git = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q"]
        subprocess.run([*git, "-a", "-m", "next"], cwd=self.repo, env=self.env, check=True)

    def examine(self, what: str) -> None:
        """After a kill and one more command."""
        recorded = {
            f"{ulid} {epoch} {name.removeprefix('loss') or 0}"
            for ulid, epoch, name in self.sql(
                "SELECT ulid, epoch, name FROM points p JOIN trials t ON t.id = p.trial "
                "JOIN metrics m ON m.id = p.metric WHERE name LIKE 'loss%'"
            )
        }
        witnessed = set(self.witness.read_text().splitlines()) if self.witness.exists() else set()
        if lost := sorted(witnessed - recorded - self.lost):
            self.lost.update(lost)
            ulid = lost[0].split()[0]
            end = self.sql(
                "SELECT kind, message FROM outcomes JOIN trials ON trials.id = trial "
                f"WHERE ulid = '{ulid}'"
            )
            self.wrong.append(f"{what}: {len(lost)} epochs are lost: {', '.join(lost)}; {end}")
        lines = self.own.read_bytes().splitlines() if self.own.exists() else []
        if foreign := len(lines) - lines.count(b"own"):
            self.own.unlink()
            self.foreign += foreign
            self.wrong.append(f"{what}: {foreign} lines in the training's own file")
        still = self.sql(
            "SELECT ulid FROM trials LEFT JOIN outcomes ON trial = trials.id WHERE trial IS NULL"
        )
        if still:
            self.wrong.append(f"{what}: {len(still)} trials stay open")
        folders = (".celedger/journals", ".git/celedger/ledgers/*/journals")
        journals = [path for folder in folders for path in self.repo.glob(f"{folder}/*.jsonl")]
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

    def strike(self, usual: float) -> None:
        """Start, kill, go on, look."""
        victims = self.rng.choice(KINDS[self.kind][2]).split()
        if "worker" in victims:
            self.queue()
            process = self.start("worker")
        else:
            process = self.start("run", "HEAD", "--force")
        trials, size = len(self.sql("SELECT 1 FROM trials")), self.reported()
        if self.rng.random() < 0.7:  # while it reports, or anywhere
            deadline = time.monotonic() + usual * 3
            while self.reported() == size and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(self.rng.uniform(0, 0.5))
        else:
            time.sleep(self.rng.uniform(0, usual * 1.1))
        busy = bool(trial_processes(self.root))
        began = len(self.sql("SELECT 1 FROM trials")) > trials
        self.phases["training" if busy else "around trials" if began else "before a trial"] += 1
        for victim in victims:
            pids = [process.pid] if victim in ("run", "worker") else self.find(victim)
            try:
                os.kill(self.rng.choice(pids), signal.SIGKILL)
            except (ProcessLookupError, IndexError):
                self.phases["too late"] += 1
        if len(victims) > 1:
            time.sleep(self.rng.uniform(0, 0.5))  # those that nobody ends yet may report
        process.communicate(timeout=PATIENCE)
        self.run("worker" if "worker" in victims else self.rng.choice(["log", "run"]))
        self.examine(f"{' and '.join(victims)} killed")

    def reported(self) -> int:
        return self.witness.stat().st_size if self.witness.exists() else 0

    def find(self, victim: str) -> list[int]:
        """The processes of a trial, its supervisor among them; that alone; or the launcher."""
        tokens = trial_processes(self.root)
        launchers = {pid for pid, token in tokens.items() if not token.strip(b"0")}
        inside = tokens.keys() - launchers
        if victim == "launcher":
            return sorted(launchers)
        return sorted(p for p in inside if victim == "process" or parent(p) not in inside)


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def trial_processes(root: Path) -> dict[int, bytes]:
    """Those that carry CELEDGER_TRIAL, and its value, and belong to this ring, supervisors and
    launchers included."""
    pids = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environ = (folder / "environ").read_bytes()
            except OSError:
                continue
            if b"CELEDGER_TRIAL=" in environ and os.fsencode(root.parent) in environ:
                token = environ.partition(b"CELEDGER_TRIAL=")[2].partition(b"\0")[0]
                pids[int(folder.name)] = token
    return pids


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} [all]")
    options = parser.parse_args()
    if unknown := set(options.kinds) - KINDS.keys():
        parser.error(f"no such kind: {', '.join(unknown)}")
    status = 0
    for kind in options.kinds or KINDS:
        with tempfile.TemporaryDirectory(prefix="celedger-kills-") as folder:
            ring = Ring(Path(folder) / "repo", kind, random.Random(f"{options.seed} {kind}"))
            ring.run("run")
            usual = ring.run("run", "--force")
            began = time.monotonic()
            for _ in range(options.times):
                ring.strike(usual)
            ring.run("run", "HEAD")
            ring.examine("at the end")
            kinds = dict(ring.sql("SELECT kind, count(*) FROM outcomes GROUP BY kind"))
            witnessed = len(ring.witness.read_text().splitlines())
            slots = len(list((ring.repo / ".git" / "celedger" / "checkouts").glob("*.lock")))
            print(
                f"{kind:10s} killed {options.times} times in {time.monotonic() - began:.0f} s "
                f"(a command takes {usual:.1f} s): {len(ring.wrong)} faults; {witnessed} epochs "
                f"witnessed, {len(ring.lost)} lost, {ring.foreign} lines in the training's file; "
                f"outcomes {kinds}; checkouts {slots}; when {dict(ring.phases)}",
                flush=True,
            )
            for line in ring.wrong:
                print(f"    {line.strip()}")
            status |= bool(ring.wrong)
    return status


if __name__ == "__main__":
    sys.exit(main())
