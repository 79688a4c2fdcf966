"""Search the upgrade that made a training worse: the commits that differ in a lock file alone, one
upgrade each. They are synthetic revisions, trained as such in environments of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from email.parser import HeaderParser
from pathlib import Path

from celedger.base.config import Config
from celedger.base.errors import CannotJudge, UsageError
from celedger.base.model import Commit, OutcomeKind, Purpose, Task
from celedger.base.pins import Upgrade, normal, pins, prefixes, upgrades
from celedger.ledger import Ledger
from celedger.repo import Repository, synthetic
from celedger.repo.object_store import FILE, Entry, ObjectStore
from celedger.suite import Suite
from celedger.trial.permissions import Gate
from celedger.trial.runner import Bench
from celedger.trial.venvs import PINS
from celedger.trial.workplace import local_bench

_NEEDS = re.compile(r"[A-Za-z0-9][\w.-]*")


@contextmanager
def package_bench(
    repository: Repository,
    config: Config,
    suite: Suite,
    tasks: Sequence[Task],
    base: Commit,
    lock_files: tuple[tuple[str, str], tuple[str, str]],
    gate: Gate,
    python: str = "",
) -> Iterator[tuple[Bench, list[Task], list[Commit]]]:
    """Yield a bench, the tasks as they run there, and a commit for each prefix of the upgrades, the
    one with none first.

    Args:
        base: The commit that all are made from.
        lock_files: Name and text of the old and of the new one.
        python: The one that they are for, `CPython 3.11`; "" for any.

    Raises UsageError for lock files that pin nothing or are alike, CannotJudge where the new
    environment cannot be made.
    """
    if any(task.venv for task in tasks):
        raise UsageError(
            "a task makes its environment from the commit's own requirements",
            "take `venv` out of suite.toml for this search",
        )
    old, new = (pins(text, name) for name, text in lock_files)
    if old == new:
        raise UsageError("both lock files pin the same packages", "name two that differ")
    store = ObjectStore(repository)
    own_tasks = [replace(task, venv=(PINS,)) for task in tasks]
    with Ledger.open(store.folder / synthetic.LEDGER, create=True) as ledger, local_bench(
        store.repository, ledger, config, suite, own_tasks, gate=gate, why=Purpose.BISECT,
        label="celedger bisect",
    ) as bench:  # fmt: skip
        last = _commit(store, base, "".join(f"{new[n]}\n" for n in sorted(new)), "the upgrade")
        place = bench.place(last.sha, own_tasks[0])
        if place.kind is not OutcomeKind.OK:
            raise CannotJudge(f"the new environment cannot be made: {place.problem}")
        here = str(place.environment.details.get("python"))
        if not f"{here}.".startswith(f"{python}." if python else ""):
            raise UsageError(f"the suite uses {here}, and these packages are those of {python}")
        changes = upgrades(old, new, _needs(Path(place.python)))
        yield bench, own_tasks, list(_chain(store, base, old, changes))


def _chain(
    store: ObjectStore, base: Commit, old: dict[str, str], changes: Sequence[Upgrade]
) -> Iterator[Commit]:
    titles = ["none of the upgrades", *(change.title() for change in changes)]
    for text, title in zip(prefixes(old, changes), titles, strict=True):
        base = _commit(store, base, text, title)
        yield base


def _commit(store: ObjectStore, parent: Commit, text: str, title: str) -> Commit:
    blob = Entry(FILE, store.write("blob", text.encode(), parent.sha))
    tree = store.changed(parent.tree, {PINS.encode(): blob})
    return synthetic.synthetic_commit(store, tree, parent, title)


def _needs(python: Path) -> dict[str, list[str]]:
    """Return what each package of an environment depends on, by its metadata."""
    needs: dict[str, list[str]] = {}
    for file in python.parent.parent.glob("lib/*/site-packages/*.dist-info/METADATA"):
        head = HeaderParser().parsestr(file.read_text(encoding="utf-8", errors="replace"))
        rows = [row for row in head.get_all("Requires-Dist", []) if "extra ==" not in row]
        found = (_NEEDS.match(row) for row in rows)
        needs[normal(str(head["Name"]))] = [normal(match[0]) for match in found if match]
    return needs
