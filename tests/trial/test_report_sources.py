"""Reports found in what a training prints, and in event files: byte by byte or at once."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celedger.base.model import EpochReport
from celedger.trial import report_sources
from celedger.trial.report_sources import EventFiles, Printed, event


def said(path: Path, text: str, *patterns: str) -> list[tuple[int, dict[str, float]]]:
    path.write_bytes(text.encode())
    source = Printed(path, patterns)
    return [(r.epoch, dict(r.values)) for r in source.read(end=True)]


def test_a_line_an_epoch_needs_no_epoch(tmp_path: Path) -> None:
    log = "start\nval_loss=0.5 acc=90\nval_loss=4e-1 acc=nan\nval_loss=inf acc=92"
    found = said(tmp_path / "log", log, r"val_loss=(?P<val_loss>\S+)", r"acc=(?P<acc>\S+)")
    assert str(found) == str(
        [
            (0, {"val_loss": 0.5, "acc": 90.0}),
            (1, {"val_loss": 0.4, "acc": float("nan")}),
            (2, {"val_loss": float("inf"), "acc": 92.0}),
        ]
    )


def test_an_epoch_line_tells_where_the_following_belong(tmp_path: Path) -> None:
    log = (
        "Epoch 1/2\n\rstep 1 loss 0.9\rstep 2 loss 0.8\nval 0.7\n"
        "Epoch 2/2\n\x1b[1mstep 1 loss\x1b[0m 0.6\nval 0.5\n"
    )
    patterns = (r"Epoch (?P<epoch>\d+)", r"loss (?P<loss>[\d.]+)", r"^val (?P<val_loss>[\d.]+)")
    assert said(tmp_path / "log", log, *patterns) == [
        (1, {"loss": 0.8, "val_loss": 0.7}),
        (2, {"loss": 0.6, "val_loss": 0.5}),
    ]


def test_fractions_of_an_epoch_belong_to_the_one_they_end_in(tmp_path: Path) -> None:
    log = "".join(
        f"{{'loss': {loss}, 'epoch': {e}}}\n" for loss, e in ((3, 0.5), (2, 1.0), (1, 1.5))
    )
    pattern = r"'loss': (?P<loss>[^,]+), 'epoch': (?P<epoch>[^}]+)"
    assert said(tmp_path / "log", log, pattern) == [(1, {"loss": 2.0}), (2, {"loss": 1.0})]


def test_what_is_printed_after_a_progress_bar_begins_a_line(tmp_path: Path) -> None:
    """As train_copy.py of x-transformers prints: each tenth second tqdm leaves its bar before."""
    log = (
        "0: 2.8\n\rtraining:   0%|          | 1/100000 [02:46<63:54:23,  2.30s/it]1: 2.7\n"
        "\r  0%|    | 2/? [00:01<?, ?it/s, loss=2.6]2: 2.5\n3: 2.4\n"
    )
    patterns = (r"^(?P<epoch>\d+): (?P<val_loss>\S+)", r"loss=(?P<loss>[\d.]+)")
    whole = said(tmp_path / "log", log, *patterns)
    assert whole == [
        (0, {"val_loss": 2.8}),
        (1, {"val_loss": 2.7, "loss": 2.6}),
        (2, {"val_loss": 2.5}),
        (3, {"val_loss": 2.4}),
    ]


def test_what_is_no_number_is_counted_and_an_absent_log_is_empty(tmp_path: Path) -> None:
    source = Printed(tmp_path / "log", ["loss=(?P<loss>.*)"])
    assert source.read(end=True) == []
    (tmp_path / "log").write_text("loss=high\nloss=0.5\n")
    assert source.read(end=True) == [EpochReport(0, {"loss": 0.5})]
    assert source.rubbish == 1


def test_a_log_that_was_cut_goes_on_at_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("noise\n" * 1000 + "loss=1\n")
    source = Printed(log, ["loss=(?P<loss>.*)"])
    found = source.read(end=False)
    log.write_text("noise\n[cut]\nloss=1\n")
    found += source.read(end=False)
    with log.open("a") as file:
        file.write("loss=2\n")
    found += source.read(end=True)
    assert found == [EpochReport(0, {"loss": 1.0}), EpochReport(1, {"loss": 2.0})]


@given(st.lists(st.integers(1, 40), max_size=20))
def test_pieces_give_what_the_whole_does(cuts: list[int]) -> None:
    import tempfile

    whole = b"".join(b"Epoch %d\nloss=%d\rloss=%d.5\n" % (e, e, e) for e in range(4))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.write_bytes(b"")
        source = Printed(log, [r"Epoch (?P<epoch>\d+)$", r"loss=(?P<loss>\S+)"])
        found, rest = [], whole
        for size in [*cuts, len(whole)]:
            with log.open("ab") as file:
                file.write(rest[:size])
            rest = rest[size:]
            found += source.read(end=False)
        found += source.read(end=True)
    assert found == [EpochReport(e, {"loss": e + 0.5}) for e in range(4)]


# --- event files


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = b""
    while True:
        out += bytes([(number & 0x7F) | (0x80 if number > 0x7F else 0)])
        number >>= 7
        if not number:
            return out


def scalar(step: int, tag: str, value: float) -> bytes:
    one = b"\x0a" + varint(len(tag)) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + varint(len(one)) + one
    return b"\x10" + varint(step) + b"\x2a" + varint(len(summary)) + summary


def record(body: bytes) -> bytes:
    return struct.pack("<QI", len(body), 0) + body + b"\0\0\0\0"


def test_an_event_file_is_read_as_it_grows(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "events.out.tfevents.1"
    file.parent.mkdir()
    whole = record(b"\x1a\x0dbrain.Event:2") + b"".join(
        record(scalar(step, tag, step + i / 4))
        for step in range(3)
        for i, tag in enumerate(("loss", "val loss"))
    )
    source = EventFiles(tmp_path, tmp_path)
    found = []
    for end in range(0, len(whole), 7):
        file.write_bytes(whole[:end])
        found += source.read(end=False)
    file.write_bytes(whole)
    found += source.read(end=True)
    assert found == [EpochReport(e, {"loss": e, "val_loss": e + 0.25}) for e in range(3)]
    assert not source.rubbish


def test_event_files_that_lay_there_before_are_not_the_trainings(tmp_path: Path) -> None:
    old, grown, new = (tmp_path / "runs" / name / "x.tfevents" for name in ("old", "grown", "new"))
    for file in (old, grown, new):
        file.parent.mkdir(parents=True)
    for file in (old, grown):
        file.write_bytes(record(scalar(0, "loss", 9.0)))
    (source,) = report_sources.of(
        {"tensorboard": "{tree}/runs"}, log=tmp_path / "log", out=tmp_path / "o", tree=tmp_path
    )
    with grown.open("ab") as stream:
        stream.write(record(scalar(1, "loss", 1.0)))
    new.write_bytes(record(scalar(2, "loss", 2.0)))
    found = [EpochReport(1, {"loss": 1.0}), EpochReport(2, {"loss": 2.0})]
    assert source.read(end=True) == found


@pytest.mark.parametrize("junk", [b"\xff" * 40, record(b"\xff" * 9), record(b"\x2a\x7f1")])
def test_what_is_no_event_file_is_said_to_be_rubbish(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "x.tfevents").write_bytes(junk)
    source = EventFiles(tmp_path, tmp_path)
    assert source.read(end=True) == []
    assert source.rubbish


@given(st.binary(max_size=60))
def test_no_bytes_raise_what_nobody_expects(body: bytes) -> None:
    try:
        event(body)
    except (ValueError, IndexError, struct.error):
        pass


def test_a_source_in_a_checkout_that_is_gone_is_left_out(tmp_path: Path) -> None:
    definition = {"pattern": ["x=(?P<x>.)"], "tensorboard": "{tree}/runs"}
    assert len(report_sources.of(definition, log=tmp_path / "l", out=tmp_path, tree=tmp_path)) == 2
    assert len(report_sources.of(definition, log=tmp_path / "l", out=tmp_path)) == 1


def test_event_files_behind_a_link_are_nobodys(tmp_path: Path) -> None:
    """A commit may have a link where its event files are to lie: to all that the user has."""
    tree, theirs = tmp_path / "tree", tmp_path / "theirs"
    (tree / "deep").mkdir(parents=True)
    theirs.mkdir()
    (theirs / "x.tfevents").write_bytes(record(scalar(0, "loss", 0.5)))
    (tree / "runs").symlink_to(theirs)
    (tree / "deep" / "y.tfevents").symlink_to(theirs / "x.tfevents")
    for folder in ("runs", "deep"):
        assert EventFiles(tree / folder, tree).read(end=True) == []
    (tree / "deep" / "z.tfevents").write_bytes(record(scalar(0, "loss", 0.5)))
    (report,) = EventFiles(tree / "deep", tree).read(end=True)
    assert report.values == {"loss": 0.5}
