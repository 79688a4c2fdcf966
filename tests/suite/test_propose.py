"""`init` proposes a task for the training that a repository has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import Project, git, make_project

from celedger.base.model import TrialRecord
from celedger.ledger import Ledger
from celedger.suite import load
from celedger.suite.propose import TaskProposal, propose, scaffold

LOOP = """\
import argparse
import torch
from ours import network
parser = argparse.ArgumentParser()
parser.add_argument("--max-epochs", type=int, default=90)
parser.add_argument("-b", "--batch", type=int, default=8)
parser.add_argument("--seed", type=int)
args = parser.parse_args()
torch.manual_seed(args.seed)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(args.max_epochs):
    loss = model(torch.ones(4, 2)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"[{epoch}] lr 0.01")
    print(f"epoch {epoch:03d}, train loss: {loss.item():.4f} | Val Acc = {1 - loss.item():.3f}")
"""
OURS = "from torch import nn\ndef network():\n    return nn.Linear(2, 1)\n"


def proposed(root: Path, files: Mapping[str, str]) -> TaskProposal | None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return propose(root, list(files))


def trained(project: Project, proposal: TaskProposal) -> TrialRecord:
    """Return the one trial of a proposed suite, which must end well."""
    scaffold(project.root / "suites" / "mine", "mine", sys.executable, proposal)
    done = project.run("run", "HEAD", "--suite", "mine")
    assert done.status == 0, done.err
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        (record,) = ledger.trials()
    return record


def test_a_loop_is_run_small_and_what_it_prints_is_read(tmp_path: Path) -> None:
    found = proposed(
        tmp_path,
        {"ours/__init__.py": OURS, "examples/fit_it.py": LOOP, "tests/test_ours.py": LOOP,
         "setup.py": "from setuptools import setup\nsetup()\n", "README.md": "", "bad.py": "def"},
    )  # fmt: skip
    assert found is not None and found.script == "examples/fit_it.py"
    assert found.command == (
        "{python} {tree}/examples/fit_it.py --max-epochs {max_epochs} --seed {seed}"
    )
    assert (found.params, found.metrics) == ({"max_epochs": 5}, {"val_acc": "higher"})
    line = "epoch 007, train loss: 0.3123 | Val Acc = 0.688"
    values = {k: v for p in found.patterns for k, v in re.search(p, line).groupdict().items()}  # type: ignore[union-attr]
    assert values == {"epoch": "007", "val_acc": "0.688"}
    for other in ("best Val Acc = 0.7", "    Val Acc = model(x)"):  # as in a traceback
        assert not any(re.search(p, other) for p in found.patterns if "acc" in p)
    for text in ("-.5e-05", "nan", "+inf", "3."):
        assert any(m["val_acc"] == text for p in found.patterns if "acc" in p
                   for m in re.finditer(p, f"Val Acc: {text} "))  # fmt: skip


def test_recall_at_one_and_mean_average_precision_are_of_validation(tmp_path: Path) -> None:
    """Only the loss of metric learning was watched: `recall@1` had no name."""
    loop = LOOP.replace(
        'train loss: {loss.item():.4f} | Val Acc = {1 - loss.item():.3f}',
        'train loss {loss:.4f} - val loss {loss:.5f} - recall@1 {loss:.2%} - map {loss:.4f}',
    )  # fmt: skip
    found = proposed(tmp_path, {"ours/__init__.py": OURS, "train.py": loop})
    assert found is not None
    assert found.metrics == {"val_loss": "lower", "recall_1": "higher", "map": "higher"}
    line = "epoch 4 - train loss 0.5 - val loss 0.62578 - recall@1 94.27% - map 0.9397"
    values = {k: v for p in found.patterns for k, v in re.search(p, line).groupdict().items()}  # type: ignore[union-attr]
    assert values == {"epoch": "4", "val_loss": "0.62578", "recall_1": "94.27", "map": "0.9397"}


PYTEST_BENCHMARK = """\
import pytest
from pytest_benchmark import utils

