"""The adapters with the libraries they are for: one training, reported by `celedger.child.log`
and by each adapter, gives the same rows of the ledger. The scripts are forks of one process that
imported the libraries: that takes ten seconds, a training less than one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest
from forked import FINISH

from celedger.base.model import Commit, Environment, Purpose, Task, Trial
from celedger.ledger import Ledger, ulid
from celedger.trial.journal import Journal
from celedger.trial.report_sources import EventFiles, Source

pytestmark = pytest.mark.xdist_group("adapters")  # one process imports the libraries

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMIT = Commit("a" * 40, "b" * 40, (), "Ada", 0, 0, "first")

Rows = dict[str, list[tuple[int, float]]]


def rows(ledger: Ledger, journal: Path, *sources: Source) -> Rows:
    """What the ledger holds once a trial's reports are taken in: metric -> (epoch, value)."""
    task = Task("s", "t", ())
    environment = Environment("e" * 64, {})
    ledger.record_commits([COMMIT])
    ledger.record_task(task)
    ledger.record_environment(environment)
    name = ulid.new(1.0, Random(str(journal)))
    ledger.start_trial(
        Trial(name, COMMIT.sha, task.recipe, environment.fingerprint, 0, Purpose.RUN, 1.0, "box")
    )
    follower = Journal(journal, ledger, name)
    follower.sources = list(sources)
    follower.follow()
    assert not follower.marks
    return ledger.series(name)


_SERVER = (
    FINISH
    + """
import gc, json, os, runpy, sys
gc.set_threshold(100_000)
import lightning.pytorch, torch._dynamo, transformers
for line in sys.stdin:
    job = json.loads(line)
    if pid := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    os.chdir(job["cwd"])
    err = os.open("err.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(err, 1)
    os.dup2(err, 2)
    if "journal" in job:
        fd = os.open(job["journal"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.environ["CELEDGER_FD"] = str(fd)
    os.environ.update(job["env"])
    sys.path[0] = job["cwd"]
    sys.argv = job["argv"]
    if os.path.exists(sys.argv[0]):
        finish(runpy.run_path, sys.argv[0], run_name="__main__")
    finish(runpy.run_module, sys.argv[0], run_name="__main__", alter_sys=True)
"""
)
# Run a script or module with its arguments in a folder; return its status and what it printed.
Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    for name in ("lightning", "accelerate", "transformers"):
        pytest.importorskip(name)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
           "PYTHONWARNINGS": "ignore"}  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=env, stderr=subprocess.DEVNULL,
    ) as server:  # fmt: skip
        stdin, stdout = server.stdin, server.stdout
        assert stdin is not None and stdout is not None

        def run(
            cwd: Path, *argv: str, env: dict[str, str] | None = None, **job: str
        ) -> tuple[int, str]:
            order = {"cwd": str(cwd), "argv": argv, "env": env or {}, **job}
            stdin.write(json.dumps(order) + "\n")
            stdin.flush()
            return int(stdout.readline()), (cwd / "err.txt").read_text()

        yield run
        stdin.close()


def trained(run: Run, script: str, tmp_path: Path, *, steps: bool = False) -> tuple[Path, Path]:
    """The journals of a script's two trainings."""
    journals = (tmp_path / "by_log.jsonl", tmp_path / "by_adapter.jsonl")
    more = {"CELEDGER_STEPS": "1"} if steps else {}
    argv = (str(HERE / script), *map(str, journals), str(tmp_path / "out"))
    status, err = run(tmp_path, *argv, env=more)
    assert status == 0, err
    return journals


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "ledger.db", create=True)


@pytest.mark.matrix
def test_lightnings_logger_reports_what_log_does(ledger: Ledger, tmp_path: Path, run: Run) -> None:
    by_log, by_logger = trained(run, "adapter_lightning.py", tmp_path, steps=True)
    found = rows(ledger, by_log)
    assert set(found) == {"loss", "mean_loss", "val_loss"}
    assert [epoch for epoch, _ in found["val_loss"]] == [0, 1, 2]
    assert rows(ledger, by_logger) == found
    # Asked for steps: what was logged every step is a series, what was once an epoch is not.
    series = [t.trial.ulid for t in ledger.trials() if ledger.steps(t.trial.ulid)]
    steps = ledger.steps(series[0])
    assert set(steps) == {"loss"} and set(steps["loss"]) == {0, 1, 2}
    assert [values[-1] for values in steps["loss"].values()] == [v for _, v in found["loss"]]
    assert all(len(values) == 4 for values in steps["loss"].values())


@pytest.mark.matrix
def test_the_trainers_callback_reports_what_log_does(
    ledger: Ledger, tmp_path: Path, run: Run
) -> None:
    by_log, by_callback = trained(run, "adapter_huggingface.py", tmp_path)
    found = rows(ledger, by_log)
    assert set(found) == {"loss", "grad_norm", "learning_rate", "eval_loss"}
    assert [epoch for epoch, _ in found["eval_loss"]] == [0, 1, 2]
    reported = rows(ledger, by_callback)
    assert {name: reported[name] for name in found} == found
    # The clocks of the Trainer (`eval_runtime`, `eval_steps_per_second`) only filled the list.
    assert set(reported) - set(found) == {"train_loss", "total_flos"}


