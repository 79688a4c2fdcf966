"""Tells the recorder (`system/reads.py`) which reads of the commit's sources are Python's own
imports, and on Python 3.12 and later which of their code was entered. Whatever reads a source
otherwise, in any process, is then known for a reader of its text. Tells, too, which folders the
import system looks at, and for which modules (`system/looks.py`).

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

TYPE_CHECKING = False  # what is imported here was sought in the tree, and in vain on some machines
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

VARIABLE = "CELEDGER_SOURCES"  # the checkout; unset where nobody records
SAYS = "/.celedger-says/"
MOST = 3500  # bytes of a message: one that is no path (PATH_MAX) would not be heard
_CODE = type((lambda: None).__code__)
_CALL: Any = type(len)
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
_NEWEST = (3, 14)  # whose finders were read; a newer one may tell more of what it lists
_FILES = (".py", ".pyc", ".so")  # what ends so is hardly ever a folder
# What `site` seeks by itself (the last on Debian), and what stands for its lines of code in .pth
# files: these import one module, that is there.
_STARTS = frozenset({"sitecustomize", "usercustomize", "apport_python_hook"})
_QUIET_STARTS = frozenset({"distutils-precedence.pth", "_virtualenv.pth"})
_PRELOADED = ("LD_PRELOAD", "LD_AUDIT")  # code that runs before Python's


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
    if sys.version_info[:2] <= _NEWEST:
        _mark_looks(inside)


def seek(names: Iterable[str], folder: str, verb: str = "seek") -> None:
    """Says that modules of these names are sought in a folder, given by its absolute path."""
    words: list[str] = []
    size = least = 4 * len(folder)  # bytes of UTF-8, at most
    for name in names:
        if "/" in name:  # no entry has such a name
            continue
        if words and size + 4 * len(name) > MOST:
            say(verb, "/".join(words) + "/" + folder)
            words, size = [], least
        words.append(name)
        size += 4 * len(name) + 1
    if words:
        say(verb, "/".join(words) + "/" + folder)


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

    machinery.SourceLoader.get_code = _disguised(get_code, original)


def _disguised(function: Any, original: Any) -> Any:
    """As if it were the original: importing takes its own frames, which it knows by their file, out
    of tracebacks."""
    function.__code__ = function.__code__.replace(co_filename=original.__code__.co_filename)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__kwdefaults__"):
        setattr(function, name, getattr(original, name))
    return function


def _mark_looks(inside: str) -> None:
    """Says of a folder of the tree that the next call of this thread, if it names just that, is
    the import system's, and what it seeks there."""
    machinery: Any = sys.modules["_frozen_importlib_external"]
    finder, sought = machinery.FileFinder, set()
    marked: list[bool] = []
    state, fill, find = machinery._path_stat, finder._fill_cache, finder.find_spec
    distributions = machinery.PathFinder.find_distributions

    def look(path: Any) -> None:
        if type(path) is str and (path + "/").startswith(inside):
            say("look", path)

    def _path_stat(path: Any) -> Any:
        if type(path) is str and not path.endswith(_FILES):
            look(path)
        return state(path)

    def _fill_cache(self: Any) -> None:
        # A finder of another kind may take more from a listing, or match other names.
        if type(self) is finder and all(suffix[:1] == "." for suffix, _ in self._loaders):
            look(self.path)
        fill(self)

    def find_spec(self: Any, fullname: str, target: Any = None) -> Any:
        path, name = self.path, fullname.rpartition(".")[2]
        if type(path) is str and (path + "/").startswith(inside) and (path, name) not in sought:
            seek((name,), path)
            sought.add((path, name))
        return find(self, fullname, target)

    def find_distributions(*args: Any, **kwargs: Any) -> Any:
        if not marked and "importlib.metadata" in sys.modules:
            marked.append(True)
            _mark_metadata(look)
        return distributions(*args, **kwargs)

    machinery._path_stat = _disguised(_path_stat, state)
    finder._fill_cache = _disguised(_fill_cache, fill)
    finder.find_spec = _disguised(find_spec, find)
    hidden = _disguised(find_distributions, distributions)
    machinery.PathFinder.find_distributions = staticmethod(hidden)
    _mark_realpath(inside)


def _mark_metadata(look: Callable[[Any], None]) -> None:
    """Of what it lists `importlib.metadata` takes but the installed packages."""
    path: Any = getattr(sys.modules.get("importlib.metadata"), "FastPath", None)
    if path is None or not isinstance(vars(path).get("mtime"), property):  # before Python 3.10
        return
    list_, state = path.children, path.mtime.fget

    def children(self: Any) -> Any:
        if _is_plain():
            look(self.root)
        return list_(self)

    def mtime(self: Any) -> Any:
        if _is_plain():
            look(self.root)
        return state(self)

    path.children, path.mtime = _disguised(children, list_), property(_disguised(mtime, state))


def _is_plain() -> bool:
    """Whether nobody has put something of his own, which may keep what it hears, in the place of
    the calls by which `os.path` and `importlib.metadata` look."""
    return all(type(call) is _CALL for call in (os.listdir, os.stat, os.lstat, os.readlink))


def _mark_realpath(inside: str) -> None:
    """It asks of each folder on a path whether that is a link, and tells nothing else."""
    module: Any = sys.modules["posixpath"]
    original = module.realpath

    def realpath(filename: Any, *args: Any, **kwargs: Any) -> Any:
        path = os.fspath(filename)
        elsewhere = path[:1] == "/" and not (path + "/").startswith(inside)
        if type(path) is not str or elsewhere or not _is_plain():
            return original(path, *args, **kwargs)
        say("resolve")
        try:
            return original(path, *args, **kwargs)
        finally:
            say("resolved")

    realpath.__wrapped__ = original  # type: ignore[attr-defined]
    module.realpath = _disguised(realpath, original)


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


def _reads_code(code: Any) -> bool:
    names = code.co_names
    found = _READERS.intersection(names)
    if found:  # what defines a function of that name reads nothing by it
        found = found.difference(c.co_name for c in code.co_consts if isinstance(c, _CODE))
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
        _say_start(tree)
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


def _say_start(tree: str) -> None:
    """What importing sought in the tree before this was imported. Nothing, where it may have been
    something else that looked there: then all that was named until now counts."""
    inside = tree.rstrip("/") + "/"
    own = [entry for entry in sys.path if (entry + "/").startswith(inside)]
    flags = sys.flags
    if (
        not own or flags.no_site or flags.ignore_environment or sys.version_info[:2] > _NEWEST
        or not os.environ.keys().isdisjoint(_PRELOADED) or any(map(_has_code, sys.path))
        or any("." in option for option in sys.warnoptions)  # a category that was imported
        or any(entry.endswith("-packages") for entry in own)  # `site` listed it for .pth files
    ):  # fmt: skip
        return
    names = sorted(_STARTS.union(name.partition(".")[0] for name in sys.modules))
    for entry in own:
        seek(names, entry, "start")


def _has_code(folder: str) -> bool:
    """Whether `site` found a line of code there that was not looked up."""
    if not folder.endswith("-packages"):
        return False
    try:
        for name in os.listdir(folder):
            if name.endswith(".pth") and name not in _QUIET_STARTS:
                with open(os.path.join(folder, name), "rb") as file:
                    if b"import" in file.read():
                        return True
    except OSError:
        return True
    return False


if __name__ == "sitecustomize":
    _as_sitecustomize()