class Hooks:
    @pytest.hookspec(firstresult=True)
    def pytest_benchmark_group_stats(config, benchmarks, group_by):
        pass

class Default:
    def pytest_benchmark_group_stats(config, benchmarks, group_by):
        return []

def pytest_addhooks(pluginmanager):
    pluginmanager.add_hookspecs(Hooks)
    pluginmanager.register(Default)

def pytest_addoption(parser):
    assert utils.get_commit_info("project")["id"] == ""  # asks no git
    parser.addoption("--benchmark-only", action="store_true")

def pytest_sessionfinish(session):
    data = [("test_sum", 1.5, 0.25), ("test_sort[2]", 2.0, ""), ("test_sort[3]", 3.0, "")]
    all = [{"name": n, "median": m, "extra_info": {"mean_error": e}} for n, m, e in data]
    session.config.hook.pytest_benchmark_group_stats(config=0, benchmarks=all, group_by="")
"""


def test_where_nothing_trains_the_benchmarks_of_the_tests_are_run(tmp_path: Path) -> None:
    """Of a package below `src`, the installed one was measured."""
    text = """\
def test_sum(benchmark):
    from fast import total
    benchmark(total, [1])
    benchmark.extra_info["mean_error"] = 3
    benchmark.extra_info['rows'] = 1
def test_no(tmp_path):
    pass
"""
    more = "import pytest\nclass TestMore:\n    def test_sort(self, benchmark, n):\n        pass\n"
    files = {"tests/test_speed.py": text, "tests/test_none.py": "def test_it():\n    pass\n"}
    found = proposed(tmp_path, {**files, "benchmarks/bench more.py": more, "lib.py": "X = 1\n",
                                "src/fast/__init__.py": "total = sum\n"})  # fmt: skip
    assert found is not None and found.trains_by == "pytest-benchmark"
    folder = tmp_path / "suites" / "first"
    assert {p.name for p in scaffold(folder, "first", "", found)} == {"suite.toml", "benchmarks.py"}
    (task,) = load(folder).tasks
    assert {m.name: (m.unit, m.kind.value) for m in task.metrics} == {
        "sort_time": ("s", "speed"), "sum_time": ("s", "speed"), "peak_rss": ("B", "memory"),
        "sum_mean_error": ("", "quality"),
    }  # fmt: skip
    (tmp_path / "pytest_benchmark").mkdir()  # a double
    (tmp_path / "pytest_benchmark" / "utils.py").write_text("")
    (tmp_path / "conftest.py").write_text(PYTEST_BENCHMARK)
    words = [sys.executable, str(folder / "benchmarks.py"), "tests/test_none.py"]
    environment = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout
    printed = done.stdout.partition("\n1 passed")[2].partition("\n")[2]
    assert printed == "test_sum 1.5\ntest_sum.mean_error 0.25\ntest_sort 5.0\n"
    values = {k: v for p in task.pattern for line in printed.splitlines()
              for m in re.finditer(p, line) for k, v in m.groupdict().items()}  # fmt: skip
    assert values == {"sum_time": "1.5", "sort_time": "5.0", "sum_mean_error": "0.25"}
    assert (found.pythonpath, len(task.seeds)) == (("src",), 3)
    for line in ("___ test_sum ___", "test_sum 64.4 16.3", "    def test_sum (benchmark):"):
        assert not any(re.search(p, line) for p in task.pattern)  # where a test failed
    assert "'benchmarks/bench more.py' tests/test_speed.py" in found.command


def test_a_loop_that_no_option_makes_short_is_stopped(tmp_path: Path) -> None:
    text = LOOP.replace("args.max_epochs", "90").replace('"--max-epochs"', '"--patience"')
    found = proposed(tmp_path, {"ours/__init__.py": OURS, "train.py": text})
    assert found is not None
    assert found.metrics == {"val_acc": "higher"}  # comes with the loss of the training
    assert "stop_after = 300 " in found.task
    text = text.replace("} | Val", '}")\n    print(f"Val')
    found = proposed(tmp_path, {"train.py": text})
    assert found is not None
    assert found.metrics == {"train_loss": "lower"}  # what comes later may come too late
    text = text.partition("    print(")[0] + "    log(train_loss=loss)\nlog(val_loss=loss)\n"
    found = proposed(tmp_path, {"train.py": "from celedger.child import log\n" + text})
    assert found is not None and found.metrics == {"train_loss": "lower"}


@pytest.mark.parametrize(
    "call",
    [
        "accelerator.print(f\"epoch {epoch}: {{'val_loss': {loss:.4f}, 'accuracy': {acc}}}\")",
        "print({'epoch': epoch, 'val_loss': loss, 'accuracy': acc})",
        'print(json.dumps({"epoch": epoch, "val_loss": loss, "accuracy": acc}), flush=True)',
    ],
)
def test_a_printed_dictionary_is_read(tmp_path: Path, call: str) -> None:
    """Nothing of it was recognised, or the accuracy alone, of a loop that is stopped."""
    text = LOOP.replace('"--max-epochs"', '"--patience"').partition("    print(")[0]
    found = proposed(tmp_path, {"train.py": f"{text}    {call}\n"})
    assert found is not None and found.metrics == {"val_loss": "lower"}
    scaffold(tmp_path / "suites" / "mine", "mine", "", found)
    (task,) = load(tmp_path / "suites" / "mine").tasks
    for line in ("{'epoch': 3, 'val_loss': 0.4, 'accuracy': 1}", '{"epoch": 3, "val_loss": 0.4}'):
        values = {k: v for p in task.pattern for m in re.finditer(p, line)
                  for k, v in m.groupdict().items()}  # fmt: skip
        assert values["val_loss"] == "0.4" and values.get("epoch", "3") == "3"


REPORTS = """\
import sys, torch
from celedger.child import log
torch.manual_seed(int(sys.argv[1]))
for e in range(3):
    loss.backward()
    opt.step()
    log(epoch=e, val_loss=1, lr=2)
