"""Write what a training computes, for `celedger explain` to compare with another.

Options: `full`, the steps that are recorded in full (modules, calls of torch's functions,
gradients, parameters, the optimiser's state); `steps`, after how many the training is ended (0:
never); `changed`, lines of which values are recorded (celedger.lab.probes.line_values);
`evaluations`, how many evaluations between steps are recorded; `autocast`, a dtype for the
roots' forward passes; `perturb`, a seed: every weight is moved by one unit in its last place before
step 0, to measure how the training amplifies rounding; `replay`, a `device` or `dtype` with which
every operator of step 0 that torch dispatches is run again from its inputs.

Besides its events it writes `values.bin` and `rows.bin` (celedger.lab.probes.tensors), all read
by celedger.lab.diagnose.trace.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from celedger.child.torch_steps import dense

from . import describe, observe
from .describe import Origins
from .names import IdentityMap
from .observe import Args, Kwargs
from .precision import EMPTY
from .stack import CallSites
from .tensors import TensorStore, address, data_hash, has_shape, perturb, tensors, unwrapped

# Of a root: the first batches suffice. A teacher, which each step evaluates, uses up its own.
_EVALUATIONS, _CALLS_OF_EVALUATION = 3, 2
_EARLY_CALLS = 2000  # with a gradient, before a first module or backward pass: of functional code
_ROWS = 20_000  # inputs whose rows are hashed: about an epoch of a small training
# Events that belong to no step.
_TIMELESS = ("site", "start", "rank", "module", "init", "draw")
_PROPERTIES = ("__get__", "__set__", "is_", "requires_grad")  # names of calls that compute nothing
_LOSSES = {
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss",
    "gaussian_nll_loss", "soft_margin_loss", "multi_margin_loss", "multilabel_margin_loss",
    "cosine_embedding_loss", "triplet_margin_loss", "hinge_embedding_loss", "ctc_loss",
}  # fmt: skip


class TraceProbe(observe.Probe):
    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.full = frozenset(options.get("full", (0, 1, 2)))
        self.last = int(options.get("steps", 0))
        self.step = 0
        self.started = False
        self.store = TensorStore()
        self.sites = CallSites(lambda number, frames: self.write("site", id=number, s=frames))
        self.origins = Origins(self)
        self._early: list[dict[str, Any]] = []  # before the folder is known
        self._stepping = False  # the optimiser's own calls show in its results
        self._roots = IdentityMap()
        self._bare: set[str] = set()  # parameters without a module that are written
        self._random = describe.torch_generators()
        self._rows = 0
        self._optimisers: dict[int, int] = {}
        self._settings: dict[int, str] = {}
        self._evaluations = self._outside = 0
        self._calls: Counter[str] = Counter()  # of each root in this evaluation
        self._seen: Counter[str] = Counter()  # evaluations that call each root
        self._evaluating = self._looking = False
        self._casting: dict[int, Any] = {}
        self._replay: Any = None
        self._replaying = False
        self._makers: dict[int, tuple[str | None, int]] = {}  # module and site of a node, by number
        self._values: Any = None  # of changed lines
        if options.get("changed"):
            from .line_values import recorder

            self._values = recorder
            recorder.begin(self.write, self._values_wanted, self._read_tensor, self._generators)
        if options.get("replay"):
            self._replay = observe.mode(TorchDispatchMode, self._dispatched)
        self._opened: set[str] = set()  # files, as of settings
        sys.addaudithook(self._audits)
        self._cleared: list[int] = []  # where gradients were cleared since the last backward pass
        for kind in (Optimizer, nn.Module):
            observe.patch(kind, "zero_grad", before=self._clears)
        observe.patch(nn.Module, "load_state_dict", before=self._loads)
        observe.watch_functions(self._applied)
        self.functions = observe.mode(TorchFunctionMode, self._called)
        self.functions.__enter__()
        self._begin_step()

    def _begin_step(self) -> None:
        self._stack: list[tuple[Any, str, int]] = []  # modules whose forward runs
        self._numbers: Counter[str] = Counter()  # calls of a module so far in this step
        self._losses: list[Any] = []

    def write(self, k: str, **event: Any) -> None:
        if self._values is not None and k != "value":
            self._values.flush()
        if not self.started:
            self._early.append({"k": k, **event})
            return
        if k not in _TIMELESS:
            event["t"] = self.step
            if self._inside_evaluation():
                event["e"] = self._evaluations
        super().write(k, **event)

    def _tensors(self, value: Any, *, sampled: bool = True) -> list[dict[str, Any]]:
        return [self.store.describe(tensor, sampled=sampled) for _, tensor in tensors(value)]

    def _values_wanted(self) -> bool:
        """Return True while the values of changed lines are recorded."""
        if not self.started or self.step in self.full:
            return True
        number = self._evaluations + (not self._evaluating)  # data come before a first forward pass
        without_gradients = self._evaluating or not torch.is_grad_enabled()
        return without_gradients and number <= _EVALUATIONS

    def _generators(self) -> dict[str, str]:
        states: dict[str, str] = {}
        observe.guarded(lambda: states.update(describe.generators()))
        return states  # none while a CUDA graph is captured, or in a child

    def _read_tensor(self, value: Any) -> tuple[str, bool, object] | None:
        """Return the hash of a tensor, empty where it has none, whether it requires a gradient, and
        its value if it has no axes; None of anything else."""
        if not isinstance(value, Tensor):
            return None
        value = unwrapped(value)
        about: dict[str, Any] = {}

        def look() -> None:
            about.update(self.store.describe(value, sampled=False))
            if about.get("h") and not value.dim():
                about.update(item=value.item())

        if observe.silenced():  # in a child, of which only these values are written
            look()
        elif not observe.recorded():
            observe.guarded(look)
        return about.get("h", ""), value.requires_grad, about.get("item")

    # --- the start

    def starts(self) -> None:
        observe.choose_repeatable()
        if self._values is not None:
            self._values.flush()  # behind what came before
        self.started = True
        self.store.open(self.out)
        for event in self._early:
            self.write(**event)
        self._random = describe.torch_generators()
        self.write("random", at="start", x=describe.generators())
        for _, root in self.names.roots():
            self._meet(root)

    def _meet(self, root: nn.Module) -> None:
        """Write the modules of a root, and its parameters and buffers as they are when it is first
        used. A root is what was called by none. One that is first used in a later step may have
        changed since it was made: then the event has its step."""
        if self._roots.get(root):
            return
        self._roots[root] = True
        late = {"t": self.step} if self.step else {}
        for module in root.modules():
            kind = type(module)
            parameters = module.named_parameters(recurse=False)
            self.write(
                "module", p=self.names.of(module), c=f"{kind.__module__}.{kind.__qualname__}",
                a=describe.settings(module), f=describe.code(kind, "forward"),
                w=self.origins.constructed.get(module, -1),
                s={name: list(weight.shape) for name, weight in parameters if has_shape(weight)},
            )  # fmt: skip
        prefix = self.names.of(root)
        prefix += "." if prefix and not prefix.endswith(":") else ""  # it is called on its own
        if "perturb" in self.options and self.step == 0:
            perturb(filter(has_shape, root.parameters()), int(self.options["perturb"]))
        # Names of what has several: tied weights, shared modules, a buffer that shares memory.
        first: dict[tuple[int, ...], str] = {}
        for role in ("parameter", "buffer"):
            named = {name: tensor for name, tensor, _ in self.names.tensors_of(root, role)}
            every: Any = getattr(root, f"named_{role}s")
            for name, tensor in every(remove_duplicate=False):
                named.setdefault(prefix + name, tensor)
            for name, tensor in named.items():
                if has_shape(tensor):
                    memory = (address(tensor), *tensor.shape)
                    key = memory if memory[0] > 0 else (id(tensor),)
                    tied = {"tied": first[key]} if first.setdefault(key, name) != name else {}
                    self._write_initial(name, role, tensor, **tied, **late)
        self.store.forget()

    def _meet_bare(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Write parameters without a module before an optimiser changes them first."""
        for name, weight in named:
            if self.names.in_no_module(weight) and name not in self._bare:
                self._bare.add(name)
                self._write_initial(name, "parameter", weight)
                if "perturb" in self.options and self.step == 0:
                    perturb([weight], int(self.options["perturb"]))

    def _write_initial(self, path: str, role: str, tensor: Tensor, **more: Any) -> None:
        origin = self.origins.of(tensor)
        self.write("init", p=path, r=role, x=self._tensors(tensor), **origin, **more)

    # --- torch's functions

    def _called(self, function: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        if self._stepping:
            return
        name = describe.function_name(function)
        if not self.started:
            self.origins.called(name, args, kwargs, result)
            functional = describe.functional(name, [args, kwargs], result)
            if not functional or observe.recorded() or len(self._early) > _EARLY_CALLS:
                return
        if self._recording() and not name.startswith(_PROPERTIES):
            args = describe.operands(function, args)
            self._call("call", name, args, kwargs, args[0] if name == "__setitem__" else result)
        if name in _LOSSES and self._rows < _ROWS and not self._evaluating:
            for _, target in tensors(args[1] if len(args) > 1 else kwargs.get("target")):
                if target.ndim and not target.requires_grad:
                    self._write_rows("target", name, 0, target)

    def _applied(self, kind: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Write a call of an autograd function of the script's, with where its backward is."""
        code = describe.backward_code(kind)
        if code and self.started and self._recording() and not self._stepping:
            self._call("call", f"{kind.__name__}.apply", args, kwargs, result, f=code)

    def _dispatched(self, function: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Run an operator again from the same inputs on another device or in another type, and
        write both results. One that writes, returns a view, or draws is passed over."""
        node: Any = torch._C._current_autograd_node()
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        if node is None:
            path = self._stack[-1][1] if self._stack else None
            self._makers[number] = path, self.sites.here()
        given = [t for _, t in tensors([args, kwargs]) if t.is_floating_point()]
        made = [t for _, t in tensors(result) if t.is_floating_point() and t.numel()]
        name = function.overloadpacket.__name__
        aliases = any(one.alias_info is not None for one in function._schema.arguments)
        draws = torch.Tag.nondeterministic_seeded in function.tags
        if aliases or draws or not (given and made) or name.startswith(EMPTY):
            return
        device = self.options["replay"].get("device")
        dtype = getattr(torch, self.options["replay"].get("dtype", ""), None)

        def moved(one: Any) -> Any:
            if isinstance(one, Tensor):
                return one.detach().to(device, dtype if one.is_floating_point() else None)
            floating = isinstance(one, torch.dtype) and one.is_floating_point
            return dtype if floating and dtype else one

        results = made[:1]
        with torch.no_grad(), torch.autocast(made[0].device.type, enabled=False):
            try:
                again = function(*tree_map(moved, args), **tree_map(moved, kwargs))
                results.append(next(t for _, t in tensors(again) if t.is_floating_point()))
            except (RuntimeError, NotImplementedError, StopIteration):
                pass  # there is no such operator on that device, or of that type
        path, site = self._makers.get(number if node is None else node._sequence_nr(), (None, -1))
        self.write(
            "replayed", o=name, p=path, b=node is not None, w=site,
            l=describe.literals(args, kwargs),
            x=self._tensors(results),
        )  # fmt: skip

    def _call(
        self, kind: str, name: str, args: Args, kwargs: Kwargs, result: Any, **more: Any
    ) -> None:
        results = {id(tensor): tensor.numel() for _, tensor in tensors(result)}
        arguments = [tensor for _, tensor in tensors([args, kwargs])]
        if not results or not (arguments or any(results.values())):
            return  # torch sends empty tensors between the processes of a loader
        module, number = self._stack[-1][1:] if self._stack else (None, 0)
        before = [self.store.hash_before(t) if id(t) in results else None for t in arguments]
        given = self._tensors(arguments, sampled=False)
        inputs = [old or one.get("h") for old, one in zip(before, given)]  # noqa: B905 (3.8)
        outputs = self._tensors(result, sampled=False)
        literals = describe.literals(args, kwargs)
        if not arguments and describe.is_made_of_data(name, args):
            literals[0], inputs = "_", [f"data {one.get('h')}" for one in outputs]
        drawn = self._drawn() if kind == "call" else {}
        if (backward := describe.backward_name(result)) is not None:
            more["b"] = backward
        self.write(
            kind, o=name, p=module, n=number, l=literals, i=inputs,
            x=outputs, w=self.sites.here(), **drawn, **more,
        )  # fmt: skip

    def _write_rows(self, role: str, path: str, position: int, tensor: Any) -> None:
        """Write a digest of every row, for about an epoch. `position`: among the inputs."""
        if not tensor.is_sparse and len(tensor):
            self.write("rows", r=role, p=path, q=position, **self.store.rows(tensor))

    # --- modules

    def forward_begins(self, module: nn.Module, args: Args) -> None:
        path = self.names.of(module)
        outer = not self._stack
        if outer:
            self._turn(path, training=torch.is_grad_enabled())
        number = self._numbers[path]
        self._numbers[path] += 1
        self._stack.append((module, path, number))
        if outer:
            self._meet(module)
        trains = outer and not self._evaluating
        arguments = describe.arguments(module, args) if trains or self._recording() else {}
        values = list(arguments.values())
        if trains:
            self._write_batch(path, values)
        if self._recording():
            self.write(
                "enter", p=path, n=number, c=type(module).__name__, tr=module.training,
                m=self.origins.modes.get(module, -1),
                u=self._stack[-2][1] if not outer else None,
                ac=describe.autocast(), w=self.sites.here(), x=self._tensors(values),
                of=[name for name, _ in tensors(arguments)],
            )  # fmt: skip
        if outer and torch.is_grad_enabled():
            self._replay_on(True)
        dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = dtypes.get(self.options.get("autocast", ""))
        if outer and dtype is not None:
            kind = next((p.device.type for p in module.parameters()), "cpu")
            self._casting[id(module)] = torch.autocast(kind, dtype=dtype)
            self._casting[id(module)].__enter__()

    def forward_ends(self, module: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> None:
        casting = self._casting.pop(id(module), None)
        if casting is not None:
            casting.__exit__(None, None, None)
        while self._stack and self._stack[-1][0] is not module:
            self._stack.pop()  # left over from a forward pass whose exception was caught
        if not self._stack:
            return
        _, path, number = self._stack.pop()
        if not self._recording():
            return
        self.write("leave", p=path, n=number, x=self._tensors(output), **self._drawn())
        for within, tensor in tensors(output) if torch.is_grad_enabled() else ():
            if tensor.requires_grad:
                hook: Any = tensor.register_hook
                hook(self._gradient_hook(path, number, within))

    def _gradient_hook(self, path: str, number: int, within: str) -> Callable[[Tensor], None]:
        step = self.step

        def write(gradient: Tensor) -> None:
            if self.step == step:  # else it is of a parameter that a module returned
                self.write("grad", p=path, n=number, q=within, x=self._tensors(gradient))

        return lambda gradient: observe.guarded(write, gradient)

    def _turn(self, path: str, *, training: bool) -> None:
        """Decide, when a root begins, whether a training step or an evaluation continues."""
        if training:
            self._evaluating = self._looking = False
            return
        if not self._evaluating:
            self._evaluating = True
            self._calls.clear()
            self._evaluations += 1
        self._seen[path] += not self._calls[path]
        self._calls[path] += 1
        looking = self._seen[path] <= _EVALUATIONS and self._calls[path] <= _CALLS_OF_EVALUATION
        if not looking and (self._looking or sum(self._calls.values()) == 1):
            self.write("unseen")  # from here on
        self._looking = looking

    def _loads(self, *_: Any, **__: Any) -> None:
        """End an evaluation: what follows is one of other weights."""
        self._evaluating = self._looking = False

    def _recording(self) -> bool:
        return self._looking if self._inside_evaluation() else self.step in self.full

    def _inside_evaluation(self) -> bool:
        """Return True for what an evaluation computes; not for a loss that takes its outputs, as of
        a teacher or a target network, where gradients are on again."""
        return self._evaluating and not (torch.is_grad_enabled() and not self._stack)

    def _write_batch(self, path: str, args: Sequence[Any]) -> None:
        """Write the rows of what reaches a root."""
        for position, (_, tensor) in enumerate(tensors(args)):
            plain = not tensor.requires_grad and not tensor.is_meta and tensor.dim()
            if plain and len(tensor) <= _ROWS - self._rows:
                self._rows += len(tensor)
                self._write_rows("input", path, position, tensor)

    # --- backward, step, the rest

    def _clears(self, *_: Any, **__: Any) -> None:
        if self._recording():
            self._cleared.append(self.sites.here())

    def backward_begins(self, losses: Sequence[Tensor]) -> None:
        self._evaluating = self._looking = False
        self._outside = len(self._stack)
        for loss in losses:
            mean = float(loss.detach().float().mean()) if loss.numel() else None
            self._losses.append([self.store.mark(loss), describe.simple(mean)])
        if self._recording():
            uncleared = sum(
                weight.grad is not None and bool(dense(weight.grad).count_nonzero())
                for _, root in self.names.roots() for weight in root.parameters()
            )  # fmt: skip
            cleared = dict.fromkeys(self._cleared)
            self.write(
                "loss", x=self._tensors(losses), held=uncleared, w=self.sites.here(), z=[*cleared]
            )
        self._cleared.clear()
        self._replay_on(True)

    def backward_ends(self) -> None:
        self._replay_on(False)
        if sys.exc_info()[0] is None:  # checkpointing leaves forward passes as soon as it can
            del self._stack[self._outside :]

    def step_begins(self, step: int, optimiser: Optimizer) -> None:
        named = self.names.parameters(optimiser)
        self._meet_bare(named)
        if not observe.has_no_optimiser(optimiser):
            self._stepping = True
            self._write_settings(optimiser, named)
        if step in self.full:
            for name, weight in named:
                self.write("pgrad", p=name, x=self._tensors(weight.grad))

    def step_ends(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        self.store.forget()
        own = observe.has_no_optimiser(optimiser)  # whose leaves come in any order
        named = sorted(self.names.parameters(optimiser), key=lambda row: row[0] if own else "")
        if step in self.full:
            self._write_result(optimiser, named)
        marks = "".join(self.store.mark(weight) for _, weight in named)
        self.write(
            "pulse", loss=self._losses, params=data_hash(marks.encode()),
            random=describe.generators(),
        )  # fmt: skip
        self.store.forget()
        self.flush()
        self.step = step + 1
        self._begin_step()
        self._stepping = False
        if self.last and self.step >= self.last:
            self._end(cut=True)
            os._exit(0)  # end here: the rest of the training is not needed

    def _write_result(self, optimiser: Optimizer, named: Sequence[tuple[str, Tensor]]) -> None:
        """Write the optimiser's state, the parameters and the buffers after a step."""
        for name, weight in named:
            for key, value in optimiser.state.get(weight, {}).items():
                plain = describe.simple(value)
                self.write("state", p=name, q=key, x=self._tensors(value), v=plain)
        for name, weight in named:
            self.write("param", p=name, x=self._tensors(weight))
        for _, root in self.names.roots():
            for name, buffer, _ in self.names.tensors_of(root, "buffer"):
                self.write("buffer", p=name, x=self._tensors(buffer))

    def _write_settings(self, optimiser: Optimizer, named: Sequence[tuple[str, Tensor]]) -> None:
        """Write the optimiser's settings, where they have changed and in full steps, and which
        parameters have which."""
        number = self._optimisers.setdefault(id(optimiser), len(self._optimisers))
        groups = [
            {key: describe.simple(value) for key, value in group.items() if key != "params"}
            for group in optimiser.param_groups
        ]
        kind = type(optimiser)
        settings = json.dumps([kind.__qualname__, groups])
        if self._settings.get(number) == settings and self.step not in self.full:
            return
        self._settings[number] = settings
        names = iter(name for name, _ in named)
        self.write(
            "hyper", p=str(number), c=f"{kind.__module__}.{kind.__qualname__}", v=groups,
            of=[[next(names) for _ in group["params"]] for group in optimiser.param_groups],
            f=describe.code(kind, "step"), w=self.origins.constructed.get(optimiser, -1),
            at=self.sites.here(),
        )  # fmt: skip

    def reported(self, epoch: int | None, values: Mapping[str, object]) -> None:
        numbers = {name: describe.simple(value) for name, value in observe.numbers(values)}
        self._evaluating = self._looking = False
        self.write("report", e=epoch, v=numbers)

    def gives_up(self) -> None:
        self._replay_on(False)
        for casting in self._casting.values():
            casting.__exit__(None, None, None)
        self._casting = {}

    def ends(self) -> None:
        self._end(cut=False)

    def _audits(self, event: str, args: Args) -> None:
        if event == "open" and isinstance(args[0], str):
            self._opened.add(args[0])

    def _end(self, *, cut: bool) -> None:
        modules = {str(getattr(module, "__file__", None)) for module in [*sys.modules.values()]}
        names = {str(Path.cwd() / name) for name in modules | self._opened}
        outside = ("site-packages", "__pycache__")
        files = sorted(n for n in names if not any(o in n for o in outside) and Path(n).is_file())
        self.write("end", cut=cut, inside=[path for _, path, _ in self._stack], files=files)
        self.flush()

    def flush(self) -> None:
        self.store.flush()
        super().flush()

    def _replay_on(self, on: bool) -> None:
        """With `replay`: from the first forward pass of step 0 to the end of its backward pass."""
        if self._replay is None or on == self._replaying or (on and self.step):
            return
        self._replaying = on
        if on:
            self._replay.__enter__()
        else:
            self._replay.__exit__(None, None, None)

    def _drawn(self) -> dict[str, str]:
        """Return `y`, the state of torch's generators, if it changed since the previous call, and
        `z`, the state before."""
        now, before = describe.torch_generators(), self._random
        self._random = now
        return {} if now == before else {"y": now, "z": before}


def attach(options: dict[str, Any]) -> None:
    observe.attach(TraceProbe(options))
