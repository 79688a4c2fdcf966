"""The probe of `celedger profile --memory`: what holds the memory at the peak, and what piles up.

A dispatch mode records every tensor that an operator makes, and a weak reference reports when its
storage is freed, on the CPU as on a GPU: the bytes that tensors hold are exact at every moment.
Workspace inside kernels and memory of other libraries are not counted; the process's resident
memory is recorded for comparison.
"""

from __future__ import annotations

import bisect
import gc
import json
import os
import re
import sys
import warnings
import weakref
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from . import observe
from .names import expressions
from .observe import Args, Kwargs
from .phases import BACKWARD, FORWARD, GAP, STATES, TAIL
from .stack import Lines
from .tensors import follow_graph, graph_node, tensors

_MARK = 16  # steps between two marks, in a training that reports no epochs
_MOST_MARKS = 24  # then every second is dropped
_KEPT = 3  # steps whose tensors live: then what holds them is named


class Maker(NamedTuple):
    """The origin of a tensor."""

    phase: str
    module: str | None
    operator: str
    line: int


class Storage(NamedTuple):
    """One storage: a weak reference to it, its bytes, its maker, and its step."""

    reference: Any
    size: int
    maker: Maker
    step: int


BEFORE = Maker("before", None, "made before the training", -1)


class MemoryProbe(observe.Probe):
    """Write one event, `memory`. With `steps`, the training ends after so many."""

    def starts(self) -> None:
        self._lines = Lines()
        self._step, self._state = 0, FORWARD
        self._live: dict[int, Storage] = {}
        self._bytes_by_maker: dict[Maker, int] = defaultdict(int)
        self._total = self._peak = 0  # now, and since the step or evaluation began
        self._peaks: dict[str, dict[str, Any]] = {  # the largest until now
            kind: {"bytes": 0, "step": 0, "held": {}, "course": None}
            for kind in ("step", "evaluation")
        }
        self._evaluating = False  # since an operator in this gap
        self._passive = False  # the outermost module that runs does not train
        # Stored in a few large blocks, so as not to look like a leak of objects.
        self._columns = {name: array("q") for name in ("peak", "held", "rss")}
        self._marks: list[str] = []
        self._keepers: dict[Maker, str] = {}
        self._types: dict[str, int] = {}  # objects of each type, at the last mark
        self._typed = 0  # marks
        self._type_keepers: dict[str, str] = {}
        self._spacing, self._reported = _MARK, False
        self._due = self._evaluated = False  # a mark without a report; an evaluation was seen
        self._start_step()
        self._count_existing()
        self._start_step()
        self.modes.enter_context(observe.mode(TorchDispatchMode, self._ran))

    # -- operators --------------------------------------------------------------------------

    def _ran(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record new storages among an operator's results."""
        maker = None
        for _, tensor in tensors(result):
            storage = storage_of(tensor)
            if storage is not None and storage._cdata not in self._live:
                maker = maker or self._maker(function._schema.name)
                self._add(storage, maker)
        if not self._phases or self._phases[-1][1] != STATES[self._state]:
            self._phases.append((len(self._course), STATES[self._state]))
        self._course.append(self._total)

    def _add(self, storage: Any, maker: Maker) -> None:
        size, key = storage.nbytes(), storage._cdata
        if not size or storage.device.type == "meta":
            return
        reference = weakref.ref(storage, lambda _: self._freed(key))
        self._live[key] = Storage(reference, size, maker, self._step)
        self._total += size
        self._bytes_by_maker[maker] += size
        if self._total > self._peak:
            self._peak = self._total
            kind = "evaluation" if self._evaluating else "step"
            if self._peak > self._peaks[kind]["bytes"]:
                sizes = dict(self._bytes_by_maker)
                self._peaks[kind].update(bytes=self._peak, step=self._step, held=sizes, course=None)
                self._peak_at = len(self._course)

    def _freed(self, key: int) -> None:
        storage = self._live.pop(key, None)
        if storage is not None:
            self._total -= storage.size
            self._bytes_by_maker[storage.maker] -= storage.size

    def _maker(self, operator: str) -> Maker:
        phase, module = STATES[self._state], self._modules[-1] if self._modules else None
        node: Any = torch._C._current_autograd_node()
        if node is not None:  # in a backward pass
            number = node._sequence_nr()  # the number of a parameter's own node is the largest
            at = bisect.bisect_right(self._numbers, number) - 1
            module = self._owners[at] if at >= 0 and number < 2**62 else None
        elif self._state == GAP and self._modules:
            phase = "evaluation"
            self._evaluating = True
        return Maker(phase, module, operator, self._lines.of(sys._getframe(4)))

    # -- the training's edges ---------------------------------------------------------------

    def forward_begins(self, module: nn.Module, args: Args) -> None:
        if not self._modules:
            self._passive = not self.trains(module)
        if not self._passive and torch.is_grad_enabled():
            if self._state == GAP:
                self._end_evaluation()
                self._state = FORWARD
            self._trained.add(id(module))
        elif self._state == FORWARD and not self._modules and id(module) in self._trained:
            self._state = GAP  # what began a step was a call for a plot, and this is evaluation
        self._modules.append(self.names.of(module))
        self._own_nodes()

    def forward_ends(self, module: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> None:
        path = self.names.of(module)
        while self._modules and self._modules.pop() != path:
            pass  # left over from an exception that the script caught
        self._own_nodes()

    def _own_nodes(self) -> None:
        """Assign autograd's nodes from now on to the innermost module."""
        self._numbers.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self._owners.append(self._modules[-1] if self._modules else None)

    def backward_begins(self, losses: Sequence[Tensor]) -> None:
        self._end_evaluation()
        self._state = BACKWARD

    def backward_ends(self) -> None:
        self._state = TAIL

    def step_ends(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        self._state = GAP
        largest = self._peaks["step"]
        if largest["step"] == self._step and largest["bytes"]:
            largest["course"] = {
                "bytes": list(self._course), "phases": self._phases, "peak": self._peak_at,
            }  # fmt: skip
        row = (self._peak, self._total, observe.resident())
        for column, value in zip(self._columns.values(), row):  # noqa: B905 (Python 3.8)
            column.append(value)
        self._step += 1
        self._start_step()
        self._due = self._due or self._step % self._spacing == 0
        if self._due and not self._evaluated:
            self._mark_unreported()
        if self._step >= self.options.get("steps", sys.maxsize):
            raise SystemExit(0)

    def reported(self, epoch: int | None, values: Mapping[str, object]) -> None:
        if not self._reported:
            self._marks.clear()  # epochs are better marks than numbers of steps
            self._reported = True
        self._mark()

    def ends(self) -> None:
        from celedger.child.torch import peak_rss

        self.gives_up()
        for peak in self._peaks.values():
            rows = [{"bytes": n, **maker._asdict()} for maker, n in peak["held"].items() if n]
            peak["held"] = sorted(rows, key=lambda row: -row["bytes"])
        self.write(
            "memory",
            torch=torch.__version__,
            device="cuda" if torch.cuda.is_initialized() else "cpu",  # type: ignore[no-untyped-call]
            steps={name: list(values) for name, values in self._columns.items()},
            peaks=self._peaks,
            marks=[json.loads(mark) for mark in self._marks],
            keepers=[[*maker, text] for maker, text in self._keepers.items()],
            type_keepers=self._type_keepers,
            lines=self._lines.table,
            peak_rss=peak_rss(),
        )

    # -- marks ------------------------------------------------------------------------------

    def _start_step(self) -> None:
        self._numbers: list[int] = []  # autograd's, at the start and end of each module's call
        self._owners: list[str | None] = []  # the module of the nodes from each number on
        self._modules: list[str] = []
        self._course = array("q")  # the bytes held after each operator
        self._phases: list[tuple[int, str]] = []  # the operator with which each phase begins
        self._peak = self._total
        self._trained: set[int] = set()  # modules that were called with gradients

    def _end_evaluation(self) -> None:
        if not self._evaluating:
            return
        self._start_step()
        self._evaluating = False
        if not (self._evaluated or self._reported):
            self._marks.clear()  # between evaluations what each of them keeps is the same
            self._due = True  # the first one: a training of three has no second mark else
        self._evaluated = True
        if self._due:
            self._mark_unreported()

    def _mark_unreported(self) -> None:
        self._due = False
        if not self._reported:
            self._mark()

    def _count_existing(self) -> None:
        """Record the tensors that exist before the training: parameters, and data."""
        for obj in gc.get_objects():
            if type(obj) is torch.Tensor or type(obj) is torch.nn.Parameter:
                storage = storage_of(obj)
                if storage is not None and storage._cdata not in self._live:
                    self._add(storage, BEFORE)

    def _mark(self) -> None:
        """Record what is alive now, by its origin: tensors, graphs, Python objects, hooks. Nothing
        is collected: what waits for the collector takes memory, too."""
        groups = self._groups()
        self._find_keepers(groups)
        on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        garbage, types = ([], _types()) if on_gpu else self._collected()
        self._find_type_keepers(dict(types))
        live = [
            (*maker, len(group), sum(one.size for one in group), [one.step for one in group])
            for maker, group in groups.items()
        ]
        mark = {
            "step": self._step,
            "tensors": live, "graphs": self._graphs(),
            "types": types, "garbage": garbage, "hooks": self._count_hooks(),
        }  # fmt: skip
        self._marks.append(json.dumps(mark))
        if len(self._marks) > _MOST_MARKS:
            self._marks = self._marks[::2]
            self._spacing *= 2

    def _groups(self) -> dict[Maker, list[Storage]]:
        groups: dict[Maker, list[Storage]] = defaultdict(list)
        for storage in list(self._live.values()):
            if storage.maker is not BEFORE:
                groups[storage.maker].append(storage)
        return groups

    def _find_keepers(self, groups: Mapping[Maker, Sequence[Storage]]) -> None:
        """Name, once, the container that holds the tensors of an origin that outlive steps."""
        addresses = {
            storage._cdata: maker for maker, group in groups.items()
            if maker not in self._keepers and len({one.step for one in group}) >= _KEPT
            and (storage := group[0].reference()) is not None
        }  # fmt: skip
        objects = gc.get_objects() if addresses else []
        for obj in objects:
            storage = storage_of(obj) if type(obj) is torch.Tensor else None
            maker = addresses.get(storage._cdata) if storage is not None else None
            if maker is not None and (keeper := _keeper(obj, objects)):
                self._keepers[maker] = keeper

    def _find_type_keepers(self, types: dict[str, int]) -> None:
        """Name the container of the youngest object of each type that has more than at the last
        mark; again at every second mark, fourth, eighth and so on, since a search takes a second.
        """
        last, self._types = self._types, types
        self._typed += 1
        again = self._typed & (self._typed - 1) == 0
        grown = {
            name for name, number in types.items()
            if number > last.get(name, number) and (again or name not in self._type_keepers)
        }  # fmt: skip
        objects = gc.get_objects() if grown else []
        for obj in reversed(objects):
            name = type(obj).__qualname__
            if name in grown:
                grown.discard(name)
                self._type_keepers[name] = _keeper(obj, objects)

    def _count_hooks(self) -> list[tuple[str, int]]:
        """Count the hooks of each module that has some."""
        names = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
        return [
            (f"{name.replace('_', ' ')} of {self.names.of(module) or 'the model'}", count)
            for _, root in self.names.roots() for module in root.modules() for name in names
            if (count := len(getattr(module, f"_{name}", ())))
        ]  # fmt: skip

    def _collected(self) -> tuple[list[list[Any]], list[tuple[str, int]]]:
        """Return the bytes that the collector would free, by origin, and the numbers of objects
        after it: from a fork, so that it frees nothing here. A fork cannot use CUDA."""
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads: the child runs none of their code
            pid = os.fork()
        if pid == 0:
            try:
                before = _sizes(self._groups())
                gc.collect()
                after = _sizes(self._groups())
                freed = {maker: size - after.get(maker, 0) for maker, size in before.items()}
                rows = [[*maker, size] for maker, size in freed.items() if size]
                with os.fdopen(writer, "w") as pipe:
                    json.dump([rows, _types()], pipe)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        garbage, types = json.loads(text) if text else ([], [])
        return garbage, types

    def _graphs(self) -> list[tuple[int, int]]:
        """Count the nodes of autograd's graph that tensors keep, by the line of their origin."""
        visited: set[Any] = set()
        nodes: Counter[int] = Counter()
        for obj in gc.get_objects():
            if type(obj) is not torch.Tensor or (made := graph_node(obj)) is None:
                continue
            before = len(visited)
            follow_graph([made], visited)
            storage = storage_of(obj)
            live = None if storage is None else self._live.get(storage._cdata)
            nodes[live.maker.line if live else -1] += len(visited) - before
        return [(count, line) for line, count in nodes.items()]


def _types() -> list[tuple[str, int]]:
    """Count the objects of each type, but not the nodes of graphs that the probe has looked at."""
    counts: Counter[str] = Counter()
    for kind, count in Counter(map(type, gc.get_objects())).items():
        if not issubclass(kind, Node):
            counts[kind.__qualname__] += count
    return counts.most_common()


def _sizes(groups: Mapping[Maker, Sequence[Storage]]) -> dict[Maker, int]:
    return {maker: sum(one.size for one in group) for maker, group in groups.items()}


def _keeper(kept: Any, objects: list[Any]) -> str:
    """Return the variable of the script whose container holds an object, itself or in a tuple or
    dictionary of its own, else the attribute `AutoregressiveWrapper.history` or the kind of
    container; empty where none does. `objects`: a list that does not count."""
    kinds = list, set, deque, tuple, dict  # an object's own dictionary last
    holders = [
        one for one in gc.get_referrers(kept) if isinstance(one, kinds) and one is not objects
    ]
    holders.sort(key=lambda one: isinstance(one, (tuple, dict)) + isinstance(one, dict))
    names = expressions(holders)
    if named := next((names[id(one)] for one in holders if id(one) in names), ""):
        return re.sub(r"(\[\d+\])+$", "", named)
    texts = (f"a {type(one).__name__} of {len(one)}" for one in holders)
    return next(filter(None, map(_attribute, holders)), "") or next(texts, "")


def _attribute(container: Any) -> str:
    """Return `Class.name` of the module whose attribute a container is; "" for none."""
    for variables in gc.get_referrers(container):
        is_dict = type(variables) is dict
        names = [n for n, value in variables.items() if value is container] if is_dict else []
        for owner in gc.get_referrers(variables) if names else ():
            if isinstance(owner, nn.Module):  # whose variables are this dictionary
                return f"{type(owner).__name__}.{names[0]}"
    return ""


def storage_of(tensor: Tensor) -> Any:
    """Return a tensor's storage; None if it has none of its own: sparse, functional or fake."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def attach(options: dict[str, Any]) -> None:
    observe.attach(MemoryProbe(options))
