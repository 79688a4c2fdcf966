"""The lines that a call's arguments may come from."""

from __future__ import annotations

import ast

from celedger.lab.diagnose.code_change import CodeChange, backward_slice, setting_slice, users

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
    distances = backward_slice(
        ast.parse(TEXT), lines.index("            y = self.net(x)") + 1
    ).lines
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


def test_a_slice_goes_on_in_the_changed_files_and_to_the_caller() -> None:
    main = """\
from data import clean, blocks
def fit(net, rows):
    return net(rows)
def main():
    data = clean(blocks(7))
    rewards = data.zeros()
    rewards[0] = 1
    fit(model, rewards)
"""
    data = """\
def blocks(n):
    return n + 1
def clean(x):
    return scaled(x)
def scaled(x):
    return 2 * x
def plot(x):
    return x
class Clip:
    def __call__(self, net):
        net.rows = 0
"""
    change = CodeChange((), ({}, {"data.py": data}), lambda side, path: {"main.py": main}[path])
    assert change.from_caller("b", "main.py", 3) == 1
    assert change.from_caller("b", "main.py", 8) is None
    sources = change.sources("b", "main.py", 8)
    assert sources["main.py", 7] == sources["main.py", 6] == 1  # a store into it, and its binding
    reached = {line for path, line in sources if path == "data.py"}
    assert reached == {1, 2, 3, 4, 5, 6}
    assert sources["data.py", 1] < sources["data.py", 6]


def test_a_setting_is_written_in_several_ways() -> None:
    text = """\
for p in head:
    p.requires_grad = True
base.requires_grad_(False)
groups = [{"params": a, "lr": rate}]
optimiser = Adam(groups, lr=0.1)
plan = Plan(optimiser)
optimiser.step()
print(plan)
"""
    tree = ast.parse(text)
    assert {2, 3} <= setting_slice(tree, "requires_grad").keys()
    assert {4, 5} <= setting_slice(tree, "lr").keys()
    assert users(tree, 5) == users(tree, 7) == {6}
