"""The small process between celedger and a command it runs. It is run by its path, with
`python -I -S`, so it must import nothing of celedger and little of the standard library;
`system/process.py` starts it and speaks its protocol. A warm launcher (`child/launcher.py`) loads
it too and forks instead, in a Python as old as 3.8.

Started as the leader of a session of its own, it becomes the reaper of every descendant
(so that a double fork or a `setsid` does not escape it), starts the command as the leader
of a process group in that session, and then does two things at once: it waits for
children, and it listens on the control pipe. A `T` there asks the command to terminate;
the end of the pipe means that celedger is gone or wants an end, and everything dies. As
only celedger holds the other end, that holds for a `kill -9` of celedger too.

Its order is one JSON object: `control` and `status`, descriptors; `argv` and `program`; `record`,
the file to which goes what the command names of the folders `recorded` and `packages`
(path_recorder.py), "" for none; `writable`, the paths below which alone it may write, [] for
anywhere; `cores`, the numbers of those that it may use, [] for all; `locale`, its LC_CTYPE.

The status pipe carries one JSON object a line: `{"pid": N, "heap": BYTES, "files": BYTES}` at once
(what of this process a command that is only forked shares with it), `{"errno": N}` when the command
could not be executed, `{"returncode": N, "wall": S}` when the command ended,
and `{"max_rss": BYTES, "cpu": S}` when nothing is left of it. An end of the pipe without the last
line means that the supervisor itself was killed.
"""

from __future__ import annotations

import _thread
import ctypes
import json
import os
import sys
import time

TYPE_CHECKING = False  # as mypy knows it: importing `typing` would cost as much as all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LINUX = sys.platform == "linux"

# Numbers and not names: importing `signal` would cost a third of the start.
SIGNALS_RESET = (1, 2, 3, 13, 15, 25)  # HUP INT QUIT PIPE TERM XFSZ: ignored ones are inherited
SIGKILL, SIGTERM = 9, 15
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

# What is left after the command ended may finish by itself for so long: torch's shared
# memory manager and multiprocessing's resource tracker clean /dev/shm in that moment.
LEFTOVER_GRACE = 0.25


def children(pid: int) -> list[int]:
    """Return the living or unreaped children of a process; none when it is gone."""
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{thread}/children") as file:  # noqa: PTH123
                pids.extend(map(int, file.read().split()))
    except OSError:  # it vanished while being read, or its thread did
        pass
    return pids


def descendants(root: int) -> list[int]:
    """Return all processes below `root`, parents first, without `root`. Linux only."""
    pids = children(root)
    for pid in pids:  # the list grows while it is walked
        pids.extend(children(pid))
    return pids


def memory(pid: object = "self") -> dict[str, int]:
    """Return a process's bytes in memory: `anonymous` (heap and the like), `file` and `shmem`.
    Empty where the process has ended, and off Linux."""
    kinds = {"RssAnon": "anonymous", "RssFile": "file", "RssShmem": "shmem"}
    sizes = {}
    try:
        with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
            for line in file:
                name, _, value = line.partition(":")
                if name in kinds:
                    sizes[kinds[name]] = int(value.split()[0]) * 1024
    except OSError:
        pass
    return sizes


def report(status: int, **facts: float) -> None:
    try:
        os.write(status, json.dumps(facts).encode() + b"\n")
    except OSError:  # celedger is gone and cannot hear it; the work goes on: killing the tree
        pass


def settle(parent: int) -> None:
    """In the forked child: a process group of its own, which dies with its supervisor."""
    os.setpgid(0, 0)
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above could take effect
        os._exit(127)
    if LINUX:  # when memory runs out the kernel shall take the trial, not its measurer
        try:
            with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
                file.write("1000")
        except OSError:
            pass


