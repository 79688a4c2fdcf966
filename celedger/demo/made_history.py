"""The made-up history of the demo: some twenty commits to a small library, chosen and ordered by a
seed, a regression of each kind among them. `templates/` is the library, `changes.toml` what may
happen to it. Must not know how a history is measured or bisected.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from celedger.base.errors import UsageError
from celedger.repo.fast_import import NewCommit, create

KINDS = ("quality", "speed", "memory", "crash")
_ORDINARY = 10  # commits that change no metric
_HOUR = 3600
_PEOPLE = ("Ada Berg", "Chidi Okafor", "Emre Yilmaz", "Hana Ito", "Lena Vogel", "Mateo Silva")


@dataclass(frozen=True, slots=True)
class Edit:
    """A commit that replaces `old`, which the library has once, by `new`. One with a `repair`
    cannot be imported before it."""

    kind: str
    subject: str
    old: str
    new: str
    repair: Edit | None = None


@dataclass(frozen=True, slots=True)
class DemoHistory:
    """Parents come before their children; the last commit is the head of main. `planted` has the
    kind of each regression with its commit's key."""

    commits: tuple[NewCommit, ...]
    planted: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Node:
    """A commit as the edits that lead to it."""

    subject: str
    parents: tuple[int, ...]
    edits: tuple[Edit, ...]


@cache
def edits() -> tuple[Edit, ...]:
    """Return all that may happen to the library."""
    tables = tomllib.loads(Path(__file__).with_name("changes.toml").read_text(encoding="utf-8"))
    return tuple(
        Edit(kind, repair=Edit("repair", **repair) if repair else None, **entry)
        for kind, entries in tables.items()
        for entry in entries
        for repair in [entry.pop("repair", None)]
    )


def words(random: Random) -> dict[str, str]:
    """Return the names and numbers of a library. Within these ranges the planted regressions were
    measured to be clear of the noise (`benchmarks/demo_truth.py`)."""
    choices = {
        "package": ("tinygrove", "pebblenet", "smallfire", "twignet", "mosslib", "lowtide"),
        "Trainer": ("Trainer", "Loop", "Training", "Teacher"),
        "suite": ("daily", "guard", "smoke", "watch"),
        "alphabet": range(1000),
        "noise": (3.8, 4.0, 4.2),
        "train": (2350, 2400, 2450),
        "validation": (950, 1000, 1050),
        "batch": (92, 96, 100),
        "width": (120, 128, 136),
        "dropout": (0.15, 0.2),
        "momentum": (0.85, 0.9),
        "lr": (0.014, 0.016, 0.018),
    }
    return {word: str(random.choice(options)) for word, options in choices.items()}


def library(edits: Sequence[Edit], words: Mapping[str, str]) -> dict[str, str]:
    """Return the library's files, by path, after the edits. Raises ValueError where the text that
    an edit replaces is not there exactly once."""
    files = _templates("library")
    for edit in edits:
        if sum(text.count(edit.old) for text in files.values()) != 1:
            raise ValueError(f"{edit.subject}: {edit.old!r} is not there once")
        files = {name: text.replace(edit.old, edit.new) for name, text in files.items()}
    package = words["package"]
    return {
        f"{package}/{name}" if name.endswith(".py") else name: _filled(text, words)
        for name, text in files.items()
    }


def suite(words: Mapping[str, str]) -> dict[str, str]:
    """Return the files, by path, of the suite that measures the library."""
    return {
        f"suites/{words['suite']}/{name}": _filled(text, words)
        for name, text in _templates("suite").items()
    }


