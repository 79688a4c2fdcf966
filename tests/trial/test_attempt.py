"""One trial from begin to end, in this process: odd reports, odd clocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_project

from celedger import suite as suites
from celedger.base import config
from celedger.base.model import OutcomeKind, TrialRecord
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.trial import journal
from celedger.trial.engine import EpochReported, Need
from celedger.trial.permissions import Gate
from celedger.trial.runner import Bench
from celedger.trial.workplace import choose_tasks, local_bench

SUITE = """\
[metrics.val_loss]
direction = "lower"
[[task]]
name = "fit"
"""


@contextmanager
def bench_of(tmp_path: Path, command: str, **scripts: str) -> Iterator[Bench]:
    files = {f"{name}.py": text for name, text in scripts.items()}
    project = make_project(tmp_path / "project", f"{SUITE}{command}\n", files)
    project.history([1.0])
    repository = Repository.open(project.root)
    settings = config.load(repository.root, {})
    suite = suites.load(suites.find(None, settings, repository.root))
    with (
        Ledger.open(project.root / "ledger.db", create=True) as ledger,
        local_bench(
            repository, ledger, settings, suite, choose_tasks(suite, ()), label="test",
            gate=Gate.of(repository, attended=True),
        ) as bench,
    ):  # fmt: skip
        yield bench


def run(bench: Bench) -> TrialRecord:
    (task,) = choose_tasks(bench.suite, ())
    return bench.run(Need(bench.repository.resolve("HEAD"), task, 0))


FLOOD = """\
import os, time
lines = b"".join(b'{"epoch": %d, "val_loss": 1.0}\\n' % epoch for epoch in range(100_000))
os.write(int(os.environ["CELEDGER_FD"]), lines)
time.sleep(600)
"""


def test_what_a_flood_left_unread_is_not_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full one of 256 MiB took six minutes."""
    monkeypatch.setattr(journal, "LIMIT", 1 << 20)
    with bench_of(tmp_path, 'command = "{python} {suite}/flood.py"', flood=FLOOD) as bench:
        record = run(bench)
        assert record.outcome is not None
        assert record.outcome.kind is OutcomeKind.FAILED
        assert "reported more than 1 MiB" in record.outcome.message
        assert 0 < record.epochs <= 2 * journal.CHUNK // len('{"epoch": 0, "val_loss": 1.0}')
        assert not list(journal.folder(bench.ledger).iterdir())


def test_a_trial_ends_after_its_start_whatever_the_clock_says(tmp_path: Path) -> None:
    report = "from celedger.child import log; log(val_loss=1.0)"
    with bench_of(tmp_path, 'command = "{python} {suite}/fit.py"', fit=report) as bench:
        clock = itertools.count(2e9, -3600)  # set back by an hour at each look
        bench.setup = replace(bench.setup, now=lambda: next(clock))
        record = run(bench)
        assert record.outcome is not None
        assert 0 < record.outcome.ended - record.trial.started < 600


TORN = """\
import os, sys, time
os.write(int(os.environ["CELEDGER_FD"]), b'{"val_loss": %s}' % sys.argv[1].encode())
if sys.argv[1] == "2":
    os.write(int(os.environ["CELEDGER_FD"]), b"\\n")
    time.sleep(600)
"""
TWO = """\
commands.one = "{python} {suite}/torn.py 1"
commands.two = "{python} {suite}/torn.py 2"
timeout = "30s"
"""


def test_a_last_line_without_a_newline_is_a_report_and_spoils_none_of_the_next_command(
    tmp_path: Path,
) -> None:
    """Of the journal read once more, too, as after an interrupt."""
    with bench_of(tmp_path, TWO, torn=TORN) as bench:

        def interrupt(event: object) -> None:
            if isinstance(event, EpochReported) and event.number == 1:
                raise KeyboardInterrupt

        bench.station.listen = interrupt
        with pytest.raises(KeyboardInterrupt):
            run(bench)
        (record,) = bench.ledger.trials()
        assert bench.ledger.series(record.trial.ulid)["val_loss"] == [(0, 1.0), (1, 2.0)]
        assert record.outcome is not None
        assert record.outcome.marks == ()


def test_of_several_commands_the_log_and_the_reason_keep_apart(tmp_path: Path) -> None:
    """A silent failure of the second was told with the last words of the first."""
    two = """\
commands.train = "sh -c 'echo epoch 4'"
commands.test = "sh -c 'exit 3'"
"""
    with bench_of(tmp_path, two) as bench:
        record = run(bench)
        assert record.outcome is not None
        assert record.outcome.message == "test: exit status 3"
        log = (bench.ledger.folder / record.outcome.log).read_text()
        assert log == "==> train <==\nepoch 4\n\n==> test <==\n"


def test_output_is_found_by_the_parameters_the_commit_and_the_seed(tmp_path: Path) -> None:
    with bench_of(
        tmp_path, 'command = "touch {out}/{lr}"\ngrid = { lr = ["1e-3, cosine"] }'
    ) as bench:
        trial = run(bench).trial
        (file,) = (bench.ledger.private / "out").glob("*/*/*")
        assert file.name == "1e-3, cosine"
        assert file.parent.name == f"{trial.commit[:10]}-seed-{trial.seed}-{trial.ulid}"
        assert file.parent.parent.name == "fit-lr-1e-3-cosine"
        assert journal.stored_out_path(bench.ledger, trial.ulid) == file.parent
