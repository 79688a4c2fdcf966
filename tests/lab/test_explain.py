"""`celedger explain`, typed: real commits, real trainings, and a ledger that keeps the answer."""

from __future__ import annotations

import json
import sys
import venv
from pathlib import Path

import pytest
from conftest import UNCOMPILED, celedger, git, make_project, record_of
from lab.conftest import Answered
from lab.edited import edited

pytestmark = pytest.mark.matrix

NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        y = self.norm(self.body(x))
        weight = torch.softmax(y, dim=1)
        return self.head(weight * y)
"""
FIT = (
    UNCOMPILED
    + """\
import torch
import torch.nn.functional as F
from celedger.child import log
from net import Net
torch.manual_seed(int(sys.argv[1]))
torch.set_num_threads(1)
net = Net()
x, y = torch.randn(64, 4), torch.arange(64) % 2
optimiser = torch.optim.SGD(net.parameters(), lr=float(sys.argv[2]), momentum=0.9)
for epoch in range(2):
    net.train()
    for rows in torch.randperm(64).split(16):
        loss = F.cross_entropy(net(x[rows]), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    net.eval()
    with torch.no_grad():
        log(epoch=epoch, val_loss=F.cross_entropy(net(x), y).item())
"""
)
PLAIN = "from celedger.child import log; log(epoch=0, val_loss=1.0)\n"
SUITE = """\
[suite]
name = "tiny"
preload = ["torch"]
[metrics.val_loss]
direction = "lower"
kind = "quality"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py {seed} {lr}"
params = { lr = 0.1 }
seeds = [0]
[[task]]
name = "plain"
command = "{python} {suite}/plain.py"
"""


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HEAD~3 the beginning, HEAD~2 a refactor, HEAD~1 a softmax over the wrong axis."""
    project = make_project(
        tmp_path_factory.mktemp("nets") / "project", SUITE, {"fit.py": FIT, "plain.py": PLAIN}
    )
    renamed = NET.replace("self.body", "self.trunk").replace("import torch\n", "import torch  #\n")
    wrong = renamed.replace("dim=1", "dim=0").replace("class Net", "# The net.\nclass Net")
    for subject, text in (
        ("A net", NET), ("Rename the body", renamed), ("Soften", wrong),
        ("Break", wrong.replace("weight * y", "weight @ y")),
    ):  # fmt: skip
        project.commit(subject, {"net.py": text})
    return project.root


def test_the_wrong_axis_is_named_with_its_line_and_only_the_answer_is_kept(
    repo: Path, answered: Answered
) -> None:
    ledger = repo / "ledger.db"
    celedger(repo, "run", "HEAD", "--task", "plain", "--suite", "tiny")
    before = record_of(ledger)
    assert any("INSERT INTO" in row and "trials" in row for row in before)
    picture = repo / "depth.png"
    done = celedger(
        repo, "explain", "HEAD~2..HEAD~1", "fit", "--suite", "tiny", "--json", "-o", str(picture),
        "--device", "cpu", timeout=300,
    )  # fmt: skip
    assert done.status == 1, done.err
    (found,) = answered("explain", done.out)["explanations"]
    finding = found["finding"]
    assert (found["verdict"], found["steps"]) == ("difference", 8)
    assert (finding["phase"], finding["step"], finding["module"]) == ("forward", 0, "")
    assert "softmax(_, dim=0)" in finding["sentence"]
    assert finding["sure"] == "sure"
    place = finding["places"][0]
    line = next(i for i, text in enumerate(NET.splitlines(), 1) if "softmax" in text)
    assert (place["file"], place["line"]) == ("net.py", line + 1)
    assert any("dim=0" in text for text in found["hunks"][0]["lines"])
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert record_of(ledger) == before
    shown = json.loads(celedger(repo, "show", "HEAD~1", "--json").out)
    (kept,) = shown["findings"]
    good, bad = (git(repo, "rev-parse", revision) for revision in ("HEAD~2", "HEAD~1"))
    assert (kept["verb"], kept["before"], kept["document"]["explanations"]) == (
        "explain", good, [found],
    )  # fmt: skip
    command = f"explain {good[:12]}..{bad[:12]} fit --suite tiny --device cpu"
    assert (kept["command"], "dim=0" in kept["headline"]) == (command, True)


def test_a_refactor_is_no_difference(repo: Path, answered: Answered) -> None:
    words = ("explain", "HEAD~3..HEAD~2", "fit", "--suite", "tiny", "--json")
    done = celedger(repo, *words, timeout=300)
    assert done.status == 0, done.err
    (found,) = answered("explain", done.out)["explanations"]
    assert (found["verdict"], found["steps"], found["finding"]) == ("equal", 8, None)


def test_a_commit_that_breaks_is_explained_by_its_error(repo: Path) -> None:
    done = celedger(repo, "explain", "HEAD~1..HEAD", "fit", "--suite", "tiny", timeout=300)
    assert done.status == 1
    assert "fails at step 0" in done.out
    assert "weight @ y" in done.out
    lines = (repo / "net.py").read_text().splitlines()
    line = next(at for at, text in enumerate(lines, 1) if "weight @ y" in text)
    assert f"net.py:{line}  raised" in done.out


def test_a_side_on_a_device_that_is_not_there_is_refused(repo: Path) -> None:
    """It compared the CPU with the CPU, and found no difference."""
    words = ("HEAD", "fit", "--suite", "tiny", "--b", "device=cuda:0", "--device", "cpu")
    done = celedger(repo, "explain", *words, env={"CUDA_VISIBLE_DEVICES": ""})
    assert (done.status, done.out) == (128, "")
    assert "there is no device cuda:0: this machine shows no GPU" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["HEAD"], "one commit: nothing to compare it with"),
        (["HEAD", "fit"], "one commit: nothing to compare it with"),
        (["HEAD..HEAD"], "same commit"),
        (["HEAD~1...HEAD"], "has three dots"),
        (["HEAD~1..HEAD", "nothing"], "no task 'nothing'"),
        (["HEAD", "--a", "rate=3"], "no setting 'rate'"),
        (["HEAD", "--a", "lr"], "write KEY=VALUE"),
        (["HEAD", "--b", "device=tpu"], "no device 'tpu'"),
        (["HEAD", "--b", "autocast=fp8"], "cannot autocast to 'fp8'"),
        (["HEAD~1..HEAD", "-o", "depth.pdf"], "pictures are PNG or SVG"),
        (["HEAD", "--replay", "float64"], "write device=cpu or dtype=float64"),
        (["HEAD", "--replay", "dtype=int8"], "cannot replay in the type 'int8'"),
        (["HEAD~1..HEAD", "--replay", "device=cpu"], "of one commit alone"),
    ],
)
def test_what_cannot_be_meant_is_said_in_a_line(repo: Path, words: list[str], said: str) -> None:
    done = celedger(repo, "explain", *words, "--suite", "tiny")
    assert (done.status, done.out) == (129, "")
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_bisect_explains_the_commit_that_it_names(repo: Path) -> None:
    """By the verb `explain`, whose answer the ledger keeps as if a person had typed it."""
    words = ("bisect", "HEAD~3..HEAD", "--suite", "tiny", "--task", "fit", "--device", "cpu")
    done = celedger(repo, *words, "--explain", "--json", timeout=300)
    assert done.status == 0, done.err
    answer = json.loads(done.out)
    bad, parent = git(repo, "rev-parse", "HEAD"), git(repo, "rev-parse", "HEAD~1")
    assert answer["bisect"]["culprits"] == [bad]
    (found,) = answer["explanations"]
    assert (found["task"], found["verdict"]) == ("fit", "difference")
    findings = json.loads(celedger(repo, "show", "HEAD", "--json").out)["findings"]
    ends = f"{parent[:12]}..{bad[:12]}"  # other tests of this repository may have asked before
    command = f"explain {ends} fit --suite tiny --device cpu"
    assert command in [finding["command"] for finding in findings]


