"""Parameters without a module are named by the script's own variables."""

from __future__ import annotations

from typing import Any

import pytest

from celedger.lab.probes.names import ModuleNames

torch: Any = pytest.importorskip("torch")


def tensor() -> Any:
    return torch.ones(2, requires_grad=True)


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


def names(optimiser: Any) -> list[str]:
    return [name for name, _ in ModuleNames().parameters(optimiser)]


class Model:
    def __init__(self) -> None:
        self.scale, self.layers = tensor(), [(tensor(), tensor()), (tensor(), tensor())]

    def trained(self) -> list[str]:
        return names(sgd([self.scale, self.layers[1][0]]))


def test_a_variable_is_named_before_a_position_and_a_loop_s_variable() -> None:
    w1, w2 = tensor(), tensor()
    for each in (w1, w2):
        each.requires_grad_()
    assert names(sgd([w1, w2])) == ["w1", "w2"]
    del w1, w2, each
    weights = [tensor(), tensor()]
    for each in weights:
        each.requires_grad_()
    assert names(sgd(weights)) == ["weights[0]", "weights[1]"]


def test_a_loop_s_variable_names_nothing_whatever_it_runs_over() -> None:
    params = {"w": tensor(), "b": tensor()}
    for _, (number, p) in zip(params, enumerate(params.values()), strict=True):  # noqa: B007
        p.requires_grad_()
    assert names(sgd(params.values())) == ['params["w"]', 'params["b"]']
    del params
    assert names(sgd([p]))[0].startswith("param_groups[0][0] (test_variables.py:")


def test_keys_and_attributes_are_named() -> None:
    params = {"w": tensor(), "fc.bias": tensor()}
    assert names(sgd(params.values())) == ['params["w"]', 'params["fc.bias"]']
    assert Model().trained() == ["self.scale", "self.layers[1][0]"]


def test_names_are_unique_lasting_and_fall_back_to_the_line_of_the_step() -> None:
    known = ModuleNames()

    def one() -> list[str]:
        weight = tensor()
        kept.append(sgd([weight]))
        return [name for name, _ in known.parameters(kept[-1])]

    kept: list[Any] = []
    assert (one(), one()) == (["weight"], ["weight#2"])
    assert [name for name, _ in known.parameters(kept[0])] == ["weight"]
    (position,) = names(sgd([tensor()]))
    assert position.startswith("param_groups[0][0] (test_variables.py:")
