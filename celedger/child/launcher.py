"""The fork server of warm starts: a process of the measured interpreter that has imported what a
suite preloads and forks a trial on request. Run by its path, outside of any checkout and without
the commit's PYTHONPATH. `system/warm.py` starts it, decides which commands may use it, and is the
other end of its socket. Standard library only, Python 3.8 and later, Linux.

In a forked trial the preloaded modules are in `sys.modules`, and a traceback begins here. It ends
as a process of `multiprocessing` does: it waits for threads, runs `atexit`, releases the script's
globals and flushes streams, but does not finalise the interpreter.

One JSON object a message. First, to celedger: `{"unfit": REASON}`, or `{"modules": {NAME: FILE}}`
of the loaded top-level modules; in both `heap`, the bytes of anonymous memory once all is imported.
Then, from celedger, the order of a supervisor
(`system/supervisor.py`) with `late`, variables, `cwd` and `fds`, the descriptor numbers in the
trial; with it come the descriptors control, status, log and those of `fds`. The answer is
`{"pid": N}`, the trial's supervisor. It stays unreaped until `{"reap": N}`, so that no other
process gets its number. The launcher ends when the socket is closed.

One that is kept for later commands listens on a socket instead, and talks so to each of its
clients. It ends at `{"end": true}`, or when nobody has asked for anything for IDLE seconds.
"""

from __future__ import annotations

import sys

FOLDER = sys.path.pop(0)  # it has a torch.py

import array
import atexit
import contextlib
import ctypes
import fcntl
import importlib
import importlib.machinery
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import threading
import weakref
from types import ModuleType
from typing import Any

# Its value is overwritten in a trial, so that a search for a trial's processes finds them.
VARIABLE = b"CELEDGER_TRIAL="
AGAIN = "again"  # the last argument of a launcher that was started anew
# The thread of an allocator that has handlers of forks. pyarrow starts one, which pandas imports.
FORKS_WELL = "jemalloc_bg_thd\n"
MOST_FDS = 64  # passed with one order
IDLE = (
    600.0  # seconds: somebody who edits tries again within minutes; torch holds 300 MB until then
)


def load(path: str) -> Any:
    """Return a module that no script can see or shadow."""
    name = "celedger_" + os.path.basename(path)[:-3]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def descriptors() -> set[int]:
    """Return this process's open descriptors, without the one used to list them."""
    numbers = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            fcntl.fcntl(int(name), fcntl.F_GETFD)
        except OSError:
            continue
        numbers.add(int(name))
    return numbers


def _imported(preload: list[str], before: set[int]) -> dict[str, Any]:
    """Import the modules, and return the first message, without `heap`."""
    path = list(sys.path)
    for name in preload:
        try:
            importlib.import_module(name)
        except BaseException as error:  # a module may call sys.exit
            return {"unfit": f"{name} cannot be imported: {type(error).__name__}: {error}"}
    if sys.path != path:
        return {"unfit": "importing changed sys.path"}
    pid = os.fork()  # runs the handlers by which libraries (OpenBLAS) end their threads
    if pid == 0:
        os._exit(_cuda_is_unusable())
    status = os.waitpid(pid, 0)[1]
    links = {os.readlink(f"/proc/self/fd/{fd}") for fd in descriptors() - before}
    if status or any(link.startswith("/dev/nvidia") for link in links):
        return {"unfit": "importing used CUDA, which a fork cannot use again"}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as comm:
            if int(thread) != os.getpid() and comm.read() != FORKS_WELL:
                return {"unfit": "importing started threads"}
    if descriptors() != before:
        return {"unfit": "importing left files open"}
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        if children.read().strip():
            return {"unfit": "importing started processes"}
    # The launcher's own threads: their process continues, and torch has hundreds.
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    excluded = (sys.modules["__main__"], None)  # multiprocessing adds a second name for it
    tops = {name: m for name, m in sys.modules.items() if "." not in name and m not in excluded}
    return {"modules": {name: str(vars(m).get("__file__") or "") for name, m in tops.items()}}


def _import_from_byte_code() -> Any:
    """Let the imports write byte-code. Return a function that ends this; if any was written, that
    starts this process anew, once. Compiling leaves free room in the heap, which trials fill: those
    of a first run after an installation would seem to need less memory."""
    loader: Any = importlib.machinery.SourceFileLoader
    write, was_off = loader.set_data, sys.dont_write_bytecode
    written: list[str] = []

    def set_data(self: Any, path: str, data: bytes, **options: Any) -> None:
        write(self, path, data, **options)
        if os.path.exists(path):
            written.append(path)

    def end() -> None:
        loader.set_data, sys.dont_write_bytecode = write, was_off
        if written and AGAIN not in sys.argv:
            os.execv(sys.executable, [sys.executable, *sys.argv, AGAIN])

    loader.set_data, sys.dont_write_bytecode = set_data, False
    return end


