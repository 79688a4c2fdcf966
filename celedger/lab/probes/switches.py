"""Switches of torch, each thrown from outside in a training of its own, whose steps are timed:
`celedger profile --try`. A switch does what a person would write by hand, and no more."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from .observe import Args
from .phase_probe import WARM_UP, PhaseProbe
from .phases import GAP

FEWEST = WARM_UP + 30  # steps of a plain training whose `seconds` are over
_STATUS = Path("/proc/self/status")


class SwitchProbe(PhaseProbe):
    """Throw the switch `switch` (empty: none) and write one event, `profile`: the edges of phases,
    the losses, the peak of memory (bytes), and what other switches need to know. A training ends
    after `steps`, or once its steps after the warm-up took `seconds`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.switch = str(options["switch"])
        self._losses: list[Tensor] = []
        self._compiled: list[int] = []  # steps in which torch.compile compiled
        self._graphs = self._began = 0
        self._autocast: Any = None  # while it is on
        self._autocasts = 0  # by the training
        if self.switch == "workers":
            _change_loaders(self._workers(int(options["value"])))
        elif self.switch == "pin_memory":
            _change_loaders({"pin_memory": True})
        elif self.switch == "fused":
            _fuse_optimisers()
        elif not self.switch:
            self._count_autocasts()

    def starts(self) -> None:
        super().starts()
        roots = self._roots()
        self._facts = {
            "workers": None, "cuda": self.cuda, "modules": len(roots),
            "inplace": sum(1 for _ in _not_in_place(roots)),
            "convolutions": sum(1 for _ in _images(roots)), "blocks": len(_blocks(roots)),
        }  # fmt: skip
        throw: Callable[[list[nn.Module]], None] | None = getattr(self, f"_{self.switch}", None)
        if throw is not None and self.switch != "workers":
            throw(roots)

    def forward_in_gap(self, module: nn.Module, args: Args) -> None:
        if self.switch == "amp":
            self._amp_on() if torch.is_grad_enabled() else self._amp_off()
        super().forward_in_gap(module, args)

    def backward_begins(self, losses: Sequence[Tensor]) -> None:
        self._amp_off()
        self._losses += [loss.detach().clone() for loss in losses if loss.numel() == 1]
        super().backward_begins(losses)

    def backward_ends(self) -> None:
        super().backward_ends()
        if self.switch == "amp":  # another forward pass may follow before the step
            self._amp_on()

    def step_begins(self, step: int, optimiser: Optimizer) -> None:
        self._amp_off()

    def step_ends(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        graphs = _compiled_graphs()
        if graphs != self._graphs:
            self._graphs = graphs
            self._compiled.append(self.clock.step)
        if self.clock.step == WARM_UP - 1:
            _forget_peak(cuda=self.cuda)
            self._began = self.clock.own()
        if self.switch == "compile":
            self._compile(self._roots())  # those that were met since
        super().step_ends(step, optimiser, skipped=skipped)
        enough = self.options.get("seconds", sys.maxsize) * 1e9
        if self.clock.step >= FEWEST and self.clock.own() - self._began >= enough:
            self.stop()

    def ends(self) -> None:
        self._facts["workers"] = self.clock.workers
        losses = [repr(float(loss)) for loss in self._losses]  # JSON has no NaN
        self.write(
            "profile", torch=torch.__version__, device="cuda" if self.cuda else "cpu",
            threads=torch.get_num_threads(), ended=self.stopped, warm_up=WARM_UP,
            edges=self.clock.read(), losses=losses, peak=_peak(cuda=self.cuda),
            compiled=self._compiled,
            facts={
                **self._facts, "optimisers": self.optimisers, "autocast": self._autocasts > 0,
                "compiled": bool(self._graphs),
            },
        )  # fmt: skip

    def _roots(self) -> list[nn.Module]:
        return [root for _, root in self.names.roots() if next(root.parameters(), None) is not None]

    # --- the switches, thrown before the first forward pass

    @staticmethod
    def _workers(number: int) -> dict[str, Any]:
        alone = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0,
                 "multiprocessing_context": None}  # fmt: skip
        return {"num_workers": number, **({} if number else alone)}

    def _cudnn_benchmark(self, _: list[nn.Module]) -> None:
        torch.backends.cudnn.benchmark = True

    def _amp(self, _: list[nn.Module]) -> None:
        self._amp_on()

    def _inplace(self, roots: list[nn.Module]) -> None:
        for module in _not_in_place(roots):
            module.inplace = True  # type: ignore[assignment]

    def _channels_last(self, roots: list[nn.Module]) -> None:
        def last(value: Any) -> Any:
            image = isinstance(value, Tensor) and value.dim() == 4
            return value.to(memory_format=torch.channels_last) if image else value

        for root in roots:
            root.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            root.register_forward_pre_hook(lambda _, args: tuple(map(last, args)))

    def _checkpointing(self, roots: list[nn.Module]) -> None:
        for block in _blocks(roots):
            block._compiled_call_impl = functools.partial(_recomputed, block)

    def _compile(self, roots: list[nn.Module]) -> None:
        for root in roots:
            if root._compiled_call_impl is None:
                compiled = torch.compile(root._call_impl)
                root._compiled_call_impl = functools.partial(self._run_compiled, root, compiled)

    def _run_compiled(self, root: nn.Module, compiled: Any, *args: Any, **kwargs: Any) -> Any:
        # Dynamo leaves out the hooks of the probe.
        self.forward_in_gap(root, args)
        result = compiled(*args, **kwargs)
        if self.clock.state == GAP:
            self.clock.evaluated()
        return result

    def _amp_on(self) -> None:
        if self._autocast is None:
            kind = "cuda" if self.cuda else "cpu"
            self._autocast = torch.autocast(kind, torch.bfloat16)
            self._autocast.__enter__()

    def _amp_off(self) -> None:
        if self._autocast is not None:
            self._autocast.__exit__(None, None, None)
            self._autocast = None

    def _count_autocasts(self) -> None:
        original: Any = torch.autocast.__enter__

        def entered(context: Any) -> Any:
            self._autocasts += context._enabled
            return original(context)

        torch.autocast.__enter__ = entered  # type: ignore[method-assign]