"""
LIGHTNING = """\
import lightning as L
class M(L.LightningModule):
    def step(self):
        self.log('train_loss', 1)
        self.log('valid/accuracy', 2)
L.Trainer(max_epochs=2).fit(M())
"""
TRANSFORMERS = """\
from transformers import Trainer
Trainer(model, eval_dataset=data).train()
"""
PARSES = """\
from transformers import HfArgumentParser, Trainer, TrainingArguments
class Ours(Trainer):
    pass
def scores(prediction):
    return {"accuracy": accuracy(prediction), "eval_f1": f1(prediction), "rows": len(prediction)}
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Ours(model, arguments, eval_dataset=data, compute_metrics=scores).train()
"""
SMALL = "--epochs {epochs} {tree}/train.py"  # no option makes it short
PARSED = "--num_train_epochs {num_train_epochs} --seed {seed} --output_dir {out}"
MEASURED = dict.fromkeys(["cpu_time", "peak_rss"], "lower")  # of every trial
DELEGATES = """\
import ours
if __name__ == '__main__':
    print('loss %.3f' % ours.train())
"""


@pytest.mark.parametrize(
    ("text", "words", "metrics"),
    [
        (REPORTS, "{tree}/train.py {seed}", {"val_loss": "lower"}),
        (LIGHTNING, f"-m celedger.child.lightning {SMALL}", {"valid/accuracy": "higher"}),
        (TRANSFORMERS, f"-m celedger.child.huggingface {SMALL}", {"eval_loss": "lower"}),
        (
            PARSES,
            f"-m celedger.child.huggingface {{tree}}/train.py {PARSED}",
            {"eval_loss": "lower", "eval_accuracy": "higher", "eval_f1": "higher"},
        ),
        (DELEGATES, "{tree}/train.py", {"loss": "lower", **MEASURED}),
    ],
)
def test_other_trainings(tmp_path: Path, text: str, words: str, metrics: Mapping[str, str]) -> None:
    found = proposed(tmp_path, {"train.py": text, "src/ours/__init__.py": ""})
    assert found is not None
    assert found.command == "{python} " + words
    assert (found.metrics, found.pythonpath) == (metrics, ("src",))


def test_settings_that_the_command_line_overrides_are_options(tmp_path: Path) -> None:
    """As in minGPT, and in nanoGPT."""
    utils = (
        "def merge(args):\n  for a in args:\n    k, v = a.split('=')\n    assert k[:2] == '--'\n"
    )
    loop = "loss.backward()\noptimizer.step()\nprint(f'train loss {loss}')\n"
    nested = "import sys, torch\nC.system = N()\nC.system.seed = 3407\nmerge(sys.argv[1:])\n" + loop
    found = proposed(tmp_path / "a", {"own/utils.py": utils, "train.py": "if 1: 0\n" + nested})
    assert found is not None
    assert found.command == "{python} {tree}/train.py --system.seed={seed}"
    assert "stop_after" in found.task and "seeds = [0, 1, 2, 3, 4]" in found.task
    flat = "import torch\nmax_iters = 600000\nexec(open('conf.py').read())\n" + loop
    found = proposed(tmp_path / "b", {"conf.py": utils, "train.py": "if 1: 0\n" + flat})
    assert found is not None
    assert found.command == "{python} {tree}/train.py --max_iters={max_iters}"
    assert found.params == {"max_iters": 300}


TRAINER = """\
import logging
log = logging.getLogger(__name__)
class Trainer:
    def fit(self):
        for epoch in range(1, self.epochs + 1):
            loss.backward()
            optimizer.step()
            log.info("epoch %d | loss %.4f | acc %.1f%%", epoch, loss, 100 * accuracy)
