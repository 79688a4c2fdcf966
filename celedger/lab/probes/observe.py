"""Observe a torch training from outside by torch's own global hooks: modules, losses, gradients and
steps. An exception of the probe never reaches the training."""

from __future__ import annotations

import atexit
import copy
import functools
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.optim import Optimizer, optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _BaseDataLoaderIter

from celedger.child.attach import LISTENERS, note_failure
from celedger.child.torch_steps import dense

from .names import IdentityMap, ModuleNames, constructing
from .tensors import follow_graph, graph_node, sample, tensors, unwrapped

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
EVENTS = "events.jsonl"  # in a process's folder: what its probe wrote, an event a line
_SAMPLED = 64  # elements of a weight: `weight.data -= …` changes no version that torch counts
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Probe:
    """Observe one training: a process that trains, from its first forward or backward pass on.

    Override the methods you need; module hooks stay off in steps for which `wants` returns False. A
    step ends when an optimiser has stepped, so a training with two optimisers has two steps a
    batch, and one that accumulates gradients several passes a step. Evaluation between two steps
    belongs to the second of them: read torch.is_grad_enabled(). Where a script has no optimiser of
    torch's, an `OwnUpdate` stands for it.
    """

    reads_values = True  # a probe that measures time must not wait for the device

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.names = ModuleNames()
        self.out = Path()  # the folder of this process, set before `starts`
        self.modes = ExitStack()  # of torch's; left when the probe fails
        self._events: Any = None
        self._trained_modules = IdentityMap()

    def trains(self, module: nn.Module) -> bool:
        """Return True if the call of a module that begins outside of any other is training: with
        gradients, and not in eval mode if it ever trained in the other."""
        if not torch.is_grad_enabled():
            return False
        if module.training and self._trained_modules.get(module) is None:
            for part in module.modules():
                self._trained_modules[part] = part.training
        return module.training or not self._trained_modules.get(module)

    def write(self, k: str, **event: Any) -> None:
        """Append an event of kind `k` to this process's record."""
        if self._events is None:
            self._events = (self.out / EVENTS).open("w", encoding="utf-8")
        self._events.write(_encode({"k": k, **event}) + "\n")

    def flush(self) -> None:
        """Make what was written survive a kill of the process."""
        if self._events is not None:
            self._events.flush()

    def starts(self) -> None:
        """Called just before the first forward or backward pass: step 0, nothing trained yet."""

    def wants(self, step: int) -> bool:
        """Return True to observe the modules of this step; called once, at its beginning."""
        return True

    def forward_begins(self, module: nn.Module, args: Args) -> None: ...

    def forward_ends(self, module: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> None: ...

    def backward_begins(self, losses: Sequence[Tensor]) -> None: ...

    def backward_ends(self) -> None: ...

    def step_begins(self, step: int, optimiser: Optimizer) -> None:
        """Called with the gradients as the optimiser reads them (unscaled, clipped); only a fused
        one divides by its `grad_scale` itself. With a closure: after its first evaluation."""

    def step_ends(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        """Called after a step. `skipped`: a gradient scaler left it out."""

    def reported(self, epoch: int | None, values: Mapping[str, object]) -> None:
        """Called when the script has called `celedger.child.log`."""

    def ends(self) -> None:
        """Called when the process exits after a training, also with an exception."""

    def gives_up(self) -> None:
        """Called when the probe failed: leave every mode of torch's. It is the last call."""
        self.modes.close()


class OwnUpdate:
    """Stands for the optimiser of a script that changes its weights itself: its parameters are the
    leaves of the last backward pass. Its step begins as that pass ends, and ends as the next one
    begins, forward or backward, if the weights or their gradients were written in between."""

    defaults: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.state: dict[Tensor, Any] = {}
        self.leaves: list[Tensor] = []
        self._gradients: list[Tensor | None] = []
        self._before: list[tuple[Tensor, int, Tensor | None]] = []  # versions, and some elements

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [{"params": self.leaves}]

    def begin(self, *, values: bool) -> None:
        """Note what the leaves and their gradients are. `values`: some of their elements, too,
        which waits for a device."""
        self._gradients = [leaf.grad for leaf in self.leaves]
        written = [*self.leaves, *(one for one in self._gradients if one is not None)]
        self._before = [(one, one._version, _elements(one) if values else None) for one in written]

    def changed(self) -> bool:
        if any(p.grad is not g for p, g in zip(self.leaves, self._gradients)):  # noqa: B905 (3.8)
            return True
        return any(
            one._version != version
            or (values is not None and not torch.equal(_elements(one), values))
            for one, version, values in self._before
        )

    def step(self) -> None:
        """Does nothing: the script has done it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimizer:
        """Return an optimiser of copies of the weights, for a check that trains further."""
        return torch.optim.Adam(copy.deepcopy(self.leaves, memo), lr=1e-2)


def has_no_optimiser(optimiser: object) -> bool:
    """Return True for an `OwnUpdate`: what runs within its step is the script's code."""
    return isinstance(optimiser, OwnUpdate)


def _elements(tensor: Tensor) -> Tensor:
    """Return a few elements of a tensor, as they are now."""
    values = dense(tensor.detach())
    return sample(values, min(_SAMPLED, values.numel())).nan_to_num() if values.numel() else values


# --- patches, hooks and modes: none of them lets an exception of the probe reach the training


def guarded(call: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Run a part of the probe, unless it has failed, or a CUDA graph is captured. A failure is
    recorded, and ends the probe."""
    if _observer is None:
        call(*args, **kwargs)
    elif not (_observer.off or _capturing()):
        outer, _observer.busy = _observer.busy, True
        try:
            if torch._C._functorch.peek_interpreter_stack() is None:
                call(*args, **kwargs)
            else:  # inside vmap or a functional gradient torch would wrap what the probe computes
                with torch._C._DisableFuncTorch():
                    call(*args, **kwargs)
        except Exception as error:
            _observer.failed(error)
        finally:
            _observer.busy = outer


def numbers(values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Yield those of reported values that are numbers."""
    for name, value in values.items():
        with suppress(TypeError, ValueError, RuntimeError):
            yield name, float(value)  # type: ignore[arg-type]


def choose_repeatable() -> None:
    """On a GPU let torch take the algorithms that repeat their bits, for a probe that compares two
    runs: the backward pass of cuDNN's convolutions adds up in any order. What has none warns."""
    cuda: Any = torch.cuda
    if cuda.is_initialized() and not torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch._C._set_deterministic_fill_uninitialized_memory(False)  # with NaN, at a price


def _capturing() -> bool:
    """Return True while a CUDA graph is captured: no value can be read then, and no event timed
    (CUDA C++ Programming Guide, "CUDA Graphs")."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def patch(
    owner: Any,
    name: str,
    *,
    before: Callable[..., object] | None = None,
    after: Callable[..., object] | None = None,
) -> Callable[[], None]:
    """Call `before(…)` ahead of each call of `owner.name(…)`, and `after(result, …)` behind it,
    with None for the result of one that raised. Return what takes this back."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            guarded(before, *args, **kwargs)
        result = None
        try:
            result = original(*args, **kwargs)
            return result
        finally:
            if after is not None:
                guarded(after, result, *args, **kwargs)

    inherited = name not in vars(owner)
    setattr(owner, name, patched)
    if inherited:
        return functools.partial(delattr, owner, name)
    return functools.partial(setattr, owner, name, original)


def watch_functions(applied: Callable[..., object]) -> None:
    """Call `applied(class, args, kwargs, result)` after each call of an autograd function."""
    kind: Any = torch.autograd.Function
    original = vars(kind)["apply"].__func__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(cls, *args, **kwargs)
        guarded(applied, cls, args, kwargs, result)
        return result

    kind.apply = classmethod(apply)


def module_hooks(before: Any, after: Any = None) -> list[Any]:
    """Register hooks of all modules: `before(module, args)`, `after(module, args, kwargs, output)`;
    return their handles. They do nothing while torch records a graph, since it computes nothing
    then."""

    def begins(module: nn.Module, args: Args) -> None:
        if not recorded():
            guarded(before, module, args)

    def ends(module: nn.Module, args: Any, kwargs: Kwargs, output: Any) -> None:
        if not recorded():
            guarded(after, module, args, kwargs, output)

    hooks = [modules.register_module_forward_pre_hook(begins)]
    if after is not None:
        hooks.append(modules.register_module_forward_hook(ends, with_kwargs=True))
    return hooks


def mode(base: Any, ran: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], object]) -> Any:
    """Return a TorchFunctionMode or TorchDispatchMode that calls `ran(function, args, kwargs,
    result)` after each call of the training. What the probe computes itself does not count."""

    class NotedCalls(base):  # type: ignore[misc]
        def _note(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if _observer is None or not _observer.busy:
                guarded(ran, func, args, kwargs or {}, result)
            return result

        __torch_function__ = __torch_dispatch__ = _note

    return NotedCalls()


def silenced() -> bool:
    """Return True where the probe observes nothing: in a child process, or after a failure."""
    return _observer is not None and _observer.off


def recorded() -> bool:
    """Return True while torch records calls for a graph and computes nothing."""
    # Dynamo knows the first answer and traces no further.
    return torch.compiler.is_compiling() or bool(torch._C._is_tracing())


class Observer:
    """Install torch's global hooks and pass events to a probe. If the probe raises, the exception
    is written to `FAILED`, and the training continues unobserved."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.step = 0
        self.off = self.started = self._stepped = False
        self.busy = False  # while a part of the probe runs
        self._depth = 0  # of backward passes: checkpointing runs one inside another
        self._hooks: list[Any] = []
        self._own: OwnUpdate | None = OwnUpdate()  # None: the script has an optimiser
        self._next_pass: list[Any] = []  # hooks, while a step of the script's own may run

    def install(self) -> None:
        modules.register_module_module_registration_hook(
            lambda *args: guarded(self.probe.names.adopted, *args)
        )
        optimizer.register_optimizer_step_pre_hook(self._step_begins)
        optimizer.register_optimizer_step_post_hook(self._step_ends)
        self._hooks = module_hooks(self._first_forward)
        patch(Optimizer, "__init__", before=self._constructed)
        patch(_BaseDataLoaderIter, "__next__", before=self._own_step_ends)
        patch(torch.autograd, "backward", before=self._backward_begins, after=self._backward_ends)
        patch(torch.autograd, "grad", before=self._grad_begins, after=self._grad_ends)
        patch(torch.amp.GradScaler, "step", before=self._scaler_begins, after=self._scaler_ends)
        os.register_at_fork(after_in_child=self.silence)  # a data loader's worker trains nothing
        atexit.register(self._ends)

    def failed(self, error: Exception) -> None:
        """Record why the probe cannot continue."""
        if self.off:
            return
        self.silence()
        note_failure(error)
        try:
            self.probe.gives_up()
        except Exception as second:
            note_failure(second)

    def silence(self) -> None:
        self.off = True
        self.unhook()

    def unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def hook(self) -> None:
        """Register module hooks for the step that begins, if the probe wants them."""
        if self.off:
            return
        observed = self.probe.wants(self.step)
        if observed and not self._hooks:
            self._hooks = module_hooks(self.probe.forward_begins, self.probe.forward_ends)
        elif not observed:
            self.unhook()

    def _start(self) -> None:
        if self.started or self.off:
            return
        self.started = True
        self.unhook()
        rank, world = _rank()
        self.probe.out = _own_folder(rank, world)
        if world > 1:
            guarded(self.probe.write, "rank", rank=rank, world=world)
        guarded(self.probe.starts)
        guarded(self.hook)

    def _first_forward(self, module: nn.Module, args: Args) -> None:
        if constructing():
            return
        self.probe.names.of(module)
        if torch.is_grad_enabled():
            self._start()
            if self._hooks:  # torch walks the hooks of before
                guarded(self.probe.forward_begins, module, args)

    def _backward_begins(self, *args: Any, **kwargs: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._start()
            given = args[0] if args else kwargs.get("tensors", ())
            losses = [one for one in tree_leaves(given) if isinstance(one, Tensor)]
            if self._own is not None:
                self._own_step_ends(leaves=(leaves := _leaves(losses)))
                self._own.leaves = leaves
            self.probe.backward_begins(losses)

    def _grad_begins(self, *args: Any, **kwargs: Any) -> None:
        if self._is_backward(*args, **kwargs):
            self._backward_begins(args[0] if args else kwargs["outputs"])

    def _grad_ends(self, _: Any, *args: Any, **kwargs: Any) -> None:
        if self._is_backward(*args, **kwargs):
            self._backward_ends()

    def _is_backward(
        self, outputs: Any, inputs: Any, grad_outputs: Any = None,
        retain_graph: bool | None = None, create_graph: bool = False, *_: Any, **__: Any,
    ) -> bool:  # fmt: skip
        """Return True if a call of torch.autograd.grad is a training's backward pass: from one
        value to leaves, and nothing is derived from it again, as from a penalty on gradients. The
        outermost gradient of torch.func is one in a script that has no optimiser."""
        values = [tensor for _, tensor in tensors(outputs)]
        leaves = all(tensor.is_leaf for _, tensor in tensors(inputs))
        level = torch._C._functorch.maybe_current_level()
        functional = level == 1 and self._own is not None
        ends = functional if level else not create_graph
        return ends and leaves and [value.numel() for value in values] == [1]

    def _backward_ends(self, *_: Any, **__: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.probe.backward_ends()
            self._own_step_begins()

    def _constructed(self, *_: Any, **__: Any) -> None:
        self._own = None
        self._forget_own_step()

    def _own_step_begins(self) -> None:
        own = self._own
        if own is None or not own.leaves:
            return
        own.begin(values=self.probe.reads_values)
        self.probe.step_begins(self.step, cast("Optimizer", own))
        self._own = own  # an optimiser that the probe makes is not the script's
        self._forget_own_step()
        self._next_pass = module_hooks(self._passes_again)

    def _passes_again(self, module: nn.Module, args: Args) -> None:
        if not constructing() and self._own_step_ends() and self._hooks:
            self.probe.forward_begins(module, args)  # torch walks the hooks of before

    def _own_step_ends(self, *_: Any, leaves: Sequence[Tensor] | None = None) -> bool:
        """End a step of the script's own, and return True, if there was one. `leaves`: of the
        backward pass that begins; others than before have replaced those."""
        own, under_way = self._own, bool(self._next_pass)
        if own is None or not under_way or self.off:
            return False
        replaced = leaves is not None and {*map(id, leaves)} != {*map(id, own.leaves)}
        if not replaced and not own.changed():
            return False
        self._forget_own_step()
        own.leaves = own.leaves if leaves is None else [*leaves]
        self._end_step(cast("Optimizer", own))
        return True

    def _forget_own_step(self) -> None:
        for hook in self._next_pass:
            hook.remove()
        self._next_pass = []

    def _step_begins(
        self, optimiser: Optimizer, args: Args, kwargs: Kwargs
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if self.off or (closure is None and not self.started):
            return None
        if closure is None:
            guarded(self.probe.step_begins, self.step, optimiser)
            return None
        waiting = [self.probe.step_begins]

        @functools.wraps(closure)
        def closing() -> Any:
            result = closure()
            while waiting:
                begins = waiting.pop()
                if self.started:
                    guarded(begins, self.step, optimiser)
            return result

        if len(args) > 1:
            return (args[0], closing, *args[2:]), kwargs
        return args, {**kwargs, "closure": closing}

    def _step_ends(self, optimiser: Optimizer, *_: Any) -> None:
        if self.started and not self.off:
            self._stepped = True
            guarded(self._end_step, optimiser)

    def _scaler_begins(self, *_: Any, **__: Any) -> None:
        self._stepped = False

    def _scaler_ends(self, _: Any, scaler: Any, optimiser: Optimizer, *__: Any, **___: Any) -> None:
        if self.started and not self._stepped:
            self._end_step(optimiser, skipped=True)

    def _end_step(self, optimiser: Optimizer, *, skipped: bool = False) -> None:
        infinite = getattr(optimiser, "found_inf", None)  # a fused one leaves out steps itself
        if self.probe.reads_values and infinite is not None:
            skipped |= bool(infinite)
        self.probe.step_ends(self.step, optimiser, skipped=skipped)
        self.step += 1
        self.hook()

    def _ends(self) -> None:
        if self.started:
            guarded(self._own_step_ends)
            guarded(self.probe.ends)
            guarded(self.probe.flush)


def resident() -> int:
    """Return the bytes of RAM in use; 0 if the system does not report them."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _leaves(losses: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors whose gradients a backward pass adds to."""
    nodes: set[Any] = set()
    follow_graph(map(graph_node, losses), nodes)
    leaves = [unwrapped(node.variable) for node in nodes if hasattr(node, "variable")]
    return list({id(leaf): leaf for leaf in leaves}.values())


def _rank() -> tuple[int, int]:
    """Return the rank of this process in a distributed training, and how many there are."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ["RANK"]), max(int(os.environ["WORLD_SIZE"]), 1)
    except (KeyError, ValueError):
        return 0, 1


def _own_folder(rank: int, world: int) -> Path:
    """Return a numbered folder of CELEDGER_PROBE_OUT for each process that trains: by their start,
    and the ranks of one distributed training in their order."""
    root = Path(os.environ["CELEDGER_PROBE_OUT"])
    for number in itertools.count(rank, world):
        try:
            (root / str(number)).mkdir()
        except FileExistsError:
            continue
        return root / str(number)
    raise AssertionError  # pragma: no cover


_observer: Observer | None = None


def attach(probe: Probe) -> Observer:
    """Observe this process's trainings from now on. Called once, with torch imported."""
    global _observer
    _observer = Observer(probe)
    _observer.install()
    LISTENERS.append(reported)
    return _observer


def reported(epoch: int | None, values: Mapping[str, object]) -> None:
    """Pass what the script has reported to the probe."""
    if _observer is not None and _observer.started:
        guarded(_observer._own_step_ends)
        guarded(_observer.probe.reported, epoch, values)
