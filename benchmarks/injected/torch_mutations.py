"""Breaks a training as a whole, whatever it trains: `rate` multiplies every learning rate by 0,
`detached:LAYER` passes no gradient to the layers whose name begins so."""

from __future__ import annotations

from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


def mutate(what: str) -> None:
    if what == "rate":
        _without_rate()
    else:
        _detach(what.removeprefix("detached:"))


def _without_rate() -> None:
    rates: dict[int, list[float]] = {}

    def before(optimiser: Optimizer, *_: object) -> None:
        rates[id(optimiser)] = [group.get("lr", 0.0) for group in optimiser.param_groups]
        for group in optimiser.param_groups:
            if "lr" in group:
                group["lr"] = 0.0

    def after(optimiser: Optimizer, *_: object) -> None:
        for group, rate in zip(optimiser.param_groups, rates[id(optimiser)], strict=True):
            if "lr" in group:
                group["lr"] = rate

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _detach(layer: str) -> None:
    import celedger.child.torch as harness

    right = harness.prepare

    def prepare(*args: object) -> object:
        prepared = right(*args)
        model: nn.Module = prepared[0]
        weights = [w for name, w in model.named_parameters() if name.startswith(layer)]
        if not weights:
            there = [name for name, _ in model.named_parameters()]
            raise SystemExit(f"no layer is named {layer}: {there}")
        for weight in weights:
            if weight.requires_grad:
                weight.register_hook(lambda gradient: gradient * 0)
        return prepared

    harness.prepare = prepare