"""
CONF = """\
seed: 1
model:
  width: 64
optim:
  lr: 0.004
trainer:   # how long
  epochs: 30  # times
"""


@pytest.mark.parametrize("head", [
    "import sys\nfrom own.config import load\ncfg = load('conf.yaml', sys.argv[1:])\n",
    "import hydra\n@hydra.main(config_path='conf', config_name='config')\ndef main(c): fit(c)\n",
])  # fmt: skip
def test_settings_of_yaml_are_options_and_what_a_trainer_logs_is_read(
    tmp_path: Path, head: str
) -> None:
    """Of such a repository only the time and memory of a step were watched, for one seed."""
    script = head + "import torch, own\nif __name__ == '__main__':\n    own.Trainer().fit()\n"
    load_settings = "def load(path, words):\n    for w in words:\n        w.partition('=')\n"
    found = proposed(tmp_path, {
        ".github/workflows/conf.yml": "jobs:\n  seed: 1\n", "conf/default.yaml": CONF,
        "src/own/__init__.py": "", "src/own/config.py": load_settings * ("sys" in head),
        "src/own/trainer.py": TRAINER, "train.py": script, "tests/test_own.py": TRAINER,
    })  # fmt: skip
    assert found is not None
    assert found.command == "{python} {tree}/train.py trainer.epochs={epochs} seed={seed}"
    assert (found.params, found.stops) == ({"epochs": 5}, False)
    assert found.metrics == {"loss": "lower", "acc": "higher"}
    line = "[2026-11-28][own.trainer][INFO] epoch 3 | loss 0.4312 | acc 91.2%"
    values = {k: v for p in found.patterns for k, v in re.search(p, line).groupdict().items()}  # type: ignore[union-attr]
    assert values == {"epoch": "3", "loss": "0.4312", "acc": "91.2"}


def test_each_project_of_a_repository_has_its_own_packages(tmp_path: Path) -> None:
    other = LOOP.replace("from ours import", "from theirs import")
    found = proposed(
        tmp_path,
        {"a/src/ours/__init__.py": OURS, "a/tools/train.py": LOOP, "b/ours/__init__.py": OURS,
         "b/train.py": other},
    )  # fmt: skip
    assert found is not None
    assert (found.script, found.pythonpath) == ("a/tools/train.py", ("a/src",))
    found = proposed(tmp_path, {"src/mine/__init__.py": OURS, "src/mine/cli.py": LOOP.replace(
        "from ours import", "from mine import")})  # fmt: skip
    assert found is not None and found.pythonpath == ("src",)  # was there twice


FIT = """import torch
torch.cuda.manual_seed(0)
class Model(torch.nn.Module):
    def fit(self):
        for step in range(9):
            loss.backward(); optimizer.step(); print(f"loss {loss}")
