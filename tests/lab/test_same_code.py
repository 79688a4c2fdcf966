"""Which part of a change means the same on both sides."""

from __future__ import annotations

from pathlib import Path

from conftest import make_project

from celedger.lab.diagnose.code_change import CodeChange
from celedger.lab.diagnose.explain import code_change
from celedger.repo import Repository

BEFORE = """\
import torch


class Net:
    def __init__(self, stem):
        self.stem = stem

    def forward(self, x):
        return torch.relu(self.stem(x))


def rows(x):
    return x.flatten(1)


def loss(x, y):
    return (x - y).mean()
"""


def change_of(tmp_path: Path, before: str, after: str) -> CodeChange:
    project = make_project(tmp_path)
    old, new = (project.commit(text[-9:], {"net.py": text}) for text in (before, after))
    return code_change(Repository.open(project.root), old, new)


def changes(tmp_path: Path, *edits: tuple[str, str]) -> dict[str, bool]:
    """Return, by a line of each hunk, whether it means the same on both sides."""
    after = BEFORE
    for old, new in edits:
        assert old in after
        after = after.replace(old, new)
    change = change_of(tmp_path, BEFORE, after)
    return {hunk.lines[0][1:].strip(): change.same(hunk) for hunk in change.hunks}


def test_comments_and_docstrings_mean_nothing(tmp_path: Path) -> None:
    edits = ("import torch\n", "import torch  # 2.0\n"), ("mean()\n", 'mean()\n\n\n# the end "\n')
    docstring = "def rows(x):\n", 'def rows(x):\n    """Rows.\n\n    Flat."""\n\n'
    assert set(changes(tmp_path, *edits, docstring).values()) == {True}


def test_a_new_function_leaves_no_block_but_its_own(tmp_path: Path) -> None:
    """Its `return` was taken for a way out of what the other side goes on with, and blamed first:
    a loss that lost a gradient behind a function that was taken out of another."""
    body = "        return torch.relu(self.stem(x))\n"
    early = change_of(
        tmp_path / "early", BEFORE, BEFORE.replace(body, f"        if x is None:\n    {body}{body}")
    )
    assert [early.redirects(hunk) for hunk in early.hunks] == [True]
    taken = BEFORE.replace("x.flatten(1)", "flat(x)")
    taken = taken.replace("def rows", "def flat(x):\n    return x.flatten(1)\n\n\ndef rows")
    change = change_of(tmp_path / "taken", BEFORE, taken)
    assert not any(change.redirects(hunk) for hunk in change.hunks)


def test_what_moved_as_a_whole_means_the_same(tmp_path: Path) -> None:
    block = "def rows(x):\n    return x.flatten(1)\n"
    moved = changes(tmp_path, (f"{block}\n\n", ""), ("class Net", f"{block}\n\nclass Net"))
    assert set(moved.values()) == {True}


def test_a_line_at_another_depth_is_a_change(tmp_path: Path) -> None:
    other = "    if x is None:\n        return 0\n    return x.flatten(1)\n"
    assert False in changes(tmp_path, ("    return x.flatten(1)\n", other)).values()


def test_a_line_at_another_depth_is_no_other_name(tmp_path: Path) -> None:
    before = "def main():\n    for x in range(2):\n        work(x)\n    step()\n"
    change = change_of(tmp_path, before, before.replace("    step", "        step"))
    assert [change.renames(hunk) for hunk in change.hunks] == [False]


def test_a_function_that_nothing_names_means_nothing(tmp_path: Path) -> None:
    unused = "\n\ndef unused(x):\n    return x\n"
    assert set(changes(tmp_path / "a", (".mean()\n", f".mean()\n{unused}")).values()) == {True}
    used = changes(tmp_path / "b", ("(x - y).mean()\n", f"unused(x - y)\n{unused}"))
    assert False in used.values()


def test_a_line_that_is_gone_is_looked_for_in_its_own_block(tmp_path: Path) -> None:
    before = (
        "def f(x):\n    if x:\n        x = 0\n    for i in x:\n        y = h(i)\n        k(y)\n"
    )
    change = change_of(tmp_path, before, before.replace("        y = h(i)\n", ""))
    assert change.statements(change.hunks[0], "b") == [(5, 5, -1)]  # `k(y)`, not `x = 0`
