"""Record what the changed lines of a training compute, in plain Python too: values that they bind,
store, return, pass on or branch by. Files with such lines are compiled with calls of `recorder`
in their syntax tree, so all other code runs as fast as ever. Standard library only.

Options: `changed`, by path in the working directory, `[hunk, first line, last line, 0]` of each
range, or the statement after which (1) or before which (-1) the lines of the other side stand;
`names`, by hunk, the variables to record there. What a hunk reads is recorded, too, with a `<`, and
where it draws, the state of the random numbers before and after as `<random` and `random state`. A
value is written as an event `value`: `h` its hunk, `q` what it is, `m` how many of these there
were up to now, `v` a digest of all of them, `d` one and `s` the kind of the last, `u` whether parts
of them could not be read (1), or carry a gradient, which equal bits do not prove equal (2); `z` a
digest of what a container holds when torch is called next, unless that is nothing. An event `fork`
stands where a child process begins, as a loader's worker: its values are in the file `into`.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import hashlib
import importlib.machinery
import itertools
import json
import os
import random
import runpy
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any

_INPUT, DRAWN = "<", "random state"
_NAME = "__celedger_values__"
_ALONE = 32  # values of one place that are written one by one; then all up to the next other event
_LOOKS = 4 * _ALONE  # of a hunk's at the generators: each takes up to 0.4 ms
_MOST_BYTES = 1 << 24  # that one place hashes, an item as many as _ITEM
_ITEM = 64
_LARGEST = 1 << 40  # a larger integer may be an address
_DIGITS = 14  # of a number, as in celedger.lab.probes.describe: all of such an integer
_MOST_ITEMS = 20_000
_DEEPEST = 6
_MOST_SHARING = 256  # items of a container that are asked for their memory
_UNWRITABLE = (bool, int, float, complex, str, bytes, tuple)
_OPAQUE, _GRADIENT, _TEXT = 1, 2, 4
_PLAIN = ("torch.utils.data", "torch.optim")  # of torch, whose objects are their settings
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_BINDING = (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith)
_Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Ranges = Sequence[Sequence[int]]


class ValueRecorder:
    """The values so far. `write` takes an event, or is None until there is a place for them;
    `wanted` returns True while values are recorded."""

    def __init__(self) -> None:
        self.write: Callable[..., None] | None = None
        self.wanted: Callable[[], bool] = lambda: True
        self.describe: Callable[[Any], Any] = lambda value: None
        self.random: Callable[[], Mapping[str, str]] = dict
        # By hunk: how often the generators were looked at, and their last states.
        self._states: dict[int, tuple[int, Mapping[str, str]]] = {}
        self._places: dict[tuple[int, str], _Place] = {}
        self._waiting: dict[tuple[Any, ...], tuple[dict[str, Any], Any]] = {}
        self._read: dict[int, set[int]] = {}  # by hunk, the memory of what it read last
        self._busy = self._is_child = False
        self._thread = threading.get_ident()
        self._forks = 0
        os.register_at_fork(before=self._forking, after_in_child=self._forked)

    def _forking(self) -> None:
        self._forks += 1
        if self.write is not None:
            self.write("fork", into=f"{os.getpid()}-{self._forks}.jsonl")

    def _forked(self) -> None:
        """Write the first values of each place of a child to a file of its own."""
        if self.write is None:
            return
        name = f"{os.getppid()}-{self._forks}.jsonl"
        file = Path(os.environ.get("CELEDGER_PROBE_OUT", "")) / name

        def write(k: str, **event: Any) -> None:
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"k": k, **event}) + "\n")

        self.write, self.wanted, self._is_child = write, lambda: True, True
        self._places, self._waiting, self._read = {}, {}, {}

    def begin(
        self,
        write: Callable[..., None],
        wanted: Callable[[], bool],
        describe: Callable[[Any], Any],
        random: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Write from now on. `describe` returns the hash of a tensor, whether it requires a
        gradient, and its value if it has no axes; else None. `random` returns the state of each
        generator."""
        self.write, self.wanted, self.describe = write, wanted, describe
        self.random = random
        self._forks = 0  # since then

    def value(self, hunk: int, what: str, value: Any) -> Any:
        """Record a value, and return it."""
        elsewhere = what in ("lambda", "yield")  # others have drawn since the hunk began
        self._guarded(hunk, ((what, value),), begins=elsewhere)
        return value

    def names(self, hunk: int, names: Iterable[str], scope: Mapping[str, Any]) -> None:
        """Record variables of a scope, and attributes of them, as far as they are bound."""
        self._guarded(hunk, _bound(names, scope))

    def inputs(self, hunk: int, names: Iterable[str], scope: Mapping[str, Any]) -> None:
        """Record what a hunk is about to read."""
        values = dict(_bound(names, scope, reading=True))
        self._guarded(hunk, [(_INPUT + name, value) for name, value in values.items()], begins=True)
        self._read[hunk] = set()
        with contextlib.suppress(Exception):  # of an object that cannot be asked for anything
            self._read[hunk] = _memories(values.values())

    def _guarded(
        self, hunk: int, values: Iterable[tuple[str, Any]], *, begins: bool = False
    ) -> None:
        if self._busy or threading.get_ident() != self._thread:
            return
        self._busy = True
        try:
            if self.wanted():
                self._note_draws(hunk, begins=begins)
                for what, value in values:
                    self._note(hunk, what, value)
        except Exception:  # of an object that cannot be asked for anything
            self.wanted = lambda: False
        finally:
            self._busy = False

    def _note_draws(self, hunk: int, *, begins: bool) -> None:
        times, before = self._states.get(hunk, (0, {}))
        if times > _LOOKS:
            return
        now = self.random()
        self._states[hunk] = times + 1, now
        drawn = [name for name, state in now.items() if state != before.get(name)]
        if times and not begins and drawn:  # an unseeded one differs, and is not drawn from
            self._note(hunk, "<random", [before.get(name) for name in drawn])
            self._note(hunk, DRAWN, [now[name] for name in drawn])

    def _note(self, hunk: int, what: str, value: Any) -> None:
        if self._is_child:  # where no other event would
            self.flush()
        if what == "?":
            value = bool(value)
        place = self._places.get((hunk, what))
        if place is None:
            place = self._places[hunk, what] = _Place()
        place.add(value, self.describe)
        shares = what[0] != _INPUT and place.kind != "number"
        if shares and not _memories([value]).isdisjoint(self._read.get(hunk, ())):
            place.kind += " shared"  # equal bits do not stay equal when either is written
        alone = place.count <= _ALONE
        if self._is_child and not alone:
            return
        event = {
            "h": hunk, "q": what, "m": place.count, "v": place.digest.hexdigest()[:16],
            "d": place.last.hexdigest()[:16], "u": place.flags, "s": place.kind,
        }  # fmt: skip
        container = value if what[0] != _INPUT and _is_container(value) else None
        self._waiting[hunk, what, alone and place.count] = event, container

    def flush(self) -> None:
        """Write what waits; before any other event, so that their order is that of time."""
        waiting, self._waiting = self._waiting, {}
        for event, container in waiting.values():
            if container is not None and len(container):
                settled = _Place()
                settled.add(container, self.describe)
                event["z"] = settled.digest.hexdigest()[:16]
            if self.write is not None:
                self.write("value", **event)


