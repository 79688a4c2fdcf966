"""How a forked trial gets the start of a cold one: its descriptors, environment, `sys.path`,
`__main__` and memory, and the modules that were imported before it, each at the moment the
script imports it. Loaded by `launcher.py` alone. Standard library only, Python 3.8 and later.

Where a cold start would import something else (the commit or the script's folder has a module of
that name, or the script changed the environment or `sys.path` first), the process becomes a cold
one: it executes the interpreter, in the same place, with the environment it began with.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import fcntl
import importlib
import importlib.machinery
import io
import os
import re
import runpy
import signal
import sys
import sysconfig
import warnings
from types import CodeType, ModuleType, TracebackType
from typing import Any

MADV_POPULATE_READ = 22  # Linux 5.14
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PRESENT = 1 << 63  # of an entry of /proc/PID/pagemap
_OWN = (__file__, os.path.join(os.path.dirname(__file__), "launcher.py"))
_HOME = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))  # on PYTHONPATH
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_LIBRARIES = tuple(
    os.path.realpath(sysconfig.get_path(key)) + os.sep for key in ("stdlib", "platstdlib")
)


class Watch:
    """A finder that finds nothing and remembers what nobody found: a commit that has a module of
    such a name would have provided it."""

    def __init__(self) -> None:
        self.missed: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if path is None:
            self.missed.add(name)


def standard(file: str) -> bool:
    """Whether a module's file is of the standard library."""
    real = os.path.realpath(file)
    return real.startswith(_LIBRARIES) and not _INSTALLED.search(real)


def descriptors() -> list[int]:
    """What this process has open, without what it takes to ask."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            fcntl.fcntl(int(name), fcntl.F_GETFD)
        except OSError:
            continue
        found.append(int(name))
    return found


def children() -> list[int]:
    me = os.getpid()
    with open(f"/proc/{me}/task/{me}/children") as file:
        return [int(pid) for pid in file.read().split()]


# -- in the launcher ---------------------------------------------------------------------------


class _Group:
    """What importing one module brought with it: other modules, and settings of the process.
    Modules of the standard library are left out, they look the same whenever imported."""

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.modules: dict[str, ModuleType] = {}
        self.variables: dict[str, str] = {}
        self.filters: list[Any] = []  # of warnings, in front of those before


class _Prepared:
    """What the launcher leaves for its trials."""

    def __init__(self) -> None:
        self.groups: list[_Group] = []
        self.regular: frozenset[str] = frozenset()  # top-level modules a commit could replace
        self.portions: frozenset[str] = frozenset()  # and those that a mere folder could
        self.pages: list[tuple[int, int]] = []  # address, length: file pages importing read
        self.output = b""  # what importing printed
        self.path: list[str] = []


_prepared = _Prepared()


def preload(entry: str) -> None:
    """Imports one module and remembers what came with it."""
    modules, variables, filters = set(sys.modules), dict(os.environ), list(warnings.filters)
    importlib.import_module(entry)
    if any(os.environ.get(name) != value for name, value in variables.items()):
        raise ImportError("it changes environment variables")
    group = _Group(entry)
    group.variables = {n: v for n, v in os.environ.items() if n not in variables}
    if warnings.filters[len(warnings.filters) - len(filters) :] == filters:
        group.filters = list(warnings.filters[: len(warnings.filters) - len(filters)])
    new = {name: sys.modules[name] for name in sys.modules if name not in modules}
    tops = {entry.partition(".")[0]}.union(
        *(_tops(earlier.modules) for earlier in _prepared.groups),
        (n for n, m in new.items() if "." not in n and _foreign(m)),
    )
    group.modules = {n: m for n, m in new.items() if n.partition(".")[0] in tops}
    _prepared.groups.append(group)


def preload_later() -> None:
    """What a preloaded module imports when the process ends."""
    if "torch._dynamo.utils" in sys.modules:
        with contextlib.suppress(ImportError):
            preload("tabulate")


def _tops(modules: dict[str, ModuleType]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def _foreign(module: ModuleType) -> bool:
    file = file_of(module)
    return bool(file) and (_INSTALLED.search(file) is not None or not standard(file))


def file_of(module: ModuleType) -> str:
    """Where it came from, "" where that is not known: a lazy one may do anything when asked."""
    try:
        file = vars(module).get("__file__")
    except Exception:
        return ""
    return file if isinstance(file, str) else ""


def prepare(missed: set[str]) -> None:
    """After the imports; `missed` are the modules that could not be found."""
    regular = {n for n in sys.modules if "." not in n and n != "__main__"}
    portions = {
        n for n in regular
        if getattr(sys.modules[n], "__file__", None) is None and hasattr(sys.modules[n], "__path__")
    }  # fmt: skip
    _prepared.regular = frozenset(regular)
    _prepared.portions = frozenset(portions | missed | {"sitecustomize", "usercustomize"})
    _prepared.path = list(sys.path)
    _prepared.pages = _resident()
    size = os.fstat(1).st_size
    _prepared.output = os.pread(1, size, 0) if size else b""


def _resident() -> list[tuple[int, int]]:
    """The pages of mapped files that are in this process's memory, as runs."""
    runs: list[tuple[int, int]] = []
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", 0) as table:
        for line in maps:
            words = line.split()
            if words[4] == "0" or not words[1].startswith("r"):
                continue
            low, high = (int(word, 16) for word in words[0].split("-"))
            entries = os.pread(table.fileno(), (high - low) // _PAGE * 8, low // _PAGE * 8)
            begin = -1
            for number, entry in enumerate([*memoryview(entries).cast("Q"), 0]):
                if entry & _PRESENT:
                    begin = number if begin < 0 else begin
                elif begin >= 0:
                    runs.append((low + begin * _PAGE, (number - begin) * _PAGE))
                    begin = -1
    return runs


# -- in a trial --------------------------------------------------------------------------------


def hand_over(given: list[int], wanted: list[int]) -> None:
    """Opens in this process what a cold trial inherits, and nothing else: `given` is the log
    and, in order, what is to be known by the numbers `wanted`."""
    above = max([2, *given, *wanted]) + 1
    sources = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in given]
    for fd in descriptors():
        if 2 < fd < above:
            os.close(fd)
    for source, target in zip([sources[0], *sources], [1, 2, *wanted]):
        os.dup2(source, target, inheritable=True)
    for source in sources:
        os.close(source)


