"""What looks at Python code otherwise than by carrying it out, as far as its words tell.

That a source's text was not read is known from the kernel (`system/sources.py`); whoever prints a
traceback or a warning of it, asks `inspect` for it or compiles it anew has to open it. What is
left after importing can be seen without: docstrings, line numbers, code objects. Every file that
the trial read in its commit, the suite, the commands, and what else was opened outside of the
standard library and installed packages is searched for the words by which one gets at these. A
word in a comment counts as well as one in a string that is executed later.

Installed packages are not searched: they say everything somewhere. Of line numbers and code they
make messages. Docstrings are different (docopt's options, ply's grammars, a tool's description
for a language model): they count as soon as a package is used of which it was not looked up that
it only copies them.
"""

from __future__ import annotations

import ast
import os
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path

MOST = 8 << 20  # bytes of a file that is searched; a longer one counts as one that looks

# Line numbers, frames, code objects, and other ways into importing. `lineno` stands for tb_, f_,
# co_first…; printing them opens the source. `catch_warnings` hands out records where it is given
# an argument, and their number depends on lines. The size of a source is seen without opening it.
_CODE = re.compile(
    rb"lineno|traceback|inspect|linecache|tracemalloc|faulthandler|marshal|cloudpickle|\bdill\b"
    rb"|tokenize|symtable|pstats|cProfile|\bprofile\.(?:run|Profile)|with_stack|stack_info"
    rb"|settrace|setprofile|monitoring|\b[pb]db\b|showwarn|formatwarning|excepthook"
    rb"|\bimport\b(?:[^\n;#]|\\\n){0,200}\btrace\b|trace\.Trace"
    # Not `from torch.profiler import profile`.
    rb"|\bfrom\s+(?:trace|profile)\b|(?m:^[ \t]*import\b[^\n;#]{0,200}\bprofile\b)"
    rb"|(?:-m|import_module\(|__import__\()[\s'\",]*(?:trace|profile)\b|_lsprof"
    rb"|catch_warnings\(\s*[^)\s]|CodeType|__code__|\b(?:f|gi|cr|ag)_code\b|\bco_[a-z]"
    rb"|(?:from|import)\s+dis\b|\bdis\.|_getframe|currentframe|get_objects|get_refer"
    rb"|get_code|source_to_code|path_hooks|meta_path|path_importer_cache|importlib\.machinery"
    rb"|(?:Source|Finder|Loader|Path)(?:File)?(?:Loader|Finder)|_bootstrap|celedger-says"
    rb"|st_size|getsize|\b(?:__)?[fl]?x?stat(?:x|64|at)?\b|get_file_info|scandir|follow_symlinks|path_stats|filecmp|fsspec|\bupath\b|gfile"
    rb"|__loader__|__spec__|builtins|audithook"
    # A traceback without its name, frames, and `warnings` for one line.
    rb"|\btb_[a-z]|\bf_(?:locals|globals|back|lasti|trace)|\b(?:gi|cr|ag)_frame"
    rb"|_current_frames|_current_exceptions|exc_info|PYTHONWARNINGS|-W\s*[^\s'\"]*:\d"
    rb"|__warningregistry__|captureWarnings|pythonapi|PyDLL|Py(?:Frame|Code|TraceBack|Eval)_"
    # What keeps lines in what it writes: exported graphs, the `repr` of asyncio's tasks, handles
    # and futures with callbacks. It logs them too: in its debug mode (which Python's -X dev turns
    # on) those that are slow, else those that are lost.
    rb"|\b(?:jit|onnx|export|fx)\b|\b(?:current_task|all_tasks|create_task|ensure_future)\b"
    rb"|(?i:asyncio)|PYTHONDEVMODE|-X[\s'\",]*dev\b"
    rb"|\bcall_(?:soon\w*|later|at)\b|\badd_(?:reader|writer|signal_handler|done_callback)\b"
    rb"|__static_attributes__|findCaller|LogRecord|getrefcount|signal\.signal|set_debug|gettarinfo|ZipInfo"
    # The line given by its place among the arguments.
    rb"|simplefilter\((?:(?:[^,()]|\([^()]*\))*,){2}|filterwarnings\((?:(?:[^,()]|\([^()]*\))*,){4}"
)
# What is handed the namespace of a class: metaclasses, also where one is only called.
_METACLASSES = (
    rb"(?i:metaclass)|\wMeta\b|\bEnumType\b|__prepare__|\bclass\s+\w+\s*\([^:]{0,200}\btype\b"
)
# From Python 3.13 on a class's namespace holds its first line, and the attributes that its methods
# set, entered or not.
_NAMESPACES = re.compile(
    rb"__dict__|__dir__|\b(?:vars|dir|locals)\b|getmembers|\(\s*type\s*[,)]|\bhelp\s*\("
    rb"|" + _METACLASSES
)
_WITH_LINES = (3, 13)
# With `logging`: a record of it holds its line, and shows it where it is printed.
_RECORDS = re.compile(
    rb"__dict__|\bvars\b|\bemit\b|makeRecord|(?:Socket|Queue|Datagram|HTTP|Memory)Handler|addFilter"
    rb"|\(\s*(?:logging\.)?(?:Formatter|Filter|Handler)\s*[,)]"
)
# Docstrings, and what shows that a name or constant is there at all.
_DOCS = re.compile(
    rb"getdoc|pydoc|doctest|getmembers|__dict__|\b(?:vars|dir|globals|locals)\b|__globals__"
    rb"|\brunpy\b|\bhelp\s*\(|docopt|\b(?:np|numpy)\.(?:info|lookfor|source)\b"
    rb"|\bfrom\s+numpy\s+import\b[^\n]*\b(?:info|lookfor|source)\b"
    # Modules of the standard library that show them.
    rb"|unittest|\bcmd\.Cmd|(?:from|import)\s+cmd\b|xmlrpc|" + _METACLASSES
)
# A function that was never entered lends its names to the one around it. And its constants are
# objects: when cycles are collected depends on how many were made, and then what weak references,
# finalizers and lists of subclasses show. It also closes files, so that their numbers are given
# again, and ends generators: what `contextmanager` makes of one is not left open by a `with`.
_SCOPES = re.compile(
    rb"(?<![.\w])(?:locals|eval|exec|vars|dir)\b|__closure__|cell_"
    rb"|weakref|Weak[A-Z]|utils\.weak|__subclasses__|__del__|getallocatedblocks|\bintern\b|internedsize"
    rb"|fileno|\bdup2?\b|\bos\.(?:open|pipe|memfd)|mkstemp|openpty|(?:self|dev)/fd|NOFILE|num_fds"
    rb"|\.__enter__|enter_context|ExitStack|__wrapped__"
)
# What carries out a text that it is given, whatever its file is called: not `model.eval()`,
# `torch.compile`, nor a name as a key or value.
_EXECUTES = re.compile(
    rb"(?<![.\w'\"-])(?:eval|exec|compile)\s*[(,)]|=\s*(?:eval|exec|compile)\s*(?:$|[\n;#])"
    rb"|\brunpy\b|\bexecfile\b|\bcodeop\b|Interactive(?:Interpreter|Console)|builtins"
    rb"|\bsubprocess\b|\bpopen\b|os\.(?:system|exec|posix_spawn|spawn)"
)
# Calls of `gc` that show nothing where their value is dropped, as many trainings make them.
_GC = re.compile(rb"\bgc\b")
# Ways to what Python's import system keeps of the folders that it listed.
_FINDERS = re.compile(
    rb"_path_cache|_fill_cache|_path_stat|path_importer_cache|path_hook|FileFinder|FastPath"
    rb"|get_importer|iter_importers"
)
_SILENT = frozenset({"collect", "disable", "enable", "freeze", "unfreeze", "set_threshold"})
_PARSED = 1 << 20  # bytes of a source that is parsed for it; a larger one counts as one that shows
_REWRITTEN = re.compile(rb"\b(?:ident|filter|working-tree-encoding)\b")  # in .gitattributes