"""


@pytest.mark.parametrize(
    "text", ["", "import torch\n", "print('loss 3')\n", "def train():\n    0\n", FIT]
)
def test_what_trains_nothing_is_not_proposed(tmp_path: Path, text: str) -> None:
    assert proposed(tmp_path, {"train.py": text, "ours/__init__.py": OURS}) is None


def test_a_script_that_needs_no_download_is_preferred(tmp_path: Path) -> None:
    files = {"train_mnist.py": LOOP + "MNIST('.', download=True)\n", "tools/fit.py": LOOP}
    found = proposed(tmp_path, files)
    assert found is not None and found.script == "tools/fit.py"


@pytest.mark.parametrize("lacking", [{"wandb"}, {"torch", "wandb"}])
def test_a_script_whose_imports_are_installed_is_preferred(
    tmp_path: Path, lacking: set[str]
) -> None:
    """`init` proposed one that cannot be imported beside one that can."""
    files = {
        "ours/__init__.py": OURS, "train.py": "import ours, wandb\n" + LOOP, "tools/fit.py": LOOP
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    asked: list[set[str]] = []

    def can_import(script: str, modules: set[str]) -> bool:
        asked.append(modules)
        return not modules & lacking

    proposal = propose(tmp_path, list(files), can_import)
    assert asked[0] == {"torch", "wandb"}
    best = "train.py" if "torch" in lacking else "tools/fit.py"  # both lack something
    assert proposal is not None and proposal.script == best


FITS = """\
from sklearn.datasets import load_iris
from sklearn.metrics import roc_auc_score
from ours import Classifier
X, y = load_iris(return_X_y=True)
print("ROC:", roc_auc_score(y, Classifier().fit(X, y).predict(X)))
"""


def test_a_script_that_fits_a_model_needs_no_package(tmp_path: Path) -> None:
    """A script of scikit-learn with its modules beside it got the example of arithmetic."""
    files = {
        "ours.py": "class Classifier: ...",
        "report.py": "import ours\nprint('loss', ours.n)\n",
    }
    found = proposed(tmp_path, {**files, "model.py": FITS})
    assert found is not None and found.command == "{python} {tree}/model.py"
    assert (found.metrics, found.pythonpath) == ({"roc": "higher", **MEASURED}, ())


def test_an_example_that_fits_a_model_is_a_training(tmp_path: Path) -> None:
    """As in ngboost, of which nothing was proposed."""
    found = proposed(
        tmp_path,
        {"ours/__init__.py": "", "examples/classification.py": FITS,
         "examples/cart.py": FITS.replace("load_iris(", "read_csv('http://example.org/cart.csv', "),
         "examples/plots.py": FITS.replace("print", "plot")},
    )  # fmt: skip
    assert found is not None and found.command == "{python} {tree}/examples/classification.py"
    assert found.metrics == {"roc": "higher", **MEASURED}
    assert found.preload == ("sklearn.datasets", "sklearn.metrics")
    scaffold(tmp_path / "suites" / "mine", "mine", "", found)
    (task,) = load(tmp_path / "suites" / "mine").tasks
    assert [(m.name, m.kind) for m in task.metrics] == [
        ("cpu_time", "work"), ("peak_rss", "memory"), ("roc", "quality")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "watched"),
    [("loader", "train_loss"), ("loader, DataLoader(1)", "val_loss"), ("Module()", "val_loss")],
)
def test_a_module_is_validated_if_fit_has_the_data(tmp_path: Path, data: str, watched: str) -> None:
    """As in ncps: the trial ended without the only metric that was declared."""
    script = LIGHTNING.replace("valid/accuracy", "val_loss").replace(
        "L.Trainer", "loader = data.DataLoader(0)\nL.Trainer"
    )
    found = proposed(tmp_path, {"train.py": script.replace("fit(M()", f"fit(M(), {data}")})
    assert found is not None and [*found.metrics] == [watched]


def test_a_script_that_takes_its_length_and_seed_is_preferred(tmp_path: Path) -> None:
    fixed = "".join(line for line in LOOP.splitlines(True) if "arg" not in line)
    files = {
        "train.py": fixed.replace("model =", "for epoch in range(9):\n    pass\nmodel ="),
        "train_tiny.py": re.sub("max.epochs", "num_batches", LOOP),
    }
    proposal = proposed(tmp_path, files)
    assert proposal is not None and proposal.script == "train_tiny.py"
    assert proposal.params == {"num_batches": 90}


def test_what_is_slow_to_import_is_preloaded(tmp_path: Path) -> None:
    imports = "from sklearn.datasets import load_digits\nimport scipy.ndimage, json, ours.sklearn\n"
    found = proposed(tmp_path, {"ours/__init__.py": OURS, "train.py": imports + LOOP})
    assert found is not None
    assert found.preload == ("torch", "torch._dynamo", "scipy.ndimage", "sklearn.datasets")


def test_odd_names_make_a_suite_that_loads(tmp_path: Path) -> None:
    odd = LIGHTNING.replace("valid/accuracy", "valid accuracy")
    found = proposed(tmp_path, {"my tools/train it.py": odd, "{x}/train.py": odd})
    assert found is not None and found.metrics == {"train_loss": "lower"}
    folder = tmp_path / "suites" / "odd"
    scaffold(folder, "odd", "", found)
    (task,) = load(folder).tasks
    assert task.name == "train-it" and "{tree}/my tools/train it.py" in task.commands[0].template


@pytest.mark.matrix
def test_the_proposed_suite_loads_and_trains(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    git(project.root, "rm", "-rq", "--cached", "--ignore-unmatch", "suites")
    files = {"ours/__init__.py": OURS, "train.py": LOOP}
    project.commit("a training", files)
    found = proposed(project.root, files)
    folder = project.root / "suites" / "mine"
    assert [p.name for p in scaffold(folder, "mine", sys.executable, found)] == ["suite.toml"]
    (task,) = load(folder).tasks
    assert task.preload == ("torch", "torch._dynamo") and task.python == sys.executable
    assert [m.name for m in task.metrics] == [
        "step_time",
        "step_cpu_time",
        "memory_growth",
        "val_acc",
        "val_acc_area",
    ]
    done = project.run("run", "HEAD", "--suite", "mine", "--seed", "1")
    assert done.status == 0, done.err
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        (record,) = ledger.trials()
    assert record.ok and record.epochs == 5
    assert {"val_acc", "step_time"} <= set(record.summaries)


def test_what_its_readme_types_is_run_where_it_is_typed(tmp_path: Path) -> None:
    """A folder of a monorepo: the script needs a configuration, whose paths are relative to there,
    and prints a table."""
    loop = """\
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
config = json.load(open(parser.parse_args().config))
rows = open(config["data"]).read().split()
from tagger import Loop
class Row(Loop):
    def backward(self): pass
    def step(self): pass
