"""Tables of scores in Markdown, the targets beside, and what is missed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lives.noise import QUALITY, SPEED
from lives.scenes import Scene
from lives.score import Cell, Score, pooled

MISSED = 2.0  # standard errors


@dataclass(frozen=True)
class Target:
    """A limit for a cell. `each`: that of a single kind of noise, if another one holds there."""

    cell: str
    quality: float
    speed: float
    at_least: bool = True
    factor: float = 100.0
    unit: str = "%"
    each: float | None = None

    def limit(self, kinds: tuple[str, ...]) -> float:
        if self.each is not None and len(kinds) == 1:
            return self.each
        return self.quality if kinds[0] in QUALITY else self.speed


LIVES = (1000.0, "in 1,000 lives")
COMMITS = (1000.0, "in 1,000 commits")
TARGETS = (
    Target("found 2.5-4", 87, 70),
    Target("found 4-6", 92, 90),
    Target("found 6-10", 97, 93),
    Target("found with environment", 93, 82),
    Target("found on top", 91, 86),
    Target("false incidents", 0.13, 0.13, False, *COMMITS, each=0.35),
    Target("good, nothing mended", 2, 2, False, *LIVES),
    Target("wrong one good", 20, 20, False, *LIVES),
    Target("open list right", 87, 80),
    Target("mends told alone", 82, 40),
    Target("mends told in a stack", 55, 48),
    Target("named reverts told alone", 90, 60),
    Target("named reverts told in a stack", 70, 65),
    Target("drift told as one", 80, 75),
    Target("steps told as drift", 3, 3, False),
    Target("false drifts", 0.1, 0.1, False, *COMMITS),
    Target("sets hold", 97, 97),
    Target("intervals hold", 92, 88),
    Target("short rises recovered", 95, 95),
    Target("extra trials", 0.7, 1.8, False, 1.0, "a job"),
)
UNTARGETED = (
    ("found 1.5-2.5", 100.0, "%"),
    ("drift found", 100.0, "%"),
    ("drift told as one, set aside", 100.0, "%"),
    ("drift: set over stretch", 1.0, "×"),
    ("mends told of drifts and in parts", 100.0, "%"),
    ("true ones withdrawn", 1000.0, "in 1,000 lives"),
    ("ms a job", 1.0, "ms"),
)


def misses(cell: Cell, limit: float, factor: float, at_least: bool) -> bool:
    """Return True if a figure is beyond its limit by more than two standard errors."""
    if not cell.cases:
        return False
    short = limit - factor * cell.share if at_least else factor * cell.share - limit
    return short > MISSED * factor * cell.error


def figure(cell: Cell, factor: float) -> str:
    if not cell.cases:
        return "–"
    value, error = factor * cell.share, factor * cell.error
    digits = 0 if factor == 100 else 2 if abs(value) < 10 else 1
    cases = f" ({cell.cases:.0f})" if factor == 100 else ""
    return f"{value:.{digits}f} ± {error:.{max(digits, 1)}f}{cases}"


def tables(scores: Mapping[str, Score]) -> tuple[str, list[str]]:
    """Return a table for quality and one for speed, and the names of the targets missed."""
    lines: list[str] = []
    missed: list[str] = []
    for group, kinds in (("Quality", QUALITY), ("Speed and memory", SPEED)):
        own = tuple(kind for kind in kinds if kind in scores)
        if not own:
            continue
        columns = [(kind, (kind,), scores[kind]) for kind in own]
        if len(own) > 1:
            columns.append(("pooled", own, pooled(scores, own)))
        heads = [f"{name} ({s.cells['good, nothing mended'].cases:.0f})" for name, _, s in columns]
        lines += [f"{group} (lives; cases)", ""]
        lines += [f"| {' | '.join(['', *heads, 'target'])} |", "|---" * (len(heads) + 2) + "|"]
        for target in TARGETS:
            cells = [s.cells.get(target.cell, Cell()) for _, _, s in columns]
            row = []
            for (name, of, _), cell in zip(columns, cells, strict=True):
                bad = misses(cell, target.limit(of), target.factor, target.at_least)
                if bad:
                    missed.append(f"{name}: {target.cell} {figure(cell, target.factor)}")
                row.append(figure(cell, target.factor) + (" **missed**" if bad else ""))
            sign = "≥" if target.at_least else "≤"
            limit = f"{sign} {target.limit((*own, '')):g}"
            if target.each is not None:
                limit += f" (each {target.each:g})"
            lines.append(f"| {target.cell}, {target.unit} | {' | '.join(row)} | {limit} |")
        for name, factor, unit in UNTARGETED:
            cells = [s.cells.get(name, Cell()) for _, _, s in columns]
            lines.append(f"| {name}, {unit} | {' | '.join(figure(c, factor) for c in cells)} | |")
        lines.append("")
    return "\n".join(lines), missed


def scene_rows(scenes: Mapping[str, tuple[Scene, Score]]) -> tuple[str, list[str]]:
    """Return the table of scenes, and the names of the targets missed."""
    lines = ["| scene (lives) | what | figure | target |", "|---|---|---|---|"]
    missed: list[str] = []
    for name, (scene, score) in scenes.items():
        for cell_name, cell, factor, limit in _asked(scene, score):
            bad = limit is not None and misses(cell, limit[1], factor, limit[0] == "at least")
            if bad:
                missed.append(f"{name}: {cell_name} {figure(cell, factor)}")
            said = "" if limit is None else f"{limit[0]} {limit[1]:g}"
            lives = f"{score.cells['good, nothing mended'].cases:.0f}"
            lines.append(
                f"| {name} ({lives}) | {cell_name} | "
                f"{figure(cell, factor)}{' **missed**' if bad else ''} | {said} |"
            )
    return "\n".join(lines) + "\n", missed


def _asked(
    scene: Scene, score: Score
) -> Iterator[tuple[str, Cell, float, tuple[str, float] | None]]:
    usual = ("false incidents", 1000.0), ("extra trials", 1.0), ("ms a job", 1.0)
    for name, (way, limit, factor) in scene.targets.items():
        yield name, score.cells.get(name, Cell()), factor, (way, limit)
    for name, factor in usual:
        if name not in scene.targets:
            yield name, score.cells.get(name, Cell()), factor, None
    for name in ("good, nothing mended", "wrong one good", "true ones withdrawn"):
        if not math.isclose(score.cells[name].hits, 0):
            yield name, score.cells[name], 1000.0, None
