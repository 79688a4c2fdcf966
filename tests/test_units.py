"""What celedger's own loop reports has a unit, declared or not."""

from __future__ import annotations

from pathlib import Path

from scripted import scripted

SUITE = '[suite]\nname = "tiny"\n[metrics.peak_memory]\ndirection = "lower"\n'
SUITE += '[[task]]\nname = "fit"\ncommand = "{python} {suite}/fit.py {seed}"\n'


def test_bytes_and_seconds_are_shown_as_such_without_a_declared_unit(tmp_path: Path) -> None:
    report = {"epoch": 0, "peak_memory": 416377515.0, "step_time_p90": 0.00125, "tokens": 416377515}
    project = scripted(tmp_path / "project", SUITE, lambda *_: iter([report]))
    project.history([1.0])
    project.run("run", "HEAD")
    shown = project.run("show").out
    assert "397.1 MiB" in shown
    assert "1.250 ms" in shown


def test_at_80_columns_no_verdict_and_no_failure_is_cut(tmp_path: Path) -> None:
    message = (
        "RuntimeError: the shapes of the batch and of the weights do not fit: " + "(64, 3) " * 9
    )

    def fail(model: dict, seed: int):
        if model["LEVEL"] > 1:
            raise RuntimeError(message.partition(": ")[2])
        yield {"epoch": 0, "val_loss": 1.0}

    project = scripted(tmp_path / "project", training=fail)
    project.history([1.0, 2.0])
    project.run("run", "HEAD")
    lines = project.run("show", env={"COLUMNS": "80"}).out
    assert message.strip() in " ".join(lines.split())
    assert max(map(len, lines.splitlines())) <= 80