PLAIN_LIGHTNING = """\
import sys
import torch
import lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset
class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss)  # at its 50th step
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
pl.Trainer(
    max_epochs=int(sys.argv[1]), logger=False, accelerator="cpu", enable_progress_bar=False,
    enable_checkpointing=False, enable_model_summary=False,
).fit(Line(), DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=4))
"""
PLAIN_TRANSFORMERS = """\
import sys
import torch
from transformers import Trainer, TrainingArguments
class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, x, labels):
        return {"loss": (self.layer(x) - labels).square().mean()}
data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 8
arguments = TrainingArguments(
    output_dir="out", num_train_epochs=int(sys.argv[1]), logging_strategy="epoch",
    save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
)
Trainer(Line(), arguments, train_dataset=data).train()
"""


@pytest.mark.matrix
def test_an_evaluation_after_the_training_is_of_its_last_epoch(
    ledger: Ledger, tmp_path: Path, run: Run
) -> None:
    """`trainer.evaluate()` was reported to nobody; a second one repeats what the first said."""
    made, script = "Trainer(Line(), arguments, train_dataset=data", PLAIN_TRANSFORMERS
    script = script.replace(f"{made}).train()", f"t = {made}, eval_dataset=data)\nt.train()\n")
    evaluated = rows(ledger, run_by(run, "huggingface", script + "t.evaluate()\n" * 2, tmp_path))
    assert [epoch for epoch, _ in evaluated["eval_loss"]] == [2]
    assert [epoch for epoch, _ in evaluated["loss"]] == [0, 1, 2]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("library", "script"),
    [("lightning", PLAIN_LIGHTNING), ("huggingface", PLAIN_TRANSFORMERS)],
    ids=["lightning", "transformers"],
)
def test_a_script_that_reports_nothing_is_run_as_it_is(
    ledger: Ledger, tmp_path: Path, run: Run, library: str, script: str
) -> None:
    journal = run_by(run, library, script, tmp_path)
    assert [epoch for epoch, _ in rows(ledger, journal)["loss"]] == [0, 1, 2]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("library", "script"),
    [("lightning", PLAIN_LIGHTNING), ("huggingface", PLAIN_TRANSFORMERS)],
    ids=["lightning", "transformers"],
)
def test_a_script_without_options_is_made_short(
    ledger: Ledger, tmp_path: Path, run: Run, library: str, script: str
) -> None:
    """`init` proposed the whole training."""
    journal = run_by(run, library, script, tmp_path, "--epochs", "2")
    assert [epoch for epoch, _ in rows(ledger, journal)["loss"]] == [0, 1]


@pytest.mark.matrix
@pytest.mark.parametrize("library", ["lightning", "huggingface"])
def test_a_traceback_begins_in_the_script(tmp_path: Path, run: Run, library: str) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.no_such()\n")
    status, err = run(tmp_path, f"celedger.child.{library}", "train.py")
    frames = [line for line in err.splitlines() if line.startswith("  File")]
    assert status == 1 and "train.py" in frames[0] and "line 2" in frames[0]


def run_by(run: Run, library: str, script: str, tmp_path: Path, *options: str) -> Path:
    """Return the journal of a script that trains three epochs, run by an adapter."""
    (tmp_path / "train.py").write_text(script)
    journal = tmp_path / "journal.jsonl"
    argv = (f"celedger.child.{library}", *options, "train.py", "3")
    status, err = run(tmp_path, *argv, journal=str(journal))
    assert status == 0, err
    return journal


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs tensorboard")
@pytest.mark.parametrize("told", [False, True])
def test_event_files_hold_what_log_reports(
    ledger: Ledger, tmp_path: Path, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tag that tells the epoch, as Lightning writes it, steps may count anything."""
    pytest.importorskip("torch")
    from torch.utils.tensorboard import SummaryWriter

    from celedger.child import log

    journal = tmp_path / "by_log.jsonl"
    fd = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    monkeypatch.setenv("CELEDGER_FD", str(fd))
    draw = Random(1)
    with SummaryWriter(tmp_path / "runs") as writer:
        for epoch in range(3):
            loss = train_loss = 0.0
            for batch in range(4):
                # What torch computes, and TensorBoard keeps: 32 bits.
                train_loss, loss = (int(draw.random() * 2**24) / 2**24 for _ in range(2))
                if told:
                    writer.add_scalar("train_loss", train_loss, epoch * 4 + batch)
                    writer.add_scalar("epoch", epoch, epoch * 4 + batch)
            at = epoch * 4 + 3 if told else epoch
            writer.add_scalar("train_loss", train_loss, at)
            writer.add_scalar("val/loss", loss, at, new_style=epoch == 1)
            if told:
                writer.add_scalar("epoch", epoch, at)
            log(epoch=epoch, train_loss=train_loss, **{"val/loss": loss})
    os.close(fd)
    found = rows(ledger, journal)
    assert len(found["val/loss"]) == 3
    (tmp_path / "none.jsonl").touch()
    assert rows(ledger, tmp_path / "none.jsonl", EventFiles(tmp_path / "runs", tmp_path)) == found