def test_its_text_comes_after_the_answer(repo: Path) -> None:
    words = ("bisect", "HEAD~3..HEAD", "--suite", "tiny", "--task", "fit", "--device", "cpu")
    done = celedger(repo, *words, "--explain", timeout=300)
    assert done.status == 0, done.err
    assert done.out.index("first bad commit of fit") < done.out.index("\n  compared  ")


PRINTED = """\
[suite]
name = "tiny"
preload = ["torch"]
[metrics.score]
direction = "higher"
kind = "quality"
[[task]]
name = "fit"
command = "{python} fit.py {seed} 0.1"
pattern = 'score=(?P<score>\\S+)'
"""


def test_a_metric_that_is_computed_outside_of_modules_is_a_difference(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", PRINTED, {"none.py": ""})
    printed = FIT.replace(
        "        log(epoch=epoch, val_loss=F.cross_entropy(net(x), y).item())",
        "        print(f'score={float((net(x).numpy().argmax(1) == y.numpy()).mean()) + 0.0}')",
    )
    assert printed != FIT
    project.commit("one", {"net.py": NET, "fit.py": printed})
    project.commit("two", {"fit.py": printed.replace("+ 0.0", "+ 0.25")})
    done = project.run("explain", "HEAD~1..HEAD", "fit")
    assert done.status == 1, done.out + done.err
    assert "The training agrees and the reported score" in done.out
    assert "repeats itself" in done.err
    assert project.run("same", "HEAD~1..HEAD", "fit").status == 0
    again = project.run("explain", "HEAD~1..HEAD", "fit")
    assert "The training agrees and the reported score" in again.out
    assert "repeats itself" not in again.err, "a signature tells it"


def test_a_value_that_is_no_metric_of_the_suite_is_a_difference_unless_it_is_a_clock(
    tmp_path: Path,
) -> None:
    """`explain` said 'no difference' of an error in a sampler whose distance the script logs."""
    suite = SUITE.replace("{suite}/fit.py", "fit.py")
    project = make_project(tmp_path / "project", suite, {"plain.py": PLAIN})
    more = "y).item(), spread=net(x).std().item(), at=time.perf_counter())"
    timed = edited(FIT, ("y).item())", more), ("import torch\n", "import time\nimport torch\n"))
    wrong = edited(timed, ("net(x).std()", "net(x).var()"))
    for name, text in (("one", timed), ("two", f"{timed}# the end\n"), ("three", wrong)):
        project.commit(name, {"net.py": NET, "fit.py": text})
    done = project.run("explain", "HEAD~2..HEAD~1", "fit")
    assert done.status == 0, done.out + done.err
    done = project.run("explain", "HEAD~1..HEAD", "fit")
    assert done.status == 1, done.out + done.err
    assert "The training agrees and the reported spread" in done.out


def test_a_training_that_ends_earlier_is_told_so(tmp_path: Path) -> None:
    suite = SUITE.replace("{suite}/fit.py", "fit.py")
    project = make_project(tmp_path / "project", suite, {"plain.py": PLAIN})
    whole = edited(
        FIT, ("in range(2)", "in range(epochs)"), ("optimiser = ", "epochs = 2\noptimiser = ")
    )
    project.commit("one", {"net.py": NET, "fit.py": whole})
    shorter = edited(whole, ("epochs = 2", "epochs = 1"), ("int(sys.argv[1])", "int(sys.argv[-2])"))
    project.commit("two", {"fit.py": shorter})
    done = project.run("explain", "HEAD~1..HEAD", "fit")
    assert done.status == 1, done.out + done.err
    assert "Equal until then, it trains for 4 steps where it trained for 8" in done.out
    assert done.out.index("+ epochs = 1") < done.out.index("sys.argv[-2]")


def test_what_differs_between_two_interpreters_is_said(repo: Path, tmp_path: Path) -> None:
    venv.create(tmp_path, symlinks=True)
    (packages,) = tmp_path.glob("lib/python*/site-packages")
    shared = (path for path in sys.path if "site-packages" in path)
    (packages / "all.pth").write_text("\n".join(shared))
    (packages / "extra-1.0.dist-info").mkdir()
    (packages / "extra-1.0.dist-info/METADATA").write_text("Name: extra\nVersion: 1.0\n")
    done = celedger(
        repo, "explain", "HEAD~1", "fit", "--suite", "tiny", "--b",
        f"python={tmp_path / 'bin/python'}", timeout=300,
    )  # fmt: skip
    assert "note        the environments differ: extra none → 1.0\n" in done.out + "\n", done


def test_an_operator_is_replayed_from_its_inputs_in_another_type(
    tmp_path: Path, answered: Answered
) -> None:
    """The exponential overflows in float32; what it leads to is computed right of what is given."""
    project = make_project(tmp_path / "project", SUITE, {"fit.py": FIT, "plain.py": PLAIN})
    text = NET.replace("return ", "x = x * torch.exp(100 + 0 * x).clamp(max=1)\n        return ", 1)
    assert text != NET
    commit = project.commit("one", {"net.py": text})
    done = project.run("explain", "HEAD", "fit", "--replay", "dtype=float64", "--json")
    assert done.status == 1, done.out + done.err
    (answer,) = answered("explain", done.out)["replays"]
    assert (answer["commit"], answer["replayed"]) == (commit, "float64")
    first, *others = answer["operators"]
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "exp(" in row)
    assert (first["call"], first["phase"], first["line"]) == ("exp(_)", "forward", f"net.py:{line}")
    assert first["beyond"] and not any(one["beyond"] for one in others)
    assert {"forward", "backward"} == {one["phase"] for one in others}
    assert 0 < max(one["units"] for one in others) < 64
    assert project.run("explain", "HEAD", "fit", "--replay", "device=cpu").status == 0
    project.commit(
        "two", {"net.py": NET.replace("return ", "torch.linalg.svdvals(y)\n        return ")}
    )
    done = project.run("explain", "HEAD", "fit", "--replay", "dtype=bfloat16")
    assert done.out.endswith("\nwithout such a form: _linalg_svd\n"), done.out + done.err


def test_what_does_not_repeat_hides_only_what_comes_after_it(tmp_path: Path) -> None:
    """Every training is moved by its own clock in step 1."""
    moved = "        optimiser.step()\n"
    assert FIT.count(moved) == 1
    noise = moved + "        net.head.bias.data += time.time_ns() % 999983 * 1e-9\n"
    scripts = {"fit.py": "import time\n" + FIT.replace(moved, noise), "plain.py": PLAIN}
    project = make_project(tmp_path / "project", SUITE, scripts)
    project.commit("one", {"net.py": NET})
    project.commit("two", {"net.py": NET + "\n# more\n"})
    project.commit("three", {"net.py": NET.replace("weight * y", "weight * weight")})
    done = project.run("explain", "HEAD~2..HEAD~1", "fit")
    assert done.status == 125, done.out + done.err
    assert "cannot be judged: two runs of side a differ" in done.out
    assert "does not repeat itself bit by bit with one seed (from step 1 on" in done.out
    done = project.run("explain", "HEAD~1..HEAD", "fit")
    assert done.status == 1, done.out + done.err
    assert "`mul` in the model itself is given" in done.out
    assert "repeats itself bit by bit" not in done.out
