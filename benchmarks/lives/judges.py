"""What may judge a life. Whatever does gets the jobs one by one, runs trials through the session,
and says after each what its list of incidents is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import lives
import lives.life
from lives.life import Life, Session

PARTS = ("repeats", "anchors", "sessions", "reruns", "recovered")
"""What `--without` can switch off."""


@dataclass(frozen=True)
class Row:
    """An incident, as a judge lists it after a job. `sizes`: metric -> size, low, high."""

    id: str
    kind: str
    state: str
    first: int
    last: int
    sizes: Mapping[int, tuple[float, float, float]]


class Judge(Protocol):
    def start(self, life: Life) -> None:
        """Forget everything; a new life begins."""

    def job(self, session: Session) -> list[Row]:
        """Run a job's trials through the session; return all incidents there ever were."""
        ...

    def accept(self, commit: int, incident: str) -> None:
        """Take note that a person accepted an incident, whose true first bad commit is given."""


OPTIONS = {
    "model": (),
    "a": ("ev", "ask", "g9"),
    "b": ("sign", "firm", "drift", "two", "ctl2"),
}
"""Of the prototypes, by name."""
SWITCHES = {
    "repeats": "between",
    "anchors": "noanchor",
    "sessions": "nosession",
    "reruns": "noreruns",
}


class PrototypeJudge:
    """Drives the measured models of a research note, which know their own jobs.

    Args:
        folder: Where they lie.
        name: `a` (joint filter of mends, evidence, controls), `b` (signed steps, drift, second
            mode), `model` (that of the first note).
    """

    def __init__(self, folder: Path, name: str = "model", without: tuple[str, ...] = ()) -> None:
        self._options = (
            *OPTIONS[name],
            *(SWITCHES[w] for w in without if w in SWITCHES),
        )
        sys.path[:0] = [str(folder / ("lives_b" if name == "b" else "lives_a"))]
        # Names that they import from the simulator they were written for.
        lives.bisect_plan = lives.life.bisected  # type: ignore[attr-defined]
        sys.modules["evidence"] = ModuleType("evidence")
        sys.modules["evidence"].Evidence = _PrototypeEvidence  # type: ignore[attr-defined]
        model = import_module("model")
        self._class = import_module("control").Judge if name == "a" else model.Judge
        if "recovered" in without:  # "good again" at every fall that may be a mend
            model.HALF, model.GONE, model.CLOSED = -1e9, 0.3, model.OPEN
        self._judge: Any = None

    def start(self, life: Life) -> None:
        self._judge = self._class(*self._options)
        self._judge.start(life)
        self._life = life

    def accept(self, commit: int, incident: str) -> None:
        self._judge.accept(SimpleNamespace(commit=commit), 0)

    def job(self, session: Session) -> list[Row]:
        def run(commit: int, count: int) -> list[tuple[int, int, Any]]:
            return [(t.commit, t.seed, t.values) for t in session.run(commit, count)]

        job = session.job
        what = job.head if job.kind == "hook" else (job.commits[0], job.commits[-1])
        bench = SimpleNamespace(env=session.environment, job=session.number, run=run)
        rows = self._judge.job(bench, job.kind, what, self._life.seeds)
        return [
            Row(str(r["id"]), r.get("kind", "metric"), r["state"], r["lo"], r["hi"], r["size"])
            for r in rows
        ]


class _PrototypeEvidence:
    def __init__(self, life: Life) -> None:
        self.names, self.overlap = life.names, life.touches
