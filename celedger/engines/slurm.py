"""The engine Slurm: an order's keeper is a job, and a folder that the nodes share with this machine
carries the order there and its lines back. Asks Slurm by its own programs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import Any

from celedger.base import VERSION
from celedger.base.config import Config
from celedger.base.errors import MachineError, UsageError, explained
from celedger.base.model import Task
from celedger.engines import slurm_job as job
from celedger.engines.cluster import KeeperOf, LostNode
from celedger.engines.head import send_out
from celedger.engines.node_keeper import CHUNK, Greeting
from celedger.system import process
from celedger.trial.ending import last_line, tail
from celedger.trial.runner import Bench
from celedger.trial.workplace import RemoteBench

LOG = "job.log"  # what the job's program and Slurm write besides
_PATIENCE = 60.0  # seconds in which Slurm's programs answer
_POLL = 2.0  # seconds between two looks at the queue
_LATE = 1.0  # seconds in which the last lines of an ended job may still come
_WAIT = 1.0  # seconds that `read` waits for more
_RUNS = {"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
_BEGINS = _RUNS | {"PENDING", "CONFIGURING", "COMPLETING"}  # the last: how it ended is yet to come


class JobKeeper:
    """A keeper that is a job, by the folder of its order. `slurm` says how the job is."""

    def __init__(self, folder: Path, slurm: Slurm) -> None:
        self._folder, self._slurm = folder, slurm
        self._tail = b""  # of what was read
        self._late = 0.0  # until when an ended job's last lines may come; 0 if it runs

    def first(self) -> Any:
        """Return what the job said first, or None."""
        with self._reached():
            line, end, _ = (self._folder / job.LINES).read_bytes().partition(b"\n")
            return json.loads(line) if end else None

    def greet(self, repository: str) -> Greeting:
        first = self.first()
        host, version, schema = first["greeting"]
        return Greeting(host, version, schema, first["clones"].get(repository, []))

    def node(self) -> str:
        return str(self.first()["node"])

    def start(self, files: Mapping[str, bytes]) -> None:
        with self._reached():
            for name, content in files.items():
                (self._folder / name).write_bytes(content)
        self._ask(job.GO)

    def has_order(self) -> bool:
        with self._reached():
            return job.GO in job.asked(self._folder)

    def read(self, offset: int) -> tuple[bytes, bool]:
        deadline = time.monotonic() + _WAIT
        while True:
            ended = self._tail == job.LAST or self.is_over(_RUNS)
            with self._reached(), (self._folder / job.LINES).open("rb") as file:
                file.seek(offset)
                content = file.read(CHUNK)
            if content:
                self._tail = (self._tail + content)[-len(job.LAST) :]
                self._late = 0.0
                return content, False
            if ended or time.monotonic() > deadline:
                return b"", ended
            time.sleep(0.05)

    def is_over(self, states: Collection[str]) -> bool:
        """Return True if the job is in none of these states, and nothing more can come."""
        if self._slurm.state(self._folder.name) in states:
            self._late = 0.0
            return False
        self._late = self._late or time.monotonic() + _LATE
        return time.monotonic() > self._late

    def complaint(self) -> str:
        return last_line(tail(self._folder / LOG))

    def end(self, reason: str) -> None:
        self._ask(job.END, reason)

    def cancel(self) -> None:
        self._ask(job.CANCEL)

    def forget(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, request: str, why: str = "") -> None:
        with self._reached():
            job.append(self._folder / job.ASKS, json.dumps({request: why}).encode() + b"\n")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LostNode(f"{error.filename or self._folder}: {error.strerror}") from error


class Slurm:
    """The nodes of a Slurm cluster, at most so many at once. `address` is the shared folder.
    Raises CeledgerError if there is none, or no cluster."""

    name = "slurm"

    def __init__(self, address: str, most: int | None) -> None:
        self.address, self._most = address, most
        if shutil.which("sbatch") is None:
            raise MachineError(
                "the engine slurm needs sbatch, which is not on PATH",
                "type this on a machine that submits jobs, or use --engine local",
            )
        self._folder = Path(address)
        if problem := _unfit(address):
            raise UsageError(
                f"the engine slurm needs a folder that the nodes share; {problem}",
                'write engine_address = "/shared/folder" in your configuration',
            )
        self._lock = Lock()
        self._states = _states()
        self._asked = time.monotonic()

    @property
    def workers(self) -> int:
        """Return the GPUs of the cluster, or if there are none its nodes: on the CPU a trial has a
        node for itself."""
        nodes = _nodes()
        return min(sum(nodes.values()) or len(nodes), self._most or sys.maxsize)

    def device(self, wish: str) -> str:
        gpus = any(_nodes().values())
        if wish.startswith("cuda") and not gpus:
            raise MachineError("no node of the Slurm cluster has a GPU", "use --device cpu")
        return "cuda:0" if gpus and wish != "cpu" else "cpu"

    def hire(self, ulid: str, device: str, avoid: Collection[str]) -> KeeperOf:
        kind = "CPU" if device == "cpu" else "GPU"
        if not any(kind == "CPU" or gpus for node, gpus in _nodes().items() if node not in avoid):
            other = f" on another node than the {len(avoid)} that refused" if avoid else ""
            raise MachineError(
                f"the Slurm cluster has no {kind}{other}",
                "see `sinfo`; SBATCH_PARTITION names the partition to use",
            )
        folder = self._folder / ulid
        with explained(f"{folder} cannot be written"):
            folder.mkdir(mode=0o700)
            for name in (job.LINES, job.ASKS):
                (folder / name).touch()
        refused = [f"--exclude={','.join(sorted(avoid))}"] if avoid else []
        program = ["exec", sys.executable, "-m", job.__name__, str(folder)]
        _ask(
            "sbatch", "--parsable", f"--job-name={ulid}", "--no-requeue", "--nodes=1", "--ntasks=1",
            "--exclusive" if kind == "CPU" else "--gres=gpu:1", *refused, f"--chdir={folder}",
            f"--output={folder / LOG}", "--wrap", shlex.join(program),
        )  # fmt: skip
        self._note(ulid, "PENDING")
        keeper = JobKeeper(folder, self)
        while keeper.first() is None:
            if keeper.is_over(_BEGINS):
                raise self._never_began(ulid, keeper.complaint())
            time.sleep(0.05)
        self._note(ulid, "RUNNING")
        return keeper

    def _never_began(self, ulid: str, complaint: str) -> MachineError:
        if (state := self.state(ulid)) != "FAILED":
            return LostNode(f"its Slurm job is {state.lower() or 'gone'}")
        return MachineError(
            f"a node cannot run celedger: {complaint}",
            f"install celedger=={VERSION} for {sys.executable} on all nodes",
        )

    def find(self, ulid: str) -> KeeperOf:
        keeper = JobKeeper(self._folder / ulid, self)
        if not keeper.has_order():
            raise LostNode("its job never got the order")
        return keeper

    def release(self, ulid: str) -> None:
        with suppress(MachineError):  # a job whose folder is gone ends by itself
            _ask("scancel", "--quiet", f"--name={ulid}")
        shutil.rmtree(self._folder / ulid, ignore_errors=True)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def state(self, ulid: str) -> str:
        """Return the state of an order's job as Slurm last said it; "" if it is gone."""
        with self._lock:
            if time.monotonic() - self._asked > _POLL:
                with suppress(MachineError):  # that nobody answers says nothing about a job
                    self._states = _states()
                self._asked = time.monotonic()
            return self._states.get(ulid, "")

    def _note(self, ulid: str, state: str) -> None:
        """Note what is known of a job before Slurm is asked again."""
        with self._lock:
            self._states[ulid] = state


