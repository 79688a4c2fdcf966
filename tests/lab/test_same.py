"""`celedger same` through the real program, on real trainings; and the comparison of signatures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import UNCOMPILED, Done, Project, git, make_project, matrix_after
from lab.conftest import Answered

from celedger.base.model import Commit, FindingRecord
from celedger.lab.diagnose.same import LoggedCommit, Signatures, log, quick_or_last
from celedger.lab.diagnose.signature import (
    SHORT,
    STEPS,
    Scheme,
    Signature,
    first_difference,
    growth,
)
from celedger.system.warm import LAUNCHERS, end_kept, kept

SUITE = """\
[suite]
name = "tiny"
preload = ["torch"]
[metrics.val_loss]
direction = "lower"
kind = "quality"
[metrics.seconds]
direction = "lower"
kind = "speed"
[[task]]
name = "fit"
command = "{python} train.py {seed}"
[[task]]
name = "plain"
command = "{python} plain.py"
"""
TRAIN = (
    UNCOMPILED
    + """\
import time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from celedger.child import log

torch.manual_seed(int(sys.argv[1]))
rows = torch.randn(256, 8)
data = TensorDataset(rows, (rows[:, 0] > 0).long())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 2)

    def forward(self, x):
        return self.last(F.relu(self.norm(self.first(x))))


net = Net()
optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for epoch in range(3):
    net.train()
    for x, y in DataLoader(data, 32, shuffle=True):
        loss = F.cross_entropy(net(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    net.eval()
    with torch.no_grad():
        loss = F.cross_entropy(net(rows), data.tensors[1])
    log(epoch=epoch, val_loss=loss, seconds=time.time())
"""
)
SCRIPTS = {"train.py": TRAIN, "plain.py": "print('no torch')\n", "README.md": "one\n"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    made = make_project(tmp_path_factory.mktemp("same") / "project", SUITE, {"none.py": ""})
    made.commit("one", SCRIPTS)
    yield made
    end_kept(launchers(made))


def launchers(project: Project) -> Path:
    return project.root / ".git" / "celedger" / LAUNCHERS


@pytest.fixture(autouse=True)
def in_one_home(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all commands have the same variables: a fork server has those of its start."""
    monkeypatch.setenv("HOME", str(project.root.parent))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project.root.parent))


def asked(project: Project, edit: dict[str, str], *words: str) -> Done:
    """Edit the training in the working tree, and ask. `edit`: texts, and what they become."""
    text = TRAIN
    for old, new in edit.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    try:
        (project.root / "train.py").write_text(text)
        return project.run("same", "fit", *words)
    finally:
        git(project.root, "checkout", "--quiet", ".")


RENAMED = {
    "self.first = nn": "self.inner = nn", "self.first(x)": "self.inner(x)",
    "epoch in range(3)": "turn in range(3)", "epoch=epoch": "epoch=turn",
}  # fmt: skip


@pytest.mark.parametrize(
    "edit",
    matrix_after(1, [
        {"import time\n": "import time\n\n# a comment\n"},
        RENAMED,
        {"        optimiser.zero_grad()\n": "", "loss = F.cross_entropy(net(x), y)": (
            "optimiser.zero_grad()\n        output = net(x)\n"
            "        loss = nn.CrossEntropyLoss()(output, y)"
        )},
    ]),
    ids=["comment", "renamed", "modules of functions"],
)  # fmt: skip
def test_an_edit_that_keeps_the_arithmetic_is_the_same(
    edit: dict[str, str], project: Project
) -> None:
    done = asked(project, edit)
    assert (done.status, done.err) == (0, "")
    assert "fit: same bits in 6 steps; work" in done.out
    assert "not compared: epochs longer than 2 batches of a data loader, compiled code" in done.out


@pytest.mark.parametrize(
    ("edit", "sentence"),
    matrix_after(1, [
        ({"lr=0.1": "lr=0.05"}, "different from step 1: the optimiser's lr: 0.1 → 0.05"),
        ({"F.relu": "F.gelu"}, "different from step 1: what the model returns (loss"),
        ({"net.eval()": ""}, "different from step 3: the buffers of the model"),
        ({"net(rows)": "net(rows + 1)"}, "equal steps, but the val_loss it reports differs ("),
        ({"shuffle=True": "shuffle=False"}, "different from step 1: what the data loader yields"),
        (
            {"momentum=0.9": "momentum=0.9, weight_decay=1e-3"},
            "different from step 1: the optimiser's weight_decay: 0 → 0.001",
        ),
        ({"range(3)": "range(2)"}, "different from step 5: 6 steps, then 4"),
    ]),
)  # fmt: skip
def test_an_edit_of_the_numbers_is_named(
    edit: dict[str, str], sentence: str, project: Project
) -> None:
    done = asked(project, edit)
    assert done.status == 1
    assert f"fit: {sentence}" in done.out


