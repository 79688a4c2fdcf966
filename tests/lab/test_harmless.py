"""A hunk whose calls gave equal bits on both sides before the first difference is no culprit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lab.made_traces import Writer

from celedger.lab.diagnose.code_change import CodeChange
from celedger.lab.diagnose.difference import Front, TraceComparison
from celedger.lab.diagnose.harmless import acquitted
from celedger.lab.diagnose.trace import Trace
from celedger.repo.hunks import Hunk

OLD = """\
def forward(self, x):
    gate = torch.sigmoid(x)
    x = x * gate
    return self.last(x)
"""
NEW = OLD.replace("torch.sigmoid(x)", "x.sigmoid()").replace("x * gate", "x + gate")
GATE = Hunk("net.py", "net.py", 2, 1, 2, 1, "", (
    "-    gate = torch.sigmoid(x)", "+    gate = x.sigmoid()",
))  # fmt: skip
PRODUCT = Hunk("net.py", "net.py", 3, 1, 3, 1, "", ("-    x = x * gate", "+    x = x + gate"))
LINES = {"gate": 2, "product": 3, "last": 4}


def trace(folder: Path, tree: Path, gate: float, product: float, names: tuple[str, str]) -> Trace:
    """Return a step in which line 2 makes a gate, line 3 reads it, and line 4 calls a module."""
    told = Writer(folder)
    for number, line in enumerate(LINES.values()):
        told.site(number, (str(tree / "net.py"), line, "forward"))
    told.module("last")
    given, made = (told.tensor([value])["h"] for value in (1.0, gate))
    told.call(names[0], None, [gate], i=[given], site=0)
    told.call(names[1], None, [product], i=[given, made], site=1)
    told.events.append({
        "k": "enter", "p": "last", "n": 0, "c": "", "tr": True, "u": None, "ac": None, "w": 2,
        "t": 0, "x": [told.tensor([product])],
    })  # fmt: skip
    told.leave("last", [product * 2])
    told.learn(product, {"w": [product]}, {"w": [product]})
    return told.done()


def compared(tmp_path: Path, gates: tuple[float, float]) -> tuple[TraceComparison, Front, Path]:
    tree = tmp_path / "tree"
    a = trace(tmp_path / "a", tree, gates[0], 3.0, ("sigmoid", "mul"))
    b = trace(tmp_path / "b", tree, gates[1], 4.0, ("sigmoid", "add"))
    comparison = TraceComparison(a, b)
    front = comparison.front()
    assert front is not None
    return comparison, front, tree


def change(old: str = OLD, new: str = NEW, *hunks: Hunk) -> CodeChange:
    return CodeChange(hunks or (GATE, PRODUCT), ({"net.py": old}, {"net.py": new}))


def test_equal_results_acquit_and_other_results_do_not(tmp_path: Path) -> None:
    comparison, front, tree = compared(tmp_path, (0.5, 0.5))
    assert acquitted(comparison, front, change(), tree).equal == {GATE}


def test_results_that_differ_acquit_nothing(tmp_path: Path) -> None:
    comparison, front, tree = compared(tmp_path, (0.5, 0.6))
    assert acquitted(comparison, front, change(), tree).equal == set()


def test_before_a_gradient_only_equal_calls_acquit(tmp_path: Path) -> None:
    comparison, front, tree = compared(tmp_path, (0.5, 0.5))
    for kind in ("grad", "pgrad", "missing"):
        assert acquitted(comparison, front._replace(kind=kind), change(), tree).equal == {GATE}
    b = trace(tmp_path / "c", tree, 0.5, 4.0, ("detach", "add"))
    other = TraceComparison(comparison.a, b)
    assert not acquitted(other, front._replace(kind="grad"), change(), tree).equal


@pytest.mark.parametrize(
    ("early", "later"),
    [([], True), ([3], False), (None, False)],
    ids=["after", "before", "unknown"],
)
def test_what_ran_only_after_the_difference_is_later(
    early: list[int] | None, later: bool, tmp_path: Path
) -> None:
    old = OLD.replace("return", "x =") + "    return x.mean(0)\n"
    new = old.replace("mean(0)", "mean(dim=0)").replace("x * gate", "x + gate")
    hunk = Hunk("net.py", "net.py", 5, 1, 5, 1, "", (
        "-    return x.mean(0)", "+    return x.mean(dim=0)",
    ))  # fmt: skip
    tree, traces = tmp_path / "tree", []
    for side, product in (("a", 3.0), ("b", 4.0)):
        read = trace(tmp_path / side, tree, 0.5, product, ("sigmoid", "mul"))
        told = Writer(tmp_path / f"{side}-more")
        told.site(3, (str(tree / "net.py"), 5, "forward"))
        told.add("early", s=early)
        told.call("mean", None, [product], site=3)
        more = told.done()
        at = len(read.events)
        events = [replace(event, order=at + n) for n, event in enumerate(more.events)]
        sites = {**read.sites, **more.sites}
        traces.append(replace(read, events=(*read.events, *events), sites=sites))
    comparison = TraceComparison(*traces)
    front = comparison.front()
    assert front is not None
    spared = acquitted(comparison, front, change(old, new, hunk, PRODUCT), tree)
    assert spared.later == ({hunk} if later else set())


@pytest.mark.parametrize(
    "line", ["    gate = x.sigmoid(); self.scale = 2\n    self.scale = 3", "    if x.any():"]
)
def test_a_statement_that_called_nothing_is_not_acquitted(line: str, tmp_path: Path) -> None:
    comparison, front, tree = compared(tmp_path, (0.5, 0.5))
    new = NEW.replace("    gate = x.sigmoid()", line)
    count = line.count("\n") + 1
    added = tuple(f"+{text}" for text in line.splitlines())
    hunk = Hunk("net.py", "net.py", 2, 1, 2, count, "", ("-    gate = torch.sigmoid(x)", *added))
    assert acquitted(comparison, front, change(OLD, new, hunk), tree).equal == set()
