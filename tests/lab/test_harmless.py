"""A hunk whose calls gave equal bits on both sides before the first difference is no culprit."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.made_traces import Writer

from celedger.lab.diagnose.code_change import CodeChange
from celedger.lab.diagnose.difference import Front, TraceComparison
from celedger.lab.diagnose.harmless import harmless_hunks
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
    assert harmless_hunks(comparison, front, change(), tree) == {GATE}


def test_results_that_differ_acquit_nothing(tmp_path: Path) -> None:
    comparison, front, tree = compared(tmp_path, (0.5, 0.6))
    assert harmless_hunks(comparison, front, change(), tree) == set()


def test_a_gradient_that_differs_first_acquits_nothing(tmp_path: Path) -> None:
    comparison, front, tree = compared(tmp_path, (0.5, 0.5))
    for kind in ("grad", "pgrad", "missing"):
        assert not harmless_hunks(comparison, front._replace(kind=kind), change(), tree)


@pytest.mark.parametrize(
    "line", ["    gate = x.sigmoid(); self.scale = 2\n    self.scale = 3", "    if x.any():"]
)
def test_a_statement_that_called_nothing_is_not_acquitted(line: str, tmp_path: Path) -> None:
    comparison, front, tree = compared(tmp_path, (0.5, 0.5))
    new = NEW.replace("    gate = x.sigmoid()", line)
    count = line.count("\n") + 1
    added = tuple(f"+{text}" for text in line.splitlines())
    hunk = Hunk("net.py", "net.py", 2, 1, 2, count, "", ("-    gate = torch.sigmoid(x)", *added))
    assert harmless_hunks(comparison, front, change(OLD, new, hunk), tree) == set()