def _cuda_is_unusable() -> bool:
    """Return True in a fork of a process that started CUDA (CUDA C++ Programming Guide,
    "Initialization"); torch then refuses it there."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(getattr(cuda, "_is_in_bad_fork", bool)())


def _variable_address() -> int:
    """Return the address of the value of CELEDGER_TRIAL in what /proc/PID/environ shows."""
    with open("/proc/self/stat", "rb") as file:
        start = int(file.read().rpartition(b")")[2].split()[47])  # env_start of proc(5)
    with open("/proc/self/environ", "rb") as file:
        offset = (b"\0" + file.read()).index(b"\0" + VARIABLE)
    return start + offset + len(VARIABLE)


def _serve(door: socket.socket, hello: dict[str, Any], supervisor: Any) -> dict[str, Any] | None:
    """Fork trials until celedger ends, or for all who come in by a listening socket. Returns only
    in a trial, with its order."""
    address = _variable_address()
    is_kept = bool(door.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    clients: dict[socket.socket, set[int]] = {}  # the supervisors that each has not reaped
    orphans: set[int] = set()
    if not is_kept:
        clients[door] = set()
        _answer(door, hello)
    while True:
        sockets = [*clients, *([door] if is_kept else [])]
        ready = select.select(sockets, [], [], IDLE if is_kept and not clients else None)[0]
        orphans -= {pid for pid in orphans if os.waitpid(pid, os.WNOHANG)[0]}
        if not ready:
            return None
        for channel in ready:
            if is_kept and channel is door:
                client = door.accept()[0]
                clients[client] = set()
                _answer(client, hello)
                continue
            order, fds = _received(channel)
            if not order:
                orphans |= clients.pop(channel)
                channel.close()
                if not is_kept:
                    return None
            elif "end" in order:
                return None
            elif "reap" in order:
                os.waitpid(order["reap"], 0)
                clients[channel].discard(order["reap"])
            else:
                pid = os.fork()
                if pid == 0:
                    for one in {door, *clients}:
                        one.close()
                    _supervise(order, fds, address, supervisor)
                    return order
                for fd in fds:
                    os.close(fd)
                clients[channel].add(pid)
                _answer(channel, {"pid": pid})


def _answer(channel: socket.socket, message: dict[str, Any]) -> None:
    try:
        channel.send(json.dumps(message).encode())
    except ConnectionError:  # the other end is gone, as the next message says
        pass


def _received(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next message and its descriptors; nothing where the other end is closed."""
    space = socket.CMSG_SPACE(MOST_FDS * array.array("i").itemsize)
    try:
        data, ancillary, _, _ = channel.recvmsg(1 << 20, space)
    except ConnectionError:
        data, ancillary = b"", []
    fds = array.array("i")
    for _, _, sent in ancillary:
        fds.frombytes(sent)
    return json.loads(data) if data else {}, list(fds)


def _supervise(order: dict[str, Any], fds: list[int], address: int, supervisor: Any) -> None:
    """Become the supervisor in this process, and exit as such; return in the trial."""
    os.setsid()
    token = order["late"]["CELEDGER_TRIAL"].encode()
    ctypes.memmove(address, token, len(token))
    order["control"], order["status"], *passed = fds

    def become() -> None:
        os.chdir(order["cwd"])
        _hand_over(passed, order["fds"])

    supervisor.supervise(order, become)


def _hand_over(passed: list[int], numbers: list[int]) -> None:
    """Open in this process what a cold trial inherits, and nothing else: `passed` is the log and
    then the descriptors that get the numbers `numbers`."""
    above = max([2, *passed, *numbers]) + 1
    sources = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in passed]
    for fd in descriptors():
        if 2 < fd < above:
            os.close(fd)
    for source, target in zip([sources[0], *sources], [1, 2, *numbers]):
        os.dup2(source, target, inheritable=True)
    for source in sources:
        os.close(source)


def _run(order: dict[str, Any], finder: Any) -> None:
    """Run the script as `python script.py …` or `python -m module …` would, to the end."""
    os.environ.update(order["late"])
    argv: list[str] = order["argv"]
    by_name = argv[1] == "-m"
    first = os.getcwd() if by_name else os.path.dirname(os.path.realpath(argv[1]))
    roots = [os.path.abspath(p) for p in order["late"].get("PYTHONPATH", "").split(":") if p]
    sys.path[:] = [first, *dict.fromkeys([*roots, *sys.path])]
    for folder in [first, *roots] if order["record"] else []:
        # A loaded module is not looked for again; the recorder must know that any new name counts
        # here.
        if os.path.isdir(folder):
            os.listdir(folder)
    sys.argv = ["-m", *argv[3:]] if by_name else argv[1:]
    sys.orig_argv = list(argv)
    _reset()
    if order["record"]:
        finder.install()
        if finder.OPTIMIZER in sys.modules:
            finder.measure_steps(sys.modules[finder.OPTIMIZER])
    if "CELEDGER_PROBE" in os.environ:
        importlib.import_module("celedger.child.attach").install()
    main = sys.modules["__main__"] = ModuleType("__main__")
    status = 0
    try:
        if by_name:
            runpy._run_module_as_main(argv[2])  # type: ignore[attr-defined]
        else:
            with open(os.path.abspath(argv[1]), "rb") as file:
                main.__file__ = file.name
                code = compile(file.read(), file.name, "exec", dont_inherit=True)
            exec(code, vars(main))
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:  # as Python shows it, without the frame of this function
        trace = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    vars(main).clear()  # closes files that the script left open
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status & 0xFF)


def _reset() -> None:
    """Give signals and random numbers the state of a new interpreter."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    # `random` seeds itself anew in a forked process; these would repeat the launcher's numbers.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def main() -> None:
    finder = load(os.path.join(FOLDER, "import_finder.py"))
    supervisor = load(sys.argv[2])
    supervisor.module("path_recorder")
    door = socket.socket(fileno=int(sys.argv[1]))
    preload = json.loads(sys.argv[3])
    end_writing = _import_from_byte_code()
    message = _imported(preload, descriptors())
    end_writing()
    if all(name in sys.modules for name in preload):
        message["heap"] = supervisor.memory().get("anonymous", 0)
    order = _serve(door, message, supervisor)
    if order is None:
        os._exit(0)
    _run(order, finder)


if __name__ == "__main__":
    main()
