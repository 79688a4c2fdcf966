"""Tells the recorder (`system/reads.py`) which reads of the commit's sources are Python's own
imports, and on Python 3.12 and later which of their code was entered. Whatever reads a source
otherwise, in any process, is then known for a reader of its text.

It comes to every Python of a trial as `sitecustomize`, beside `celedger` on PYTHONPATH, and to a
warm trial from `starting.py`. Standard library only, Python 3.8 and later, Linux.

A message is the `stat` of a path that cannot be there: the recorder hears of it as of any path,
in the order of the thread's other calls, from forked processes too, and nothing needs to be kept
open, flushed or closed. Without a recorder it is a call that fails. A process without this module
says nothing, and all that it reads counts whole.
"""

from __future__ import annotations

import os
import sys
from types import CodeType
from typing import Any

VARIABLE = "CELEDGER_SOURCES"  # the checkout; unset where nobody records
SAYS = "/.celedger-says/"
MOST = 3500  # bytes of a message: one that is no path (PATH_MAX) would not be heard
_TOOL = 4  # of sys.monitoring: none that its manual gives to debuggers, coverage and the like
# Who names one of these takes code for data: it may be carried out without being entered, as audit
# hooks are. Flags and free names are not here: a function that was not entered keeps them
# (`repo/canonical.py`).
_READERS = frozenset({
    "co_code", "_co_code_adaptive", "co_consts", "co_names", "co_varnames", "co_nlocals",
    "co_cellvars", "co_stacksize", "co_linetable", "co_lines", "get_instructions",
    "set_eval_frame", "addaudithook", "dump", "dumps",
    # While one of these hears of something, Python tells nobody what is entered.
    "setprofile", "settrace", "setprofile_all_threads", "settrace_all_threads",
    "register_callback", "set_events", "set_local_events",
})  # fmt: skip
_TRACING = frozenset({"setprofile", "settrace"})  # `threading` does so for whoever asked it to
_SIGNATURE = frozenset({"co_varnames"})  # of these `inspect` takes only the arguments
_BYTES = frozenset({"marshal", "_marshal"})


def say(verb: str, text: str = "", stat: Any = os.stat) -> None:
    try:
        if len(os.fsencode(text)) > MOST:
            verb, text = "lost", ""
    except ValueError:  # no file name here, such as one that this locale cannot write
        verb, text = "lost", ""
    try:
        stat(SAYS + verb + "/" + text)
    except OSError:
        pass
    except ValueError:  # a NUL
        say("lost", "", stat)


def install(tree: str) -> None:
    """From here on, in this process and those it forks."""
    inside = tree.rstrip("/") + "/"
    say("python")
    os.register_at_fork(after_in_child=lambda: say("python"))
    monitored = False
    if hasattr(sys, "monitoring"):
        monitored = _monitor(inside)
    version = "%d.%d.%d" % (sys.version_info[0], sys.version_info[1], monitored)
    if not sys.flags.optimize:
        _mark_imports(inside, version)


def _mark_imports(inside: str, version: str) -> None:
    machinery: Any = sys.modules["_frozen_importlib_external"]
    loader, original = machinery.SourceFileLoader, machinery.SourceLoader.get_code

    def get_code(self: Any, fullname: str) -> Any:
        path = getattr(self, "path", None)
        if type(self) is not loader or type(path) is not str or not path.startswith(inside):
            return original(self, fullname)
        say("begin", version + path)
        try:
            return original(self, fullname)
        finally:
            say("end")

    # Importing takes its own frames, which it knows by their file, out of tracebacks.
    get_code.__code__ = get_code.__code__.replace(co_filename=original.__code__.co_filename)
    get_code.__qualname__, get_code.__module__ = original.__qualname__, original.__module__
    get_code.__doc__ = original.__doc__
    machinery.SourceLoader.get_code = get_code


def _monitor(inside: str) -> bool:
    """Says once of each code object of the tree that it was entered. Each event is the code
    object's last, so that what runs often costs nothing."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    off, prefix = monitoring.DISABLE, len(inside)
    own = say.__code__.co_filename

    def entered(code: Any, _: int) -> Any:
        file = code.co_filename
        if file.startswith(inside):
            text = "%s\x1f%d\x1f%s" % (file[prefix:], code.co_firstlineno, code.co_qualname)
            say("entered", text)
        elif file != own and _reads_code(code):
            say("reader", os.path.basename(file) + ":" + code.co_qualname)
        return off

    try:
        monitoring.use_tool_id(_TOOL, "celedger")
    except ValueError:
        return False
    monitoring.register_callback(_TOOL, monitoring.events.PY_START, entered)
    monitoring.set_events(_TOOL, monitoring.events.PY_START)
    return True


def _reads_code(code: CodeType) -> bool:
    names = code.co_names
    found = _READERS.intersection(names)
    if found:  # what defines a function of that name reads nothing by it
        found = found.difference(c.co_name for c in code.co_consts if isinstance(c, CodeType))
    if not found:  # else code with another name, which nobody could tell
        return "replace" in names and any(
            str(word).startswith("co_")
            for constant in code.co_consts
            if type(constant) is tuple  # the keywords of a call, for one
            for word in constant
        )
    if found <= {"dump", "dumps"} and _BYTES.isdisjoint(names):
        return False  # of json, pickle and the like
    file = os.path.basename(code.co_filename)
    if (found <= _SIGNATURE and file == "inspect.py") or (
        found <= _TRACING and file == "threading.py"
    ):
        return False
    return not code.co_filename.startswith("<frozen ")


def _as_sitecustomize() -> None:
    """What the environment itself has by that name comes next, as if this were not here. Where it
    has none this raises ImportError, as `site` expects."""
    tree = os.environ.get(VARIABLE)
    if tree:
        install(tree)
    path = [os.path.abspath(entry) for entry in sys.path if entry]
    own = os.path.dirname(os.path.abspath(__file__))
    importing: Any = sys.modules["_frozen_importlib_external"]
    spec = importing.PathFinder.find_spec(__name__, path[path.index(own) + 1 :])
    if spec is None or spec.loader is None:
        raise ImportError("No module named %r" % __name__, name=__name__)
    module: Any = type(sys)(__name__)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules[__name__] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _as_sitecustomize()
