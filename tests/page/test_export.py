"""What other programs read is read by them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import tracemalloc
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import git
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from scripted import ScriptedProject, descend, scripted

from celedger.cli.app import run as run_program
from celedger.ledger import Ledger
from celedger.page import formats as export

ODD = 'a "quoted" \\ back\\slash'


def losing(model: dict, seed: int):
    yield {"epoch": 0, "val_loss": model["LEVEL"] + seed / 8}
    yield {"epoch": 1, "val_loss": float("nan") if model["LEVEL"] > 2 else model["LEVEL"]}


@pytest.fixture
def project(tmp_path: Path) -> ScriptedProject:
    made = scripted(tmp_path / "project", training=losing)
    made.history([1.0, 1.5, 3.0])
    made.run("run", "HEAD~2..HEAD")
    return made


def test_prometheus_reads_openmetrics(project: ScriptedProject) -> None:
    text = project.run("export", "HEAD~1", "--format", "openmetrics").out
    families = {f.name: f for f in text_string_to_metric_families(text)}
    names = {"value", "value_seconds", "value_bytes", "trials", "regressed", "commit"}
    assert set(families) == {f"celedger_{name}" for name in names}
    seconds = families["celedger_value_seconds"]
    assert (seconds.unit, {s.labels["unit"] for s in seconds.samples}) == ("seconds", {"s"})
    assert [export._unit(unit) for unit in ("1/s", "img/s", "MB", "°C", "µ")] == [
        "1_per_s",
        "img_per_s",
        "MB",
        "C",
        "",
    ]
    values = {s.labels["metric"]: s for s in families["celedger_value"].samples}
    assert values["val_loss"].value == 1.5
    assert values["val_loss"].labels["direction"] == "lower"
    newest = project.run("export", "--format", "openmetrics").out
    values = {s.labels["metric"]: s.value for f in text_string_to_metric_families(newest)
              for s in f.samples if f.name == "celedger_value"}  # fmt: skip
    assert math.isnan(values["val_loss"])
    odd = f"# TYPE x gauge\nx{export._labels(name=ODD)} 1\n# EOF\n"
    (family,) = text_string_to_metric_families(odd)
    assert family.samples[0].labels == {"name": ODD}


def test_regressed_is_what_the_state_says(tmp_path: Path) -> None:
    """At each task's newest commit, or at a commit that is named as it was known there."""

    def train(model: dict, seed: int):
        yield from ({**report, "beside": 1.0} for report in descend(model, seed))

    project = scripted(tmp_path / "project", training=train)
    shas = project.history([1.0, 1.0, 1.5, 1.5, 1.0])
    for sha in shas[:4]:
        project.run("check", sha)

    def regressed(*words: str) -> dict[str, float]:
        text = project.run("export", *words, "--format", "openmetrics").out
        (family,) = (
            f for f in text_string_to_metric_families(text) if f.name == "celedger_regressed"
        )
        return {s.labels["metric"]: s.value for s in family.samples}

    assert regressed()["val_loss"] == 1
    assert regressed(shas[1])["val_loss"] == 0
    assert regressed(shas[2])["val_loss"] == 1
    assert "beside" not in regressed(), "it has no direction"
    project.run("check", shas[4])
    assert regressed()["val_loss"] == 0


def test_a_pipe_and_a_link_are_written_to(project: ScriptedProject, tmp_path: Path) -> None:
    """`-o /dev/full` made a file of the device, and `-o /dev/stdout` of the link there."""
    pipe, link, target = (tmp_path / name for name in ("pipe", "link", "target"))
    os.mkfifo(pipe)
    target.write_text("old")
    link.symlink_to(target)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        done = project.run("export", "--format", "openmetrics", "-o", str(pipe))
        assert (done.status, "# EOF" in reader.read()) == (0, True), done.err
    assert pipe.is_fifo()
    project.run("export", "--format", "openmetrics", "-o", str(link))
    assert link.is_symlink() and target.read_text().endswith("# EOF\n")


def test_a_badge_says_how_much_is_worse(tmp_path: Path) -> None:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.0, 1.5])

    def badge(*words: str) -> str:
        picture = ElementTree.fromstring(project.run("export", *words, "--format", "badge").out)
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        return picture.attrib["aria-label"]

    for sha in shas[:2]:
        project.run("check", sha)
    assert badge(shas[1]) == "training: ok"
    assert project.run("check", shas[2]).status == 1
    assert badge() == "training: 1 worse"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_nothing_to_obey_and_a_program_all(
    project: ScriptedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a\x1b]0;owned\x07,\u202eb\nc\n"
    monkeypatch.setattr(export, "csv_lines", lambda _: iter([text]))
    monkeypatch.chdir(project.root)
    for stream, expected in (
        (Terminal(), "a\\x1b]0;owned\\x07,\\u202eb\nc\n"),
        (io.StringIO(), text),
    ):
        with contextlib.redirect_stdout(stream):
            assert run_program(["export"]) == 0
        assert stream.getvalue() == expected


def test_the_newest_of_commits_of_one_second_is_the_last_in_history(tmp_path: Path) -> None:
    project = scripted(tmp_path / "project", training=losing)
    project.history([1.0, 1.5, 2.0])
    now = {"GIT_COMMITTER_DATE": "@1700000000 +0000"}
    git(project.root, "rebase", "--quiet", "--root", "--force-rebase", env=now)
    assert len(set(git(project.root, "log", "-3", "--format=%ct").split())) == 1
    for revision in ("HEAD", "HEAD~2", "HEAD~1"):
        project.run("run", revision)
    form = ("--format", "openmetrics")
    newest = project.run("export", *form).out
    assert newest == project.run("export", "HEAD", *form).out
    assert newest != project.run("export", "HEAD~1", *form).out


def test_csv_and_json_lines_hold_every_value(project: ScriptedProject) -> None:
    rows = list(csv.DictReader(io.StringIO(project.run("export").out)))
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        stored = [
            (r.trial.ulid, str(epoch), name, str(value))
            for r in ledger.trials()
            for name, series in ledger.series(r.trial.ulid).items()
            for epoch, value in series
        ]
    exported = [(r["trial"], r["epoch"], r["metric"], r["value"]) for r in rows]
    assert sorted(exported) == sorted(stored)
    objects = [
        json.loads(x) for x in project.run("export", "HEAD", "--format", "jsonl").out.splitlines()
    ]
    lost = [o for o in objects if o["metric"] == "val_loss" and o["epoch"] == 1]
    assert {(o["value"], o["not_finite"]) for o in lost} == {(None, "nan")}


@pytest.mark.matrix
def test_memory_does_not_grow_with_the_ledger(tmp_path: Path) -> None:
    project = scripted(
        tmp_path / "project",
        training=lambda model, seed: ({"epoch": e, "val_loss": 1.0} for e in range(5000)),
    )
    project.history([1.0])
    project.run("run", "HEAD")
    with Ledger.open(project.root / "ledger.db", readonly=True) as ledger:
        for _ in export.csv_lines(ledger.values()):  # what is made once
            pass
        tracemalloc.start()
        length = sum(map(len, export.csv_lines(ledger.values())))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert length > 1_500_000
    assert peak < 500_000