def build(seed: int) -> DemoHistory:
    """Return the history of a seed: equal seeds give equal histories."""
    random = Random(f"celedger demo {seed}")
    vocabulary = words(random)
    people = random.sample(_PEOPLE, random.randint(3, 5))
    time = 1_672_531_200 + random.randrange(2 * 365 * 24) * _HOUR  # in 2023 or 2024
    nodes = _graph(random, _order(random))
    commits: list[NewCommit] = []
    trees: list[dict[str, str]] = []
    for node in nodes:
        files = library(node.edits, vocabulary)
        trees.append(files | suite(vocabulary) if node is nodes[-1] else files)
        parent = trees[node.parents[0]] if node.parents else {}
        author = random.choice(people)
        time += random.randrange(_HOUR // 2, 40 * _HOUR)
        commits.append(
            NewCommit(
                key=str(len(commits)),
                message=f"{node.subject}\n",
                files={path: text for path, text in trees[-1].items() if parent.get(path) != text},
                parents=tuple(map(str, node.parents)),
                author=author,
                email=f"{author.lower().replace(' ', '.')}@example.org",
                time=time,
            )
        )
    keys = {node.subject: str(key) for key, node in enumerate(nodes)}
    planted = {edit.kind: keys[edit.subject] for edit in nodes[-1].edits if edit.kind in KINDS}
    return DemoHistory(tuple(commits), planted)


def materialise(path: Path, seed: int) -> dict[str, str]:
    """Make the repository of a seed at `path`, or find it there again; return the hash of each
    planted commit by kind. Raises UsageError where something else is."""
    marker = path / ".git" / "celedger-demo"
    if marker.is_file():
        made: dict[str, dict[str, str]] = json.loads(marker.read_text())
        if str(seed) in made:
            return made[str(seed)]
    if path.exists() and any(path.iterdir()):
        raise UsageError(
            f"{path} is not empty and not the demo of seed {seed}",
            "name another folder, or remove it",
        )
    history = build(seed)
    shas = create(path, history.commits)
    planted = {kind: shas[key] for kind, key in history.planted.items()}
    marker.write_text(json.dumps({seed: planted}))
    return planted


def _order(random: Random) -> list[Edit]:
    """Return the edits of a history: one planted of each kind, all that cannot be imported, and
    some others, two of them at the ends, where a regression would leave nothing to search."""
    of_kind: dict[str, list[Edit]] = {}
    for edit in edits():
        of_kind.setdefault(edit.kind, []).append(edit)
    first, *others, last = random.sample(of_kind["ordinary"], _ORDINARY)
    middle = [random.choice(of_kind[kind]) for kind in KINDS] + of_kind["broken"] + others
    random.shuffle(middle)
    return [first, *middle, last]


def _graph(random: Random, order: Sequence[Edit]) -> list[_Node]:
    """Return main and one side branch, parents first. Two edits are on the branch, and two on main
    meanwhile."""
    nodes = [_Node("Start from the notebook", (), ())]

    def grow(tip: int, edits: Sequence[Edit]) -> int:
        for edit in edits:
            for each in (edit, edit.repair) if edit.repair else (edit,):
                nodes.append(_Node(each.subject, (tip,), (*nodes[tip].edits, each)))
                tip = len(nodes) - 1
        return tip

    start = random.randrange(1, len(order) - 4)
    fork = grow(0, order[:start])
    side = grow(fork, order[start : start + 2])
    main = grow(fork, order[start + 2 : start + 4])
    merged = nodes[main].edits + nodes[side].edits[len(nodes[fork].edits) :]
    nodes.append(_Node("Merge branch 'next'", (main, side), merged))
    tip = grow(len(nodes) - 1, order[start + 4 :])
    nodes.append(_Node("Measure every commit with celedger", (tip,), nodes[tip].edits))
    return nodes


def _templates(folder: str) -> dict[str, str]:
    return {
        file.name.removesuffix(".in"): file.read_text(encoding="utf-8")
        for file in sorted((Path(__file__).parent / "templates" / folder).iterdir())
    }


def _filled(template: str, words: Mapping[str, str]) -> str:
    """Return the text with a word for each `@word@`. Raises KeyError for an unknown word."""
    return re.sub("@([A-Za-z]+)@", lambda match: words[match[1]], template)