_NO_MODULES = (b".dist-info", b".egg-info", b".pth", b".libs")
# Looked up in their sources, 2026-11-21: of code that is not their own they only copy docstrings
# (functools.wraps and the like), add to them or print them.
_COPYING = frozenset({
    "torch", "torchgen", "functorch", "numpy", "sympy", "mpmath", "typing_extensions", "filelock",
    "networkx", "jinja2", "markupsafe", "fsspec", "tqdm", "tabulate", "pynvml", "_virtualenv",
    "_distutils_hack",
})  # fmt: skip


def at_code(text: bytes, python: tuple[int, int] = (0, 0)) -> bool:
    if python >= _WITH_LINES and _at_namespaces(text):
        return True
    if b"logging" in text and _RECORDS.search(text) is not None:
        return True
    return _CODE.search(text) is not None or _has_modules(text)


def _at_namespaces(text: bytes) -> bool:
    """Whether the namespace of a class may be asked for: not by `vars(args)` of what was parsed
    from the command line, as half of all scripts have it."""
    found = len(_NAMESPACES.findall(text))
    if not found or b"parse_" not in text:
        return bool(found)
    tree = _parsed(text) if len(text) <= _PARSED else None
    if tree is None:
        return True
    parsed = set[str]()
    bound = Counter[str]()  # all that binds a name
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                [ast.Name(name)], ast.Call(ast.Attribute(_, "parse_args"))
            ) | ast.Assign(
                [ast.Tuple([ast.Name(name), _])], ast.Call(ast.Attribute(_, "parse_known_args"))
            ):
                parsed.add(name)
                bound[name] -= 1  # the name itself comes by, too
            case ast.Name(ctx=ast.Load()) | ast.keyword():
                continue
        words = {getattr(node, field, None) for field in ("id", "arg", "name", "asname", "rest")}
        bound.update(word for word in words if isinstance(word, str))
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("vars"), [ast.Name(name)], []):
                found -= name in parsed and not bound[name] and not bound["*"]
            case ast.Call(ast.Name("vars"), [ast.Call(ast.Attribute(_, "parse_args"))], []):
                found -= 1
    return found > 0


