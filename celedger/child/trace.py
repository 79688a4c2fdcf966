"""A probe that writes what a training computes, for `celedger explain` to compare with another.

Options: `full`, the steps of which everything is written (modules, calls of torch's functions,
gradients, parameters, the optimiser's state); `steps`, after how many the training is ended (0:
never); `evaluations`, how many evaluations between steps are looked at; `autocast`, a dtype in
which the roots' forward passes are to run; `operators`, true for every operator that torch
dispatches in the full steps, those of the backward pass too; `perturb`, a seed: every weight is
moved by one unit in its last place before step 0, to see how the training amplifies rounding.

What it leaves: `events.jsonl`, an event a line in order of time; `values.bin` and `rows.bin`
(celedger.child.trace_tensors). celedger.diagnose.trace reads them. Needs torch (2.0 on).
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Sequence  # noqa: UP035

from celedger.child import observe
from celedger.child.observe import tensors
from celedger.child.trace_calls import (
    Sites,
    generators,
    literals,
    mode,
    name_of,
    operators,
    torch_generators,
)
from celedger.child.trace_origins import Origins, perturb
from celedger.child.trace_settings import (
    autocast,
    code,
    groups,
    norm,
    number,
    settings,
    torch_version,
)
from celedger.child.trace_tensors import Store, data_hash, simple

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from celedger.child.trace_calls import Frame

_CALLS_OF_EVALUATION = 2  # of a root: the first batches tell
_ROWS = 20_000  # inputs whose rows are told apart: about an epoch of a small training
_LOSSES = {
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss",
    "gaussian_nll_loss", "soft_margin_loss", "multi_margin_loss", "multilabel_margin_loss",
    "cosine_embedding_loss", "triplet_margin_loss", "hinge_embedding_loss", "ctc_loss",
}  # fmt: skip


class Probe(observe.Probe):
    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.full = frozenset(options.get("full", (0, 1, 2)))
        self.last = int(options.get("steps", 0))
        self.step = 0
        self.store: Store | None = None
        self.sites = Sites(self._site)
        self._early: list[dict[str, Any]] = []  # before the folder is known
        self._events: Any = None
        self._busy = False  # what we compute ourselves is no call of the training's
        self._off = False
        self.origins = Origins(self.sites, self._early.append)
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._stack: list[tuple[Any, str, int]] = []  # modules whose forward runs
        self._numbers: dict[str, int] = {}  # calls of a module so far in this step
        self._random = ""
        self._pulse: dict[str, Any] = {}
        self._rows = 0
        self._optimisers: dict[int, int] = {}
        self._hyper: dict[int, str] = {}
        self._evaluations = self._calls = 0
        self._evaluating = self._looking = False
        self._casting: dict[int, Any] = {}
        self._dispatch: Any = None
        self.calls = mode(self._called)
        self.calls.__enter__()  # type: ignore[no-untyped-call]
        os.register_at_fork(after_in_child=self._silence)

    def _silence(self) -> None:
        self._off = self.origins.over = True

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """What is computed meanwhile is ours, no call of the training's."""
        before, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = before

    def starts(self) -> None:
        with self._quietly():
            self._open()

    def _open(self) -> None:
        self.store = Store(self.out)
        self._events = (self.out / "events.jsonl").open("w", encoding="utf-8")
        self._write(k="start", argv=sys.argv, full=sorted(self.full), torch=torch_version())
        for event in self._early:
            self._write(**event)
        self._early, self.origins.over = [], True
        self._random = torch_generators()
        self._write(k="random", at="start", x=generators())
        for _, root in self.names.roots():
            self._meet(root)
        self._begin()

    def _begin(self) -> None:
        """A step begins."""
        self._numbers, self._stack = {}, []
        self._pulse = {"batch": [], "loss": []}

    def _meet(self, root: nn.Module) -> None:
        """The modules of a root, and its parameters and buffers as they are when it is first used.
        A root is what was called by none."""
        if root in self._roots:
            return
        self._roots.add(root)
        for module in root.modules():
            kind = type(module)
            self._write(
                k="module", p=self.names.of(module), c=f"{kind.__module__}.{kind.__qualname__}",
                a=settings(module), f=code(kind, "forward"), w=self.origins.created.get(module, -1),
                s={n: list(p.shape) for n, p in module.named_parameters(recurse=False) if _made(p)},
            )  # fmt: skip
        prefix = self.names.of(root)
        if "perturb" in self.options and self.step == 0:
            perturb(filter(_made, root.parameters()), int(self.options["perturb"]))
        for role, named in (("parameter", root.named_parameters), ("buffer", root.named_buffers)):
            for name, tensor in named():
                if not _made(tensor):
                    continue
                self._write(
                    k="init", p=prefix + name, r=role, x=self._tensor(tensor),
                    **self.origins.of(tensor),
                )  # fmt: skip
        if self.store is not None:
            self.store.forget()

    # --- torch's functions

    def _called(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        done = function(*args, **kwargs)
        if self._busy or self._off:
            return done
        self._busy = True
        try:
            name = name_of(function)
            if self._events is None:
                self.origins.called(name, args, kwargs)
                return done
            if self._recording():
                self._call(name, args, kwargs, done)
            if name in _LOSSES and self._rows < _ROWS and not self._evaluating:
                self._target(name, args, kwargs)
        except Exception as error:
            observe.failed(error)
        finally:
            self._busy = False
        return done

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], done: Any) -> None:
        if name in ("__get__", "__set__") or name.startswith(("is_", "requires_grad")):
            return
        found = [self._tensor(tensor) for _, tensor in tensors(done)]
        if name == "__setitem__" and args:
            found = [self._tensor(args[0])]
        if not found:
            return
        module, number = self._stack[-1][1:] if self._stack else (None, 0)
        event = {
            "k": "call", "o": name, "p": module, "n": number, "l": literals(args, kwargs),
            "i": [self._tensor(t).get("h") for _, t in tensors([args, list(kwargs.values())])],
            "x": found, "w": self.sites.here(skip=3),
        }  # fmt: skip
        self._write(**event, **self._drawn())

    def _target(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        target = args[1] if len(args) > 1 else kwargs.get("target")
        if self.store is None or not getattr(target, "ndim", 0) or target is None:
            return
        if target.is_sparse or not observe.whole(target):
            return
        if not target.requires_grad and len(target):
            self._write(k="rows", r="target", p=name, **self.store.rows(target))

    # --- modules

    def forward_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        import torch

        path = self.names.of(module)
        outer = not self._stack
        if outer:
            self._turn(torch.is_grad_enabled())
        number = self._numbers[path] = self._numbers.get(path, -1) + 1
        self._stack.append((module, path, number))
        with self._quietly():
            if outer:
                self._meet(module)
                self._outer(args)
            if self._recording():
                self._write(
                    k="enter", p=path, n=number, c=type(module).__name__, tr=module.training,
                    u=self._stack[-2][1] if len(self._stack) > 1 else None,
                    ac=autocast(), w=self.sites.here(skip=3),
                    x=[self._tensor(t) for _, t in tensors(args)],
                )  # fmt: skip
        if outer and self._recording():
            self._watch_operators(True)
        wanted = self.options.get("autocast")
        if outer and wanted and wanted != "fp32":
            kind = next((p.device.type for p in module.parameters()), "cpu")
            dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[wanted]
            self._casting[id(module)] = torch.autocast(kind, dtype=dtype)
            self._casting[id(module)].__enter__()

    def forward_ends(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        import torch

        casting = self._casting.pop(id(module), None)
        if casting is not None:
            casting.__exit__(None, None, None)
        while self._stack and self._stack[-1][0] is not module:
            self._stack.pop()  # a forward pass that raised, and was caught
        if not self._stack:
            return
        _, path, number = self._stack.pop()
        if not self._stack:
            self._watch_operators(False)
        if not self._recording():
            return
        with self._quietly():
            found = list(tensors(output))
            self._write(
                k="leave", p=path, n=number, x=[self._tensor(t) for _, t in found], **self._drawn()
            )
            if torch.is_grad_enabled():
                for place, tensor in found:
                    if tensor.requires_grad:
                        tensor.register_hook(  # type: ignore[no-untyped-call]
                            self._hear(path, number, place)
                        )

    def _turn(self, training: bool) -> None:
        """A root begins: does a training step, or an evaluation go on?"""
        if training:
            self._evaluating = self._looking = False
            return
        if not self._evaluating:
            self._evaluating, self._calls = True, 0
            self._evaluations += 1
        self._calls += 1
        few = self._evaluations <= int(self.options.get("evaluations", 3))
        self._looking = few and self._calls <= _CALLS_OF_EVALUATION

    def _recording(self) -> bool:
        return self._looking if self._evaluating else self.step in self.full

    def _outer(self, args: tuple[Any, ...]) -> None:
        """What reaches a root is the batch, of which every step keeps a hash and, for about an
        epoch, a digest of every row."""
        if self._evaluating or self.store is None:
            return
        for _, tensor in tensors(args):
            if tensor.requires_grad or tensor.is_meta or not observe.whole(tensor):
                continue
            self._pulse["batch"].append(self.store.numbers(tensor))
            if tensor.is_sparse or not tensor.dim():
                continue
            if 0 < len(tensor) <= _ROWS - self._rows:
                self._rows += len(tensor)
                self._write(k="rows", r="input", p=self._stack[-1][1], **self.store.rows(tensor))

    def _hear(self, path: str, number: int, place: str) -> Any:
        step = self.step

        def heard(gradient: Tensor) -> None:
            if self._off or self.step != step:  # of a parameter that a module returned
                return
            try:
                self._write(k="grad", p=path, n=number, q=place, x=[self._tensor(gradient)])
            except Exception as error:
                observe.failed(error)

        return heard

    # --- backward, step, the rest

    def backward_begins(self, losses: Sequence[Tensor]) -> None:
        if self.store is None:
            return
        self._evaluating = self._looking = False
        with self._quietly():
            for loss in losses:
                self._pulse["loss"].append([self.store.numbers(loss), number(loss)])
            if self._recording():
                held = [
                    weight.grad is not None and bool(weight.grad.count_nonzero())
                    for _, root in self.names.roots() for weight in root.parameters()
                ]  # fmt: skip
                self._write(k="loss", x=[self._tensor(loss) for loss in losses], held=sum(held))
        if self._recording():
            self._watch_operators(True)

    def backward_ends(self) -> None:
        self._watch_operators(False)

    def step_begins(self, step: int, optimiser: Optimizer) -> None:
        self._busy = True  # what the optimiser calls is seen in what it leaves
        number = self._optimisers.setdefault(id(optimiser), len(self._optimisers))
        named = self.names.parameters(optimiser)
        self._settings_of(optimiser, number, named)
        if step in self.full:
            for name, weight in named:
                self._write(k="pgrad", p=name, x=[self._tensor(weight.grad)] if (
                    weight.grad is not None) else [])  # fmt: skip

    def step_ends(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        if self.store is None:
            return
        with self._quietly():
            self._end_step(step, optimiser, skipped=skipped)
        self._busy = False
        if self.last and self.step >= self.last:
            self.ends(cut=True)
            os._exit(0)  # the script would train on; what it leaves is nobody's

    def _end_step(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        assert self.store is not None
        self.store.forget()
        named = self.names.parameters(optimiser)
        if step in self.full:
            for name, weight in named:
                for key, value in optimiser.state.get(weight, {}).items():
                    self._write(k="state", p=name, q=key, x=[
                        self._tensor(tensor) for _, tensor in tensors(value)], v=simple(value)
                    )  # fmt: skip
            for name, weight in named:
                self._write(k="param", p=name, x=[self._tensor(weight)])
            for _, root in self.names.roots():
                prefix = self.names.of(root)
                for name, buffer in root.named_buffers():
                    self._write(k="buffer", p=prefix + name, x=[self._tensor(buffer)])
        marks = "".join(self.store.numbers(weight) for _, weight in named)
        self._write(
            k="pulse", batch=data_hash("".join(self._pulse["batch"]).encode()),
            loss=self._pulse["loss"], params=data_hash(marks.encode()), random=generators(),
            skipped=skipped, size=norm([weight for _, weight in named]),
        )  # fmt: skip
        self.store.forget()
        self.store.flush()
        self._events.flush()
        self.step = step + 1
        self._begin()

    def _settings_of(
        self, optimiser: Optimizer, number: int, named: Sequence[tuple[str, Tensor]]
    ) -> None:
        """The optimiser's settings, where they have changed, and which parameters have which."""
        now = groups(optimiser)
        kind = type(optimiser)
        said = json.dumps([kind.__qualname__, now])
        if self._hyper.get(number) == said:
            return
        self._hyper[number] = said
        names = iter(name for name, _ in named)
        self._write(
            k="hyper", p=str(number), c=f"{kind.__module__}.{kind.__qualname__}", v=now,
            of=[[next(names) for _ in group["params"]] for group in optimiser.param_groups],
            f=code(kind, "step"),
            w=getattr(optimiser, "_celedger_site", -1), at=self.sites.here(skip=2),
        )  # fmt: skip

    def reported(self, epoch: int | None, values: Mapping[str, object]) -> None:
        numbers = {}
        with self._quietly():
            for name, value in values.items():
                try:
                    numbers[name] = float(value)  # type: ignore[arg-type]
                except (TypeError, ValueError, RuntimeError):
                    continue
        self._evaluating = self._looking = False
        self._write(k="report", e=epoch, v={n: simple(v) for n, v in numbers.items()})

    def gives_up(self) -> None:
        self._silence()
        self._watch_operators(False)
        for casting in self._casting.values():
            casting.__exit__(None, None, None)
        self._casting = {}

    def ends(self, cut: bool = False) -> None:
        if self._events is None or self._off:
            return
        self._off = True
        files = {
            str(Path.cwd() / str(getattr(module, "__file__", None) or ""))
            for module in list(sys.modules.values())
        }  # fmt: skip
        self._write(k="end", cut=cut, inside=[path for _, path, _ in self._stack], files=sorted(
            name for name in files if name.endswith(".py") and "site-packages" not in name
        ))  # fmt: skip
        self._events.flush()
        if self.store is not None:
            self.store.flush()

    def _watch_operators(self, on: bool) -> None:
        """With `operators`, what torch dispatches in a root's forward pass and in the backward."""
        if not self.options.get("operators"):
            return
        if on and self._dispatch is None:
            self._dispatch = operators(self._dispatched)
            self._dispatch.__enter__()
        elif not on and self._dispatch is not None:
            self._dispatch.__exit__(None, None, None)
            self._dispatch = None

    def _dispatched(self, function: Any, args: Any, kwargs: Any, done: Any) -> None:
        if self._busy or self._off:
            return
        self._busy = True
        try:
            found = [self._tensor(tensor) for _, tensor in tensors(done)]
            if found:
                self._write(
                    k="operator", p=self._stack[-1][1] if self._stack else None,
                    o=str(function), l=literals(args, kwargs), x=found,
                    i=[self._tensor(t).get("h") for _, t in tensors([args, list(kwargs.values())])],
                )  # fmt: skip
        except Exception as error:
            observe.failed(error)
        finally:
            self._busy = False

    # --- writing

    def _tensor(self, tensor: Tensor) -> dict[str, Any]:
        assert self.store is not None
        with self._quietly():
            return self.store.describe(tensor)

    def _drawn(self) -> dict[str, str]:
        """`y`, the state of torch's generators, where it has changed since it was last asked."""
        now = torch_generators()
        if now == self._random:
            return {}
        before, self._random = self._random, now
        return {"y": now, "z": before}

    def _site(self, number: int, frames: list[Frame]) -> None:
        self._write(k="site", id=number, s=frames)

    def _write(self, **event: Any) -> None:
        if self._events is None:
            self._early.append(event)
            return
        if event["k"] not in ("site", "start", "module", "init", "draw"):
            event["t"] = self.step
            if self._evaluating:
                event["e"] = self._evaluations
        self._events.write(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n")


def _made(tensor: Tensor) -> bool:
    """Whether it has a shape: that of a lazy module has none before its first forward pass."""
    from torch.nn.parameter import is_lazy

    return not is_lazy(tensor)