@pytest.mark.matrix
def test_another_order_of_additions_is_called_a_rounding(project: Project) -> None:
    turned = "self.last(F.relu(self.norm(self.first(x))).flip(1).contiguous().flip(1))"
    edit = {"self.last(F.relu(self.norm(self.first(x))))": turned}
    assert asked(project, edit).status == 0  # the same numbers in the same order
    sums = {"loss = F.cross_entropy(net(x), y)": (
        "loss = F.cross_entropy(net(x), y, reduction='none').flip(0).sum() / len(x)"
    )}  # fmt: skip
    done = asked(project, sums)
    assert done.status == 1
    assert re.search(
        r"fit: other roundings from step \d, first in .* \(largest .*e-0[78]\)", done.out
    )


@pytest.mark.matrix
def test_the_module_that_differs_first_is_named_with_its_line(
    project: Project, answered: Answered
) -> None:
    own = {
        "class Net(nn.Module)": (
            "class Half(nn.Linear):\n    def forward(self, x):\n"
            "        return super().forward(x) / 2\n\n\nclass Net(nn.Module)"
        ),
        "self.last = nn.Linear": "self.last = Half",
    }
    done = asked(project, own)
    line = (
        next(n for n, text in enumerate(TRAIN.splitlines(), 1) if text.startswith("class Net")) + 1
    )
    assert f"first module that differs: last (Half), train.py:{line}" in done.out
    (task,) = answered("same", asked(project, own, "--json").out)["tasks"]
    assert task["verdict"] == "different"


@pytest.mark.matrix
def test_what_does_not_repeat_tells_nothing(tmp_path: Path) -> None:
    own = make_project(tmp_path / "project", SUITE, {"none.py": ""})
    script = TRAIN.replace("int(sys.argv[1])", "time.time_ns() % 2**60")
    own.commit("one", {**SCRIPTS, "train.py": script})
    (own.root / "train.py").write_text(script + "# edited\n")
    done = own.run("same", "fit")
    end_kept(launchers(own))
    assert done.status == 125
    says = "does not repeat its own bits (step 1, the first weights): no answer, until"
    assert f"fit: {says} the training sets its seed" in done.out


@pytest.mark.parametrize(("step", "scheme"), [(1.06, STEPS), (0.07, SHORT), (None, SHORT)])
def test_slow_steps_are_five_from_the_first_signature_on(
    step: float | None, scheme: Scheme
) -> None:
    """A short signature of x-transformers' train_copy.py took a minute: 24 steps of 1.06 s."""
    known = [SimpleNamespace(value=step)] if step is not None else []
    ledger: Any = SimpleNamespace(signatures=lambda **_: [], summaries=lambda *_, **__: known)
    task: Any = SimpleNamespace(name="copy", suite="first")
    bench: Any = None
    assert Signatures(bench, ledger, task, 0, Path()).scheme() == scheme


@pytest.mark.matrix
def test_other_work_is_told_and_counts_where_it_is_asked_for(
    project: Project, answered: Answered
) -> None:
    edit = {"        optimiser.step()\n": (
        "        optimiser.step()\n        total = 0\n        for number in range(50):\n"
        "            total += number\n        loss.item()\n"
    )}  # fmt: skip
    done = asked(project, edit)
    assert done.status == 0
    assert "work a step: " in done.out
    assert "of your lines" in done.out
    assert "0 → 1 reads of a value" in done.out
    assert asked(project, edit, "--work").status == 1
    (task,) = answered("same", asked(project, edit, "--json").out)["tasks"]
    assert task["work"]


