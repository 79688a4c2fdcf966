"""The warm launcher: a process of the measured interpreter that has imported what a suite
preloads and forks a trial when asked. Run by its path, outside of any checkout and without the
commit's PYTHONPATH; `system/warm.py` starts it, decides which commands may use it, and is the
other end of its socket. Standard library only, Python 3.8 and later, Linux.

A trial must not be able to tell. What a cold interpreter would start with, `starting.py` gives
it, or starts a cold one in its place; how one ends is in `ending.py`. The launcher never calls
what it imported, and refuses to serve when importing left threads, processes, open files (a
device is one) or another `sys.path` behind.

One JSON object a message. First, to celedger: `{"unfit": REASON}`, or `{"files": {…},
"stamps": […]}` (see `_imported`). From celedger then: `{"late": {…}, "cwd": …, "argv": […],
"fds": [N, …], "reads": [TREE, FILE, BESIDE], "writable": PATHS}` with the descriptors control,
status, log, and those the trial knows as N. The answer is `{"pid": N}`, the trial's supervisor. It
stays unreaped, so that its number is nobody else's, until `{"reap": N}`. The end of the socket is
the launcher's own.
"""

from __future__ import annotations

import sys

FOLDER = sys.path[0]
del sys.path[0]  # it has a torch.py

import array
import ctypes
import importlib.util
import json
import mmap
import os
import socket
from typing import Any

# Its value is overwritten in a trial, so that who looks for a trial's processes finds them.
VARIABLE = b"CELEDGER_TRIAL="
MOST_FDS = 64  # passed with one order


def load(path: str) -> Any:
    """A module that no script can see or shadow."""
    name = "celedger_" + os.path.basename(path)[:-3]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _imported(preload: list[str], starting: Any) -> dict[str, Any]:
    """Imports; then `files`, where the top-level modules came from that are not of the standard
    library, and `stamps`, the state of the folders of sys.path before that."""
    path, stamps = list(sys.path), _stamps()
    watch = starting.Watch()
    sys.meta_path.append(watch)
    for name in preload:
        try:
            starting.preload(name)
        except BaseException as error:  # a module may call sys.exit
            return {"unfit": f"{name} cannot be imported: {type(error).__name__}: {error}"}
    starting.preload_later()
    sys.meta_path.remove(watch)
    if sys.path != path:
        return {"unfit": "importing changed sys.path"}
    main = sys.modules["__main__"]  # multiprocessing gives it a second name
    files = {name: starting.file_of(m) for name, m in sys.modules.items() if m is not main}
    outside = {
        name: os.path.dirname(file)
        for name, file in files.items()
        if file and "." not in name and not starting.standard(file)
    }
    starting.prepare(watch.missed)
    return {"files": outside, "stamps": stamps}


def _stamps() -> list[tuple[str, int, int]]:
    """What changes when something is installed: modification time (ns) and inode of the folders
    on sys.path."""
    found = []
    for folder in sys.path:
        try:
            state = os.stat(folder)
        except OSError:
            continue
        found.append((folder, state.st_mtime_ns, state.st_ino))
    return found


def _unfit(starting: Any, before: set[int]) -> str:
    """What importing left behind that a fork would break or share, in words."""
    pid = os.fork()  # runs the handlers by which libraries (OpenBLAS) end their threads
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if len(os.listdir("/proc/self/task")) != 1:
        return "importing started threads"
    if set(starting.descriptors()) != before:
        return "importing left files open"
    return "importing started processes" if starting.children() else ""


def _named() -> int:
    """The address of the value of CELEDGER_TRIAL in what /proc/PID/environ shows."""
    with open("/proc/self/stat", "rb") as file:
        start = int(file.read().rpartition(b")")[2].split()[47])  # env_start of proc(5)
    with open("/proc/self/environ", "rb") as file:
        found = (b"\0" + file.read()).index(b"\0" + VARIABLE)
    return start + found + len(VARIABLE)


def _serve(channel: socket.socket, starting: Any, supervisor: Any) -> tuple[Any, Any] | None:
    """Forks trials until celedger goes. Returns in a trial: what to run, and the shared byte
    that says whether it still is a warm one."""
    address = _named()
    while True:
        space = socket.CMSG_SPACE(MOST_FDS * array.array("i").itemsize)
        data, ancillary, _, _ = channel.recvmsg(1 << 20, space)
        if not data:
            return None
        order = json.loads(data)
        if "reap" in order:
            os.waitpid(order["reap"], 0)
            continue
        fds = array.array("i")
        for _, _, sent in ancillary:
            fds.frombytes(sent)
        pid = os.fork()
        if pid == 0:
            channel.close()
            return _fork(order, list(fds), address, starting, supervisor)
        for fd in fds:
            os.close(fd)
        channel.send(json.dumps({"pid": pid}).encode())


def _fork(
    order: dict[str, Any], fds: list[int], address: int, starting: Any, supervisor: Any
) -> tuple[Any, Any]:
    """In the process that becomes the supervisor, and ends as that; returns in the trial."""
    os.setsid()
    token = order["late"]["CELEDGER_TRIAL"].encode()
    ctypes.memmove(address, token, len(token))
    warm = mmap.mmap(-1, 1)  # shared with the trial
    warm[0] = 1
    control, status, *passed = fds

    def become(libc: Any, parent: int, watched: Any) -> None:
        try:
            supervisor.settle(libc, parent)
            os.chdir(order["cwd"])
            watched()
            starting.hand_over(passed, order["fds"])
        except OSError as error:
            supervisor.report(status, json.dumps({"errno": error.errno or 0}))
            os._exit(127)

    tree, reads, beside = order["reads"]
    supervisor.supervise(
        control, status, become, lambda: f', "warm": {warm[0]}',
        tree=tree, reads=reads, beside=beside, writable=order["writable"],
    )  # fmt: skip
    return order, warm


def main() -> None:
    starting = load(os.path.join(FOLDER, "starting.py"))
    ending = load(os.path.join(FOLDER, "ending.py"))
    finder = load(os.path.join(FOLDER, "finder.py"))
    supervisor = load(sys.argv[2])
    supervisor.recorder()
    channel = socket.socket(fileno=int(sys.argv[1]))
    before = set(starting.descriptors())
    said = _imported(json.loads(sys.argv[3]), starting)
    if "unfit" not in said:
        problem = _unfit(starting, before)
        said = {"unfit": problem} if problem else said
    ending.spare_finalizers()
    channel.send(json.dumps(said).encode())
    trial = _serve(channel, starting, supervisor)
    if trial is None:
        os._exit(0)
    starting.run(*trial, ending, finder)


if __name__ == "__main__":
    main()