class _Place:
    """The values of one variable, store, result or argument in a hunk."""

    def __init__(self) -> None:
        self.count = self.bytes = self.flags = 0
        self.digest, self.last = hashlib.sha1(), hashlib.sha1()
        self.kind = ""
        self._items = 0
        self._modules: dict[int, int] = {}

    def add(self, value: Any, describe: Callable[[Any], Any]) -> None:
        self.count += 1
        self._items = 0
        if self.bytes > _MOST_BYTES:
            self.flags |= _OPAQUE
            return
        self._describe = describe
        self.last = hashlib.sha1()
        try:
            self.kind = self._read(value, _DEEPEST)
        except Exception:  # of an object of the training's that cannot be read
            self.kind = self._opaque()
        self.digest.update(self.last.digest())

    def _feed(self, kind: str, data: bytes = b"") -> str:
        self.bytes += len(data) + _ITEM
        self.last.update(kind.encode() + b"%d:" % len(data))
        self.last.update(data)
        return kind

    def _read(self, value: Any, depth: int) -> str:
        """Add a value to the digest, equal for equal values, whatever type holds them; return its
        kind."""
        self._items += 1
        if self._items > _MOST_ITEMS:
            self.flags |= _OPAQUE
            return ""
        if value is None or isinstance(value, (bool, int, float, complex)):
            return self._number(value)
        if isinstance(value, str):
            self.flags |= _TEXT
            return self._feed("text", _portable(value).encode(errors="replace"))
        if isinstance(value, (bytes, bytearray)):
            return self._feed("bytes", bytes(value))
        if isinstance(value, os.PathLike):
            return self._feed("text", _portable(os.fspath(value)).encode(errors="replace"))
        if (tensor := self._describe(value)) is not None:
            mark, gradient, number = tensor
            self.flags |= (_GRADIENT if gradient else 0) | (0 if mark else _OPAQUE)
            if number is not None:
                return self._number(number)
            self._feed("tensor", mark.encode())
            if depth and (attributes := getattr(value, "__dict__", None)):  # `no_decay`
                self._read(attributes, depth - 1)
            return f"tensor {tuple(value.shape)}"
        if type(value).__module__ == "numpy":
            return self._numpy(value)
        if depth == 0:
            return self._opaque()
        return self._container(value, depth - 1)

    def _number(self, value: Any) -> str:
        if isinstance(value, int):
            if abs(value) > _LARGEST:
                return self._opaque()
            value = float(value)
        if value is None:
            return self._feed("none", b"None")
        # Computed in another order it differs in its last digits, or zero in its sign.
        return self._feed("number", f"{value + 0.0:.{_DIGITS}g}".encode())

    def _numpy(self, value: Any) -> str:
        if hasattr(value, "dtype") and hasattr(value, "tobytes") and not value.dtype.hasobject:
            if value.ndim == 0:
                return self._read(value.item(), 1)
            plain = value.astype("f8") if value.dtype.kind in "biuf" else value
            self._feed("shape", f"{value.shape}".encode())
            self._feed("array", plain.tobytes())
            return f"array {value.dtype}"
        return self._opaque()

    def _container(self, value: Any, depth: int) -> str:
        if isinstance(value, (list, tuple)):
            self._feed("items", b"%d" % len(value))
            for item in value:
                self._read(item, depth)
            return "items"
        if isinstance(value, (set, frozenset)):
            return self._read(sorted(value, key=repr), depth)
        if isinstance(value, dict):
            self._feed("fields", b"%d" % len(value))
            for key, item in value.items():
                if not hasattr(item, "untyped_storage"):  # whose key is a name, and may be another
                    self._read(key, depth)
                self._read(item, depth)
            return "fields"
        if isinstance(value, range):
            return self._read([value.start, value.stop, value.step], depth)
        if isinstance(value, (type, BuiltinFunctionType, ModuleType)):
            name = f"{getattr(value, '__module__', '')}.{getattr(value, '__name__', '')}"
            return self._feed("name", name.encode())
        if (state := _random_state(value)) is not None:
            return self._feed("state", state)
        return self._object(value, depth)

    def _object(self, value: Any, depth: int) -> str:
        kind: Any = type(value)
        fields = getattr(value, "__dict__", None)
        plain = kind.__module__.startswith(_PLAIN)
        foreign = kind.__module__.partition(".")[0] in ("torch", "builtins", "collections")
        is_module = hasattr(value, "named_parameters")
        if kind.__reduce__ is not object.__reduce__:  # it has more than its attributes: `partial`
            return self._read(value.__reduce__(), depth)
        if not isinstance(fields, dict) or (foreign and not plain) or is_module:
            if not is_module:
                return self._opaque()
            # Which of those that came by, whatever its name is.
            number = self._modules.setdefault(id(value), len(self._modules))
            return self._opaque(f"{sorted({one.training for one in value.modules()})} {number}")
        if plain:
            named = {name: fields[name] for name in sorted(fields)}
            return self._read({"class": kind.__qualname__, **named}, depth)
        return self._read([*fields.values()], depth)  # as they were set: names may be others

    def _opaque(self, seen: str = "") -> str:
        self.flags |= _OPAQUE
        return self._feed("", seen.encode())


