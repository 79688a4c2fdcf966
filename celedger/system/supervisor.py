"""The small process between celedger and a command it runs. It is run by its path, with
`python -I -S`, so it must import nothing of celedger and little of the standard library
(it starts in about 10 ms); `system/process.py` starts it and speaks its protocol. A warm
launcher (`child/launcher.py`) loads it too and forks instead, in a Python as old as 3.8.

Started as the leader of a session of its own, it becomes the reaper of every descendant
(so that a double fork or a `setsid` does not escape it), starts the command as the leader
of a process group in that session, and then does two things at once: it waits for
children, and it listens on the control pipe. A `T` there asks the command to terminate;
the end of the pipe means that celedger is gone or wants an end, and everything dies. As
only celedger holds the other end, that holds for a `kill -9` of celedger too.

The status pipe carries one JSON object a line: `{"pid": N}` at once, `{"errno": N}` when
the command could not be executed, `{"returncode": N, "wall": S}` when the command ended,
and `{"max_rss": BYTES, "cpu": S}` when nothing is left of it. An end of the pipe without
the last line means that the supervisor itself was killed.
"""

from __future__ import annotations

import _thread
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
    """The living or unreaped children of a process; empty when it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{thread}/children") as file:  # noqa: PTH123
                found.extend(map(int, file.read().split()))
    except OSError:  # it vanished while being read, or its thread did
        pass
    return found


def descendants(root: int) -> list[int]:
    """All processes below `root`, parents first, without `root`. Linux only."""
    found = children(root)
    for pid in found:  # the list grows while it is walked
        found.extend(children(pid))
    return found


def report(status: int, line: str) -> None:
    try:
        os.write(status, f"{line}\n".encode())
    except OSError:  # celedger is gone and cannot hear it; the work goes on: killing the tree
        pass


def settle(libc: object, parent: int) -> None:
    """In the forked child: a process group of its own, which dies with its supervisor."""
    os.setpgid(0, 0)
    if libc is not None and LINUX:
        libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)  # type: ignore[attr-defined]
    if os.getppid() != parent:  # it died before the line above could take effect
        os._exit(127)
    if LINUX:  # when memory runs out the kernel shall take the trial, not its measurer
        try:
            with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
                file.write("1000")
        except OSError:
            pass


def _execute(
    program: str,
    argv: list[str],
    libc: object,
    parent: int,
    status: int,
    watched: Callable[[], None],
) -> None:
    """In the forked child: becomes the command, or reports why not. Never returns."""
    try:
        settle(libc, parent)
        if libc is not None:
            for number in SIGNALS_RESET:
                libc.signal(number, None)  # type: ignore[attr-defined]
        watched()
        os.execv(program, argv)
    except OSError as error:
        report(status, f'{{"errno": {error.errno or 0}}}')
    finally:
        os._exit(127)


def _kill_all(command: int, grace: float) -> None:
    """Kills every descendant until the process itself ends (the main thread reaps and exits).
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


_loaded: dict[str, Any] = {}


def recorder() -> Any:
    """The module reads.py. A launcher asks for it before it forks, so that none of its supervisors
    has to compile it."""
    return _module("reads")


def _module(name: str) -> Any:
    if name not in _loaded:
        folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
        loader = sys.modules["_frozen_importlib_external"].SourceFileLoader  # what `-I` leaves us
        _loaded[name] = loader(f"celedger_{name}", f"{folder}/{name}.py").load_module()
        del sys.modules[f"celedger_{name}"]  # what a launcher has there, its trials have too
    return _loaded[name]


def main(
    control: int,
    status: int,
    locale: str,
    tree: str,
    reads: str,
    beside: str,
    writable: str,
    program: str,
    argv: list[str],
) -> None:
    if locale:  # Python itself sets LC_CTYPE where the locale is C (PEP 538)
        os.environ["LC_CTYPE"] = locale
    else:
        os.environ.pop("LC_CTYPE", None)
    os.set_inheritable(control, False)
    os.set_inheritable(status, False)

    def become(libc: object, me: int, watched: Callable[[], None]) -> None:
        _execute(program, argv, libc, me, status, watched)

    supervise(control, status, become, tree=tree, reads=reads, beside=beside, writable=writable)


def supervise(
    control: int,
    status: int,
    become: Callable[[object, int, Callable[[], None]], None],
    last_words: Callable[[], str] = str,
    tree: str = "",
    reads: str = "",
    beside: str = "",
    writable: str = "",
) -> None:
    """Forks the command and watches it to its end. Returns in the child alone, where `become`
    (of libc, this process's number, and what begins the record of its reads) returned;
    `last_words` (JSON members, each with a comma before it) join the report of how it ended.
    What it names of the folder `tree`, and of those `beside` it, goes into the file `reads`, where
    one is given. It writes only below the paths `writable` (joined by "//"), where any is given."""
    libc = None
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        if LINUX:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError):  # a Python without ctypes: the session is what is left
        pass

    me = os.getpid()
    # What records all that the command will read of `tree`, and opens beside it.
    watch = recorder().Watch(tree, beside) if reads else None
    box = _module("sandbox") if writable else None

    def begin() -> None:
        if box is not None:
            box.restrict(writable.split("//"))
        if watch is not None:
            watch.begin()

    started = time.monotonic()
    command = os.fork()
    if command == 0:
        become(libc, me, begin)
        return
    if watch is not None:
        _thread.start_new_thread(watch.serve, ())
    try:
        os.setpgid(command, command)  # whoever comes first, child or parent
    except OSError:
        pass
    report(status, f'{{"pid": {command}}}')
    _thread.start_new_thread(_listen, (control, command))

    max_rss, cpu = 0, 0.0
    while True:
        try:
            pid, code, usage = os.wait3(0)
        except ChildProcessError:
            break
        max_rss = max(max_rss, usage.ru_maxrss)
        cpu += usage.ru_utime + usage.ru_stime
        if pid == command:
            wall = time.monotonic() - started
            ended = -os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)
            report(status, f'{{"returncode": {ended}, "wall": {wall:.6f}{last_words()}}}')
            _thread.start_new_thread(_kill_all, (command, LEFTOVER_GRACE))
    if sys.platform != "darwin":  # where it is in bytes already
        max_rss *= 1024
    if watch is not None and not _abandoned:
        try:
            watch.record.write(reads)
        except OSError:  # a full disk: nothing is known then
            pass
    report(status, f'{{"max_rss": {max_rss}, "cpu": {cpu:.6f}}}')
    os.close(status)  # now: to give back a launcher's memory takes a while
    os._exit(0)


if __name__ == "__main__":
    _, control, status, locale, tree, reads, beside, writable, program, *argv = sys.argv
    main(int(control), int(status), locale, tree, reads, beside, writable, program, argv)
