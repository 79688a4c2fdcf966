"""Lets a probe look at any torch training from outside: at modules, losses, gradients and steps.

A diagnostic run (celedger.trial.diagnostic) sets CELEDGER_PROBE, a JSON object whose `kind` names
the module of `celedger.child` that has the `Probe`, and CELEDGER_PROBE_OUT, a folder. Once the
training has imported torch (2.0 or later), `attach` follows it by torch's own global hooks. The
script is not changed and need not know of celedger. Standard library only until torch is there.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.abc
import importlib.util
import itertools
import json
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

__all__ = [
    "FAILED", "Names", "Probe", "address", "attach", "failed", "install", "scaler_class", "tensors",
    "wrap",
]  # fmt: skip

FAILED = "probe-failed.txt"  # in the folder of the run: why a probe had to stop looking


class Probe:
    """What looks at one training: a process that trains, from its first forward pass or backward
    pass on. Override what is needed; module hooks stay off where neither `forward_begins` nor
    `forward_ends` is overridden, and in steps that `wants` refuses.

    A step ends when an optimiser has stepped, so a training with two optimisers has two steps a
    batch, and one that accumulates gradients several passes a step. Evaluation between two steps
    belongs to the second of them: ask torch.is_grad_enabled().
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.names = Names()
        self.out = Path()  # a folder of this process's own, from `starts` on

    def starts(self) -> None:
        """Just before the first forward or backward pass: step 0, nothing trained yet."""

    def wants(self, step: int) -> bool:
        """Whether the modules of this step are to be looked at; asked once, as it begins."""
        return True

    def forward_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None: ...

    def forward_ends(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None: ...

    def backward_begins(self, losses: Sequence[Tensor]) -> None: ...

    def backward_ends(self) -> None: ...

    def step_begins(self, step: int, optimiser: Optimizer) -> None:
        """The gradients are those that the optimiser will see (unscaled, clipped); only a fused
        one divides by its `grad_scale` itself. Given a closure: after its first evaluation."""

    def step_ends(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        """`skipped`: a gradient scaler met infinite gradients and left the weights alone."""

    def reported(self, epoch: int | None, values: Mapping[str, object]) -> None:
        """The script has called `celedger.child.log`."""

    def ends(self) -> None:
        """The process exits, well or with an exception, having trained."""

    def gives_up(self) -> None:
        """It failed: leave every mode of torch's. Nothing is called after this."""


class Names:
    """A module's path, as named_modules gives it, for modules met in hooks.

    The first root met that has parameters is the model, its path is "" and its children's need no
    prefix; paths in any other root start with its class name and a colon ("Teacher:head").
    """

    def __init__(self) -> None:
        self._parents: weakref.WeakKeyDictionary[nn.Module, tuple[Any, str]]
        self._parents = weakref.WeakKeyDictionary()
        self._roots: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._classes: dict[str, int] = {}
        self._model = False

    def adopted(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        """torch's hook for a module that became a child. The first parent that is left counts."""
        if child is None or child is parent:
            return
        known, place = self._parents.get(child, (lambda: None, ""))
        first = known()
        if first is None or first._modules.get(place) is not child:
            self._parents[child] = weakref.ref(parent), name

    def of(self, module: nn.Module) -> str:
        parts: list[str] = []
        for _ in range(1000):  # a cycle of parents is a mistake of the script, not an endless loop
            found = self._parents.get(module)
            parent = None if found is None else found[0]()
            if found is None or parent is None or parent._modules.get(found[1]) is not module:
                break
            parts.append(found[1])
            module = parent
        return self._root(module) + ".".join(reversed(parts))

    def roots(self) -> list[tuple[str, nn.Module]]:
        """Prefix and module, in the order in which they were met."""
        return [(prefix, root) for root, prefix in self._roots.items()]

    def parameters(self, optimiser: Optimizer) -> list[tuple[str, Tensor]]:
        """What an optimiser trains, named; what belongs to no module by its group and number."""
        known = {
            id(parameter): prefix + name
            for prefix, root in self.roots()
            for name, parameter in root.named_parameters()
        }
        return [
            (known.get(id(parameter), f"parameter {group}.{number}"), parameter)
            for group, one in enumerate(optimiser.param_groups)
            for number, parameter in enumerate(one["params"])
        ]

    def _root(self, module: nn.Module) -> str:
        if module not in self._roots:
            for inner in module.modules():  # copies and unpickled modules were never registered
                for name, child in inner._modules.items():
                    self.adopted(inner, name, child)
            kind = type(module).__name__
            if not self._model and next(module.parameters(), None) is not None:
                self._model, prefix = True, ""
            else:
                number = self._classes[kind] = self._classes.get(kind, 0) + 1
                prefix = f"{kind}:" if number == 1 else f"{kind}#{number}:"
            self._roots[module] = prefix
        return self._roots[module]


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor within lists, tuples, mappings and dataclasses, with its place in it ("1.k";
    "" where the value is a tensor itself)."""
    import torch

    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif hasattr(value, "__dataclass_fields__"):
        items = ((name, getattr(value, name, None)) for name in value.__dataclass_fields__)
    else:
        return
    for name, item in items:
        yield from tensors(item, f"{path}.{name}" if path else str(name))


def address(tensor: Tensor) -> int:
    """Where its elements are; -1 of a tensor without any of its own (sparse, lazy, of vmap)."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, ValueError, NotImplementedError):
        return -1


def version(tensor: Tensor) -> int:
    """How often it was written in place; -1 where it was made in inference mode."""
    try:
        return int(tensor._version)
    except RuntimeError:
        return -1


def whole(tensor: Tensor) -> bool:
    """Whether it stands for itself, not for what vmap or a gradient's gradient makes of it."""
    import torch

    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


class Observer:
    """Torch's global hooks, and what they tell a probe. A fault of the probe is none of the
    training's: it is written down (`FAILED`), and the training goes on unobserved."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.step = 0
        self._started = self._off = self._backward = self._stepped = False
        self._hooks: list[Any] = []
        kind = type(probe)
        self._before = kind.forward_begins is not Probe.forward_begins
        self._after = kind.forward_ends is not Probe.forward_ends

    def install(self) -> None:
        import torch
        from torch.nn.modules import module
        from torch.optim import optimizer

        module.register_module_module_registration_hook(self.probe.names.adopted)
        optimizer.register_optimizer_step_pre_hook(self._step_begins)
        optimizer.register_optimizer_step_post_hook(self._step_ends)
        self._hooks = [module.register_module_forward_pre_hook(self._first_forward)]
        wrap(torch.autograd, "backward", self._watch_backward)
        wrap(scaler_class(), "step", self._watch_scaler)
        os.register_at_fork(after_in_child=self._silence)  # a data loader's worker trains nothing
        atexit.register(self._ends)

    def reported(self, epoch: int | None, values: Mapping[str, object]) -> None:
        if self._started and not self._off:
            self._tell(self.probe.reported, epoch, values)

    def failed(self, error: Exception) -> None:
        """The probe cannot go on."""
        if self._off:
            return
        self._silence()
        self.probe.gives_up()
        place = Path(os.environ["CELEDGER_PROBE_OUT"], FAILED)
        place.write_text(
            "".join(traceback.format_exception(type(error), error, error.__traceback__))
        )

    def _tell(self, call: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        if self._off:
            return
        try:
            call(*args, **kwargs)
        except Exception as error:
            self.failed(error)

    def _start(self) -> None:
        if self._started or self._off:
            return
        self._started = True
        self.probe.out = _own_folder()
        self._tell(self.probe.starts)
        self._hook()

    def _hook(self) -> None:
        """Module hooks for the step that begins, where the probe wants them."""
        from torch.nn.modules import module

        if self._off:
            return
        wanted = self.probe.wants(self.step)
        if wanted and not self._hooks:
            if self._before:
                self._hooks.append(module.register_module_forward_pre_hook(self._forward_begins))
            if self._after:
                hook = module.register_module_forward_hook(self._forward_ends, with_kwargs=True)
                self._hooks.append(hook)
        elif not wanted:
            self._unhook()

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _first_forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        import torch

        if _recorded() or self._off:
            return
        self.probe.names.of(module)
        if torch.is_grad_enabled():
            self._unhook()
            self._start()
            if self._hooks and self._before:  # torch walks the hooks of before
                self._forward_begins(module, args)

    def _forward_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not _recorded():
            self._tell(self.probe.forward_begins, module, args)

    def _forward_ends(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if not _recorded():
            self._tell(self.probe.forward_ends, module, args, kwargs, output)

    def _watch_backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._off or self._backward:  # checkpointing runs one inside another
            return original(*args, **kwargs)
        self._start()
        given = args[0] if args else kwargs.get("tensors", ())
        self._backward = True
        try:
            self._tell(self.probe.backward_begins, [tensor for _, tensor in tensors(given)])
            done = original(*args, **kwargs)
        finally:
            self._backward = False
        self._tell(self.probe.backward_ends)
        return done

    def _step_begins(
        self, optimiser: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self._started or self._off:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._tell(self.probe.step_begins, self.step, optimiser)
            return None
        waiting = [self.probe.step_begins]

        @functools.wraps(closure)
        def closing() -> Any:
            done = closure()
            while waiting:
                self._tell(waiting.pop(), self.step, optimiser)
            return done

        if len(args) > 1:
            return (args[0], closing, *args[2:]), kwargs
        return args, {**kwargs, "closure": closing}

    def _step_ends(self, optimiser: Optimizer, *_: Any) -> None:
        if self._started and not self._off:
            self._stepped = True
            infinite = getattr(optimiser, "found_inf", None)  # a fused one leaves out steps itself
            self._end_step(optimiser, skipped=infinite is not None and bool(infinite))

    def _watch_scaler(
        self, original: Callable[..., Any], scaler: Any, optimiser: Optimizer, *a: Any, **k: Any
    ) -> Any:
        self._stepped = False
        done = original(scaler, optimiser, *a, **k)
        if self._started and not self._off and not self._stepped:
            self._end_step(optimiser, skipped=True)
        return done

    def _end_step(self, optimiser: Optimizer, *, skipped: bool) -> None:
        self._tell(self.probe.step_ends, self.step, optimiser, skipped=skipped)
        self.step += 1
        self._hook()

    def _silence(self) -> None:
        self._off = True
        self._unhook()

    def _ends(self) -> None:
        if self._started and not self._off:
            self._tell(self.probe.ends)


def _recorded() -> bool:
    """Whether torch writes down what is called, for a graph: nothing is computed now."""
    import torch

    compiler = getattr(torch, "compiler", None)
    compiling = getattr(compiler, "is_compiling", None)
    tracing: bool = torch._C._is_tracing()
    return tracing or (compiling is not None and compiling())


def scaler_class() -> Any:
    """That of every gradient scaler; torch 2.3 has taken it out of torch.cuda."""
    import torch

    return getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """From now on `owner.name(…)` is `around(original, …)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapped)


def _own_folder() -> Path:
    """`0`, `1`, … of CELEDGER_PROBE_OUT: one for each process that trains, by their start."""
    root = Path(os.environ["CELEDGER_PROBE_OUT"])
    for number in itertools.count():
        try:
            (root / str(number)).mkdir()
        except FileExistsError:
            continue
        return root / str(number)
    raise AssertionError  # pragma: no cover


_observer: Observer | None = None


def failed(error: Exception) -> None:
    """A probe met a fault of its own outside of the observer's calls."""
    if _observer is not None:
        _observer.failed(error)


def attach(probe: Probe) -> None:
    """Follow this process's trainings from now on. Called once, with torch imported."""
    global _observer
    _observer = Observer(probe)
    _observer.install()


def install() -> None:
    """Attach the probe that CELEDGER_PROBE names once torch is imported, and hear what the script
    reports. A probe that drives the training itself (celedger.child.torch) needs neither."""
    options = json.loads(os.environ.get("CELEDGER_PROBE", "{}"))
    if not options or options.get("drives"):
        return
    from celedger import child

    report = child.log

    def log(epoch: int | None = None, *, steps: object = None, **values: object) -> None:
        report(epoch, steps=steps, **values)
        if _observer is not None:
            _observer.reported(epoch, values)

    child.log = log
    sys.meta_path.insert(0, _AfterTorch(options))


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as the others do, and has the probe attached when its import is complete."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            wrap(spec.loader, "exec_module", self._attach)
        return spec

    def _attach(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        found = importlib.import_module(f"celedger.child.{self.options['kind']}")
        attach(found.Probe(self.options))