@pytest.mark.matrix
def test_a_training_without_torch_and_one_that_fails_cannot_be_told(project: Project) -> None:
    try:
        (project.root / "plain.py").write_text("print('edited')\n")
        done = project.run("same", "plain")
    finally:
        git(project.root, "checkout", "--quiet", ".")
    assert (done.status, done.out.splitlines()[1]) == (
        125, "plain: no training step of torch was seen: use `celedger check .`",
    )  # fmt: skip
    done = asked(project, {"net = Net()": "net = Net(1)"})
    assert done.status == 125
    assert re.search(r"fit: working tree at \w+ ended after 0 steps: exit .* TypeError", done.out)
    (project.root / ".git" / "info" / "exclude").open("a").write("rows.txt\n")
    (project.root / "rows.txt").touch()
    done = asked(project, {"net = Net()": "net = Net(); open('rows.txt')"})
    assert "'rows.txt'; a trial sees only files that git tracks" in done.out


def test_nothing_runs_where_the_files_are_the_same_or_not_read(
    project: Project, answered: Answered
) -> None:
    done = project.run("same", "fit")
    assert (done.status, "the same files" in done.out) == (0, True)
    assert project.run("run", "HEAD", "--task", "fit").status == 0
    try:
        (project.root / "README.md").write_text("two\n")
        done = project.run("same", "fit", "--json")
    finally:
        git(project.root, "checkout", "--quiet", ".")
    (task,) = answered("same", done.out)["tasks"]
    assert (task["verdict"], task["steps"]) == ("same", 0)
    assert task["message"] == "nothing that it reads has changed"


@pytest.mark.matrix
def test_a_fork_server_stays_for_the_next_answer_until_it_is_stopped(project: Project) -> None:
    asked(project, {"lr=0.1": "lr=0.2"})
    assert kept(launchers(project)) == 1
    before = sorted((path.name, path.stat().st_ino) for path in launchers(project).iterdir())
    asked(project, {"lr=0.1": "lr=0.3"})
    assert before == sorted((p.name, p.stat().st_ino) for p in launchers(project).iterdir())
    assert "1 fork server for quick answers" in project.run("status").out
    assert json.loads(project.run("status", "--json").out)["fork_servers"] == 1
    assert project.run("stop").out == "1 fork server ended\n"
    assert kept(launchers(project)) == 0
    assert project.run("stop").out == "no worker and no fork server is running\n"


@pytest.mark.matrix
def test_the_signature_of_a_commit_is_kept_and_that_of_an_edit_is_not(
    tmp_path: Path, answered: Answered
) -> None:
    own = make_project(tmp_path / "project", SUITE, {"none.py": ""})
    own.commit("one", SCRIPTS)
    (own.root / "train.py").write_text(TRAIN + "# edited\n")
    before = git(own.root, "status", "--porcelain"), (own.root / ".git" / "index").read_bytes()
    first = own.run("same", "fit", "--json")
    assert own.run("same", "fit").status == 0
    after = git(own.root, "status", "--porcelain"), (own.root / ".git" / "index").read_bytes()
    end_kept(launchers(own))
    assert before == after
    assert answered("same", first.out)["tasks"][0]["verdict"] == "same"
    shown = own.run("show", "HEAD").out
    assert shown.count("signature of fit") == 1
    assert "operators" in shown
    shutil.rmtree(own.root / ".git" / "celedger" / "synthetic")


@pytest.mark.matrix
def test_an_edit_of_the_suites_own_script_is_an_edit(tmp_path: Path) -> None:
    suite = SUITE.replace("{python} train.py", "{python} {suite}/fit.py")
    own = make_project(tmp_path / "project", suite, {"fit.py": TRAIN, "plain.py": ""})
    git(own.root, "add", "--force", "suites")
    own.commit("one", {"README.md": "one\n"})
    script = own.root / "suites" / "tiny" / "fit.py"
    script.write_text(TRAIN.replace("lr=0.1", "lr=0.2"))
    # A trial of the edited suite at HEAD tells nothing of HEAD's own.
    assert own.run("run", "HEAD", "--task", "fit").status == 0
    done = own.run("same", "fit")
    assert (done.status, "lr: 0.1 → 0.2" in done.out) == (1, True), done.out
    script.write_text(TRAIN + "# a comment\n")
    done = own.run("same", "fit")
    end_kept(launchers(own))
    assert (done.status, "same bits" in done.out) == (0, True), done.out


# --- the comparison alone


