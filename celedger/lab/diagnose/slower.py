"""Compare the speed of two commits: profiles of both, run in turns, phase by phase and operator by
operator. Every table's rows add up to the whole difference, with a row for the remainder. The noise
is that of the repeats of one side. Reads documents of `celedger profile` and returns that of
`celedger profile GOOD..BAD`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import numpy as np

from celedger.lab.diagnose.speed_advice import PYTHON, WAITS
from celedger.lab.diagnose.stalls import Document, cause
from celedger.stats.tails import t_quantile

# A difference counts beyond Student's limit for this confidence, two-sided. The level is strict
# because two tests, of the whole and of all additions, are made for every pair after each turn.
CONFIDENCE = 0.999
# What is assumed of the spread between runs before any was seen: so much of the level, known as
# well as from so many degrees of freedom. Two runs a side alone would need 31 standard errors.
ASSUMED_SPREAD, ASSUMED_FREEDOM = 0.05, 4
FLOOR = 0.03  # of a step: the suites' own floor for step times
ROW_FLOOR = 0.01  # of a step: of one row
_ROUNDING = 1e-12  # of a step
UNDECIDED = 0.1  # of a step: a larger difference within the noise is not called the same
TURNS = "ABBA"  # drift of the machine that is linear in time cancels

Part = tuple[str, str, float, float | None]  # name, place, seconds and calls a step


def compare(before: Sequence[Document], after: Sequence[Document]) -> Document:
    """Compare the same number of profiles, at least two, of each side.

    Returns:
        `whole`: the row of the step. `phases`, `operators`, `functions`: rows that add up to it.
        `added`: the rows of operators that one side runs alone or more often, together.
        `new_stalls`, `new_waits`: those of the second side with a cause that the first lacks.
        `decisive`: the row that the verdict rests on: the whole, or `added` if the whole is within
        noise, or else, where the whole differs by more than `UNDECIDED`, the phase that differs
        most. None if none of them counts: `verdict` is "undecided" above that difference.
    """
    runs = len(before)
    wholes = [[_whole(run) for run in side] for side in (before, after)]
    step = float(np.mean(wholes[0]))
    whole = _row("step", "", wholes, FLOOR * step)
    ratio, most = _ratio(wholes)
    whole["beyond_noise"] = abs(ratio) > most
    tables = {
        name: _table(parts, before, after, ROW_FLOOR * step)
        for name, parts in (("phases", _phases), ("operators", _operators), ("functions", _lines))
    }
    changed = [row for row in tables["operators"] if row["change"] and row["name"] != PYTHON]
    added = total("added or removed", changed)
    level = max(added["before"], added["after"])
    limit_of_added = max(limit(added["noise"], runs, level), FLOOR * step)
    added["beyond_noise"] = abs(added["difference"]) > limit_of_added
    for rows in tables.values():  # the last row makes them add up
        rest = total("", rows)
        before_rest, after_rest = (
            left if abs(left := whole[side] - rest[side]) > _ROUNDING * step else 0.0
            for side in ("before", "after")
        )
        rows.append(_cells("remainder", "", before_rest, after_rest, whole["noise"]))
    hidden = abs(ratio) > math.log1p(UNDECIDED)
    phases = [p for p in tables["phases"] if abs(p["difference"]) > FLOOR * step] if hidden else []
    decisive = next((row for row in (whole, added, *phases) if row["beyond_noise"]), None)
    word = "undecided" if hidden else "same"
    if decisive is not None:
        word = "slower" if decisive["difference"] > 0 else "faster"
    return {
        "runs": runs,
        "verdict": word,
        "decisive": None if decisive is None else decisive["name"],
        "whole": whole,
        "added": added,
        **tables,
        "new_stalls": _new(before, after, lambda run: run["stalls"]["found"], cause),
        "new_waits": _new(
            before, after, lambda run: [w for w in run["waits"] if w["times"] >= WAITS]
            if run["environment"]["device"] == "cuda" else [],  # on a CPU nothing waits
            lambda wait: (wait["method"], wait["file"], wait["function"]),
        ),
    }  # fmt: skip


def in_turns(run: Callable[[int, int], Document], turns: int) -> list[list[Document]]:
    """Run both sides in turns until it is plain which is slower: one turn tells a difference
    of a third. `run` takes the side and how many runs are left at most."""
    sides: list[list[Document]] = [[], []]
    left = len(TURNS) * turns
    while left:
        for side in map(TURNS.index, TURNS):
            sides[side].append(run(side, left))
            left -= 1
        if compare(*sides)["verdict"] in ("faster", "slower"):
            break
    return sides


def inclusive(runs: Sequence[Document]) -> dict[tuple[str, str, int], float]:
    """Return the seconds a step, with what they call, of lines by file and function."""
    seconds: dict[tuple[str, str, int], float] = defaultdict(float)
    for run in runs:
        for row in run["inclusive"]:
            share = row["share"] * _whole(run) / len(runs)
            seconds[row["file"], row["function"], row["line"]] += share
    return seconds


def _ratio(wholes: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the logarithm of how many times as long a step takes, and the least that counts.
    What slows a run slows all of its steps by one factor, so the noise is that of logarithms."""
    a, b = (np.log(side) for side in wholes)
    noise = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / len(a))
    return float(b.mean() - a.mean()), max(limit(noise, len(a), 1.0), math.log1p(FLOOR))