def connect(bench: Bench, config: Config, tasks: Sequence[Task]) -> RemoteBench:
    """Return a bench like another, whose trials run on the nodes of the cluster that the settings
    name. Raises CeledgerError if there is no such cluster."""
    return send_out(bench, config, tasks, Slurm(config.engine_address, config.workers))


def _unfit(address: str) -> str:
    """Say why a folder cannot be shared; "" if it can."""
    if not address.startswith("/"):
        return f"{address} is not absolute" if address else "none is named"
    try:
        TemporaryFile(dir=address).close()
    except OSError as error:
        return f"{address} cannot be written: {error.strerror}"
    return ""


def _ask(*argv: str) -> str:
    """Return what a program of Slurm answers. Raises MachineError."""
    status, out, err = process.capture(argv, timeout=_PATIENCE)
    if status:
        reason = (err.strip().splitlines() or [f"exit status {status}"])[-1]
        raise MachineError(f"{argv[0]} failed: {reason[:200]}", "see `sinfo` and `squeue --me`")
    return out


def _states() -> dict[str, str]:
    """Return the states of this user's jobs by name."""
    out = _ask("squeue", "--noheader", "--me", "--states=all", "--format=%T %j")
    return {name: state for state, _, name in (line.partition(" ") for line in out.splitlines())}


def _nodes() -> dict[str, int]:
    """Return how many GPUs each node has that can run trials."""
    partition = os.environ.get("SBATCH_PARTITION")
    out = _ask(
        "sinfo", "--noheader", "--Node", "--states=idle,mixed,allocated,completing",
        "--format=%N %G", *([f"--partition={partition}"] if partition else []),
    )  # fmt: skip
    rows = (line.split() for line in out.splitlines())
    return {
        name: sum(map(int, re.findall(r"gpu(?::[^:,()]+)?:(\d+)", gres))) for name, gres in rows
    }