def step(number: int, **changed: Any) -> dict[str, Any]:
    parts = {name: f"{name} {number}" for name in ("loss", "grad", "param", "bufs", "settings")}
    sizes = {"loss": 1.0, "grad": 2.0, "param": 3.0}
    return {
        "t": number, "d": {**parts, **changed.pop("d", {})}, "z": {**sizes, **changed.pop("z", {})},
        "work": {}, "settings": ["SGD", {"lr": 0.1}], "dtypes": ["torch.float32"], **changed,
    }  # fmt: skip


def signature(*steps: dict[str, Any], **more: Any) -> Signature:
    return Signature("short:2x24", (steps,), ("",), **more)


BASE = signature(step(0), step(1))


def test_equal_signatures_have_no_difference() -> None:
    assert first_difference(BASE, BASE) is None
    moved = signature(step(0, d={"out": "x", "batch": "y"}), step(1))
    assert first_difference(BASE, moved) is None  # these name, and do not decide


@pytest.mark.parametrize(
    ("loss", "is_rounding"), [(1 + 7e-7, True), (1 + 1.8e-5, False), (float("nan"), False)]
)
def test_sizes_tell_a_rounding_from_a_change(loss: float, is_rounding: bool) -> None:
    other = signature(step(0), step(1, d={"loss": "x"}, z={"loss": loss}))
    difference = first_difference(BASE, other)
    assert difference is not None
    assert (difference.step, difference.part) == (2, "loss")
    assert difference.is_rounding is is_rounding


def test_another_setting_is_no_rounding_however_little_it_moves() -> None:
    other = signature(
        step(0, d={"settings": "x", "param": "y"}, settings=["SGD", {"lr": 0.1000001}]), step(1)
    )
    difference = first_difference(BASE, other)
    assert difference is not None
    assert (difference.name, difference.is_rounding) == (
        "the optimiser's lr: 0.1 → 0.1000001", False,
    )  # fmt: skip


def test_what_is_reported_decides_where_the_steps_are_equal() -> None:
    one = replace(BASE, reports=(("0", "val_loss", "0.5"),))
    other = replace(BASE, reports=(("0", "val_loss", "0.25"),))
    difference = first_difference(one, other)
    assert difference is not None
    assert (difference.part, difference.values, difference.is_rounding) == (
        "report", (0.5, 0.25), False,
    )  # fmt: skip
    assert first_difference(one, replace(one, reports=(("0", "val_loss", "0.50"),))) is None


def test_a_signature_is_read_as_it_was_kept() -> None:
    whole = replace(BASE, reports=(("0", "val_loss", "0.5"),), evaluates=True, seconds=1.5)
    document = json.loads(json.dumps(whole.document()))
    assert Signature.of(document) == whole


def test_an_answer_in_seconds_imports_no_numpy() -> None:
    code = "import sys, celedger.lab.diagnose.same, celedger.lab.views.same; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"numpy", "sqlite_utils", "torch"}


def test_of_many_merged_commits_a_slow_task_is_signed_at_the_ends() -> None:
    """The first signature of a job tells that it is slow, as after an edit of the probe."""
    made = [Commit(f"{i:040x}", f"{i:040x}", (), "Ada", i, i, "") for i in range(5)]
    quick = iter([True, False, False])
    assert [*quick_or_last(made, lambda: next(quick))] == [made[0], made[1], made[4]]
    assert [*quick_or_last(made[:1], lambda: False)] == [made[0]]


@pytest.mark.parametrize(("change", "more"), [(161, True), (159, False), (-400, False)])
def test_where_a_step_does_a_fifth_more_what_lies_between_is_signed(
    change: int, more: bool
) -> None:
    """The operators of a slow miner were taken for those of another commit of the merge."""
    commit = Commit("a" * 40, "b" * 40, (), "Ada", 0, 0, "")
    row = LoggedCommit(commit, work={"operators": 800 + change}, changes={"operators": change})
    assert row.is_more_work is more


@pytest.mark.parametrize(("commits", "quick"), [(2, True), (5, False)])
def test_what_lies_between_is_signed_while_that_takes_no_longer_than_training(
    commits: int, quick: bool
) -> None:
    """Seven merged commits of six tasks of a second were signed for longer than they trained."""
    ledger = SimpleNamespace(
        signatures=lambda **_: [SimpleNamespace(seconds=1.3)],
        summaries=lambda *_, **__: [SimpleNamespace(value=1.2)],
    )
    task = SimpleNamespace(suite="first", name="fit", recipe="", seeds=(0, 1, 2))
    assert Signatures(None, ledger, task, 0, Path()).is_quick(commits) is quick  # type: ignore[arg-type]


