"""The lines that a call's arguments may come from."""

from __future__ import annotations

import ast

from celedger.lab.diagnose.code_change import backward_slice, setting_slice

TEXT = """\
import torch

def rows(seed):
    return torch.arange(seed)

def other():
    pass

class Fit:
    def __init__(self, seed):
        self.loader = torch.split(rows(seed), 4)
        self.net = torch.nn.Linear(4, 1)

    def epoch(self):
        rate = 0.1
        self.loader.shuffle()
        for x in self.loader:
            y = self.net(x)
            y.mul_(rate)
"""


def test_a_slice_has_what_makes_the_arguments_and_nothing_else() -> None:
    lines = TEXT.splitlines()
    distances = backward_slice(ast.parse(TEXT), lines.index("            y = self.net(x)") + 1)
    named = {lines[number - 1].strip(): far for number, far in distances.items()}
    assert named["for x in self.loader:"] == 1
    assert named["self.loader.shuffle()"] == 2
    assert named["self.loader = torch.split(rows(seed), 4)"] == 2
    assert named["return torch.arange(seed)"] == 3
    assert "pass" not in named
    assert "rate = 0.1" not in named
    assert "self.net = torch.nn.Linear(4, 1)" not in named


def test_a_setting_that_the_loop_writes_comes_from_the_function_that_computes_it() -> None:
    text = """\
def rate(step):
    return step / 4

def other(step):
    return 1

def fit(groups):
    step = 0
    for group in groups:
        group["lr"] = rate(step)
        group["betas"] = other(step)
"""
    lines = text.splitlines()
    named = {lines[at - 1].strip(): far for at, far in setting_slice(ast.parse(text), "lr").items()}
    assert named['group["lr"] = rate(step)'] == 0
    assert named["return step / 4"] == named["step = 0"] == 1
    assert not {"return 1", 'group["betas"] = other(step)'} & named.keys()
