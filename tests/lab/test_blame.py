"""The part of a commit that a finding has to do with is found by the lines that ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from conftest import make_project
from lab.made_traces import Writer

from celedger.lab.diagnose.blame import blame, blame_lines
from celedger.lab.diagnose.changed_values import Verdict
from celedger.lab.diagnose.code_change import CodeChange
from celedger.lab.diagnose.difference import TraceComparison
from celedger.lab.diagnose.explain import code_change
from celedger.lab.diagnose.finding import (
    CodePlace,
    ExplainFinding,
    FindingPhase,
    Sureness,
)
from celedger.lab.diagnose.inexact_trainings import unexplained
from celedger.lab.diagnose.trace import Frame, Trace
from celedger.repo import Repository

BEFORE = """\
import torch


def mask(t):
    return torch.ones(t, t).tril(0)


def other():
    pass
"""


def changed(tmp_path: Path) -> CodeChange:
    project = make_project(tmp_path / "project")
    old = project.commit("one", {"net.py": BEFORE, "gone.py": "x = 1\n", 'odd "name.py': "a\n"})
    (project.root / "gone.py").unlink()
    after = BEFORE.replace("tril(0)", "tril(1)").replace("import torch", "import torch  # now")
    new = project.commit(
        "two", {"net.py": after, "new.py": "--- a\n+++ b\n", 'odd "name.py': "b\n"}
    )
    return code_change(Repository.open(project.root), old, new)


def edited(tmp_path: Path, file: str, before: str, after: str) -> CodeChange:
    """Return the change of one file."""
    project = make_project(tmp_path / "project")
    old, new = (project.commit(name, {file: text}) for name, text in (("1", before), ("2", after)))
    return code_change(Repository.open(project.root), old, new)


def test_hunks_have_their_files_and_lines(tmp_path: Path) -> None:
    found = {(h.old, h.new): h for h in changed(tmp_path).hunks}
    assert ("gone.py", "") in found
    assert found["", "new.py"].lines == ("+--- a", "++++ b")
    assert found['odd "name.py', 'odd "name.py'].lines == ("-a", "+b")  # git quotes it
    (mask,) = [h for h in changed(tmp_path / "again").hunks if "tril(1)" in "".join(h.lines)]
    assert (mask.new_start, mask.new_count, mask.around) == (5, 1, "def mask(t):")


def test_the_version_of_a_package_explains_nothing(tmp_path: Path) -> None:
    """It was the first to compute another value, and was blamed for a metric of evaluation."""
    project = make_project(tmp_path / "project")
    old = project.commit("one", {"__init__.py": '__version__ = "1.6.1"\nSIZE = 1\n'})
    new = project.commit("two", {"__init__.py": '__version__ = "1.6.2"\nSIZE = 1\n'})
    size = project.commit("three", {"__init__.py": '__version__ = "1.6.2"\nSIZE = 2\n'})
    repository = Repository.open(project.root)
    for ends, is_same in (((old, new), True), ((new, size), False)):
        change = code_change(repository, *ends)
        assert [change.same(hunk) for hunk in change.hunks] == [is_same]


def test_a_setting_is_blamed_where_a_file_of_settings_has_it(tmp_path: Path) -> None:
    """The answer was that a commit which changed this line alone does not touch the place."""
    before = "weight_decay: 0.01\nepochs: 8\n"
    change = edited(tmp_path, "default.yaml", before, before.replace("0.01", "1.2"))
    place = CodePlace("b", "optimiser made", (Frame(str(tmp_path / "tree/train.py"), 25, "main"),))
    finding = ExplainFinding(
        FindingPhase.UPDATE, 0, "", "AdamW", "weight_decay", "settings", "settings differ",
        places=(place,), sureness=Sureness.SURE,
    )  # fmt: skip
    opened = [str(tmp_path / "tree/default.yaml")]
    for tensor, closeness in (("weight_decay", 1), ("lr", 2)):
        about = replace(finding, tensor=tensor)
        _, blamed = blame(about, change, tmp_path / "tree", opened)
        assert [(one.hunk.new, one.closeness) for one in blamed] == [("default.yaml", closeness)]
        assert blame(about, change, tmp_path / "tree", [])[1] == ()


def test_the_line_that_ran_is_blamed_first_and_comments_last(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    place = CodePlace("b", "call", (Frame(str(tree / "net.py"), 5, "mask"),))
    finding = ExplainFinding(
        FindingPhase.FORWARD, 0, "", "Net", "output", "code", "it differs", places=(place,),
        sureness=Sureness.LIKELY,
    )  # fmt: skip
    judged, blamed = blame(finding, changed(tmp_path), tree, [str(tree / "net.py")])
    assert [one.closeness for one in blamed] == [0, 4]
    assert "tril(1)" in "".join(blamed[0].hunk.lines)
    assert judged.sureness == "likely"
    apart = [h for h in changed(tmp_path / "more").hunks if h.new == "new.py"]
    assert blame(finding, CodeChange(apart), tree, [])[0].sureness == "unsure"


def test_the_line_that_calls_another_module_comes_before_what_is_inside_of_it(
    tmp_path: Path,
) -> None:
    tree, change = tmp_path / "tree", changed(tmp_path)
    place = CodePlace("b", "caller", (Frame(str(tree / "net.py"), 5, "mask"),))
    finding = ExplainFinding(
        FindingPhase.FORWARD, 0, "", "Net", "output", "called", "it differs", places=(place,)
    )
    inside = next(hunk for hunk in change.hunks if hunk.new == "new.py")
    files = [str(tree / "net.py"), str(tree / "new.py")]
    _, blamed = blame(finding, change, tree, files, {inside: Verdict.FIRST})
    assert "tril(1)" in "".join(blamed[0].hunk.lines)


def test_a_hunk_beside_the_function_that_ran_is_not_near_and_new_names_come_last(
    tmp_path: Path,
) -> None:
    old = BEFORE.replace("    pass\n", "    return mask(2), net.body, 1\n")
    old = old.replace("import torch\n", "import torch\n\nx = net.body\n")
    new = old.replace("def other():", "def other(n=1):").replace("net.body", "net.trunk")
    change, tree = edited(tmp_path, "net.py", old, new), tmp_path / "tree"
    place = CodePlace("b", "call", (Frame(str(tree / "net.py"), 7, "mask"),))
    finding = ExplainFinding(
        FindingPhase.FORWARD, 0, "", "Net", "output", "code", "it differs", places=(place,)
    )
    _, blamed = blame(finding, change, tree, [str(tree / "net.py")])
    assert [one.closeness for one in blamed] == [2, 2]  # `other` stands three lines below
    assert [change.renames(one.hunk) for one in blamed] == [False, True]


def test_the_hunk_whose_lines_take_longer_with_what_they_call_is_first(tmp_path: Path) -> None:
    before = """\
