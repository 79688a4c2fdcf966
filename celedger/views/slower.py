"""`celedger profile GOOD..BAD TASK`: two commits side by side, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from celedger.diagnose.profile import MEANING
from celedger.diagnose.slower import SpeedComparison, SpeedRow
from celedger.model import Commit
from celedger.views.export import Json, document
from celedger.views.format import PLUS_MINUS, change, clip, count, measure, percent, plain, short
from celedger.views.profile import stall_json, stall_text
from celedger.views.tables import Column, table

ROWS = 8  # of a table's text; the others go into one row, and JSON has all
LEAST = 1e-10  # s; what is left of a sum of floats is no difference
_COLUMNS = ("before", "after", "difference", "noise")


def verdict(compared: SpeedComparison) -> str:
    whole, added = compared.whole, compared.added
    part = percent(whole.difference / whole.before)
    word = "slower" if compared.slower else "faster" if compared.faster else ""
    if not word:
        return f"no difference beyond noise: a step takes {part}"
    if whole.beyond:
        return f"{word}: a step takes {part}"
    return (
        f"{word}: operators added or removed make {percent(added.difference / whole.before)} "
        f"of a step (the whole step's {part} is within its noise)"
    )


def slower_text(
    task: str,
    sides: tuple[Commit, Commit],
    seed: int,
    compared: SpeedComparison,
    *,
    width: int = 100,
) -> str:
    before, after = (f"{short(c.sha)} {plain(c.subject)}" for c in sides)
    whole = compared.whole
    figures = (
        f"{_difference(whole)} {PLUS_MINUS} {measure(whole.noise, unit='s', significant=2)} "
        f"of {measure(whole.before, unit='s', significant=3)}"
    )
    head = [
        clip(f"{task}, seed {seed}, {count(compared.runs, 'run')} of each in turns", width),
        clip(f"  before  {before}", width),
        clip(f"  after   {after}", width),
        "",
        f"{verdict(compared)} ({figures})",
    ]
    head += [f"new stall: {stall_text(stall)}" for stall in compared.stalls]
    head += [
        f"new wait for the device: {wait.times:.3g} × .{wait.method}() a step at {wait.place}"
        for wait in compared.waits
    ]
    parts = [
        "\n".join(head),
        _table("phase", compared.phases, compared.whole, width),
        _table("operator", grouped(compared.operators), compared.whole, width),
        _table("function", compared.functions, compared.whole, width),
    ]
    return "\n\n".join(parts)


def slower_json(
    task: str, sides: tuple[Commit, Commit], seed: int, compared: SpeedComparison
) -> dict[str, Json]:
    return document(
        kind="profile-difference",
        task=task,
        before=sides[0].sha,
        after=sides[1].sha,
        seed=seed,
        runs=compared.runs,
        verdict="slower" if compared.slower else "faster" if compared.faster else "same",
        whole=_row_json(compared.whole),
        added=_row_json(compared.added),
        phases=[_row_json(row) for row in compared.phases],
        operators=[_row_json(row) for row in compared.operators],
        functions=[_row_json(row) for row in compared.functions],
        new_stalls=[stall_json(stall) for stall in compared.stalls],
        new_waits=[
            {"method": wait.method, "place": str(wait.place), "times": wait.times}
            for wait in compared.waits
        ],
    )


def shown(rows: Sequence[SpeedRow], most: int = ROWS) -> list[SpeedRow]:
    """The largest differences, those beyond noise and those of operators added or removed first;
    one row for the others, and the remainder: they still add up."""
    *some, remainder = rows
    ranked = [row for row in some if row.before or row.after]
    ranked.sort(key=lambda row: (not row.beyond, not row.change, -abs(row.difference)))
    some, others = ranked[:most], ranked[most:]
    if others:
        before, after = sum(row.before for row in others), sum(row.after for row in others)
        noise = sum(row.noise**2 for row in others) ** 0.5
        some.append(SpeedRow(f"{len(others)} others", "", before, after, noise, beyond=False))
    return [*some, remainder]


def grouped(rows: Sequence[SpeedRow]) -> tuple[SpeedRow, ...]:
    """The same operator in the same phase as one row, named by the module that differs most."""
    *ranked, remainder = rows
    parts: dict[tuple[str, str], list[SpeedRow]] = {}
    for row in ranked:
        phase = row.where.partition(" ")[0]
        parts.setdefault((row.name, phase), []).append(row)
    found = []
    for (name, phase), members in parts.items():
        largest = max(members, key=lambda row: (bool(row.change), abs(row.difference)))
        differing = sum(bool(row.change) for row in members)
        where = largest.where.removeprefix(phase).strip()
        where = " ".join(filter(None, (phase, where, f"+{differing - 1}" * (differing > 1))))
        known = [row.calls for row in members if row.calls is not None]
        calls = (sum(a for a, _ in known), sum(b for _, b in known))
        found.append(
            SpeedRow(
                name, where, sum(row.before for row in members), sum(row.after for row in members),
                sum(row.noise**2 for row in members) ** 0.5,
                any(row.beyond for row in members),
                calls if len(known) == len(members) else None,
            )
        )  # fmt: skip
    return (*found, remainder)


def _table(head: str, rows: Sequence[SpeedRow], whole: SpeedRow, width: int) -> str:
    cells = [
        (
            plain(MEANING.get(row.name, row.name) if head == "phase" else row.name),
            plain(row.where),
            *(measure(v, unit="s", significant=3) for v in (row.before, row.after)),
            _difference(row),
            measure(row.noise, unit="s", significant=2),
            _said(row),
        )
        for row in (*shown(rows), whole)
    ]
    where = {"operator": "in", "function": "file"}.get(head, "")
    columns = [
        Column(head, shrink=True), Column(where, shrink=True),
        *(Column(name, right=True) for name in _COLUMNS), Column(""),
    ]  # fmt: skip
    return table(columns, cells, width=width)


def _difference(row: SpeedRow) -> str:
    if abs(row.difference) < LEAST:
        return "0 s"
    return change(row.difference, unit="s", like=row.difference)


def _said(row: SpeedRow) -> str:
    words = []
    if row.change and row.calls is not None:
        before, after = (f"{value:.3g}" for value in row.calls)
        words.append(row.change if row.change != "calls" else f"{before} → {after} calls")
    if row.beyond:
        words.append("slower" if row.difference > 0 else "faster")
    return ", ".join(words)


def _row_json(row: SpeedRow) -> dict[str, object]:
    return {
        "name": row.name, "where": row.where, "before": row.before, "after": row.after,
        "difference": row.difference, "noise": row.noise, "beyond_noise": row.beyond,
        "change": row.change or None, "calls": row.calls,
    }  # fmt: skip
