"""`celedger profile --try` as text: a table of the switches that were tried, and why others were
not. Its document is that of celedger/lab/diagnose/tries.py."""

from __future__ import annotations

from celedger.lab.diagnose.stalls import Document
from celedger.lab.views.explain import columns
from celedger.lab.views.profile import ProfileTarget, seconds, size
from celedger.views.document import clip, count, number, percent, plain, table, wrap


def tries_text(target: ProfileTarget, document: Document, *, width: int = 100) -> str:
    settings, base = document["environment"], document["plain"]
    where = f"{settings['torch']}, {settings['device']}, {count(settings['threads'], 'thread')}"
    ran = f"{count(document['steps'], 'step')}, {document['timed']} timed"
    head = [*target.titles(width), f"seed {target.seed}, torch {where}; {ran} a run, in turns"]
    rows = [("plain", seconds(base["step_seconds"]), "", "", size(base["peak_bytes"]), "",
             _loss(base["loss"]), "", str(base["runs"]))]  # fmt: skip
    for row in document["tried"]:
        peak = row["peak_bytes"] / base["peak_bytes"] - 1 if base["peak_bytes"] else 0.0
        rows.append((
            row["switch"], seconds(row["step_seconds"]), _signed(row["change"]),
            f"{_signed(row['low'])} to {_signed(row['high'])}", size(row["peak_bytes"]),
            _signed(peak), _loss(row["loss"]), _bits(row), str(row["runs"]),
        ))  # fmt: skip
    heads = columns(
        "switch", ">a step", ">change", ">95 % interval", ">peak memory", ">change",
        f">loss after {document['steps']}", "its bits", ">runs",
    )  # fmt: skip
    notes = [
        f"{row['switch']}: compiling took {seconds(row['compile_seconds'])} once, not counted above"
        for row in document["tried"]
        if row["compile_seconds"] is not None
    ]
    if not document["repeatable"]:
        notes.append("the plain runs differ in their losses, so no other loss can be judged")
    refused = [
        line
        for row in document["refused"]
        for line in wrap(f"  {row['switch']}: {plain(row['reason'])}", width, indent=4)
    ]
    parts = [
        "\n".join(clip(line, width) for line in head),
        "\n".join([table(heads, rows, width=width), *notes]),
        "\n".join(["without a result", *refused] if refused else []),
    ]
    return "\n\n".join(filter(None, parts))


def tries_headline(document: Document) -> str:
    """Return the switch that saves most time beyond noise, and that which saves most memory."""
    base, tried = document["plain"], document["tried"]
    faster = [row for row in tried if row["high"] < 0]
    smaller = min(tried, key=lambda row: row["peak_bytes"], default=None)
    parts = [f"{row['switch']}: a step takes {_signed(row['change'])}" for row in faster[:1]]
    if smaller is not None and smaller["peak_bytes"] < 0.9 * base["peak_bytes"]:
        part = smaller["peak_bytes"] / base["peak_bytes"] - 1
        parts.append(f"{smaller['switch']}: peak memory {_signed(part)}")
    return "; ".join(parts) or "no switch makes a step faster beyond noise"


def _signed(share: float) -> str:
    return f"{'+' if share > 0 else ''}{percent(share)}"


def _loss(value: float | None) -> str:
    return number(value) if value is not None else ""


def _bits(row: Document) -> str:
    first = row["first_difference"]
    if row["losses"] != "rounding" or first is None:
        return str(row["losses"])
    return f"rounding ({first['share']:.0e} at first)"
