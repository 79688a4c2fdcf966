"""Observe the first steps of any training, and an evaluation, for preflight.

An outermost call of a module with gradients is training. One without gradients, or in eval mode of
a module that trains in training mode, is evaluation, unless it comes in nearly every step, as that
of a generator or a teacher does.
"""

from __future__ import annotations

import bisect
import gc
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from celedger.child.torch_steps import dense

from . import observe
from .fed_rows import FedRows
from .losses import (
    CHOOSERS,
    CONSTANTS,
    TWO_CLASSES,
    LossCall,
    judged,
    leading,
    loss_call,
    nll_by_hand,
)
from .names import IdentityMap, calling_line
from .observe import Args, Kwargs
from .replay import InputRecorder, Replay, detached
from .tensor_statistics import has_first_statistics
from .tensors import address, content, follow_graph, graph_node, tensors, unwrapped

LOOKS = 50  # steps whose gradients, losses and inputs are read
SPACING, MARKS = 5, 12  # steps between two counts of tensors at first, and how many are kept
CHANNELS = 4  # of an image at most: more are features
OPERANDS = 50  # of functions of a step that are remembered
REPEATED = 3  # steps until the weights are compared with those of a second run
STEPPED: frozenset[int] = frozenset({-1})  # an optimiser has, and no backward pass since


class OuterCall(NamedTuple):
    """A call from outside any module."""

    module: nn.Module
    args: Args
    kwargs: Kwargs
    output: Any = None


class InputRange(NamedTuple):
    """The range of the first tensor of a module's input."""

    low: float
    high: float
    mean: float
    deviation: float
    floats: bool
    channels: list[tuple[float, float]]  # least and largest value of each, if it is an image