def layer(x, times=1):
    for _ in range(times):
        x = x + 1
    return x

def fit(x):
    y = layer(x)
    z = layer(y)
    return z
"""
    after = before.replace("times=1", "times=9").replace("y = layer(x)", "y = layer(+x)")
    after = after.replace("return z", "return +z")
    change = edited(tmp_path, "net.py", before, after)

    def seconds(*rows: tuple[str, int, float]) -> dict[tuple[str, str, int], float]:
        return {("net.py", function, line): spent for function, line, spent in rows}

    usual = seconds(("layer", 3, 1.0), ("fit", 7, 0.5), ("fit", 8, 0.5), ("fit", 9, 0.1))
    slow = seconds(("layer", 3, 9.0), ("fit", 7, 4.5), ("fit", 8, 4.5), ("fit", 9, 0.1))
    blamed = blame_lines(usual, slow, change)
    assert [(one.hunk.new_start, one.closeness) for one in blamed] == [(1, 1), (7, 1), (9, 3)]
    caller = seconds(("layer", 3, 1.2), ("fit", 7, 0.5), ("fit", 8, 0.5), ("fit", 9, 4.0))
    assert blame_lines(usual, caller, change)[0].hunk.new_start == 9
    assert {one.closeness for one in blame_lines(usual, usual, change)} == {3}


def test_between_devices_only_what_rounding_does_not_explain_is_named(tmp_path: Path) -> None:
    """An H100 beside the CPU: what is computed before the first step differs in its last bits."""
    import numpy as np

    draw = np.random.default_rng(0)
    weight, x, y = (draw.normal(size=200) for _ in range(3))

    def side(name: str, weight: Any, x: Any, y: Any, *, drew: bool = False) -> Trace:
        w = Writer(tmp_path / name)
        w.module("", "net.Net")
        w.module("head", "torch.nn.LSTM")
        w.init("head.weight", weight)
        w.enter("", x)
        w.enter("head", x, under="")
        w.call("randn_like", "head", x, **({"y": name, "z": "0"} if drew else {}))
        w.leave("head", y)
        return w.done()

    def found(**changed: Any) -> ExplainFinding | None:
        one, drew = {"weight": weight, "x": x, "y": y}, changed.pop("drew", False)
        name = str(len(list(tmp_path.iterdir())))
        sides = [
            side(f"{name}{n}", **each, drew=drew) for n, each in enumerate((one, one | changed))
        ]
        return unexplained(TraceComparison(*sides), None)

    assert found() is None
    assert found(weight=weight * (1 + 1.4e-7 * draw.normal(size=200))) is None
    assert found(x=x * (1 + 1e-7 * draw.normal(size=200))) is None
    assert found(y=y * (1 + 4.5e-6 * draw.normal(size=200))) is None  # 64 characters of an LSTM
    for name, value in (("weight", weight), ("x", x), ("y", y)):
        far = found(**{name: value * (1 + 1e-3 * draw.normal(size=200))})
        assert far is not None
        assert "drawn before it" not in far.sentence
    drawn = found(y=draw.normal(size=200), drew=True)
    assert drawn is not None
    assert "random numbers are drawn before it" in drawn.sentence


def test_the_innermost_frame_comes_before_its_callers_and_a_moved_function_last(
    tmp_path: Path,
) -> None:
    before = (
        "import torch\n\n\ndef loss(x):\n    dims = (1, 2)\n    y = x * x\n    z = y + y\n"
        "    return z.sum(dims)\n\n\ndef rows(x):\n    return x\n\n\ndef fit(x):\n"
        "    value = loss(x)\n    return value\n\n\nfit(1)\n"
    )
    after = before.replace("(1, 2)", "(0, 1, 2)").replace("value = loss(x)", "value = loss( x )")
    after = after.replace("def rows(x):\n    return x\n\n\n", "")
    after = after.replace("fit(1)\n", "def rows(x):\n    return x\n\n\nfit(1)  # now\n")
    change, tree = edited(tmp_path, "fit.py", before, after), tmp_path / "tree"
    file = str(tree / "fit.py")
    frames = Frame(file, 8, "loss"), Frame(file, 12, "fit"), Frame(file, 20, "<module>")
    finding = ExplainFinding(
        FindingPhase.LOSS, 0, None, "", "loss", "argument", "it differs",
        places=(CodePlace("b", "call", frames),), sureness=Sureness.SURE,
    )  # fmt: skip
    _, blamed = blame(finding, change, tree, [file])
    assert "(0, 1, 2)" in "".join(blamed[0].hunk.lines)
    assert {one.closeness for one in blamed[1:]} == {4}


def test_a_function_that_the_line_calls_comes_before_the_callers_of_the_line(
    tmp_path: Path,
) -> None:
    """A compiled function has no frames."""
    before = (
        "import torch\n\n\n@torch.jit.script\ndef scan(x):\n    return x * 2\n\n\n"
        "def forward(x):\n    return scan(x) + 1\n\n\ndef fit(x):\n    n = 1\n"
        "    return forward(x) * n\n"
    )
    after = before.replace("x * 2", "x * 3").replace("n = 1", "n = 1.0")
    change, tree = edited(tmp_path, "fit.py", before, after), tmp_path / "tree"
    file = str(tree / "fit.py")
    frames = Frame(file, 10, "forward"), Frame(file, 15, "fit")
    finding = ExplainFinding(
        FindingPhase.FORWARD, 0, "", "Net", "output", "operands", "it differs",
        places=(CodePlace("b", "call", frames),),
    )  # fmt: skip
    _, blamed = blame(finding, change, tree, [file])
    assert ["x * 3" in one.hunk.lines[-1] for one in blamed] == [True, False]


def test_a_file_of_settings_that_was_read_comes_before_what_is_given_other_values(
    tmp_path: Path,
) -> None:
    tree, code = tmp_path / "tree", "def f(x):\n    y = x\n    return y\n"
    files = {"fit.py": code, "fit.json": '{"rows": 32,\n "missing": 0.3}\n', "notes.md": "32\n"}
    project = make_project(tmp_path / "project")
    old = project.commit("1", files)
    other = {"fit.py": code.replace("y = x", "y = +x"), "notes.md": "64\n"}
    place = CodePlace("b", "call", (Frame(str(tree / "fit.py"), 2, "f"),))
    opened = [str(tree / name) for name in ("fit.py", "fit.json")]
    for planted, sentence in (("32", "the batch has 64 rows instead of 32"), ("0.3", "`sub` is …")):
        text = files["fit.json"].replace(planted, "64" if planted == "32" else "0.6")
        new = project.commit(planted, {**other, "fit.json": text})
        change = code_change(Repository.open(project.root), old, new)
        finding = ExplainFinding(
            FindingPhase.DATA, 0, "", "Net", "input", "batch-size", sentence, places=(place,)
        )
        of_code = next(hunk for hunk in change.hunks if hunk.new == "fit.py")
        verdict = Verdict.UNKNOWN if planted == "32" else Verdict.LATER
        _, blamed = blame(finding, change, tree, opened, {of_code: verdict})
        assert [one.hunk.new for one in blamed] == ["fit.json", "fit.py"]