row = Row()
row.backward(), row.step()
print("| epoch | train | valid |")
print("|------:|------:|------:|")
for epoch in range(1, config["epochs"] + 1):
    print(f"| {epoch:5d} | {0.5:5.4f} | {float(rows[epoch]):5.4f} |")
"""
    readme = "# tagger\n\n    $ python -m tagger.train --config <file>\n"
    readme += "    $ python -m tagger.train --config small.json   # a minute\n"
    there = "research/tagger/"
    project = make_project(tmp_path / "project")
    files = {
        f"{there}tagger/__init__.py": "class Loop:\n    pass\n",
        f"{there}tagger/train.py": loop,
        f"{there}small.json": '{"data": "rows.txt", "epochs": 3}',
        f"{there}rows.txt": "9 0.7 0.6 0.25",
        f"{there}README.md": readme,
        "README.md": "python services/train.py\n",
    }
    project.commit("a tagger", files)
    found = proposed(project.root, files)
    assert found is not None and found.cwd == "research/tagger"
    assert found.command == "{python} -m tagger.train --config small.json"
    assert found.metrics == {"valid": "lower", **MEASURED}
    record = trained(project, found)
    assert record.ok and (record.epochs, record.summaries["valid"]) == (3, 0.25)


LOOP_OF_A_PACKAGE = """\
from .model import network

