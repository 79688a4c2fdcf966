"""Repeat the loss of a training's first step: the calls that led from its modules' outputs to the
loss, and copies of modules and optimiser to repeat them with. A call is one of a module from
outside any other, or of a function of torch outside of modules. What came from elsewhere is a
constant."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from .losses import LossCall, graded, precision
from .tensors import tensors, unwrapped

_MOST = 2000  # calls of the first step
_UNCHANGED = ("requires_grad_", "retain_grad", "register_hook")


class Slot(NamedTuple):
    """A tensor that is computed anew, by number."""

    number: int


class Call(NamedTuple):
    """`results`: the slots of the tensors that it returns, by their order. `precision` makes the
    autocast in which it ran."""

    function: Any
    args: Any
    kwargs: Any
    results: list[int]
    precision: Any


class Replay(NamedTuple):
    """The calls that lead to the loss, or to its input if its least value is known."""

    calls: list[Call]
    modules: list[nn.Module]
    optimisers: list[Optimizer]
    end: int  # the slot of the loss, or of its input
    loss: LossCall | None  # whose input that is
    rows: int  # of the batch
    copied: dict[int, Any]  # by identity

    def stepped_by(self, optimiser: Optimizer) -> Replay | str:
        """Return the same with a copy of this optimiser, too; or why there is none."""
        try:
            other = copy.deepcopy(optimiser, self.copied)
        except Exception as error:
            return f"the optimiser cannot be copied: {type(error).__name__}: {error}"
        for group in other.param_groups:  # a schedule may start near zero
            group["lr"] = max(group.get(name, 0.0) for name in ("lr", "initial_lr", "max_lr"))
        return self._replace(optimisers=[*self.optimisers, other])

    def run(self, rows: int | None) -> Tensor:
        """Return the loss of the first rows of the batch, or of all of it (None)."""

        def few(value: Any) -> Any:
            if rows is None or not isinstance(value, Tensor) or not value.dim():
                return value
            batches, rest = divmod(len(value), self.rows)
            return value[: batches * rows] if batches and not rest else value

        values: dict[int, Tensor] = {}
        for call in self.calls:
            args, kwargs = tree_map(
                lambda one: values[one.number] if isinstance(one, Slot) else few(one),
                (call.args, call.kwargs), is_leaf=lambda one: isinstance(one, Slot),
            )  # fmt: skip
            with call.precision():
                outputs = [tensor for _, tensor in tensors(call.function(*args, **kwargs))]
            values.update(zip(call.results, outputs))  # noqa: B905 (Python 3.8)
        if self.loss is None:
            return values[self.end]
        target = few(self.loss.arguments["target"])
        loss = replace(self.loss, arguments={**self.loss.arguments, "target": target})
        return loss.mean(values[self.end])

    def step(self, loss: Tensor) -> None:
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimiser in self.optimisers:
            optimiser.step()


class InputRecorder:
    """The calls of the first step, until its loss is known."""

    def __init__(self) -> None:
        self._calls: list[tuple[Any, Any, Any, Any, Any]] = []

    def note(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = getattr(function, "__name__", "")
        if len(self._calls) < _MOST and name not in _UNCHANGED:
            self._calls.append((function, args, kwargs, result, precision()))

    def replay(
        self, call: LossCall | None, losses: Sequence[Tensor], optimiser: Optimizer
    ) -> Replay | str:
        """Return what repeats the loss, with copies of modules and optimiser; or why nothing
        does. `call`: the only call of a loss function that leads to it."""
        count = itertools.count()
        copied: dict[int, Any] = {}
        slots: dict[int, int] = {}
        calls: list[Call] = []
        modules: dict[int, nn.Module] = {}
        rows = 0

        def kept(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            at = slots.get(id(value))
            return value.detach().clone() if at is None else Slot(at)

        for function, args, kwargs, result, within in self._calls:
            inputs, outputs = ([t for _, t in tensors(some)] for some in ([args, kwargs], result))
            own = isinstance(function, nn.Module)
            written = getattr(function, "__name__", "") == "__setitem__"
            if not (own or any(id(t) in slots for t in inputs)) or not (outputs or written):
                continue
            if written:
                return "the loss is computed from parts that are written in place"
            if own:
                modules[id(function)] = function
                rows = rows or next((len(t) for t in inputs if t.dim()), 0)
            given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            if any(unwrapped(tensor) is not tensor for tensor in given):
                return "the modules run within vmap, or within a functional gradient"
            args, kwargs = tree_map(kept, (args, kwargs))
            numbers = [next(count) for _ in outputs]
            slots.update(zip(map(id, outputs), numbers))  # noqa: B905
            calls.append(Call(function, args, kwargs, numbers, within))
        ends = [slots[id(t)] for t in losses[:1] if id(t) in slots]
        known = call is not None and graded(call) and id(call.output) in slots
        if not modules:
            return "the first step has no forward pass of a module"
        if not ends and not known:
            return "the loss is not computed from the modules' outputs by torch alone"
        end = slots[id(call.output)] if known and call is not None else ends[0]
        try:
            copies = copy.deepcopy(list(modules.values()), copied)
        except Exception as error:
            return f"the module cannot be copied: {type(error).__name__}: {error}"
        twins = dict(zip(modules, copies))  # noqa: B905 (Python 3.8)
        calls = [one._replace(function=twins.get(id(one.function), one.function)) for one in calls]
        loss = detached(call) if known else None
        replay = Replay(calls, copies, [], end, loss, rows, copied)
        return replay.stepped_by(optimiser)


def detached(call: LossCall | None) -> LossCall | None:
    """Return a call that keeps no graph alive."""
    if call is None:
        return None
    arguments = {k: v.detach() if isinstance(v, Tensor) else v for k, v in call.arguments.items()}
    target = arguments["target"].detach().clone()
    return replace(call, arguments={**arguments, "target": target}, node=None)