def limit(noise: float, runs: int, level: float) -> float:
    """Return the difference of two means of `runs` that counts, for a standard error `noise` of it:
    by the noise alone, or by that and what is assumed of a `level`, whichever tells more."""
    freedom = 2 * (runs - 1)
    variance = noise**2 * runs / 2  # of one run
    assumed = (ASSUMED_SPREAD * level) ** 2
    both = ASSUMED_FREEDOM + freedom
    pooled = (ASSUMED_FREEDOM * assumed + freedom * variance) / both
    return min(_errors(freedom) * noise, _errors(both) * math.sqrt(2 * pooled / runs))


@cache
def _errors(freedom: int) -> float:
    """Return the number of standard errors beyond which a difference counts."""
    return t_quantile(0.5 + CONFIDENCE / 2, freedom)


def total(name: str, rows: Iterable[Document]) -> Document:
    """Return the sum of rows, with errors as if independent."""
    rows = list(rows)
    noise = math.sqrt(sum(row["noise"] ** 2 for row in rows))
    before, after = (sum(row[side] for row in rows) for side in ("before", "after"))
    return _cells(name, "", before, after, noise)


def _cells(
    name: str,
    where: str,
    before: float,
    after: float,
    noise: float,
    beyond_noise: bool = False,
    calls: tuple[float, float] | None = None,
) -> Document:
    """Return one part of the difference, seconds a step. `before` and `after` are means over the
    runs of a side, `noise` the standard error of their difference; `beyond_noise`: noise does not
    explain it. `calls`: calls of the operator a step on each side, if every run agreed; `change` is
    new, gone, or called more or less often."""
    change = None
    if calls is not None and calls[0] != calls[1]:
        change = "added" if not calls[0] else "calls" if calls[1] else "removed"
    return {
        "name": name, "where": where, "before": before, "after": after, "noise": noise,
        "beyond_noise": beyond_noise, "calls": calls, "difference": after - before,
        "change": change,
    }  # fmt: skip


def _stalled(profile: Document) -> float:
    seconds = sum(stall["seconds"] for stall in profile["stalls"]["found"])
    return float(seconds / profile["steps"]["timed"])


def _evaluated(profile: Document) -> float:
    return float(profile["evaluation"]["seconds"] / profile["steps"]["count"])


def _whole(profile: Document) -> float:
    """Return the seconds of a usual step, with its share of stalls and evaluations."""
    usual = float(np.median(profile["steps"]["seconds"]))
    return usual + _stalled(profile) + _evaluated(profile)


def _phases(profile: Document) -> Iterator[Part]:
    for row in profile["phases"]:
        if row["name"] != "step":
            yield row["name"], "", row["median"], None
    yield "evaluation", "", _evaluated(profile), None
    yield "stalls", "", _stalled(profile), None


def _operators(profile: Document) -> Iterator[Part]:
    """Yield the operators with their shares, under the profiler, of a usual step without it."""
    rows = [row for row in profile["operators"]["rows"] if row["phase"] != "evaluation"]
    usual = float(np.median(profile["steps"]["seconds"]))
    scale = usual / (sum(row["seconds"] for row in rows) or 1.0)
    for row in rows:
        module = "" if row["module"] is None else f" {row['module'] or 'the model'}"
        yield row["name"], f"{row['phase']}{module}", row["seconds"] * scale, row["calls"]
    yield "(evaluation)", "", _evaluated(profile), None
    yield "(stalls)", "", _stalled(profile), None


def _lines(profile: Document) -> Iterator[Part]:
    for line in profile["lines"]:
        yield line["function"], line["file"], line["share"] * _whole(profile), None


def _table(
    parts: Callable[[Document], Iterable[Part]],
    before: Sequence[Document],
    after: Sequence[Document],
    floor: float,
) -> list[Document]:
    """Return the rows of both sides, the largest difference first."""
    runs = [*before, *after]
    seconds: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(len(runs)))
    calls: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(len(runs)))
    for number, run in enumerate(runs):
        for name, where, spent, times in parts(run):
            seconds[name, where][number] += spent
            calls[name, where][number] += np.nan if times is None else times
    rows = []
    for (name, where), values in seconds.items():
        a, b = np.split(calls[name, where], [len(before)])
        pair = (float(a[0]), float(b[0])) if np.ptp(a) == 0 == np.ptp(b) else None
        rows.append(_row(name, where, np.split(values, [len(before)]), floor, pair))
    return sorted(rows, key=lambda row: -abs(row["difference"]))


def _row(
    name: str,
    where: str,
    sides: Sequence[Sequence[float] | np.ndarray],
    floor: float,
    calls: tuple[float, float] | None = None,
) -> Document:
    a, b = map(np.asarray, sides)
    noise = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    level = max(float(a.mean()), float(b.mean()))
    beyond = bool(abs(b.mean() - a.mean()) > max(limit(noise, len(a), level), floor))
    return _cells(name, where, float(a.mean()), float(b.mean()), noise, beyond, calls)


def _new(
    before: Sequence[Document],
    after: Sequence[Document],
    rows: Callable[[Document], Iterable[Document]],
    of: Callable[[Document], object],
) -> list[Document]:
    """Return those of more than half of the runs after, with a cause (`of`) that no run before
    has."""
    old = {of(row) for run in before for row in rows(run)}
    new: dict[object, list[Document]] = defaultdict(list)
    for run in after:
        for key, row in {of(row): row for row in rows(run)}.items():
            new[key].append(row)
    return [same[0] for key, same in new.items() if key not in old and len(same) > len(after) / 2]