def _random_state(value: Any) -> bytes | None:
    """Return the state of a generator of random numbers; None of anything else."""
    if isinstance(value, random.Random):
        return repr(value.getstate()).encode()
    if type(value).__module__ == "torch._C" and hasattr(value, "get_state"):
        return bytes(value.get_state().numpy())
    numpy_state = getattr(value, "bit_generator", None)
    return None if numpy_state is None else repr(numpy_state.state).encode()


def _is_container(value: Any) -> bool:
    """Return True for what is often made first and filled afterwards."""
    if type(value).__module__ == "numpy":
        return bool(getattr(value, "ndim", 0) > 0)
    return isinstance(value, (list, dict, set))


def _memories(values: Iterable[Any], depth: int = 1) -> set[int]:
    """Return what tells whether values share memory, with the items of containers and the tensors
    of modules; nothing of one that cannot be written."""
    addresses: set[int] = set()
    for value in itertools.islice(values, _MOST_SHARING):
        if hasattr(value, "untyped_storage"):
            # Meta tensors, and those of torch.func, have no elements of their own.
            with contextlib.suppress(RuntimeError, NotImplementedError):
                addresses.add(int(value.untyped_storage().data_ptr()))
            gradient = value.grad if value.is_leaf else None  # which whoever has it may write to
            addresses |= _memories([gradient] if gradient is not None else ())
            continue
        items: Iterable[Any] = value if isinstance(value, (list, tuple)) else ()
        if isinstance(value, dict):
            items = value.values()
        elif hasattr(value, "named_parameters") and not isinstance(value, type):
            items = itertools.chain(value.parameters(), value.buffers())
        addresses |= _memories(items, depth - 1) if depth else set()
        while type(value).__module__ == "numpy" and getattr(value, "base", None) is not None:
            value = value.base
        if not (value is None or isinstance(value, _UNWRITABLE)):
            addresses.add(id(value))
    return addresses - {0}