def one_epoch(model, optimizer):
    for batch in range(3):
        loss = model(batch)
        loss.backward()
        optimizer.step()
    return loss

def fit_all(epochs):
    for epoch in range(epochs):
        print(f"epoch {epoch} val_loss {one_epoch(network(), None):.3f}")
"""
EXAMPLE = """\
import argparse
from waves import fit_all
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=90)
if __name__ == "__main__":
    fit_all(parser.parse_args().epochs)
"""


def test_an_example_trains_by_a_loop_of_the_package(tmp_path: Path) -> None:
    """Such repositories got the example of arithmetic, which reads nothing of them."""
    package = {
        "waves/__init__.py": "from .loop import fit_all\n",
        "waves/loop.py": LOOP_OF_A_PACKAGE,
    }
    script = {"waves/model.py": OURS, "examples/plots.py": "import waves\nwaves.model()\n"}
    found = proposed(tmp_path, {**package, **script, "examples/quick.py": EXAMPLE})
    assert found is not None
    assert found.command == "{python} {tree}/examples/quick.py --epochs {epochs}"
    assert [*found.metrics] == ["val_loss"]


def test_a_script_with_relative_imports_is_run_as_a_module(tmp_path: Path) -> None:
    """As `make train` does with `python -m waves.train`."""
    script = EXAMPLE.replace("from waves", "from .loop")
    files = {
        "src/waves/__init__.py": "", "src/waves/loop.py": LOOP_OF_A_PACKAGE,
        "src/waves/model.py": OURS, "src/waves/train.py": script,
    }  # fmt: skip
    found = proposed(tmp_path, files)
    assert found is not None
    assert found.command == "{python} -m waves.train --epochs {epochs}"
    assert found.pythonpath == ("src",)


@pytest.mark.parametrize(
    ("head", "row", "line"),
    [
        ("print('epoch train valid')", "print('%3d %6.3f %6.3f' % (e, a, b))", " 3  0.500  0.250"),
        ("print(f\"{'epoch':>5} {'train':>7} {'valid':>7}\")", "print(e, a, b)", "3 0.5 0.25"),
        ("print('epoch|train|valid')", "print(f'{e}|{a}|{b}')", "3|0.5|0.250"),
    ],
)  # fmt: skip
def test_a_table_is_read_by_its_columns(tmp_path: Path, head: str, row: str, line: str) -> None:
    loop = f"import torch\n{head}\nfor e in range(9):\n  a.backward()\n  o.step()\n  {row}\n"
    found = proposed(tmp_path, {"surface.py": loop})
    assert found is not None and found.metrics == {"valid": "lower"}
    values = {k: v for p in found.patterns for k, v in re.search(p, line).groupdict().items()}  # type: ignore[union-attr]
    assert (values["epoch"], float(values["valid"])) == ("3", 0.25)
    assert not any(re.search(p, "epoch 3 of 9") for p in found.patterns)


def test_a_script_that_prints_a_metric_is_run_before_an_example_and_the_tests(
    tmp_path: Path,
) -> None:
    """Descent in NumPy has no `backward`: such a repository got the example of arithmetic."""
    tests = {"tests/test_it.py": "def test_it():\n    pass\n", "src/ours/__init__.py": ""}
    tests["src/ours/net.py"] = "import torch\n"  # none of these has steps to time
    example = "import argparse, ours\nif __name__ == '__main__':\n    ours.show()\n"
    descent = "for step in range(9):\n    print(f'round {step} test mse {step / 9:.3f}')\n"
    asks = "import sys\nargparse.ArgumentParser().add_argument('file')\nprint('mse', 1 / 3)\n"
    expected = [
        ({"a.py": asks, **tests}, "{python} -m pytest -q -x", {}),
        ({"examples/show.py": example}, "{python} {tree}/examples/show.py", {}),
        ({"z.py": descent}, "{python} {tree}/z.py", {"test_mse": "lower"}),
    ]
    files: dict[str, str] = {}
    for more, command, metrics in expected:
        found = proposed(tmp_path, files := {**files, **more})
        assert found is not None
        assert (found.command, found.metrics) == (command, {**metrics, **MEASURED})


CELLS = """\
%matplotlib inline
!pip list
import random
random.seed(0)
---
%%bash
if [ 1 ]; then ls; fi
---
%%time
rows = [float(row) for row in open("rows.txt")]
class Model:
    loss, backward, step = 1.0, print, print