def _change_loaders(changes: Mapping[str, Any]) -> None:
    """Make every DataLoader with other arguments than the script gives."""
    original = DataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.arguments.update(changes)
        original(*bound.args, **bound.kwargs)

    DataLoader.__init__ = init  # type: ignore[method-assign]


def _fuse_optimisers() -> None:
    kinds: set[Any] = {one for one in vars(torch.optim).values() if isinstance(one, type)}
    for kind in kinds:
        original = kind.__init__
        if "fused" not in inspect.signature(original).parameters:
            continue

        def init(*args: Any, _original: Any = original, **kwargs: Any) -> None:
            _original(*args, **{**kwargs, "fused": True, "foreach": None})

        kind.__init__ = functools.wraps(original)(init)


def _not_in_place(roots: Sequence[nn.Module]) -> Iterator[nn.Module]:
    modules = itertools.chain.from_iterable(root.modules() for root in roots)
    return (module for module in modules if getattr(module, "inplace", None) is False)


def _images(roots: Sequence[nn.Module]) -> Iterator[nn.Parameter]:
    """Yield the weights of convolutions over images that are not in channels-last."""
    for parameter in itertools.chain.from_iterable(root.parameters() for root in roots):
        large = parameter.dim() == 4 and parameter.shape[1] > 1
        if large and not parameter.is_contiguous(memory_format=torch.channels_last):
            yield parameter


def _blocks(roots: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the outermost modules that stand with another of their class, and with modules inside,
    in a list or sequence."""
    chosen: list[nn.Module] = []

    def search(module: nn.Module) -> None:
        children = list(module.children())
        listed = isinstance(module, (nn.ModuleList, nn.Sequential))
        for child in children:
            alike = sum(type(other) is type(child) for other in children)
            if listed and alike > 1 and next(child.children(), None) is not None:
                chosen.append(child)
            else:
                search(child)

    for root in roots:
        search(root)
    return list(dict.fromkeys(chosen))


def _recomputed(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return block._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
    return checkpoint(block._call_impl, *args, use_reentrant=False, **kwargs)


def _compiled_graphs() -> int:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0


def _forget_peak(*, cuda: bool) -> None:
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM, below
    except OSError:
        pass  # then the peak is that since the start


def _peak(*, cuda: bool) -> int:
    """Return the most bytes since `_forget_peak`: of tensors on the GPU, else of this process."""
    if cuda:
        return int(torch.cuda.max_memory_allocated())
    try:
        found = re.search(r"VmHWM:\s+(\d+)", _STATUS.read_text())
    except OSError:
        found = None
    kib = int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib * 1024