def _populate() -> None:
    """A fork leaves out the pages of mapped files, a cold start has read them. With them, memory
    is counted as if this process had imported everything itself."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for address, length in _prepared.pages:
        madvise(address, length, MADV_POPULATE_READ)


class _Trial:
    """What a cold start needs: the way out of a warm one."""

    def __init__(self, argv: list[str], cwd: str, warm: Any) -> None:
        self.argv, self.cwd, self.warm = argv, cwd, warm
        self.environment = dict(os.environ)  # that a cold start begins with
        self.expected = dict(os.environ)
        self.path: list[str] = []

    def set_variables(self, variables: dict[str, str]) -> None:
        """As importing a module did."""
        os.environ.update(variables)
        self.expected.update(variables)

    def leave(self) -> None:
        """Becomes a cold trial."""
        self.warm[0] = 0
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, exec keeps that
            signal.signal(number, signal.SIG_DFL)
        os.chdir(self.cwd)
        os.execve(self.argv[0], self.argv, self.environment)

    def check(self) -> None:
        """Leaves when importing now would not do what importing early did."""
        if dict(os.environ) != self.expected or any(
            shadows(entry) for entry in sys.path if entry not in self.path
        ):
            self.leave()


def shadows(folder: str) -> bool:
    """Whether a folder on sys.path, put before all others, could have had a say in what was
    imported early: a module, an extension or package of such a name, an installed package that
    is one or that plugs itself into others. In doubt, True."""
    try:
        with os.scandir(folder or ".") as found:
            entries = list(found)
    except NotADirectoryError:
        return True  # a zip
    except OSError:
        return False
    for entry in entries:
        name = entry.name.partition(".")[0]
        if entry.name.endswith((".dist-info", ".egg-info", ".egg", ".egg-link")):
            if name.partition("-")[0] in _prepared.regular or _plugs(entry.path):
                return True
        elif name in _prepared.portions:
            if entry.name != "sitecustomize.py" or folder != _HOME:  # our own: `finder.py`
                return True
        elif name in _prepared.regular:  # a folder that is no package comes after any module
            if not entry.is_dir() or _is_package(entry.path):
                return True
    return False


def _is_package(folder: str) -> bool:
    return any(name.startswith("__init__.") for name in os.listdir(folder))


def _plugs(metadata: str) -> bool:
    try:
        with open(os.path.join(metadata, "entry_points.txt")) as file:
            groups = [line.strip() for line in file if line.strip().startswith("[")]
    except (OSError, UnicodeDecodeError):
        return not os.path.isdir(metadata)
    return not set(groups) <= {"[console_scripts]", "[gui_scripts]"}


class _Curtain:
    """The finder and loader before which nothing seems to be imported: a script meets each
    preloaded module when it imports it."""

    def __init__(self, trial: _Trial) -> None:
        self.trial = trial
        self.specs: dict[str, Any] = {}
        for group in _prepared.groups:
            for name in group.modules:
                del sys.modules[name]
            for filter_ in group.filters:
                warnings.filters.remove(filter_)  # type: ignore[attr-defined]
        warnings._filters_mutated()  # type: ignore[attr-defined]

    def _holder(self, name: str) -> _Group | None:
        return next((group for group in _prepared.groups if name in group.modules), None)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        group = self._holder(name)
        if group is None:
            return None
        spec = importlib.machinery.ModuleSpec(name, self)  # type: ignore[arg-type]
        vars(spec).update(vars(getattr(group.modules[name], "__spec__", None) or spec))
        spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: Any) -> ModuleType:
        name = spec.name
        self.trial.check()
        group = self._holder(name)
        assert group is not None
        module = group.modules[name]
        self.specs[name] = getattr(module, "__spec__", None)
        for other in list(group.modules):
            if name == group.entry or _tops({other: module}) == _tops({name: module}):
                sys.modules[other] = group.modules.pop(other)
        if name == group.entry:
            self.trial.set_variables(group.variables)
            warnings.filters[:0] = group.filters  # type: ignore[index]
            warnings._filters_mutated()  # type: ignore[attr-defined]
        if not any(group.modules for group in _prepared.groups):
            sys.meta_path.remove(self)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.specs.pop(module.__name__)


def run(order: dict[str, Any], warm: Any, ending: Any, finder: Any) -> None:
    """Runs the script as `python script.py …` or `python -m module …` would, to the end."""
    for group in _prepared.groups:
        for name in group.variables:
            del os.environ[name]
    os.environ.update(order["late"])
    argv: list[str] = order["argv"]
    trial = _Trial(argv, order["cwd"], warm)
    by_name = argv[1] == "-m"
    first = os.getcwd() if by_name else os.path.dirname(os.path.realpath(argv[1]))
    paths = order["late"].get("PYTHONPATH", "").split(os.pathsep)
    roots = [os.path.abspath(path) for path in paths if path]
    if any(map(shadows, [first, *roots])):
        trial.leave()
    sys.path[:] = [first, *dict.fromkeys([*roots, *_prepared.path])]
    trial.path = list(sys.path)
    sys.argv = ["-m", *argv[3:]] if by_name else argv[1:]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(argv)
    _reset()
    _populate()
    if _prepared.output:
        os.write(2, _prepared.output)
    launcher = sys.modules["__main__"]  # its globals are still needed
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if sys.version_info < (3, 14):
        main.__dict__["__annotations__"] = {}  # noqa: RUF063
    sys.modules["__main__"] = main
    finder.install()
    before = ending.Before(set(sys.modules) - {"__main__"}, set(descriptors()), standard)
    sys.meta_path.insert(0, _Curtain(trial))
    try:
        if by_name:
            runpy._run_module_as_main(argv[2])  # type: ignore[attr-defined]
        else:
            exec(_script(argv[1], main), main.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    except BaseException:
        _forget_us()
        raise
    ending.finish(before)
    del launcher


def _script(path: str, main: ModuleType) -> CodeType:
    file = path
    if sys.version_info >= (3, 9) and not os.path.isabs(path):
        file = os.path.join(os.getcwd(), path[2:] if path.startswith("./") else path)
    main.__dict__.update(
        __file__=file,
        __cached__=None,
        __loader__=importlib.machinery.SourceFileLoader("__main__", file),
    )
    with io.open_code(file) as source:
        return compile(source.read(), file, "exec", dont_inherit=True)


def _reset() -> None:
    """What differs from process to process, and signals as a new interpreter finds them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    # `random` seeds itself anew in a forked process; these would repeat the launcher's numbers.
    for group in _prepared.groups:
        if "numpy.random" in group.modules:
            group.modules["numpy.random"].seed()
        if "torch" in group.modules:
            group.modules["torch"].default_generator.seed()


def _forget_us() -> None:
    """Tracebacks begin at the script's first line."""
    hook = sys.excepthook

    def show(kind: Any, value: BaseException, trace: TracebackType | None) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename in _OWN:
            trace = trace.tb_next
        value.__traceback__ = trace
        hook(kind, value, trace)

    sys.excepthook = show