def _kill_all(command: int, grace: float) -> None:
    """Kill every descendant until the process itself ends (the main thread reaps and exits).
    What a killed process leaves behind becomes our child and is met in the next round."""
    me = os.getpid()
    deadline = time.monotonic() + grace
    while descendants(me) and time.monotonic() < deadline:
        time.sleep(0.005)
    pause = 0.001
    while True:
        for pid in descendants(me) if LINUX else [-command]:
            try:
                os.kill(pid, SIGKILL)
            except OSError:  # already gone, or became somebody else's by setuid
                pass
        time.sleep(pause)
        pause = min(pause * 2, 0.1)  # a process may hang in the kernel for long


_abandoned: list[bool] = []  # nobody wants to know any more what the command read


def _listen(control: int, command: int) -> None:
    while True:
        try:
            order = os.read(control, 1)
        except OSError:
            order = b""
        if not order:
            _abandoned.append(True)
            _kill_all(command, 0.0)
        try:
            os.killpg(command, SIGTERM)
        except OSError:
            pass


_modules: dict[str, Any] = {}


def module(name: str) -> Any:
    """Return a module of this folder. A launcher asks for one before it forks, so that none of
    its supervisors has to compile it."""
    if name not in _modules:
        folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
        loader = sys.modules["_frozen_importlib_external"].SourceFileLoader  # what `-I` leaves us
        _modules[name] = loader(f"celedger_{name}", f"{folder}/{name}.py").load_module()
        del sys.modules[f"celedger_{name}"]  # what a launcher has there, its trials have too
    return _modules[name]


def main(order: dict[str, Any]) -> None:
    if order["locale"]:  # Python itself sets LC_CTYPE where the locale is C (PEP 538)
        os.environ["LC_CTYPE"] = order["locale"]
    else:
        os.environ.pop("LC_CTYPE", None)

    def execute() -> None:
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        for number in SIGNALS_RESET:
            libc.signal(number, None)
        os.execv(order["program"], order["argv"])

    supervise(order, execute)


def _wait_for_all(command: int, status: int, started: float) -> dict[str, float]:
    """Wait for every child, and report how the command ended. Return what all of them used."""
    max_rss, cpu = 0, 0.0
    while True:
        try:
            pid, code, usage = os.wait3(0)
        except ChildProcessError:
            break
        max_rss = max(max_rss, usage.ru_maxrss)
        cpu += usage.ru_utime + usage.ru_stime
        if pid == command:
            ended = -os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)
            report(status, returncode=ended, wall=time.monotonic() - started)
            _thread.start_new_thread(_kill_all, (command, LEFTOVER_GRACE))
    # In bytes on macOS already.
    return {"max_rss": max_rss * (1024 if sys.platform != "darwin" else 1), "cpu": cpu}


def supervise(order: dict[str, Any], become: Callable[[], None]) -> None:
    """Fork the command and watch it to its end. Returns in the child alone, where `become`
    returned."""
    control, status = order["control"], order["status"]
    for fd in (control, status):
        os.set_inheritable(fd, False)
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    me = os.getpid()
    watch = None
    if order["record"]:
        watch = module("path_recorder").Watch(order["recorded"], order["packages"])
    box = module("sandbox") if order["writable"] else None
    inherited = memory()
    started = time.monotonic()
    command = os.fork()
    if command == 0:
        try:
            settle(me)
            if order["cores"]:
                os.sched_setaffinity(0, order["cores"])
            if box is not None:
                box.restrict(order["writable"])
            if watch is not None:
                watch.begin()
            become()
        except OSError as error:
            report(status, errno=error.errno or 0)
            os._exit(127)
        return
    if watch is not None:
        _thread.start_new_thread(watch.serve, ())
    try:
        os.setpgid(command, command)  # whoever comes first, child or parent
    except OSError:
        pass
    heap, files = inherited.get("anonymous", 0), inherited.get("file", 0)
    report(status, pid=command, heap=heap, files=files)
    _thread.start_new_thread(_listen, (control, command))
    facts = _wait_for_all(command, status, started)
    if watch is not None and not _abandoned:
        try:
            watch.record.write(order["record"])
        except OSError:  # a full disk: nothing is known then
            pass
    report(status, **facts)
    os.close(status)  # now: to give back a launcher's memory takes a while
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
