"""Which part of a change means the same on both sides."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from conftest import make_project

from celedger.lab.diagnose.code_change import CodeChange, SourceText
from celedger.lab.diagnose.explain import code_change
from celedger.repo import Repository
from celedger.repo.hunks import Hunk

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


def changes(tmp_path: Path, *edits: tuple[str, str]) -> dict[str, bool]:
    """Return, by a line of each hunk, whether it means the same on both sides."""
    after = BEFORE
    for old, new in edits:
        assert old in after
        after = after.replace(old, new)
    project = make_project(tmp_path)
    old, new = project.commit("one", {"net.py": BEFORE}), project.commit("two", {"net.py": after})
    change = code_change(Repository.open(project.root), old, new)
    return {hunk.lines[0][1:].strip(): change.same(hunk) for hunk in change.hunks}


def test_comments_and_docstrings_mean_nothing(tmp_path: Path) -> None:
    edits = ("import torch\n", "import torch  # 2.0\n"), ("mean()\n", 'mean()\n\n\n# the end "\n')
    docstring = "def rows(x):\n", 'def rows(x):\n    """Rows.\n\n    Flat."""\n\n'
    assert set(changes(tmp_path, *edits, docstring).values()) == {True}


def test_what_moved_as_a_whole_means_the_same(tmp_path: Path) -> None:
    block = "def rows(x):\n    return x.flatten(1)\n"
    moved = changes(tmp_path, (f"{block}\n\n", ""), ("class Net", f"{block}\n\nclass Net"))
    assert set(moved.values()) == {True}


def test_a_line_at_another_depth_is_a_change(tmp_path: Path) -> None:
    other = "    if x is None:\n        return 0\n    return x.flatten(1)\n"
    assert False in changes(tmp_path, ("    return x.flatten(1)\n", other)).values()


def test_a_new_name_of_ones_own_means_the_same_and_of_a_library_does_not(tmp_path: Path) -> None:
    assert set(changes(tmp_path / "own", ("stem", "inc")).values()) == {True}
    assert set(changes(tmp_path / "torch", ("relu", "gelu")).values()) == {False}
    assert set(changes(tmp_path / "method", ("mean", "sum")).values()) == {False}


def test_a_function_that_nothing_names_means_nothing(tmp_path: Path) -> None:
    unused = "\n\ndef unused(x):\n    return x\n"
    assert set(changes(tmp_path / "a", (".mean()\n", f".mean()\n{unused}")).values()) == {True}
    used = changes(tmp_path / "b", ("(x - y).mean()\n", f"unused(x - y)\n{unused}"))
    assert False in used.values()


def test_a_variable_that_is_written_out_means_the_same(tmp_path: Path) -> None:
    named = "    flat = x.flatten(1)\n    return flat\n"
    assert set(changes(tmp_path, ("    return x.flatten(1)\n", named)).values()) == {True}


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("x = a(x)\nx = b(x)\nreturn x", "return b(a(x))", True),
        ("h = g(x)\nreturn x + h", "return x + g(x)", True),
        ("n, rows = 0, []\nreturn n, rows", "n = 0\nrows = []\nreturn n, rows", True),
        ("n = m = 0\nreturn n, m", "n = 0\nm = 0\nreturn n, m", True),
        ("n = m = []\nreturn n, m", "n = []\nm = []\nreturn n, m", False),
        ("h = g(x)\nreturn k(x) + h", "return k(x) + g(x)", False),  # g draws before k
        ("h = g(x)\nreturn [h for _ in x]", "return [g(x) for _ in x]", False),
        ("h = g(x)\ny = h\nreturn h + y", "y = g(x)\nreturn g(x) + y", False),
        ("h = g(x)\nif y: return h\nreturn h", "if y: return g(x)\nreturn h", False),
    ],
)  # fmt: skip
def test_only_a_variable_that_is_read_once_and_next_is_written_out(
    old: str, new: str, *, same: bool
) -> None:
    texts = [f"def f(x, y):\n{textwrap.indent(body, '    ')}\n" for body in (old, new)]
    left, right = ({dump for dump, _ in SourceText(text).units} for text in texts)
    assert (left == right) is same


@pytest.mark.parametrize(
    ("old", "new", "tidied"),
    [
        ("x = torch.sum(x, 1)", "x = x.sum(1)", True),
        ("h = self.f(x)\nh = h.squeeze(0)", "h = self.f(x).squeeze(0)", True),
        ("x, y = float(x), float(y)", "x, y = (float(one) for one in (x, y))", True),
        ("z = a - b", "z = b - a", False),
        ("z = amp * np.sin(x - 1)", "z = amp * np.sin(x + 1)", False),
        ("z = x.sum(1)", "z = x.sum(0)", False),
        ("z = f(query)", "z = f(support)", False),
        ("z = f(x)", "z = f(x.detach())", False),
    ],
)
def test_a_hunk_that_says_the_same_things_is_tidied(old: str, new: str, *, tidied: bool) -> None:
    texts = [f"import torch\nimport numpy as np\n{line}\n" for line in (old, new)]
    lines = (*(f"-{line}" for line in old.splitlines()), *(f"+{line}" for line in new.splitlines()))
    before, after = len(old.splitlines()), len(new.splitlines())
    hunk = Hunk("net.py", "net.py", 3, before, 3, after, "", lines)
    change = CodeChange([hunk], ({"net.py": texts[0]}, {"net.py": texts[1]}))
    assert change.tidied(hunk) is tidied