def test_the_command_of_a_signature_is_quoted_for_a_shell() -> None:
    kept: list[FindingRecord] = []
    ledger = SimpleNamespace(record_commits=list, record_finding=kept.append)
    bench = SimpleNamespace(setup=SimpleNamespace(now=lambda: 0.0))
    task = SimpleNamespace(suite="first", name="fit[norm=batch]")
    own = Signatures(bench, ledger, task, 0, Path())  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Signatures, "key", lambda *_: "{}")
        own.keep(Commit("a" * 40, "b" * 40, (), "Ada", 0, 0, ""), BASE)
    assert [finding.command for finding in kept] == ["same 'fit[norm=batch]'"]


def test_a_commit_that_changes_nothing_that_is_read_is_not_signed_anew() -> None:
    made = [Commit(f"{i:040x}", f"{i:040x}", (), "Ada", i, i, "") for i in range(4)]
    ran, kept_of = [], []

    def sign(commit: Commit, _: Scheme) -> Signature:
        ran.append(commit)
        return signature(*(step(i, d={"loss": str(len(ran) > 2)}) for i in range(5)))

    signatures: Any = SimpleNamespace(
        stored=lambda *_: None, known_problem=lambda _: "", are_known_to_repeat=lambda *_: False,
        reads_the_same=lambda a, b: b in made[1:3], sign=sign,
        keep=lambda commit, _: kept_of.append(commit),
    )  # fmt: skip
    rows = [*log(signatures, made, STEPS)]
    assert ran == [made[0], made[0], made[3]] and kept_of == made
    assert [row.difference is None for row in rows] == [True, True, True, False]


@pytest.mark.matrix
def test_a_range_is_logged_a_line_for_each_commit(tmp_path: Path, answered: Answered) -> None:
    own = make_project(tmp_path / "project", SUITE, {"none.py": ""})
    shas = [own.commit("one", SCRIPTS)]
    shas.append(
        own.commit("two", {"train.py": TRAIN.replace("import time\n", "import time  # x\n")})
    )
    slower = TRAIN.replace("        optimiser.step()\n", (
        "        optimiser.step()\n        for number in range(50):\n            number += 1\n"
    ))  # fmt: skip
    shas.append(own.commit("three", {"train.py": slower}))
    shas.append(own.commit("four", {"train.py": slower.replace("lr=0.1", "lr=0.2")}))
    shas.append(own.commit("five", {"train.py": slower.replace("net = Net()", "net = Net(1)")}))
    done = own.run("same", f"{shas[0][:12]}..HEAD", "fit")
    lines = done.out.splitlines()
    assert done.status == 0, done.err
    assert [line[:8] for line in lines] == [sha[:8] for sha in shas]
    assert "bits: =  operators" in lines[1]
    assert re.search(r"bits: =  operators \d+  lines \d+ \(\+1\d\d\)", lines[2])
    assert "bits: new (the optimiser's lr: 0.1 → 0.2, step 1, " in lines[3]
    assert "TypeError" in lines[4]
    again = own.run("same", f"{shas[0][:12]}..HEAD~1", "fit", "--json")
    end_kept(launchers(own))
    (task,) = answered("same", again.out)["tasks"]
    assert [row["bits"] for row in task["commits"]] == ["equal", "equal", "equal", "new"]
    assert own.run("show", "HEAD~1").out.count("signature of fit") == 1


def test_work_that_grows_by_chance_at_first_does_not_grow() -> None:
    """The lines that batches of words take: 0 -> 6 a step was an incident of a dropout."""

    def of(counts: Sequence[int]) -> dict[str, float]:
        steps = tuple({"work": {"lines": count}} for count in (55, *counts))
        return growth(Signature("short:2x24", (steps,)))

    lines = (607, 624, 615, 624, 619, 633, 624, 622, 621, 629, 626, 631, 625, 623, 621, 619, 614)
    assert of(lines) == {}
    assert of(range(600, 617)) == {"lines": 2.0}
    assert of(lines[:8]) == {"lines": pytest.approx(17 / 3)}  # nothing later tells
