"""A repository whose page shows every state: worse (with its first bad commit, and in a range),
crashed, suspected, recovered, better, steady, never measured; and what a new environment moved.
What strangers write in it is full of HTML."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from random import Random

from fast_import import NewCommit
from golden.repositories import HERE, OLD, Writer, _writer

from celedger.base.model import BaselineAct, BisectRecord, Environment, FindingRecord, OutcomeKind
from celedger.repo.plumbing import tell

START = 1_772_000_000
COMMITS = 60
SUITE = """\
[suite]
name = "lab"
[metrics]
val_loss = { direction = "lower", kind = "quality", floor = "0.5%" }
val_accuracy = { direction = "higher", kind = "quality", floor = 0.005 }
f1 = { direction = "higher", kind = "quality" }
step_time = { unit = "s", direction = "lower", kind = "speed", floor = "2%" }
[[task]]
name = "char_lm"
command = "{python} {suite}/fit.py --seed {seed}"
seeds = [0, 1, 2]
"""
for _name in ("cifar_tiny", "speech_kw", "ner_conll", "graph_cora", "tabular"):
    SUITE += f'[[task]]\nname = "{_name}"\ncommand = "{{python}} {{suite}}/fit.py {_name}"\n'

EVIL = '</script><script>window.hacked = 1</script><img src=x onerror="window.hacked=1">'
EVIL_METRIC = 'gap"><svg onload=window.hacked=2>'
SUBJECT = EVIL
LOG = f"epoch 1\n\x1b[31mred\x1b[0m {EVIL}\u2028\nRuntimeError: stack expects equal sizes\n"
SUBJECTS = (
    "Rework layer norm eps", "Cache the vocabulary", "Bump dropout mask", "Use fused attention",
    "Document the loader", "Split the trainer", "Fix a typo", "Sort the imports",
)  # fmt: skip
AUTHORS = ("Mara Petrov", "Tomasz Lind", "Yuki Tanabe", 'Ines "Q" O\'Hara & Co')
WORSE, AFTER_GAP, CRASH, BETTER, NEW = 45, 44, 50, 30, 10
LOST, MENDED, DOUBT = 31, 37, 58  # of tabular, and of ner_conll
GAP = range(37, AFTER_GAP)  # not measured of cifar_tiny
UNMEASURED = {17, 18, 27, 28, 29, 48, 49}


def make(root: Path, *, bad: bool = True) -> None:
    """Make the repository and its ledger; without `bad`, nothing in it needs attention."""
    commits = [
        NewCommit(
            f"c{i}", _subject(i),
            {"model.py": f"NUMBER = {i}\n"}, author=AUTHORS[i % len(AUTHORS)],
            time=START + i * 12_000, tag={20: "v2.2", BETTER: "v2.3"}.get(i),
        )
        for i in range(COMMITS)
    ]  # fmt: skip
    with _writer(root, commits, SUITE) as writer:
        draw = Random(3)
        for i in range(COMMITS):
            if i not in UNMEASURED:
                for task in writer.tasks:
                    _measure(writer, draw, i, task, bad=bad)
                    if i == NEW - 1:  # the anchor
                        _measure(writer, draw, i, task, bad=bad, environment=HERE)
        writer.baseline(BaselineAct.PIN, "c20", "tabular", "", "the paper <b>reports</b> it")
        if bad:
            _search(writer)
    if bad:
        log = root / ".celedger" / "logs"
        log.mkdir(parents=True)
        for trial in _failed(writer):
            (log / f"{trial}.log").write_text(LOG)
    tell(root, "config", "remote.origin.url", "https://me:secret@github.com/tinylab/main.git")


def _subject(i: int) -> str:
    if i == MENDED:
        return f'Revert "{_subject(LOST)}"'
    return f"{SUBJECT if i == WORSE else SUBJECTS[i % len(SUBJECTS)]} (#{2200 + i})"


def _failed(writer: Writer) -> Iterator[str]:
    for number in range(1, writer.count + 1):
        yield f"01K{number:023d}"


def _measure(
    writer: Writer,
    draw: Random,
    i: int,
    task: str,
    *,
    bad: bool,
    environment: Environment | None = None,
) -> None:
    if task == "cifar_tiny" and i in GAP:
        return
    environment = environment or (OLD if i < NEW else HERE)
    if task == "speech_kw" and i >= CRASH and bad:
        writer.trial(
            f"c{i}", task, {}, environment=environment, kind=OutcomeKind.FAILED,
            message=f"exit status 1: RuntimeError: stack expects equal sizes {EVIL}",
        )  # fmt: skip
        return
    loss = 0.726 + 0.2 * list(writer.tasks).index(task)
    step = 0.0149 if environment is OLD else 0.0158
    if bad and task == "char_lm" and i >= WORSE:
        loss *= 1.085
    if bad and task == "cifar_tiny" and i >= AFTER_GAP:
        step *= 1.3
    if bad and task == "tabular" and LOST <= i < MENDED:
        loss *= 1.06
    if bad and task == "ner_conll" and i >= DOUBT:
        loss *= 1.02
    if task == "graph_cora" and i >= BETTER:
        loss *= 0.96
    for seed in range(3 if task == "char_lm" else 2):
        last = loss * draw.gauss(1, 0.006)
        values = {
            "val_loss": last,
            "val_accuracy": 1.2 - 0.55 * last + draw.gauss(0, 0.002),
            "step_time": step * draw.gauss(1, 0.01),
            "duration": 20 * draw.gauss(1, 0.01),
            "peak_rss": 3.2e8 * draw.gauss(1, 0.002),
            EVIL_METRIC: draw.gauss(1, 0.1),
        }
        curves = {
            "val_loss": [last * (1 + 1.6 * math.exp(-e / 4)) for e in range(1, 21)],
            "val_accuracy": [values["val_accuracy"] * (1 - 0.7**e) for e in range(1, 21)],
            "step_time": [values["step_time"] * draw.gauss(1, 0.02) for _ in range(20)],
        }
        writer.trial(
            f"c{i}", task, values, seed=seed, environment=environment,
            curves=curves if i >= COMMITS - 25 else None,
        )  # fmt: skip


def _search(writer: Writer) -> None:
    shas = [writer.commits[f"c{i}"].sha for i in range(32, 56)]
    at = WORSE - 32
    rows: list[list[tuple[int, float]]] = [[(i, round(1 / 24, 3)) for i in range(24)]]
    for width in (12, 9, 6, 4, 3, 2, 2):
        first = max(0, at - width // 2)
        rows.append([(i, round(1 / width, 3)) for i in range(first, first + width)])
    rows.append([(at - 1, 0.015), (at, 0.985)])
    posterior = [0.985 if i == at else 0.015 if i == at - 1 else 0.0 for i in range(24)]
    report = {
        "commits": shas, "posterior": posterior, "narrowing": rows, "steps": list(range(8)),
        "readings": [[i % 24 - 1, 0.7] for i in range(17)], "trials": 11,
        "stored": 6, "improved": False,
    }  # fmt: skip
    writer.ledger.record_bisect(BisectRecord(
        writer.ulid(), "lab", "char_lm", "val_loss", writer.commits["c31"].sha, shas[-1],
        (shas[at],), 0.985, "found", START + 60 * 12_000.0, report,
    ))  # fmt: skip
    writer.ledger.record_finding(FindingRecord(
        f"{7:026}", "explain", "lab", "char_lm", shas[at], shas[at - 1], "explain A..B char_lm",
        START + 61 * 12_000.0, f"LayerNorm's eps differs {EVIL}", {},
    ))  # fmt: skip
