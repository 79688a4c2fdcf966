"""How a warm trial ends. An interpreter that ends takes everything apart that was imported,
which takes longer than many a small training, and in a forked process copies all of it first.
Where nobody could tell, a warm trial ends without. Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import importlib.machinery
import os
import stat
import sys
from types import ModuleType
from typing import Any, Callable, NamedTuple


class Before(NamedTuple):
    """What there was when the script began: names of modules, and descriptors. `standard` tells
    a file of the standard library."""

    modules: set[str]
    descriptors: set[int]
    standard: Callable[[str], bool]


# Looked up: it takes a library's operators out of torch's table, which ends with the process. There
# are hundreds, and each copies pages of the launcher's.
_SPARED = {("torch.library", "_del_library")}
_finalizers: list[Any] = []


def spare_finalizers() -> None:
    """In the launcher: of what `weakref.finalize` does at the end of a trial, what nobody sees."""
    weakref = sys.modules.get("weakref")
    for info in getattr(getattr(weakref, "finalize", None), "_registry", {}).values():
        func = info.func
        if (getattr(func, "__module__", ""), getattr(func, "__name__", "")) in _SPARED:
            info.atexit = False
            _finalizers.append(info)


def finish(before: Before) -> None:
    """After the script's last line: what `Py_FinalizeEx` does that can be seen from outside, in
    its order, then the end of the process. Returns, for the interpreter to end as ever, where
    something is left that only taking everything apart would bring to its end."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    modules = [m for n, m in list(sys.modules.items()) if n not in before.modules and m is not None]
    if sys.gettrace() or sys.getprofile() or _needs_more(modules, before):
        for info in _finalizers:
            info.func(*info.args, **(info.kwargs or {}))
        return
    try:
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # the interpreter says so and ends with status 120
    for module in reversed(modules):
        for name in [n for n in vars(module) if n != "__builtins__"]:
            vars(module)[name] = None  # the order of dying is that of being made
    ctypes.CDLL(None).fflush(None)
    os._exit(0)


def _needs_more(modules: list[ModuleType], before: Before) -> bool:
    """Threads, processes, files open for writing (their buffers), extensions of the trial's own
    (they may fail when unloaded) or classes with a `__del__`."""
    me = os.getpid()
    if len(os.listdir("/proc/self/task")) > 1:
        return True
    with open(f"/proc/{me}/task/{me}/children") as born:
        if born.read().strip():
            return True
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in before.descriptors and _writable(int(name)):
            return True
    extensions = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    for module in modules:
        file = str(getattr(module, "__file__", ""))
        if file.endswith(extensions) and not before.standard(file):
            return True
        for value in list(vars(module).values()):
            if isinstance(value, type) and "__del__" in vars(value):
                return True
    return False


def _writable(fd: int) -> bool:
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        return flags & os.O_ACCMODE != os.O_RDONLY or not stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:  # that of the listing itself
        return False