class FirstSteps(observe.Probe):
    """Observe a training and end it after `steps`, or as many again if no evaluation came."""

    def starts(self) -> None:
        self.steps, self.ended = 0, False  # by this probe
        self.start: tuple[float, LossCall | None] | None = None  # the first loss
        self.classes: Tensor | None = None  # counts
        self.targets: list[tuple[float, float]] = []
        self.outputs: list[tuple[float, float]] = []
        # Backward passes; those of one call of a loss; those whose targets are codes.
        self.passes = self.losses_seen = self.codes = 0
        # Losses, each with a hash of its labels, by whether a backward pass makes it larger.
        self.signs: dict[bool, set[tuple[str, int]]] = {False: set(), True: set()}
        self.copies = 0  # those whose target is an input
        self.columns: tuple[int, Tensor] | None = None  # rows of several labels, and their sums
        self.fitted: Counter[str] = Counter()  # backward passes by each loss that leads to them
        self.misfits: Counter[tuple[str, str]] = Counter()  # and those in which it does not fit
        self.ranges: dict[bool, list[InputRange]] = {False: [], True: []}  # by evaluation
        self.rows: dict[bool, set[bytes]] = {False: set(), True: set()}
        self.trained_rows: set[bytes] = set()  # by their first inputs, as evaluation may have fewer
        self.batches: list[bytes] = []  # a hash of each step's first input
        self.row_count = 0  # of those inputs
        self.fed = FedRows()
        self.labelled: dict[str, FedRows] = {}  # by each loss
        self._targets: dict[str, bytes] = {}  # of each of several losses, in the last pass
        self._fed: tuple[list[bytes], list[Tensor]] = [], []  # in the last step
        self.known_rows: set[bytes] = set()  # evaluated after training on them
        self.evaluates_names = False  # a whole number a row, as a user's, which has to come again
        self.broken_input = ""  # the first that is not finite
        self.same_tensor = False
        self.evaluations: list[tuple[int, int]] = []  # calls: rows, of them equal to others
        self.broken_loss: int | None = None  # the first step whose loss is not finite
        self.mixed = False  # evaluated rows, old and new ones in one call
        self.evaluated: dict[int, bool] = {}  # step: whether a graph was recorded
        self.bad_modes: set[str] = set()
        self.norms: dict[str, tuple[Any, Tensor]] = {}  # and their first statistics
        self.still_norms: set[str] = set()  # in eval mode while their model trains
        self.still_steps = 0  # in which a model that trains runs in eval mode alone
        self._still = self._training = False  # a call of this step is such a one, or trains
        self.called: set[int] = set()  # modules, with gradients
        self.with_gradient: set[int] = set()  # parameters
        self.initial = IdentityMap()  # values of the optimisers' parameters
        self.uncleared: Counter[str] = Counter()
        self.fingerprint = ""
        self.alive: list[int] = []  # tensors, every `spacing` steps
        self.spacing = SPACING
        self.graph_steps = 0  # at most: of so many steps nodes are alive at the end of one
        self._nodes: list[int] = []  # autograd's number for the next node, at each step's end
        self.replay: Replay | str = "no step was seen"
        self.last = IdentityMap()  # outermost modules: their last call in training
        self._inputs: list[int] = []  # addresses of the last step's
        self._batch_step = -1
        self._stack: list[nn.Module] = []
        self._evaluating = self._backward = False
        self._first: InputRecorder | None = InputRecorder()  # until the loss of the first step
        self._first_loss: tuple[LossCall | None, Sequence[Tensor]] = None, ()
        self._calls: list[LossCall] = []  # since the last backward pass, of two steps at most
        self._older = self._older_operands = 0  # how many of each are of the step before
        # Without gradients, of functions outside of modules; of which function at which line, and
        # the shape of a row.
        self._operands: list[tuple[Tensor, tuple[str, str, Sequence[int]]]] = []
        self._data_at: tuple[str, str, Sequence[int]] = "", "", ()  # of a script without modules
        self._codes = IdentityMap()
        self._constants = IdentityMap()  # by the step that made them
        self._dirty = IdentityMap()  # optimisers: gradients that are there at the next pass
        self._buffers: dict[str, Tensor] = {}
        self.modes.enter_context(observe.mode(TorchFunctionMode, self._ran))

    def _ran(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = getattr(function, "__name__", "")
        if name == self._data_at[0] and not self._stack and isinstance(result, Tensor):
            given = _without_gradients(args, kwargs)
            self._note_given(name, given, trains=result.requires_grad)
        if self._stack and self._evaluating:
            if ("dropout" in name and kwargs.get("training")) or kwargs.get("dropout_p"):
                self.bad_modes.add(f"{self._name(self._stack[-1])} drops out during evaluation")
            return
        if self.steps >= LOOKS:
            return
        chosen = name in CHOOSERS
        if chosen or any(self._codes.get(tensor) for _, tensor in tensors([args, kwargs])):
            for _, tensor in tensors(result):
                if not tensor.is_floating_point():
                    self._codes[tensor] = True
        if name in CONSTANTS and isinstance(result, Tensor):
            self._constants[result] = self.steps
        if self._first is not None and not self._stack and not self._backward:
            self._first.note(function, args, kwargs, result)
        if not self._stack and isinstance(result, Tensor) and result.requires_grad:
            line = "" if self.called else calling_line()
            data = _without_gradients(args, kwargs)
            operands = ((one, (name, line, one.shape[1:])) for one in data)
            self._operands += itertools.islice(operands, max(OPERANDS - len(self._operands), 0))
        call = loss_call(function, args, kwargs, result)
        # In a model a difference is part of what it computes.
        outside = call is not None and not (call.is_difference and self._stack)
        if call is not None and outside and torch.is_grad_enabled():
            self._calls.append(call)

    # -- modules ----------------------------------------------------------------------------

    def forward_begins(self, module: nn.Module, args: Args) -> None:
        if self._backward:  # checkpointing computes forward passes again
            return
        recording = torch.is_grad_enabled()
        if not self._stack:
            if next(module.parameters(), None) is None:
                return  # a loss, say
            known = self.last.get(module) is not None or id(module) in self.called
            self._evaluating = not self.trains(module) and known
            if self._evaluating:
                self._buffers = {k: v.clone() for k, v in module.named_buffers()}
        self._stack.append(module)
        if recording:
            self.called.add(id(module))
            if len(self._stack) == 1:
                self.names.of(module)  # now it is a root: its parameters are the training's
        if isinstance(module, _NormBase) and module.running_mean is not None:
            name = self._name(module)
            if not module.training:
                trains = self._stack[0].training or has_first_statistics(module)
                if recording and not self._evaluating and trains:
                    self.still_norms.add(name)
            elif self._evaluating:
                self.bad_modes.add(f"{name} is in training mode during evaluation")
            elif recording and name not in self.norms:
                self.norms[name] = module, _copy(module.running_mean)

    def forward_ends(self, module: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> None:
        if self._backward or module not in self._stack:
            return
        while self._stack.pop() is not module:
            pass  # left over from an exception that the script caught
        if self._stack:
            return
        inputs = [
            t for _, t in tensors([args, kwargs])
            if t.dim() and not t.is_complex() and t.layout == torch.strided
            and t.numel()
        ]  # fmt: skip
        if self._evaluating:
            # A part of a model has inputs of its own.
            inputs = inputs if self.last.get(module) is not None else []
            self._still |= module.training is False and torch.is_grad_enabled()
            self._note_evaluation(OuterCall(module, args, kwargs, output), inputs)
        elif torch.is_grad_enabled():
            self._training = True
            if self._first is not None:
                self._first.note(module, args, kwargs, output)
            self.last[module] = OuterCall(module, args, kwargs)
            if self.steps < self.options["steps"]:
                self._note_inputs(inputs)

    def _note_given(self, name: str, given: list[Tensor], *, trains: bool) -> None:
        """Record the rows that a function is given where it was given those of the training, by a
        script without modules."""
        if not given or self._data_at != (name, calling_line(), given[0].shape[1:]):
            return
        self._evaluating = not trains
        if not trains:
            self.evaluated.setdefault(self.steps, False)
        self._note_inputs(given[:1])
        self._evaluating = False

    def _note_inputs(self, inputs: list[Tensor]) -> None:
        if not inputs:
            return
        evaluating = self._evaluating
        rows, parts = _rows(inputs)
        if not evaluating:
            self.trained_rows |= parts
            self.broken_input = self.broken_input or self._broken(inputs)
            self.rows[False] |= set(rows)
        elif all(t.dim() == 1 and not t.is_floating_point() for t in inputs):
            self.evaluates_names = True
        else:
            trained = self.trained_rows.intersection(rows)
            equal = sum(count for count in Counter(rows).values() if count > 1)
            self.evaluations.append((len(rows), equal))
            self.mixed |= 0 < len(trained) < len(set(rows))
            self.known_rows |= trained
            self.rows[True] |= set(rows)
        if not evaluating and self._batch_step != self.steps:
            self._batch_step = self.steps
            self._inputs = [address(tensor) for tensor in inputs]
            self.row_count += len(rows)
            self._fed = rows, inputs
            if self.steps < LOOKS:
                self.fed.see(self.steps, rows, inputs)
            self.batches.append(hashlib.blake2b(b"".join(rows), digest_size=12).digest())
        first = inputs[0].detach()
        if len(self.ranges[evaluating]) < LOOKS and first.dtype != torch.bool:
            low, high, values = float(first.min()), float(first.max()), first.double()
            spread = float(values.std(unbiased=False))
            floats, channels = first.is_floating_point(), []
            if first.dim() == 4 and first.shape[1] <= CHANNELS < first.shape[2]:
                channels = [(float(c.min()), float(c.max())) for c in first.unbind(1)]
            row = InputRange(low, high, float(values.mean()), spread, floats, channels)
            self.ranges[evaluating].append(row)

    def _broken(self, inputs: list[Tensor]) -> str:
        """Return the place of the first value that is not finite; empty if there is none."""
        for number, tensor in enumerate(inputs):
            if tensor.is_floating_point() and not bool((finite := tensor.isfinite()).all()):
                row = int((~finite).flatten(1).any(1).nonzero()[0] if tensor.dim() > 1 else 0)
                which = f" of input {number}" if len(inputs) > 1 else ""
                return f"row {row}{which} in step {self.steps} is not finite"
        return ""

    def _note_evaluation(self, call: OuterCall, inputs: list[Tensor]) -> None:
        graph = any(tensor.requires_grad for _, tensor in tensors(call.output))
        self.evaluated[self.steps] = graph or self.evaluated.get(self.steps, False)
        for name, value in call.module.named_buffers():
            before = self._buffers.get(name)
            if before is not None and content(before) != content(value):  # NaN is NaN
                self.bad_modes.add(f"evaluation changes {name}")
        self.same_tensor |= bool(inputs) and address(inputs[0]) in self._inputs
        self._note_inputs(inputs)

    # -- losses and steps ---------------------------------------------------------------------

    def backward_begins(self, losses: Sequence[Tensor]) -> None:
        self._backward = True
        self.still_steps += self._still and not self._training
        self._still = self._training = False
        for optimiser, state in list(self._dirty.items()):
            if not state:
                continue
            there = frozenset(
                address(parameter.grad)
                for group in optimiser.param_groups
                for parameter in group["params"]
                if _has_gradient(parameter)
            )
            # Gradients of several passes may add up before a step, and another optimiser's pass may
            # come before these are cleared.
            self._dirty[optimiser] = there if state is STEPPED else state & there
        if self.broken_loss is None and not all(bool(one.isfinite().all()) for one in losses):
            self.broken_loss = self.steps
        if self.steps < LOOKS and losses:
            led = leading(self._calls, losses)
            call = judged(led)
            self.fitted.update({one.name for one in led})
            self.misfits.update({(one.name, text) for one in led if (text := one.misfit())})
            if self.start is None:
                self.start = float(losses[0].detach().double().mean()), detached(call)
                self._first_loss = call, losses
            self.passes += 1
            if led and self._batch_step != self.steps:  # no module was given data
                labels = led[0].arguments["target"]
                data = (one for one in self._operands if len(one[0]) == len(labels))
                for operand, self._data_at in data:
                    if operand is not labels:
                        self._note_inputs([operand])
                        break
            if call is not None:
                self._note_loss(call)
            names: Counter[str] = Counter()
            for one in led:
                names[one.name] += 1
                name = f"{one.name} {names[one.name]}"
                self._note_labels(one, name, several=len(led) > 1)
                if not (one.is_difference or self._computed(one)):
                    one.node.register_prehook(self._sign_of(one, name))
        self._calls, self._older = [], 0
        self._operands, self._older_operands = [], 0

    def backward_ends(self) -> None:
        self._backward = False

    def _sign_of(self, call: LossCall, name: str) -> Callable[[Sequence[Tensor | None]], None]:
        """Return a hook of autograd that notes whether the pass makes this loss larger."""
        about, right = (name, hash(content(call.labels))), -1 if call.function is nll_by_hand else 1

        def note(gradients: Sequence[Tensor | None]) -> None:
            given = [right * g for g in gradients if g is not None]
            larger = any(bool((g < 0).any()) for g in given)
            self.signs[larger and not any(bool((g > 0).any()) for g in given)].add(about)

        return lambda gradients: observe.guarded(note, gradients)

    def ascending(self) -> list[str]:
        """Return the losses that every pass makes larger, unless another makes one of the same
        labels smaller, as an adversary does."""
        names, labels = ({one[at] for one in self.signs[False]} for at in (0, 1))
        return sorted(
            {n for n, label in self.signs[True] if n not in names and label not in labels}
        )

    def _note_loss(self, call: LossCall) -> None:
        self.losses_seen += 1
        labels, target = call.labels, call.target
        if not target.numel():  # all ignored
            return
        if self._computed(call):
            self.codes += 1
            return
        others = self._data_beside(call)
        self.copies += any(
            not labels.is_floating_point() and t.dtype == labels.dtype
            and torch.equal(t.flatten(), labels.flatten()) for t in others
        )  # fmt: skip
        if call.name in TWO_CLASSES and target.dim() == 2 and target.shape not in [
            t.shape for t in self._fed[1]
        ]:  # fmt: skip
            count, sums = self.columns or (0, 0.0)
            self.columns = count + len(target), sums + target.double().sum(0)
        if not target.is_floating_point():
            classes = max(call.classes, int(target.max()) + 1)
            counts = torch.bincount(target.flatten().cpu(), minlength=classes)
            same = self.classes is not None and len(self.classes) == len(counts)
            self.classes = self.classes + counts if same else counts  # type: ignore[operator]
        else:
            self.targets.append((float(target.min()), float(target.max())))
            output = call.output.detach()
            self.outputs.append((float(output.min()), float(output.max())))

    def _computed(self, call: LossCall) -> bool:
        """Return True if the training computes the target itself."""
        given = call.arguments["target"]
        return bool(self._codes.get(given)) or self._constants.get(given) == self.steps

    def _data_beside(self, call: LossCall) -> list[Tensor]:
        """Return the step's inputs. A model that computes its loss itself is given labels, too."""
        return [t for t in self._fed[1] if address(t) != address(call.arguments["target"])]

    def _note_labels(self, call: LossCall, name: str, *, several: bool) -> None:
        """Record the labels of a loss. Of several losses, one whose target is the same in each step
        has none: it says what is real, or which rows are a pair."""
        labels = call.labels
        if self._computed(call) or not labels.dim():
            return
        if several:
            now, before = content(labels), self._targets.get(name)
            self._targets[name] = now
            if before in (None, now):
                return
        ignored = None if labels.is_floating_point() else call.arguments.get("ignore_index", -100)
        rows = self.labelled.setdefault(name, FedRows())
        rows.label(self.steps, self._fed[0], self._data_beside(call), labels, ignored)

    def step_begins(self, step: int, optimiser: Optimizer) -> None:
        left = self._dirty.get(optimiser, frozenset())
        names = (  # not of those that were replaced
            name for name, p in self.names.parameters(optimiser)
            if p.grad is not None and _has_gradient(p) and address(p.grad) in left
        )  # fmt: skip
        if (first := next(names, None)) is not None:
            self.uncleared.update([first])
        if self._first is not None:
            self.replay = self._first.replay(*self._first_loss, optimiser)
            self._first, self._first_loss = None, (None, ())
        elif self.passes == 1 and isinstance(self.replay, Replay):  # it shares the first pass
            self.replay = self.replay.stepped_by(optimiser)
        if step < LOOKS:
            optimised = self.names.parameters(optimiser)
            for _, parameter in (*self.names.all_parameters(), *optimised):
                if id(parameter) not in self.with_gradient and _has_gradient(parameter):
                    self.with_gradient.add(id(parameter))
            for _, parameter in optimised:
                if self.initial.get(parameter) is None:
                    self.initial[parameter] = _copy(parameter)

    def step_ends(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        self.steps = step + 1
        self._dirty[optimiser] = STEPPED  # until a backward pass begins
        self._stack = []
        self._calls = self._calls[self._older :]  # torch.func calls no backward pass
        self._operands = self._operands[self._older_operands :]
        self._older, self._older_operands = len(self._calls), len(self._operands)
        if skipped and self.broken_loss == step:  # a gradient scaler looks for its scale
            self.broken_loss = None
        self._roots = self.names.roots()  # the script's own variables are gone when the checks run
        if self.steps <= REPEATED:
            self.fingerprint = self._fingerprint(optimiser)
        elif self.steps % self.spacing == 0:
            self._count_alive()
        self._nodes.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        most = self.options["steps"]
        if self.steps >= (most if self.evaluated or most <= REPEATED else 2 * most):
            self.ended = True
            raise SystemExit(0)

    def _fingerprint(self, optimiser: Optimizer) -> str:
        digest = hashlib.sha256()
        for name, parameter in (*self.names.all_parameters(), *self.names.parameters(optimiser)):
            digest.update(name.encode() + content(dense(parameter.detach())))
        return digest.hexdigest()[:32]

    def _count_alive(self) -> None:
        """Count the living tensors, and the steps whose graphs they keep alive; of those that are
        new since the first count."""
        gc.collect()
        if not self.alive:
            gc.freeze()  # the next counts are quick: they pass over what is there now
        live = [obj for obj in gc.get_objects() if type(obj) is Tensor]
        nodes: set[Any] = set()
        follow_graph(map(graph_node, live), nodes)
        self.alive.append(len(live))
        numbers = (bisect.bisect_right(self._nodes, node._sequence_nr()) for node in nodes)
        self.graph_steps = max(self.graph_steps, len({at for at in numbers if at}))
        if len(self.alive) > MARKS:
            self.alive = self.alive[1::2]
            self.spacing *= 2

    def _name(self, module: nn.Module) -> str:
        return self.names.of(module) or "the model"


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _without_gradients(args: Any, kwargs: Any) -> list[Tensor]:
    """Return what a function is given that needs no gradient; a wrapper may where its tensor does
    not."""
    leaves = (t for t in tree_leaves([args, kwargs]) if isinstance(t, Tensor))
    return [unwrapped(t) for t in leaves if t.dim() and not t.requires_grad]


def _has_gradient(parameter: Tensor) -> bool:
    return parameter.grad is not None and bool((dense(parameter.grad) != 0).any())


def _rows(inputs: list[Tensor]) -> tuple[list[bytes], set[bytes]]:
    """Return a hash of each row of a module's input, over all tensors as long as the first; and
    the hashes over its first tensors alone, one, two and so on."""
    count = len(inputs[0])
    parts = [content(t) for t in inputs if len(t) == count]
    rows, firsts = [], set()
    for row in range(count):
        digest = hashlib.blake2b(digest_size=12)
        for part in parts:
            digest.update(part[row * len(part) // count : (row + 1) * len(part) // count])
            firsts.add(digest.digest())
        rows.append(digest.digest())
    return rows, firsts