def _has_modules(text: bytes) -> bool:
    """Whether Python could import from it as an archive: what these hold is not searched."""
    file = BytesIO(text)
    if not zipfile.is_zipfile(file):
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith((".py", ".pyc")) for name in archive.namelist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError):
        return True


def executes(text: bytes) -> bool:
    """Whether it may carry out the text of another file."""
    return _EXECUTES.search(text) is not None


def at_scopes(text: bytes) -> bool:
    return _SCOPES.search(text) is not None or _at_collector(text) or _left_open(text)


# Generators and coroutines; what writes when it is closed. A text without is not taken apart.
_UNFINISHED = re.compile(rb"\byield\b|\bawait\b|\basync\b|open\w*\(|makefile|Temporary|ZipFile")
_SOURCE = re.compile(
    rb"(?m)^[ \t]*(?:async +)?def +\w+ *[(\[]|^[ \t]*import +[\w.]+[ \t]*$"
    rb"|open\w*\([^)\n]*['\"][rbt]*[wax]"
)
_WRITES = re.compile(r"[rwaxbtU+]*[wax+][rwaxbtU+:|gz2]*", re.ASCII)  # the modes of a file
_OPENS = frozenset({"open", "fdopen", "makefile", "ZipFile", "TarFile"})
_TEMPORARY = "Temporary"  # files and folders that are removed with their object
_Suspends = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
_Tries = (ast.Try, ast.TryStar)
_Inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def _left_open(text: bytes) -> bool:
    """Whether it has what does something when the collector finds it: a generator that waits within
    a `try` or `with`, or a file that is written and not closed by a `with`."""
    if _UNFINISHED.search(text) is None:
        return False
    tree = _parsed(text) if len(text) <= _PARSED else None
    if tree is None:
        return _SOURCE.search(text) is not None  # else it is something to read
    managed = {
        item.context_expr
        for node in ast.walk(tree)
        if isinstance(node, (ast.With, ast.AsyncWith))
        for item in node.items
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call() if node not in managed and _writes(node):
                return True
            case ast.FunctionDef() if any(map(_is_manager, node.decorator_list)):
                continue
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if any(_guards(inner) and _suspends(inner) for inner in _within(node)):
                    return True
    return False


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """What is in it, without what is in functions and classes of it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Inner):
            yield child
            yield from _within(child)


def _guards(node: ast.AST) -> bool:
    """Whether it does something where what is in it is given up. A file that is read is only
    closed."""
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return not all(
            isinstance(item.context_expr, ast.Call)
            and _called(item.context_expr) == "open"
            and not _writes(item.context_expr)
            for item in node.items
        )
    return isinstance(node, _Tries)


def _suspends(node: ast.AST) -> bool:
    return isinstance(node, _Suspends) or any(isinstance(n, _Suspends) for n in _within(node))


def _is_manager(decorator: ast.expr) -> bool:
    return ast.unparse(decorator) in ("contextmanager", "contextlib.contextmanager")


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
    return ""


def _writes(call: ast.Call) -> bool:
    """Whether it makes a file object to write to, as far as can be seen."""
    name = _called(call)
    if name not in _OPENS:
        return _TEMPORARY in name
    modes = [keyword.value for keyword in call.keywords if keyword.arg in ("mode", None)]
    if isinstance(call.func, ast.Attribute):  # of a module, or of a path, which is no argument then
        modes += [mode for mode in call.args[:1] if _is_mode(mode) or "mode" in ast.unparse(mode)]
    modes += call.args[1:2]
    return any(_is_mode(mode) or not isinstance(mode, ast.Constant) for mode in modes)


def _is_mode(node: ast.expr) -> bool:
    """Whether it is that of a file that is written."""
    match node:
        case ast.Constant(str(word)):
            return _WRITES.fullmatch(word) is not None
    return False


def _at_collector(text: bytes) -> bool:
    """Whether `gc` may be asked what it did."""
    if _GC.search(text) is None:
        return False
    tree = _parsed(text) if len(text) <= _PARSED else None
    if tree is None:
        return True
    silent = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("gc") as name, called))):
                if called in _SILENT:
                    silent.add(name)
            case ast.Name("gc") if node not in silent:  # met after what it stands in
                return True
            case ast.alias("gc", None):
                continue
            case ast.alias() | ast.ImportFrom() | ast.Attribute() | ast.Constant():
                words = (getattr(node, n, "") for n in ("name", "module", "attr", "value"))
                if any(_GC.search(str(word).encode(errors="replace")) for word in words):
                    return True
    return False


def at_docs(text: bytes, *, pinned: bool) -> bool:
    """Whether a docstring may be read. A `pinned` file, one that is the same at all commits, may
    read its own."""
    if _DOCS.search(text) is not None:
        return True
    if b"__doc__" not in text:
        return False
    tree = _parsed(text)
    return tree is None or any(
        (isinstance(node, ast.Attribute) and node.attr == "__doc__")
        or (isinstance(node, ast.alias) and "__doc__" in node.name)
        or (isinstance(node, ast.Constant) and "__doc__" in str(node.value))
        or (isinstance(node, ast.Name) and node.id == "__doc__" and not pinned)
        or (isinstance(node, ast.MatchClass) and "__doc__" in node.kwd_attrs)
        for node in ast.walk(tree)
    )


def _parsed(text: bytes) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are the trial's
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def at_finders(text: bytes) -> bool:
    """Whether it may list a folder by way of Python's import system."""
    return _FINDERS.search(text) is not None


def rewritten(attributes: bytes) -> bool:
    """Whether git may write a file otherwise than it keeps it: `$Id$` is the blob's hash."""
    return _REWRITTEN.search(attributes) is not None


def copying(packages: Iterable[bytes]) -> bool:
    """Whether all these installed packages (names as in site-packages) only copy docstrings."""
    tops = (os.fsdecode(n).partition(".")[0] for n in packages if not n.endswith(_NO_MODULES))
    return _COPYING.issuperset(tops)


def texts(paths: Iterable[Path], *, may_lack: bool = False) -> Iterable[bytes | None]:
    """Their contents; None for a file that cannot be searched."""
    for path in paths:
        try:
            if path.suffix == ".pyc":  # without its source
                yield None
            else:
                yield path.read_bytes() if path.stat().st_size <= MOST else None
        except FileNotFoundError:
            if not may_lack:
                yield None
        except OSError:
            yield None