model = Model()
model.backward(), model.step()
---
for epoch in range(3):
    !date
    print("epoch %d: val loss %.3f"
          % (epoch, rows[epoch]))
model?
---
import pickle
display(pickle.loads(pickle.dumps(model)).loss)
"""


def test_a_notebook_is_run_where_it_lies(tmp_path: Path) -> None:
    """A repository of notebooks got the example of arithmetic."""
    cells: list[dict[str, object]] = [{"cell_type": "markdown", "source": ["# Fit"]}]
    texts = [text.splitlines(keepends=True) for text in CELLS.split("---\n")]
    cells += [{"cell_type": "code", "source": lines} for lines in texts]
    project = make_project(tmp_path / "project")
    files = {"notes/fit it.ipynb": json.dumps({"cells": cells}), "notes/rows.txt": "3\n2\n1.5\n"}
    project.commit("a notebook", files)
    found = proposed(project.root, {**files, "notes/bad.ipynb": "{}", "worse.ipynb": "["})
    assert found is not None and found.metrics == {"val_loss": "lower", **MEASURED}
    assert found.command == "{python} -m celedger.child.notebook '{tree}/notes/fit it.ipynb'"
    record = trained(project, found)
    assert record.ok and (record.epochs, record.summaries["val_loss"]) == (3, 1.5)


def test_a_script_that_prints_times_is_a_benchmark(tmp_path: Path) -> None:
    text = """\
import time
start = time.perf_counter()
sum(range(1000))
if __name__ == "__main__":
    passed = time.perf_counter() - start
    print(f"forward: {passed:.2f} ms  backward: {2 * passed:.2f} ms  size {12} MiB, rounds: {3}")
"""
    found = proposed(tmp_path, {"bench.py": text, "tests/test_it.py": "print(f'took {3} s')\n"})
    assert found is not None and (found.script, found.command) == (
        "bench.py",
        "{python} {tree}/bench.py",
    )
    scaffold(tmp_path / "suites" / "mine", "mine", sys.executable, found)
    suite = load(tmp_path / "suites" / "mine")
    (task,) = suite.tasks
    assert not suite.warnings  # it has no seed: its trials are repeats
    assert {m.name: (m.unit, str(m.kind)) for m in task.metrics} == {
        "forward": ("ms", "speed"),
        "backward": ("ms", "speed"),
        "size": ("MiB", "memory"),
        "cpu_time": ("s", "work"),
        "peak_rss": ("B", "memory"),
    }
    line = "forward: 3.21 ms  backward: 8.10 ms  size 12 MiB, rounds: 3"
    read = [match for p in task.pattern for match in [re.search(p, line)] if match is not None]
    assert [next(iter(m.groupdict().values())) for m in read] == ["3.21", "8.10", "12"]
    assert len(task.seeds) > 1