def _bound(
    names: Iterable[str], scope: Mapping[str, Any], *, reading: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield variables of a scope, and attributes (`self.mean`) that objects themselves have.
    `reading`: where a variable has no such attribute, but a method, itself."""
    for name in names:
        variable, _, attribute = name.partition(".")
        if variable not in scope:
            continue
        if not attribute:
            yield name, scope[variable]
            continue
        if hasattr(scope[variable], "untyped_storage"):  # a tensor's `grad`, `data`
            value = getattr(scope[variable], attribute, None)
            yield (variable, scope[variable]) if reading and callable(value) else (name, value)
            continue
        fields = getattr(scope[variable], "__dict__", None)
        for holder in ("", "_parameters", "_buffers", "_modules"):  # of a module
            values = fields.get(holder) if holder and isinstance(fields, dict) else fields
            if isinstance(values, dict) and attribute in values:
                yield name, values[attribute]
                break
        else:
            if reading and (not fields or "_parameters" in fields):
                yield variable, scope[variable]


def _portable(text: str) -> str:
    """Return a text without the folder of this run."""
    return text.replace(os.environ.get("CELEDGER_PROBE_OUT", "\0"), "")


# --- the files


recorder = ValueRecorder()


def install(options: Mapping[str, Any]) -> None:
    """Compile each file with changed lines anew when it is imported or run. Called before the
    training begins."""
    changed = {str(Path.cwd() / path): ranges for path, ranges in options["changed"].items()}
    setattr(builtins, _NAME, recorder)
    loader: Any = importlib.machinery.SourceFileLoader
    original = loader.get_code

    def get_code(self: Any, fullname: str) -> Any:
        path = str(Path.cwd() / self.get_filename(fullname))
        if path in changed:
            return instrumented(self.get_data(path), path, changed[path], options["names"])
        return original(self, fullname)

    loader.get_code = get_code
    by_path: Any = runpy
    original_by_path = by_path._get_code_from_file

    def get_code_by_path(*args: Any) -> Any:  # of a launcher, or a spawned process
        path = str(Path.cwd() / args[-1])
        if path not in changed:
            return original_by_path(*args)
        code = instrumented(Path(path).read_bytes(), args[-1], changed[path], options["names"])
        return (code, args[-1]) if len(args) == 2 else code  # until Python 3.11

    by_path._get_code_from_file = get_code_by_path
    _run_script(changed, options["names"])


def _run_script(changed: Mapping[str, Ranges], names: Mapping[str, Sequence[str]]) -> None:
    """Run a script with changed lines from its own file: Python compiles it by itself, without a
    loader. It announces that it will execute the code (PEP 578), and is then done with it."""
    waiting = [True]

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event != "exec" or not waiting or not isinstance(args[0], CodeType):
            return
        script = getattr(sys.modules["__main__"], "__file__", None)
        path = str(Path.cwd() / args[0].co_filename)
        is_script = script and path == str(Path.cwd() / script)
        if not is_script or path not in changed or args[0].co_name != "<module>":
            return
        waiting.clear()
        code = instrumented(Path(path).read_bytes(), args[0].co_filename, changed[path], names)
        exec(code, vars(sys.modules["__main__"]))
        raise SystemExit

    audit.__cantrace__ = True  # type: ignore[attr-defined]  # debuggers and profilers go on
    sys.addaudithook(audit)


def instrumented(
    source: bytes, path: str, ranges: Ranges, names: Mapping[str, Sequence[str]]
) -> CodeType:
    """Return the code of a file that records the values of its changed lines."""
    tree = ast.parse(source, path)
    _Instrument(ranges, names).block(tree.body)
    ast.fix_missing_locations(tree)
    return compile(tree, path, "exec", dont_inherit=True)


class _Instrument:
    """Insert the calls of the recorder into statements, in place."""

    def __init__(self, ranges: Ranges, names: Mapping[str, Sequence[str]]) -> None:
        self._hunks: dict[int, int] = {}
        self._beside: dict[tuple[int, int], list[int]] = {}  # by line and side of it
        self._variables = names
        self._function = ""  # in which a statement stands; a hunk may be in several
        for hunk, first, last, beside in ranges:
            if beside:
                self._beside.setdefault((last, beside), []).append(hunk)
            else:
                self._hunks.update(dict.fromkeys(range(first, last + 1), hunk))

    def block(self, body: list[Any], outer: int = -1, bound: Collection[str] = ()) -> None:
        """Record what each run of changed statements reads, and at its end what it has bound.
        `bound`: what the hunk `outer` has bound before, around the block: it reads nothing else."""
        done: list[Any] = []
        runs = itertools.groupby(body, key=self._hunk)
        for hunk, nodes in [(hunk, list(run)) for hunk, run in runs]:
            own = set(bound) if hunk == outer else set()
            names = [one for one in _loaded(nodes) if one.partition(".")[0] not in own]
            if hunk >= 0 and names:
                done.append(self._names(hunk, dict.fromkeys(names), nodes[0], "inputs"))
            for at, node in enumerate(nodes):
                done += self._from_other_side(node, node.lineno, -1)
                self._statement(node, hunk, own | _written(nodes[:at]) | _targets(node))
                done.append(node)
                if not isinstance(node, _LEAVES):
                    done += self._from_other_side(node, node.end_lineno, 1)
            if hunk >= 0 and not isinstance(nodes[-1], _LEAVES):
                written = _written(nodes)
                names = [n for n in self._bound_by(hunk) if n.partition(".")[0] in written]
                done.append(self._names(hunk, names, nodes[-1]))
        body[:] = done

    def _from_other_side(self, node: ast.stmt, line: Any, beside: int) -> list[ast.stmt]:
        hunks = self._beside.get((line, beside), ())
        return [
            one for hunk in hunks
            for one in (self._names(hunk, (), node, "inputs"),
                        self._names(hunk, self._bound_by(hunk), node))
        ]  # fmt: skip

    def _bound_by(self, hunk: int) -> Sequence[str]:
        return self._variables[str(hunk)]

    def _hunk(self, node: ast.stmt) -> int:
        """Return the hunk that changes a statement, its head where it has a body; else -1."""
        body = getattr(node, "body", None)
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
        return next(
            (self._hunks[line] for line in range(first, last + 1) if line in self._hunks), -1
        )

    def _statement(self, node: Any, hunk: int, bound: Collection[str]) -> None:
        if hunk >= 0:
            self._changed(node, hunk)
            if self._is_whole(node, hunk):
                return
        around = self._function
        if isinstance(node, _Definition):
            self._function, bound = node.name, ()
        for field in ("body", "orelse", "finalbody"):
            if isinstance(inner := getattr(node, field, None), list):
                self.block(inner, hunk, bound)
        self._function = around
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self.block(part.body, hunk, bound)
        if hunk >= 0 and isinstance(node, _BINDING):
            # The variables that a loop or `with` binds are recorded where its body begins.
            node.body.insert(0, self._names(hunk, sorted(_targets(node)), node.body[0]))

    def _is_whole(self, node: Any, hunk: int) -> bool:
        """Return True for a loop or condition that a hunk changes as a whole: its result counts,
        not how it came about."""
        inside = [part for part in ast.walk(node) if isinstance(part, ast.stmt)]
        return not isinstance(node, _Definition) and all(
            self._hunk(part) == hunk and not isinstance(part, _Definition) for part in inside
        )

    def _changed(self, node: Any, hunk: int) -> None:
        whole = self._is_whole(node, hunk)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            every = [*node.args.posonlyargs, *node.args.args]
            names = [one.arg for one in every[len(every) - len(node.args.defaults) :]]
            node.args.defaults = [
                self._value(hunk, f"{name}=", one)
                for name, one in zip(names, node.args.defaults)  # noqa: B905 (Python 3.8)
            ]
        elif isinstance(node, (ast.If, ast.While, ast.Assert)) and not (
            whole and hasattr(node, "body")
        ):
            node.test = self._value(hunk, "?", node.test)
        for part in ast.walk(node) if whole else ():
            if isinstance(part, ast.Lambda):
                part.body = self._value(hunk, "lambda", part.body)
            elif isinstance(part, ast.Return) and part.value is not None:
                part.value = self._value(hunk, f"return {self._function}", part.value)
            elif isinstance(part, ast.Yield) and part.value is not None:
                part.value = self._value(hunk, "yield", part.value)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._arguments(hunk, node.value)

    def _arguments(self, hunk: int, call: ast.Call) -> None:
        """Record what a function is given that is called for its effect."""
        name = ast.unparse(call.func)
        for number, one in enumerate(call.args):
            if not isinstance(one, ast.Starred):
                call.args[number] = self._value(hunk, f"{name}({number}", one)
        for word in call.keywords:
            word.value = self._value(hunk, f"{name}({word.arg}", word.value)

    # --- the calls

    def _value(self, hunk: int, what: str, value: ast.expr) -> ast.expr:
        return self._call("value", hunk, [ast.Constant(what), value])

    def _names(
        self, hunk: int, names: Iterable[str], at: ast.stmt, method: str = "names"
    ) -> ast.stmt:
        listed = ast.Tuple([ast.Constant(name) for name in names], ast.Load())
        scope = ast.Call(ast.Name("locals", ast.Load()), [], [])
        return ast.copy_location(ast.Expr(self._call(method, hunk, [listed, scope])), at)

    def _call(self, method: str, hunk: int, arguments: list[ast.expr]) -> ast.Call:
        function = ast.Attribute(ast.Name(_NAME, ast.Load()), method, ast.Load())
        call = ast.Call(function, [ast.Constant(hunk), *arguments], [])
        return ast.copy_location(call, arguments[-1]) if hasattr(arguments[-1], "lineno") else call


def _targets(node: Any) -> set[str]:
    """Return the variables that a loop or `with` binds; none of another statement."""
    targets = [getattr(node, "target", None) if isinstance(node, _BINDING) else None]
    targets += [item.optional_vars for item in getattr(node, "items", ())]
    parts = (part for one in targets if one is not None for part in ast.walk(one))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _written(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the variables that statements bind, write to, or may change by a call."""
    parts = [
        part for node in nodes for part in ast.walk(node)
        if isinstance(getattr(part, "ctx", part), (ast.Store, ast.Expr))
    ]  # fmt: skip
    return {one.id for part in parts for one in ast.walk(part) if isinstance(one, ast.Name)}


def _loaded(nodes: Iterable[Any]) -> Iterator[str]:
    """Yield the variables that statements read, and attributes of variables; of a block, its head
    does."""
    waiting: list[tuple[Any, frozenset[str]]] = [
        (child, frozenset()) for node in nodes if not isinstance(node, _Definition)
        for child in ast.iter_child_nodes(node)
        if not (hasattr(node, "body") and isinstance(child, (ast.stmt, ast.ExceptHandler)))
    ]  # fmt: skip
    while waiting:
        node, inner = waiting.pop()
        targets = [one.target for one in getattr(node, "generators", ())]
        inner |= {
            part.id for one in targets for part in ast.walk(one) if isinstance(part, ast.Name)
        }
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id not in inner:
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id not in inner:
                yield node.id
        else:
            waiting += [(child, inner) for child in ast.iter_child_nodes(node)]
